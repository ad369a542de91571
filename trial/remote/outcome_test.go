package remote

import (
	"errors"
	"sync"
	"testing"
	"time"

	"memroom/event"
	"memroom/trial"
)

// TestOutcomePutsBothWordsTogether: the run knows what ran out, the cluster who ended it.
func TestOutcomePutsBothWordsTogether(t *testing.T) {
	fine := &trial.Outcome{ExitCode: 0, PeakHost: event.GiB}
	oom := &trial.Outcome{ExitCode: 137, OOM: true, Where: event.WhereCgroup, PeakHost: event.GiB}
	ended := &trial.Outcome{ExitCode: 143, Signal: "SIGTERM", PeakHost: event.GiB}
	ours := &trial.Outcome{ExitCode: 3}
	for name, c := range map[string]struct {
		told    *trial.Outcome
		status  Status
		stopped bool
		good    func(trial.Outcome) bool
	}{
		"finished, then a child was killed": {fine, Status{Phase: Ended, Cause: OutOfMemory}, false,
			func(o trial.Outcome) bool { return o.ExitCode == 0 && !o.OOM && o.PeakHost == event.GiB }},
		"out of memory by its own word": {oom, Status{Phase: Ended, Cause: Exited, Code: 137}, false,
			func(o trial.Outcome) bool { return o.OOM && !o.Lost && !o.Neighbour }},
		"killed with memroom by the cluster": {nil, Status{Phase: Ended, Cause: OutOfMemory}, false,
			func(o trial.Outcome) bool {
				return o.OOM && o.Where == event.WhereHost && o.PeakHost == 512*event.MiB && o.ExitCode != 0
			}},
		"the node was full": {nil, Status{Phase: Ended, Cause: NodeMemory}, false,
			func(o trial.Outcome) bool { return o.OOM && o.Neighbour }},
		"time limit": {ended, Status{Phase: Ended, Cause: TimeLimit, Text: "TIMEOUT"}, false,
			func(o trial.Outcome) bool {
				return o.Stopped == "TIMEOUT" && o.StopState == trial.Stopped && o.PeakHost == event.GiB
			}},
		"node failure": {nil, Status{Phase: Ended, Cause: NodeFailure}, false,
			func(o trial.Outcome) bool { return o.Lost && !o.OOM }},
		"preempted": {ended, Status{Phase: Ended, Cause: Preempted}, false,
			func(o trial.Outcome) bool { return o.Lost }},
		"cancelled by somebody": {nil, Status{Phase: Ended, Cause: Cancelled, Text: "x"}, false,
			func(o trial.Outcome) bool { return o.Stopped == "x" }},
		"stopped by us": {nil, Status{Phase: Ended, Cause: Cancelled, Text: "x"}, true,
			func(o trial.Outcome) bool { return o.Stopped == "" && o.ExitCode == 143 }},
		"its own mistake": {ours, Status{Phase: Ended, Cause: Exited, Code: 3}, false,
			func(o trial.Outcome) bool { return o.ExitCode == 3 && !o.Lost && !o.OOM }},
		"no memroom there": {nil, Status{Phase: Ended, Cause: Exited, Code: 127, Text: "none"}, false,
			func(o trial.Outcome) bool { return o.NotStarted == "none" }},
		"nobody knows": {nil, Status{Phase: Ended, Cause: Exited, Code: 0}, false,
			func(o trial.Outcome) bool { return o.Lost }},
	} {
		if o := outcome(c.told, c.status, c.stopped, 512*event.MiB); !c.good(o) {
			t.Errorf("%s: %+v", name, o)
		}
	}
}

// moody is a cluster that goes away and forgets.
type moody struct {
	mu     sync.Mutex
	away   bool
	jobs   map[string]Status
	twice  int
	orders int
}

func (m *moody) Name() string { return "moody" }

func (m *moody) Capacity() (trial.Capacity, error) {
	return trial.Capacity{CPUs: 4, Host: 2 * event.GiB, HostFree: 2 * event.GiB}, nil
}

func (m *moody) Submit(jobs []Job) map[string]error {
	m.mu.Lock()
	defer m.mu.Unlock()
	failed := map[string]error{}
	for _, j := range jobs {
		m.orders++
		if m.away {
			failed[j.ID] = errors.Join(ErrAway)
			continue
		}
		if _, there := m.jobs[j.ID]; there {
			m.twice++
		}
		m.jobs[j.ID] = Status{Phase: Running}
	}
	return failed
}

func (m *moody) Look([]string) (map[string]Status, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.away {
		return nil, errors.Join(ErrAway)
	}
	out := map[string]Status{}
	for id, s := range m.jobs {
		out[id] = s
	}
	return out, nil
}

func (m *moody) Output(string, int64) ([]byte, error) { return nil, nil }

func (m *moody) Stop(string) error { return nil }

func (m *moody) set(away bool, jobs map[string]Status) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.away = away
	if jobs != nil {
		m.jobs = jobs
	}
}

// TestClusterThatForgets: a job is handed over when the cluster answers, and one that a restarted
// cluster no longer knows is lost, not failed.
func TestClusterThatForgets(t *testing.T) {
	m := &moody{away: true, jobs: map[string]Status{}}
	var notes sync.Map
	b := &Backend{Engine: m, Poll: 5 * time.Millisecond,
		New:  func(l trial.Launch) (Job, error) { return Job{ID: "t0-a1", Launch: l}, nil },
		Note: func(text string) { notes.Store(text, true) }}
	if err := b.Open(); err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	run, err := b.Prepare(trial.Launch{Host: event.GiB})
	if err == nil {
		err = b.Start(run)
	}
	if err != nil {
		t.Fatal(err)
	}
	await := func(so func() bool) {
		for !so() {
			time.Sleep(time.Millisecond)
		}
	}
	await(func() bool { m.mu.Lock(); defer m.mu.Unlock(); return m.orders > 1 })
	m.set(false, nil)
	await(func() bool { u, _ := b.Usage(run); return u.Age > 0 })
	m.set(false, map[string]Status{})
	h := <-b.Events()
	if h.End == nil || !h.End.Lost || m.twice != 0 {
		t.Errorf("%+v, handed over %d times too often", h.End, m.twice)
	}
	said := 0
	notes.Range(func(any, any) bool { said++; return true })
	if said != 2 { // away, and back
		t.Errorf("%d notes", said)
	}
}
