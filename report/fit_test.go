package report

import (
	"strings"
	"testing"

	"memroom/event"
	"memroom/fit"
	"memroom/remedy"
)

func TestFitTellsTheStory(t *testing.T) {
	const gib = event.Bytes(1) << 30
	record := fit.Record{Attempts: []fit.Tried{
		{Number: 1, OutOf: event.WhereGPU, ExitCode: 1, Allocated: 20 * gib, Requested: gib},
		{Number: 2, Changed: []string{"the batch in pieces, as many as needed"},
			Allocated: 11 * gib, Reserved: 12 * gib, StepMS: 210,
			Remedies: []fit.Remedy{{ID: remedy.MicroBatch, Level: remedy.LevelProcess},
				{ID: remedy.Checkpointing, Level: remedy.LevelProcess}},
			Said: []fit.Sentence{
				{Kind: "declined", Text: "Net: samples interact", ID: remedy.Checkpointing},
				{Kind: "applied", Text: "Net: batch of 32 in 4 pieces", ID: remedy.MicroBatch,
					Predicted: 10 * gib, Rows: 32, Pieces: 4, Twice: 0.25, Slower: 0.08,
					Equivalence: "expected"},
			}},
	}}
	var out strings.Builder
	Fit(&out, record, remedy.Job{}, nil)
	for _, want := range []string{
		"attempt 1    as it is: ran out of GPU memory (it held 20GiB and asked for 1GiB more)",
		"finished, peak 11GiB allocated, 12GiB reserved, 210 ms a step",
		"applied: Net: batch of 32 in 4 pieces [predicted 10GiB, measured 11GiB; 25 % of the forward " +
			"pass is recomputed; a step predicted to be 8 % slower",
		"declined: Net: samples interact",
		"the same on average",
		"to keep it   split the batch into 4 micro-batches and accumulate their gradients:",
		"zip(x.chunk(4), y.chunk(4))",
		"nothing is computed twice then: usually about 5 % slower",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in:\n%s", want, out.String())
		}
	}
	if strings.Contains(out.String(), "halve") {
		t.Errorf("a quarter is called a half:\n%s", out.String())
	}
	if strings.Contains(out.String(), "checkpoint(") {
		t.Errorf("an edit is shown for a remedy that was not applied:\n%s", out.String())
	}

	out.Reset()
	record.Attempts[0].StepMS, record.Attempts[0].Steps = 200, 5
	record.Attempts[1].Remedies = append(record.Attempts[1].Remedies,
		fit.Remedy{ID: remedy.PinMemory, Level: remedy.LevelProcess})
	record.Attempts[1].Said = append(record.Attempts[1].Said, record.Attempts[1].Said[1])
	record.Attempts[1].Said[1].Limit = 14 * gib
	Fit(&out, record, remedy.Job{}, nil)
	for _, want := range []string{"12GiB reserved of 14GiB, 210 ms a step (1.05 times as long as " +
		"without remedies)", "not needed: no pinned memory in data loaders"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in:\n%s", want, out.String())
		}
	}
	if n := strings.Count(out.String(), "applied: Net"); n != 1 {
		t.Errorf("what two remedies did together is told %d times:\n%s", n, out.String())
	}

	out.Reset()
	record.Attempts[1].OutOf = event.WhereGPU
	record.Impossible, record.Left = "cannot fit: needs at least 30GiB",
		[]fit.Left{{ID: remedy.MixedPrecision, Why: "changes the mathematics: --allow precision"}}
	Fit(&out, record, remedy.Job{}, nil)
	if !strings.Contains(out.String(), "cannot fit: needs at least 30GiB") ||
		!strings.Contains(out.String(), "not tried    train in mixed precision") {
		t.Errorf("the end is not told:\n%s", out.String())
	}
}

func TestStepTime(t *testing.T) {
	for ms, want := range map[float64]string{3.25: "3.25 ms", 210: "210 ms", 999.7: "1 s",
		22500: "22.5 s", 123456: "123 s", 1e7: "10000 s"} {
		if got := stepTime(ms); got != want {
			t.Errorf("%v ms is written %q, want %q", ms, got, want)
		}
	}
}

// TestFitEditsForOddPieces: what is to be kept is what was run, not a power of two near it.
func TestFitEditsForOddPieces(t *testing.T) {
	var out strings.Builder
	Fit(&out, fit.Record{Attempts: []fit.Tried{{Number: 1,
		Remedies: []fit.Remedy{{ID: remedy.MicroBatch, Level: remedy.LevelProcess}},
		Said:     []fit.Sentence{{Kind: "applied", ID: remedy.MicroBatch, Rows: 50, Pieces: 25}}}}},
		remedy.Job{}, nil)
	for _, want := range []string{"x.chunk(25)", "into 25 micro-batches"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in:\n%s", want, out.String())
		}
	}
}
