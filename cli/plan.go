package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"memroom/allocsim"
	"memroom/event"
	"memroom/models"
	"memroom/plan"
	"memroom/remedy"
	"memroom/report"
)

type planCmd struct {
	Args []string `arg:"" optional:"" name:"config" help:"A model by name (Qwen/Qwen2.5-7B, llama-3-8b, resnet50), its config.json, its folder or a .safetensors file. Or a file of a trainer (axolotl, LLaMA-Factory, TRL, torchtune, TrainingArguments, accelerate, DeepSpeed), with the model if the file names none. Nothing is downloaded. With --rehearse: the training command, after --."`

	Preset        string      `group:"Model and answer" help:"A model by name, even where a file is called so." placeholder:"NAME"`
	Batch         int         `help:"Micro-batch: what one forward pass sees." default:"1"`
	Seq           int         `help:"Tokens per sample. Speech: samples of audio; for Whisper the tokens of the text. Default: 1024, or the model's positions if fewer."`
	Image         int         `group:"Batches" help:"Side of the image in pixels. Default: the model's, or 224."`
	Precision     string      `help:"fp32, amp_bf16, amp_fp16 (autocast over fp32 weights), bf16 or fp16 (weights cast). Default: bf16 or fp16 if config.json stores the weights so, else amp_bf16." placeholder:"TYPE"`
	Optimizer     string      `help:"adamw, adamw_fused, adamw_loop, sgd, sgdm, rmsprop, adafactor, adamw8bit, paged_adamw8bit, lion, ... Names of Hugging Face's Trainer are known too." default:"adamw"`
	InBackward    bool        `group:"Training step" name:"optimizer-in-backward" help:"The optimizer steps each parameter as its gradient comes."`
	Checkpointing bool        `help:"Activation checkpointing of every block."`
	Attn          string      `group:"Training step" help:"sdpa, eager or flash (unvalidated)." default:"sdpa"`
	Accumulate    int         `group:"Batches" help:"Micro-batches per optimizer step." default:"1"`
	Clip          bool        `group:"Training step" help:"Gradients are clipped by norm."`
	KeepGrads     bool        `group:"Training step" help:"zero_grad(set_to_none=False): gradients stay in memory."`
	TrainOnly     []string    `group:"Training step" help:"Train only parameters whose name contains one of these." placeholder:"SUBSTR"`
	LoraRank      int         `help:"LoRA adapters of this rank; the rest is frozen." placeholder:"N"`
	LoraTargets   []string    `group:"Adapters and packed weights" help:"Linear layers that get adapters: their names, or all-linear. Default: all of them with --load-in, else the query and value projections; the interval covers both." placeholder:"NAMES"`
	LoraDropout   float64     `group:"Adapters and packed weights" help:"Dropout on the adapters' input." placeholder:"P"`
	Dora          bool        `group:"Adapters and packed weights" help:"DoRA: the magnitude of the adapted weights is trained separately."`
	ModulesToSave []string    `group:"Adapters and packed weights" help:"Modules that are trained whole beside the adapters, such as lm_head,embed_tokens." placeholder:"NAMES"`
	LoadIn        string      `help:"Load the weights in 4bit (nf4 or fp4) or 8bit, for LoRA." placeholder:"8bit|4bit"`
	DoubleQuant   bool        `group:"Adapters and packed weights" help:"The scales of 4-bit weights are quantised too."`
	NoUpcast      bool        `group:"Adapters and packed weights" help:"Weights that are not packed stay in half precision; prepare_model_for_kbit_training casts them to fp32."`
	Loss          string      `group:"Training step" help:"fused: a loss that never holds all logits, such as Liger's (unvalidated)." enum:"plain,fused" default:"plain" placeholder:"KIND"`
	Autocast      bool        `group:"Training step" help:"Autocast over weights in half precision, as Trainer's bf16=True on a model loaded in bf16."`
	Trainer       string      `group:"Trainers of TRL" help:"A trainer of TRL: sft, dpo, orpo, kto, reward, grpo, rloo or ppo (unvalidated). Pairs count as one of --batch." placeholder:"NAME"`
	Reference     string      `group:"Trainers of TRL" help:"With --trainer: copy for a frozen reference model on the same card, none if its outputs were computed before. Default: copy; none for grpo." placeholder:"KIND"`
	Completion    int         `group:"Trainers of TRL" help:"With --trainer: tokens of --seq that are learnt or generated. Default: all; half for those that generate." placeholder:"N"`
	TRL           string      `group:"Trainers of TRL" name:"trl" help:"Version of TRL whose trainer is planned: before 1.15 it made whole logits. Default: 1.16." placeholder:"VERSION"`
	EngineShare   float64     `group:"Trainers of TRL" help:"With --trainer grpo, rloo or ppo: share of the card that an inference engine such as vLLM keeps." placeholder:"0.3"`
	TargetSeq     int         `group:"Batches" help:"Tokens of the target of an encoder-decoder. Default: --seq." placeholder:"N"`
	Transformers  string      `group:"Training step" help:"Version of transformers that computes the loss: before 4.49 it copied the logits. Default: the newest." placeholder:"VERSION"`
	Compile       bool        `group:"Training step" help:"The model is compiled by torch.compile. With a Python that has torch and transformers, memroom asks its compiler; without one the interval is wide."`
	Ranks         int         `group:"Several cards" help:"Data-parallel ranks (unvalidated). With --rehearse: those of the command; what torchrun or accelerate is told is known." default:"1"`
	Shard         string      `group:"Several cards" help:"ddp, fsdp (fully_shard), fsdp1 (FullyShardedDataParallel), hsdp (fully_shard in groups, see --replicas), zero1, zero2 or zero3 (DeepSpeed)." placeholder:"KIND"`
	NoReshard     bool        `group:"Several cards" help:"FSDP keeps gathered weights from forward to backward (reshard_after_forward=False, SHARD_GRAD_OP)."`
	Bucket        int64       `group:"Several cards" help:"DeepSpeed: elements summed at once (reduce_bucket_size). Default: 500 million." placeholder:"N"`
	Overlap       bool        `group:"Several cards" help:"DeepSpeed: overlap_comm, which takes a second bucket."`
	Offload       []string    `group:"Training step" help:"Keep optimizer, activations or (zero3, fsdp) parameters in host memory (unvalidated). With FSDP parameters take their gradients and the optimizer along." placeholder:"WHAT"`
	ChannelsLast  bool        `group:"Training step" help:"Images and convolutions in channels-last order."`
	Padded        bool        `group:"Batches" help:"The longest sample sets --seq and others are padded: attention needs a mask."`
	Packed        bool        `group:"Batches" help:"Several samples are packed into one sequence of --seq tokens: attention needs a mask, unless --attn flash."`
	UseCache      bool        `group:"Batches" help:"Decoders keep keys and values while they train: plain loops do unless use_cache=False, Hugging Face's Trainer does not."`
	Shortest      int         `group:"Batches" help:"Samples have from so many tokens up to --seq, in any order." placeholder:"N"`
	EvalBatch     int         `group:"Batches" help:"An evaluation without gradients after the step, with this batch." placeholder:"N"`
	EvalKeep      int         `group:"Batches" help:"Evaluation batches whose logits stay on the card until the evaluation ends, as with compute_metrics." placeholder:"N"`
	AllocConf     string      `group:"Card and allocator" help:"Allocator settings as in PYTORCH_CUDA_ALLOC_CONF." placeholder:"STR"`
	AllocLimit    event.Bytes `group:"Card and allocator" help:"Cap on reserved bytes, as set_per_process_memory_fraction sets it." placeholder:"SIZE"`
	Torch         string      `group:"Card and allocator" help:"PyTorch version whose allocator is modelled." default:"2.11"`
	GPU           string      `name:"gpu" help:"The whole card: a name such as H200, A100-80GB, 4090, or a size such as 24GiB. The longest sequence that fits is searched too; because of fragmentation a slightly shorter one may not fit." placeholder:"NAME|SIZE"`
	Here          bool        `group:"Card and allocator" help:"Plan for the card of this machine, minus what others hold on it now."`
	chooseFlags   `embed:""`
	rehearseFlags `embed:""`
	parallelFlags `embed:""`
	rank          int         // that is rehearsed, of Ranks
	perNode       int         // ranks of one machine, if the launcher's options set it
	elastic       bool        // the launcher is torchrun, or stands on it
	environ       []string    // of the rehearsed command; nil: ours
	resident      event.Bytes // the most that it held
	// what a trainer's file said about types: of autocast, of the weights
	fileHalf, fileWeights string
	file                  fileSpread
	Python                string   `group:"Model and answer" help:"Python with torch and transformers (or diffusers), which builds models that are not described here; none for no Python. Default: that of the active environment, or on PATH." placeholder:"PATH"`
	Fit                   bool     `help:"Find the cheapest set of remedies with which it fits, with the flags for your trainer. With --devices: on how many of the cards it fits, sharded how."`
	Allow                 []string `group:"Model and answer" help:"With --fit: remedies that change the mathematics, by kind: precision, quantize, optimizer, lora." placeholder:"KIND"`
	Devices               []string `help:"Spread the model over several cards, such as 2x24GiB,1x12GiB, and print a device_map." placeholder:"LIST"`
	JSON                  bool     `name:"json" help:"Print JSON; a failure too, as {\"error\": ...}, with the same exit codes."`
	HTML                  string   `group:"Model and answer" name:"html" help:"Write a self-contained page." placeholder:"FILE"`
}

func (planCmd) examples() []example {
	return []example{
		{line: "memroom plan examples/files/config.json --batch 8 --seq 512 --gpu 24GiB"},
		{line: "memroom plan meta-llama/Llama-3.1-8B --seq 2048 --gpu 4090", code: exitDoesNotFit},
		{line: "memroom plan gpt2 --batch 8 --seq 512 --alloc-limit 12GiB --json"},
		{line: "memroom plan gpt2 --batch 32 --seq 512 --gpu 12GiB --fit"},
		{line: "memroom plan gpt2 --batch 64 --seq 1024 --cards"},
		{line: "memroom plan gpt2 --sweep batch=1..16,seq=256..1024 --gpu 4090"},
		{line: "memroom plan gpt2 --batch 8 --seq 1024 --shortest 128 --eval-batch 16"},
		{line: "memroom plan llama-3.2-1b --batch 4 --seq 1024 --devices 2x24GiB,1x12GiB"},
		{line: "memroom plan llama-3.2-1b --batch 1 --seq 512 --devices 4x16GiB --fit"},
	}
}

func (c *planCmd) Run(s *session) error {
	defer s.putAway()()
	p, err := c.predict(s)
	if err != nil || p == nil {
		return err
	}
	return c.answer(s, p)
}

// predict answers for one setup or command; nil where a search was asked for, which has printed its
// answer.
func (c *planCmd) predict(s *session) (*plan.Prediction, error) {
	if err := c.check(); err != nil {
		return nil, usageError(err)
	}
	if c.Rehearse {
		return c.rehearse(s)
	}
	if err := c.useRecipe(s); err != nil {
		return nil, err
	}
	model, err := c.model(s)
	if err != nil {
		return nil, err
	}
	target, err := c.target()
	if err != nil {
		return nil, err
	}
	described := models.Known(model.Type())
	if model.Type() == "" && !model.Has("_class_name") {
		return nil, usageError(fmt.Errorf("%s: %w", c.Args[0], &models.UnknownTypeError{}))
	}
	if (!described && c.Preset == "" || c.compiles(model)) && !c.Cards && len(c.Sweep) == 0 {
		python, err := c.findPython(s.ctx, library(model))
		if err != nil {
			return nil, err
		}
		if python != "" {
			p, err := c.throughPython(s, python, model, target)
			if !described || !errors.As(err, &cannotError{}) {
				return p, err
			}
			s.note("%v; planned without Python", err)
		}
	}
	if err := c.checkModel(model); err != nil {
		return nil, usageError(err)
	}
	switch {
	case c.Cards:
		return nil, c.onCards(s, model, target)
	case len(c.Sweep) > 0:
		return nil, c.sweep(s, model, target)
	case len(c.Devices) > 0 && c.Fit:
		return nil, c.sharding(s, model, target)
	case len(c.Devices) > 0:
		return nil, c.deviceMap(s, model, target)
	case c.Fit:
		return nil, c.cheapest(s, model, target)
	}
	return plan.Predict(c.setup(model), target)
}

// answer prints a prediction and returns the exit code.
func (c *planCmd) answer(s *session, p *plan.Prediction) error {
	if c.HTML != "" {
		if err := writePage(c.HTML, p); err != nil {
			return err
		}
		s.note("wrote %s", c.HTML)
	}
	if c.JSON {
		if err := s.printJSON(p); err != nil {
			return err
		}
	} else if err := report.Plan(s.Out, p, s.color); err != nil {
		return err
	}
	if p.Fits != nil && !*p.Fits {
		return exitQuietly(exitDoesNotFit)
	}
	return nil
}

func writePage(path string, p *plan.Prediction) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	if err := report.PlanPage(f, p); err != nil {
		f.Close()
		return fmt.Errorf("write %s: %w", path, err)
	}
	return f.Close()
}

// setup turns the flags into a setup.
func (c *planCmd) setup(model *models.Config) plan.Setup {
	s := plan.Setup{Model: model, Padded: c.Padded || c.Packed && c.Attn != "flash",
		UseCache: c.UseCache, Shortest: c.Shortest,
		EvalBatch: c.EvalBatch, EvalKeep: c.EvalKeep, LoRATargets: c.LoraTargets,
		LoRADropout: c.LoraDropout, DoubleQuant: c.DoubleQuant, NoUpcast: c.NoUpcast,
		Autocast: c.Autocast, DoRA: c.Dora, TrainWhole: c.ModulesToSave, InBackward: c.InBackward,
		TargetSeq: c.TargetSeq, Transformers: c.Transformers,
		Compile: c.Compile, NoReshard: c.NoReshard, Bucket: c.Bucket, Overlap: c.Overlap,
		Trainer: c.Trainer, TRL: c.TRL, Reference: c.Reference, Completion: c.Completion,
		Engine: c.EngineShare,
		Setup: remedy.Setup{
			Batch: c.Batch, Seq: c.Seq, Image: c.Image, Precision: c.Precision,
			Optimizer:     c.Optimizer,
			Checkpointing: c.Checkpointing,
			Attention:     c.Attn, Accumulate: c.Accumulate, Clip: c.Clip, KeepGrads: c.KeepGrads,
			TrainOnly: c.TrainOnly,
			LoRARank:  c.LoraRank, LoadIn: c.LoadIn, Ranks: c.Ranks, Shard: c.Shard,
			Offload:      c.Offload,
			ChannelsLast: c.ChannelsLast, ChunkedLoss: c.Loss == "fused",
			AllocConf: c.AllocConf, Torch: c.Torch,
		}}
	c.parallelFlags.spread(&s)
	return s
}

func (c *planCmd) target() (plan.Target, error) {
	t := plan.Target{Card: plan.DefaultCard(), AllocLimit: c.AllocLimit, Torch: c.Torch}
	conf, err := allocsim.ParseConf(c.AllocConf)
	if err != nil {
		return t, fmt.Errorf("--alloc-conf: %w", err)
	}
	t.Alloc = conf
	switch {
	case c.GPU != "":
		if t.Card, err = plan.FindCard(c.GPU); err != nil {
			return t, err
		}
		t.Given = true
		if c.Here {
			_, held, err := hereCard()
			if err != nil {
				return t, err
			}
			t.Neighbours = held
		}
	case c.Here:
		card, held, err := hereCard()
		if err != nil {
			return t, err
		}
		t.Card, t.Neighbours, t.Given = card, held, true
	}
	return t, calibrated(&t)
}

// model reads the configuration that the command line names. A model that is known by name alone
// becomes the preset.
func (c *planCmd) model(s *session) (*models.Config, error) {
	model, err := chooseModel(c.Preset, c.Args)
	if err != nil || c.Preset != "" {
		return model, err
	}
	if _, missing := configFile(c.Args[0]); missing != nil {
		if known := models.PresetName(c.Args[0]); known != c.Args[0] {
			s.note("%s is not on this machine: planned with the published sizes of %s", c.Args[0], known)
		}
		c.Preset, c.Args = c.Args[0], nil
	}
	return model, nil
}

func chooseModel(preset string, args []string) (*models.Config, error) {
	switch {
	case preset != "" && len(args) > 0:
		return nil, usageError(fmt.Errorf("give a model (%s) or --preset %s, not both", args[0], preset))
	case preset != "":
		return models.Preset(preset)
	case len(args) == 0:
		return nil, usageError(fmt.Errorf("no model: name one (memroom plan Qwen/Qwen2.5-7B), or give a " +
			"config.json, its folder or a trainer's file"))
	case len(args) > 1:
		return nil,
			usageError(fmt.Errorf("one model at a time: %q is one too many; to plan a "+
				"training command, add --rehearse and write the command after --", args[1]))
	}
	return findModel(args[0])
}

// findModel reads the model that a word means: a file or folder here, a model id in the local
// Hugging Face cache, or a model that is known by name. Nothing is downloaded.
func findModel(word string) (*models.Config, error) {
	_, err := configFile(word)
	if err == nil {
		if strings.HasSuffix(word, ".py") {
			return nil, usageError(fmt.Errorf("%s is a script: memroom plan --rehearse --gpu 24GiB -- python %s "+
				"plans from what it asks for", word, word))
		}
		return readModel(word)
	}
	if !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	model, unknown := models.Preset(word)
	if unknown == nil {
		return model, nil
	}
	if looksLikeFile(word) {
		return nil, usageError(err)
	}
	return nil, usageError(fmt.Errorf("%w It is no file here and not in the local Hugging Face cache "+
		"either; memroom downloads nothing: give its config.json", unknown))
}

// looksLikeFile reports whether a word can only be meant as a path.
func looksLikeFile(word string) bool {
	return slices.Contains([]string{".json", ".yml", ".yaml", ".toml", ".safetensors", ".py"},
		strings.ToLower(filepath.Ext(word))) || strings.HasPrefix(word, ".") ||
		filepath.IsAbs(word) || strings.Count(word, "/") > 1
}

// maxConfigFile bounds what is read: a configuration is a few KiB, some with label lists are a few
// hundred.
const maxConfigFile = 16 << 20

// configFile is the file that an argument means: itself, the one in a folder, or that of a model id
// in the local Hugging Face cache.
func configFile(path string) (string, error) {
	info, err := os.Stat(path)
	if err != nil {
		if cached := cachedModel(path); cached != "" {
			return cached, nil
		}
		return "", err
	}
	if !info.IsDir() {
		return path, nil
	}
	inside := filepath.Join(path, "config.json")
	if _, err := os.Stat(inside); err != nil {
		return "",
			fmt.Errorf("%s holds no config.json: give the file itself, or a folder as save_pretrained writes "+
				"it", path)
	}
	return inside, nil
}

func readModel(path string) (*models.Config, error) {
	path, err := configFile(path)
	if err != nil {
		return nil, err
	}
	if strings.HasSuffix(path, ".safetensors") || strings.HasSuffix(path,
		".safetensors.index.json") {
		return readBeside(path)
	}
	if info, err := os.Stat(path); err != nil {
		return nil, err
	} else if !info.Mode().IsRegular() || info.Size() > maxConfigFile {
		return nil, fmt.Errorf("%s is not a configuration: expected a JSON file of at most %s",
			path, event.Bytes(maxConfigFile))
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	config, err := models.ParseConfig(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return config, nil
}

// readBeside finds the configuration of a weights file. It looks for config.json in the same
// folder, and falls back to the names and shapes in the file's header.
func readBeside(path string) (*models.Config, error) {
	beside := filepath.Join(filepath.Dir(path), "config.json")
	if _, err := os.Stat(beside); err == nil {
		return readModel(beside)
	}
	if !strings.HasSuffix(path, ".safetensors") {
		return nil, fmt.Errorf("no config.json next to %s", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	config, err := models.FromSafetensors(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return config, nil
}
