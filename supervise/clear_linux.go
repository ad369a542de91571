package supervise

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"memroom/event"
	"memroom/meter"
)

const (
	clearGentle   = time.Second // for processes that end when they are asked to
	clearPatience = 15 * time.Second
	clearPause    = 20 * time.Millisecond
	clearStill    = time.Second    // without change: what is held then stays
	clearSlack    = 16 * event.MiB // of an empty cgroup: the kernel's own and what it counts late
	sharedFolder  = "/dev/shm"
)

// clear ends what an attempt left behind, and returns when the memory is back: loader workers,
// daemons in sessions of their own, files in shared memory. The next attempt is to find what the
// first one found.
func (k *keeper) clear() {
	begin, asked, shared := time.Now(), map[int]unix.Signal{}, map[string]bool{}
	for time.Since(begin) < clearPatience {
		left := k.left()
		if len(left) == 0 {
			break
		}
		sig := unix.SIGTERM
		if time.Since(begin) > clearGentle {
			sig = unix.SIGKILL
		}
		for _, pid := range left { // slow: a number may be another run's process by then
			sharedBy(pid, shared)
		}
		for _, pid := range k.left() {
			if asked[pid] != sig && slices.Contains(left, pid) {
				asked[pid] = sig
				_ = unix.Kill(pid, sig)
			}
		}
		time.Sleep(clearPause)
	}
	removeShared(shared, k.began)
	if held := k.awaitMemory(); held > clearSlack {
		k.say("clear", "%s of the attempt before are still held, in files in memory or by processes "+
			"that do not end", held)
	}
}

// left returns the processes of the run besides ours.
func (k *keeper) left() []int {
	k.mu.Lock()
	defer k.mu.Unlock()
	tree := meter.Tree{Proc: meter.NewProc("/proc"), Keeper: os.Getpid(),
		Except: []int{k.state.Monitor}, Cgroup: k.room.group}
	tree.Refresh(time.Now())
	return tree.Processes()
}

// awaitMemory waits until the run's cgroup is empty, or until nothing changes any more, and returns
// the bytes that stay.
func (k *keeper) awaitMemory() event.Bytes {
	if k.room.group == nil {
		return 0
	}
	var held event.Bytes
	changed := time.Now()
	for {
		reading, err := k.room.group.Read()
		now := reading.Anon + reading.Shmem
		if err != nil || now <= clearSlack {
			return 0
		}
		if now != held {
			held, changed = now, time.Now()
		}
		if time.Since(changed) > clearStill {
			return held
		}
		time.Sleep(clearPause)
	}
}

// sharedBy adds the files in shared memory that a process maps or has open.
func sharedBy(pid int, found map[string]bool) {
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	maps, _ := os.ReadFile(filepath.Join(dir, "maps"))
	for line := range bytes.Lines(maps) {
		if at := bytes.Index(line, []byte(sharedFolder+"/")); at > 0 {
			found[strings.TrimSpace(string(line[at:]))] = true
		}
	}
	files, _ := os.ReadDir(filepath.Join(dir, "fd"))
	for _, f := range files {
		path, err := os.Readlink(filepath.Join(dir, "fd", f.Name()))
		if err == nil && strings.HasPrefix(path, sharedFolder+"/") {
			found[path] = true
		}
	}
}

// removeShared removes those files that were made since then by our user and that no process uses
// any more. Files of other programs, which a job may share with them, stay.
func removeShared(found map[string]bool, since time.Time) {
	for path := range found {
		if !madeSince(path, since) {
			delete(found, path)
		}
	}
	if len(found) == 0 {
		return
	}
	used := map[string]bool{}
	processes, _ := os.ReadDir("/proc")
	for _, p := range processes {
		if pid, err := strconv.Atoi(p.Name()); err == nil {
			sharedBy(pid, used)
		}
	}
	for path := range found {
		if !used[path] {
			_ = os.Remove(path)
		}
	}
}

// madeSince reports whether a file is ours and was made since then. Where the kernel does not know
// when it was made, the file stays.
func madeSince(path string, since time.Time) bool {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW,
		unix.STATX_BTIME|unix.STATX_UID, &st)
	if err != nil || int(st.Uid) != os.Geteuid() || st.Mask&unix.STATX_BTIME == 0 {
		return false
	}
	return !time.Unix(st.Btime.Sec, int64(st.Btime.Nsec)).Before(since)
}
