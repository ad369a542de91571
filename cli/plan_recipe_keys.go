package cli

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"memroom/models"
	"memroom/tape"
)

// useSetting takes one setting of a file, by its name and where a name means several things by its
// section too.
func (c *planCmd) useSetting(r *recipe, s setting) {
	if s.value == nil || strings.EqualFold(fmt.Sprint(s.value), "auto") && s.name() != "bf16" {
		return // left to a default, or DeepSpeed's word for its caller's value
	}
	name := s.name()
	for _, use := range []func(*recipe, setting, string) bool{c.useObjective, c.useSection, c.useSize,
		c.useMemory, c.useAdapter, c.usePacked, c.useSpread, c.useDegrees} {
		if use(r, s, name) {
			return
		}
	}
	if !harmless(s) {
		r.unknown = append(r.unknown, strings.Join(s.path, "."))
	}
}

// useSection applies settings whose name is ambiguous without the section it is in.
func (c *planCmd) useSection(r *recipe, s setting, name string) bool {
	text := strings.ToLower(fmt.Sprint(s.value))
	switch s.within() + "." + name {
	case "model._component_", "policy._component_":
		c.useBuilder(r, fmt.Sprint(s.value))
	case "optimizer._component_", "optimizer.type", "optimizer.name", "optimizer.class_path",
		"optim._component_", "optim.name", "optim.type":
		c.useOptimizer(r, s)
	case "optimizer.fused", "optim.fused", "params.fused":
		if asBool(s.value) && (c.Optimizer == "adamw" || c.Optimizer == "adam") {
			c.Optimizer += "_fused"
		}
	case "loss._component_":
		if strings.Contains(text, "linearcrossentropy") {
			c.Loss = "fused"
		} else if !strings.Contains(text, "crossentropyloss") {
			return false
		}
	case "bf16.enabled", "fp16.enabled":
		if asBool(s.value) {
			c.usePrecision(s.within(), s.value)
		}
	case "activation_checkpoint.mode":
		c.Checkpointing = c.Checkpointing || text == "full" || text == "selective"
		if text == "selective" {
			r.unknown = append(r.unknown, "selective checkpointing (every block is planned)")
		}
	case "compile.enable", "compile.enabled", "compile.model":
		c.Compile = c.Compile || asBool(s.value)
	case "offload_optimizer.device":
		c.offload(text, "optimizer")
	case "offload_param.device":
		c.offload(text, "parameters")
	case "params.batch_size", "params.block_size", "params.model_max_length":
		return c.useSize(r, s, map[string]string{"block_size": "max_length"}[name]) ||
			c.useSize(r, s, name)
	default:
		return false
	}
	return true
}

// useSize takes the model and the sizes of batches.
func (c *planCmd) useSize(r *recipe, s setting, name string) bool {
	number, isNumber := asNumber(s.value)
	switch name {
	case "base_model", "model_name_or_path", "model_id", "model_name", "hf_model_path",
		"pretrained_model_name_or_path", "model_path", "model":
		if r.model == "" {
			r.model = fmt.Sprint(s.value)
		}
	case "checkpoint_dir": // torchtune, LitGPT: of the weights
		if r.model == "" {
			r.model = fmt.Sprint(s.value)
		}
	case "per_device_train_batch_size", "micro_batch_size", "train_micro_batch_size_per_gpu",
		"batch_size", "local_batch_size":
		setInt(&c.Batch, 1, number, isNumber)
	case "gradient_accumulation_steps", "accumulate_grad_batches", "gradient_accumulation":
		setInt(&c.Accumulate, 1, number, isNumber)
	case "sequence_len", "cutoff_len", "max_seq_length", "max_length", "max_seq_len",
		"model_max_length", "seq_len", "seq_length", "block_size", "max_sequence_length":
		setInt(&c.Seq, 0, number, isNumber)
	case "num_processes", "nproc_per_node", "n_gpus", "num_gpus", "world_size", "ngpu", "devices",
		"n_gpus_per_node":
		setInt(&c.Ranks, 1, number, isNumber)
	case "per_device_eval_batch_size", "eval_batch_size":
		if evaluates(r.all) {
			setInt(&c.EvalBatch, 0, number, isNumber)
		}
	case "packing", "sample_packing", "packed", "neat_packing":
		c.Packed = c.Packed || asBool(s.value)
	case "image_size", "resolution", "image_max_pixels":
		if name == "image_max_pixels" {
			number = int(math.Sqrt(float64(number)))
		}
		setInt(&c.Image, 0, number, isNumber)
	default:
		return false
	}
	return true
}

// evaluates reports whether a file asks for evaluations while it trains.
func evaluates(all map[string]any) bool {
	for _, name := range []string{"eval_strategy", "evaluation_strategy"} {
		if v, ok := all[name]; ok {
			return !slices.Contains([]string{"no", "false", ""},
				strings.ToLower(fmt.Sprint(v)))
		}
	}
	n, isNumber := asFloat(all["val_set_size"])
	return asBool(all["do_eval"]) || isNumber && n > 0
}

// useMemory takes what changes a step of the same model and batch.
func (c *planCmd) useMemory(r *recipe, s setting, name string) bool {
	on, text := asBool(s.value), strings.ToLower(fmt.Sprint(s.value))
	switch name {
	case "bf16", "fp16", "dtype", "torch_dtype", "mixed_precision", "precision", "model_dtype",
		"pure_bf16":
		c.usePrecision(name, s.value)
	case "optim", "optimizer":
		c.useOptimizer(r, s)
	case "gradient_checkpointing", "enable_activation_checkpointing", "activation_checkpointing",
		"fsdp_activation_checkpointing", "use_gradient_checkpointing":
		c.Checkpointing = c.Checkpointing || on || text == "unsloth" || text == "offload"
		if text == "offload" {
			c.offload("cpu", "activations")
		}
	case "disable_gradient_checkpointing": // LLaMA-Factory checkpoints unless told otherwise
		c.Checkpointing = !on
	case "enable_activation_offloading", "activation_offloading":
		if on {
			c.offload("cpu", "activations")
		}
	case "optimizer_in_bwd":
		c.InBackward = c.InBackward || on
	case "max_grad_norm", "gradient_clipping", "clip_grad_norm", "gradient_clip_val", "max_norm":
		if n, ok := asFloat(s.value); ok && n > 0 {
			c.Clip = true
		}
	case "torch_compile", "compile":
		c.Compile = c.Compile || on
	case "use_liger_kernel", "enable_liger_kernel", "liger_fused_linear_cross_entropy", "use_liger",
		"use_liger_loss", "cut_cross_entropy", "use_cce", "chunked_cross_entropy":
		if on {
			c.Loss = "fused"
		}
	case "attn_implementation", "flash_attn", "flash_attention", "attn_implementation_override",
		"_attn_implementation", "sdp_attention", "eager_attention", "xformers_attention",
		"attention_implementation":
		c.useAttention(r, s, name, text)
	case "use_cache":
		c.UseCache = c.UseCache || on
	case "channels_last":
		c.ChannelsLast = c.ChannelsLast || on
	default:
		return false
	}
	return true
}

func (c *planCmd) useAttention(r *recipe, s setting, name, text string) {
	kind := map[string]string{"flash_attention_2": "flash", "flash_attention_3": "flash",
		"fa2": "flash", "fa3": "flash", "sdpa": "sdpa", "eager": "eager", "disabled": "eager",
		"flash_attention": "flash"}[text]
	if asBool(s.value) {
		kind = map[string]string{"flash_attention": "flash", "flash_attn": "flash",
			"eager_attention": "eager", "xformers_attention": "flash"}[name]
	}
	switch {
	case text == "false" || name == "sdp_attention":
	case kind == "":
		r.unknown = append(r.unknown, strings.Join(s.path, ".")+": "+text)
	case c.Attn == "sdpa":
		c.Attn = kind
	}
}

// useAdapter takes what adapters are made of.
func (c *planCmd) useAdapter(r *recipe, s setting, name string) bool {
	number, isNumber := asNumber(s.value)
	on, text, adapts := asBool(s.value), strings.ToLower(fmt.Sprint(s.value)), hasAdapter(r.all)
	switch name {
	case "adapter", "finetuning_type", "train_type", "tuner_type", "peft_type", "peft_method":
		if strings.Contains(text, "lora") && c.LoraRank == 0 {
			c.LoraRank = defaultRank(r.all)
		}
		if text == "qlora" && c.LoadIn == "" {
			c.LoadIn = "4bit"
		}
		c.Dora = c.Dora || text == "dora"
		c.unplanned(r, text == "freeze", strings.Join(s.path, ".")+": "+text)
	case "use_peft", "peft", "use_lora":
		if on && c.LoraRank == 0 {
			c.LoraRank = defaultRank(r.all)
		}
	case "lora_r", "lora_rank", "r", "rank":
		if isNumber && adapts && c.LoraRank == 0 {
			c.LoraRank = number
		}
	case "lora_dropout":
		if f, ok := asFloat(s.value); ok && c.LoraDropout == 0 && adapts {
			c.LoraDropout = f
		}
	case "lora_target_modules", "lora_target", "target_modules", "lora_attn_modules":
		if len(c.LoraTargets) == 0 && adapts {
			c.LoraTargets = asNames(s.value)
		}
	case "lora_target_linear":
		if on && len(c.LoraTargets) == 0 && adapts {
			c.LoraTargets = []string{tape.AllLinear}
		}
	case "apply_lora_to_mlp", "apply_lora_to_output", "lora_query", "lora_key", "lora_value",
		"lora_projection", "lora_mlp", "lora_head": // read together, see settle
	case "lora_modules_to_save", "modules_to_save", "additional_target":
		if len(c.ModulesToSave) == 0 && adapts {
			c.ModulesToSave = asNames(s.value)
		}
	case "use_dora", "peft_use_dora", "lora_use_dora":
		c.Dora = c.Dora || on && adapts
	default:
		return false
	}
	return true
}

// defaultRank is the rank that a file names, or PEFT's.
func defaultRank(all map[string]any) int {
	for _, name := range []string{"lora_r", "lora_rank", "r", "rank"} {
		if n, ok := asNumber(all[name]); ok && n > 0 {
			return n
		}
	}
	return 8
}

// usePacked takes how weights are held.
func (c *planCmd) usePacked(r *recipe, s setting, name string) bool {
	number, isNumber := asNumber(s.value)
	on, text := asBool(s.value), strings.ToLower(fmt.Sprint(s.value))
	switch name {
	case "load_in_4bit", "load_in_8bit":
		if on && c.LoadIn == "" && hasAdapter(r.all) {
			c.LoadIn = strings.TrimPrefix(name, "load_in_")
		}
	case "quantization_bit", "quant_bits":
		if isNumber && number > 0 && c.LoadIn == "" {
			c.LoadIn = fmt.Sprintf("%dbit", number)
		}
	case "quantize", "quantization": // LitGPT, AutoTrain
		switch {
		case strings.Contains(text, "4") && c.LoadIn == "":
			c.LoadIn, c.DoubleQuant = "4bit", c.DoubleQuant || strings.HasSuffix(text, "-dq")
		case strings.Contains(text, "8") && c.LoadIn == "":
			c.LoadIn = "8bit"
		default:
			return false
		}
	case "quantize_base":
		if on && c.LoadIn == "" {
			c.LoadIn = "4bit"
		}
	case "double_quantization", "bnb_4bit_use_double_quant", "use_bnb_nested_quant",
		"bnb_4bit_double_quant":
		c.DoubleQuant = c.DoubleQuant || on
	default:
		return false
	}
	return true
}

// useSpread takes how a job is spread over cards.
func (c *planCmd) useSpread(r *recipe, s setting, name string) bool {
	on, text := asBool(s.value), strings.ToLower(fmt.Sprint(s.value))
	switch name {
	case "deepspeed", "deepspeed_config", "deepspeed_config_file":
		c.useDeepSpeed(r, s)
	case "zero_stage", "stage":
		stage, ok := asNumber(s.value)
		if !ok {
			return name == "stage" // LLaMA-Factory's: how it trains
		}
		if stage > 0 && stage <= 3 {
			c.useShard(fmt.Sprintf("zero%d", stage))
		}
	case "reduce_bucket_size":
		if n, ok := asNumber(s.value); ok && c.Bucket == 0 {
			c.Bucket = int64(n)
		}
	case "overlap_comm":
		c.Overlap = c.Overlap || on
	case "offload_optimizer_device":
		c.offload(text, "optimizer")
	case "offload_param_device":
		c.offload(text, "parameters")
	case "fsdp_offload_params", "fsdp_cpu_offload", "cpu_offload", "offload_params":
		if on || strings.Contains(text, "offload_params:true") {
			c.offload("cpu", "parameters")
		}
	case "distributed_type":
		if text != "deepspeed" {
			c.useShard(map[string]string{"fsdp": fsdpOf(r.all), "multi_gpu": "ddp"}[text])
		}
	case "fsdp":
		if text != "" && text != "[]" && text != "false" {
			c.useShard(fsdpOf(r.all))
			c.NoReshard = c.NoReshard || strings.Contains(text, "shard_grad_op") ||
				strings.Contains(text, "zero2")
			c.file.hybrid = c.file.hybrid || strings.Contains(text, "hybrid")
			if strings.Contains(text, "offload") {
				c.offload("cpu", "parameters")
			}
		}
	case "fsdp_sharding_strategy", "sharding_strategy":
		c.NoReshard = c.NoReshard || text == "shard_grad_op" || text == "2" ||
			strings.HasSuffix(text, "zero2") || text == "5"
		c.file.hybrid = c.file.hybrid || strings.Contains(text, "hybrid") || text == "4" || text == "5"
	case "fsdp_reshard_after_forward", "reshard_after_forward":
		c.NoReshard = c.NoReshard || text == "false" || text == "shard_grad_op"
	case "strategy": // Lightning
		for word, kind := range map[string]string{"ddp": "ddp", "fsdp": "fsdp1", "stage_1": "zero1",
			"stage_2": "zero2", "stage_3": "zero3"} {
			if strings.Contains(text, word) {
				c.useShard(kind)
			}
		}
	default:
		return false
	}
	return true
}

// unplanned lists a setting that was understood and that plan does not do.
func (c *planCmd) unplanned(r *recipe, on bool, what string) {
	if on {
		r.unknown = append(r.unknown, what+" (not planned)")
	}
}

// fsdpOf returns which of PyTorch's two FSDP versions a file means: version 1, unless it sets 2.
func fsdpOf(all map[string]any) string {
	if n, ok := asNumber(all["fsdp_version"]); ok && n == 2 {
		return "fsdp"
	}
	return "fsdp1"
}

func (c *planCmd) useShard(kind string) {
	if c.Shard == "" {
		c.Shard = kind
	}
}

func (c *planCmd) offload(to, what string) {
	if (to == "cpu" || to == "nvme") && !slices.Contains(c.Offload, what) {
		c.Offload = append(c.Offload, what)
	}
}

func setInt(to *int, unset, value int, ok bool) {
	if ok && *to == unset && value > 0 {
		*to = value
	}
}

// usePrecision notes a type; settle decides what follows from all of them.
func (c *planCmd) usePrecision(name string, v any) {
	text := strings.ToLower(strings.TrimPrefix(fmt.Sprint(v), "torch."))
	half := map[string]string{"bf16": "bf16", "bfloat16": "bf16", "fp16": "fp16", "float16": "fp16",
		"half": "fp16", "bf16-true": "bf16", "16-true": "fp16", "bf16-mixed": "amp_bf16",
		"16-mixed": "amp_fp16", "32-true": "fp32", "32": "fp32", "fp32": "fp32",
		"float32": "fp32"}[text]
	switch name {
	case "mixed_precision":
		if half == "bf16" || half == "fp16" {
			c.fileHalf = "amp_" + half
		}
	case "dtype", "torch_dtype", "model_dtype":
		c.fileWeights = half
	case "precision":
		c.fileWeights = half
	case "pure_bf16":
		if asBool(v) {
			c.fileWeights, c.fileHalf = "bf16", ""
		}
	default: // bf16, fp16
		if asBool(v) || text == "auto" && name == "bf16" {
			c.fileHalf = "amp_" + name
		}
		if text == "full" {
			c.fileWeights = name
		}
	}
}

// settle decides what follows from several settings of a file together.
func (c *planCmd) settle(r *recipe) {
	c.settleTrainer(r)
	c.settleSpread(r)
	loads := r.all["base_model"] != nil ||
		r.all["cutoff_len"] != nil && hasAdapter(r.all) // trainers that load the weights in half
	if loads && c.fileWeights == "" {
		c.fileWeights = strings.TrimPrefix(c.fileHalf, "amp_")
	}
	switch {
	case c.Precision != "":
	case c.fileWeights == "bf16" || c.fileWeights == "fp16":
		c.Precision = c.fileWeights
		c.Autocast = c.Autocast || c.fileHalf == "amp_"+c.fileWeights && c.LoadIn == ""
	case c.fileHalf != "":
		c.Precision = c.fileHalf
	case c.fileWeights != "":
		c.Precision = c.fileWeights
	}
	if c.LoraRank == 0 {
		c.Dora, c.LoraTargets, c.LoraDropout, c.ModulesToSave = false, nil, 0, nil
		return
	}
	on := func(name string) bool { return asBool(r.all[name]) }
	add := func(names ...string) {
		if !slices.Contains(c.LoraTargets, tape.AllLinear) {
			c.LoraTargets = append(c.LoraTargets, names...)
		}
	}
	for i, name := range c.LoraTargets {
		if name == "output_proj" { // torchtune's name
			c.LoraTargets[i] = "o_proj"
		}
	}
	if on("apply_lora_to_mlp") || on("lora_mlp") {
		add("gate_proj", "up_proj", "down_proj")
	}
	if on("apply_lora_to_output") || on("lora_head") {
		add("lm_head")
	}
	for name, target := range map[string]string{"lora_query": "q_proj", "lora_key": "k_proj",
		"lora_value": "v_proj", "lora_projection": "o_proj"} {
		if on(name) {
			add(target)
		}
	}
	slices.Sort(c.LoraTargets)
	c.LoraTargets = slices.Compact(c.LoraTargets)
}

// useBuilder takes torchtune's function that builds the model, such as lora_llama3_1_8b.
func (c *planCmd) useBuilder(r *recipe, name string) {
	name = name[strings.LastIndex(name, ".")+1:]
	if rest, ok := strings.CutPrefix(name, "qlora_"); ok {
		name = "lora_" + rest
		if c.LoadIn == "" {
			c.LoadIn = "4bit"
		}
	}
	if rest, ok := strings.CutPrefix(name, "lora_"); ok {
		name = rest
		if c.LoraRank == 0 {
			c.LoraRank = defaultRank(r.all)
		}
	}
	if _, err := models.Preset(name); r.model == "" || err == nil {
		r.model = name
	}
}

// optimizerNames are the classes of optimizers, in lower case and without their packages.
var optimizerNames = map[string]string{"pagedadamw8bit": "paged_adamw8bit",
	"pagedadam8bit": "paged_adam8bit", "adamw8bit": "adamw8bit", "adam8bit": "adam8bit",
	"fusedadam": "adamw_fused", "deepspeedcpuadam": "adamw", "cpuadam": "adamw",
	"pagedadamw": "adamw", "pagedadamw32bit": "adamw"}

func (c *planCmd) useOptimizer(r *recipe, s setting) {
	text, ok := s.value.(string)
	name := text[strings.LastIndex(text, ".")+1:]
	if lower := strings.ToLower(name); tape.KnownOptimizer(tape.OptimizerName(name)) != nil {
		name = lower
		if known, is := optimizerNames[lower]; is {
			name = known
		}
	}
	if !ok || tape.KnownOptimizer(tape.OptimizerName(name)) != nil {
		r.unknown = append(r.unknown, fmt.Sprintf("%s: %v", strings.Join(s.path, "."), s.value))
		return
	}
	if c.Optimizer == "adamw" {
		c.Optimizer = tape.OptimizerName(name)
	} else if c.Optimizer == "adamw_fused" && tape.OptimizerName(name) != "adamw" {
		c.Optimizer = tape.OptimizerName(name)
	}
}

// useDeepSpeed reads DeepSpeed's own file, which a trainer's file names.
func (c *planCmd) useDeepSpeed(r *recipe, s setting) {
	file, isText := s.value.(string)
	if !isText {
		return
	}
	tries := []string{file, filepath.Join(filepath.Dir(r.path), file),
		filepath.Join(filepath.Dir(r.path), filepath.Base(file))}
	for _, at := range tries {
		var fields map[string]any
		if text, err := os.ReadFile(at); err == nil && json.Unmarshal(text, &fields) == nil {
			for _, one := range flatten(fields, nil) {
				c.useSetting(r, one)
			}
			return
		}
	}
	if _, stage, ok := strings.Cut(filepath.Base(file), "zero"); ok && stage != "" &&
		stage[0] >= '1' && stage[0] <= '3' {
		c.useShard("zero" + stage[:1])
		r.unknown = append(r.unknown, "deepspeed: "+file+" (not found: its name says ZeRO-"+
			stage[:1]+")")
		return
	}
	r.unknown = append(r.unknown, "deepspeed: "+file+" (not found)")
}

// hasAdapter reports whether a file trains adapters.
func hasAdapter(all map[string]any) bool {
	for _, name := range []string{"adapter", "finetuning_type", "train_type", "tuner_type",
		"peft_type", "_component_", "peft_method"} {
		if strings.Contains(strings.ToLower(fmt.Sprint(all[name])), "lora") {
			return true
		}
	}
	for _, name := range []string{"use_peft", "peft", "use_lora", "lora_query", "lora_value"} {
		if asBool(all[name]) {
			return true
		}
	}
	for _, name := range []string{"lora_attn_modules", "target_modules"} {
		if all[name] != nil {
			return true
		}
	}
	// TRL and peers take a rank as the wish for adapters only together with a switch
	_, says := all["use_peft"]
	return all["lora_r"] != nil && !says && all["adapter"] == nil && all["base_model"] == nil
}

func asNumber(v any) (int, bool) {
	f, ok := asFloat(v)
	if !ok || f != math.Trunc(f) || math.Abs(f) > 1<<53 {
		return 0, false
	}
	return int(f), true
}

// asFloat reads a number, also one that was written as text, as YAML readers take 2e-4.
func asFloat(v any) (float64, bool) {
	switch n := v.(type) {
	case int:
		return float64(n), true
	case int64:
		return float64(n), true
	case uint64:
		return float64(n), true
	case float64:
		return n, !math.IsNaN(n) && !math.IsInf(n, 0)
	case string:
		f, err := strconv.ParseFloat(strings.ReplaceAll(n, "_", ""), 64)
		return f, err == nil && !math.IsNaN(f) && !math.IsInf(f, 0)
	}
	return 0, false
}

func asBool(v any) bool {
	on, ok := v.(bool)
	return ok && on || strings.EqualFold(fmt.Sprint(v), "true")
}

func asNames(v any) []string {
	var names []string
	switch list := v.(type) {
	case string:
		for _, n := range strings.Split(list, ",") {
			names = append(names, strings.TrimSpace(n))
		}
	case []any:
		for _, n := range list {
			names = append(names, fmt.Sprint(n))
		}
	}
	if slices.Equal(names, []string{"all"}) || slices.Equal(names, []string{"all-linear"}) {
		return []string{tape.AllLinear}
	}
	return names
}

// harmlessWords begin the names of settings that cost no memory on the card.
var harmlessWords = []string{"learning_rate", "lr_", "lr", "num_epochs", "num_train_epochs",
	"max_steps", "output", "logging", "log_", "save", "eval", "dataset", "data", "seed", "warmup",
	"weight_decay", "wandb", "report_to", "val_set", "train_on", "chat_template", "template",
	"special_tokens", "tokenizer", "overwrite", "push_to", "hub_", "lora_alpha", "adam_", "beta",
	"early_stopping", "do_train", "do_eval", "preprocessing", "plot_loss", "strict",
	"machine_rank", "num_machines", "main_", "rdzv", "same_network", "use_cpu",
	"compute_environment", "debug", "steps_per_print", "wall_clock", "train_batch_size", "resume",
	"load_best", "metric", "greater", "run_name", "remove_unused", "ddp_timeout", "shuffle",
	"epochs", "downcast_bf16", "tpu_", "pad_to_sequence", "tf32", "group_by_length", "model_type",
	"trust_remote", "hf_", "use_reentrant", "bnb_4bit_quant", "bnb_4bit_compute", "lora_bias",
	"peft_layers", "fsdp_", "limit_", "max_samples", "gradient_checkpointing_kwargs", "scheduler",
	"steps", "total", "project", "name", "description", "version", "alpha", "bias", "task_type",
	"local_rank", "completion_only", "assistant_only", "dataloader_", "max_train",
	"verbose", "print", "eps", "momentum", "stage3_", "allgather", "contiguous", "sub_group",
	"round_robin", "loss_scale", "initial_scale", "hysteresis", "min_loss_scale", "pin_memory",
	"profile", "checkpoint", "recipe_checkpoint", "model_revision", "revision", "system_prompt",
	"packing_strategy", "use_auth", "cache_dir", "enable_cpu_affinity", "zero3_", "zero_allow",
	"deepspeed_multinode", "rope_", "label_", "disable_tqdm", "neftune", "loraplus", "padding",
	"truncation", "max_new_tokens", "ignore_", "apply_chat", "text_column", "quant_method",
	"callbacks", "logger", "default_root", "num_nodes", "accelerator",
	"plugins", "fused", "group_by", "streaming", "device",
	"enable_async", "keep_last", "cpu_checkpoint"}

// harmlessSections hold nothing that costs memory on the card.
var harmlessSections = []string{"dataset", "datasets", "data", "tokenizer", "checkpointer",
	"metric_logger", "profiler", "lr_scheduler", "scheduler", "logger", "logging", "metrics",
	"lr_scheduler_kwargs", "special_tokens", "gradient_checkpointing_kwargs", "eval", "validation",
	"checkpoint", "job", "profiling", "hub", "log", "generation", "wandb", "params"}

func harmless(s setting) bool {
	if slices.Contains(harmlessSections, strings.ToLower(s.path[0])) && len(s.path) > 1 ||
		slices.Contains(harmlessSections, s.within()) || s.name() == "_component_" {
		return true
	}
	if s.value == false || s.value == 0 || s.value == "" || s.value == "none" {
		return true // off
	}
	return slices.ContainsFunc(harmlessWords, func(w string) bool {
		return strings.HasPrefix(s.name(), w)
	})
}
