package explain_test

import (
	"slices"
	"strings"
	"testing"

	"memroom/event"
	"memroom/explain"
	"memroom/remedy"
)

func ids(x *explain.Explanation) []remedy.ID {
	var list []remedy.ID
	for _, a := range x.Remedies {
		list = append(list, a.ID)
	}
	return list
}

// TestWhateverWarnsIsExplained: of every kind of finding that the last screen shows, explain has
// something to say. What is mere information needs none.
func TestWhateverWarnsIsExplained(t *testing.T) {
	well := &event.Verdict{Evidence: []string{"the command exited with code 0"}}
	for _, kind := range []string{"leak", "fragmentation", "thrash", "spike", "evaluation",
		"host_pressure", "swap", "shm", "worker_growth", "neighbour", "unused_gpu", "forecast",
		"died_on_the_way", "rank_stands_still", "group", "a kind of tomorrow"} {
		f := event.Finding{Kind: kind, Severity: event.SeverityWarning, Confidence: 0.9,
			Title: "something about " + kind, Evidence: []string{"a figure"},
			Remedies: []string{"micro_batch"}}
		m := explain.Material{Verdict: well, Findings: []event.Finding{f}}
		x := explain.Explain(m)
		if !explain.Explainable(m.Findings) || x == nil || x.IsOOM ||
			!strings.Contains(x.Verdict, f.Title) ||
			!strings.Contains(strings.Join(x.Evidence, "\n"), "a figure") || len(x.Remedies) == 0 {
			t.Errorf("%s: %+v", kind, x)
		}
		f.Severity = event.SeverityInfo
		m.Findings = []event.Finding{f}
		if x := explain.Explain(m); x != nil || explain.Explainable(m.Findings) {
			t.Errorf("%s, mere information: %+v", kind, x)
		}
	}
	if x := explain.Explain(explain.Material{Verdict: well}); x != nil {
		t.Errorf("nothing was found: %+v", x)
	}
	first := event.Finding{Kind: "swap", Severity: event.SeverityWarning, Title: "it swaps",
		Frames: []event.Frame{{File: "train.py", Line: 7}}}
	second := event.Finding{Kind: "unused_gpu", Severity: event.SeverityWarning, Title: "a card idles"}
	x := explain.Explain(explain.Material{Verdict: well, Findings: []event.Finding{first, second}})
	if x.Frame == nil || x.Frame.Line != 7 || !slices.Contains(x.Evidence, "a card idles") ||
		slices.Contains(x.Evidence, "it swaps") || len(x.Remedies) != 0 {
		t.Errorf("two findings without a remedy: %+v", x)
	}
}

// TestAHostKillIsToldAsFarAsItWasSeen: what was loaded, how far it came, what --fit said; and what
// to type has the run's own command and limits.
func TestAHostKillIsToldAsFarAsItWasSeen(t *testing.T) {
	killed := &event.Verdict{ExitCode: 137, Signal: "SIGKILL", IsOOM: true,
		Where: event.WhereCgroup, KilledBy: "cgroup", Evidence: []string{"killed"}}
	run := event.Run{Command: []string{"python", "train.py"}, HostMem: 400 * event.MiB}
	for name, c := range map[string]struct {
		seen explain.Seen
		says string
		not  string
		cure bool // a smaller micro-batch is offered
	}{
		"no framework": {explain.Seen{Python: true},
			"had not loaded PyTorch", "training step", false},
		"no step": {explain.Seen{Python: true, Frameworks: []string{"pytorch"}},
			"no training step had ended", "had not loaded", true},
		"some steps": {explain.Seen{Python: true, Frameworks: []string{"pytorch"}, Steps: 7},
			"7 training steps had ended", "no training step", true},
		"not looked at": {explain.Seen{},
			"killed", "training step", true},
		"--fit gave up": {explain.Seen{Tried: "outside of a step"},
			"memroom run --fit: outside of a step", "had not loaded", true},
		"what it held": {explain.Seen{Held: 390 * event.MiB},
			"killed", "training step", true},
		"and TensorFlow": {explain.Seen{Python: true, Frameworks: []string{"tensorflow"}},
			"no training step", "had not", true},
	} {
		x := explain.Explain(explain.Material{Verdict: killed, Run: run, HostLimit: run.HostMem,
			Seen: c.seen})
		text := strings.Join(x.Evidence, "\n")
		if !strings.Contains(text, c.says) || strings.Contains(text, c.not) {
			t.Errorf("%s: %s", name, text)
		}
		if got := slices.Contains(ids(x), remedy.MicroBatch); got != c.cure {
			t.Errorf("%s: micro-batch offered: %v", name, got)
		}
		if held := slices.ContainsFunc(x.Account, func(l explain.AccountLine) bool {
			return l.What == "held by its processes at most" && l.Bytes == c.seen.Held
		}); held != (c.seen.Held > 0) {
			t.Errorf("%s: %+v", name, x.Account)
		}
		for _, a := range x.Remedies {
			typed := a.How.Args + a.How.Fit
			if a.ID == remedy.RaiseLimit && !strings.Contains(typed,
				"memroom run --host-mem 600MiB -- python train.py") {
				t.Errorf("%s: %s", name, typed)
			}
			if a.How.Fit != "" && !strings.Contains(a.How.Fit, "--host-mem 400MiB -- python train.py") {
				t.Errorf("%s: %s", name, a.How.Fit)
			}
		}
	}
}
