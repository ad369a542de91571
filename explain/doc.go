// Package explain finds out why memory ran out and what to do about it, from a log, a snapshot or a
// watched run. It works in five stages with typed values between them: Facts are read and not
// inferred, Sums add them up, the Tensor is the allocation that an operation asked for, the lever
// is the user's own setting that changes its size, and the check drops whatever the sums
// contradict.
package explain
