// Package relay sends the record of a run to a central memroom serve, and holds the form in which
// it travels ([Frame]).
//
// A run's record is its own buffer: files that only grow are sent from the place that the server
// has acknowledged, files that are replaced are sent whole when they change. So nothing is lost
// while the server is away, and what arrives twice is recognised by its place. Package central
// keeps what arrives; package cli starts the sender next to the run.
package relay
