// Package store keeps runs on disk. While it lives a run is a folder of append-only files
// ([Folder]); SQLite ([Index]) is an index over the folders that any command brings up to date
// before it reads, and that can be thrown away at any time. Nothing of SQLite is touched while a
// training runs, so that a supervisor stays small.
//
// The layout is described in docs/format/run.md. Packages cli and api import it; supervise gets a
// [Folder] through an interface of its own.
package store
