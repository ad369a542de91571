package tape_test

import (
	"flag"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"memroom/event"
	"memroom/models"
	"memroom/tape"
	"memroom/testenv/recorded"
)

var update = flag.Bool("update", false, "write what each way to train asks for to testdata/ways.golden")

// way is one way to train a model.
type way struct {
	options   tape.Options
	weights   tape.DType
	optimizer string // "" is adamw
	run       models.Run
	adapt     func(root *tape.Module)
	shard     func(blocks []string) *tape.FSDP
	channels  bool
	steps     int // 0 is two
	accum     int
	clip      bool
	keepGrads bool
	backward  bool // each parameter is stepped as its gradient comes
}

// smallModels are models with two layers, of kinds that use different operations.
var smallModels = map[string]map[string]any{
	"gpt2": {"model_type": "gpt2", "n_layer": 2.0, "n_embd": 64.0, "n_head": 4.0, "vocab_size": 500.0},
	"llama": {"model_type": "llama", "hidden_size": 64.0, "intermediate_size": 160.0,
		"num_hidden_layers": 2.0, "num_attention_heads": 4.0, "num_key_value_heads": 2.0,
		"vocab_size": 500.0},
	"bert": {"model_type": "bert", "hidden_size": 64.0, "intermediate_size": 128.0,
		"num_hidden_layers": 2.0, "num_attention_heads": 4.0, "vocab_size": 500.0},
	"lstm": {"model_type": "lstm", "vocab": 300.0, "embed": 32.0, "hidden": 48.0, "layers": 2.0},
	"gru":  {"model_type": "gru", "vocab": 300.0, "embed": 32.0, "hidden": 48.0, "layers": 2.0},
	"bilstm": {"model_type": "bilstm", "vocab": 300.0, "embed": 32.0, "hidden": 48.0,
		"layers": 1.0},
	"vit": {"model_type": "vit", "hidden_size": 64.0, "intermediate_size": 128.0,
		"num_hidden_layers": 2.0, "num_attention_heads": 4.0, "image_size": 64.0, "patch_size": 16.0},
	"resnet18":     {"model_type": "torchvision", "name": "resnet18"},
	"mobilenet_v2": {"model_type": "torchvision", "name": "mobilenet_v2"},
	"wav2vec2": {"model_type": "wav2vec2", "hidden_size": 64.0, "intermediate_size": 128.0,
		"num_hidden_layers": 2.0, "num_attention_heads": 4.0, "vocab_size": 32.0},
}

// ways are the ways to train that a plan knows, each alone or with what belongs to it.
func ways() map[string]way {
	lora := func(a tape.Adapters) func(*tape.Module) {
		return func(root *tape.Module) { root.AddLora(a) }
	}
	all := tape.Adapters{Rank: 4, Targets: []string{tape.AllLinear}}
	dropped, dora := all, all
	dropped.Dropout, dora.DoRA = 0.1, true
	packed := func(how tape.Packing) func(*tape.Module) {
		return func(root *tape.Module) { root.AddLora(all); root.Quantize(how) }
	}
	spread := func(f tape.FSDP) func([]string) *tape.FSDP {
		return func(blocks []string) *tape.FSDP { f.Ranks, f.Blocks = 4, blocks; return &f }
	}
	auto := tape.Options{Autocast: true, Half: tape.BF16}
	list := map[string]way{
		"plain": {}, "bf16": {weights: tape.BF16}, "autocast": {options: auto},
		"fp16":                   {options: tape.Options{Autocast: true, Half: tape.F16}, steps: 3},
		"clip, accumulate, keep": {clip: true, accum: 2, keepGrads: true, steps: 3},
		"checkpointing":          {run: models.Run{Checkpointing: true}, options: auto},
		"checkpointing with adapters": {run: models.Run{Checkpointing: true},
			adapt: lora(all)},
		"eager, padded": {run: models.Run{Attn: "eager", Padded: true}, options: auto},
		"flash, cache": {run: models.Run{Attn: "flash", Cache: true},
			weights: tape.BF16},
		"logits in parts": {run: models.Run{ChunkLogits: true}, options: auto},
		"channels last": {channels: true, options: auto,
			run: models.Run{ChannelsLast: true}},
		"wide save": {options: tape.Options{WideSave: true},
			run: models.Run{Attn: "eager"}},
		"activations on the host": {options: tape.Options{Offload: true}},
		"optimizer on the host":   {options: tape.Options{HostOptim: true}, clip: true},
		"stepped in backward":     {backward: true, optimizer: "sgd"},
		"no Hopper": {options: tape.Options{Autocast: true, Half: tape.F16,
			SMs: -1}},
		"workspaces twice as large": {options: tape.Options{ConvScale: 2}},
		"adapters":                  {adapt: lora(all), options: auto},
		"adapters with dropout":     {adapt: lora(dropped), weights: tape.BF16},
		"adapters of two names": {adapt: lora(tape.Adapters{Rank: 8,
			Targets: []string{"q_proj", "c_attn", "query"}})},
		"dora": {adapt: lora(dora), weights: tape.BF16},
		"4 bits": {adapt: packed(tape.Packing{Bits: 4, Double: true, Upcast: true}), weights: tape.BF16,
			run: models.Run{Checkpointing: true}},
		"4 bits, plain": {adapt: packed(tape.Packing{Bits: 4}), weights: tape.BF16, options: auto},
		"8 bits":        {adapt: packed(tape.Packing{Bits: 8, Upcast: true}), weights: tape.F16},
		"head trained whole": {adapt: func(root *tape.Module) {
			root.AddLora(all)
			root.TrainWhole([]string{"lm_head", "classifier", "fc"})
		}},
		"only biases": {adapt: func(root *tape.Module) { root.Freeze([]string{"bias"}) }},
		"ddp":         {options: tape.Options{DDP: &tape.DDP{}}, accum: 2},
		"ddp with view": {options: tape.Options{DDP: &tape.DDP{View: true}, Autocast: true,
			Half: tape.BF16}},
		"fsdp": {shard: spread(tape.FSDP{Stored: tape.F32, Gather: tape.BF16, Reduce: tape.F32}),
			clip: true},
		"fsdp, kept": {shard: spread(tape.FSDP{Stored: tape.BF16, Gather: tape.BF16,
			Reduce: tape.BF16, Keep: true, Lag: 1}), weights: tape.BF16},
		"fsdp, checkpointing, accumulate": {accum: 2, run: models.Run{Checkpointing: true},
			shard: spread(tape.FSDP{Stored: tape.F32, Gather: tape.F32, Reduce: tape.F32, Lag: 2})},
		"fsdp, host": {options: tape.Options{HostParams: true, HostOptim: true},
			shard: spread(tape.FSDP{Stored: tape.F32, Gather: tape.BF16, Reduce: tape.F32})},
		"fsdp with adapters": {adapt: lora(all), weights: tape.BF16,
			shard: spread(tape.FSDP{Stored: tape.BF16, Gather: tape.BF16, Reduce: tape.BF16})},
		"fsdp1": {shard: spread(tape.FSDP{Stored: tape.F32, Gather: tape.BF16, Reduce: tape.F32,
			Flat: true}), clip: true},
		"fsdp1, kept, adapters": {adapt: lora(all), shard: spread(tape.FSDP{Stored: tape.F32,
			Gather: tape.F32, Reduce: tape.F32, Flat: true, Keep: true}), accum: 2},
		"fsdp, 4 bits": {adapt: packed(tape.Packing{Bits: 4, Double: true}), weights: tape.BF16,
			shard: spread(tape.FSDP{Stored: tape.BF16, Gather: tape.BF16, Reduce: tape.BF16})},
		"fsdp1, 4 bits, checkpointing": {adapt: packed(tape.Packing{Bits: 4}), weights: tape.BF16,
			run: models.Run{Checkpointing: true}, shard: spread(tape.FSDP{Stored: tape.BF16,
				Gather: tape.BF16, Reduce: tape.BF16, Flat: true})},
		"fsdp1, 8 bits": {adapt: packed(tape.Packing{Bits: 8}), weights: tape.F16,
			shard: spread(tape.FSDP{Stored: tape.F16, Gather: tape.F16, Reduce: tape.F16,
				Flat: true})},
	}
	for stage := int64(1); stage <= 3; stage++ {
		for name, z := range map[string]tape.Zero{"": {Bucket: 20_000, Live: 50_000},
			", overlap": {Bucket: 5_000, Live: 10_000_000, Overlap: true}} {
			z.Stage, z.Ranks = stage, 4
			list[fmt.Sprintf("zero%d%s", stage, name)] = way{options: tape.Options{Zero: &z},
				weights: tape.BF16, accum: 2, clip: true}
		}
	}
	host := tape.Zero{Stage: 3, Ranks: 2, Bucket: 10_000, Live: 100}
	list["zero3, host"] = way{weights: tape.F16,
		options: tape.Options{Zero: &host, HostOptim: true, HostParams: true}}
	for _, name := range tape.OptimizerNames() {
		list["optimizer "+name] = way{optimizer: name, steps: 3, clip: name == "adamw_loop"}
	}
	return list
}

// TestWhatEachWayAsksFor: the requests of small models under every way to train. Whether they are
// right is shown by recordings from a card; this shows that none changes unnoticed, also of ways
// that no recording holds. A line that the file does not know is not compared: -update adds it.
func TestWhatEachWayAsksFor(t *testing.T) {
	path := filepath.Join("testdata", "ways.golden")
	text, err := os.ReadFile(path)
	if err != nil && !*update {
		t.Fatal(err)
	}
	want := map[string]string{}
	for line := range strings.Lines(string(text)) {
		name, said, _ := strings.Cut(strings.TrimSpace(line), ": ")
		want[name] = said
	}
	var now []string
	for model, config := range smallModels {
		for name, w := range ways() {
			if w.optimizer != "" && model != "gpt2" {
				continue // an optimizer sees parameters, of whatever model
			}
			name = model + ", " + name
			got := w.asked(config)
			now = append(now, name+": "+got)
			if old, known := want[name]; known && old != got && !*update {
				t.Errorf("%s: %s, want %s", name, got, old)
			}
		}
	}
	if len(now) < len(want) && !*update {
		t.Errorf("%d ways, the file has %d", len(now), len(want))
	}
	if *update {
		slices.Sort(now)
		if err := os.WriteFile(path, []byte(strings.Join(now, "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// asked are the number of requests, the most that is held and a hash of sizes and what they are
// for; or why the model cannot be trained that way.
func (w way) asked(config map[string]any) (said string) {
	defer func() {
		if why := recover(); why != nil {
			impossible, ok := why.(tape.Impossible)
			if !ok {
				panic(why)
			}
			said = "impossible: " + impossible.Why
		}
	}()
	m, err := w.model(config)
	if err != nil {
		return err.Error()
	}
	if w.shard != nil {
		w.options.FSDP = w.shard(blocksOf(m))
	}
	g := w.train(m)
	sum := fnv.New32a()
	requests, held, peak := 0, int64(0), int64(0)
	sizes := map[int32]int64{}
	timeline := g.Timeline()
	for _, op := range timeline.Ops {
		if op.Kind == event.OpAlloc {
			tag := timeline.Tags[op.Tag]
			fmt.Fprintln(sum, op.Size, op.Stream, tag.Category, tag.Op)
			sizes[op.ID] = op.Size
			held += op.Size
			requests++
		} else {
			fmt.Fprintln(sum, "free", sizes[op.ID])
			held -= sizes[op.ID]
		}
		peak = max(peak, held)
	}
	return fmt.Sprintf("%d requests, %d at most, %d on the host, %08x", requests, peak, g.HostPeak,
		sum.Sum32())
}

func (w way) model(config map[string]any) (*models.Model, error) {
	c := models.ConfigOf(config)
	run := w.run
	run.Batch, run.Seq, run.Image, run.Float = 4, min(40, c.DefaultSeq()), 64, w.weights
	if c.Type() == "wav2vec2" {
		run.Seq = 4000 // samples of sound
	}
	if run.Attn == "" {
		run.Attn = "sdpa"
	}
	m, err := models.New(c, run)
	if err == nil && w.adapt != nil {
		w.adapt(m.Root)
	}
	return m, err
}

func (w way) train(m *models.Model) *tape.Graph {
	o := w.options
	o.Training, o.SMThreads, o.BLAS, o.BLASLt = true, 2048, 32<<20, 1<<20
	if o.Hopper = o.SMs == 0; o.Hopper {
		o.SMs = 132
	} else {
		o.SMs, o.SMThreads, o.BLAS = 40, 1024, 8<<20
	}
	g := tape.New(o)
	g.Load(m.Root, w.weights)
	if w.channels {
		g.ToChannelsLast(m.Root)
	}
	name := w.optimizer
	if name == "" {
		name = "adamw"
	}
	optimizer := g.NewOptimizer(name, m.Root.Parameters())
	if w.backward {
		optimizer.InBackward()
	}
	for range max(2, w.steps) {
		for range max(1, w.accum) {
			recorded.Batch(g, m)
		}
		if w.clip {
			g.ClipNorm(optimizer)
		}
		optimizer.Step()
		optimizer.ZeroGrad(w.keepGrads)
	}
	return g
}

// blocksOf lists the blocks that a forward pass runs, in order.
func blocksOf(m *models.Model) (names []string) {
	g := tape.New(tape.Options{})
	g.Watch = func(name string) {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	g.Load(m.Root, tape.BF16)
	g.NoGrad(func() { m.Loss(g, m.Inputs(g)) })
	return names
}
