// Package conformance holds the tests that every engine of trials passes: this machine, Ray and
// Slurm, each of them real and started by the tests. There is nothing else in it.
package conformance
