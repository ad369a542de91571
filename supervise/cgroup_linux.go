package supervise

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"memroom/event"
	"memroom/meter"
)

// room is the cgroup a run's command is started in.
type room struct {
	group *meter.Cgroup // nil: none of its own
	limit LimitKind
	unit  string // systemd scope to start the command in
}

// cgroupPrefix begins the name of every cgroup of ours; the run's ID follows.
const cgroupPrefix = "memroom-"

// makeRoom makes a cgroup for the run below the one we are in, or next to it, with the limit if one
// is asked for. When that is not allowed it returns the reason, and the run goes on without.
func makeRoom(id string, limit event.Bytes) (room, []string) {
	soft := LimitNone
	if limit > 0 {
		soft = LimitSoft
	}
	around, err := meter.FindCgroup("/proc", "self")
	if err != nil {
		return room{limit: soft}, []string{"no cgroup for the run: " + err.Error()}
	}
	group, why := makeCgroup(around, cgroupPrefix+id)
	if group != nil && limit > 0 {
		if err := setLimit(group, limit); err != nil {
			removeCgroup(group.Dir)
			group, why = nil, err
		}
	}
	switch {
	case group != nil && limit > 0 && group.Version == 2:
		return room{group: group, limit: LimitCgroup2}, nil
	case group != nil && limit > 0:
		return room{group: group, limit: LimitCgroup1}, nil
	case group != nil:
		return room{group: group}, nil
	case limit > 0 && around.Version == 2 && userScopeWorks():
		return room{limit: LimitScope, unit: "memroom-" + id}, nil
	}
	return room{limit: soft}, []string{"no cgroup of the run's own: " + why.Error()}
}

// makeCgroup tries below the cgroup we are in and then next to it. Version 2 lets no cgroup with
// processes hand the memory controller to its children. So in a session that systemd delegated, a
// cgroup next to ours is what works. One that is there already is another run's: IDs are times, and
// runs with different homes may begin at the same one.
func makeCgroup(around *meter.Cgroup, name string) (*meter.Cgroup, error) {
	parents := []string{around.Dir}
	if around.Version == 2 {
		parents = append(parents, filepath.Dir(around.Dir))
	}
	var problems []error
	for _, parent := range parents {
		if _, err := os.Stat(filepath.Join(parent, "cgroup.procs")); err != nil {
			continue
		}
		dir, err := makeOwn(filepath.Join(parent, name))
		if err != nil {
			problems = append(problems, err)
			continue
		}
		group := &meter.Cgroup{Dir: dir, Version: around.Version}
		if !group.HasMemory() && around.Version == 2 {
			_ = os.WriteFile(filepath.Join(parent, "cgroup.subtree_control"), []byte("+memory"), 0)
		}
		if group.HasMemory() && unix.Access(filepath.Join(group.Dir, "cgroup.procs"),
			unix.W_OK) == nil {
			return group, nil
		}
		problems = append(problems, fmt.Errorf("%s does not delegate the memory controller", parent))
		removeCgroup(group.Dir)
	}
	return nil, errors.New(strings.ReplaceAll(errors.Join(problems...).Error(), "\n", "; "))
}

// makeOwn makes a folder that nobody has made before: path, or path with a number.
func makeOwn(path string) (string, error) {
	dir := path
	for n := 2; ; n++ {
		if err := os.Mkdir(dir, 0o755); n > 100 || !errors.Is(err, os.ErrExist) {
			return dir, err
		}
		dir = path + "." + strconv.Itoa(n)
	}
}

// setLimit bounds memory and swap together: a job that may swap past its limit has none.
func setLimit(group *meter.Cgroup, limit event.Bytes) error {
	value := []byte(strconv.FormatInt(int64(limit), 10))
	write := func(name string, value []byte) error {
		return os.WriteFile(filepath.Join(group.Dir,
			name), value, 0)
	}
	if group.Version == 2 {
		if err := write("memory.max", value); err != nil {
			return err
		}
		return absentIsFine(write("memory.swap.max", []byte("0")))
	}
	if err := write("memory.limit_in_bytes", value); err != nil {
		return err
	}
	return absentIsFine(write("memory.memsw.limit_in_bytes", value))
}

// absentIsFine: a kernel without swap accounting has no such file; opening one that is not there to
// write asks to create it, which a cgroup refuses with a permission error.
func absentIsFine(err error) error {
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission) {
		return nil
	}
	return err
}

// removeCgroup removes an empty cgroup. The kernel needs a moment after the last process has gone.
func removeCgroup(dir string) {
	for range 20 {
		if err := unix.Rmdir(dir); err == nil || err == unix.ENOENT {
			return
		}
		time.Sleep(25 * time.Millisecond)
	}
}

// userScopeWorks asks the user's systemd for an empty scope; without a session bus that fails at
// once.
func userScopeWorks() bool {
	path, err := exec.LookPath("systemd-run")
	if err != nil || os.Getenv("XDG_RUNTIME_DIR") == "" {
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	return exec.CommandContext(ctx, path, "--user", "--scope", "--quiet", "--collect", "--",
		"true").Run() == nil
}

// scopeArguments wraps a command so that systemd puts it into a scope with the limit and then
// executes it in place: the process stays ours.
func scopeArguments(unit string, limit event.Bytes, path string, args []string) (string, []string) {
	runner, err := exec.LookPath("systemd-run")
	if err != nil {
		return path, args
	}
	wrapped := []string{"systemd-run", "--user", "--scope", "--quiet", "--collect",
		"--unit=" + unit,
		"-p", fmt.Sprintf("MemoryMax=%d", int64(limit)), "-p", "MemorySwapMax=0", "--", path}
	return runner, append(wrapped, args[1:]...)
}

// findScope waits for the process to arrive in its scope, and looks whether the limit is there:
// systemd takes one that it cannot set because the memory controller was not handed to it. Without
// a reason and a group the process has ended already.
func findScope(pid int, unit string, limit event.Bytes) (group *meter.Cgroup, why string) {
	for range 100 {
		found, err := meter.FindCgroup("/proc", strconv.Itoa(pid))
		switch {
		case err == nil && strings.Contains(found.Dir, unit) &&
			(!found.HasMemory() || found.Limit() == 0 || found.Limit() > limit):
			return nil,
				"systemd made a scope without the limit: the memory controller is not handed to the user's systemd"
		case err == nil && strings.Contains(found.Dir, unit):
			return found, ""
		case !running(pid):
			return nil, ""
		}
		time.Sleep(20 * time.Millisecond)
	}
	return nil, "systemd did not put the command into a scope"
}

// running reports whether a process exists and has not ended.
func running(pid int) bool {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	fields := statFields(string(data))
	return err == nil && len(fields) > 0 && fields[0] != "Z"
}

// killsAbove counts the kills in the cgroup that a scope is in; version 2 counts those of
// sub-groups in it, also when they are gone.
func killsAbove(dir string, version int) int64 {
	_, kills := (&meter.Cgroup{Dir: filepath.Dir(dir), Version: version}).OOMCounts()
	return kills
}

// startIn starts a process that is in the cgroup from its first instruction on. Version 2 has a
// flag for that; in version 1 the forking thread alone moves into the cgroup, forks, and moves
// back.
func startIn(group *meter.Cgroup, path string, args []string, attr *syscall.ProcAttr) (pid int,
	err error) {
	if group == nil {
		return syscall.ForkExec(path, args, attr)
	}
	if group.Version == 2 {
		dir, err := os.Open(group.Dir)
		if err != nil {
			return 0, err
		}
		defer dir.Close()
		attr.Sys.UseCgroupFD, attr.Sys.CgroupFD = true, int(dir.Fd())
		return syscall.ForkExec(path, args, attr)
	}
	home, err := meter.FindCgroup("/proc", "self")
	if err != nil {
		return 0, err
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	self := []byte(strconv.Itoa(unix.Gettid()))
	if err := os.WriteFile(filepath.Join(group.Dir, "tasks"), self, 0); err != nil {
		return 0, fmt.Errorf("the command cannot be put into its own memory cgroup: %w", err)
	}
	defer func() { _ = os.WriteFile(filepath.Join(home.Dir, "tasks"), self, 0) }()
	return syscall.ForkExec(path, args, attr)
}
