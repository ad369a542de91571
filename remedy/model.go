package remedy

import (
	"fmt"

	"memroom/event"
)

// quantized: weights in fewer bits.
func quantized() []*Remedy {
	return []*Remedy{
		quantize(Quantize8Bit, "8bit", "load the frozen weights in 8 bits",
			"weights of linear layers take one byte a parameter"),
		quantize(Quantize4Bit, "4bit", "load the frozen weights in 4 bits",
			"weights of linear layers take about half a byte a parameter"),
	}
}

func quantize(id ID, loadIn, title, why string) *Remedy {
	return &Remedy{
		ID:          id,
		Title:       title,
		Why:         why,
		Equivalence: Changes,
		Consent:     "quantize",
		Walls:       []event.Where{event.WhereGPU, event.WhereHost, event.WhereCgroup},
		Frameworks:  torch,
		Levels:      []Level{LevelProcess},
		Unvalidated: noBitsandbytes,
		on:          func(s Setup) bool { return s.LoadIn == loadIn || s.LoadIn == "4bit" },
		rewrite: func(s Setup) (Setup, bool) {
			s.LoadIn = loadIn
			if s.LoRARank == 0 {
				s.LoRARank = usualRank
			}
			return s, s.Image == 0
		},
		// weights are widened again for every product
		slowdown: constant(map[string]float64{"8bit": 1.3, "4bit": 1.25}[loadIn]),
		how:      func(job Job, after Setup) How { return howQuantize(job, after, loadIn) },
	}
}

// howQuantize writes the loading, and the adapters where the job has none: packed weights cannot be
// trained.
func howQuantize(job Job, after Setup, loadIn string) How {
	option := "load_in_" + loadIn
	kind := map[string]string{"8bit": "lora", "4bit": "qlora"}[loadIn]
	code := lines("from transformers import BitsAndBytesConfig",
		"model = AutoModelForCausalLM.from_pretrained(name, quantization_config=BitsAndBytesConfig("+option+"=True))")
	args := map[Trainer]string{
		Transformers: "--" + option +
			"   # a flag of scripts built on TRL, else quantization_config=BitsAndBytesConfig(" +
			option + "=True) in from_pretrained",
		Axolotl: option + ": true\nadapter: " + kind,
		VLLM: map[string]string{"8bit": "--quantization fp8",
			"4bit": "--quantization bitsandbytes"}[loadIn],
	}
	if job.trains() && (job.Setup == nil || job.Setup.LoRARank == 0) {
		rank := loraRank(after)
		code += "\n" + loraCode(rank)
		args[Transformers] = fmt.Sprintf("--%s --use_peft --lora_r %d   # flags of scripts built on TRL: "+
			"LoRA adapters of rank %d are trained, the packed weights stay as they are; else in code: "+
			"quantization_config=BitsAndBytesConfig(%s=True) in from_pretrained, then get_peft_model(model, "+
			"LoraConfig(r=%d))",
			option, rank, rank, option, rank)
		args[Axolotl] += fmt.Sprintf("\nlora_r: %d\nlora_target_modules: [q_proj, v_proj]", rank)
	}
	if job.Trainer == VLLM || job.Program != "" {
		return How{Args: quantizedBy(job, args[VLLM])}
	}
	return How{Args: args[job.Trainer], Code: code}
}

// quantizedBy is how programs that serve or generate take packed weights.
func quantizedBy(job Job, vllm string) string {
	switch job.Program {
	case "", "vllm":
		return vllm
	case "tgi":
		return "--quantize bitsandbytes   # or a checkpoint packed by AWQ or GPTQ"
	case "llama.cpp", "ollama":
		return "a file with fewer bits a weight (Q4_K_M instead of Q8_0 or F16)"
	case "sglang":
		return "--quantization fp8"
	}
	return "weights in fp8 or a packed file (GGUF), where the program reads one"
}

// usualRank is the adapters' rank if the setup has none.
const usualRank = 16

func loraRank(s Setup) int {
	if s.LoRARank > 0 {
		return s.LoRARank
	}
	return usualRank
}

// loraCode makes adapters where PEFT puts them by default; those are what a plan counts.
func loraCode(rank int) string {
	return lines("from peft import LoraConfig, get_peft_model",
		fmt.Sprintf("model = get_peft_model(model, LoraConfig(r=%d))   # adapters on the query and value "+
			"projections", rank))
}

// howLoRA writes adapters of the setup's rank.
func howLoRA(job Job, after Setup) How {
	rank := loraRank(after)
	args := map[Trainer]string{
		Axolotl: fmt.Sprintf("adapter: lora\nlora_r: %d\nlora_target_modules: [q_proj, v_proj]",
			rank),
		Torchtune: "model=lora_llama3_8b   # the lora_* builder of your model",
		Transformers: fmt.Sprintf("--use_peft --lora_r %d   # flags of scripts built on TRL, else in "+
			"code: get_peft_model(model, LoraConfig(r=%d))", rank, rank),
	}
	return How{Args: args[job.Trainer], Code: loraCode(rank)}
}

// smallerModels: less to train, or a smaller thing.
func smallerModels() []*Remedy {
	return []*Remedy{{
		ID:    LoRA,
		Title: "train low-rank adapters instead of all weights",
		Why: "gradients and optimizer state exist only for the adapters, about one percent of " +
			"the parameters",
		Equivalence: Changes,
		Consent:     "lora",
		Walls:       onDevice,
		Frameworks:  torch,
		Training:    true,
		on:          func(s Setup) bool { return s.LoRARank > 0 },
		rewrite:     func(s Setup) (Setup, bool) { s.LoRARank = usualRank; return s, s.Image == 0 },
		slowdown:    constant(0.85), // no gradient products for frozen weights
		how:         howLoRA,
	}, {
		ID:          Prune,
		Title:       "remove whole heads, channels or layers (structured pruning)",
		Why:         "all matrices become smaller; masks that only write zeros save nothing",
		Equivalence: Changes,
		Consent:     "model",
		Walls:       onDevice,
		Frameworks:  torch,
		code: map[Framework]string{PyTorch: lines("model.model.layers = model.model.layers[::2]     # "+
			"every second block, then train on",
			"model.config.num_hidden_layers = len(model.model.layers)")},
	}, {
		ID:    Distill,
		Title: "train a smaller student on the large model's outputs",
		Why: "weights, gradients, optimizer state and activations are the student's; the teacher " +
			"only runs forward",
		Equivalence: Changes,
		Consent:     "model",
		Walls:       onDevice,
		Frameworks:  torch,
		Training:    true,
		code: map[Framework]string{PyTorch: lines("with torch.no_grad():",
			"    target = teacher(x).logits",
			"loss = F.kl_div(student(x).logits.log_softmax(-1), target.softmax(-1), reduction='batchmean')")},
	}}
}
