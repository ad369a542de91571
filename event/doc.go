// Package event is the vocabulary of memroom: the words every other package uses, as types. It
// imports only the standard library and nothing of memroom; everything else may import it.
//
// # Glossary
//
//   - requested: bytes the program asked for
//   - allocated: rounded bytes in live blocks of an allocator
//   - active: allocated, plus blocks freed by the program whose last use on another stream has not finished
//   - reserved: bytes in segments the allocator took from the driver
//   - device: what the card gave up: reserved + context + libraries
//   - resident: host pages in RAM; of these, anonymous and shared pages cannot be dropped
//   - limit: the lowest wall that applies (card, cgroup, memory fraction, ulimit)
//   - headroom: limit minus peak
//   - step: one optimizer step; micro-batch: what one forward pass sees; effective batch: micro-batch x accumulation x ranks
//   - run: one use of `memroom run`; attempt: one launch of a run; study and trial: a search and one point of it
//   - finding: something learnt about the user's job. Data with evidence, never an error of ours
//   - remedy: something that can be changed so that a job needs less
//
// # Types, in order of reading
//
// [Bytes] is a size that parses and prints the way people write it. [Entry] is one line of an
// allocator's recorded history, with addresses; [Timeline] is what a program asks of an allocator,
// without them. [Sample] is one reading of the meters, [Finding] what a detector learnt, [Verdict]
// how an attempt ended, [Run] and [Attempt] the record of it.
package event
