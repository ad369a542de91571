package supervise

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"memroom/event"
	"memroom/meter"
)

// Orphan is what is left of a run whose keeper was killed: nobody watches the command, holds its
// limit or learns how it ends.
type Orphan struct {
	Command int // process of the command; 0: it has ended
	Others  int // further processes in the run's cgroup
}

// String describes the state of the command and what can be done.
func (o Orphan) String() string {
	switch {
	case o.Command > 0:
		return fmt.Sprintf("memroom's process for it was killed; the command still runs as process %d, and nobody "+
			"watches it: `kill %d` ends it", o.Command, o.Command)
	case o.Others > 0:
		return fmt.Sprintf("memroom's process for it was killed; the command has ended, its exit code is unknown; "+
			"%s that it started still live", event.Count(o.Others, "process"))
	}
	return "memroom's process for it was killed; the command has ended, its exit code is unknown"
}

// FindOrphan returns the remains of a run on this machine whose keeper was killed before the
// command had ended. There is none where the keeper lives or has done its work.
func FindOrphan(files Files) (Orphan, bool) {
	state, err := ReadState(files.State)
	if err != nil || state.Finished || state.Exit != nil || !keeperIsDead(state, files.Dir) {
		return Orphan{}, false
	}
	var o Orphan
	if state.Child > 0 && state.ChildStart > 0 && startTicks(state.Child) == state.ChildStart &&
		running(state.Child) {
		o.Command = state.Child
	}
	if state.Cgroup != "" {
		members, _ := (&meter.Cgroup{Dir: state.Cgroup, Version: state.CgroupV}).Processes()
		for _, pid := range members {
			if pid != o.Command && running(pid) {
				o.Others++
			}
		}
	}
	return o, true
}

// keeperIsDead is sure of it: no process has the keeper's number and birth, and nobody answers at
// its socket, which finds a keeper in another container too.
func keeperIsDead(state State, dir string) bool {
	if state.Keeper == 0 || startTicks(state.Keeper) == state.KeeperStart && running(state.Keeper) {
		return false
	}
	conn, err := dial(dir)
	if err == nil {
		conn.Close()
	}
	return err != nil
}

// CleanUp removes what a killed keeper left behind: its sockets, its cgroup when no process is left
// in it, and the run's folder for sockets. The record stays. It reports whether there was any.
func CleanUp(files Files) bool {
	state, err := ReadState(files.State)
	if err != nil || !keeperIsDead(state, files.Dir) {
		return false
	}
	found := false
	for _, name := range []string{socketName, "probe.sock"} {
		found = os.Remove(filepath.Join(files.Dir, name)) == nil || found
	}
	if ours := strings.HasPrefix(filepath.Base(state.Cgroup), cgroupPrefix); ours {
		found = removeEmptyCgroups(state.Cgroup) || found
	}
	return removeScratch(string(state.Scratch)) || found
}

// removeEmptyCgroups removes a cgroup and those below it. The kernel refuses where a process lives.
func removeEmptyCgroups(dir string) bool {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return false
	}
	for _, e := range entries {
		if e.IsDir() {
			removeEmptyCgroups(filepath.Join(dir, e.Name()))
		}
	}
	return unix.Rmdir(dir) == nil
}

// MakeScratch makes a private folder with a short path, for sockets that do not fit into the run's
// folder: a socket's address holds 107 bytes. The keeper removes it; see [Launch].
func MakeScratch() (string, error) { return os.MkdirTemp("", scratchPrefix) }

const scratchPrefix = "memroom-run-"

// removeScratch removes a folder that MakeScratch made, with the socket in it and nothing else.
func removeScratch(dir string) bool {
	var st unix.Stat_t
	if !strings.HasPrefix(filepath.Base(dir), scratchPrefix) || unix.Lstat(dir, &st) != nil ||
		st.Mode&unix.S_IFMT != unix.S_IFDIR || int(st.Uid) != os.Geteuid() {
		return false
	}
	if entries, err := os.ReadDir(dir); err == nil {
		for _, e := range entries {
			if e.Type() == os.ModeSocket {
				_ = os.Remove(filepath.Join(dir, e.Name()))
			}
		}
	}
	return os.Remove(dir) == nil
}

// startTicks is when a process started, in clock ticks after boot; 0 when unknown.
func startTicks(pid int) uint64 {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	fields := statFields(string(data))
	if len(fields) < 20 {
		return 0
	}
	ticks, _ := strconv.ParseUint(fields[19], 10, 64)
	return ticks
}

// SameProcess reports whether a process with this number and birth still runs: a number alone may
// be somebody else's by now.
func SameProcess(pid int, start uint64) bool { return pid > 0 && startTicks(pid) == start }
