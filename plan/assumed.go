package plan

import (
	"fmt"
	"strings"

	"memroom/allocsim"
	"memroom/models"
)

// assume puts down what a prediction rests on: the setup with its defaults filled in, the version
// of torch and the card. A card that nobody named is a warning too.
func (p *Prediction) assume(setup string, t *Target) {
	name := t.Card.Name
	switch {
	case !t.Given:
		name = "an " + name + ", as no card was named"
		p.warn("no card was named: the CUDA context of an %s is assumed (%s); name yours with --gpu "+
			"NAME|SIZE", t.Card.Name, t.Card.Context)
	case t.Card.Sized:
		name = "a card of " + name
	}
	p.Assumed = setup + ", on " + name
}

// AssumeStandard puts down what a standard step of a model that Python built rests on.
func (p *Prediction) AssumeStandard(s *Setup, t Target) {
	list := []string{fmt.Sprintf("batch %d", s.Batch)}
	if s.Accumulate > 1 {
		list = append(list, fmt.Sprintf("%d accumulated", s.Accumulate))
	}
	list = append(list, s.Precision, s.Optimizer)
	if s.Checkpointing {
		list = append(list, "checkpointing")
	}
	if s.Compile {
		list = append(list, "compiled")
	}
	if len(s.TrainOnly) > 0 {
		list = append(list, fmt.Sprintf("only %s trained", strings.Join(s.TrainOnly, ", ")))
	}
	name := t.Card.Name
	if !t.Given {
		name = "an " + name + ", as no card was named"
	}
	p.Assumed = strings.Join(list, ", ") + ", " + t.torch() + ", on " + name
}

// torch is the version whose allocator is modelled, in words.
func (t *Target) torch() string {
	if t.Torch == "" {
		return "torch " + allocsim.LatestChecked.String()
	}
	return "torch " + t.Torch
}

// words is the setup in a line: what every training has, and what of the rest is on.
func (s *Setup) words(image int64) string {
	list := []string{fmt.Sprintf("batch %d", s.Batch)}
	add := func(on bool, format string, args ...any) {
		if on {
			list = append(list, fmt.Sprintf(format, args...))
		}
	}
	add(s.Accumulate > 1, "%d accumulated", s.Accumulate)
	add(s.Seq > 0 && s.Shortest > 0, "sequence %d to %d", s.Shortest, s.Seq)
	add(s.Seq > 0 && s.Shortest == 0, "sequence %d", s.Seq)
	add(image > 0, "image %d", image)
	list = append(list, s.Precision, s.Optimizer)
	add(s.attends(), "%s attention", s.Attention)
	add(s.Checkpointing, "checkpointing")
	add(s.Compile, "compiled")
	add(s.Autocast, "autocast")
	add(s.TargetSeq > 0, "target %d", s.TargetSeq)
	add(s.Transformers != "", "transformers %s", s.Transformers)
	add(s.ChunkedLoss, "fused loss")
	add(s.Trainer != "", "%s", s.trainerWords())
	add(s.LoadIn != "", "weights in %s", s.LoadIn)
	add(s.DoubleQuant, "double quantisation")
	add(s.NoUpcast, "no upcast")
	add(s.LoRARank > 0, "LoRA rank %d", s.LoRARank)
	add(len(s.LoRATargets) > 0, "on %s", strings.Join(s.LoRATargets, ", "))
	add(s.DoRA, "DoRA")
	add(len(s.TrainWhole) > 0, "%s trained whole", strings.Join(s.TrainWhole, ", "))
	add(s.InBackward, "optimizer in the backward pass")
	add(len(s.TrainOnly) > 0, "only %s trained", strings.Join(s.TrainOnly, ", "))
	add(s.Ranks > 1, "%d ranks (%s)", s.Ranks, s.shardWords())
	add(len(s.Offload) > 0, "%s in host memory", strings.Join(s.Offload, " and "))
	add(s.EvalBatch > 0, "evaluation with batch %d", s.EvalBatch)
	add(s.AllocConf != "", "%s", s.AllocConf)
	return strings.Join(list, ", ")
}

// loraNote describes how adapters are applied.
func (s *Setup) loraNote() string {
	where := strings.Join(s.LoRATargets, ", ")
	switch {
	case where != "":
	case s.LoadIn != "":
		where = "all linear layers, as QLoRA has them (no --lora-targets is given: the interval goes " +
			"down to the query and value projections alone)"
	default:
		where = "the query and value projections (no --lora-targets is given: the interval goes up to " +
			"all linear layers, and decides whether it fits)"
	}
	rest := "everything else is frozen"
	if len(s.TrainOnly) > 0 {
		rest = "of the rest only --train-only is trained"
	}
	return fmt.Sprintf("LoRA as PEFT applies it: adapters in fp32 on %s; %s", where, rest)
}

// doubts lists what the setup asks of a kernel or a card that has it not. The bytes are counted as
// if it had.
func (s *Setup) doubts(t *Target) []string {
	var list []string
	add := func(on bool, format string, args ...any) {
		if on {
			list = append(list, fmt.Sprintf(format, args...))
		}
	}
	old := t.Given && !t.Card.Sized && t.Card.Capability < 80
	add(s.Attention == "flash" && s.Precision == "fp32",
		"flash attention takes half precision only: in fp32 it refuses to run; choose another "+
			"--precision, or --attn sdpa")
	add(s.Attention == "flash" && old,
		"flash attention needs a card of the Ampere generation or newer: on %s it refuses to run; choose "+
			"--attn sdpa", t.Card.Name)
	add(strings.HasSuffix(s.Precision, "bf16") && old,
		"%s computes no bfloat16: torch emulates it slowly or refuses; the card's own are amp_fp16 and "+
			"fp16", t.Card.Name)
	return list
}

// attends reports whether the model has attention layers, whose kernel matters.
func (s *Setup) attends() bool {
	switch s.Model.Type() {
	case "convnext", "convnextv2", "resnet", "torchvision", "mlp", "mamba", "":
		return false
	}
	return true
}

// maybePairs reports whether the setup may stand for preference training: adapters on a model that
// writes text, and a batch that divides into pairs. For other setups no note mentions pairs.
func (s *Setup) maybePairs() bool {
	head := s.Model.Architecture()
	return s.LoRARank > 0 && s.Batch > 0 && s.Batch%2 == 0 && models.Decodes(s.Model.Type()) &&
		(head == "" || head == "ForCausalLM" || head == "LMHeadModel")
}
