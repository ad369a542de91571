// Package engine carries out what package trial decides: it writes every step of a study into a
// journal before it is taken, starts attempts on a backend, reads metrics from what they print, and
// takes a study up again after a crash.
package engine
