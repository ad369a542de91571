package explain

import (
	"slices"
	"strings"
	"testing"

	"memroom/diagnose"
	"memroom/event"
	"memroom/trace"
)

// TestCompositionOfAPeak: states against what passes, logits against the rest of what passes; at a
// tie the larger claim is not made.
func TestCompositionOfAPeak(t *testing.T) {
	type shares map[event.Category]event.Bytes
	for name, c := range map[string]struct {
		of     shares
		cause  Cause
		detail string
	}{
		"states": {shares{event.CategoryWeights: 30, event.CategoryOptimizer: 31,
			event.CategoryActivations: 60}, CauseModel, ""},
		"as much passes": {shares{event.CategoryGradients: 50, event.CategoryTemporary: 50},
			CauseBatch, ""},
		"logits":       {shares{event.CategoryLoss: 51, event.CategoryInput: 50}, CauseBatch, "logits"},
		"half logits":  {shares{event.CategoryLoss: 50, event.CategoryInput: 50}, CauseBatch, ""},
		"half unknown": {shares{event.CategoryActivations: 50, event.CategoryUnknown: 50}, CauseBatch, ""},
		"more unknown": {shares{event.CategoryActivations: 49, event.CategoryUnknown: 51}, CauseUnknown, ""},
		"nothing":      {shares{}, CauseUnknown, ""},
	} {
		s := &recorded{Snapshot: &diagnose.Snapshot{}}
		for category, bytes := range c.of {
			s.Categories = append(s.Categories, diagnose.CategoryShare{Category: category, Bytes: bytes})
		}
		if got := s.byComposition(); got.cause != c.cause || got.detail != c.detail {
			t.Errorf("%s: %s %q, want %s %q", name, got.cause, got.detail, c.cause, c.detail)
		}
	}
}

// TestDoubtsAreSaidOnce: what took back a claim is added to the evidence, unless it is there.
func TestDoubtsAreSaidOnce(t *testing.T) {
	j := because(CauseModel, "", 0.9, "the weights are %s", event.GiB)
	got := withDoubts(j, []string{"no", "the weights are 1GiB", "no"}).evidence
	if want := []string{"the weights are 1GiB", "no"}; !slices.Equal(got, want) {
		t.Errorf("evidence %q, want %q", got, want)
	}
}

// TestWhatShowsTraining: each sign alone is enough; none is none.
func TestWhatShowsTraining(t *testing.T) {
	for name, c := range map[string]struct {
		crash trace.Crash
		hints trace.Hints
		want  bool
	}{
		"nothing":         {want: false},
		"a step":          {crash: trace.Crash{Steps: 1}, want: true},
		"words of it":     {crash: trace.Crash{Signs: map[string]string{trace.SignTraining: "x"}}, want: true},
		"epochs":          {crash: trace.Crash{Signs: map[string]string{trace.SignEpochs: "x"}}, want: true},
		"its phase":       {hints: trace.Hints{Phase: "train"}, want: true},
		"another phase":   {hints: trace.Hints{Phase: "eval"}, want: false},
		"accumulation":    {hints: trace.Hints{Accumulate: 2}, want: true},
		"another's words": {crash: trace.Crash{Signs: map[string]string{trace.SignServing: "x"}}, want: false},
	} {
		if got := trains(&c.crash, &c.hints); got != c.want {
			t.Errorf("%s: trains %v, want %v", name, got, c.want)
		}
	}
}

// TestModelThatDiffersIsTold: there is a warning for a recording that the model of the allocator
// does not reproduce, and none for one that it does.
func TestModelThatDiffersIsTold(t *testing.T) {
	warned := func(second uint64) bool {
		rec := event.Recording{Version: "2.11"}
		for _, e := range []event.Entry{
			{Kind: event.KindSegmentAlloc, Addr: 1 << 30, Size: 2 << 20},
			{Kind: event.KindAlloc, Addr: 1 << 30, Size: 512},
			{Kind: event.KindAlloc, Addr: 1<<30 + second, Size: 512},
		} {
			rec.History.Append(&e)
		}
		blocks := []event.Block{{Size: 512, Requested: 512, State: event.BlockActive}}
		if second > 512 {
			blocks = append(blocks, event.Block{Size: int64(second) - 512, State: event.BlockFree})
		}
		blocks = append(blocks, event.Block{Size: 512, Requested: 512, State: event.BlockActive},
			event.Block{Size: 2<<20 - int64(second) - 512, State: event.BlockFree})
		at := uint64(1 << 30)
		for i := range blocks {
			blocks[i].Addr = at
			at += uint64(blocks[i].Size)
		}
		rec.Segments = []event.Segment{{Addr: 1 << 30, Size: 2 << 20, Small: true, Blocks: blocks}}
		a, replayed := diagnose.ReplaySnapshot(&trace.Snapshot{}, &rec)
		if replayed == nil {
			t.Fatal(a.Warnings)
		}
		return strings.Contains(strings.Join(a.Warnings, " "), "differs from the recording")
	}
	if !warned(4096) {
		t.Error("a block that lies elsewhere is not told")
	}
	if warned(512) {
		t.Error("a block where the allocator puts it is called different")
	}
}
