package driver

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"memroom/event"
	"memroom/fit"
	"memroom/probe"
	"memroom/remedy"
	"memroom/supervise"
)

// ranOut is an attempt that a full card ended.
func ranOut(number int) supervise.Attempt {
	return supervise.Attempt{Number: number,
		Launch: supervise.Launch{Args: []string{"python", "train.py"},
			Env: []string{"A=1", "MEMROOM_APPLY=old"}},
		Exit:    event.Exit{Code: 1},
		Verdict: event.Verdict{IsOOM: true, ExitCode: 1, Where: event.WhereGPU},
		OOMs: []supervise.ProbeOOM{{OOM: probe.OOM{Phase: "backward", Requested: 2 * event.GiB,
			Allocated: 20 * event.GiB, Reserved: 21 * event.GiB, Free: event.GiB}}}}
}

func finished(number int, steps int64) supervise.Attempt {
	return supervise.Attempt{Number: number, LastStep: steps, Launch: ranOut(1).Launch}
}

// applied reads what the probe of the next attempt would.
func applied(t *testing.T, d supervise.Decision) []remedy.ID {
	t.Helper()
	var given struct {
		Remedies []struct{ ID remedy.ID }
	}
	for _, pair := range d.Env {
		if path, ok := strings.CutPrefix(pair, "MEMROOM_APPLY="); ok {
			data, err := os.ReadFile(path)
			if err == nil {
				err = json.Unmarshal(data, &given)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	var found []remedy.ID
	for _, r := range given.Remedies {
		found = append(found, r.ID)
	}
	return found
}

func TestRelaunchAndRemember(t *testing.T) {
	dir := t.TempDir()
	memory := filepath.Join(dir, "home", "key.json")
	p := New(Spec{MaxAttempts: 4, Memory: memory}, dir, time.Now(), nil)
	d := p.After(ranOut(1))
	if !d.Again || !slices.Contains(d.Env, "A=1") || slices.Contains(d.Env, "MEMROOM_APPLY=old") ||
		!slices.Contains(applied(t, d), remedy.MicroBatch) {
		t.Fatalf("the decision is %+v", d)
	}
	if !strings.Contains(d.Note,
		"attempt 1 ran out of GPU memory. Attempt 2 begins, with smaller micro-batches") {
		t.Errorf("told %q", d.Note)
	}
	if _, err := os.Stat(memory); err == nil {
		t.Error("remembered before anything worked")
	}
	// Another process may judge the second attempt.
	p = New(Spec{MaxAttempts: 4, Memory: memory}, dir, time.Now(), nil)
	if d := p.After(finished(2, 9)); d.Again {
		t.Errorf("launched again after success: %+v", d)
	}
	record, err := ReadRecord(dir)
	if err != nil || len(record.Attempts) != 2 || record.Attempts[0].OutOf != event.WhereGPU ||
		len(record.Attempts[1].Remedies) == 0 || record.Attempts[1].Title == "" {
		t.Errorf("the record is %+v, %v", record, err)
	}
	kept, err := ReadMemory(memory)
	if err != nil || len(kept.Remedies) != len(record.Attempts[1].Remedies) || kept.Attempts != 2 {
		t.Errorf("remembered %+v, %v", kept, err)
	}
}

func TestNoFurtherAttempt(t *testing.T) {
	spent := ranOut(1)
	spent.Exit.InputSpent = "the pipe is gone"
	failed := supervise.Attempt{Number: 1, Exit: event.Exit{Code: 3},
		Verdict: event.Verdict{ExitCode: 3}}
	foreign := ranOut(1)
	foreign.Frameworks = []string{"jax"}
	leaking := ranOut(1) // 15 of 22 GiB in 60 steps
	leaking.LastStep = 60
	leaking.Findings = []event.Finding{{Kind: "leak", Severity: event.SeverityWarning, Step: 40,
		Bytes: 10 * event.GiB, Memory: "GPU 0 memory"}}
	for name, c := range map[string]struct {
		attempt supervise.Attempt
		most    int
		why     string
	}{
		"out of reach":       {foreign, 4, "jax.checkpoint"},
		"a leak":             {leaking, 4, "No remedy stops a leak"},
		"its input is gone":  {spent, 4, "not launched again: the pipe is gone"},
		"no attempt is left": {ranOut(1), 1, "--max-attempts"},
		"its own failure":    {failed, 4, ""},
	} {
		dir := t.TempDir()
		d := New(Spec{MaxAttempts: c.most}, dir, time.Now(), nil).After(c.attempt)
		record, err := ReadRecord(dir)
		if d.Again || err != nil || !strings.Contains(record.Impossible, c.why) ||
			(c.why == "") != (record.Impossible == "") {
			t.Errorf("%s: %+v, record %+v, %v", name, d, record, err)
		}
	}
}

// TestSmallLeaks: one that is not why memory ran out costs no attempt. With remedies in effect a
// fifth of the limit ends them.
func TestSmallLeaks(t *testing.T) {
	leak := event.Finding{Kind: "leak", Severity: event.SeverityWarning, Step: 40,
		Bytes: 4 * event.GiB, Memory: "GPU 0 memory"}
	host, withdrawn := leak, leak
	host.Memory, withdrawn.Severity = "host memory", event.SeverityInfo
	for name, c := range map[string]struct {
		found event.Finding
		steps int64 // of 22 GiB, 0.1 GiB are kept in each
		again []bool
	}{
		"a quarter":          {leak, 55, []bool{true, false}},
		"little":             {leak, 20, []bool{true, true}},
		"of another memory":  {host, 200, []bool{true, true}},
		"one that has ended": {withdrawn, 200, []bool{true, true}},
	} {
		dir := t.TempDir()
		p := New(Spec{MaxAttempts: 4}, dir, time.Now(), nil)
		for i, want := range c.again {
			a := ranOut(i + 1)
			a.LastStep, a.Findings = c.steps, []event.Finding{c.found}
			a.Said = []probe.Said{{Kind: "applied", ID: "micro_batch", Text: "Net: 2 pieces"}}
			if d := p.After(a); d.Again != want {
				record, _ := ReadRecord(dir)
				t.Errorf("%s, attempt %d: again %v: %s", name, i+1, d.Again, record.Impossible)
			}
		}
	}
}

func TestEmptySuccessIsNone(t *testing.T) {
	dir := t.TempDir()
	memory := filepath.Join(dir, "key.json")
	p := New(Spec{MaxAttempts: 4, Memory: memory}, dir, time.Now(), nil)
	first := ranOut(1)
	first.LastStep = 5
	p.After(first)
	p.After(finished(2, 0))
	if record, _ := ReadRecord(dir); record.Hollow == "" {
		t.Errorf("an attempt without a step is a success: %+v", record)
	}
	if _, err := os.Stat(memory); err == nil {
		t.Error("it is remembered as what works")
	}
}

// TestRetreat: a failure of a remedy itself is followed by an attempt without remedies; one of the
// program's own is not.
func TestRetreat(t *testing.T) {
	for kind, again := range map[string]bool{"CheckpointError": true, "ValueError": false} {
		dir := t.TempDir()
		p := New(Spec{MaxAttempts: 3}, dir, time.Now(), nil)
		p.After(ranOut(1))
		failed := supervise.Attempt{Number: 2, Launch: ranOut(1).Launch, Exit: event.Exit{Code: 1},
			Verdict: event.Verdict{ExitCode: 1}, Deaths: []supervise.Death{{Type: kind}}}
		d := p.After(failed)
		if d.Again != again {
			t.Errorf("%s: %+v", kind, d)
		}
		if given := applied(t, d); again && (slices.Contains(given, remedy.MicroBatch) ||
			!slices.Contains(given, remedy.ActivationOffload)) {
			t.Errorf("%s: launched with %v", kind, given)
		}
		failed.Number = 3
		if d := p.After(failed); d.Again {
			t.Errorf("%s: more attempts than allowed", kind)
		}
	}
}

// TestEachAttemptIsRewrittenFromTheCommand: a factor is not applied on top of the one before.
func TestEachAttemptIsRewrittenFromTheCommand(t *testing.T) {
	a := ranOut(2)
	a.Launch.Command = []string{"python", "train.py", "--bs", "32"}
	a.Launch.Args = []string{"python", "train.py", "--bs", "16", "--accum", "2"}
	p := New(Spec{MaxAttempts: 4, Map: "micro_batch=--bs,accumulate=--accum"}, t.TempDir(),
		time.Now(), nil)
	d := p.After(a)
	if got := strings.Join(d.Args, " "); got != "python train.py --bs 16 --accum 2" {
		t.Errorf("the next attempt runs %q", got)
	}
}

// TestNewestWholeCheckpoint: what an earlier run wrote, what is empty and what is still being
// written do not count.
func TestNewestWholeCheckpoint(t *testing.T) {
	dir := t.TempDir()
	began := time.Now().Add(-time.Hour)
	write := func(name, content string, age time.Duration) {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		when := time.Now().Add(-age)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, when, when); err != nil {
			t.Fatal(err)
		}
		_ = os.Chtimes(filepath.Dir(path), when, when)
	}
	write("checkpoint-1/trainer_state.json", "{}", 30*time.Minute)
	write("checkpoint-2/trainer_state.json", "{}", 20*time.Minute)
	write("checkpoint-3/optimizer.pt", "half", 10*time.Minute)
	write("old.pt", "x", 2*time.Hour)
	write("empty.pt", "", time.Minute)
	p := &Policy{spec: Spec{ResumeWith: "--resume {latest}"}, began: began}
	args, from := p.resume(dir, []string{"train.py"})
	if filepath.Base(from) != "checkpoint-2" && filepath.Base(from) != "optimizer.pt" {
		t.Errorf("goes on from %q", from)
	}
	if len(args) != 3 || args[1] != "--resume" || args[2] != from {
		t.Errorf("runs %q", args)
	}
	late := &Policy{spec: p.spec, began: time.Now()}
	if args, from := late.resume(dir, []string{"train.py"}); from != "" || len(args) != 1 {
		t.Errorf("goes on from %q, which another run wrote", from)
	}
	for name, want := range map[string]bool{"checkpoint-2": true, "checkpoint-3": false,
		"empty.pt": false,
		"old.pt":   true, "gone": false} {
		if got := complete(filepath.Join(dir, name)); got != want {
			t.Errorf("%s is whole: %v", name, got)
		}
	}
}

// TestWaitsForTheCard: until it is as empty as before, or nothing moves any more.
func TestWaitsForTheCard(t *testing.T) {
	readings := []event.Bytes{event.GiB, 9 * event.GiB, 5 * event.GiB, event.GiB + 10*event.MiB,
		event.GiB}
	asked := 0
	p := New(Spec{Patience: time.Minute}, t.TempDir(), time.Now(), func() map[string]event.Bytes {
		asked++
		return map[string]event.Bytes{"card": readings[min(asked, len(readings))-1]}
	})
	p.waitForCards()
	if asked != 4 {
		t.Errorf("the card was read %d times, want until it is back", asked)
	}
	asked = 0
	crowded := New(Spec{Patience: time.Hour}, t.TempDir(), time.Now(),
		func() map[string]event.Bytes {
			asked++
			return map[string]event.Bytes{"card": min(event.Bytes(asked), 2) * 20 * event.GiB}
		})
	crowded.waitForCards() // another job stays: it ends all the same
	if asked < 5 {
		t.Errorf("given up after %d readings", asked)
	}
}

// TestFacts: the wall is what the allocator met, not the card's size.
func TestFacts(t *testing.T) {
	a := ranOut(1)
	p := New(Spec{}, t.TempDir(), time.Now(), nil)
	tried := p.tried(a)
	if f := p.facts(a, tried); f.Limit != 22*event.GiB || f.Phase != "backward" ||
		f.Requested != 2*event.GiB ||
		!f.UsesGPU || f.Idle {
		t.Errorf("%+v", f)
	}
	a.OOMs[0].Limit = 10 * event.GiB
	if f := p.facts(a, tried); f.Limit != 10*event.GiB {
		t.Errorf("a fraction of the allocator is no limit: %s", f.Limit)
	}
	tried.Said = []fit.Sentence{{Limit: 8 * event.GiB}}
	if f := p.facts(a, tried); f.Limit != 8*event.GiB {
		t.Errorf("what was said inside does not count: %s", f.Limit)
	}
	a.Verdict.Where, a.Peaks.HostLimit, a.Libraries = event.WhereCgroup, 3*event.GiB, event.GiB
	if f := p.facts(a, p.tried(a)); f.Limit != 3*event.GiB || f.Libraries != event.GiB {
		t.Errorf("on the host: %+v", f)
	}
	failed := supervise.Attempt{Number: 1, Exit: event.Exit{Code: 1},
		Peaks:  event.Peaks{Unreclaimable: event.GiB, HostLimit: 2 * event.GiB},
		Deaths: []supervise.Death{{Type: "ValueError"}}}
	if t2 := p.tried(failed); t2.Host != event.GiB ||
		t2.HostLimit != 2*event.GiB || !strings.Contains(t2.Failed, "ValueError") {
		t.Errorf("%+v", t2)
	}
	failed.Exit.Code = 0
	if t2 := p.tried(failed); t2.Failed != "" {
		t.Errorf("an attempt that got through, and a process that died late: %+v", t2)
	}
}
