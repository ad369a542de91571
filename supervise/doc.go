// Package supervise starts a training command in its own process group and, where allowed, its own
// cgroup, watches its memory, acts, records and, when a policy says so, launches it again.
//
// # Three processes
//
// The front end ([Front]) is what the user started: it has the terminal. The keeper ([Keep]) is a
// small process in a session of its own that owns the command's pseudo-terminal or pipes, appends
// its output to the run's folder and reaps it; it is the one process whose death would harm the
// command, so it does as little as possible. The monitor ([Watch]) reads the meters, hears the
// probe, judges and records. Front end and monitor are clients of the keeper's socket (protocol.go)
// and may be killed at any moment: the keeper starts another monitor, and a new front end may
// attach.
//
// Output reaches the front end through the file, not through the keeper's memory: the keeper
// appends, says how long the file now is, and the front end copies at its own speed. A slow
// terminal therefore never stops the training, and nothing is lost. Only when the file cannot be
// written (a full disk) does output travel through the socket; then a front end that takes nothing
// for [inlinePatience] loses output, rather than the training its time.
//
// # In order of reading
//
// [Launch] is what the keeper is asked to start, [Monitor] the watching side, [Policy] decides what
// follows an attempt, [Judge] makes the verdict from the evidence. Package cli hands the store in
// as a [Recorder].
package supervise
