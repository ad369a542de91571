package fit

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"memroom/event"
	"memroom/remedy"
)

const gib = event.Bytes(1) << 30

func ids(remedies []Remedy) []remedy.ID {
	var out []remedy.ID
	for _, r := range remedies {
		out = append(out, r.ID)
	}
	return out
}

func TestChooseClimbsAndEnds(t *testing.T) {
	facts := Facts{Where: event.WhereGPU, Phase: "backward", Requested: 3 * gib,
		Allocated: 20 * gib, Reserved: 21 * gib, Limit: 22 * gib, UsesGPU: true}
	seen := map[string]bool{}
	for range 10 {
		plan := Choose(facts, Options{})
		if plan.Impossible != "" {
			if !strings.Contains(plan.Impossible,
				"it needs at least 23GiB, and 22GiB are there") {
				t.Errorf("the end says %q", plan.Impossible)
			}
			if len(seen) != 3 {
				t.Errorf("%d stages were tried, want 3", len(seen))
			}
			return
		}
		words := strings.Join(plan.Changed, ",")
		if words == "" {
			t.Fatalf("a retry that changes nothing: %v", plan)
		}
		seen[words] = true
		if Equivalence(plan.Remedies) != remedy.Exact {
			t.Errorf("without consent the mathematics changes: %v", ids(plan.Remedies))
		}
		// As the monitor keeps it: through JSON, where whole numbers become floats.
		data, err := json.Marshal(plan.Remedies)
		if err != nil {
			t.Fatal(err)
		}
		facts.On = nil
		if err := json.Unmarshal(data, &facts.On); err != nil {
			t.Fatal(err)
		}
	}
	t.Error("the ladder has no end")
}

func TestConsentComesLast(t *testing.T) {
	facts := Facts{Where: event.WhereGPU}
	stages := Ladder(facts, Options{Allow: []string{"precision"}})
	for i, s := range stages {
		has := slices.Contains(ids(s.Remedies), remedy.MixedPrecision)
		if has != (i == len(stages)-1) {
			t.Errorf("stage %d of %d: mixed precision %v", i+1, len(stages), has)
		}
	}
	plan := Choose(facts, Options{})
	if !slices.ContainsFunc(plan.Left, func(l Left) bool {
		return l.ID == remedy.MixedPrecision && strings.Contains(l.Why, "--allow precision")
	}) {
		t.Errorf("what consent would add is not said: %v", plan.Left)
	}
}

func TestFragmentationAloneDoesNotCutTheBatch(t *testing.T) {
	stage := Ladder(Facts{Where: event.WhereGPU, Requested: gib, Allocated: 10 * gib,
		Reserved: 15 * gib, Limit: 16 * gib}, Options{})[0]
	for _, r := range stage.Remedies {
		if r.ID == remedy.MicroBatch && r.Params.Failed {
			t.Error("the whole batch is taken as known not to fit although only the cache was in pieces")
		}
	}
	if !slices.Contains(ids(stage.Remedies), remedy.ExpandableSegments) {
		t.Error("expandable segments are missing")
	}
}

func TestHostLadder(t *testing.T) {
	withCard := Ladder(Facts{Where: event.WhereCgroup, UsesGPU: true, Limit: gib}, Options{})
	if slices.Contains(ids(withCard[0].Remedies), remedy.MicroBatch) {
		t.Error("the batch is cut although activations are on the card")
	}
	without := Ladder(Facts{Where: event.WhereHost, Limit: gib}, Options{})
	if !slices.Contains(ids(without[0].Remedies), remedy.MicroBatch) ||
		without[0].Remedies[0].ID != remedy.DataLoaderWorkers {
		t.Errorf("first stage: %v", ids(without[0].Remedies))
	}
}

// TestHostLadderWhole: a model that cannot be split is not launched with a fixed number of pieces.
func TestHostLadderWhole(t *testing.T) {
	for whole, want := range map[string]int{"": 3, "Net: BatchNorm in training mode": 2} {
		facts, launches := Facts{Where: event.WhereCgroup, Limit: gib, Whole: whole}, 0
		for plan := Choose(facts, Options{}); plan.Impossible == ""; plan = Choose(facts, Options{}) {
			facts.On, launches = plan.Remedies, launches+1
		}
		if launches != want {
			t.Errorf("%q: %d launches with remedies, want %d", whole, launches, want)
		}
	}
}

// TestHostLadderEnds: after what is measured comes a tighter plan, then a few pieces of fixed size,
// and the end claims no need below what is there.
func TestHostLadderEnds(t *testing.T) {
	facts := Facts{Where: event.WhereCgroup, Limit: gib, Needs: gib / 2}
	var changed []string
	for range 5 {
		plan := Choose(facts, Options{})
		if plan.Impossible == "" {
			changed, facts.On = append(changed, strings.Join(plan.Changed, ", ")), plan.Remedies
			continue
		}
		if len(changed) != 3 || !strings.Contains(changed[0],
			"smaller micro-batches, as small as needed") ||
			!strings.Contains(changed[1], "no data loader workers") ||
			!strings.Contains(changed[2], "split into 16 micro-batches") {
			t.Errorf("tried %q", changed)
		}
		if inside := ids(Inside(facts.On)); slices.Contains(inside, remedy.Checkpointing) ||
			!slices.Contains(inside, remedy.MicroBatch) {
			t.Errorf("the probe is given %v", inside)
		}
		if strings.Contains(plan.Impossible, "512MiB") || plan.Needs != 0 ||
			!strings.Contains(plan.Impossible, "--remedy micro_batch=SAMPLES") {
			t.Errorf("the end says %q, needs %s", plan.Impossible, plan.Needs)
		}
		for _, l := range plan.Left {
			if l.ID == remedy.Quantize4Bit || l.ID == remedy.Quantize8Bit {
				t.Errorf("%s is advised for a training on the CPU", l.ID)
			}
		}
		return
	}
	t.Error("it never ends")
}

func TestForce(t *testing.T) {
	for text, want := range map[string]Remedy{
		"micro_batch=8": {remedy.MicroBatch, remedy.LevelProcess,
			remedy.Params{Size: 8}},
		"mixed_precision=fp16": {remedy.MixedPrecision, remedy.LevelProcess,
			remedy.Params{DType: "fp16"}},
		"activation_offload=4MiB": {remedy.ActivationOffload, remedy.LevelProcess,
			remedy.Params{Above: 4 << 20}},
		"expandable_segments": {remedy.ExpandableSegments, remedy.LevelEnv, remedy.Params{}},
		"dataloader_workers=0": {remedy.DataLoaderWorkers, remedy.LevelProcess,
			remedy.Params{Workers: new(int)}},
		"checkpointing": {remedy.Checkpointing, remedy.LevelProcess,
			remedy.Params{Failed: true}},
		"max_split_size=256": {remedy.MaxSplitSize, remedy.LevelEnv,
			remedy.Params{SplitMB: 256}},
		"gc_threshold=0.7": {remedy.GCThreshold, remedy.LevelEnv,
			remedy.Params{Threshold: 0.7}},
	} {
		got, err := Force(text)
		if err != nil || !cmp.Equal(got, want) {
			t.Errorf("%s: %v, %v", text, cmp.Diff(want, got), err)
		}
	}
	for _, text := range []string{"nonsense", "micro_batch=0", "micro_batch=many",
		"mixed_precision=int4", "set_to_none=3", "distill",
		"gc_threshold=1", "gc_threshold=0", "dataloader_workers=-1"} {
		if got, err := Force(text); err == nil {
			t.Errorf("%s was taken as %v", text, got)
		}
	}
}

func TestRewriteKeepsTheEffectiveBatch(t *testing.T) {
	const hf = "micro_batch=--per_device_train_batch_size,accumulate=--gradient_accumulation_steps"
	for _, c := range []struct {
		name   string
		args   string
		mapped string
		config string
		factor int
		want   string
		inside string // of the config
	}{
		{"transformers", "python run_clm.py --per_device_train_batch_size 32 --lr 1", hf, "", 4,
			"python run_clm.py --per_device_train_batch_size 8 --lr 1 --gradient_accumulation_steps 4", ""},
		{"joined and present",
			"python x.py --per-device-train-batch-size=12 --gradient_accumulation_steps=2", hf, "",
			5,
			"python x.py --per-device-train-batch-size=2 --gradient_accumulation_steps=12", ""},
		{"mapped", "python x.py --bs 7 --accum 3", "micro_batch=--bs,accumulate=--accum", "", 2,
			"python x.py --bs 1 --accum 21", ""},
		{"torchtune", "tune run full --config conf.yaml", "",
			"seed: 1\nbatch_size: 8\ngradient_accumulation_steps: 2\n", 2,
			"tune run full --config conf.yaml",
			"seed: 1\nbatch_size: 4\ngradient_accumulation_steps: 4\n"},
		{"torchtune overridden", "tune run full --config conf.yaml batch_size=6", "",
			"batch_size: 8\n", 2,
			"tune run full --config conf.yaml batch_size=3 gradient_accumulation_steps=2", ""},
		{"axolotl", "axolotl train conf.yaml", "",
			"micro_batch_size: 2\nnested:\n  micro_batch_size: 9\n", 2,
			"axolotl train conf.yaml",
			"micro_batch_size: 1\nnested:\n  micro_batch_size: 9\n\ngradient_accumulation_steps: 2\n"},
		{"deepspeed", "deepspeed train.py --deepspeed conf.json", "", `{"train_micro_batch_size_per_gpu": 4, "fp16": {"enabled": true}}`, 2,
			"deepspeed train.py --deepspeed conf.json",
			"{\n  \"gradient_accumulation_steps\": 2,\"train_micro_batch_size_per_gpu\": 2, \"fp16\": " +
				"{\"enabled\": true}}"},
	} {
		t.Run(c.name, func(t *testing.T) {
			args := strings.Fields(c.args)
			configs := map[string][]byte{}
			for _, path := range ConfigFiles(args) {
				configs[path] = []byte(c.config)
			}
			m := FindMapping(args, configs)
			if c.mapped != "" {
				parsed, err := ParseMapping(c.mapped)
				if err != nil {
					t.Fatal(err)
				}
				m = parsed.In(args)
			}
			got, err := m.Rewrite(args, configs[m.Config], c.factor)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(strings.Fields(c.want), got.Args); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(c.inside, string(got.Config)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestMappingIsRefused(t *testing.T) {
	for _, text := range []string{"", "micro_batch=--bs", "accumulate=--a",
		"batch=--bs,accumulate=--a", "micro_batch,accumulate"} {
		if _, err := ParseMapping(text); err == nil {
			t.Errorf("%q was taken", text)
		}
	}
	if m := FindMapping([]string{"python", "train.py", "--batch_size", "32"}, nil); m.Possible() {
		t.Errorf("an argument nobody vouches for was taken: %+v", m)
	}
	if m := FindMapping([]string{"python", "train.py", "--per_device_train_batch_size", "8"},
		nil); m.Possible() {
		t.Error("the Trainer's accumulation was taken unasked: it multiplies the loss of some models")
	}
	one := Mapping{MicroBatch: "--bs", Accumulate: "--accum"}
	if one.In([]string{"python", "train.py", "--bs", "1"}).Possible() {
		t.Error("a batch of one was taken to be divisible")
	}
}

func TestResume(t *testing.T) {
	for _, c := range []struct{ args, template, want string }{
		{"python run.py --output_dir out --per_device_train_batch_size 8", "",
			"--resume_from_checkpoint out/checkpoint-5"},
		{"python main.py fit --trainer.max_epochs 3", "", "--ckpt_path out/checkpoint-5"},
		{"python train.py", "--resume {latest}", "--resume out/checkpoint-5"},
		{"python train.py --output_dir out", "", ""},
	} {
		args := strings.Fields(c.args)
		got := FindResume(args, c.template, "").With(args, "out/checkpoint-5")[len(args):]
		if diff := cmp.Diff(strings.Fields(c.want), got, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s: %s", c.args, diff)
		}
	}
	if CheckTemplate("--resume latest") == nil {
		t.Error("a template without {latest} was taken")
	}
}

func TestKeyFollowsWhatMatters(t *testing.T) {
	content := map[string][]byte{"train.py": []byte("model = 1")}
	key := func(line, card string, limit event.Bytes, content map[string][]byte) string {
		return Key(strings.Fields(line), content, card, limit)
	}
	base := key("python train.py --bs 32 --seed 1 --lr=0.1", "H200", 0, content)
	if key("python train.py --bs 32 --seed 2 --lr=0.3", "H200", 0, content) != base {
		t.Error("seed and learning rate make another job")
	}
	for name, other := range map[string]string{
		"batch": key("python train.py --bs 64 --seed 1 --lr=0.1", "H200", 0, content),
		"card":  key("python train.py --bs 32 --seed 1 --lr=0.1", "A100", 0, content),
		"limit": key("python train.py --bs 32 --seed 1 --lr=0.1", "H200", gib, content),
		"script": key("python train.py --bs 32 --seed 1 --lr=0.1", "H200", 0,
			map[string][]byte{"train.py": []byte("model = 2")}),
	} {
		if other == base {
			t.Errorf("another %s is the same job", name)
		}
	}
}

func TestMemoryRelaxesOnceAndNeverSwings(t *testing.T) {
	args := func(factor int) []Remedy {
		return []Remedy{{ID: remedy.MicroBatch, Level: remedy.LevelArgs,
			Params: remedy.Params{Factor: float64(factor)}}}
	}
	const gib = event.Bytes(1) << 30
	for name, c := range map[string]struct {
		memory Remembered
		limit  event.Bytes
		want   int
	}{
		"over-saved": {Remembered{Remedies: args(8), Peak: 4 * gib, RanOut: 1},
			10 * gib, 4},
		"what ran out once": {Remembered{Remedies: args(8), Peak: 4 * gib, RanOut: 4},
			10 * gib, 8},
		"no room for twice": {Remembered{Remedies: args(8), Peak: 5 * gib, RanOut: 1},
			10 * gib, 8},
		"limit not known": {Remembered{Remedies: args(8), Peak: 4 * gib}, 0, 8},
		"nothing left to relax": {Remembered{Remedies: args(2), Peak: gib, RanOut: 1}, 10 * gib,
			2},
		"not by its arguments": {Remembered{Remedies: []Remedy{{ID: remedy.MicroBatch,
			Level: remedy.LevelProcess}}, Peak: gib}, 10 * gib, 1},
		"as read from the store": {Remembered{Remedies: []Remedy{{ID: remedy.MicroBatch,
			Level: remedy.LevelArgs, Params: remedy.Params{Factor: 4}}}, Peak: gib, RanOut: 1},
			10 * gib, 2},
	} {
		if got := Factor(c.memory.Relaxed(c.limit)); got != c.want {
			t.Errorf("%s: factor %d, want %d", name, got, c.want)
		}
	}
	record := Record{Attempts: []Tried{{OutOf: event.WhereGPU},
		{OutOf: event.WhereGPU, Remedies: args(2)}, {Remedies: args(4)}}}
	if record.RanOut() != 2 {
		t.Errorf("ran out with %d, want 2", record.RanOut())
	}
}

// TestHopelessEndsAtOnce: no other stage is tried where the probe has shown that none can help;
// consent may.
func TestHopelessEndsAtOnce(t *testing.T) {
	said := Tried{Said: []Sentence{{Text: "cannot fit: needs at least 3GiB, 1GiB are there: weights " +
		"3GiB stay", Needs: 3 * gib, Limit: gib}}}
	facts := Facts{Where: event.WhereGPU, On: Prevention(), Limit: said.Limit(), Idle: true}
	facts.Hopeless, facts.Needs = said.Hopeless()
	plan := Choose(facts, Options{})
	if plan.Impossible != said.Said[0].Text || plan.Needs != 3*gib || len(plan.Left) == 0 {
		t.Errorf("the plan is %+v", plan)
	}
	if plan := Choose(facts, Options{Allow: []string{"precision"}}); plan.Impossible != "" ||
		!slices.Contains(ids(plan.Remedies), remedy.MixedPrecision) {
		t.Errorf("with consent: %+v", plan)
	}
	if why, needs := facts.GivenUp(4); why != said.Said[0].Text || needs != 3*gib {
		t.Errorf("after the last attempt: %q, %s", why, needs)
	}
}

func TestUncut(t *testing.T) {
	cut := Ladder(Facts{Where: event.WhereGPU}, Options{})[0].Remedies
	uncut := Uncut(cut)
	if len(uncut) != len(cut)-2 || Uncut(uncut) != nil {
		t.Errorf("of %v are left %v", ids(cut), ids(uncut))
	}
	if !slices.ContainsFunc(uncut, func(r Remedy) bool {
		return r.ID == remedy.ActivationOffload &&
			r.Params.Untried
	}) {
		t.Errorf("modules are tried on parts of a batch: %v", uncut)
	}
	for _, stage := range Ladder(Facts{Where: event.WhereGPU}, Options{Uncut: true}) {
		if slices.ContainsFunc(stage.Remedies, Remedy.cuts) {
			t.Errorf("calls are cut again: %v", ids(stage.Remedies))
		}
	}
	for _, c := range []struct {
		kind string
		file string
		want bool
	}{{"CheckpointError", "train.py", true}, {"RuntimeError", "/x/_memroom_probe/fit/rows.py",
		true}, {"ValueError", "train.py", false}} {
		if got := CausedByCuts(c.kind, []event.Frame{{File: c.file}}); got != c.want {
			t.Errorf("%s in %s: %v", c.kind, c.file, got)
		}
	}
}

func TestSameWallEndsTheAttempts(t *testing.T) {
	on := []Remedy{{ID: remedy.MicroBatch, Level: remedy.LevelProcess}}
	wall := Tried{OutOf: event.WhereGPU, Requested: 900 * event.MiB, Held: event.GiB, Remedies: on}
	first := Tried{OutOf: event.WhereGPU, Requested: event.GiB, Held: event.GiB}
	if (Record{Attempts: []Tried{first, wall}}).Stuck() {
		t.Error("one attempt with remedies is said to be stuck")
	}
	other := wall
	other.Held += 4096
	if (Record{Attempts: []Tried{first, wall, other}}).Stuck() {
		t.Error("an attempt that held other bytes is said to be stuck")
	}
	if !(Record{Attempts: []Tried{first, wall, wall}}).Stuck() {
		t.Error("the same wall twice is not noticed")
	}
	f := Facts{Where: event.WhereGPU, Requested: wall.Requested, Allocated: wall.Held,
		Limit: 1800 * event.MiB, Stuck: true, On: on}
	plan := Choose(f, Options{})
	for _, want := range []string{"it needs at least 1.88GiB, and 1.76GiB are there",
		"as in the attempt before", "in chunks"} {
		if !strings.Contains(plan.Impossible, want) {
			t.Errorf("%q does not say %q", plan.Impossible, want)
		}
	}
	if allowed := Choose(f, Options{Allow: []string{"precision"}}); allowed.Impossible != "" {
		t.Errorf("with autocast allowed: %q", allowed.Impossible)
	}
}
