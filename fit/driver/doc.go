// Package driver carries out what package fit decides: it keeps the story of a run's attempts in
// the run's folder, reads the files that a decision needs, waits for the cards and prepares the
// next launch. It is the policy that package supervise asks after each attempt; what to try is no
// question of this package.
//
// Start at [Policy.After].
package driver
