package remote

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"memroom/event"
	"memroom/trial"
	"memroom/trial/relay"
)

// TestCapacityLeavesRoomForOurselves: a trial gets no more of a node than memroom leaves,
// and a study no more than its budget.
func TestCapacityLeavesRoomForOurselves(t *testing.T) {
	const over, gib = 128 * event.MiB, event.GiB
	four := trial.Capacity{Host: 8 * gib, NodeHost: 2 * gib}
	for name, c := range map[string]struct {
		budget     event.Bytes
		has        trial.Capacity
		host, node event.Bytes
	}{
		"one node":             {0, trial.Capacity{Host: gib}, gib, gib - over},
		"several nodes":        {0, four, 8 * gib, 2*gib - over},
		"a budget":             {gib, four, gib, gib},
		"a budget of a node":   {2 * gib, four, 2 * gib, 2*gib - over},
		"more than there is":   {16 * gib, trial.Capacity{Host: 4 * gib}, 4 * gib, 4*gib - over},
		"one byte of a budget": {1, four, 1, 1},
	} {
		b := &Backend{Host: c.budget, GPU: 7}
		b.took(c.has)
		got, err := b.Capacity()
		if err != nil || got.Host != c.host || got.NodeHost != c.node || got.GPU != 7 {
			t.Errorf("%s: %+v, %v; want %s, on a node %s", name, got, err, c.host, c.node)
		}
	}
}

// TestCapacityIsACopy: a study changes what it is handed.
func TestCapacityIsACopy(t *testing.T) {
	b := &Backend{}
	b.took(trial.Capacity{Host: event.GiB, Cards: []trial.Card{{Name: "a"}}})
	first, _ := b.Capacity()
	first.Cards[0].Name = "b"
	if again, _ := b.Capacity(); again.Cards[0].Name != "a" {
		t.Error("the cluster's own list was changed")
	}
}

// TestClusterThatIsTooSmall is refused, one that is just large enough is not.
func TestClusterThatIsTooSmall(t *testing.T) {
	for host, fits := range map[event.Bytes]bool{64 * event.MiB: true, 64*event.MiB - 1: false} {
		b := &Backend{Engine: &played{host: host}, Poll: time.Millisecond}
		err := b.Open()
		if (err == nil) != fits || err != nil && !strings.Contains(err.Error(), "--host-mem") {
			t.Errorf("%s: %v", host, err)
		}
		if err == nil {
			b.Close()
		}
	}
	silent := &Backend{Engine: &played{host: event.GiB, mute: errors.New("no entry")}}
	if err := silent.Open(); err == nil || err.Error() != "no entry" {
		t.Errorf("a cluster that refuses: %v", err)
	}
}

// played is a cluster that does what a test asks for.
type played struct {
	mu      sync.Mutex
	host    event.Bytes
	mute    error
	refuse  error // what Submit returns
	jobs    map[string]Status
	output  map[string][]byte
	stopped map[string]int
	nodes   map[string]event.Bytes
	avoid   map[string]string // nodes, by job
	piece   int               // bytes of output at a time, 0: all
}

func (p *played) Name() string { return "played" }

func (p *played) Capacity() (trial.Capacity, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return trial.Capacity{CPUs: 4, Host: p.host, Nodes: p.nodes}, p.mute
}

func (p *played) Submit(jobs []Job) map[string]error {
	p.mu.Lock()
	defer p.mu.Unlock()
	failed := map[string]error{}
	for _, j := range jobs {
		if p.refuse != nil {
			failed[j.ID] = p.refuse
			continue
		}
		p.avoid[j.ID] = fmt.Sprint(j.Avoid)
		if _, there := p.jobs[j.ID]; !there {
			p.jobs[j.ID] = Status{Phase: Queued}
		}
	}
	return failed
}

func (p *played) Look(ids []string) (map[string]Status, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := map[string]Status{}
	for _, id := range ids {
		if s, there := p.jobs[id]; there {
			out[id] = s
		}
	}
	return out, p.mute
}

func (p *played) Output(id string, from int64) ([]byte, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	rest := p.output[id][min(int(from), len(p.output[id])):]
	if p.piece > 0 {
		rest = rest[:min(p.piece, len(rest))]
	}
	return bytes.Clone(rest), nil
}

func (p *played) Stop(id string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stopped[id]++
	return nil
}

func (p *played) set(id string, s Status) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.jobs[id] = s
}

// opened returns a backend over a cluster with room, and the cluster.
func opened(t *testing.T) (*Backend, *played) {
	t.Helper()
	p := &played{host: event.GiB, jobs: map[string]Status{}, output: map[string][]byte{},
		stopped: map[string]int{}, avoid: map[string]string{}}
	n := 0
	b := &Backend{Engine: p, Poll: time.Millisecond,
		New: func(l trial.Launch) (Job, error) {
			n++
			return Job{ID: fmt.Sprintf("job-%d", n), Launch: l}, nil
		}}
	if err := b.Open(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b, p
}

func begun(t *testing.T, b *Backend, host event.Bytes) string {
	t.Helper()
	run, err := b.Prepare(trial.Launch{Host: host})
	if err == nil {
		err = b.Start(run)
	}
	if err != nil {
		t.Fatal(err)
	}
	return run
}

// until waits for the end of a run and returns what came before it.
func until(b *Backend, run string) (before []trial.Happening, end trial.Outcome) {
	for h := range b.Events() {
		if h.Run == run && h.End != nil {
			return before, *h.End
		}
		before = append(before, h)
	}
	return before, end
}

// TestOutputComesOnceAndInOrder checks that output comes once and in order, in whatever pieces the
// cluster returns it, and that reports are taken out.
func TestOutputComesOnceAndInOrder(t *testing.T) {
	for _, piece := range []int{0, 1, 7} {
		b, p := opened(t)
		p.piece = piece
		run := begun(t, b, event.GiB)
		var out bytes.Buffer
		w := relay.Writer{Out: &out, ID: run}
		w.Happened(trial.Happening{Output: []byte("epoch 1\n")})
		w.Happened(trial.Happening{Values: map[string]float64{"loss": 2}, Step: 1})
		w.Usage(trial.Usage{Host: 300 * event.MiB, Held: true, Still: 9})
		w.Happened(trial.Happening{Output: []byte("epoch 2\n")})
		p.mu.Lock()
		p.output[run] = bytes.Clone(out.Bytes())
		p.jobs[run] = Status{Phase: Running}
		p.mu.Unlock()
		for u, ok := b.Usage(run); ok && u.Printed < event.Bytes(out.Len()); u, ok = b.Usage(run) {
			time.Sleep(time.Millisecond)
		}
		u, ok := b.Usage(run)
		if !ok || u.Host != 300*event.MiB || u.Held || u.Still != 0 || u.Age <= 0 {
			t.Errorf("pieces of %d: usage %+v, %v", piece, u, ok)
		}
		w.End(trial.Outcome{ExitCode: 0, PeakHost: 300 * event.MiB})
		p.mu.Lock()
		p.output[run] = bytes.Clone(out.Bytes())
		p.jobs[run] = Status{Phase: Ended, Cause: Exited}
		p.mu.Unlock()
		before, end := until(b, run)
		text, reports := "", 0
		for _, h := range before {
			text += string(h.Output)
			reports += len(h.Values)
		}
		if text != "epoch 1\nepoch 2\n" || reports != 1 || end.PeakHost != 300*event.MiB {
			t.Errorf("pieces of %d: %q, %d reports, %+v", piece, text, reports, end)
		}
		if _, ok := b.Usage(run); ok {
			t.Error("a run that is over has no usage")
		}
	}
}

// TestJobsInAQueueAreNoOlder, and take nothing.
func TestJobsInAQueueAreNoOlder(t *testing.T) {
	b, p := opened(t)
	run := begun(t, b, event.GiB)
	for queued := false; !queued; time.Sleep(time.Millisecond) {
		p.mu.Lock()
		queued = len(p.jobs) > 0
		p.mu.Unlock()
	}
	if u, ok := b.Usage(run); !ok || u.Age != 0 || u.Host != 0 {
		t.Errorf("%+v, %v", u, ok)
	}
	p.set(run, Status{Phase: Ended, Cause: NeverRan, Text: "no such partition"})
	if _, end := until(b, run); end.NotStarted != "no such partition" || end.ExitCode != 125 {
		t.Errorf("%+v", end)
	}
}

// TestNodeThatHasLessThanItClaims: its job is tried again, it counts with what it has, and no job
// that needs more is meant for it.
func TestNodeThatHasLessThanItClaims(t *testing.T) {
	for _, name := range []string{"a", "a.cluster"} {
		b, p := opened(t)
		notes := make(chan string, 9)
		b.Note = func(text string) { notes <- text }
		p.mu.Lock()
		p.host, p.nodes = 5*event.GiB, map[string]event.Bytes{"a": 3 * event.GiB, "b": 2 * event.GiB}
		p.mu.Unlock()
		for c, _ := b.Capacity(); c.Host != 5*event.GiB; c, _ = b.Capacity() {
			time.Sleep(time.Millisecond)
		}
		run := begun(t, b, 5*event.GiB/2)
		var out bytes.Buffer
		w := relay.Writer{Out: &out, ID: run}
		w.Begin(relay.Begin{Host: name, Run: "x", Memory: event.GiB})
		w.End(trial.Outcome{ExitCode: 125, Lost: true, Evidence: "too small"})
		p.mu.Lock()
		p.output[run], p.jobs[run] = out.Bytes(), Status{Phase: Ended, Cause: Exited, Code: 125}
		p.mu.Unlock()
		if _, end := until(b, run); !end.Lost || end.NotStarted != "" || end.Evidence != "too small" {
			t.Errorf("%+v", end)
		}
		if note := <-notes; !strings.Contains(note, name+" has 1GiB of memory, not the 3GiB") {
			t.Error(note)
		}
		if c, _ := b.Capacity(); c.Host != 3*event.GiB || c.NodeHost != 2*event.GiB-Overhead {
			t.Errorf("%+v", c)
		}
		for size, want := range map[event.Bytes]string{event.GiB: "[a]", event.GiB / 2: "[]"} {
			run := begun(t, b, size)
			for got := ""; got == ""; time.Sleep(time.Millisecond) {
				p.mu.Lock()
				got = p.avoid[run]
				p.mu.Unlock()
				if got != "" && got != want {
					t.Errorf("a job of %s avoids %s, want %s", size, got, want)
				}
			}
		}
	}
}

// TestStopIsAskedUntilItIsHeard, also of a job that waits; what ends then was stopped by us.
func TestStopIsAskedUntilItIsHeard(t *testing.T) {
	for _, phase := range []Phase{Queued, Running} {
		b, p := opened(t)
		run := begun(t, b, event.GiB)
		p.set(run, Status{Phase: phase})
		b.Stop(run)
		b.Stop("another") // nobody knows it
		for asked := 0; asked < 3; time.Sleep(time.Millisecond) {
			p.mu.Lock()
			asked = p.stopped[run]
			p.mu.Unlock()
		}
		p.set(run, Status{Phase: Ended, Cause: Cancelled, Text: "by user"})
		if _, end := until(b, run); end.Stopped != "" || end.ExitCode != 143 ||
			end.Signal != "SIGTERM" {
			t.Errorf("%+v", end)
		}
		if p.stopped["another"] != 0 {
			t.Error("a job that is none of ours was stopped")
		}
	}
}

// TestRefusedJobsAreNotTriedAgain: an error that is not of a cluster that is away is final.
func TestRefusedJobsAreNotTriedAgain(t *testing.T) {
	b, p := opened(t)
	p.refuse = errors.New("invalid account")
	run := begun(t, b, event.GiB)
	if _, end := until(b, run); end.NotStarted != "invalid account" || end.ExitCode != 125 {
		t.Errorf("%+v", end)
	}
}

// TestPreparedIsNotStarted: nothing is handed over before the study has written it down.
func TestPreparedIsNotStarted(t *testing.T) {
	b, p := opened(t)
	waiting, err := b.Prepare(trial.Launch{Host: event.GiB})
	if err != nil {
		t.Fatal(err)
	}
	run := begun(t, b, event.GiB)
	p.mu.Lock()
	p.refuse = errors.New("full") // ends the second one at its first try
	p.mu.Unlock()
	for handed := false; !handed; time.Sleep(time.Millisecond) {
		p.mu.Lock()
		_, handed = p.jobs[run]
		p.mu.Unlock()
		handed = handed || b.job(run) == nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, there := p.jobs[waiting]; there {
		t.Error("a job that was only prepared was handed over")
	}
	if err := b.Resize(run, event.GiB); err == nil {
		t.Error("a cluster's allocation was changed")
	}
}

// TestRejoin: an attempt of an earlier process goes on where the cluster knows it, and never began
// where it does not. What it printed comes from the beginning.
func TestRejoin(t *testing.T) {
	b, p := opened(t)
	if known, err := b.Rejoin("old-1", trial.Launch{}); known || err != nil {
		t.Errorf("a job that nobody knows: %v, %v", known, err)
	}
	p.mu.Lock()
	p.jobs["old-2"] = Status{Phase: Running}
	p.output["old-2"] = []byte("hello\n")
	p.mu.Unlock()
	known, err := b.Rejoin("old-2", trial.Launch{Host: event.GiB})
	if !known || err != nil {
		t.Fatalf("%v, %v", known, err)
	}
	if h := <-b.Events(); h.Run != "old-2" || string(h.Output) != "hello\n" {
		t.Errorf("%+v", h)
	}
	p.set("old-2", Status{Phase: Ended, Cause: OutOfMemory})
	if _, end := until(b, "old-2"); !end.OOM || end.PeakHost != event.GiB {
		t.Errorf("%+v", end)
	}
	p.mu.Lock()
	p.mute = errors.New("no entry")
	p.mu.Unlock()
	if _, err := b.Rejoin("old-3", trial.Launch{}); err == nil {
		t.Error("a refusal was taken for an answer")
	}
}

// TestExitsWithoutAWord: the command of the job ended and the run said nothing.
func TestExitsWithoutAWord(t *testing.T) {
	for code, want := range map[int]string{0: "lost", 137: "lost", -9: "lost", 125: "not started",
		126: "not started", 127: "not started", 2: "not started", 1: "failed", 139: "failed"} {
		o := outcome(nil, Status{Phase: Ended, Cause: Exited, Code: code}, false, event.GiB)
		got := "failed"
		switch {
		case o.Lost:
			got = "lost"
		case o.NotStarted != "":
			got = "not started"
		}
		if got != want || o.ExitCode != code || o.OOM || (o.Signal == "SIGKILL") != (code == 137 ||
			code == -9) {
			t.Errorf("exit %d: %s, %+v; want %s", code, got, o, want)
		}
	}
}

// followed is a job of a backend whose loop a test plays itself.
func followed() (*Backend, *played, *running) {
	p := &played{output: map[string][]byte{}}
	r := &running{Job: Job{ID: "j", Launch: trial.Launch{Host: event.GiB}}, submitted: true,
		parser: relay.Parser{ID: "j"}}
	return &Backend{Engine: p, events: make(chan trial.Happening, 64),
		jobs: map[string]*running{"j": r}}, p, r
}

// ended reports whether the job is over, and how.
func ended(b *Backend) (o trial.Outcome, over bool) {
	for {
		select {
		case h := <-b.events:
			if h.End != nil {
				return *h.End, true
			}
		default:
			return o, false
		}
	}
}

// TestLastWordsMayComeLate: a job that exited without a word is waited for; its words may still be
// on their way through a shared file system.
func TestLastWordsMayComeLate(t *testing.T) {
	exited := Status{Phase: Ended, Cause: Exited}
	b, p, r := followed()
	b.follow(r, exited)
	if o, over := ended(b); over {
		t.Fatalf("given up at once: %+v", o)
	}
	var out bytes.Buffer
	(&relay.Writer{Out: &out, ID: "j"}).End(trial.Outcome{ExitCode: 4})
	p.output["j"] = out.Bytes()
	b.follow(r, exited)
	if o, over := ended(b); !over || o.ExitCode != 4 || o.Lost {
		t.Errorf("its words came: %+v, %v", o, over)
	}
	b, _, r = followed()
	b.follow(r, exited)
	r.ended = r.ended.Add(-lateOutput)
	b.follow(r, exited)
	if o, over := ended(b); !over || !o.Lost {
		t.Errorf("its words never came: %+v, %v", o, over)
	}
	b, _, r = followed()
	b.follow(r, Status{Phase: Ended, Cause: OutOfMemory})
	if o, over := ended(b); !over || !o.OOM {
		t.Errorf("the cluster knows the cause, nothing to wait for: %+v, %v", o, over)
	}
}

// TestJobsThatAClusterForgets: one whose last word is in its output has ended by that word, another
// is lost after a while, and one that is known again is not.
func TestJobsThatAClusterForgets(t *testing.T) {
	b, p, r := followed()
	var out bytes.Buffer
	(&relay.Writer{Out: &out, ID: "j"}).End(trial.Outcome{ExitCode: 0, PeakHost: event.MiB})
	p.output["j"] = out.Bytes()
	b.follow(r, Status{})
	if o, over := ended(b); !over || o.Lost || o.PeakHost != event.MiB {
		t.Errorf("it said how it ended: %+v, %v", o, over)
	}
	b, _, r = followed()
	b.follow(r, Status{})
	r.missing = r.missing.Add(-forgotten)
	b.follow(r, Status{Phase: Running}) // the cluster has found it again
	b.follow(r, Status{})
	if o, over := ended(b); over {
		t.Errorf("known in between: %+v", o)
	}
	r.missing = r.missing.Add(-forgotten)
	b.follow(r, Status{})
	if o, over := ended(b); !over || !o.Lost || !strings.Contains(o.Evidence, "played") {
		t.Errorf("gone for good: %+v, %v", o, over)
	}
}

// TestWaitingJobsAreNotRead: their output does not exist yet.
func TestWaitingJobsAreNotRead(t *testing.T) {
	b, p, r := followed()
	p.output["j"] = []byte("x")
	b.follow(r, Status{Phase: Queued})
	if len(b.events) != 0 || !r.began.IsZero() {
		t.Error("read while it waits in the queue")
	}
	b.follow(r, Status{Phase: Running})
	if len(b.events) != 1 || r.began.IsZero() {
		t.Error("not read when it runs")
	}
}
