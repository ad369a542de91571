package remedy

import (
	"slices"
	"strings"
	"testing"

	"memroom/event"
)

// TestReleases: two numbers are compared; a text that is no release is never at least another.
func TestReleases(t *testing.T) {
	for version, want := range map[string]bool{"2.3": true, "2.3.1": true, "2.10": true, "3.0": true,
		"2.2": false, "1.13": false, "2": false, "": false, "2.x": false, "x.9": false, "9.x": false,
		"2.3.x": true} {
		if got := atLeast(version, "2.3"); got != want {
			t.Errorf("%q: %v", version, got)
		}
	}
}

// TestAllocatorStringsAreCut: at commas outside of brackets.
func TestAllocatorStringsAreCut(t *testing.T) {
	for conf, want := range map[string][]string{
		"a:1":                   {"a:1"},
		"a:1,b:2,c:3":           {"a:1", "b:2", "c:3"},
		"a:[256:1,512:2],b:3":   {"a:[256:1,512:2]", "b:3"},
		"a:1,b:[x,y,z],c:[q,r]": {"a:1", "b:[x,y,z]", "c:[q,r]"},
	} {
		if got := splitConf(conf); !slices.Equal(got, want) {
			t.Errorf("%s: %q", conf, got)
		}
	}
}

// TestTimelinesAreScaled: blocks of a category change their size or go with their release, marks
// stay before the same operation, and nothing else changes.
func TestTimelinesAreScaled(t *testing.T) {
	t1 := &event.Timeline{Tags: []event.Tag{{}, {Category: event.CategoryGradients},
		{Category: event.CategoryWeights}},
		Ops: []event.Op{{Kind: event.OpAlloc, ID: 1, Size: 100, Tag: 1},
			{Kind: event.OpAlloc, ID: 2, Size: 100, Tag: 2}, {Kind: event.OpFree, ID: 1, Tag: 9},
			{Kind: event.OpEmptyCache, ID: 1}, {Kind: event.OpAlloc, ID: 3, Size: 7, Tag: 9}},
		Marks: []event.Mark{{At: 0, Step: 1}, {At: 1, Step: 1}, {At: 3, Step: 2}, {At: 5, Step: 3}}}
	for factor, want := range map[float64]struct {
		ops, marks []int64
	}{0: {[]int64{2, 1, 3}, []int64{0, 0, 1, 3}}, 0.5: {[]int64{1, 2, 1, 1, 3}, []int64{0, 1, 3, 5}}} {
		after, found := scaleBlocks(t1, map[event.Category]float64{event.CategoryGradients: factor})
		var ops, marks []int64
		for _, op := range after.Ops {
			ops = append(ops, int64(op.ID))
			if op.Kind == event.OpAlloc && op.ID == 1 && op.Size != 50 {
				t.Errorf("%g: %+v", factor, op)
			}
		}
		for _, m := range after.Marks {
			marks = append(marks, int64(m.At))
		}
		if !found || !slices.Equal(ops, want.ops) || !slices.Equal(marks, want.marks) {
			t.Errorf("%g: blocks %v, marks %v", factor, ops, marks)
		}
	}
	if _, found := scaleBlocks(t1, map[event.Category]float64{event.CategoryActivations: 2}); found {
		t.Error("no block of that category, and it was found")
	}
	after, added := emptyAtSteps(t1)
	var kinds []event.OpKind
	for _, op := range after.Ops {
		kinds = append(kinds, op.Kind)
	}
	const e = event.OpEmptyCache
	if want := []event.OpKind{e, event.OpAlloc, event.OpAlloc, event.OpFree, e, e, event.OpAlloc,
		e}; !added || !slices.Equal(kinds, want) {
		t.Errorf("%v", kinds)
	}
	if _, added := emptyAtSteps(&event.Timeline{Ops: t1.Ops, Marks: []event.Mark{{At: 2}}}); added {
		t.Error("no step is marked, and something was added")
	}
}

// TestWorkersThatAreLeft: two, none where processes are spawned, and those a setup has left.
func TestWorkersThatAreLeft(t *testing.T) {
	for name, c := range map[string]struct {
		job   Job
		after Setup
		want  string
	}{
		"nothing known":         {Job{Framework: PyTorch}, Setup{}, "num_workers=2"},
		"spawned":               {Job{Framework: PyTorch, Spawned: true}, Setup{}, "num_workers=0"},
		"a setup":               {Job{Framework: PyTorch, Setup: &Setup{}}, Setup{Workers: 3}, "num_workers=3"},
		"a setup without any":   {Job{Framework: PyTorch, Setup: &Setup{}}, Setup{}, "num_workers=2"},
		"no setup of the job's": {Job{Framework: PyTorch}, Setup{Workers: 3}, "num_workers=2"},
	} {
		how := howWorkers(c.job, c.after)
		if text := how.Args + how.Code; !strings.Contains(text, c.want) {
			t.Errorf("%s: %q, want %s", name, text, c.want)
		}
	}
}

// TestWhatAppliesToStrangers: a job of a framework that we do not know gets what belongs to none.
func TestWhatAppliesToStrangers(t *testing.T) {
	for _, c := range []struct {
		r       Remedy
		foreign bool
		applies bool
	}{{Remedy{}, true, true}, {Remedy{Training: true}, true, false},
		{Remedy{Frameworks: []Framework{PyTorch}}, true, false}, {Remedy{Training: true}, false, true},
		{Remedy{Frameworks: []Framework{PyTorch}}, false, true},
		{Remedy{Frameworks: []Framework{JAX}}, false, false}} {
		if why := c.r.Applies(Job{Foreign: c.foreign}); (why == "") != c.applies {
			t.Errorf("%+v, foreign %v: %q", c.r, c.foreign, why)
		}
	}
	for _, c := range []struct {
		frameworks []Framework
		want       Framework
	}{{nil, PyTorch}, {[]Framework{JAX, PyTorch}, JAX}} {
		if got := (&Remedy{Frameworks: c.frameworks}).home(); got != c.want {
			t.Errorf("%v: %s", c.frameworks, got)
		}
	}
}

// TestWordsOfOldReleases: options that a release lacks are not written.
func TestWordsOfOldReleases(t *testing.T) {
	for _, c := range []struct{ torch, code, want string }{
		{"1.10", "checkpoint(f, x, use_reentrant=False)", "checkpoint(f, x)"},
		{"1.11", "checkpoint(f, x, use_reentrant=False)", "checkpoint(f, x, use_reentrant=False)"},
		{"1.9", "with torch.autocast('cuda'):", ""},
		{"1.10", "with torch.autocast('cuda'):", "with torch.autocast('cuda'):"},
		{"1.9", "loss.backward()", "loss.backward()"},
	} {
		got := Job{Torch: c.torch}.ofRelease(How{Code: c.code})
		if got.Code != c.want || (got.Args != "") != (c.want == "") {
			t.Errorf("%s in %s: %+v", c.code, c.torch, got)
		}
	}
	for batch, want := range map[int]string{0: "HALF_YOUR_BATCH", 1: "HALF_YOUR_BATCH",
		2: "1", 9: "4"} {
		if got := (Job{Batch: batch}).halfBatch(); got != want {
			t.Errorf("half of %d: %s", batch, got)
		}
	}
}

// TestWhatIsHeard: what a job's libraries do not understand is left out, and said in words where
// there are some; trainers that are steered by flags get flags alone.
func TestWhatIsHeard(t *testing.T) {
	growth, _ := Find(TFGrowth)
	micro, _ := Find(MicroBatch)
	lora, _ := Find(LoRA)
	const foreign = "tf.config.x"
	for name, c := range map[string]struct {
		r    *Remedy
		job  Job
		how  How
		want How
		said bool
	}{
		"nothing is lost": {micro, Job{Facts: map[Fact]bool{}}, How{Args: "--x"}, How{Args: "--x"}, true},
		"nothing is said": {micro, Job{Facts: map[Fact]bool{}}, How{}, How{}, true},
		"words instead": {micro, Job{Facts: map[Fact]bool{}}, How{Code: "torch.x"},
			How{Args: inWords[MicroBatch]}, true},
		"no words": {lora, Job{Facts: map[Fact]bool{}}, How{Code: "torch.x"}, How{}, false},
		"one of two": {micro, Job{Facts: map[Fact]bool{}}, How{Args: "--x", Code: "torch.x"},
			How{Args: "--x"}, true},
		"graphs": {growth, Job{Facts: map[Fact]bool{Graphs: true}}, How{Code: foreign},
			How{Code: graphWords[TFGrowth]}, true},
		"graphs, nothing lost": {growth, Job{Facts: map[Fact]bool{Graphs: true}}, How{Args: "--x"},
			How{Args: "--x"}, true},
		"no graphs": {growth, Job{Facts: map[Fact]bool{}}, How{Code: foreign}, How{Code: foreign}, true},
		"a flag": {micro, Job{Trainer: Kohya, Batch: 8, Facts: map[Fact]bool{}}, How{Code: "loss.x"},
			How{Args: "--train_batch_size 4 --gradient_accumulation_steps 2"}, true},
		"no flag": {lora, Job{Trainer: Kohya, Facts: map[Fact]bool{}}, How{Code: "loss.x"}, How{}, false},
		"no flag, a setting": {lora, Job{Trainer: Kohya, Facts: map[Fact]bool{}}, How{Args: "--x"},
			How{Args: "--x"}, true},
	} {
		if got, ok := c.r.heard(c.job, c.how); got != c.want || ok != c.said {
			t.Errorf("%s: %+v %v, want %+v", name, got, ok, c.want)
		}
	}
}

// TestSlowdownOfImages: patches count as tokens; one sample cannot be cut.
func TestSlowdownOfImages(t *testing.T) {
	for name, c := range map[string]struct {
		setup Setup
		want  float64
	}{
		"nothing known": {Setup{Batch: 8}, 1.05},
		"one sample":    {Setup{Batch: 1, Seq: 512}, 1.05},
		"tokens":        {Setup{Batch: 2, Seq: 512}, (1024.0 / 1536) / (512.0 / 1024)},
		"an image":      {Setup{Batch: 2, Image: 512}, (2048.0 / 2560) / (1024.0 / 1536)},
		"tokens before an image": {Setup{Batch: 2, Seq: 512, Image: 64}, (1024.0 / 1536) /
			(512.0 / 1024)},
	} {
		if got := smallerBatchSlowdown(c.setup); got < c.want-1e-9 || got > c.want+1e-9 {
			t.Errorf("%s: %g, want %g", name, got, c.want)
		}
	}
}
