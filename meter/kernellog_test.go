//go:build linux

package meter

import (
	"testing"
	"time"
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

func TestSharedMemorySaysWhy(t *testing.T) {
	if _, _, err := SharedMemory("/no/such/mount"); err == nil {
		t.Error("measured nothing")
	}
}
