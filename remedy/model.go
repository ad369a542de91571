package remedy

import "memroom/event"

// quantized: weights in fewer bits.
func quantized() []*Remedy {
	return []*Remedy{
		quantize(Quantize8Bit, "8bit", "load the frozen weights in 8 bits", "weights of linear layers take one byte a parameter"),
		quantize(Quantize4Bit, "4bit", "load the frozen weights in 4 bits", "weights of linear layers take about half a byte a parameter"),
	}
}

func quantize(id ID, loadIn, title, why string) *Remedy {
	option := "load_in_" + loadIn + "=True"
	return &Remedy{
		ID:          id,
		Title:       title,
		Why:         why + "; to train such a model, adapters (LoRA) are needed on top",
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
				s.LoRARank = 16
			}
			return s, s.Image == 0
		},
		slowdown: constant(map[string]float64{"8bit": 1.3, "4bit": 1.25}[loadIn]), // weights are widened again for every product
		args: map[Trainer]string{
			Axolotl: "load_in_" + loadIn + ": true\nadapter: " + map[string]string{"8bit": "lora", "4bit": "qlora"}[loadIn],
			VLLM:    map[string]string{"8bit": "--quantization fp8", "4bit": "--quantization bitsandbytes"}[loadIn],
		},
		code: map[Framework]string{PyTorch: lines("from transformers import BitsAndBytesConfig",
			"model = AutoModelForCausalLM.from_pretrained(name, quantization_config=BitsAndBytesConfig("+option+"))")},
	}
}

// smallerModels: less to train, or a smaller thing.
func smallerModels() []*Remedy {
	return []*Remedy{{
		ID:          LoRA,
		Title:       "train low-rank adapters instead of all weights",
		Why:         "gradients and optimizer state exist only for the adapters, about one percent of the parameters",
		Equivalence: Changes,
		Consent:     "lora",
		Walls:       onDevice,
		Frameworks:  torch,
		Training:    true,
		on:          func(s Setup) bool { return s.LoRARank > 0 },
		rewrite:     func(s Setup) (Setup, bool) { s.LoRARank = 16; return s, s.Image == 0 },
		slowdown:    constant(0.85), // no gradient products for frozen weights
		args: map[Trainer]string{
			Axolotl: "adapter: lora\nlora_r: 16", Torchtune: "model=lora_llama3_8b   # the lora_* builder of your model",
			Transformers: "--use_peft --lora_r 16   # scripts built on TRL",
		},
		code: map[Framework]string{PyTorch: lines("from peft import LoraConfig, get_peft_model",
			"model = get_peft_model(model, LoraConfig(r=16, target_modules='all-linear'))")},
	}, {
		ID:          Prune,
		Title:       "remove whole heads, channels or layers (structured pruning)",
		Why:         "smaller matrices everywhere; masks that only write zeros save nothing",
		Equivalence: Changes,
		Consent:     "model",
		Walls:       onDevice,
		code: map[Framework]string{PyTorch: lines("model.model.layers = model.model.layers[::2]     # every second block, then train on",
			"model.config.num_hidden_layers = len(model.model.layers)")},
	}, {
		ID:          Distill,
		Title:       "train a smaller student on the large model's outputs",
		Why:         "weights, gradients, optimizer state and activations are the student's; the teacher only runs forward",
		Equivalence: Changes,
		Consent:     "model",
		Walls:       onDevice,
		Training:    true,
		code: map[Framework]string{PyTorch: lines("with torch.inference_mode():", "    target = teacher(x).logits",
			"loss = F.kl_div(student(x).logits.log_softmax(-1), target.softmax(-1), reduction='batchmean')")},
	}}
}
