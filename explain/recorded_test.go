package explain

import (
	"strings"
	"testing"

	"memroom/diagnose"
	"memroom/event"
	"memroom/remedy"
	"memroom/trace"
)

// TestRecordingsAlone: a recording alone, without a log, shows its end and the cause.
func TestRecordingsAlone(t *testing.T) {
	user := []event.Frame{{File: "/x/site-packages/torch/a.py", Line: 1}, {File: "train.py", Line: 7}}
	oom := diagnose.OOMEvent{Request: 5 * event.GiB, Allocated: 20 * event.GiB,
		Reserved:    22 * event.GiB,
		LargestFree: event.GiB, DeviceFree: 3 * event.GiB, Frames: user}
	pieces, limited, unlimited := oom, oom, oom
	pieces.Fragmented = true
	limited.Limited, limited.LimitHigh = true, 24*event.GiB
	unlimited.LimitHigh = 24 * event.GiB
	for name, c := range map[string]struct {
		s        diagnose.Snapshot
		oom      bool
		cause    Cause
		capacity event.Bytes
		says     string
	}{
		"a failure": {diagnose.Snapshot{OOMs: []diagnose.OOMEvent{oom}}, true, CauseUnknown, 0,
			"The card ran out of memory: 5GiB were asked for with 20GiB in use and 2GiB idle in the pool; "},
		"a failure under a limit": {diagnose.Snapshot{OOMs: []diagnose.OOMEvent{limited}}, true,
			CauseUnknown, 24 * event.GiB,
			"The card ran out"},
		"a limit that did not refuse": {diagnose.Snapshot{OOMs: []diagnose.OOMEvent{unlimited}}, true,
			CauseUnknown, 0,
			"The card ran out"},
		"pieces": {diagnose.Snapshot{OOMs: []diagnose.OOMEvent{pieces}}, true, CauseFragmentation, 0,
			"the largest idle piece was 1GiB of the 5GiB asked for."},
		"no failure": {diagnose.Snapshot{AllocatedPeak: 7 * event.GiB, ReservedPeak: 8 * event.GiB}, false,
			CauseUnknown, 0, "No shortage is recorded: the peak was 7GiB in use and 8GiB reserved; "},
	} {
		x := explainSnapshot(&recorded{Snapshot: &c.s}, nil)
		if x.IsOOM != c.oom || x.Cause != c.cause || !strings.Contains(x.Verdict, c.says) ||
			!strings.HasSuffix(x.Verdict, ".") {
			t.Errorf("%s: %v %s %q", name, x.IsOOM, x.Cause, x.Verdict)
		}
		if (x.Capacity != nil) != (c.capacity > 0) || x.Capacity != nil && *x.Capacity != c.capacity {
			t.Errorf("%s: capacity %v", name, x.Capacity)
		}
		want := map[bool]float64{true: 0.99, false: 0.9}[c.oom]
		if x.Certainty != want || x.Framework != "pytorch" || (x.Idle != nil) != c.oom ||
			c.oom && (*x.Idle != 2*event.GiB || x.Frame == nil || x.Frame.File != "train.py") {
			t.Errorf("%s: %+v", name, x)
		}
	}
}

// TestCausesOfRecordings: growth from a half on, with two of its suspects; else what most of the
// memory is for.
func TestCausesOfRecordings(t *testing.T) {
	group := func(line int) diagnose.StackGroup {
		return diagnose.StackGroup{Bytes: event.MiB, Frames: []event.Frame{{File: "train.py", Line: line}}}
	}
	for confidence, grows := range map[float64]bool{0.49: false, 0.5: true, 0.9: true} {
		for n := range 4 {
			g := &diagnose.Growth{Confidence: confidence, PerStep: event.MiB, FirstStep: 3, LastStep: 9}
			for i := range n {
				g.Suspects = append(g.Suspects, group(i+1))
			}
			j := (&recorded{Snapshot: &diagnose.Snapshot{Growth: g}}).judge()
			if (j.cause == CauseLeak) != grows || grows && (len(j.evidence) != 1+min(n, 2) ||
				j.confidence != confidence) {
				t.Errorf("growth sure to %g, %d suspects: %+v", confidence, n, j)
			}
		}
	}
	const w, g, o, a, l, in, tmp, unknown = event.CategoryWeights, event.CategoryGradients,
		event.CategoryOptimizer, event.CategoryActivations, event.CategoryLoss, event.CategoryInput,
		event.CategoryTemporary, event.CategoryUnknown
	for name, c := range map[string]struct {
		bytes  map[event.Category]event.Bytes
		cause  Cause
		detail string
	}{
		"nothing":                 {nil, CauseUnknown, ""},
		"half is known":           {map[event.Category]event.Bytes{unknown: 50, a: 50}, CauseBatch, ""},
		"less is known":           {map[event.Category]event.Bytes{unknown: 52, a: 48}, CauseUnknown, ""},
		"more states":             {map[event.Category]event.Bytes{w: 20, g: 20, o: 11, a: 50}, CauseModel, ""},
		"as many states":          {map[event.Category]event.Bytes{w: 20, g: 20, o: 10, a: 50}, CauseBatch, ""},
		"inputs and scratch":      {map[event.Category]event.Bytes{w: 30, in: 16, tmp: 15}, CauseBatch, ""},
		"half of it logits":       {map[event.Category]event.Bytes{l: 50, a: 50}, CauseBatch, ""},
		"more than half are them": {map[event.Category]event.Bytes{l: 51, a: 50}, CauseBatch, "logits"},
	} {
		s := &recorded{Snapshot: &diagnose.Snapshot{}}
		for category, bytes := range c.bytes {
			s.Categories = append(s.Categories, diagnose.CategoryShare{Category: category, Bytes: bytes})
		}
		if j := s.judge(); j.cause != c.cause || j.detail != c.detail {
			t.Errorf("%s: %s %q", name, j.cause, j.detail)
		}
	}
}

// TestWhatARecordingAdds: it overrides a log's cause only where it is surer.
func TestWhatARecordingAdds(t *testing.T) {
	s := &recorded{Snapshot: &diagnose.Snapshot{Growth: &diagnose.Growth{Confidence: 0.8}}}
	for confidence, cause := range map[float64]Cause{0.79: CauseLeak, 0.8: CauseBatch} {
		x := &Explanation{Cause: CauseBatch, Confidence: confidence, Evidence: []string{"the log's"}}
		x.refine(s, nil)
		if x.Cause != cause || x.Confidence != 0.8 || len(x.Evidence) != 2 ||
			(x.Evidence[0] == "the log's") != (cause == CauseBatch) {
			t.Errorf("a log sure to %g: %s, %q", confidence, x.Cause, x.Evidence)
		}
	}
}

// TestSeveralLogs: crashes of all in their order; what is known of the job comes from the log that
// shows most.
func TestSeveralLogs(t *testing.T) {
	log := func(line, batch int, frameworks ...string) *trace.Log {
		l := &trace.Log{Crashes: []trace.Crash{{Line: int64(line)}}}
		l.Hints.Batch, l.Hints.Frameworks = batch, map[string]bool{}
		for _, f := range frameworks {
			l.Hints.Frameworks[f] = true
		}
		return l
	}
	for name, c := range map[string]struct {
		a, b   *trace.Log
		second bool // the second log's hints count
	}{
		"more frameworks":   {log(1, 0), log(2, 0, "pytorch"), true},
		"as many":           {log(1, 0, "jax"), log(2, 0, "pytorch"), false},
		"a batch alone":     {log(1, 0, "jax"), log(2, 4, "pytorch"), true},
		"a batch in both":   {log(1, 8, "jax"), log(2, 4, "pytorch"), false},
		"a batch before it": {log(1, 8, "jax"), log(2, 0, "pytorch"), false},
	} {
		all := joined([]*trace.Log{c.a, c.b})
		if second := all.Hints.Frameworks["pytorch"]; second != c.second || len(all.Crashes) != 2 ||
			all.Crashes[0].Line != 1 || len(c.a.Crashes) != 1 {
			t.Errorf("%s: %+v", name, all)
		}
	}
	if joined(nil) != nil {
		t.Error("no logs, and one came of them")
	}
	for want, logs := range map[string][]*trace.Log{"other": {log(1, 0)},
		"ray": {log(1, 0), log(1, 0, "ray")}, "pytorch": {log(1, 0), log(1, 0, "pytorch", "ray")}} {
		if got := frameworkOf(logs); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// TestSavingsOfTwo: the first that knows answers.
func TestSavingsOfTwo(t *testing.T) {
	knows := func(n event.Bytes, ok bool) Saving {
		return func(*remedy.Remedy) (low, high event.Bytes, known bool) { return n, n, ok }
	}
	for name, c := range map[string]struct {
		first, second Saving
		want          event.Bytes
	}{"both": {knows(1, true), knows(2, true), 1}, "the second": {knows(1, false), knows(2, true), 2},
		"only one": {nil, knows(2, true), 2}, "only the other": {knows(1, true), nil, 1}} {
		if low, _, ok := either(c.first, c.second)(nil); low != c.want || !ok {
			t.Errorf("%s: %d %v", name, low, ok)
		}
	}
	if either(nil, nil) != nil {
		t.Error("nobody knows, and somebody answers")
	}
}
