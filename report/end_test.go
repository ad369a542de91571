package report

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"memroom/event"
	"memroom/fit"
	"memroom/remedy"
)

var update = flag.Bool("update", false, "write the golden screens anew")

func intPointer(n int) *int { return &n }

// ends are the ways a run can end, each as its last screen has it.
func ends() map[string]End {
	h200 := event.DevicePeak{Name: "NVIDIA H200", Total: 140 * event.GiB, Used: 51 * event.GiB,
		Allocated: 44 * event.GiB, Reserved: 49 * event.GiB}
	full := event.DevicePeak{Name: "NVIDIA H200", Total: 140 * event.GiB, Used: 139 * event.GiB,
		Allocated: 130 * event.GiB, Reserved: 138 * event.GiB}
	host := event.Peaks{Resident: 3 * event.GiB, Unreclaimable: 2 * event.GiB,
		HostLimit: 24 * event.GiB, Processes: 3}
	withCard := func(d event.DevicePeak) event.Peaks {
		p := host
		p.Devices = []event.DevicePeak{d}
		return p
	}
	torch := remedy.Job{Framework: remedy.PyTorch}
	run := event.Run{ID: "20261116-091500-a1b", Command: []string{"python", "train.py", "--bs",
		"64"}}
	summary := func(v event.Verdict, p event.Peaks) event.Summary {
		return event.Summary{Run: run, Exit: &event.Exit{Code: v.ExitCode, Seconds: 200},
			Verdict: &v,
			Peaks:   p, Steps: 120, StepMS: 210}
	}
	well := event.Verdict{}
	leak := event.Finding{Kind: "leak", Severity: event.SeverityWarning,
		Title:    "possible leak: 18.7MiB kept per step since step 1 (`history`)",
		Frames:   []event.Frame{{File: "/home/u/train.py", Line: 10}},
		Remedies: []string{"detach", "no_grad", "remove_hooks"}}
	neighbour := event.Finding{Kind: "neighbour", Title: "another process holds 20GiB of GPU 0",
		Remedies: []string{"free_neighbour"}}
	pressure := event.Finding{Kind: "host_pressure",
		Title:    "only 0B of 700MiB host memory are left",
		Remedies: []string{"dataloader_workers"}}

	healthy := End{Summary: summary(well, withCard(h200)), Job: torch}
	healthy.Findings = []event.Finding{neighbour}

	leaking := End{Summary: summary(well, host), Job: torch}
	leaking.Findings = []event.Finding{leak}

	takenBack := End{Summary: leaking.Summary, Job: torch}
	back := leak
	back.Severity, back.Remedies = event.SeverityInfo, nil
	back.Title = "no leak in host memory: it grew and stopped, like a cache that is full"
	takenBack.Findings = []event.Finding{back}

	onHost := End{Summary: summary(event.Verdict{ExitCode: 137, Signal: "SIGKILL", IsOOM: true,
		Where: event.WhereHost, KilledBy: "kernel"}, host), Job: torch}

	onCard := End{Summary: summary(event.Verdict{ExitCode: 1, IsOOM: true, Where: event.WhereGPU,
		KilledBy: "itself", Evidence: []string{"the command exited with code 1",
			"the probe in process 812 saw OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. " +
				"GPU 0 has a total capacity of 139.80 GiB of which 812.00 MiB is free. Including non-PyTorch " +
				"memory"}},
		withCard(full)), Job: torch}
	onCard.Findings = []event.Finding{neighbour}

	capped := End{Summary: summary(event.Verdict{ExitCode: 137, Signal: "SIGKILL", IsOOM: true,
		Where: event.WhereCgroup, KilledBy: "cgroup"}, event.Peaks{Unreclaimable: 700 * event.MiB,
		HostLimit: 700 * event.MiB}), Job: remedy.Job{}}
	capped.Run.HostMem, capped.Steps = 700*event.MiB, 0
	capped.Findings = []event.Finding{pressure}

	leakFills := capped
	leakFills.Job, leakFills.Steps = torch, 120
	grows := leak
	grows.Memory, grows.Bytes, grows.Step = "host memory", 80*event.MiB, 20
	leakFills.Findings = []event.Finding{grows}

	refusedEarly := End{Summary: summary(event.Verdict{ExitCode: 1, IsOOM: true,
		Where: event.WhereHost, KilledBy: "itself"}, event.Peaks{Unreclaimable: 300 * event.MiB,
		HostLimit: 2 * event.GiB}), Job: remedy.Job{}}
	refusedEarly.Run.HostMem = 2 * event.GiB

	rank := End{Summary: summary(event.Verdict{ExitCode: 1, IsOOM: true, Where: event.WhereGPU,
		KilledBy: "memroom", Rank: intPointer(3), Evidence: []string{
			"output: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB."}},
		withCard(full)), Job: torch}

	inProcess := func(ids ...remedy.ID) (given []fit.Remedy) {
		for _, id := range ids {
			given = append(given, fit.Remedy{ID: id, Level: remedy.LevelProcess})
		}
		return append(given, fit.Remedy{ID: remedy.ExpandableSegments, Level: remedy.LevelEnv})
	}
	ranOut := fit.Tried{Number: 1, OutOf: event.WhereGPU, ExitCode: 1, Held: 20 * event.GiB,
		Requested: 3 * event.GiB, CardFree: event.GiB}
	story := fit.Record{Attempts: []fit.Tried{ranOut, {Number: 2, Steps: 120, StepMS: 210,
		Reserved: 18 * event.GiB, Allocated: 17 * event.GiB,
		Title:    "smaller micro-batches and activation checkpointing",
		Remedies: inProcess(remedy.MicroBatch, remedy.Checkpointing, remedy.PinMemory),
		Said: []fit.Sentence{
			{Kind: "applied", Text: "GPT: batch of 64 split into 4 micro-batches",
				ID:   remedy.MicroBatch,
				Rows: 64, Pieces: 4, Predicted: 16 * event.GiB, Slower: 0.08},
			{Kind: "applied", Text: "gpu_mem: device 0 may reserve 20GiB", ID: "gpu_mem"},
			{Kind: "declined", Text: "GPT: its blocks change a buffer", ID: remedy.Checkpointing},
		}}}}
	fits := End{Summary: summary(well, withCard(h200)), Fit: &story, Job: torch}
	filled := event.Finding{Kind: "filled", Title: "train.py:10 filled host memory",
		Remedies: []string{"micro_batch"}}
	fits.Findings = []event.Finding{neighbour, pressure, filled}

	lightning := fits
	lightning.Job.Trainer = remedy.Lightning
	lightning.Run.Command = []string{"python", "main.py", "fit", "--trainer.max_epochs=3"}

	cannot := onCard
	cannot.Run.GPUMem = 22 * event.GiB
	cannot.Fit = &fit.Record{Attempts: []fit.Tried{ranOut, {Number: 2, OutOf: event.WhereGPU,
		ExitCode: 1,
		Title: "smaller micro-batches, activation checkpointing, offload of activations and offload of " +
			"optimizer state"},
		{Number: 3, OutOf: event.WhereGPU, ExitCode: 1, Title: "offload of optimizer state"}},
		Impossible: "it needs at least 23GiB, and 22GiB are there; every remedy that keeps the results " +
			"was tried",
		Left: []fit.Left{{ID: remedy.MixedPrecision}, {ID: remedy.Quantize4Bit},
			{ID: remedy.Quantize8Bit}}}

	// One leak, found in both attempts, and another one in a card's memory.
	leakFits := End{Summary: summary(event.Verdict{ExitCode: 137, Signal: "SIGKILL", IsOOM: true,
		Where: event.WhereCgroup, KilledBy: "kernel"}, host), Job: torch}
	leakFits.Run.HostMem = 700 * event.MiB
	found := func(perStep, entries string, grown event.Bytes) event.Finding {
		return event.Finding{Kind: "leak", Memory: "host memory", Step: 40, Bytes: grown,
			Title: "possible leak in host memory: " + perStep + " kept per step since step 1, held by " +
				"`history` (list of " + entries + ", train.py:10)", Remedies: []string{"keep_less"}}
	}
	leakFits.Findings = []event.Finding{found("3.91MiB", "23", 156*event.MiB),
		{Kind: "leak", Memory: "GPU 0 memory", Step: 40, Bytes: event.MiB,
			Title: "possible leak in GPU 0 memory: 26KiB kept per step since step 1"},
		found("3.93MiB", "25", 157*event.MiB)}
	leakFits.Fit = &fit.Record{Attempts: []fit.Tried{
		{Number: 1, OutOf: event.WhereCgroup, ExitCode: 137},
		{Number: 2, OutOf: event.WhereCgroup, ExitCode: 137, Title: "smaller micro-batches"}},
		Impossible: "every remedy that keeps the results was tried"}

	hollow := End{Summary: summary(well, host), Job: torch}
	hollow.Steps = 0
	hollow.Fit = &fit.Record{Attempts: []fit.Tried{{Number: 1, OutOf: event.WhereGPU, Steps: 3},
		{Number: 2}},
		Hollow: "attempt 2 made no training step; attempt 1 made 3. The training did not happen"}

	stopped := End{Summary: summary(event.Verdict{ExitCode: 143, Signal: "SIGTERM"}, host), Job: torch}
	stopped.Run.HostMem = 700 * event.MiB
	stopped.Fit = &fit.Record{Attempts: []fit.Tried{
		{Number: 1, OutOf: event.WhereCgroup, ExitCode: 137},
		{Number: 2, OutOf: event.WhereCgroup, ExitCode: 137}, {Number: 3, ExitCode: 143}}}

	failed := End{Summary: summary(event.Verdict{ExitCode: 1}, host), Job: torch}
	return map[string]End{"healthy": healthy, "leak": leaking, "host": onHost, "card": onCard,
		"cgroup": capped, "rank": rank, "fits": fits, "fits-lightning": lightning, "cannot": cannot,
		"no-training": hollow, "cannot-leak": leakFits, "leak-fills": leakFills, "stopped": stopped,
		"failed": failed, "refused": refusedEarly, "taken-back": takenBack}
}

// TestScreens: the last screens as people read them. Run with -update to write them anew, then read
// them.
func TestScreens(t *testing.T) {
	for name, e := range ends() {
		var out strings.Builder
		RunEnd(&out, e)
		path := filepath.Join("testdata", "screens", name+".txt")
		if *update {
			if err := os.WriteFile(path, []byte(out.String()), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), out.String()); diff != "" {
			t.Errorf("%s:\n%s", name, diff)
		}
	}
}

// TestScreensFit: whatever there is to say, it is one screen, and it ends with what to type.
func TestScreensFit(t *testing.T) {
	raw := regexp.MustCompile(`\d{7,}`)
	for name, e := range ends() {
		for range 2 {
			var out strings.Builder
			RunEnd(&out, e)
			lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
			if len(lines) > 24 {
				t.Errorf("%s: %d lines\n%s", name, len(lines), out.String())
			}
			for _, line := range lines {
				if utf8.RuneCountInString(line) > 100 {
					t.Errorf("%s: %d columns: %s", name, utf8.RuneCountInString(line), line)
				}
			}
			text := strings.ReplaceAll(out.String(), e.Run.ID, "")
			if found := raw.FindString(text); found != "" {
				t.Errorf("%s: a raw count %s", name, found)
			}
			for _, internal := range []string{"gpu_mem", "micro_batch", "host_pressure",
				"cgroup memory"} {
				if strings.Contains(text, internal) {
					t.Errorf("%s: an internal name %s\n%s", name, internal, text)
				}
			}
			if !strings.Contains(lines[len(lines)-1], "memroom ") &&
				!strings.Contains(lines[len(lines)-2], "memroom ") {
				t.Errorf("%s does not end with what to type:\n%s", name, out.String())
			}
			// and once more with far too much of everything
			for i := range 30 {
				e.Findings = append(e.Findings, event.Finding{Kind: "spike", Step: int64(i),
					Title: fmt.Sprint(strings.Repeat("a very long finding ", 20), i)})
				e.Peaks.Devices = append(e.Peaks.Devices, event.DevicePeak{Name: "card",
					Total: event.GiB})
			}
		}
	}
}

// TestFitIsOfferedWhereItCanHelp: what filled memory before the first step decides, and a leak.
func TestFitIsOfferedWhereItCanHelp(t *testing.T) {
	e := End{Summary: event.Summary{Run: event.Run{ID: "r", Command: []string{"python", "train.py"}},
		Verdict: &event.Verdict{IsOOM: true, Where: event.WhereCgroup}},
		Job: remedy.Job{Framework: remedy.PyTorch}}
	for by, want := range map[remedy.ID]bool{remedy.StreamData: false, remedy.MicroBatch: true} {
		e.Findings = []event.Finding{{Kind: "filled", Remedies: []string{string(by)}}}
		if got := strings.Contains(strings.Join(e.next(true), "\n"), "--fit"); got != want {
			t.Errorf("%s: --fit offered: %v", by, got)
		}
	}
	e.Steps = 3
	e.Findings = []event.Finding{{Kind: "filled", Remedies: []string{string(remedy.StreamData)}}}
	if !strings.Contains(strings.Join(e.next(true), "\n"), "--fit") {
		t.Error("not offered after steps were made")
	}
	e.Steps, e.Peaks.HostLimit = 100, 1000*event.MiB
	for grown, want := range map[event.Bytes]bool{20 * event.MiB: true, 60 * event.MiB: false} {
		e.Findings = []event.Finding{{Kind: "leak", Severity: event.SeverityWarning, Step: 100,
			Bytes: grown, Memory: "host memory"}}
		if got := strings.Contains(strings.Join(e.next(true), "\n"), "--fit"); got != want {
			t.Errorf("%s of the limit leaked: --fit offered: %v", grown, got)
		}
	}
}

// TestNeighboursMatterOnFullCardsOnly: others on a card are no news while the card has room.
func TestNeighboursMatterOnFullCardsOnly(t *testing.T) {
	for name, shown := range map[string]bool{"healthy": false, "fits": false, "card": true} {
		var out strings.Builder
		e := ends()[name]
		RunEnd(&out, e)
		if strings.Contains(out.String(), "another process holds") != shown {
			t.Errorf("%s: the neighbour is shown: %v\n%s", name, !shown, out.String())
		}
	}
	quiet := ends()["healthy"]
	if quiet.Tells() {
		t.Error("a healthy run beside a neighbour has something to tell")
	}
	for _, name := range []string{"leak", "card", "fits", "no-training"} {
		if loud := ends()[name]; !loud.Tells() {
			t.Errorf("%s has nothing to tell", name)
		}
	}
}

// TestEditsAreInTheJobsOwnWords: nobody reads code of a framework that they do not use.
func TestEditsAreInTheJobsOwnWords(t *testing.T) {
	record := *ends()["fits"].Fit
	for name, c := range map[string]struct {
		job     remedy.Job
		command string
		want    string
		never   string
	}{
		"plain": {remedy.Job{Framework: remedy.PyTorch}, "python a.py", "y.chunk(4)",
			"Trainer("},
		"Lightning": {remedy.Job{Framework: remedy.PyTorch, Trainer: remedy.Lightning},
			"python a.py", "Trainer(accumulate_grad_batches=4)", ".chunk("},
		"LightningCLI": {remedy.Job{Framework: remedy.PyTorch, Trainer: remedy.Lightning},
			"python a.py fit --trainer.devices 1", "--trainer.accumulate_grad_batches=4",
			".chunk("},
		"Trainer": {remedy.Job{Framework: remedy.PyTorch, Trainer: remedy.Transformers},
			"python a.py", "TrainingArguments(per_device_train_batch_size=16", ".chunk("},
		"its arguments": {remedy.Job{Framework: remedy.PyTorch, Trainer: remedy.Transformers},
			"python a.py --per_device_train_batch_size 64",
			"--per_device_train_batch_size 16 --gradient_accumulation_steps 4",
			"TrainingArguments"},
		"Keras": {remedy.Job{Framework: remedy.TensorFlow, Trainer: remedy.Keras},
			"python a.py", "gradient_accumulation_steps=4", "torch"},
		"accelerate": {remedy.Job{Framework: remedy.PyTorch, Trainer: remedy.Accelerate},
			"accelerate launch a.py", "Accelerator(gradient_accumulation_steps=4)",
			".chunk("},
	} {
		var out strings.Builder
		Fit(&out, record, c.job, strings.Fields(c.command))
		if !strings.Contains(out.String(), c.want) || strings.Contains(out.String(), c.never) {
			t.Errorf("%s: want %q and not %q in\n%s", name, c.want, c.never, out.String())
		}
	}
}

// TestDoneWhereNothingActs: attempts in a framework that no remedy reaches are not shown as done.
func TestDoneWhereNothingActs(t *testing.T) {
	e := ends()["cannot"]
	if got := e.done(); len(got) != 2 {
		t.Fatalf("done %q, want two attempts", got)
	}
	for i := range e.Fit.Attempts[1:] {
		e.Fit.Attempts[i+1].Frameworks = []string{"jax"}
	}
	if got := e.done(); len(got) != 0 {
		t.Errorf("done %q, want nothing", got)
	}
}
