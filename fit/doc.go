// Package fit decides what a job that ran out of memory is launched again with: which remedies of
// the catalogue, at which level, with which parameters. Values in, values out; package cli reads
// files, waits for the card and relaunches.
//
// The split between here and the probe: here it is decided *what* is tried, from how the attempt
// ended; *how much* of it, the probe decides inside the process on the first training call, where
// the cost of a row of the batch can be measured and the room for it read. So one relaunch is
// usually enough.
//
// Start at [Choose]; [Rewrite] changes a command's own arguments.
package fit
