//go:build linux

package supervise

import (
	"strings"
	"testing"
	"time"
)

// TestDroppedOutputIsCounted: a front end that has taken nothing for longer than the patience gets
// no more output. When it goes on, a note at that place has the amount that is missing.
func TestDroppedOutputIsCounted(t *testing.T) {
	room := func() int { return inlineRoom }
	c := newClient(nil)
	if !c.inline(1, make([]byte, inlineRoom), room) {
		t.Fatal("there was room")
	}
	c.progress = time.Now().Add(-inlinePatience - time.Second)
	for range 3 {
		if c.inline(1, make([]byte, 1<<20), room) {
			t.Fatal("taken, although nothing moves")
		}
	}
	if c.dropped != 3<<20 {
		t.Fatalf("%d bytes dropped, want %d", c.dropped, 3<<20)
	}
	c.waiting = 0 // it goes on
	if !c.inline(1, []byte("later"), room) {
		t.Fatal("there is room again")
	}
	n := len(c.queue)
	if c.queue[n-2].kind != tellNote || !strings.Contains(string(c.queue[n-2].payload),
		"3MiB of output are missing here") || string(c.queue[n-1].payload) != "later" {
		t.Errorf("queue ends with %q, %q", c.queue[n-2].payload, c.queue[n-1].payload)
	}
	if c.dropped != 0 {
		t.Error("it will be told twice")
	}
}

// TestPatienceWithAPausingReader: while the command runs, a front end that paused for less than the
// patience loses nothing.
func TestPatienceWithAPausingReader(t *testing.T) {
	if inlinePatience != 30*time.Second {
		t.Errorf("the documents promise 30 s, the keeper waits %v", inlinePatience)
	}
	c := newClient(nil)
	c.waiting, c.progress = inlineRoom, time.Now().Add(-inlinePatience/2)
	taken := make(chan bool)
	go func() { taken <- c.inline(1, []byte("x"), func() int { return inlineRoom }) }()
	time.Sleep(20 * time.Millisecond)
	c.mu.Lock()
	if len(c.queue) != 0 || c.dropped != 0 {
		t.Error("output was queued beyond the room, or dropped")
	}
	c.waiting = 0
	c.mu.Unlock()
	if !<-taken {
		t.Error("output was dropped within the patience")
	}
}

// TestLossesReachTheRecord: output that nobody took is in the state and reported to the monitor,
// once.
func TestLossesReachTheRecord(t *testing.T) {
	monitor := newClient(nil)
	monitor.role = roleMonitor
	k := &keeper{clients: map[*client]bool{monitor: true}}
	o := newOutput(k, 1, "")
	o.passOn(make([]byte, 5<<20)) // no front end is there
	k.tellLosses()
	k.tellLosses()
	if k.state.OutputLost != 5<<20 || len(k.state.Notes) != 1 ||
		!strings.HasPrefix(k.state.Notes[0], "5MiB of the command's output are lost") {
		t.Errorf("lost %d, notes %q", k.state.OutputLost, k.state.Notes)
	}
	if len(monitor.queue) != 1 || monitor.queue[0].kind != tellNote {
		t.Errorf("the monitor was told %d times", len(monitor.queue))
	}
}
