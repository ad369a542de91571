//go:build linux

package meter

import (
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// OOMKill is a kill for memory as the kernel's log reports it.
type OOMKill struct {
	At   time.Duration // since boot
	PID  int           // in the outermost namespace
	Line string
}

// killedProcess is compiled when it is first needed, at the end of a run.
var killedProcess = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`Killed process (\d+) \(`) })

// KernelOOMKills reads the kills that the kernel logged since a moment after boot. Reading the log
// needs root on most systems; an error means it cannot be read here.
func KernelOOMKills(since time.Duration) ([]OOMKill, error) {
	fd, err := unix.Open("/dev/kmsg", unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	return killsIn(func(into []byte) (int, error) { return unix.Read(fd, into) }, since), nil
}

// killsIn reads records until there are no more. Each call of read returns one record.
func killsIn(read func(into []byte) (int, error), since time.Duration) (kills []OOMKill) {
	buf := make([]byte, 8<<10)
	for {
		n, err := read(buf)
		// a record was overwritten while we read; the next read goes on behind it
		if err == unix.EPIPE {
			continue
		}
		if err != nil || n <= 0 {
			return kills
		}
		if kill, ok := parseKernelRecord(string(buf[:n])); ok && kill.At >= since {
			kills = append(kills, kill)
		}
	}
}

// parseKernelRecord reads one record: "priority,sequence,microseconds,flags;text".
func parseKernelRecord(record string) (OOMKill, bool) {
	head, text, ok := strings.Cut(record, ";")
	fields := strings.Split(head, ",")
	if !ok || len(fields) < 3 {
		return OOMKill{}, false
	}
	match := killedProcess().FindStringSubmatch(text)
	if match == nil {
		return OOMKill{}, false
	}
	us, err1 := strconv.ParseInt(fields[2], 10, 64)
	pid, err2 := strconv.Atoi(match[1])
	line, _, _ := strings.Cut(text, "\n")
	return OOMKill{At: time.Duration(us) * time.Microsecond, PID: pid, Line: line},
		err1 == nil && err2 == nil
}
