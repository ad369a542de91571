// Package attack drives the built memroom from outside, as somebody would who wants it to crash,
// hang, fill the memory, say what is secret or do what it must not. Its tests are the attack suite:
// `make test` runs a short form, `make attack` the long one, and both print how many inputs were
// tried and what became of them.
//
// All inputs come from seeds, so each run tries the same ones. A failure names the input; set
// MEMROOM_ATTACK_KEEP to a folder to have the offending files kept there.
//
// What each part must not do is in docs/security.md.
package attack
