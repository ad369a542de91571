package trace

import "strings"

// usage holds signs that a remedy is already in use: words of commands, settings, source lines and
// files of a traceback. They count unless something around them contradicts them.
type usage struct {
	id    string
	words []string
}

// usages has the signs of every remedy that a program can have on. A remedy that is on is no
// advice, so a sign too many costs an advice, and one too few a wrong one.
var usages = []usage{
	{"checkpointing", []string{"gradient_checkpointing", "gradient-checkpointing", "--grad-checkpoint",
		"grad_checkpointing", "activation_checkpointing", "activation-checkpointing",
		"activation_checkpoint", "checkpoint_activations", "checkpoint-activations",
		"recompute-activations", "recompute-granularity", "recompute_granularity",
		"torch/utils/checkpoint.py", `torch\utils\checkpoint.py`, "checkpoint_sequential",
		"activation_checkpointing/checkpointing.py", "_gradient_checkpointing_func",
		"ldm/modules/diffusionmodules/util.py", "jax.checkpoint", "jax.remat", "nn.remat", "recompute_grad",
		"incompatible with gradient checkpointing", "using gradient checkpoint",
		"used gradient checkpoint", "with gradient checkpointing", "gradient checkpointing enabled",
		"gradient checkpointing: true", "gradient checkpointing: on", "gradient checkpointing is on",
		"gradient checkpointing is enabled", "enabled gradient checkpointing",
		"enabling gradient checkpointing"}},
	{"mixed_precision", []string{"--bf16", "--fp16", "bf16: true", "fp16: true", "bf16=true",
		"fp16=true", "mixed_precision", "mixed-precision", "mixed precision", "16-mixed", "autocast",
		"native 16bit", "16bit native", "16bit automatic", "16-bit precision", "16bit precision",
		"4bit_compute_dtype", "bfloat16", "float16", "torch.half", "fp16_enabled", "bf16_enabled",
		"precision=16", "precision: 16", "precision=bf16", "precision 16", "use_amp", "use_fp16",
		"--use_half",
		"--amp ", "amp=true", "amp: true", "amp: checks passed", "convert_to_fp32", "gradscaler",
		"grad_scaler", "scaled_loss", "fp16_optimizer", "bf16_optimizer", "fused_optimizer.py",
		"fp16.py", "fp16_utils", "half=true", "--half"}},
	{"lora", []string{"network_module", "network_dim", "get_peft_model", "loraconfig", "lora_r",
		"--use_peft", "trainable params: ", "peft/tuners", `peft\tuners`, "peft/peft_model",
		"peft_model.py", "lora_rank", "lora_alpha", "lora_target", "finetuning_type lora",
		"finetuning_type: lora", "adapter: lora", "adapter: qlora"}},
	{"quantize_4bit", []string{"load_in_4bit", "bnb_4bit", "linear4bit", "matmul_4bit", "4-bit quant",
		"quantization_bit 4"}},
	{"quantize_8bit", []string{"load_in_8bit", "linear8bitlt", "matmul_8bit", "8-bit quant",
		"quantization_bit 8", "fp8_base"}},
	{"pipeline_offload", []string{"blocks_to_swap", "--lowvram", "--medvram", "--novram",
		"model_cpu_offload", "sequential_cpu_offload", "loaded partially", "lowvram patches",
		"group_offloading"}},
	{"optimizer_offload", []string{"offload_optimizer", "deepspeedcpuadam", "cpu_adam"}},
	{"optimizer_8bit", []string{"paged_adamw", "adamw_bnb_8bit", "adamw8bit", "adamw_8bit", "adam8bit",
		"8bit_adam", "8bit-adam", "8-bit adam", "lion8bit", "bitsandbytes/optim"}},
	{"optimizer_adafactor", []string{"adafactor"}},
	{"attention", []string{"flash_attention_2", "flash_attn", "flash-attn", "attn_implementation",
		"xformers", "memory_efficient_attention", "scaled_dot_product_attention", "sdpa_attention",
		"attention_slicing", "sageattention", "flash attention"}},
	{"chunked_loss", []string{"use_liger", "liger_kernel", "liger-kernel", "cut_cross_entropy",
		"fused_linear_cross_entropy", "cut-cross-entropy"}},
	{"tf_growth", []string{"set_memory_growth", "allow_growth", "tf_force_gpu_allow_growth",
		"xla_python_client_mem_fraction"}},
	{"load_once", []string{"low_cpu_mem_usage=true"}},
	{"device_map", []string{"device_map=", "device_map:", `device_map":`, "device_map ="}},
	{"no_grad", []string{"torch.no_grad", "inference_mode()", "@torch.no_grad",
		"@torch.inference_mode"}},
	{"empty_cache", []string{"empty_cache()"}},
	{"clear_session", []string{"clear_session("}},
	{"ddp", []string{"distributeddataparallel", "torchrun", "torch.distributed.launch",
		"--nproc_per_node", "--nproc-per-node"}},
	{"zero", []string{"zero_optimization", "deepspeed/runtime/zero"}},
}

// usageWords are the usages as words to look for.
func usageWords() []entry {
	var list []entry
	for _, u := range usages {
		list = append(list, entry{words: u.words, hint: setting(u.id)})
	}
	return append(list,
		entry{words: []string{"map_location"}, hint: valued("load_to_host", mapsToHost)},
		entry{words: []string{"num_workers", "num-workers", "--workers"},
			hint: valued("dataloader_workers", noWorkers)},
		entry{words: []string{"pin_memory"}, hint: valued("pin_memory", notPinned)},
		entry{words: []string{"enforce-eager", "enforce_eager", "disable-cuda-graph",
			"disable_cuda_graph"}, hint: setting("cuda_graph_sizes")},
		entry{words: []string{"xla_python_client_preallocate"}, hint: valued("tf_growth", notReserved)})
}

// Values of settings with which a remedy is on.
var (
	mapsToHost  = later(`(?i)^map_location["']?\s?[=:]\s?(?:torch\.device\()?["'](?:cpu)|^map_location\s?=\s?lambda`)
	noWorkers   = later(`(?i)^(?:num[_-]|--)workers["'` + "`" + `]?\s?(?:[=: ]|(?:is |was |are )?(?:set )?(?:to|at) )\s?["']?[01]\b`)
	notPinned   = later(`(?i)^pin_memory["']?\s?[=: ]\s?["']?false`)
	notReserved = later(`(?i)^xla_python_client_preallocate["'\]]*\s?[=:,]\s?["']?(?:false|0)`)
)

// valued returns a hint that notes a setting as on if its value matches.
func valued(id string, is *expression) func(*hintCollector, *passage) {
	return func(h *hintCollector, p *passage) {
		rest := string(p.window.buf[p.at:min(p.window.lineEnd(p.at), p.at+60)])
		if h.Settings[id] == "" && is.MatchString(rest) && !adviceAbout.MatchString(p.line()) {
			h.set(id, cut(strings.TrimSpace(rest), 40))
		}
	}
}

var switchedOff = later(`(?i)\|\| all params: \d.*100(?:\.0+)?$|[=: ]\s?["'\[]?(?:false|none|null|no|off|0|fp32|float32)\b|advice|` +
	`try setting|consider|eager\b|not (?:found|available|installed|supported|enabled)`)

// notThere are lines that say that something is missing or off.
var notThere = later(`(?i)\bno module|proceeding without|\bnot (?:installed|available|enabled|supported)|` +
	`\b(?:disabled?|without|no|unavailable)\b[^.\n]{0,24}(?:checkpointing|precision|xformers|flash|sdpa|attention)`)

// setting notes that something is on, where the words after it do not say the opposite.
func setting(id string) func(*hintCollector, *passage) {
	return func(h *hintCollector, p *passage) {
		if h.Settings[id] != "" {
			return
		}
		rest := string(p.window.buf[p.at:min(p.window.lineEnd(p.at), p.at+60)])
		if line := p.line(); switchedOff.MatchString(rest) || adviceAbout.MatchString(line) ||
			notThere.MatchString(line) {
			return
		}
		h.set(id, cut(strings.TrimSpace(rest), 40))
	}
}

func (h *hintCollector) set(id, evidence string) {
	if h.Settings == nil {
		h.Settings = map[string]string{}
	}
	h.Settings[id] = evidence
}

var adviceAbout = later(`(?i)try (?:setting|using|enabling|adding|to )|consider|you (?:can|could|should|may)|please|recommend|` +
	`to avoid|solution|fix:|enable `)
