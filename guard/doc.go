// Package guard is memory as a test: what memroom.toml asks for, what counts as too much, and what
// a change of the code did to memory. It is pure thought; cli rehearses, plans and asks git.
//
// Start at [Parse], [Result.Judge] and [Compare].
package guard
