//go:build linux

package meter

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestParseKernelRecord(t *testing.T) {
	kill, ok := parseKernelRecord("3,1234,5678901,-;Memory cgroup out of memory: Killed process 4242 " +
		"(python3) total-vm:1kB, anon-rss:2kB\n SUBSYSTEM=x\n")
	if !ok || kill.PID != 4242 || kill.At != 5678901*time.Microsecond || len(kill.Line) < 20 {
		t.Errorf("%+v %v", kill, ok)
	}
	for _, other := range []string{"", "x", "6,1,2,-;usb 1-1: new device",
		"3,1,zz,-;Killed process 1 (x)"} {
		if kill, ok := parseKernelRecord(other); ok {
			t.Errorf("%q gave %+v", other, kill)
		}
	}
}

// TestKillsOfALog: those since a moment, over records that were overwritten and others, up to the
// end of the log.
func TestKillsOfALog(t *testing.T) {
	kill := func(pid, at int) string {
		return fmt.Sprintf("3,1,%d,-;Out of memory: Killed process %d (python) anon-rss:1kB", at, pid)
	}
	records := []string{kill(1, 4), kill(2, 5), "", "6,1,6,-;usb 1-1: new device", kill(3, 6),
		strings.Replace(kill(4, 7), "anon-rss", strings.Repeat("x", 5000), 1), "end", kill(5, 8)}
	for name, ended := range map[string]error{"nothing more": unix.EAGAIN, "a broken log": unix.EIO,
		"the end": nil} {
		next := 0
		kills := killsIn(func(into []byte) (int, error) {
			record := records[next]
			next++
			switch record {
			case "":
				return -1, unix.EPIPE
			case "end":
				return 0, ended
			}
			return copy(into, record), nil
		}, 5*time.Microsecond)
		var pids []int
		for _, k := range kills {
			pids = append(pids, k.PID)
		}
		if !slices.Equal(pids, []int{2, 3, 4}) || len(kills[2].Line) < 5000 {
			t.Errorf("%s: %v", name, pids)
		}
	}
}

func TestSharedMemorySaysWhy(t *testing.T) {
	if _, _, err := SharedMemory("/no/such/mount"); err == nil {
		t.Error("measured nothing")
	}
}
