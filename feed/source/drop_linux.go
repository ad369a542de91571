package source

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

func (l *local) Drop(offset, length int64) {
	if l.keep {
		return
	}
	f, done, err := l.open()
	if err != nil {
		return
	}
	defer done()
	_ = unix.Fadvise(int(f.Fd()), offset, length, unix.FADV_DONTNEED) // advice: nothing depends on it
}

// room is how much memory pages of files may take here: the machine's spare memory, or the
// limit of this process's cgroup where that is less.
func room() int64 {
	free := int64(0)
	if text, err := os.ReadFile("/proc/meminfo"); err == nil {
		if _, rest, found := bytes.Cut(text, []byte("MemAvailable:")); found {
			kib, _ := strconv.ParseInt(string(bytes.Fields(rest)[0]), 10, 64)
			free = kib << 10
		}
	}
	text, _ := os.ReadFile("/proc/self/cgroup")
	for _, line := range strings.Split(string(text), "\n") {
		parts := strings.SplitN(line, ":", 3)
		switch {
		case len(parts) < 3:
		case parts[1] == "":
			free = min(free, leastLimit("/sys/fs/cgroup", parts[2], "memory.max"))
		case strings.Contains(","+parts[1]+",", ",memory,"):
			free = min(free, leastLimit("/sys/fs/cgroup/memory", parts[2], "memory.limit_in_bytes"))
		}
	}
	return free
}

// leastLimit is the smallest limit of a cgroup and those above it.
func leastLimit(root, group, name string) int64 {
	least := int64(math.MaxInt64)
	for {
		if text, err := os.ReadFile(filepath.Join(root, group, name)); err == nil {
			if n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil {
				least = min(least, n)
			}
		}
		if group == "/" || group == "." || group == "" {
			return least
		}
		group = filepath.Dir(group)
	}
}
