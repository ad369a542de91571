package main

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"time"
)

const (
	// settle is how long the processors are watched before another job may start. A job that has
	// just started needs about as long until it uses its processor.
	settle = 300 * time.Millisecond
	// idleShare of all processors' time must be unused for another job.
	idleShare = 0.1
	// freeMemory must be left for another job: a process that imports a framework takes 1 GiB, and
	// a test starts several.
	freeMemory = 4 << 30
)

// room watches the machine for a moment and reports whether another job would find a processor and
// memory. Without Linux's files it returns false.
func room() bool {
	before, ok := processors()
	if !ok || memory() < freeMemory {
		return false
	}
	time.Sleep(settle)
	after, ok := processors()
	return ok && after.idleSince(before) > idleShare
}

// ticks are what the processors have done since the machine started.
type ticks struct{ idle, all uint64 }

func processors() (ticks, bool) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return ticks{}, false
	}
	return readTicks(text)
}

// readTicks reads the first line of /proc/stat: "cpu user nice system idle iowait irq softirq ...".
// A processor that waits for a disk is free for other work.
func readTicks(text []byte) (t ticks, ok bool) {
	var user, nice, system, idle, wait, irq, soft, steal uint64
	n, _ := fmt.Sscanf(string(text), "cpu %d %d %d %d %d %d %d %d", &user, &nice, &system, &idle,
		&wait, &irq, &soft, &steal)
	t.idle = idle + wait
	t.all = t.idle + user + nice + system + irq + soft + steal
	return t, n == 8
}

func (t ticks) idleSince(before ticks) float64 {
	if t.all <= before.all || t.idle < before.idle {
		return 0
	}
	return float64(t.idle-before.idle) / float64(t.all-before.all)
}

// memory returns the bytes that a new process could take without swapping.
func memory() int64 {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		var kib int64
		if n, _ := fmt.Sscanf(lines.Text(), "MemAvailable: %d kB", &kib); n == 1 {
			return kib << 10
		}
	}
	return 0
}
