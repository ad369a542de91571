package trial

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"memroom/event"
)

const mib, gib = event.MiB, event.GiB

// clock is a moment of a study: second by second.
func clock(second int) time.Time { return time.Unix(int64(1_000_000+second), 0) }

// started is a study whose trials run with these reservations, begun one second after the other.
func started(o Options, host ...event.Bytes) *Study {
	s := NewStudy(o)
	for i, h := range host {
		s.Add(Params{{"n", Whole(int64(i))}})
		s.Start(i, Attempt{Host: h, CPUs: 1, Started: clock(i)})
	}
	return s
}

// TestHowAnAttemptEnds: what follows, why, and what the next attempt gets.
func TestHowAnAttemptEnds(t *testing.T) {
	machine := Capacity{CPUs: 4, Host: 8 * gib, HostFree: 8 * gib}
	cards := Capacity{CPUs: 4, Host: 8 * gib, HostFree: 8 * gib,
		Cards: []Card{{Budget: 10 * gib}, {Budget: 24 * gib}}}
	gpu := Outcome{OOM: true, Where: event.WhereGPU, ExitCode: 1}
	for name, c := range map[string]struct {
		options  Options
		attempt  Attempt
		outcome  Outcome
		capacity Capacity
		want     string // state, host and device of the next attempt, fit: why
	}{
		"stopped by us": {Options{}, Attempt{Host: gib}, Outcome{Stopped: "asked", StopState: Stopped},
			machine, "stopped 0B 0B false: asked"},
		"set back": {Options{}, Attempt{Host: gib}, Outcome{Stopped: "make room", StopState: Waiting},
			machine, "waiting 0B 0B false: make room"},
		"not started": {Options{Retries: 5}, Attempt{Host: gib}, Outcome{NotStarted: "no python",
			ExitCode: 127}, machine, "failed 0B 0B false: no python"},
		"an error": {Options{}, Attempt{Host: gib}, Outcome{ExitCode: 3, Evidence: "ValueError"},
			machine, "failed 0B 0B false: the command exited with code 3; ValueError"},
		"a signal": {Options{}, Attempt{Host: gib}, Outcome{ExitCode: 139, Signal: "SIGSEGV"},
			machine, "failed 0B 0B false: the command was ended by SIGSEGV"},
		"an error with a retry left": {Options{Retries: 1}, Attempt{Host: gib}, Outcome{ExitCode: 3},
			machine, "waiting 0B 0B false: the command exited with code 3"},
		"lost": {Options{}, Attempt{Host: gib}, Outcome{Lost: true}, machine,
			"waiting 0B 0B false: nobody knows how it ended: the machine or its keeper went away"},
		"the machine was full": {Options{}, Attempt{Host: gib}, Outcome{Neighbour: true, OOM: true},
			machine, "waiting 0B 0B false: the whole machine ran out of memory"},
		"at its limit": {Options{}, Attempt{Host: gib}, Outcome{AtLimit: true, ExitCode: 1,
			PeakHost: 2 * gib}, machine, "waiting 3.02GiB 0B false: exited with code 1 after it had " +
			"come to its limit of 1GiB, where system calls may fail"},
		"at the limit of everything": {Options{}, Attempt{Host: 8 * gib}, Outcome{AtLimit: true,
			ExitCode: 1}, machine, "failed 0B 0B false: the command exited with code 1"},
		"killed at its limit": {Options{}, Attempt{Host: gib}, Outcome{OOM: true, ExitCode: 137}, machine,
			"waiting 1.52GiB 0B false: ran out of host memory at 1GiB"},
		"more than half of everything": {Options{}, Attempt{Host: 7 * gib}, Outcome{OOM: true}, machine,
			"waiting 8GiB 0B false: ran out of host memory at 7GiB"},
		"gave up by itself": {Options{}, Attempt{Host: gib}, Outcome{OOM: true, Itself: true}, machine,
			"waiting 8GiB 0B false: ran out of host memory at 1GiB"},
		"all of it": {Options{}, Attempt{Host: 8 * gib}, Outcome{OOM: true, Framework: true}, machine,
			"infeasible 0B 0B false: it needs more than 8GiB of host memory, all there is for the study"},
		"all of it, remedies come next": {Options{Fit: true}, Attempt{Host: 8 * gib},
			Outcome{OOM: true, Framework: true}, machine, "waiting 8GiB 0B true: ran out of host memory " +
				"with all of 8GiB; remedies of --fit come next"},
		"no framework for remedies": {Options{Fit: true}, Attempt{Host: 8 * gib}, Outcome{OOM: true},
			machine, "infeasible 0B 0B false: it needs more than 8GiB of host memory, all there is for " +
				"the study"},
		"with remedies": {Options{Fit: true}, Attempt{Host: gib, Fit: true}, Outcome{OOM: true,
			Framework: true}, machine, "infeasible 0B 0B false: it needs more than 1GiB of host memory, " +
			"all there is for the study"},
		"shared memory": {Options{}, Attempt{Host: gib}, Outcome{OOM: true, Where: event.WhereShm,
			Evidence: "Bus error"}, machine,
			"failed 0B 0B false: shared memory (/dev/shm) ran out: Bus error"},
		"on a card": {Options{GPUs: 1}, Attempt{Host: gib, Device: 4 * gib}, gpu, cards,
			"waiting 0B 6GiB false: ran out of device memory at 4GiB"},
		"on a large part of a card": {Options{GPUs: 1}, Attempt{Host: gib, Device: 20 * gib}, gpu, cards,
			"waiting 0B 24GiB false: ran out of device memory at 20GiB"},
		"on a whole card": {Options{GPUs: 1}, Attempt{Host: gib, Device: 24 * gib}, gpu, cards,
			"infeasible 0B 0B false: it needs more than the 24GiB of a card"},
	} {
		s := NewStudy(c.options)
		s.Add(nil)
		c.attempt.CPUs = 1
		s.Start(0, c.attempt)
		s.End(0, clock(9), c.outcome, c.capacity)
		one := s.Trials[0]
		got := fmt.Sprintf("%s %s %s %v: %s", one.State, one.host, one.device, one.fit, one.Why)
		if got != c.want {
			t.Errorf("%s: %s\nwant %s", name, got, c.want)
		}
		if waits := s.WaitingCount() == 1; waits != (one.State == Waiting) || len(s.Running()) != 0 {
			t.Errorf("%s: %d wait and %d run", name, s.WaitingCount(), len(s.Running()))
		}
		if a := one.Attempts[0]; !a.Ended.Equal(clock(9)) || a.Reserved != c.attempt.Host {
			t.Errorf("%s: ended %v with %s", name, a.Ended, a.Reserved)
		}
	}
}

// TestHowOftenATrialIsTriedAgain: each reason has its own number of tries.
func TestHowOftenATrialIsTriedAgain(t *testing.T) {
	c := Capacity{CPUs: 4, Host: 80 * gib, HostFree: 80 * gib,
		Cards: []Card{{Budget: 1000 * gib}}}
	for name, o := range map[string]struct {
		outcome Outcome
		options Options
		want    int // attempts
		hosts   string
	}{
		"lost":       {Outcome{Lost: true}, Options{}, 3, "0B 0B 0B"},
		"neighbours": {Outcome{Neighbour: true, OOM: true}, Options{}, 3, "0B 0B 0B"},
		"errors":     {Outcome{ExitCode: 1}, Options{Retries: 2}, 3, "0B 0B 0B"},
		"no retries": {Outcome{ExitCode: 1}, Options{}, 1, "0B"},
		"at the limit": {Outcome{ExitCode: 1, AtLimit: true}, Options{}, 3,
			"1.52GiB 80GiB 80GiB"},
		"killed": {Outcome{OOM: true, ExitCode: 137}, Options{}, 3, "1.52GiB 80GiB 80GiB"},
		"on a card": {Outcome{OOM: true, Where: event.WhereGPU}, Options{GPUs: 1}, 3,
			"1.5GiB 1000GiB 1000GiB"},
	} {
		s := NewStudy(o.options)
		one := s.Add(nil)
		var hosts []string
		for n := 0; one.State == Waiting && n < 20; n++ {
			s.Start(0, Attempt{Host: max(gib, one.host), Device: max(gib, one.device), CPUs: 1})
			s.End(0, clock(n), o.outcome, c)
			hosts = append(hosts, max(one.host, one.device).String())
		}
		if got := strings.Join(hosts, " "); len(one.Attempts) != o.want || got != o.hosts {
			t.Errorf("%s: %d attempts, %s, want %d, %s", name, len(one.Attempts), got, o.want, o.hosts)
		}
	}
}

// TestValueOfATrial: the last report or the best, never one that is no number.
func TestValueOfATrial(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	for _, c := range []struct {
		options Options
		reports []float64
		want    string
	}{
		{Options{Mode: "min"}, []float64{3, 1, 2}, "finished 2"},
		{Options{Mode: "min", Best: true}, []float64{3, 1, 2}, "finished 1"},
		{Options{Mode: "max", Best: true}, []float64{1, 3, 2}, "finished 3"},
		{Options{Mode: "min", Best: true}, []float64{nan, 5, inf}, "finished 5"},
		{Options{Mode: "max", Best: true}, []float64{inf, 5}, "finished 5"},
		{Options{Mode: "min"}, []float64{1, nan}, "failed: its last loss is NaN, not a number to compare"},
		{Options{Mode: "min"}, []float64{nan, 1}, "finished 1"},
		{Options{Mode: "min"}, []float64{inf}, "failed: its last loss is +Inf, not a number to compare"},
		{Options{Mode: "min"}, nil, "failed: it finished without reporting loss: print it as a line " +
			"such as loss=0.1, or as JSON, or name what it does report with --metric"},
	} {
		c.options.Metric = "loss"
		s := started(c.options, gib)
		for _, v := range c.reports {
			s.Reading(0, Reading{Value: v, Step: -1})
		}
		s.End(0, clock(1), Outcome{}, Capacity{Host: gib})
		one := s.Trials[0]
		got := fmt.Sprintf("%s: %s", one.State, one.Why)
		if one.Value != nil {
			got = fmt.Sprintf("%s %v", one.State, *one.Value)
		}
		if got != c.want {
			t.Errorf("%v: %s, want %s", c.reports, got, c.want)
		}
	}
}

// TestReadingsOfMoreTrustReplaceOthers checks that values guessed from a log are dropped once the
// program reports its own.
func TestReadingsOfMoreTrustReplaceOthers(t *testing.T) {
	s := started(Options{Mode: "min"}, gib)
	for _, r := range []Reading{{Value: 1, Step: -1, Trust: 1}, {Value: 2, Step: -1, Trust: 1},
		{Value: 3, Step: 7, Trust: 2}, {Value: 4, Step: -1, Trust: 1}, {Value: 5, Step: -1, Trust: 2}} {
		s.Reading(0, r)
	}
	if got := fmt.Sprint(s.Trials[0].History()); got != "[{7 3} {2 5}]" {
		t.Errorf("%s", got)
	}
	s.End(0, clock(1), Outcome{}, Capacity{Host: gib})
	s.Reading(0, Reading{Value: 9, Trust: 9})
	if got := len(s.Trials[0].History()); got != 2 {
		t.Errorf("%d points after its end", got)
	}
}

// TestASettledTrialGivesBackTheRest: one that was given everything, once its memory stands still.
func TestASettledTrialGivesBackTheRest(t *testing.T) {
	sec := time.Second
	for name, c := range map[string]struct {
		alone, guess bool
		trains       bool
		usage        Usage
		want         event.Bytes
	}{
		"alone": {true, false, false, Usage{Host: gib, Still: 2 * sec, Age: 6 * sec},
			1201 * mib},
		"its peak counts": {true, false, false, Usage{Host: 1, Peak: gib, Still: 2 * sec}, 1201 * mib},
		"not for long":    {true, false, false, Usage{Host: gib, Still: 1999 * time.Millisecond}, 0},
		"old ones longer": {true, false, false, Usage{Host: gib, Still: 9 * sec, Age: 30 * sec}, 0},
		"old ones a third": {true, false, false, Usage{Host: gib, Still: 10 * sec,
			Age: 30 * sec}, 1201 * mib},
		"one that trains":     {true, false, true, Usage{Host: gib, Still: sec, Age: 4 * sec}, 1201 * mib},
		"one a quarter":       {true, false, true, Usage{Host: gib, Still: sec, Age: 5 * sec}, 0},
		"at its limit":        {true, false, false, Usage{Host: gib, Still: 9 * sec, Held: true}, 0},
		"a guess":             {false, true, false, Usage{Host: gib, Still: 9 * sec}, 1201 * mib},
		"a forecast":          {false, false, false, Usage{Host: gib, Still: 9 * sec}, 0},
		"nothing to give":     {true, false, false, Usage{Host: 7 * gib, Still: 9 * sec}, 0},
		"no more than it has": {true, false, false, Usage{Host: 15 * gib, Still: 9 * sec}, 0},
	} {
		s := NewStudy(Options{})
		s.Add(nil)
		a := Attempt{Host: 8 * gib, Guess: c.guess, Started: clock(0)}
		if c.alone {
			a.Why = aloneWords
		}
		s.Start(0, a)
		if c.trains {
			s.Reading(0, Reading{Value: 1, Step: -1})
		}
		if got := s.Observe(0, c.usage); got/mib != c.want/mib {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
		want := 8 * gib
		if c.want > 0 {
			want = c.want
		}
		if got := s.Reserved(0); got/mib != want/mib {
			t.Errorf("%s: reserved %s", name, got)
		}
	}
	if got := NewStudy(Options{}).Observe(5, Usage{}); got != 0 {
		t.Errorf("one that does not run: %s", got)
	}
}

// TestOthersBeginBesideTheFirst: half is given to them while it holds less than a quarter, once.
func TestOthersBeginBesideTheFirst(t *testing.T) {
	for host, want := range map[event.Bytes]event.Bytes{gib: 4 * gib, 2*gib - 1: 4 * gib, 2 * gib: 0} {
		s := NewStudy(Options{})
		s.Add(nil)
		s.Start(0, Attempt{Host: 8 * gib, Why: aloneWords})
		if got := s.Observe(0, Usage{Host: host, Holds: true}); got != want {
			t.Errorf("%s: %s, want %s", host, got, want)
		}
		if got := s.Observe(0, Usage{Host: host, Holds: true}); got != 0 {
			t.Errorf("%s: a second time %s", host, got)
		}
	}
}

// TestGapBelowALimit: a sixty-fourth, from 4 to 32 MiB.
func TestGapBelowALimit(t *testing.T) {
	for reserved, want := range map[event.Bytes]event.Bytes{0: 4 * mib, 256 * mib: 4 * mib,
		512 * mib: 8 * mib, 2 * gib: 32 * mib, 64 * gib: 32 * mib} {
		if got := Gap(reserved); got != want {
			t.Errorf("%s: %s, want %s", reserved, got, want)
		}
	}
	s := started(Options{}, 512*mib)
	for _, c := range []struct {
		u    Usage
		near bool
	}{{Usage{Host: 504 * mib, Holds: true}, true}, {Usage{Host: 504*mib - 1, Holds: true}, false},
		{Usage{Host: 510 * mib}, false}, {Usage{Host: 510 * mib, Holds: true, Held: true}, false}} {
		if got := s.Near(0, c.u); got != c.near {
			t.Errorf("%+v: %v", c.u, got)
		}
	}
	if s.Near(1, Usage{Holds: true, Host: gib}) {
		t.Error("one that does not run is near its limit")
	}
}

// TestSlackIsHalfOfWhatNobodyReserved, and of what is really free.
func TestSlackIsHalfOfWhatNobodyReserved(t *testing.T) {
	s := started(Options{}, gib, 2*gib)
	for _, c := range []struct{ host, free, want event.Bytes }{
		{7 * gib, 100 * gib, 2 * gib}, {7 * gib, 5 * gib, gib}, {3 * gib, 100 * gib, 0},
		{2 * gib, 100 * gib, 0}, {100 * gib, 2 * gib, 0}} {
		if got := s.Slack(Capacity{Host: c.host, HostFree: c.free}); got != c.want {
			t.Errorf("%s with %s free: %s, want %s", c.host, c.free, got, c.want)
		}
	}
}

// TestGrowth: into what nobody reserved, in steps that double, near the limit only.
func TestGrowth(t *testing.T) {
	c := Capacity{Host: 10 * gib, HostFree: 10 * gib}
	s := started(Options{}, gib)
	if got := s.Grow(0, Usage{Host: 900 * mib}, c); got != 0 {
		t.Errorf("far from its limit: %s", got)
	}
	var sizes []string
	for range 7 {
		sizes = append(sizes, s.Grow(0, Usage{Held: true}, c).String())
	}
	if got := strings.Join(sizes, " "); got != "1.03GiB 1.1GiB 1.23GiB 1.54GiB 2.31GiB 3.47GiB 5.2GiB" {
		t.Errorf("it grew to %s", got)
	}
	s = started(Options{}, gib)
	if got := s.Grow(0, Usage{Host: 930 * mib}, c); got != gib+32*mib {
		t.Errorf("near its limit: %s", got)
	}
	s = started(Options{}, 9*gib, gib)
	if got := s.Grow(1, Usage{Held: true}, c); got != 0 {
		t.Errorf("all is reserved, and it got %s", got)
	}
	s = started(Options{}, 9*gib, gib-8*mib)
	if got := s.Grow(1, Usage{Held: true}, c); got != gib {
		t.Errorf("it got %s, want what is left", got)
	}
	s = started(Options{}, gib)
	if got := s.Grow(0, Usage{Host: 2 * gib, Held: true}, c); got != 2*gib+64*mib {
		t.Errorf("beyond its limit: %s", got)
	}
}

// TestElasticGrowth: before it stands still at its limit, a little each time.
func TestElasticGrowth(t *testing.T) {
	c := Capacity{Host: 10 * gib, HostFree: 10 * gib, Elastic: true}
	for name, o := range map[string]struct {
		reserved event.Bytes
		guess    bool
		usage    Usage
		host     event.Bytes
		want     event.Bytes
	}{
		"below the gap":  {512 * mib, false, Usage{Host: 503 * mib}, 10 * gib, 0},
		"in the gap":     {512 * mib, false, Usage{Host: 504 * mib}, 10 * gib, 528 * mib},
		"beyond":         {512 * mib, false, Usage{Host: 600 * mib}, 10 * gib, 608 * mib},
		"a guess":        {512 * mib, true, Usage{Host: 504 * mib}, 10 * gib, 768 * mib},
		"little is left": {512 * mib, false, Usage{Host: 510 * mib}, 520 * mib, 520 * mib},
		"less is left":   {512 * mib, false, Usage{Host: 510 * mib}, 519 * mib, 0},
	} {
		s := NewStudy(Options{})
		s.Add(nil)
		s.Start(0, Attempt{Host: o.reserved, Guess: o.guess})
		c.Host = o.host
		if got := s.Grow(0, o.usage, c); got != o.want {
			t.Errorf("%s: %s, want %s", name, got, o.want)
		}
	}
}

// TestOlderTrialsComeFirst: what one that began before stands still for is not given to others.
func TestOlderTrialsComeFirst(t *testing.T) {
	c := Capacity{Host: 4 * gib, HostFree: 4 * gib}
	s := started(Options{}, 2*gib, gib)
	s.Observe(0, Usage{Host: 2 * gib, Held: true})
	s.Observe(1, Usage{Host: gib, Held: true})
	if got := s.Grow(1, Usage{Host: gib, Held: true}, c); got != 0 {
		t.Errorf("the younger one got %s", got)
	}
	if got := s.Grow(0, Usage{Host: 2 * gib, Held: true}, c); got <= 2*gib {
		t.Errorf("the older one got %s", got)
	}
}

// TestWhatATrialHoldsIsNotGivenAway: one that stands still beyond its reservation keeps this while
// an older one waits for memory, however often both are looked at.
func TestWhatATrialHoldsIsNotGivenAway(t *testing.T) {
	c := Capacity{Host: 4 * gib, HostFree: 4 * gib}
	s := started(Options{}, 2*gib, 2*gib-128*mib)
	for range 10 {
		s.Observe(0, Usage{Host: 2 * gib, Held: true})
		s.Observe(1, Usage{Host: 2*gib - 64*mib, Held: true})
		s.Grow(1, Usage{Host: 2*gib - 64*mib, Held: true}, c)
		s.Grow(0, Usage{Host: 2 * gib, Held: true}, c)
	}
	if had := s.Reserved(1); had < 2*gib-128*mib || s.Reserved(0)+had > c.Host {
		t.Errorf("of %s the older one has %s, the younger %s", c.Host, s.Reserved(0), had)
	}
}

// TestTheLastBegunIsTheVictim: only if every one stands still.
func TestTheLastBegunIsTheVictim(t *testing.T) {
	s := started(Options{}, gib, gib, gib)
	s.Trials[1].Attempts[0].Started = clock(99)
	if id, ok := s.Victim(map[int]bool{0: true, 1: true, 2: true}); id != 1 || !ok {
		t.Errorf("%d %v", id, ok)
	}
	if id, ok := s.Victim(map[int]bool{0: true, 1: true}); ok {
		t.Errorf("one goes on, and the victim is %d", id)
	}
	if _, ok := NewStudy(Options{}).Victim(nil); ok {
		t.Error("a victim of nobody")
	}
}

// TestLateGrowth: a guess at first, then what was seen, slowly forgotten, never nothing.
func TestLateGrowth(t *testing.T) {
	var g lateGrowth
	var got []string
	for _, final := range []event.Bytes{0, 150, 100, 100, 100, 200, 100, 100} {
		if final > 0 {
			g.learn(100, final)
		}
		got = append(got, fmt.Sprintf("%.3f", g.factor()))
	}
	g.learn(0, 900)
	got = append(got, fmt.Sprintf("%.3f", g.factor()))
	want := "1.350 1.500 1.350 1.215 1.094 2.000 1.800 1.620 1.620"
	if words := strings.Join(got, " "); words != want {
		t.Errorf("%s, want %s", words, want)
	}
	g = lateGrowth{}
	for range 30 {
		g.learn(100, 100)
	}
	if g.factor() != 1.05 {
		t.Errorf("after thirty that stood still: %v", g.factor())
	}
}

// TestAStudyIsRestoredFromItsEndings: through JSON, with the same trials, queue and best value.
func TestAStudyIsRestoredFromItsEndings(t *testing.T) {
	c := Capacity{CPUs: 4, Host: 8 * gib, HostFree: 8 * gib}
	s, again := NewStudy(Options{Mode: "min"}), NewStudy(Options{Mode: "min"})
	s.ASHA, again.ASHA = NewASHA(1, 100, 2, true), NewASHA(1, 100, 2, true)
	for i, o := range []Outcome{{PeakHost: gib, Seconds: 5, CPUs: 2}, {OOM: true, ExitCode: 137},
		{ExitCode: 1}, {PeakHost: 2 * gib}} {
		p := Params{{"bs", Whole(int64(8 << i))}}
		s.Add(p)
		again.Add(p)
		a := Attempt{Run: fmt.Sprint(i), Host: gib, CPUs: 1, Started: clock(i)}
		s.Start(i, a)
		again.Start(i, a)
		s.Reading(i, Reading{Value: float64(10 - i), Step: -1, Trust: 2})
		s.End(i, clock(10+i), o, c)
		data, err := json.Marshal(s.Ending(i))
		if err != nil {
			t.Fatal(err)
		}
		var e Ending
		if err := json.Unmarshal(data, &e); err != nil {
			t.Fatal(err)
		}
		if err := again.Restore(i, e); err != nil {
			t.Fatal(err)
		}
	}
	s.ASHA.Forget(1) // it waits, and is judged anew when it starts
	words := func(s *Study) string {
		text := fmt.Sprint(s.Count(), s.Best().ID, s.WaitingCount(), len(s.Running()), s.Host.Count(),
			s.cpuShare, s.ASHA.rungs)
		for _, one := range s.Trials {
			text += fmt.Sprint(" ", one.State, one.Why, one.host, one.History(), one.trust,
				one.Attempts[0].Reserved, one.Attempts[0].Ended.Unix())
		}
		return text
	}
	if a, b := words(s), words(again); a != b {
		t.Errorf("%s\nrestored\n%s", a, b)
	}
	for id, trials := range map[int]int{-1: 1, 0: 1, 5: 1} {
		empty := NewStudy(Options{})
		for range trials {
			empty.Add(nil)
		}
		if err := empty.Restore(id, Ending{}); err == nil || !strings.Contains(err.Error(),
			fmt.Sprintf("trial %d ends in the journal", id)) {
			t.Errorf("an end without a beginning: %v", err)
		}
	}
}

// TestALaunchIsTakenBack: as if it had not been.
func TestALaunchIsTakenBack(t *testing.T) {
	s := started(Options{}, gib)
	s.Undo(0)
	if one := s.Trials[0]; one.State != Waiting || len(one.Attempts) != 0 || s.WaitingCount() != 1 ||
		s.reserved() != 0 {
		t.Errorf("%+v", one)
	}
	s.Undo(0)
	if s.WaitingCount() != 1 {
		t.Error("taken back twice")
	}
}

// TestReservationsAreChanged: of those that run.
func TestReservationsAreChanged(t *testing.T) {
	s := started(Options{}, gib)
	s.Resized(0, 3*gib)
	s.ResizedDevice(0, 5*gib)
	s.Resized(7, gib)
	s.ResizedDevice(7, gib)
	if s.Reserved(0) != 3*gib || s.ReservedDevice(0) != 5*gib || s.Reserved(7) != 0 ||
		s.ReservedDevice(7) != 0 {
		t.Errorf("%s %s", s.Reserved(0), s.ReservedDevice(0))
	}
	s.End(0, clock(1), Outcome{}, Capacity{Host: gib})
	if a := s.Trials[0].Attempts[0]; a.Reserved != 3*gib || a.OnCard != 5*gib {
		t.Errorf("at its end: %s %s", a.Reserved, a.OnCard)
	}
}

// TestRoomForOneMore: by number, by processors, by memory; none while one stands still.
func TestRoomForOneMore(t *testing.T) {
	c := Capacity{CPUs: 2, Host: 4 * gib, HostFree: 4 * gib}
	if !NewStudy(Options{}).Room(Capacity{}) {
		t.Error("the first one always has room")
	}
	for name, o := range map[string]struct {
		options Options
		host    []event.Bytes
		usage   Usage
		want    bool
	}{
		"one of two":       {Options{}, []event.Bytes{gib}, Usage{}, true},
		"two of two":       {Options{}, []event.Bytes{gib, gib}, Usage{}, false},
		"as many as asked": {Options{Concurrent: 1}, []event.Bytes{gib}, Usage{}, false},
		"one fewer":        {Options{Concurrent: 2}, []event.Bytes{gib}, Usage{}, true},
		"no memory":        {Options{}, []event.Bytes{4 * gib}, Usage{}, false},
		"31 MiB":           {Options{}, []event.Bytes{4*gib - 31*mib}, Usage{}, false},
		"32 MiB":           {Options{}, []event.Bytes{4*gib - 32*mib}, Usage{}, true},
		"one stands still": {Options{}, []event.Bytes{gib}, Usage{Held: true}, false},
	} {
		s := started(o.options, o.host...)
		s.Observe(0, o.usage)
		if got := s.Room(c); got != o.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	s := NewStudy(Options{})
	s.Add(nil)
	s.Start(0, Attempt{Host: gib, Why: aloneWords})
	if s.Room(c) {
		t.Error("the first of a study is just finding out")
	}
}

// TestNextByDeclaredMemory: one after the other while there is room.
func TestNextByDeclaredMemory(t *testing.T) {
	c := Capacity{CPUs: 8, Host: 4 * gib, HostFree: 4 * gib}
	s := NewStudy(Options{TrialHost: 2 * gib, CPUs: 3})
	for range 4 {
		s.Add(nil)
	}
	for i := range 2 {
		l, ok := s.Next(c)
		if !ok || l.Trial != i || l.Host != 2*gib || l.Why != "declared" || l.CPUs != 3 || l.Attempt != 1 {
			t.Fatalf("%+v %v", l, ok)
		}
		s.Start(l.Trial, Attempt{Host: l.Host, CPUs: l.CPUs})
	}
	if l, ok := s.Next(c); ok {
		t.Errorf("a third one: %+v", l)
	}
	c.Host, c.HostFree = 8*gib, 8*gib
	if l, ok := s.Next(c); ok {
		t.Errorf("a third one of three processors: %+v", l)
	}
	c.CPUs = 9
	if _, ok := s.Next(c); !ok {
		t.Error("there is room and none is started")
	}
	s.Options.Concurrent = 2
	if _, ok := s.Next(c); ok {
		t.Error("more at once than asked for")
	}
}

// TestProcessorsOfATrial: declared, else measured, else one; never more than there are.
func TestProcessorsOfATrial(t *testing.T) {
	c := Capacity{CPUs: 4}
	if got := NewStudy(Options{CPUs: 2.5}).cpus(c); got != 2.5 {
		t.Errorf("declared: %v", got)
	}
	s := NewStudy(Options{})
	if got := s.cpus(c); got != 1 {
		t.Errorf("nothing is known: %v", got)
	}
	if got := s.cpus(Capacity{CPUs: 0.5}); got != 0.5 {
		t.Errorf("half a processor: %v", got)
	}
	for _, used := range []float64{1, 3} {
		s.learn(&Trial{}, Attempt{}, Outcome{Seconds: 1, CPUs: used})
	}
	s.learn(&Trial{}, Attempt{}, Outcome{Seconds: 0.2, CPUs: 100}) // too short to judge
	s.learn(&Trial{}, Attempt{}, Outcome{Seconds: 9})
	if got := s.cpus(c); got != 2 {
		t.Errorf("measured: %v", got)
	}
	if got := s.cpus(Capacity{CPUs: 4, NodeCPUs: 1.5}); got != 1.5 {
		t.Errorf("on a small node: %v", got)
	}
	s.cpuShare = 0.001
	if got := s.cpus(c); got != 0.05 {
		t.Errorf("next to nothing: %v", got)
	}
}

// TestCapacityOfOneTrial: a node's where there are nodes.
func TestCapacityOfOneTrial(t *testing.T) {
	for _, c := range []struct {
		c    Capacity
		want string
	}{{Capacity{Host: 8, CPUs: 4}, "8 4"}, {Capacity{Host: 8, CPUs: 4, NodeHost: 5, NodeCPUs: 2}, "5 2"},
		{Capacity{Host: 8, CPUs: 4, NodeHost: 50, NodeCPUs: 20}, "8 4"}} {
		if got := fmt.Sprint(int64(c.c.most()), c.c.mostCPUs()); got != c.want {
			t.Errorf("%+v: %s, want %s", c.c, got, c.want)
		}
	}
}

// TestImpossibleRequests: each names what was asked, what there is, and the flag; what is exactly
// there is possible.
func TestImpossibleRequests(t *testing.T) {
	c := Capacity{CPUs: 8, NodeCPUs: 4, Host: 64 * gib, NodeHost: 16 * gib,
		Cards: []Card{{Budget: 8 * gib}, {Budget: 24 * gib}}}
	for _, good := range []Options{{}, {CPUs: 4, TrialHost: 16 * gib, GPUs: 2, TrialDevice: 24 * gib},
		{TrialDevice: 99 * gib}} {
		if err := good.Impossible(c); err != nil {
			t.Errorf("%+v: %v", good, err)
		}
	}
	for want, o := range map[string]Options{
		"5 processors and there are 4: at most --cpus-per-trial 4":                {CPUs: 5},
		"65GiB of host memory and the study has 64GiB: at most --trial-mem 16GiB": {TrialHost: 65 * gib},
		"17GiB of host memory and the largest node has 16GiB":                     {TrialHost: 17 * gib},
		"3 cards, 2 are there: at most --gpus-per-trial 2":                        {GPUs: 3},
		"25GiB on a card and the largest has 24GiB": {GPUs: 1,
			TrialDevice: 25 * gib},
	} {
		if err := o.Impossible(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	if err := (Options{GPUs: 1}).Impossible(Capacity{CPUs: 1}); err == nil ||
		!strings.Contains(err.Error(), "1 card and none is seen here") {
		t.Errorf("no card: %v", err)
	}
}

// TestCapOfACard: the reservation and what nobody has reserved; while it moves, half as much again.
func TestCapOfACard(t *testing.T) {
	c := Capacity{Host: 9 * gib, HostFree: 9 * gib, Cards: []Card{{Budget: 20 * gib, Free: 20 * gib},
		{Budget: 8 * gib, Free: 8 * gib}}}
	s := NewStudy(Options{GPUs: 1})
	s.Add(nil)
	s.Add(nil)
	s.Start(0, Attempt{Host: 1, Device: 4 * gib, Cards: []int{0}})
	s.Start(1, Attempt{Host: 1, Device: 6 * gib, Cards: []int{0}})
	if got := s.CardCap(0, c); got != 14*gib {
		t.Errorf("its own 4 and 10 that are free: %s", got)
	}
	if got := s.FirstCap(Launch{Device: 2 * gib, Cards: []int{1}}, c); got != 8*gib {
		t.Errorf("an empty card: %s", got)
	}
	if got := s.FirstCap(Launch{Device: 12 * gib, Cards: []int{0}}, c); got != 12*gib {
		t.Errorf("at least its reservation: %s", got)
	}
	if got := s.FirstCap(Launch{Cards: []int{0}}, c); got != 0 {
		t.Errorf("without a card: %s", got)
	}
	c.GPU = 11 * gib
	if got := s.CardCap(0, c); got != 5*gib {
		t.Errorf("a budget over all cards: %s", got)
	}
	s.Observe(0, Usage{Device: 6 * gib})
	if got := s.CardCap(0, c); got != 9*gib {
		t.Errorf("while its peak moves: %s", got)
	}
}

func TestDefaultsOfASHA(t *testing.T) {
	for _, c := range []struct {
		grace, maxT, factor int
		want                string
	}{{0, 100, 0, "8 4 [32 8]"}, {0, 10, 1, "4 4 [4]"}, {0, 3, 2, "3 2 []"},
		{0, 101, 2, "9 2 [72 36 18 9]"},
		{1, 27, 3, "1 3 [9 3 1]"}, {1, 28, 3, "1 3 [27 9 3 1]"}} {
		a := NewASHA(c.grace, c.maxT, c.factor, true)
		var milestones []int
		for _, r := range a.rungs {
			milestones = append(milestones, r.milestone)
		}
		if got := fmt.Sprint(a.Grace, a.Factor, milestones); got != c.want {
			t.Errorf("%+v: %s", c, got)
		}
	}
}

// TestATrialIsForgotten: it is judged anew when it runs again, and not compared with itself.
func TestATrialIsForgotten(t *testing.T) {
	a := NewASHA(1, 100, 2, true)
	a.Report(0, 1, 1)
	if got := a.Report(1, 1, 9); got != StopEarly {
		t.Errorf("a worse one goes on: %v", got)
	}
	a.Forget(0)
	a.Forget(1)
	if got := a.Report(1, 1, 9); got != GoOn {
		t.Errorf("the first at its milestone: %v", got)
	}
	if got := a.Report(2, 100, 0); got != StopDone {
		t.Errorf("at the end: %v", got)
	}
	if got := a.Report(3, 1, math.NaN()); got != StopEarly {
		t.Errorf("no number: %v", got)
	}
}

// TestValuesAsPythonWritesThem, and as JSON reads them back.
func TestValuesAsPythonWritesThem(t *testing.T) {
	for _, c := range []struct {
		data       any
		text, json string
	}{
		{0.001, "0.001", "0.001"}, {1.0, "1.0", "1.0"}, {1e-5, "1e-05", "1e-05"},
		{1e-4, "0.0001", "0.0001"},
		{1e16, "1e+16", "1e+16"}, {1e15, "1000000000000000.0", "1000000000000000.0"}, {0.0, "0.0", "0.0"},
		{-2.5, "-2.5", "-2.5"}, {int64(7), "7", "7"}, {"a b", "a b", `"a b"`}, {true, "True", "true"},
		{false, "False", "false"}, {nil, "None", "null"}, {[]any{int64(1), 0.5}, "[1,0.5]", "[1,0.5]"},
	} {
		v := Value{Data: c.data}
		data, err := v.MarshalJSON()
		if v.String() != c.text || string(data) != c.json || err != nil {
			t.Errorf("%v: %s and %s %v", c.data, v, data, err)
		}
		var back Value
		if err := back.UnmarshalJSON(data); err != nil || fmt.Sprintf("%T %v", back.Data, back.Data) !=
			fmt.Sprintf("%T %v", c.data, c.data) {
			t.Errorf("%s was read back as %T %v %v", data, back.Data, back.Data, err)
		}
	}
	if got := (Value{Data: 0.5, Text: "5e-1"}).String(); got != "5e-1" {
		t.Errorf("as it was written: %s", got)
	}
	if (&Value{}).UnmarshalJSON([]byte("{")) == nil {
		t.Error("half a value was read")
	}
	for _, c := range []struct {
		data any
		want float64
		ok   bool
	}{{true, 1, true}, {false, 0, true}, {int64(3), 3, true}, {0.5, 0.5, true}, {"3", 0, false},
		{nil, 0, false}} {
		if f, ok := (Value{Data: c.data}).Float(); f != c.want || ok != c.ok {
			t.Errorf("%v as a number: %v %v", c.data, f, ok)
		}
	}
}

// TestACardIsGivenBackOnceItsPeakStandsStill: after eight steps, the last half of which did not
// raise it; never by a trial that has run out before.
func TestACardIsGivenBackOnceItsPeakStandsStill(t *testing.T) {
	for name, c := range map[string]struct {
		usage Usage
		short bool
		had   event.Bytes
		want  event.Bytes
	}{
		"still": {Usage{Device: 4 * gib, CardSteps: 8, CardRose: 4}, false, 20 * gib,
			5*gib + gib/2},
		"few steps":       {Usage{Device: 4 * gib, CardSteps: 7, CardRose: 1}, false, 20 * gib, 0},
		"rose of late":    {Usage{Device: 4 * gib, CardSteps: 8, CardRose: 5}, false, 20 * gib, 0},
		"not used":        {Usage{CardSteps: 8}, false, 20 * gib, 0},
		"no more than it": {Usage{Device: 4 * gib, CardSteps: 8, CardRose: 4}, false, 5 * gib, 0},
		"ran out before":  {Usage{Device: 4 * gib, CardSteps: 8, CardRose: 4}, true, 20 * gib, 0},
	} {
		s := NewStudy(Options{GPUs: 1})
		s.Add(nil)
		card := Capacity{Host: gib, Cards: []Card{{Budget: 24 * gib, Free: 24 * gib}}}
		if c.short {
			s.Start(0, Attempt{Host: gib, Device: gib, Cards: []int{0}})
			s.End(0, clock(1), Outcome{OOM: true, Where: event.WhereGPU}, card)
		}
		s.Start(0, Attempt{Host: gib, Device: c.had, Cards: []int{0}})
		s.Observe(0, c.usage)
		if got := s.ObserveDevice(0, c.usage); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
		if c.want > 0 && s.ReservedDevice(0) != c.want {
			t.Errorf("%s: reserved %s", name, s.ReservedDevice(0))
		}
	}
}

// TestLeadingTrialOfAStudyThatWasEnded: where none has finished, the best last report counts.
func TestLeadingTrialOfAStudyThatWasEnded(t *testing.T) {
	value := 0.1
	for mode, want := range map[string]int{"min": 2, "max": 1} {
		s := NewStudy(Options{Mode: mode})
		s.Trials = []*Trial{{ID: 0}, {ID: 1, history: []Point{{1, 0.2}, {2, 0.9}}},
			{ID: 2, history: []Point{{5, 0.5}}}, {ID: 3, Value: &value, history: []Point{{9, value}}}}
		if got, last := s.Leading(); got == nil || got.ID != want ||
			last != got.history[len(got.history)-1] {
			t.Errorf("%s: %+v, %+v", mode, got, last)
		}
	}
	if got, _ := NewStudy(Options{}).Leading(); got != nil {
		t.Errorf("of no trials %+v leads", got)
	}
}
