package report

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"memroom/diagnose"
	"memroom/event"
	"memroom/explain"
	"memroom/fit"
	"memroom/lint"
	"memroom/plan"
	"memroom/remedy"
)

// TestPages: what is written for cases at the edges of every rule (nothing, one, many; known or
// not), as files in testdata/pages that people read when they change. -update writes them.
func TestPages(t *testing.T) {
	for name, write := range map[string]func(io.Writer){
		"ends": writeEnds, "fits": writeFits, "explanations": writeExplanations,
		"ladders": writeLadders, "maps": writeMaps, "snapshots": writeSnapshots,
		"plans": writePlans, "findings": writeFindings, "bfc": writeBFC,
	} {
		var got bytes.Buffer
		write(&got)
		path := filepath.Join("testdata", "pages", name+".txt")
		if *update {
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, got.Bytes(), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if got.String() == string(want) {
			continue
		}
		a, b := strings.Split(string(want), "\n"), strings.Split(got.String(), "\n")
		for i := range min(len(a), len(b)) {
			if a[i] != b[i] {
				t.Errorf("%s, line %d was\n%s\nand is\n%s", path, i+1, a[i], b[i])
				break
			}
		}
		if len(a) != len(b) {
			t.Errorf("%s: %d lines, was %d", path, len(b), len(a))
		}
	}
}

func writeEnds(w io.Writer) {
	rank := 3
	gib := event.GiB
	oom := func(where event.Where, by string, evidence ...string) *event.Verdict {
		return &event.Verdict{IsOOM: true, ExitCode: 137, Where: where, KilledBy: by,
			Evidence: evidence}
	}
	finding := event.Finding{Kind: "leak", Severity: event.SeverityWarning, Title: "a leak",
		Frames: []event.Frame{{File: "/a/b.py", Line: 7}}, Remedies: []string{"detach"}}
	for _, c := range []struct {
		name   string
		change func(*End)
	}{
		{"plain", func(e *End) {}},
		{"nothing known", func(e *End) { *e = End{} }},
		{"no verdict", func(e *End) { e.Verdict = nil }},
		{"failed", func(e *End) { e.Verdict.ExitCode = 1 }},
		{"interrupted", func(e *End) { e.Verdict.Signal, e.Verdict.ExitCode = "SIGINT", 130 }},
		{"killed by somebody", func(e *End) {
			e.Verdict.Signal, e.Verdict.ExitCode, e.Verdict.KilledBy = "SIGKILL", 137, "somebody"
		}},
		{"ended by a signal", func(e *End) { e.Verdict.Signal, e.Verdict.ExitCode = "SIGTERM", 143 }},
		{"no steps", func(e *End) { e.Steps = 0 }},
		{"one step", func(e *End) { e.Steps, e.StepMS = 1, 999.6 }},
		{"an hour", func(e *End) { e.Exit.Seconds = 3600 }},
		{"just below", func(e *End) { e.Exit.Seconds = 3599.9 }},
		{"a minute", func(e *End) { e.Exit.Seconds = 60 }},
		{"ten seconds", func(e *End) { e.Exit.Seconds = 10 }},
		{"an attempt more", func(e *End) { e.Attempts = make([]event.Attempt, 2) }},
		{"no peaks", func(e *End) { e.Peaks = event.Peaks{} }},
		{"only the kernel's peak", func(e *End) {
			e.Peaks = event.Peaks{}
			e.Exit.MaxResident = 1
		}},
		{"nothing left", func(e *End) { e.Peaks.Unreclaimable = e.Peaks.HostLimit }},
		{"a byte left", func(e *End) { e.Peaks.Unreclaimable = e.Peaks.HostLimit - 1 }},
		{"no limit", func(e *End) { e.Peaks.HostLimit = 0 }},
		{"one process", func(e *End) { e.Peaks.Processes = 1 }},
		{"half of shm", func(e *End) { e.Peaks.Shm, e.Peaks.ShmTotal = 50, 100 }},
		{"more of shm", func(e *End) { e.Peaks.Shm, e.Peaks.ShmTotal = 51, 100 }},
		{"a tenth of shm", func(e *End) { e.Peaks.Shm, e.Peaks.ShmTotal = 10, 100 }},
		{"a card", func(e *End) {
			e.Peaks.Devices = []event.DevicePeak{{Name: "H200", Total: 140 * gib, Used: 9 * gib,
				Allocated: 7 * gib, Reserved: 8 * gib}}
		}},
		{"a card without allocator", func(e *End) {
			e.Peaks.Devices = []event.DevicePeak{{UUID: "GPU-1", Total: 2, Used: 1}}
		}},
		{"an allocator without card", func(e *End) {
			e.Peaks.Devices = []event.DevicePeak{{UUID: "device 0", Allocated: 1, Reserved: 1}, {}}
		}},
		{"host", func(e *End) { e.Verdict = oom(event.WhereHost, "kernel") }},
		{"cgroup", func(e *End) { e.Verdict = oom(event.WhereCgroup, "cgroup") }},
		{"--host-mem", func(e *End) {
			e.Verdict, e.Run.HostMem = oom(event.WhereCgroup, "cgroup"), gib
		}},
		{"slurm", func(e *End) { e.Verdict = oom(event.WhereCgroup, "slurm") }},
		{"ray", func(e *End) { e.Verdict = oom(event.WhereHost, "ray") }},
		{"itself", func(e *End) { e.Verdict = oom(event.WhereHost, "itself") }},
		{"memroom", func(e *End) { e.Verdict = oom(event.WhereHost, "memroom") }},
		{"a rank", func(e *End) {
			e.Verdict = oom(event.WhereGPU, "memroom", "output: CUDA out of memory. Tried to allocate "+
				"2.00 GiB. GPU 0 has a total capacity of 9.00 GiB of which 1.00 GiB is free.")
			e.Verdict.Rank = &rank
		}},
		{"only asked", func(e *End) {
			e.Verdict = oom(event.WhereGPU, "", "Tried to allocate 20.00 MiB")
		}},
		{"other words", func(e *End) { e.Verdict = oom(event.WhereGPU, "", "output: no memory") }},
		{"exit code 0", func(e *End) {
			e.Verdict = oom(event.WhereShm, "")
			e.Verdict.ExitCode, e.Peaks.Shm, e.Peaks.ShmTotal = 0, 64, 64
		}},
		{"MPS", func(e *End) { e.Verdict = oom(event.WhereMPS, "itself") }},
		{"a finding", func(e *End) { e.Findings = []event.Finding{finding} }},
		{"four findings", func(e *End) {
			for _, name := range []string{"losses", "outputs", "hooks", "caches"} {
				f := finding
				f.Title = "a leak in " + name
				e.Findings = append(e.Findings, f)
			}
		}},
		{"too much to say", func(e *End) {
			for i := range 30 {
				e.Peaks.Devices = append(e.Peaks.Devices, event.DevicePeak{Total: 2 * gib,
					Used: gib, Name: fmt.Sprint("card ", i)})
			}
		}},
	} {
		e := End{Summary: event.Summary{Run: event.Run{ID: "r1", Command: []string{"python", "t.py"}},
			Exit: &event.Exit{Seconds: 200}, Verdict: &event.Verdict{}, Steps: 12, StepMS: 210,
			Peaks: event.Peaks{Resident: 3 * gib, Unreclaimable: 2 * gib, HostLimit: 8 * gib,
				Processes: 3}}, Job: remedy.Job{Framework: remedy.PyTorch}}
		c.change(&e)
		fmt.Fprintf(w, "== %s (tells %v)\n", c.name, e.Tells())
		RunEnd(w, e)
		fmt.Fprintln(w, "--")
		RunSummary(w, e.Summary)
	}
}

func writeFits(w io.Writer) {
	split := fit.Sentence{Kind: "applied", Text: "Net: batch of 8 split into 4 micro-batches",
		ID: remedy.MicroBatch, Rows: 8, Pieces: 4, Predicted: 10 * event.GiB, Limit: 12 * event.GiB,
		Twice: 0.25, Slower: 0.08}
	first := fit.Tried{Number: 1, OutOf: event.WhereGPU, Held: 20 * event.GiB,
		Requested: event.GiB, CardFree: event.MiB, Steps: 3, StepMS: 100, ExitCode: 1}
	last := fit.Tried{Number: 2, Remedies: []fit.Remedy{{ID: remedy.MicroBatch,
		Level: remedy.LevelProcess}}, Changed: []string{"smaller micro-batches"},
		Title: "smaller micro-batches", Said: []fit.Sentence{split}, Allocated: 11 * event.GiB,
		Reserved: 12 * event.GiB, StepMS: 150, Steps: 9}
	for _, c := range []struct {
		name   string
		change func(*fit.Record)
	}{
		{"it fits", func(r *fit.Record) {}},
		{"one attempt", func(r *fit.Record) { r.Attempts = r.Attempts[1:] }},
		{"remembered", func(r *fit.Record) { r.Attempts, r.Remembered = r.Attempts[1:], true }},
		{"two steps to compare with", func(r *fit.Record) { r.Attempts[0].Steps = 2 }},
		{"no step to compare with", func(r *fit.Record) { r.Attempts[0].StepMS = 0 }},
		{"much slower", func(r *fit.Record) {
			r.Attempts[0].Steps = 0
			r.Attempts[1].Said[0].Slower = 1
		}},
		{"just below", func(r *fit.Record) {
			r.Attempts[0].Steps = 0
			r.Attempts[1].Said[0].Slower = 0.99
		}},
		{"chosen again after the first step", func(r *fit.Record) {
			dear := split
			dear.Slower = 0.9
			r.Attempts[1].Said = []fit.Sentence{dear, split}
		}},
		{"no slower", func(r *fit.Record) {
			r.Attempts[0].Steps = 0
			r.Attempts[1].Said[0].Slower, r.Attempts[1].Said[0].Twice = 0, 0
		}},
		{"nothing predicted", func(r *fit.Record) { r.Attempts[1].Said[0].Predicted = 0 }},
		{"on average", func(r *fit.Record) { r.Attempts[1].Said[0].Equivalence = "expected" }},
		{"rounding grows", func(r *fit.Record) { r.Attempts[1].Said[0].Amplifies = "LBFGS" }},
		{"rounded in TF32", func(r *fit.Record) {
			r.Attempts[1].Said[0].Rounds = "TF32, about 1e-3 (why)"
		}},
		{"on the host", func(r *fit.Record) {
			r.Attempts[0] = fit.Tried{Number: 1, OutOf: event.WhereCgroup, HostLimit: 9}
			t := &r.Attempts[1]
			t.Allocated, t.Reserved, t.Host, t.HostLimit = 0, 0, 7, 9
		}},
		{"room on the card", func(r *fit.Record) { r.Attempts[0].CardFree = event.GiB }},
		{"failed", func(r *fit.Record) { r.Attempts[1].ExitCode = 3 }},
		{"failed by name", func(r *fit.Record) {
			r.Attempts[1].ExitCode, r.Attempts[1].Failed = 1, "ValueError"
		}},
		{"went on", func(r *fit.Record) { r.Attempts[1].Resumed = "/ck/step-9" }},
		{"impossible", func(r *fit.Record) {
			r.Impossible, r.Attempts[1].OutOf = "it needs more", event.WhereGPU
			r.Left = []fit.Left{{ID: remedy.Quantize8Bit, Why: "changes the mathematics"},
				{ID: "unheard_of", Why: "x"}}
		}},
		{"impossible at once", func(r *fit.Record) {
			r.Impossible, r.Attempts = "it needs more", r.Attempts[:1]
		}},
		{"hollow", func(r *fit.Record) { r.Hollow = "nothing was trained" }},
		{"not needed", func(r *fit.Record) { r.Attempts[1].Said = nil }},
		{"declined and noted", func(r *fit.Record) {
			r.Attempts[1].Said = append(r.Attempts[1].Said,
				fit.Sentence{Kind: "declined", Text: "no", ID: remedy.Checkpointing},
				fit.Sentence{Kind: "note", Text: "a forecast", Needs: 1},
				fit.Sentence{Kind: "note", Text: "a note"})
		}},
		{"arguments", func(r *fit.Record) {
			r.Attempts[1].Remedies = append(r.Attempts[1].Remedies,
				fit.Remedy{ID: remedy.Checkpointing, Level: remedy.LevelArgs},
				fit.Remedy{ID: remedy.ExpandableSegments, Level: remedy.LevelEnv})
		}},
		{"nothing", func(r *fit.Record) { r.Attempts = nil }},
	} {
		a, b := first, last
		b.Said = []fit.Sentence{split}
		record := fit.Record{Attempts: []fit.Tried{a, b}}
		c.change(&record)
		fmt.Fprintf(w, "== %s\n", c.name)
		Fit(w, record, remedy.Job{}, []string{"python", "t.py"})
		if record.Last() == nil {
			continue
		}
		fmt.Fprintln(w, "--")
		RunEnd(w, End{Fit: &record, Summary: event.Summary{Run: event.Run{ID: "r1",
			Command: []string{"python", "t.py"}, HostMem: event.GiB},
			Exit: &event.Exit{Seconds: 20}, Verdict: &event.Verdict{
				IsOOM: record.Last().OutOf != "", ExitCode: record.Last().ExitCode,
				Where: record.Last().OutOf}, Steps: 9, StepMS: 150,
			Attempts: []event.Attempt{{Number: 1, Exit: &event.Exit{Seconds: 7}}, {Number: 2}}}})
	}
}

func writeExplanations(w io.Writer) {
	low, high, rank := event.GiB, 2*event.GiB, 1
	for _, x := range []explain.Explanation{
		{Verdict: "Nothing."},
		{Verdict: "Unknown.", IsOOM: true, Certainty: 0.8, Cause: explain.CauseUnknown},
		{Verdict: "Perhaps.", IsOOM: true, Certainty: 0.79, Cause: explain.CauseUnknown,
			Remedies: []explain.Advice{{ID: "a", Title: "t", Slowdown: 1.04,
				Equivalence: remedy.Expected}}},
		{Verdict: "Known.", IsOOM: true, Cause: explain.CauseBatch, Detail: "logits",
			Confidence: 0.8, Rank: &rank, Frame: &event.Frame{File: "a.py", Line: 3, Name: "f"},
			Account: []explain.AccountLine{{What: "in use", Bytes: 5}}, Evidence: []string{"e\x1b"},
			Line: 9, Text: strings.Repeat("x", 301), Next: "memroom run", Warnings: []string{"w"},
			Remedies: []explain.Advice{
				{ID: "a", Title: "t", SavesLow: &low, SavesHigh: &high, Slowdown: 0.96,
					Equivalence: remedy.Exact, How: remedy.How{Env: "E=1", Args: "--a", Code: "b\nc",
						Fit: "memroom"}},
				{ID: "b", Title: "u", SavesLow: &low, SavesHigh: &low, Slowdown: 0.97,
					Equivalence: remedy.Changes, Unvalidated: "no card"},
				{ID: "c", Title: "v", Slowdown: 1.03, Equivalence: remedy.Exact}}},
		{Verdict: "Likely.", Cause: explain.CauseModel, Confidence: 0.6,
			Others: make([]explain.OtherCrash, 6)},
		{Verdict: "Possible.", Cause: explain.CauseModel, Confidence: 0.59,
			Others: make([]explain.OtherCrash, 8)},
	} {
		fmt.Fprintf(w, "== %s\n", x.Verdict)
		ExplainText(NewText(w, x.IsOOM), &x, false)
		ExplainText(NewText(w, x.IsOOM), &x, true)
	}
}

func writeLadders(w io.Writer) {
	rungs := []plan.Rung{{ID: remedy.MicroBatch, DevicePeak: 9, Saves: 4, Slowdown: 1.05,
		Equivalence: remedy.Exact, Pieces: 4}, {ID: remedy.Checkpointing, DevicePeak: 7, Saves: 2,
		Slowdown: 1.33, Equivalence: remedy.Exact, Fits: true, Pieces: 1}}
	setup := &plan.Setup{}
	setup.Batch, setup.Accumulate = 2, 4
	after := &plan.Prediction{DevicePeak: 7, High: 8}
	for _, l := range []plan.Ladder{
		{Fits: true, Setup: setup, After: after},
		{Fits: true, Slowdown: 1.4, Rungs: rungs, Alone: rungs[:1], Setup: setup, After: after,
			Flags: map[string]string{"a": "x", "b": "y\nz"}},
		{Reason: "too large", Alone: rungs, Consent: &plan.Ladder{Rungs: rungs[1:],
			Flags: map[string]string{"c": "q"}}},
	} {
		fmt.Fprintln(w, "==")
		_ = Ladder(w, &l, false)
	}
}

func writeMaps(w io.Writer) {
	m := plan.DeviceMap{Fits: true, Fullest: 0.456, Map: map[string]int{"a": 0, "b": 1},
		Auto:  &plan.DeviceMapCompare{Devices: []event.Bytes{5, 6, 7}, Fullest: 0.9},
		Notes: []string{"n"}, Devices: []plan.DeviceShare{
			{Name: "A", Total: 10, DevicePeak: 4, Units: []string{"x"}},
			{Name: "B", Total: 20, DevicePeak: 8, Units: []string{"x", "y", "z"}},
			{Name: "C", Total: 20, DevicePeak: 8, Units: []string{"x", "y", "z", "q"}}}}
	_ = DeviceMap(w, &m)
	m.Fits = false
	_ = DeviceMap(w, &m)
	m.Fits, m.Devices[2] = true, plan.DeviceShare{Name: "C", Total: 20}
	_ = DeviceMap(w, &m)
}

func writeSnapshots(w io.Writer) {
	for _, c := range []struct{ allocs, groups int }{{0, 3}, {1, 3}, {7, 1}, {40, 2}, {40, 0}} {
		fmt.Fprintf(w, "== %d allocations, %d groups\n", c.allocs, c.groups)
		d := snapshotOf([]string{"/home/u/a.py", "/home/u/b.py", "/opt/torch/nn.py"}, c.allocs)
		SnapshotText(NewText(w, false), "file.pickle", []string{"a warning"}, []Device{d}, c.groups)
		_ = SnapshotPerfetto(w, []Device{d})
	}
}

func writePlans(w io.Writer) {
	yes, no := true, false
	batch, seq := int64(12), int64(512)
	base := plan.Prediction{AllocatedPeak: 700 << 20, ReservedPeak: 800 << 20, DevicePeak: 1 << 30,
		Low: 900 << 20, High: 1200 << 20, Phase: "backward", PeakOp: "mm", PeakModule: "head",
		Parameters: 1234567, Trainable: 1234567, Assumed: "batch 4", Validated: true,
		Categories: map[string]event.Bytes{"weights": 300 << 20, "activations": 400 << 20,
			"context": 5 << 20}, Phases: []plan.PhasePeak{{Phase: "forward", Allocated: 5, Reserved: 6},
			{Phase: "backward", Allocated: 7, Reserved: 8}},
		Series: []plan.SeriesPoint{{Allocated: 1 << 20}, {Allocated: 700 << 20}, {Allocated: 3 << 20}}}
	for _, c := range []struct {
		name   string
		change func(*plan.Prediction)
	}{
		{"plain", func(p *plan.Prediction) {}},
		{"fits", func(p *plan.Prediction) {
			p.Fits, p.MaxBatch, p.MaxSeq, p.Card = &yes, &batch, &seq, &plan.Card{Name: "X", Total: 2 << 30}
			p.Verdict = plan.Fits
		}},
		{"does not", func(p *plan.Prediction) {
			p.Fits, p.AllocLimit, p.Verdict = &no, 500<<20, plan.DoesNotFit
		}},
		{"probably", func(p *plan.Prediction) {
			p.Fits, p.AllocLimit, p.Verdict, p.Room = &no, 500<<20, plan.ProbablyFits, 700<<20
			p.MaxBatch, p.LikelyBatch = new(int64), &batch
		}},
		{"probably not", func(p *plan.Prediction) {
			p.Fits, p.AllocLimit, p.Verdict, p.Room = &no, 500<<20, plan.ProbablyDoesNot, 700<<20
		}},
		{"partly trained", func(p *plan.Prediction) { p.Trainable, p.Warnings = 1000, []string{"w"} }},
		{"unvalidated", func(p *plan.Prediction) { p.Validated, p.Retries = false, 2 }},
		{"no parameters", func(p *plan.Prediction) { p.Parameters, p.Series = 0, nil }},
	} {
		p := base
		c.change(&p)
		fmt.Fprintf(w, "== %s\n", c.name)
		_ = Plan(w, &p, false)
	}
}

// writeFindings leaves the list of rules out: it is the linter's.
func writeFindings(w io.Writer) {
	var page bytes.Buffer
	_ = SARIF(&page, []lint.Finding{
		{File: "a.py", Line: 3, Column: 4, Rule: "r", Severity: event.SeverityError, Message: "m",
			Why: "w", Fix: "f", Doc: "d"},
		{File: "b.ipynb", Cell: 2, Line: 1, Rule: "r", Severity: event.SeverityWarning},
		{File: "c.py", Line: 1, Rule: "s", Severity: event.SeverityInfo}}, "0.1.0")
	var log struct {
		Runs []struct{ Results json.RawMessage }
	}
	if err := json.Unmarshal(page.Bytes(), &log); err != nil || len(log.Runs) != 1 {
		fmt.Fprintln(w, err, len(log.Runs))
		return
	}
	fmt.Fprintf(w, "%s\n", log.Runs[0].Results)
}

func writeBFC(w io.Writer) {
	s := diagnose.BFCState{Allocator: "GPU_0_bfc", Allocs: 9, Regions: 1, Pool: 1 << 20,
		InUse: 700 << 10, PeakInUse: 800 << 10, Requested: 650 << 10, Free: 300 << 10, FreePieces: 1,
		LargestFree: 100 << 10, LargestAlloc: 200 << 10, Fragmentation: 0.666,
		Sizes: []diagnose.BFCSize{{Size: 256, Chunks: 1, Bytes: 256}, {Size: 512, Chunks: 3,
			Bytes: 1536}, {Size: 1 << 10, Chunks: 2, Bytes: 2 << 10}}}
	for _, sizes := range []int{0, 1, 3, 9} {
		fmt.Fprintf(w, "== %d sizes\n", sizes)
		BFCText(NewText(w, false), &s, sizes)
	}
	s.Regions, s.FreePieces = 2, 2
	BFCText(NewText(w, false), &s, 3)
}
