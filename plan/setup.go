package plan

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"memroom/event"
	"memroom/models"
	"memroom/remedy"
	"memroom/tape"
)

// Setup is a training setup: a model and how it is trained. Zero values mean the usual thing;
// [Setup.WithDefaults] fills them in.
type Setup struct {
	Model *models.Config `json:"-"`
	remedy.Setup
	// some samples are shorter than seq: attention needs a mask
	Padded bool `json:"padded,omitempty"`
	// decoders keep copies of keys and values until their forward returns
	UseCache bool `json:"use_cache,omitempty"`
	// batches have from so many tokens a sample to seq; 0 is always seq
	Shortest  int `json:"shortest,omitempty"`
	EvalBatch int `json:"eval_batch,omitempty"` // batch of an evaluation without gradients, 0 is none
	// evaluation batches whose logits stay on the card until it is over
	EvalKeep int `json:"eval_keep,omitempty"`

	// names of linear layers, or all-linear; nil is PEFT's choice
	LoRATargets []string `json:"lora_targets,omitempty"`
	LoRADropout float64  `json:"lora_dropout,omitempty"` // on the adapters' input
	DoRA        bool     `json:"dora,omitempty"`         // the weights' length is trained apart
	// modules that are trained whole next to the adapters (modules_to_save)
	TrainWhole []string `json:"modules_to_save,omitempty"`
	// each parameter is stepped as its gradient comes
	InBackward bool `json:"optimizer_in_backward,omitempty"`
	// the scales of 4-bit weights are quantised too
	DoubleQuant bool `json:"double_quant,omitempty"`
	NoUpcast    bool `json:"no_upcast,omitempty"` // what is not packed stays in half precision
	// FSDP: gathered weights stay from forward to backward (reshard_after_forward=False)
	NoReshard bool `json:"no_reshard,omitempty"`
	Compile   bool `json:"compile,omitempty"` // torch.compile
	// HSDP: groups of ranks, each with a whole model cut over its ranks
	Replicas int `json:"replicas,omitempty"`
	// autocast over weights that are already in half precision, as Trainer's bf16=True does
	Autocast bool `json:"autocast,omitempty"`
	// tokens of the target of an encoder-decoder, 0 is as many as seq
	TargetSeq int `json:"target_seq,omitempty"`
	// release of transformers whose loss is planned, such as 4.48; "" is the newest
	Transformers string `json:"transformers,omitempty"`
	// DeepSpeed: elements of a bucket of gradients (reduce_bucket_size), 0 is its default
	Bucket  int64 `json:"bucket,omitempty"`
	Overlap bool  `json:"overlap,omitempty"` // DeepSpeed: overlap_comm

	// how a language model is trained beyond the next token, see Trainers; "" is plainly
	Trainer string `json:"trainer,omitempty"`
	// release of TRL, such as 1.13; "" is the newest
	TRL string `json:"trl,omitempty"`
	// what its answers are compared with, see References
	Reference string `json:"reference,omitempty"`
	// tokens of seq that are generated, or learnt
	Completion int `json:"completion,omitempty"`
	// share of the card that an inference engine takes, 0 is none
	Engine float64 `json:"engine_share,omitempty"`

	Division
	stage int // of the pipeline, that is planned

	bare  bool     // batches come without an attention mask
	whole string   // the type of the larger model of which only the text model is planned
	said  []string // what the configuration decided
}

// The words of a setup.
var (
	Precisions = []string{"fp32", "amp_bf16", "amp_fp16", "bf16", "fp16"}
	Attentions = []string{"sdpa", "eager", "flash"}
	Shards     = []string{"ddp", "fsdp", "fsdp1", "hsdp", "zero1", "zero2", "zero3"}
	Offloads   = []string{"optimizer", "activations", "parameters"}
	LoadIns    = []string{"8bit", "4bit"}
)

// maxBatchSize bounds what a search may try and what a user may ask for.
const maxBatchSize = 1 << 20

// maxSeq bounds sequences; beyond it products overflow and no model goes there.
const maxSeq = 1 << 24

// Check refuses a setup that makes no sense. Fields left at zero count with their defaults.
func (s Setup) Check() error {
	s = s.WithDefaults()
	for _, w := range []struct {
		name, value string
		known       []string
	}{{"precision", s.Precision, Precisions}, {"attention", s.Attention, Attentions},
		{"shard", s.Shard, Shards}, {"load-in", s.LoadIn, LoadIns}, {"trainer", s.Trainer, Trainers},
		{"reference", s.Reference, References}} {
		if w.value != "" && !slices.Contains(w.known, w.value) {
			return fmt.Errorf("%s %q is not known%s", w.name, w.value,
				event.DidYouMeanOf(w.value, w.known))
		}
	}
	for _, o := range s.Offload {
		if !slices.Contains(Offloads, o) {
			return fmt.Errorf("offload %q is not known%s", o, event.DidYouMeanOf(o, Offloads))
		}
	}
	if err := tape.KnownOptimizer(s.Optimizer); err != nil {
		return err
	}
	if err := s.checkTrainer(); err != nil {
		return err
	}
	for _, n := range []struct {
		name      string
		value, to int
	}{{"batch", s.Batch, maxBatchSize}, {"seq", s.Seq, maxSeq}, {"image", s.Image, 1 << 15},
		{"accumulate", s.Accumulate, 1 << 16}, {"ranks", s.Ranks, 1 << 16},
		{"lora-rank", s.LoRARank, 1 << 16}, {"replicas", s.Replicas, 1 << 16},
		{"tensor-parallel", s.Tensor, 1 << 10}, {"context-parallel", s.Context, 1 << 10},
		{"pipeline-parallel", s.Pipeline, 1 << 10}, {"expert-parallel", s.Expert, 1 << 12},
		{"microbatches", s.Microbatches, 1 << 12},
		{"eval-batch", s.EvalBatch, maxBatchSize}, {"eval-keep", s.EvalKeep, 1 << 20},
		{"shortest", s.Shortest, maxSeq}, {"target-seq", s.TargetSeq, maxSeq},
		{"completion", s.Completion, maxSeq}} {
		if n.value < 0 || n.value > n.to {
			return fmt.Errorf("%s %d is out of range: use 1 to %d", n.name, n.value, n.to)
		}
	}
	if s.Shortest > 0 && s.Shortest > s.Seq {
		return fmt.Errorf("--shortest %d is longer than --seq %d: --seq is the longest sample",
			s.Shortest, s.Seq)
	}
	if s.EvalKeep > 1 && s.EvalBatch == 0 {
		return fmt.Errorf("--eval-keep is for an evaluation: add --eval-batch N")
	}
	for _, f := range []struct {
		needless bool
		says     string
	}{
		{s.LoRARank == 0 && len(s.LoRATargets) > 0,
			"--lora-targets names layers for adapters: add --lora-rank N"},
		{s.LoRARank == 0 && s.DoRA, "--dora is for adapters: add --lora-rank N"},
		{s.LoRARank == 0 && len(s.TrainWhole) > 0,
			"--modules-to-save names modules to train together with adapters: add --lora-rank N"},
		{s.InBackward && (s.Accumulate > 1 || s.Clip),
			"an optimizer in the backward pass sees one gradient at a time: leave out --accumulate and --clip"},
		{s.InBackward && (s.zero() != nil || s.fullyShards()),
			"--optimizer-in-backward is for one card or DDP: leave out --shard"},
		{s.LoRARank == 0 && s.LoRADropout > 0, "--lora-dropout is for adapters: add --lora-rank N"},
		{s.LoadIn != "4bit" && s.DoubleQuant,
			"--double-quant is for 4-bit weights: add --load-in 4bit"},
		{s.LoadIn == "" && s.NoUpcast,
			"--no-upcast is for packed weights: add --load-in 4bit or 8bit"},
		{s.NoReshard && !s.fullyShards(),
			"--no-reshard is for FSDP: add --shard fsdp"},
		{s.Autocast && s.Precision != "bf16" && s.Precision != "fp16",
			"--autocast is for weights in half precision: add --precision bf16 or fp16; amp_bf16 is " +
				"autocast over fp32 weights"},
		{s.TargetSeq > 0 && s.Model != nil && !models.HasTarget(s.Model.Type()),
			"--target-seq is for models that read one sequence of tokens and write another: leave it " +
				"out (with Whisper --seq counts the text's tokens)"},
		{s.Transformers != "" && release(s.Transformers) == 0,
			"--transformers names a release such as 4.48"},
		{strings.Contains(s.AllocConf, "expandable_segments:T") && s.Torch != "" &&
			release(s.Torch) < expandableTorch,
			"expandable_segments came with torch 2.1, and an older one refuses to start with it: leave " +
				"it out of --alloc-conf"},
		{s.TRL != "" && release(s.TRL) == 0, "--trl names a release such as 1.13"},
		{s.LoRADropout < 0 || s.LoRADropout >= 1,
			"--lora-dropout must be at least 0 and less than 1"},
	} {
		if f.needless {
			return errors.New(f.says)
		}
	}
	if s.Offloads("parameters") && s.Shard != "zero3" && !s.fullyShards() {
		return fmt.Errorf("--offload parameters is planned for FSDP and for DeepSpeed's stage 3: add " +
			"--shard fsdp or --shard zero3")
	}
	if err := s.checkDivision(); err != nil {
		return err
	}
	if err := s.checkReplicas(); err != nil {
		return err
	}
	if s.Shard != "" && s.spreadRanks() == 1 && !(s.zero() != nil && len(s.Offload) > 0) {
		return fmt.Errorf("sharding with %s needs more than one rank: add --ranks N", s.Shard)
	}
	return nil
}

// WithDefaults is the setup with every field that was left at zero filled in.
func (s Setup) WithDefaults() Setup {
	setDefault(&s.Batch, 1)
	setDefault(&s.Accumulate, 1)
	setDefault(&s.Ranks, 1)
	if s.Model != nil {
		s.fromConfig()
	}
	setDefault(&s.Precision, "amp_bf16")
	setDefault(&s.Optimizer, "adamw")
	s.Optimizer = tape.OptimizerName(s.Optimizer)
	s.fromTorch()
	setDefault(&s.Attention, "sdpa")
	if s.Model != nil {
		setDefault(&s.Seq, int(s.Model.DefaultSeq()))
	}
	s.fromDivision()
	if s.Shard == "" && s.spreadRanks() > 1 {
		s.Shard = "ddp"
	}
	s.fromShard()
	s.fromTrainer()
	return s
}

// The releases of torch that changed what a plain loop does.
const (
	foreachTorch    = 200 // optimizers take all parameters at once; gradients go to None
	leanSoftmax     = 111 // softmax keeps its result only
	expandableTorch = 201 // expandable_segments is known
	lazyTorch       = 113 // kernels are loaded when they are first used
)

// olderThan reports whether the setup's torch is one before a release.
func (s *Setup) olderThan(then int) bool {
	v := release(s.Torch)
	return v > 0 && v < then
}

// fromTorch fills in what an older torch does by default.
func (s *Setup) fromTorch() {
	if !s.olderThan(foreachTorch) {
		return
	}
	if loop := s.Optimizer + "_loop"; tape.KnownOptimizer(loop) == nil {
		s.Optimizer = loop
	}
	if !s.KeepGrads {
		s.KeepGrads = true
		s.say("before torch 2.0 zero_grad() keeps the gradients' memory")
	}
}

// fromConfig fills in what the model's configuration decides: the type of the weights, how they are
// packed, and the text model where the whole is not described.
func (s *Setup) fromConfig() {
	if text := s.Model.TextOnly(); text != nil {
		s.whole, s.Model = s.Model.Type(), text
	}
	if stored := s.Model.DType(); s.Precision == "" && (stored == "bfloat16" ||
		stored == "float16") {
		s.Precision = map[string]string{"bfloat16": "bf16", "float16": "fp16"}[stored]
		s.say("config.json stores the weights in %s, and from_pretrained loads them so; --precision "+
			"amp_bf16 plans autocast over fp32 weights", stored)
	}
	packed := s.Model.Quantization()
	if s.LoadIn == "" && packed.LoadIn != "" {
		s.LoadIn, s.DoubleQuant = packed.LoadIn, s.DoubleQuant || packed.Double
		s.say("config.json stores the weights in %s (%s): they stay packed and frozen, and LoRA adapters "+
			"are trained", packed.LoadIn, packed.Method)
	}
	if packed.Note != "" {
		s.say("%s", packed.Note)
	}
}

// say keeps a note for the prediction, once.
func (s *Setup) say(format string, args ...any) {
	if note := fmt.Sprintf(format, args...); !slices.Contains(s.said, note) {
		s.said = append(slices.Clone(s.said), note)
	}
}

func setDefault[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}

// run is how the model is used in this setup, with a batch of the given size.
func (s *Setup) run(batch, seq int) models.Run {
	objective, keep := s.objective()
	head := ""
	if s.paired() {
		batch *= 2
	}
	if s.Trainer == "reward" {
		head = "ForSequenceClassification"
	}
	var buffers *tape.DType
	if half, ok := halfType(s.Precision); ok && s.LoadIn != "" {
		buffers = &half
	}
	return models.Run{Objective: objective, Keep: keep, HeadName: head, Batch: int64(batch),
		Seq: s.ownTokens(seq), Image: int64(s.Image),
		Attn: s.Attention, Checkpointing: s.Checkpointing,
		Float: s.computeType(), Buffers: buffers, Padded: s.Padded, MaskGiven: !s.bare,
		ChannelsLast: s.ChannelsLast, ChunkLogits: s.ChunkedLoss, Cache: s.UseCache,
		Target: int64(s.TargetSeq), Transformers: release(s.Transformers), TRL: s.trl(),
		Division: s.division()}
}

// release is a version as 100*major+minor, 0 where it is none.
func release(version string) int {
	var major, minor int
	if n, _ := fmt.Sscanf(version, "%d.%d", &major, &minor); n != 2 {
		return 0
	}
	return 100*major + minor
}

// model builds the model for this setup.
func (s *Setup) model() (*models.Model, error) {
	m, err := models.New(s.Model, s.run(s.Batch, s.Seq))
	if err != nil {
		return nil, err
	}
	if err := s.adapt(m); err != nil {
		return nil, err
	}
	return m, nil
}

// modelOf builds the model for one of the setup's runs.
func (s *Setup) modelOf(v variant) (*models.Model, error) {
	other := *s
	if v.words {
		other.LossParallel = true
	}
	if !v.other {
		return other.model()
	}
	_, other.LoRATargets = s.unsaidTargets()
	return other.model()
}

// targetsUnsaid reports whether adapters are asked for and nobody said on which layers.
func (s *Setup) targetsUnsaid() bool { return s.LoRARank > 0 && len(s.LoRATargets) == 0 }

// wordsUnsaid reports whether it is open what tensor parallelism does with the vocabulary.
func (s *Setup) wordsUnsaid() bool { return s.Tensor > 1 && !s.LossParallel }

// unsaidTargets are the layers taken where nobody named them, and the other usual choice. Packed
// weights come with adapters on every linear layer: that is what QLoRA means and what its trainers
// set. Without packing PEFT's own default is taken.
func (s *Setup) unsaidTargets() (taken, other []string) {
	if s.LoadIn != "" {
		return []string{tape.AllLinear}, loraTargets
	}
	return loraTargets, []string{tape.AllLinear}
}

// loraTargets are the projections PEFT adapts by default, by the names the families use.
var loraTargets = []string{"q_proj", "v_proj", "c_attn", "query", "value", "query_key_value",
	"qkv_proj", "q_lin", "v_lin", "q", "v"}

// adapt applies what changes parameters: adapters, packed weights, freezing.
func (s *Setup) adapt(m *models.Model) error {
	if s.LoRARank > 0 {
		targets := s.LoRATargets
		if len(targets) == 0 {
			targets, _ = s.unsaidTargets()
		}
		if m.Root.AddLora(tape.Adapters{Rank: int64(s.LoRARank), Targets: targets,
			Dropout: s.LoRADropout, DoRA: s.DoRA}) == 0 {
			return fmt.Errorf("no layer for LoRA: %s has no linear layer named %s; use --lora-targets %s, or "+
				"names among %s",
				s.Model.Type(), strings.Join(targets, ", "), tape.AllLinear,
				strings.Join(m.Root.LinearNames(), ", "))
		}
	}
	if len(s.TrainWhole) > 0 && m.Root.TrainWhole(s.TrainWhole) == 0 {
		return fmt.Errorf("--modules-to-save: %s has no module named %s", s.Model.Type(),
			strings.Join(s.TrainWhole, " or "))
	}
	if s.LoadIn != "" {
		if s.LoRARank == 0 {
			return fmt.Errorf("weights in %s cannot be trained: add --lora-rank N", s.LoadIn)
		}
		bits := int64(8)
		if s.LoadIn == "4bit" {
			bits = 4
		}
		m.Root.Quantize(tape.Packing{Bits: bits, Double: s.DoubleQuant, Upcast: !s.NoUpcast})
	}
	if s.LoRARank > 0 && len(s.TrainOnly) > 0 && !slices.ContainsFunc(s.TrainOnly,
		func(name string) bool { return strings.Contains(name, "lora") }) {
		return fmt.Errorf("--train-only %s excludes the adapters that LoRA trains: add "+
			"--train-only lora to train both, or leave out --lora-rank", strings.Join(s.TrainOnly, ", "))
	}
	if len(s.TrainOnly) > 0 {
		m.Root.Freeze(s.TrainOnly)
		if m.Root.Trainable() == 0 {
			return fmt.Errorf("no parameter's name contains %s: nothing would be trained",
				strings.Join(s.TrainOnly, " or "))
		}
	}
	return nil
}

// The defaults of DeepSpeed: elements of a bucket of gradients, and how many gathered may stay.
const (
	zeroBucket = 500_000_000
	zeroLive   = 1_000_000_000
)

// zero is how DeepSpeed spreads states over the ranks, nil where it does not.
func (s *Setup) zero() *tape.Zero {
	stage, ok := strings.CutPrefix(s.Shard, "zero")
	if !ok {
		return nil
	}
	z := &tape.Zero{Stage: int64(stage[0] - '0'), Ranks: int64(s.spreadRanks()), Bucket: zeroBucket,
		Overlap: s.Overlap, Live: zeroLive}
	if s.Bucket > 0 {
		z.Bucket = s.Bucket
	}
	return z
}

// fullyShards reports whether PyTorch's own FSDP spreads the model.
func (s *Setup) fullyShards() bool {
	return s.Shard == "fsdp" || s.Shard == "fsdp1" || s.Shard == "hsdp"
}

// fsdp is how PyTorch's FSDP spreads the model, nil where it does not. Mixed precision is FSDP's
// own policy: fp32 parts, half-precision gathers, gradients summed in fp32.
func (s *Setup) fsdp() (*tape.FSDP, error) {
	if !s.fullyShards() {
		return nil, nil
	}
	f := &tape.FSDP{Ranks: int64(s.cut()), Stored: weightType(s.Precision), Keep: s.NoReshard,
		Flat: s.Shard == "fsdp1", Gather: s.computeType()}
	f.Reduce = f.Stored
	m, err := s.model()
	if err != nil {
		return nil, err
	}
	f.Blocks = blockNames(m)
	return f, nil
}

// computeType is the type in which the weights take part in the computation, where autocast does
// not decide it.
func (s *Setup) computeType() tape.DType {
	if s.fullyShards() || s.zero() != nil { // both keep masters in fp32 and compute in half
		switch s.Precision {
		case "amp_bf16":
			return tape.BF16
		case "amp_fp16":
			return tape.F16
		}
	}
	return weightType(s.Precision)
}

// blockNames lists the blocks that a forward pass of a model runs, in order.
func blockNames(m *models.Model) []string {
	var names []string
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

// settledBatches is how many micro-batches of a step are played: from the second on, each asks for
// the same.
const settledBatches = 4

// settledSteps is how many optimizer steps are played. The second has the optimizer's state; in
// the third and the fourth the cache may still split otherwise than before and reserve a little
// more, as measured runs did.
const settledSteps = 4

// loop is the training loop; order picks one of the orders in which samples of different lengths
// may come.
func (s *Setup) loop(order int) (loop, error) {
	precision := s.Precision
	if s.LoadIn != "" && !s.NoUpcast && (precision == "bf16" || precision == "fp16") {
		// what is not packed was cast to fp32: such models are trained under autocast
		precision = "amp_" + precision
	}
	l := loop{precision: precision, packed: s.LoadIn != "", int8: s.LoadIn == "8bit",
		optimizer: s.Optimizer, accumulate: int64(min(s.Accumulate,
			settledBatches)), clip: s.Clip, keepGrads: s.KeepGrads,
		channelsLast: s.ChannelsLast, steps: settledSteps,
		keepLogits: s.EvalKeep, autocast: s.Autocast, inBackward: s.InBackward}
	var err error
	if l.aside, err = s.aside(); err != nil {
		return loop{}, err
	}
	if s.varies() {
		for _, seq := range orderOf(order, s.Shortest, s.Seq) {
			in, err := s.batchOf(s.Batch, seq)
			if err != nil {
				return loop{}, err
			}
			l.batches = append(l.batches, in)
		}
		l.steps = len(l.batches)
	}
	if s.EvalBatch > 0 {
		in, err := s.batchOf(s.EvalBatch, s.Seq)
		if err != nil {
			return loop{}, err
		}
		l.evaluation = in
	}
	return l, nil
}

// batchOf makes batches of another size than the setup's own for its model.
func (s *Setup) batchOf(batch, seq int) (inputs, error) {
	m, err := models.New(s.Model, s.run(batch, seq))
	if err != nil {
		return nil, err
	}
	return inputs(m.Inputs), nil
}

// varies reports whether batches differ in length.
func (s *Setup) varies() bool { return s.Shortest > 0 && s.Shortest < s.Seq }

// lengthOrders is how many orders of lengths are tried, lengthSteps how many steps each has: after
// a dozen steps the allocator's cache has seen its worst.
const (
	lengthOrders = 6
	lengthSteps  = 12
)

// orderOf returns the lengths of the steps. Order 0 falls from the longest, and the others are
// random. Each has the longest sample.
func orderOf(order, shortest, longest int) []int {
	rng := rand.New(rand.NewPCG(1, uint64(order)))
	list := make([]int, lengthSteps)
	for i := range list {
		list[i] = shortest + rng.IntN(longest-shortest+1)
	}
	list[rng.IntN(lengthSteps)] = longest
	if order == 0 {
		slices.Sort(list)
		slices.Reverse(list)
	}
	return list
}
