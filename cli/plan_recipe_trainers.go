package cli

import (
	"fmt"
	"strings"
)

// useObjective takes which kind of preference or reinforcement training a file asks for.
func (c *planCmd) useObjective(r *recipe, s setting, name string) bool {
	text := strings.ToLower(fmt.Sprint(s.value))
	number, isNumber := asNumber(s.value)
	switch name {
	case "rl", "stage", "rlhf_type": // axolotl, LLaMA-Factory, ms-swift
		c.nameTRL(wholeLogits)
		return c.useTrainerName(r, s, text)
	case "pref_loss": // LLaMA-Factory: the kind of dpo
		return strings.EqualFold(fmt.Sprint(r.all["stage"]), "dpo") && c.useTrainerName(r, s, text)
	case "reward_model": // axolotl: this is to become one. LLaMA-Factory: the path of PPO's judge
		if s.value == true {
			c.nameTrainer("reward")
		}
	case "num_generations":
		c.nameTrainer("grpo")
	case "num_ppo_epochs", "ppo_epochs":
		c.nameTrainer("ppo")
	case "ref_model", "ref_adapters", "precompute_ref_log_probs", "reference_free":
		if r.all["num_generations"] == nil && r.all["rl"] == nil && r.all["stage"] == nil {
			c.nameTrainer("dpo")
		}
		if asBool(s.value) && name != "ref_model" && name != "ref_adapters" {
			c.Reference = "none"
		}
	case "max_completion_length", "response_length":
		setInt(&c.Completion, 0, number, isNumber)
	case "vllm_gpu_memory_utilization":
		if f, ok := asFloat(s.value); ok && c.EngineShare == 0 && beside(r.all) {
			c.EngineShare = f
		}
	case "use_vllm", "vllm_mode", "max_prompt_length", "temperature", "reward_funcs", "loss_type",
		"reward_weights", "vllm_server_base_url", "kl_coef", "num_iterations", "epsilon",
		"steps_per_generation": // read together with others, or of no bytes
	default:
		switch s.within() + "." + name {
		case "loss._component_":
			if !strings.Contains(text, "dpoloss") {
				return false
			}
			c.nameTrainer("dpo")
			c.nameTRL(wholeLogits)
		default:
			return false
		}
	}
	return true
}

// wholeLogits is the last TRL that made whole logits, as trainers of others still do.
const wholeLogits = "1.14"

// nameTRL takes the release of TRL whose steps a file's trainer has, where nobody named one.
func (c *planCmd) nameTRL(release string) {
	if c.TRL == "" {
		c.TRL = release
	}
}

// beside reports whether a file's inference engine runs on the cards that train.
func beside(all map[string]any) bool {
	return asBool(all["use_vllm"]) && strings.EqualFold(fmt.Sprint(all["vllm_mode"]), "colocate")
}

// nameTrainer takes a trainer that nobody on the command line named.
func (c *planCmd) nameTrainer(name string) {
	if c.Trainer == "" {
		c.Trainer = name
	}
}

// useTrainerName selects a trainer by its name in axolotl, LLaMA-Factory or ms-swift.
func (c *planCmd) useTrainerName(r *recipe, s setting, name string) bool {
	switch name {
	case "sft", "pt", "pretrain", "false", "none":
	case "dpo", "ipo", "sigmoid", "hinge", "robust", "bco_pair":
		if pref := strings.ToLower(fmt.Sprint(r.all["pref_loss"])); name == "dpo" && (pref == "orpo" ||
			pref == "simpo") {
			return true // said there
		}
		c.nameTrainer("dpo")
	case "simpo", "cpo": // pairs without a reference
		c.nameTrainer("dpo")
		c.Reference = "none"
	case "orpo", "kto", "grpo", "ppo":
		c.nameTrainer(name)
	case "rm", "reward":
		c.nameTrainer("reward")
	default:
		if _, isNumber := asNumber(s.value); isNumber {
			return false // DeepSpeed's stage
		}
		r.unknown = append(r.unknown, strings.Join(s.path, ".")+": "+name)
	}
	return true
}

// settleTrainer takes what only several settings together say.
func (c *planCmd) settleTrainer(r *recipe) {
	if c.Trainer == "" {
		c.TRL = ""
	}
	if c.Trainer != "grpo" && c.Trainer != "ppo" {
		c.Completion, c.EngineShare = 0, 0
		return
	}
	prompt, isNumber := asNumber(r.all["max_prompt_length"])
	if c.Seq == 0 && isNumber && c.Completion > 0 {
		c.Seq = prompt + c.Completion
	}
	if beta, ok := asFloat(r.all["beta"]); ok && beta > 0 && c.Reference == "" {
		c.Reference = "copy"
	}
	if asBool(r.all["use_vllm"]) && !beside(r.all) {
		r.unknown = append(r.unknown, "use_vllm: an engine on other cards, so answers are planned as if "+
			"they were generated here (--engine-share plans one on this card)")
	}
}
