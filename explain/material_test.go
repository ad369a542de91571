package explain_test

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"memroom/diagnose"
	"memroom/event"
	"memroom/explain"
	"memroom/remedy"
	"memroom/testenv"
	"memroom/trace"
)

func openSnapshot(t *testing.T, path string) *trace.Snapshot {
	t.Helper()
	s, err := trace.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func logOf(t *testing.T, text string) *trace.Log {
	t.Helper()
	log, err := trace.ReadLog(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return log
}

// TestRecordingsAreExplained checks the cause read off real recordings, and that bytes come with
// it.
func TestRecordingsAreExplained(t *testing.T) {
	for name, want := range map[string]struct {
		oom   bool
		cause explain.Cause
		first remedy.ID
	}{
		"dynseq-limit-default": {true, explain.CauseFragmentation, remedy.ExpandableSegments},
		"oom-batch":            {true, explain.CauseBatch, remedy.MicroBatch},
		"leak-loss_sum":        {false, explain.CauseLeak, remedy.Detach},
	} {
		t.Run(name, func(t *testing.T) {
			s := openSnapshot(t, testenv.Shared(t, "traces", name+".pickle.gz"))
			x := explain.Explain(explain.Material{Snapshots: []*trace.Snapshot{s}})
			if x.IsOOM != want.oom || x.Cause != want.cause || len(x.Remedies) == 0 ||
				x.Remedies[0].ID != want.first {
				t.Fatalf("is_oom %v, cause %s, remedies %+v", x.IsOOM, x.Cause, x.Remedies)
			}
			if want.oom && (x.Requested == nil || x.Allocated == nil ||
				x.Remedies[0].SavesLow == nil || *x.Remedies[0].SavesLow <= 0) {
				t.Errorf("without figures: %+v", x)
			}
		})
	}
}

// TestSavingIsWhatHappened: the default recording predicts what the same program reserved under
// another setting.
func TestSavingIsWhatHappened(t *testing.T) {
	folder := testenv.Shared(t, "traces")
	base := openSnapshot(t, filepath.Join(folder, "dynseq-default.pickle.gz"))
	other := openSnapshot(t, filepath.Join(folder, "dynseq-expandable.pickle.gz"))
	r, _ := remedy.Find(remedy.ExpandableSegments)
	low, high, ok := explain.RecordedSaving(base)(r)
	saved := reserved(base) - reserved(other)
	if off := float64(low-saved) / float64(saved); !ok || low != high || off > 0.01 || off < -0.01 {
		t.Errorf("predicted %s to %s (%v), really saved %s", low, high, ok, saved)
	}
}

func reserved(s *trace.Snapshot) event.Bytes {
	return diagnose.AnalyseSnapshot(diagnose.LedgerOf(s, &s.Recordings[0], nil)).ReservedPeak
}

// TestRecordingRefinesALog: the log has the message, the recording the cause and the bytes.
func TestRecordingRefinesALog(t *testing.T) {
	s := openSnapshot(t, filepath.Join("..", "cli", "testdata", "oom.pickle.gz"))
	log := logOf(t,
		"RuntimeError: CUDA out of memory. Tried to allocate 384.00 MiB (GPU 0; 139.80 GiB total "+
			"capacity; 15.61 GiB already allocated; 123.48 GiB free; 15.65 GiB reserved in total by PyTorch)")
	x := explain.Explain(explain.Material{Logs: []*trace.Log{log},
		Snapshots: []*trace.Snapshot{s}})
	if !x.IsOOM || x.Cause != explain.CauseBatch || x.Confidence < 0.7 ||
		*x.Capacity < 139*event.GiB || x.Remedies[0].SavesHigh == nil {
		t.Errorf("%+v", x)
	}
}

// TestVerdictProvesWhatALogSuspects: a supervisor's counters turn a bare kill into a certainty, or
// a silence into an answer.
func TestVerdictProvesWhatALogSuspects(t *testing.T) {
	v := &event.Verdict{ExitCode: 137, Signal: "SIGKILL", IsOOM: true, Where: event.WhereCgroup,
		KilledBy: "cgroup", Evidence: []string{"memory.events: oom_kill rose from 0 to 1"}}
	silent := logOf(t, "step 1\nstep 2\n")
	x := explain.Explain(explain.Material{Logs: []*trace.Log{silent}, Verdict: v})
	if x == nil || !x.IsOOM || x.Where != event.WhereCgroup || x.Certainty < 0.9 ||
		len(x.Remedies) == 0 || !slices.Contains(x.Evidence, v.Evidence[0]) {
		t.Errorf("silent log: %+v", x)
	}
	fine := &event.Verdict{ExitCode: 3, Evidence: []string{"exit code 3"}}
	if x = explain.Explain(explain.Material{Logs: []*trace.Log{silent},
		Verdict: fine}); x == nil || x.IsOOM {
		t.Errorf("an ordinary failure: %+v", x)
	}
	if x = explain.Explain(explain.Material{Logs: []*trace.Log{silent}}); x != nil {
		t.Errorf("nothing to tell, and yet: %+v", x)
	}
}

// TestFindingsSettleTheCause: a leak that was seen growing explains the end better than its message
// does.
func TestFindingsSettleTheCause(t *testing.T) {
	log := logOf(t,
		"RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 8.00 GiB total capacity; "+
			"7.60 GiB already allocated; 3.00 MiB free; 7.70 GiB reserved in total by PyTorch)")
	leak := event.Finding{Kind: "leak", Title: "what stays allocated grows by 5MiB a step",
		Confidence: 0.9, Frames: []event.Frame{{File: "train.py", Name: "step", Line: 12}}}
	x := explain.Explain(explain.Material{Logs: []*trace.Log{log},
		Findings: []event.Finding{{Kind: "forecast", Title: "soon", Confidence: 1}, leak}})
	if x.Cause != explain.CauseLeak || x.Frame == nil || x.Frame.Line != 12 ||
		x.Remedies[0].ID != remedy.Detach {
		t.Errorf("%+v", x)
	}
}

// TestNothingThatIsOnIsSuggested: a remedy that the log shows in use does not come back as advice.
func TestNothingThatIsOnIsSuggested(t *testing.T) {
	log := logOf(t, `python train.py --batch_size 1 --gradient_checkpointing --bf16
PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.69 GiB of which 1.01 GiB is free. Of the allocated memory 21.00 GiB is allocated by PyTorch, and 312.00 MiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.`)
	x := explain.Explain(explain.Material{Logs: []*trace.Log{log}})
	for _, a := range x.Remedies {
		if slices.Contains([]remedy.ID{remedy.MicroBatch, remedy.Checkpointing,
			remedy.MixedPrecision, remedy.ExpandableSegments}, a.ID) {
			t.Errorf("%s is on and was suggested", a.ID)
		}
	}
	if len(x.Remedies) == 0 {
		t.Error("no advice is left")
	}
}

// TestTheFullCardIsNotRecommended: neither wording of PyTorch's message may end in advice to use
// the card that was full.
func TestTheFullCardIsNotRecommended(t *testing.T) {
	for name, text := range map[string]string{
		"before 2.1": "RuntimeError: CUDA out of memory. Tried to allocate 512.00 MiB (GPU 1; 15.78 GiB " +
			"total capacity; 3.00 GiB already allocated; 100.00 MiB free; 3.20 GiB reserved in total by " +
			"PyTorch)",
		"since 2.1": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB. GPU 1 " +
			"has a total capacity of 15.78 GiB of which 100.00 MiB is free. Process 7 has 12.00 GiB memory " +
			"in use. Of the allocated memory 3.00 GiB is allocated by PyTorch, and 200.00 MiB is reserved by " +
			"PyTorch but unallocated.",
	} {
		x := explain.Explain(explain.Material{Logs: []*trace.Log{logOf(t, text)}})
		if x.Cause != explain.CauseNeighbour || x.Remedies[0].ID != remedy.FreeNeighbour {
			t.Fatalf("%s: %+v", name, x)
		}
		if env := x.Remedies[0].How.Env; strings.Contains(env, "DEVICES=1") ||
			!strings.Contains(env, "GPU 1 is full") {
			t.Errorf("%s: %s", name, env)
		}
	}
}

// TestARunsOwnLimitIsNamed: if a run was ended by its own --host-mem, the advice is to raise that
// limit, not a container's.
func TestARunsOwnLimitIsNamed(t *testing.T) {
	v := &event.Verdict{ExitCode: 137, Signal: "SIGKILL", IsOOM: true, Where: event.WhereCgroup,
		KilledBy: "cgroup", Evidence: []string{"the kernel killed 1 process of the run's own cgroup for memory"}}
	x := explain.Explain(explain.Material{Verdict: v, HostLimit: 400 * event.MiB})
	if x.Capacity == nil || *x.Capacity != 400*event.MiB || !strings.Contains(x.Verdict, "400MiB") {
		t.Errorf("the limit is missing: %+v", x)
	}
	if first := x.Remedies[0]; first.ID != remedy.RaiseLimit ||
		!strings.HasPrefix(first.How.Args, "memroom run --host-mem 600MiB") {
		t.Errorf("%+v", first)
	}
	for _, w := range x.Warnings {
		if strings.Contains(w, "log") {
			t.Errorf("of a record: %s", w)
		}
	}
	around := *v // the same kill where the run had no limit of its own
	x = explain.Explain(explain.Material{Verdict: &around})
	if strings.Contains(x.Remedies[0].How.Args, "--host-mem") {
		t.Errorf("%+v", x.Remedies[0])
	}
	around.KilledBy = "slurm" // and Slurm's limit is raised in Slurm's words
	x = explain.Explain(explain.Material{Verdict: &around, HostWall: 200 * event.MiB, Alone: true,
		NoCard: true})
	if !strings.HasPrefix(x.Remedies[0].How.Args, "#SBATCH --mem=300M") ||
		!strings.Contains(x.Verdict, "limit on host memory was reached: the limit is 200MiB") {
		t.Errorf("%q, %+v", x.Verdict, x.Remedies[0])
	}
	for _, r := range x.Remedies {
		if r.ID == remedy.DataLoaderWorkers || r.ID == remedy.PinMemory {
			t.Errorf("%s, for a process alone without a card", r.ID)
		}
	}
}

// TestFindingsExplainARunThatEndedWell: a leak or a forecast on record is an explanation; one that
// was taken back is none.
func TestFindingsExplainARunThatEndedWell(t *testing.T) {
	well := &event.Verdict{Evidence: []string{"the command exited with code 0"}}
	leak := event.Finding{Kind: "leak", Severity: event.SeverityWarning,
		Title: "Host memory grows: kept by losses", Confidence: 0.9}
	forecast := event.Finding{Kind: "forecast", Severity: event.SeverityError,
		Title: "Host memory will run out in about 3 min", Confidence: 0.9}
	for name, found := range map[string][]event.Finding{"leak": {leak}, "forecast": {forecast},
		"both": {forecast, leak}} {
		x := explain.Explain(explain.Material{Verdict: well, Findings: found})
		if x == nil || x.IsOOM || x.Cause != explain.CauseLeak || len(x.Remedies) == 0 ||
			x.Remedies[0].ID != remedy.Detach {
			t.Fatalf("%s: %+v", name, x)
		}
		if first := found[len(found)-1]; !strings.Contains(x.Verdict, first.Title) {
			t.Errorf("%s: %s", name, x.Verdict)
		}
	}
	leak.Severity = event.SeverityInfo
	if x := explain.Explain(explain.Material{Verdict: well,
		Findings: []event.Finding{leak}}); x != nil {
		t.Errorf("taken back, and yet: %+v", x)
	}
	crashed := &event.Verdict{ExitCode: 1, Evidence: []string{"exit code 1"}}
	if x := explain.Explain(explain.Material{Verdict: crashed,
		Findings: []event.Finding{forecast}}); x.NotMemory == "" || len(x.Evidence) != 2 {
		t.Errorf("an ordinary failure: %+v", x)
	}
}

// TestWhatWasSeenLiveIsTheExplanation: a finding that knows its situation explains the run by it,
// with the cures it named and no others.
func TestWhatWasSeenLiveIsTheExplanation(t *testing.T) {
	well := &event.Verdict{Evidence: []string{"the command exited with code 0"}}
	killed := &event.Verdict{ExitCode: 137, Signal: "SIGKILL", IsOOM: true,
		Where: event.WhereCgroup, KilledBy: "cgroup"}
	seen := event.Finding{Kind: "evaluation", Detail: "eval_outputs",
		Severity: event.SeverityWarning, Title: "the peak of host memory is in evaluation",
		Confidence: 0.9, Remedies: []string{"no_grad", "eval_outputs", "eval_batch"}}
	for name, v := range map[string]*event.Verdict{"well": well, "killed": killed} {
		x := explain.Explain(explain.Material{Verdict: v, Findings: []event.Finding{seen}})
		if x == nil || x.Cause != explain.CauseBatch || x.Detail != "eval_outputs" ||
			!strings.Contains(x.Verdict, seen.Title) {
			t.Fatalf("%s: %+v", name, x)
		}
		for _, a := range x.Remedies {
			if !slices.Contains(seen.Remedies, string(a.ID)) {
				t.Errorf("%s: %s was not named while it ran", name, a.ID)
			}
		}
		if len(x.Remedies) < 2 || !strings.Contains(x.Verdict, "evaluation") {
			t.Errorf("%s: %q %+v", name, x.Verdict, x.Remedies)
		}
	}
}

// TestJAXIsSpokenToAsJAX: no advice names TensorFlow or a way of --fit that does not reach JAX.
func TestJAXIsSpokenToAsJAX(t *testing.T) {
	log := logOf(t, "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while "+
		"trying to allocate 12582912 bytes.")
	x := explain.Explain(explain.Material{Logs: []*trace.Log{log}})
	share := ""
	for _, a := range x.Remedies {
		if strings.Contains(a.Title, "TensorFlow") || a.How.Fit != "" {
			t.Errorf("%+v", a)
		}
		share += a.How.Env
	}
	for _, name := range []string{"PREALLOCATE", "MEM_FRACTION", "ALLOCATOR"} {
		if !strings.Contains(share, "XLA_PYTHON_CLIENT_"+name) {
			t.Errorf("%s is not named: %s", name, share)
		}
	}
}
