package main

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"memroom/models"
	"memroom/plan"
)

// setup is the row's setup: its flags, and what flags can say since then.
func (r *row) setup() (s plan.Setup, gpu string, err error) {
	words := strings.Fields(r.Flags)
	for i := 0; i < len(words); i++ {
		switch words[i] {
		case "--checkpointing":
			s.Checkpointing = true
			continue
		case "--clip":
			s.Clip = true
			continue
		case "--keep-grads":
			s.KeepGrads = true
			continue
		}
		if i+1 == len(words) {
			return s, gpu, fmt.Errorf("flag %s has no value", words[i])
		}
		if err := setFlag(&s, &gpu, words[i], words[i+1]); err != nil {
			return s, gpu, err
		}
		i++
	}
	r.express(&s)
	r.fromSource(&s)
	return s, gpu, nil
}

// setFlag sets one flag with a value.
func setFlag(s *plan.Setup, gpu *string, flag, value string) error {
	texts := map[string]*string{"--precision": &s.Precision, "--optimizer": &s.Optimizer,
		"--attn": &s.Attention, "--shard": &s.Shard, "--load-in": &s.LoadIn, "--gpu": gpu}
	numbers := map[string]*int{"--batch": &s.Batch, "--seq": &s.Seq, "--shortest": &s.Shortest,
		"--accumulate": &s.Accumulate, "--ranks": &s.Ranks, "--lora-rank": &s.LoRARank}
	if text, ok := texts[flag]; ok {
		*text = value
		return nil
	}
	if flag == "--offload" {
		s.Offload = append(s.Offload, value)
		return nil
	}
	number, ok := numbers[flag]
	if !ok {
		return fmt.Errorf("flag %s is not known here", flag)
	}
	n, err := strconv.Atoi(value)
	*number = n
	return err
}

// sayable are the row's remarks that flags can say today, and what they set.
var sayable = []struct {
	remark string
	set    func(*plan.Setup)
}{
	{"lora targets q,k,v,o", func(s *plan.Setup) {
		s.LoRATargets = []string{"q_proj", "k_proj", "v_proj", "o_proj"}
	}},
	{"lora targets all linear", func(s *plan.Setup) { s.LoRATargets = []string{"all-linear"} }},
	{"lora dropout 0.1", func(s *plan.Setup) { s.LoRADropout = 0.1 }},
	{"fp32 upcast", func(s *plan.Setup) { s.NoUpcast = true }},
	{"double quantisation", func(s *plan.Setup) { s.DoubleQuant = true }},
	{"bf16 weights under bf16 autocast", func(s *plan.Setup) { s.Autocast = true }},
	{"optimizer in backward", func(s *plan.Setup) { s.InBackward = true }},
	{"GaLore", func(s *plan.Setup) { s.Optimizer = "galore_adamw" }},
	{"paged optimizer", func(s *plan.Setup) { s.Optimizer = "paged_adamw_8bit" }},
	{"a context of 1343 MB (torch 1.10", func(*plan.Setup) {}}, // follows from the release
	{"ZeRO-3 buckets", func(*plan.Setup) {}},
	{"sharding of 4-bit weights", func(*plan.Setup) {}},
	{"FSDP of 4-bit weights", func(*plan.Setup) {}},
	{"FSDP mixed precision", func(*plan.Setup) {}},
	{"Liger", func(s *plan.Setup) { s.ChunkedLoss = true }},
	{"chunked cross-entropy", func(s *plan.Setup) { s.ChunkedLoss = true }},
}

// release finds the version behind a name, such as "torch 2.4.1".
func releaseIn(text, name string) string {
	found := regexp.MustCompile(`\b` + name + ` (?:about )?(\d+\.\d+)`).FindStringSubmatch(text)
	if found == nil {
		return ""
	}
	return found[1]
}

// releases are those of torch and transformers that the source names. The table of PEFT's readme is
// of early 2023; what it left open was done as transformers did then.
func (r *row) releases() (torch, transformers string) {
	text := r.Source + " " + strings.Join(r.Unknown, " ")
	torch, transformers = releaseIn(text, "torch"), releaseIn(text, "transformers")
	if torch == "" {
		torch = "2.11"
	}
	if transformers == "" && strings.HasPrefix(r.ID, "peft-readme:") {
		transformers = "4.27"
	}
	return torch, transformers
}

// fromSource sets what the source's own programs do and its table does not say: accelerate wrapped
// with FSDP1 then, fms-acceleration packs scales twice (framework_plugin_bnb.py) and casts nothing
// to fp32, and torchtune's recipes use the fused AdamW.
func (r *row) fromSource(s *plan.Setup) {
	if s.Shard == "fsdp" {
		s.Shard = "fsdp1"
	}
	if strings.Contains(r.Setup.Precision, "bf16 weights + bf16 autocast") && s.Precision == "bf16" {
		s.Autocast = true
	}
	switch {
	case strings.HasPrefix(r.ID, "fms:"):
		s.DoubleQuant = s.LoadIn == "4bit"
		s.NoUpcast = s.LoadIn != "" && (s.Shard != "" || strings.Contains(r.ID, "accelerated-peft-bnb"))
	case strings.HasPrefix(r.ID, "torchtune:") && s.Optimizer == "":
		s.Optimizer = "adamw_fused"
	}
}

// matters are words for facts that a source leaves out and that change its figure. Such a row is
// answered, but its error is no measure of our prediction.
var matters = []string{"order of lengths", "remote-code", "LoRA rank", "precision, optimizer, card",
	"size of the card", "longest sample", "loss implementation", "samples may"}

// unknown is what the source leaves out and matters; "" if nothing.
func (r *row) unknown() string {
	for _, said := range r.Unknown {
		for _, word := range matters {
			if strings.Contains(said, word) {
				return said
			}
		}
	}
	return ""
}

// express sets what the row's remarks say and flags can say today.
func (r *row) express(s *plan.Setup) {
	for _, remark := range r.Beyond {
		for _, known := range sayable {
			if strings.Contains(remark, known.remark) {
				known.set(s)
			}
		}
	}
	if s.LoadIn == "" {
		s.NoUpcast, s.DoubleQuant = false, false
	}
	if s.InBackward {
		s.Clip, s.Accumulate = false, 1
	}
	if strings.HasPrefix(r.ID, "peft-readme:") && models.HasTarget(fmt.Sprint(r.Config["model_type"])) {
		s.TargetSeq = 4 // "targets are a few tokens"
	}
	if s.LoRARank == 0 {
		s.LoRATargets, s.LoRADropout = nil, 0
	}
}

// left is what the row does differently and no flag can say; "" if nothing.
func (r *row) left() string {
	var list []string
	for _, remark := range r.Beyond {
		said := false
		for _, known := range sayable {
			said = said || strings.Contains(remark, known.remark)
		}
		if !said || strings.Contains(remark, "litgpt") || strings.Contains(remark, "+ head") ||
			strings.Contains(remark, "fused kernels") {
			list = append(list, remark)
		}
	}
	if said := r.unknown(); said != "" {
		list = append(list, "not said: "+said)
	}
	return strings.Join(list, "; ")
}

// reason is why a row may be far off: what no flag can say, or what its figure is. Rows that only
// the latter explains stay in the medians.
func (r *row) reason(card plan.Card) string {
	const filled = 0.92 // of the card
	switch left := r.left(); {
	case left != "":
		return left
	case r.Measure == "?":
		return "not said: what was measured"
	case strings.HasPrefix(r.ID, "fms:santacoder:QLoRA4:"):
		return "inferred from its batches: logits and an fp32 copy of them held through the backward pass"
	case strings.HasPrefix(r.ID, "fms:llama-2-70b:QLoRA4:") && strings.Contains(r.ID, ":2gpu:"):
		return "inferred from its batches: two cards hold 5 GiB a sample more than one, as all checkpoints"
	case strings.HasPrefix(r.Measure, "nvidia-smi") &&
		float64(r.Published) > filled*float64(card.Total):
		return "the figure fills the card: nvidia-smi counts what the allocator keeps unused"
	}
	return ""
}
