// Package supervise starts a training command in its own process group and, where allowed, its own
// cgroup, watches its memory, acts, records and, if a policy decides so, launches it again.
//
// # Three processes
//
// The front end ([Front]) is what the user started. It has the terminal. The keeper ([Keep]) is a
// small process in a session of its own. It owns the command's pseudo-terminal or pipes, appends
// the output to the run's folder and learns the exit code. Its death would harm the command, so it
// does as little as possible. The monitor ([Monitor]) joins parts with a state and a file each:
// what samples (sampler), hears the probes (hearer), judges (judge), records (record) and limits
// (limiter, ranks, group, alarm, relief). Facts of the run that all share are in job.
//
// Front end and monitor may be killed at any moment: the keeper starts another monitor, and a new
// front end may attach. Each of the two inherits a [Link] to the keeper, and only over a link can a
// command be started. Who attaches comes over the keeper's socket (protocol.go), which accepts the
// own user and root. After a killed keeper, [FindOrphan] finds the command and [CleanUp] removes
// what is left.
//
// Output reaches the front end through the file, not through the keeper's memory. The keeper
// appends and sends the new length of the file; the front end copies at its own speed. So a slow
// terminal never stops the training, and nothing is lost. Only when the file cannot be written (a
// full disk) does output travel through the socket. Then a front end that takes nothing for
// [inlinePatience] loses output; it gets a note of how much, and so does the record.
//
// # In order of reading
//
// [Launch] is the order for the keeper, [Monitor] the watching side, [Policy] decides what
// follows an attempt, [Judge] makes the verdict from the evidence. Package cli hands the store in
// as a [Recorder].
package supervise
