package cli

import (
	"syscall"

	"memroom/event"
)

// leastAddressSpace is what each of memroom's processes needs. Little of it is ever used: Go
// reserves addresses for its heap, and the C library 128 MiB for each thread.
const leastAddressSpace = 2 * event.GiB

// checkAddressSpace refuses to go on where `ulimit -v` is too low. Later on the Go runtime would
// end the process with a page of register contents.
func checkAddressSpace() error {
	var limit syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_AS, &limit) != nil ||
		limit.Cur >= uint64(leastAddressSpace) {
		return nil
	}
	return exitWith(exitNotStarted, "the address space is limited to %s (ulimit -v); "+
		"memroom needs %s. Limit the command alone: "+
		"memroom run -- sh -c 'ulimit -v %d; exec COMMAND', or use --host-mem",
		event.Bytes(limit.Cur), leastAddressSpace, limit.Cur/1024)
}
