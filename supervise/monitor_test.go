//go:build linux

package supervise

import (
	"encoding/json"
	"iter"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"memroom/diagnose"
	"memroom/event"
	"memroom/probe"
)

// notes is a record that keeps what happened.
type notes struct{ events []event.Happened }

func (n *notes) AppendSamples([]event.Sample) error   { return nil }
func (n *notes) AppendSteps([]event.RankedStep) error { return nil }
func (n *notes) AppendEvent(h event.Happened) error   { n.events = append(n.events, h); return nil }
func (n *notes) AppendAttempt(event.Attempt) error    { return nil }
func (n *notes) Attempts() iter.Seq[event.Attempt]    { return func(func(event.Attempt) bool) {} }
func (n *notes) SaveVerdict(event.Verdict) error      { return nil }
func (n *notes) SaveSummary(event.Summary) error      { return nil }
func (n *notes) SaveProgress(any) error               { return nil }
func (n *notes) Progress(any) error                   { return nil }

func (n *notes) of(kind string) (texts []string) {
	for _, e := range n.events {
		if e.Kind == kind {
			texts = append(texts, e.Text)
		}
	}
	return texts
}

// watching is a monitor without processes, whose keeper is the test.
func watching(t *testing.T) (m *Monitor, record *notes, signals func() []signalRequest) {
	t.Helper()
	ours, theirs, err := newLink()
	if err != nil {
		t.Fatal(err)
	}
	keeper, err := linkOf(theirs)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ours.Close(); keeper.Close() })
	record = &notes{}
	m = &Monitor{Record: record, Options: DefaultOptions()}
	m.assemble(ours.conn)
	return m, record, func() (got []signalRequest) {
		for what, payload := range queued(t, ours.conn, keeper.conn) {
			var r signalRequest
			if what == saySignal && json.Unmarshal(payload, &r) == nil {
				got = append(got, r)
			}
		}
		return got
	}
}

// endOfQueue is a message that only queued sends.
const endOfQueue kind = '$'

// queued returns the messages that were sent from one end of a socket to the other.
func queued(t *testing.T, from, to *net.UnixConn) iter.Seq2[kind, []byte] {
	return func(yield func(kind, []byte) bool) {
		if err := writeMessage(from, endOfQueue, nil); err != nil {
			t.Fatal(err)
		}
		for {
			what, payload, err := readMessage(to)
			if err != nil {
				t.Fatal(err)
			}
			if what == endOfQueue || !yield(what, payload) {
				return
			}
		}
	}
}

// TestPressureRingsOnce: near the limit the alarm rings once. It rings again only after memory has
// gone down by a twentieth of the limit, not for swinging around the mark.
func TestPressureRingsOnce(t *testing.T) {
	m, record, signals := watching(t)
	m.job.options.OnPressure, m.job.options.PressureAt = "USR1", 0.9
	for _, step := range []struct {
		percent event.Bytes
		rings   int
	}{{80, 0}, {89, 0}, {90, 1}, {95, 1}, {89, 1}, {91, 1}, {86, 1}, {93, 1}, {84, 1}, {89, 1},
		{91, 2}, {99, 2}} {
		m.alarm.check(event.Sample{Cgroup: &event.CgroupSample{Anon: step.percent, Limit: 100}})
		if got := len(record.of("pressure")); got != step.rings {
			t.Fatalf("at %d %%: rang %d times, want %d", step.percent, got, step.rings)
		}
	}
	got := signals()
	if len(got) != 2 || got[0].Number != int(unix.SIGUSR1) || got[0].All || got[0].Group {
		t.Errorf("signals %+v, want USR1 to the command alone, twice", got)
	}
}

// TestClosest: page cache is no pressure; the limit that is nearest to the run counts.
func TestClosest(t *testing.T) {
	machine := &event.MachineSample{Total: 1000, Available: 300}
	for name, c := range map[string]struct {
		s           event.Sample
		own         event.Bytes
		used, limit event.Bytes
	}{
		"cgroup without its cache": {event.Sample{Cgroup: &event.CgroupSample{Current: 95,
			Limit: 100,
			Anon:  20, Shmem: 5, Kernel: 2, File: 70}, Machine: machine}, 50, 27, 100},
		"cgroup without a limit": {event.Sample{Cgroup: &event.CgroupSample{Current: 95, Anon: 95},
			Anonymous: 30, Processes: 1, Machine: machine}, 50, 30, 50},
		"the machine":   {event.Sample{Machine: machine}, 0, 700, 1000},
		"nothing known": {event.Sample{}, 0, 0, 0},
	} {
		if used, limit, _ := Closest(c.s, c.own); used != c.used || limit != c.limit {
			t.Errorf("%s: %d of %d, want %d of %d", name, used, limit, c.used, c.limit)
		}
	}
}

// TestKillFollowsTerm: a run that is ended gets TERM, and KILL when the grace is over: the user's
// grace, but at most three seconds above a limit that only the monitor holds.
func TestKillFollowsTerm(t *testing.T) {
	for name, c := range map[string]struct {
		limit   LimitKind
		grace   time.Duration
		since   time.Duration
		expired bool
	}{
		"within the grace":           {LimitNone, 20 * time.Second, 19 * time.Second, false},
		"after the grace":            {LimitNone, 20 * time.Second, 21 * time.Second, true},
		"a soft limit has no time":   {LimitSoft, 20 * time.Second, 4 * time.Second, true},
		"but a moment":               {LimitSoft, 20 * time.Second, 2 * time.Second, false},
		"a shorter grace is shorter": {LimitSoft, time.Second, 2 * time.Second, true},
	} {
		m, record, signals := watching(t)
		m.job.state.Limit, m.job.options.Grace = c.limit, c.grace
		m.limiter.end(Ending{Why: "because"})
		m.limiter.termAt = time.Now().Add(-c.since)
		m.limiter.followUp()
		m.limiter.followUp()
		got := signals()
		want := []signalRequest{{Number: int(unix.SIGTERM), All: true}}
		if c.expired {
			want = append(want, signalRequest{Number: int(unix.SIGKILL), All: true})
		}
		if len(got) != len(want) || got[0] != want[0] || got[len(got)-1] != want[len(want)-1] {
			t.Errorf("%s: signals %+v, want %+v", name, got, want)
		}
		if m.record.said.Ended == nil || len(record.of("action")) != 1 {
			t.Errorf("%s: the end is not recorded", name)
		}
	}
}

// fixedDetector returns accounts of cards and nothing else.
type fixedDetector map[string]diagnose.Account

func (fixedDetector) Sample(event.Sample) []event.Finding            { return nil }
func (fixedDetector) Steps(int, *int, []event.Step) []event.Finding  { return nil }
func (fixedDetector) Heard(int, *int, probe.Message) []event.Finding { return nil }
func (fixedDetector) Asks() map[int][]probe.Command                  { return nil }
func (fixedDetector) Forecasts() []diagnose.Prediction               { return nil }
func (f fixedDetector) Accounts() map[string]diagnose.Account        { return f }
func (fixedDetector) Ended() []event.Finding                         { return nil }

// TestCachesAreEmptiedOnlyWhereItHelps: the card is full, others share it, and the cache is worth
// it; then not again for a minute.
func TestCachesAreEmptiedOnlyWhereItHelps(t *testing.T) {
	for name, c := range map[string]struct {
		used, cache, others event.Bytes
		probes              int
		relieved            bool
	}{
		"full and shared with a neighbour": {98, 10, 5, 1, true},
		"full and shared by two ranks":     {97, 5, 0, 2, true},
		"alone on its card":                {98, 10, 0, 1, false},
		"not full":                         {96, 10, 5, 1, false},
		"half full":                        {60, 10, 5, 1, false},
		"little cache":                     {98, 4, 5, 1, false},
		"nobody to ask":                    {98, 10, 5, 0, false},
	} {
		m, record, _ := watching(t)
		m.judge.detect = fixedDetector{"u": {Lines: []diagnose.AccountEntry{{Name: diagnose.LineCache,
			Bytes: c.cache}}}}
		m.hearer.speaking = probes(t, c.probes)
		s := event.Sample{Devices: []event.DeviceSample{{UUID: "u", Used: c.used, Total: 100,
			Others: c.others}}}
		now := time.Unix(5000, 0)
		m.relief.check(now, s)
		m.relief.check(now.Add(30*time.Second), s)
		if got := len(record.of("action")) > 0; got != c.relieved {
			t.Errorf("%s: relieved %v", name, got)
		}
		m.relief.check(now.Add(61*time.Second), s)
		if got := len(record.of("action")); c.relieved && got != 2 {
			t.Errorf("%s: %d times in a minute and a second, want 2", name, got)
		}
	}
}

// probes connects so many probes that say nothing of interest.
func probes(t *testing.T, n int) map[*probe.Conn]bool {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := probe.Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	speaking := map[*probe.Conn]bool{}
	for range n {
		conn, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		if _, err := conn.Write([]byte("{}\n")); err != nil {
			t.Fatal(err)
		}
		heard := <-l.Messages()
		speaking[heard.Conn] = true
	}
	return speaking
}

// TestSignalNames: with and without SIG, in either case; a misspelt one is none.
func TestSignalNames(t *testing.T) {
	for name, want := range map[string]int{"USR1": 10, "SIGUSR1": 10, "sigterm": 15, "term": 15,
		"USR3": 0, "": 0, "echo hi": 0} {
		if got := SignalNumber(name); got != want {
			t.Errorf("%q: %d, want %d", name, got, want)
		}
	}
}

// TestReservable: an allocator can take what is free besides what it has, and no more than a cap of
// its own.
func TestReservable(t *testing.T) {
	for want, a := range map[event.Bytes]probe.Account{
		70: {Free: 50, Reserved: 20}, 40: {Free: 50, Reserved: 20, Limit: 40},
		60: {Free: 50, Reserved: 10, Limit: 90}} {
		if got := reservable(&a); got != want {
			t.Errorf("%+v: %d, want %d", a, got, want)
		}
	}
}

// ranks adds living and gone ranks of a world of n to the monitor.
func (m *Monitor) withRanks(n int, gone ...int) {
	for i := range n {
		rank := i
		m.job.people.all[100+i] = &person{pid: 100 + i, rank: &rank, world: n,
			resident: event.Bytes(1 + i)}
	}
	for _, i := range gone {
		m.job.people.all[100+i].gone = true
	}
}

// TestGroupEndsAfterTheGrace: one rank is lost to memory, the others wait. They get the grace, then
// the group is ended and the verdict names the rank. A rank that was started again, or ended for
// another reason, ends nobody.
func TestGroupEndsAfterTheGrace(t *testing.T) {
	died := []Death{{PID: 101, Where: event.WhereGPU}}
	for name, c := range map[string]struct {
		deaths []Death
		kills  int64
		again  bool // its launcher has started it again
		ended  bool
		where  event.Where
		rank   int
	}{
		"its probe said so":       {deaths: died, ended: true, where: event.WhereGPU, rank: 1},
		"the kernel counted it":   {kills: 1, ended: true, where: event.WhereCgroup, rank: 1},
		"ended by another reason": {deaths: []Death{{PID: 101}}},
		"started again":           {deaths: died, again: true},
	} {
		m, _, signals := watching(t)
		m.withRanks(3, 1)
		if c.again {
			rank := 1
			m.job.people.all[200] = &person{pid: 200, rank: &rank, world: 3}
		}
		m.record.said.Deaths = c.deaths
		m.meters.last.Cgroup = &event.CgroupSample{Own: true, OOMKill: c.kills}
		now := time.Unix(9000, 0)
		m.ranks.check(now)
		m.ranks.check(now.Add(m.Options.Grace - time.Second))
		if m.record.said.Ended != nil {
			t.Errorf("%s: ended within the grace", name)
		}
		m.ranks.check(now.Add(m.Options.Grace))
		if got := m.record.said.Ended != nil; got != c.ended {
			t.Errorf("%s: ended %v", name, got)
		}
		if c.ended && (m.record.said.Ended.Where != c.where || *m.record.said.Ended.Rank != c.rank ||
			!m.record.said.Ended.OOM || len(signals()) != 1) {
			t.Errorf("%s: %+v", name, m.record.said.Ended)
		}
	}
}

// TestCaughtErrorGetsTenGraces: a rank that caught its error may be writing a checkpoint. It is
// named after one grace and ended after ten, and not before twenty steps would have fitted.
func TestCaughtErrorGetsTenGraces(t *testing.T) {
	for name, c := range map[string]struct {
		stepMS  float64
		stepped bool
		until   time.Duration // still alive then
		ends    time.Duration // ended then; 0: never
	}{
		"short steps":      {100, true, 199 * time.Second, 200 * time.Second},
		"long steps":       {60000, true, 1199 * time.Second, 1200 * time.Second},
		"no step was seen": {0, false, time.Hour, 0},
	} {
		m, record, _ := watching(t)
		m.withRanks(2)
		if c.stepMS > 0 {
			m.record.said.StepTime = []float64{c.stepMS}
		}
		rank := 1
		m.ranks.caughtOOM(ProbeOOM{PID: 101, Rank: &rank})
		m.ranks.anySteps = c.stepped
		at := m.ranks.caught.at
		m.ranks.check(at.Add(19 * time.Second))
		if len(record.of("finding")) != 0 {
			t.Errorf("%s: named within the grace", name)
		}
		m.ranks.check(at.Add(21 * time.Second))
		m.ranks.check(at.Add(c.until))
		if n := len(record.of("finding")); n != 1 || m.record.said.Ended != nil {
			t.Errorf("%s: %d findings, ended %v", name, n, m.record.said.Ended)
		}
		if c.ends > 0 {
			m.ranks.check(at.Add(c.ends))
		}
		if got := m.record.said.Ended != nil; got != (c.ends > 0) {
			t.Errorf("%s: ended %v", name, got)
		}
		if m.record.said.Ended != nil && (!strings.Contains(m.record.said.Ended.Why, "rank 1") ||
			m.record.said.Ended.Where != event.WhereGPU) {
			t.Errorf("%s: %+v", name, m.record.said.Ended)
		}
	}
}

// TestAStepAfterTheErrorIsLife: a step that began after the error shows that the group goes on; one
// that had begun before does not.
func TestAStepAfterTheErrorIsLife(t *testing.T) {
	m, _, _ := watching(t)
	rank := 1
	m.ranks.caughtOOM(ProbeOOM{PID: 101, Rank: &rank})
	at := m.ranks.caught.oomAt
	m.ranks.stepped(event.Step{End: at.Add(time.Second), Duration: 2 * time.Second})
	if m.ranks.caught == nil {
		t.Error("a step that had begun before the error was taken for life")
	}
	m.ranks.stepped(event.Step{End: at.Add(3 * time.Second), Duration: time.Second})
	if m.ranks.caught != nil {
		t.Error("a step that began after the error was not seen")
	}
}
