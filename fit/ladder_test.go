package fit

import (
	"slices"
	"strings"
	"testing"

	"memroom/event"
	"memroom/remedy"
)

// of returns the remedy of that id and level in a stage.
func of(t *testing.T, remedies []Remedy, id remedy.ID) Remedy {
	t.Helper()
	at := slices.IndexFunc(remedies, func(r Remedy) bool {
		return r.ID == id && r.Level != remedy.LevelArgs
	})
	if at < 0 {
		t.Fatalf("%s is missing in %v", id, ids(remedies))
	}
	return remedies[at]
}

// TestFragmentedOnlyWithRoom: free blocks in the cache explain a failure only where the allocation
// would have fitted with a tenth to spare.
func TestFragmentedOnlyWithRoom(t *testing.T) {
	for name, c := range map[string]struct {
		allocated, reserved, requested event.Bytes
		want                           bool
	}{
		"nine tenths":             {17, 19, 1, true},
		"more than nine tenths":   {18, 20, 1, false},
		"cache is too small":      {10, 12, 3, false},
		"cache is just enough":    {10, 13, 3, true},
		"nothing was asked for":   {10, 13, 0, false},
		"nothing is in the cache": {10, 10, 1, false},
	} {
		f := Facts{Where: event.WhereGPU, Allocated: c.allocated * gib, Reserved: c.reserved * gib,
			Requested: c.requested * gib, Limit: 20 * gib}
		if got := !of(t, Ladder(f, Options{})[0].Remedies,
			remedy.MicroBatch).Params.Failed; got != c.want {
			t.Errorf("%s: taken as fragmented: %v, want %v", name, got, c.want)
		}
	}
}

// TestEachStagePlansWithClearlyLess: a plan that ran out was too bold, so the next one leaves at
// least a quarter of the room more.
func TestEachStagePlansWithClearlyLess(t *testing.T) {
	before := 1.0
	for i, stage := range Ladder(Facts{Where: event.WhereGPU}, Options{}) {
		for _, id := range []remedy.ID{remedy.MicroBatch, remedy.Checkpointing} {
			p := of(t, stage.Remedies, id).Params
			factor := p.Factor
			if i == 0 && factor != 0 {
				t.Errorf("the first stage leaves a share of %v unused", 1-factor)
			}
			if i > 0 && (factor > before-0.2 || factor < before/2) {
				t.Errorf("stage %d plans %s with a share of %v after %v", i+1, id, factor, before)
			}
			if !p.Failed {
				t.Errorf("stage %d forgets that the whole batch does not fit", i+1)
			}
		}
		if f := of(t, stage.Remedies, remedy.MicroBatch).Params.Factor; f > 0 {
			before = f
		}
	}
	if before > 0.6 {
		t.Errorf("the last stage still plans with %v of the room", before)
	}
}

// TestStagesAdd: each stage turns up what the one before did in part.
func TestStagesAdd(t *testing.T) {
	stages := Ladder(Facts{Where: event.WhereGPU}, Options{})
	first, second, third := stages[0].Remedies, stages[1].Remedies, stages[2].Remedies
	if !of(t, first, remedy.OptimizerOffload).Params.Measured ||
		of(t, second, remedy.OptimizerOffload).Params.Measured {
		t.Error("optimizer state is offloaded as needed first, as a whole second")
	}
	if !of(t, first, remedy.ActivationOffload).Params.Measured ||
		of(t, third, remedy.ActivationOffload).Params.Measured {
		t.Error("activations are offloaded as needed first, as a whole third")
	}
	if !of(t, first, remedy.OptimizerFused).Params.Slices {
		t.Error("the step in slices costs nothing and comes first")
	}
	of(t, second, remedy.SetToNone)
	of(t, first, remedy.ChunkedLoss)
}

// TestFactorFollowsThePhase: in the backward pass the activations are there already, so less is
// missing.
func TestFactorFollowsThePhase(t *testing.T) {
	m := Mapping{MicroBatch: "--bs", Accumulate: "--accum"}.In([]string{"x", "--bs", "32"})
	for phase, want := range map[string]int{"forward": 4, "": 4, "backward": 2, "optimizer": 2} {
		plan := Choose(Facts{Where: event.WhereGPU, Phase: phase}, Options{Mapping: m})
		if plan.Factor != want {
			t.Errorf("%q: the micro-batch is divided by %d, want %d", phase, plan.Factor, want)
		}
		if of(t, plan.Remedies, remedy.MicroBatch).Params.Failed {
			t.Errorf("%q: arguments may be enough, and the batch is split all the same", phase)
		}
	}
	if plan := Choose(Facts{Where: event.WhereGPU}, Options{}); plan.Factor != 1 {
		t.Errorf("without a mapping the factor is %d", plan.Factor)
	}
}

// TestRanOutLater: after several steps, the steps fit as they are and memory ran out later. Memory
// that grows from the start, or ran out elsewhere, is no sign of that.
func TestRanOutLater(t *testing.T) {
	card := Facts{Where: event.WhereGPU, Steps: 40, Phase: "forward", Limit: event.GiB}
	for name, c := range map[string]struct {
		change func(*Facts)
		want   bool
	}{
		"forward":         {func(f *Facts) {}, true},
		"backward":        {func(f *Facts) { f.Phase = "backward" }, true},
		"the first steps": {func(f *Facts) { f.Steps = 2 }, false},
		"evaluation":      {func(f *Facts) { f.Phase = "eval" }, false},
		"the optimizer":   {func(f *Facts) { f.Phase = "optimizer" }, false},
		"a leak":          {func(f *Facts) { f.Leaked = event.MiB }, false},
		"fragmented": {func(f *Facts) {
			f.Requested, f.Allocated, f.Reserved = event.MiB, event.GiB/2, event.GiB
		}, false},
		"with remedies": {func(f *Facts) {
			f.On = []Remedy{inProcess(remedy.ChunkedLoss, remedy.Params{})}
		}, false},
	} {
		f := card
		c.change(&f)
		got := of(t, Ladder(f, Options{})[0].Remedies, remedy.MicroBatch).Params.Later
		if got != c.want {
			t.Errorf("%s: later is %v", name, got)
		}
	}
}

// TestOnlyMoreIsFresh: a stage is another attempt only if it does more than what is on.
func TestOnlyMoreIsFresh(t *testing.T) {
	process := func(id remedy.ID, p remedy.Params) Remedy { return inProcess(id, p) }
	for name, c := range map[string]struct {
		on, wanted Remedy
		fresh      bool
	}{
		"fewer workers": {atMostWorkers(1), atMostWorkers(0), true},
		"more workers":  {atMostWorkers(0), atMostWorkers(1), false},
		"the same":      {atMostWorkers(1), atMostWorkers(1), false},
		"less room": {process(remedy.MicroBatch, remedy.Params{}),
			process(remedy.MicroBatch, remedy.Params{Factor: 0.75}), true},
		"more room": {process(remedy.MicroBatch, remedy.Params{Factor: 0.5}),
			process(remedy.MicroBatch, remedy.Params{Factor: 0.75}), false},
		"a fixed number": {process(remedy.MicroBatch, remedy.Params{Factor: 0.5}),
			process(remedy.MicroBatch, remedy.Params{Pieces: 16}), true},
		"back to measure": {process(remedy.MicroBatch, remedy.Params{Pieces: 16}),
			process(remedy.MicroBatch, remedy.Params{Factor: 0.5}), false},
		"all of it": {process(remedy.ActivationOffload, remedy.Params{Measured: true}),
			process(remedy.ActivationOffload, remedy.Params{}), true},
		"part of it": {process(remedy.OptimizerOffload, remedy.Params{}),
			process(remedy.OptimizerOffload, remedy.Params{Measured: true}), false},
		"another level": {Remedy{ID: remedy.MicroBatch, Level: remedy.LevelArgs,
			Params: remedy.Params{Factor: 4}}, process(remedy.MicroBatch, remedy.Params{}), true},
		"another remedy": {process(remedy.SetToNone, remedy.Params{}),
			process(remedy.EmptyCache, remedy.Params{}), true},
	} {
		if got := len(notYet([]Remedy{c.wanted}, []Remedy{c.on})) == 1; got != c.fresh {
			t.Errorf("%s: new is %v, want %v", name, got, c.fresh)
		}
	}
}

// TestHostStages: batches trained on the host are split; data that only pass through it are not.
func TestHostStages(t *testing.T) {
	for name, c := range map[string]struct {
		facts  Facts
		splits bool
	}{
		"on a CPU":      {Facts{Where: event.WhereHost, Limit: gib}, true},
		"in a cgroup":   {Facts{Where: event.WhereCgroup, Limit: gib}, true},
		"beside a card": {Facts{Where: event.WhereHost, Limit: gib, UsesGPU: true}, false},
		"in /dev/shm":   {Facts{Where: event.WhereShm, Limit: gib}, false},
	} {
		stages := Ladder(c.facts, Options{})
		if got := slices.Contains(ids(stages[0].Remedies), remedy.MicroBatch); got != c.splits {
			t.Errorf("%s: the batch is split: %v", name, got)
		}
		one, none := of(t, stages[0].Remedies, remedy.DataLoaderWorkers), of(t, stages[1].Remedies,
			remedy.DataLoaderWorkers)
		if *one.Params.Workers != 1 || *none.Params.Workers != 0 {
			t.Errorf("%s: workers %d, then %d", name, *one.Params.Workers, *none.Params.Workers)
		}
		if c.splits && of(t, stages[0].Remedies, remedy.MicroBatch).Params.Limit != gib {
			t.Errorf("%s: the probe is not told the limit", name)
		}
	}
}

// TestForcedStaysAsItIs: a value that the user fixed is not raised.
func TestForcedStaysAsItIs(t *testing.T) {
	forced, err := Force("micro_batch=8")
	if err != nil {
		t.Fatal(err)
	}
	for _, stage := range Ladder(Facts{Where: event.WhereGPU}, Options{Forced: []Remedy{forced}}) {
		if slices.Contains(ids(stage.Remedies), remedy.MicroBatch) {
			t.Errorf("%s changes the forced micro-batch", stage.Why)
		}
	}
}

// TestAdviceFits: consent is asked only for what could help.
func TestAdviceFits(t *testing.T) {
	consents := func(f Facts) (kinds []string) {
		for _, l := range Choose(f, Options{}).Left {
			r, _ := remedy.Find(l.ID)
			if !slices.Contains(kinds, r.Consent) {
				kinds = append(kinds, r.Consent)
			}
		}
		slices.Sort(kinds)
		return kinds
	}
	for name, c := range map[string]struct {
		facts Facts
		want  string
	}{
		"card":                      {Facts{Where: event.WhereGPU}, "precision quantize"},
		"unknown":                   {Facts{Where: event.WhereUnknown}, "precision quantize"},
		"CPU":                       {Facts{Where: event.WhereHost}, ""},
		"weights on their way":      {Facts{Where: event.WhereHost, UsesGPU: true}, "quantize"},
		"nothing is trained":        {Facts{Where: event.WhereGPU, Idle: true}, ""},
		"shared memory of a loader": {Facts{Where: event.WhereShm}, ""},
	} {
		if got := strings.Join(consents(c.facts), " "); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	if got := strings.Join(Consents(), " "); got != "precision quantize" {
		t.Errorf("the kinds that can be allowed are %q", got)
	}
}

// TestTensorFlow: what is tried of a program in TensorFlow is what reaches into it; a batch that
// stayed whole is not tried in more pieces.
func TestTensorFlow(t *testing.T) {
	for name, c := range map[string]struct {
		facts Facts
		want  string
	}{
		"CPU": {Facts{Where: event.WhereCgroup},
			"tf_data_budget micro_batch checkpointing, micro_batch, micro_batch"},
		"stayed whole": {Facts{Where: event.WhereHost, Whole: "rows are mixed"},
			"tf_data_budget micro_batch checkpointing"},
		"data for a card": {Facts{Where: event.WhereHost, UsesGPU: true}, "tf_data_budget"},
		"card":            {Facts{Where: event.WhereGPU}, "micro_batch checkpointing, micro_batch, micro_batch"},
	} {
		c.facts.Framework = remedy.TensorFlow
		var stages []string
		for _, stage := range Ladder(c.facts, Options{}) {
			var names []string
			for _, r := range stage.Remedies {
				names = append(names, string(r.ID))
			}
			stages = append(stages, strings.Join(names, " "))
		}
		if got := strings.Join(stages, ", "); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// TestReasons: the end names what is missing and what would help, with the figures.
func TestReasons(t *testing.T) {
	const none = "no batch to split"
	for name, c := range map[string]struct {
		facts     Facts
		want, not string
	}{
		"kernel matrix, nothing to act on": {Facts{Where: event.WhereGPU, Idle: true,
			Requested: 6 * gib,
			Limit:     20 * gib}, "one tensor of 6GiB", none},
		"just under a quarter": {Facts{Where: event.WhereGPU, Idle: true, Requested: 4 * gib,
			Limit: 20 * gib}, none, "one tensor"},
		"just a quarter": {Facts{Where: event.WhereGPU, Idle: true, Requested: 5 * gib,
			Limit: 20 * gib}, "inducing points", none},
		"data on the host": {Facts{Where: event.WhereCgroup, Idle: true, Limit: gib},
			"load less data at once", "Python and its libraries"},
		"functions instead of modules": {Facts{Where: event.WhereCgroup, Idle: true, Limit: gib,
			Framework: remedy.PyTorch}, "torch.utils.checkpoint", none},
		"forward() called by name, on a card": {Facts{Where: event.WhereGPU, Idle: true, Limit: gib,
			Framework: remedy.PyTorch}, "module(x) instead", none},
		"results kept on a card": {Facts{Where: event.WhereGPU, Idle: true, Limit: gib,
			Framework: remedy.PyTorch}, "torch.no_grad", "higher limit"},
		"loader": {Facts{Where: event.WhereShm, Idle: true, Limit: gib}, "larger /dev/shm",
			"torch.no_grad"},
		"card": {Facts{Where: event.WhereGPU, Idle: true, Limit: gib}, "torch.no_grad",
			"load less"},
		"libraries": {Facts{Where: event.WhereCgroup, Idle: true, Limit: 4 * gib,
			Libraries: 3 * gib},
			"Python and its libraries take 3GiB of the 4GiB", none},
		"libraries, a third": {Facts{Where: event.WhereHost, Idle: true, Limit: 3 * gib,
			Libraries: gib},
			"leaves 2GiB for data, weights", "makes them smaller"},
		"libraries, little": {Facts{Where: event.WhereHost, Idle: true, Limit: 4 * gib,
			Libraries: gib},
			none, "Python and its libraries"},
		"the card's limit is no matter of libraries": {Facts{Where: event.WhereGPU, Idle: true,
			Limit: 3 * gib, Libraries: 2 * gib}, none, "Python and its libraries"},
	} {
		got := Choose(c.facts, Options{}).Impossible
		if !strings.Contains(got, c.want) || strings.Contains(got, c.not) {
			t.Errorf("%s: %q, want %q and not %q", name, got, c.want, c.not)
		}
		if strings.Count(got, "Python and its libraries") > 1 {
			t.Errorf("%s says it twice: %q", name, got)
		}
	}
	all := Facts{Where: event.WhereGPU, Limit: 20 * gib, Requested: 8 * gib,
		Whole: "samples in the batch interact"}
	for range 3 {
		all.On = Choose(all, Options{}).Remedies
	}
	got := Choose(all, Options{}).Impossible
	for _, want := range []string{"samples in the batch interact", "one tensor of 8GiB",
		"in chunks"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing in %q", want, got)
		}
	}
	for name, c := range map[string]struct {
		needs, limit event.Bytes
		want         string
		kept         event.Bytes
	}{
		"more than there is": {3 * gib, 2 * gib, "it needs at least 3GiB, and 2GiB are there; why",
			3 * gib},
		"as much":         {2 * gib, 2 * gib, "why", 0},
		"limit not known": {3 * gib, 0, "it needs at least 3GiB; why", 3 * gib},
		"not known":       {0, 2 * gib, "why", 0},
	} {
		if text, kept := CannotFit("why", c.needs, c.limit); text != c.want || kept != c.kept {
			t.Errorf("%s: %q, %s", name, text, kept)
		}
	}
	if text, needs := (Facts{Allocated: 3 * gib, Requested: gib,
		Limit: 2 * gib}).GivenUp(4); needs != 4*gib ||
		!strings.Contains(text, "4 attempts were made") {
		t.Errorf("given up: %q, %s", text, needs)
	}
	for phase, want := range map[string]string{
		"":          "no more. In the last one a request for 1GiB failed with 3GiB held",
		"backward":  "3GiB held (backward)",
		"optimizer": "(optimizer): weights, gradients and optimizer state are there at once",
	} {
		facts := Facts{Phase: phase, Allocated: 3 * gib, Requested: gib, Limit: 2 * gib}
		if text, _ := facts.GivenUp(4); !strings.Contains(text, want) {
			t.Errorf("given up in %q: %q", phase, text)
		}
	}
	if text, _ := (Facts{Limit: gib}).GivenUp(2); strings.Contains(text, "In the last one") {
		t.Errorf("given up without figures: %q", text)
	}
}

func TestTitles(t *testing.T) {
	for want, f := range map[string]Facts{
		"smaller micro-batches, activation checkpointing, offload of activations and offload of " +
			"optimizer state": {Where: event.WhereGPU},
		"at most one data loader worker, smaller micro-batches and activation checkpointing": {Where: event.WhereHost},
		"at most one data loader worker": {Where: event.WhereHost, UsesGPU: true},
	} {
		if got := Choose(f, Options{}).Title; got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	for want, r := range map[string]Remedy{
		"micro-batches of 8 samples": inProcess(remedy.MicroBatch,
			remedy.Params{Size: 8}),
		"the batch split into 16 micro-batches": inProcess(remedy.MicroBatch,
			remedy.Params{Pieces: 16}),
		"no data loader workers":        atMostWorkers(0),
		"at most 3 data loader workers": atMostWorkers(3),
		"autocast to bf16":              inProcess(remedy.MixedPrecision, remedy.Params{}),
		"autocast to fp16": inProcess(remedy.MixedPrecision,
			remedy.Params{DType: "fp16"}),
		"a fused optimizer": inProcess(remedy.OptimizerFused, remedy.Params{}),
		"the optimizer step in slices": inProcess(remedy.OptimizerFused,
			remedy.Params{Slices: true}),
		"activations offloaded to host memory": inProcess(remedy.ActivationOffload,
			remedy.Params{}),
		"quantize 4bit": inProcess(remedy.Quantize4Bit, remedy.Params{}),
		"a 4 times smaller micro-batch, by the command's own arguments": {ID: remedy.MicroBatch,
			Level: remedy.LevelArgs, Params: remedy.Params{Factor: 4}},
	} {
		if got := r.Words(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestRecordTells: what an attempt's record means.
func TestRecordTells(t *testing.T) {
	batch := inProcess(remedy.MicroBatch, remedy.Params{})
	said := func(id remedy.ID, kind, text string) Sentence {
		return Sentence{ID: id, Kind: kind,
			Text: text}
	}
	if idle := (Tried{Remedies: []Remedy{batch}}); !idle.Idle() {
		t.Error("a remedy that met nothing is not idle")
	}
	if met := (Tried{Remedies: []Remedy{batch}, Said: []Sentence{said(remedy.MicroBatch, "declined",
		"x")}}); met.Idle() ||
		met.Whole() != "x" {
		t.Errorf("a remedy that declined: idle %v, whole %q", met.Idle(), met.Whole())
	}
	if none := (Tried{Remedies: []Remedy{{ID: remedy.ExpandableSegments,
		Level: remedy.LevelEnv}}}); none.Idle() {
		t.Error("settings alone cannot be idle")
	}
	split := Tried{Said: []Sentence{said(remedy.MicroBatch, "declined", "x"),
		said(remedy.MicroBatch, "applied", "y"),
		said(remedy.Checkpointing, "declined", "z")}}
	if split.Whole() != "" {
		t.Errorf("one model's batch was split, and it is called whole: %q", split.Whole())
	}
	for name, c := range map[string]struct {
		record Record
		hollow bool
	}{
		"no step after some": {Record{Attempts: []Tried{{Number: 1, Steps: 3}, {Number: 2}}},
			true},
		"two attempts later": {Record{Attempts: []Tried{{Number: 1, Steps: 3}, {Number: 2},
			{Number: 3}}}, true},
		"steps as before": {Record{Attempts: []Tried{{Number: 1, Steps: 3},
			{Number: 2, Steps: 9}}}, false},
		"none was ever seen": {Record{Attempts: []Tried{{Number: 1}, {Number: 2}}}, false},
		"nothing left to train": {Record{Attempts: []Tried{{Number: 1, Steps: 3},
			{Number: 2, Resumed: "c"}}}, false},
		"empty": {Record{}, false},
	} {
		if got := c.record.NoTraining() != ""; got != c.hollow {
			t.Errorf("%s: %q", name, c.record.NoTraining())
		}
	}
	for want, tried := range map[string]Tried{"ran out of GPU memory": {OutOf: event.WhereGPU,
		Failed: "x"},
		"ran out of host memory": {OutOf: event.WhereCgroup},
		"failed with x":          {Failed: "x", ExitCode: 1},
		"ended with exit code 3": {ExitCode: 3}} {
		if got := tried.Ending(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	weak := Tried{Remedies: []Remedy{batch}, Said: []Sentence{{Kind: "applied",
		Equivalence: "expected"}}}
	if weak.Equivalence() != remedy.Expected ||
		(Tried{Remedies: []Remedy{batch}}).Equivalence() != remedy.Exact {
		t.Error("the weakest of what was said does not count")
	}
	declined := Tried{Remedies: []Remedy{batch}, Said: []Sentence{{Kind: "declined",
		Equivalence: "expected"}}}
	if declined.Equivalence() != remedy.Exact {
		t.Error("what was not applied weakens the result")
	}
	precision := Tried{Remedies: []Remedy{inProcess(remedy.MixedPrecision, remedy.Params{})}}
	if precision.Equivalence() != remedy.Changes {
		t.Error("autocast keeps the mathematics")
	}
	for name, c := range map[string]struct {
		record       Record
		tells, cured bool
	}{
		"one attempt, nothing done": {Record{Attempts: []Tried{{}}}, false, false},
		"demanded": {Record{Attempts: []Tried{{Remedies: []Remedy{batch}}}}, true,
			false},
		"remembered": {Record{Remembered: true,
			Attempts: []Tried{{Remedies: []Remedy{batch}}}}, true, true},
		"two": {Record{Attempts: []Tried{{OutOf: event.WhereGPU}, {}}}, true,
			true},
		"refused": {Record{Impossible: "x",
			Attempts: []Tried{{OutOf: event.WhereGPU}}}, true, true},
	} {
		if c.record.Tells() != c.tells || c.record.Cured() != c.cured {
			t.Errorf("%s: tells %v, cured %v", name, c.record.Tells(), c.record.Cured())
		}
	}
}
