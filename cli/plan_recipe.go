package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"memroom/tape"
)

// recipe is a file of a trainer (TrainingArguments, accelerate, DeepSpeed, axolotl, LLaMA-Factory,
// torchtune), as flags of plan.
type recipe struct {
	model   string
	unknown []string // keys that were not understood
}

// trainerKeys are names that a model's configuration does not have and a trainer's file does.
var trainerKeys = []string{"per_device_train_batch_size", "micro_batch_size", "base_model",
	"model_name_or_path", "zero_optimization", "train_micro_batch_size_per_gpu", "distributed_type",
	"gradient_accumulation_steps", "cutoff_len"}

// readRecipe reads a trainer's file; nil where the file is something else.
func readRecipe(path string) (map[string]any, error) {
	if info, err := os.Stat(path); err != nil || info.IsDir() || info.Size() > maxConfigFile {
		return nil, nil
	}
	ext := strings.ToLower(filepath.Ext(path))
	if !slices.Contains([]string{".yml", ".yaml", ".json"}, ext) {
		return nil, nil
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	fields := map[string]any{}
	if ext == ".json" {
		if json.Unmarshal(data, &fields) != nil || fields["model_type"] != nil {
			return nil, nil
		}
		if !slices.ContainsFunc(trainerKeys, func(k string) bool { return fields[k] != nil }) {
			return nil, nil
		}
		return fields, nil
	}
	if err := yaml.Unmarshal(data, &fields); err != nil {
		return nil, fmt.Errorf("%s: expected a trainer's settings as YAML: %w", path, err)
	}
	return fields, nil
}

// useRecipe turns a trainer's file, where the first argument is one, into flags. What was given on
// the command line stays.
func (c *planCmd) useRecipe(s *session) error {
	if c.Rehearse || len(c.Args) == 0 || len(c.Args) > 2 {
		return nil
	}
	fields, err := readRecipe(c.Args[0])
	if err != nil || fields == nil {
		return err
	}
	path := c.Args[0]
	r := &recipe{}
	for _, name := range sortedKeys(fields) {
		c.useKey(r, path, name, fields[name], fields)
	}
	if c.Shard != "" && c.Ranks == 1 {
		s.note("%s shards with %s and does not say over how many cards: add --ranks N; planned for one",
			path, c.Shard)
		c.Shard = ""
	}
	if len(r.unknown) > 0 {
		s.note("%s: not understood and left out: %s", path, strings.Join(r.unknown, ", "))
	}
	return c.useModel(r, path)
}

// useModel finds the model that the file names, unless a second argument is its configuration.
func (c *planCmd) useModel(r *recipe, path string) error {
	switch {
	case len(c.Args) == 2:
		c.Args = c.Args[1:]
		return nil
	case c.Preset != "":
		c.Args = nil
		return nil
	case r.model == "":
		return usageError(fmt.Errorf("%s names no model: give its config.json after it", path))
	}
	for _, at := range []string{r.model, filepath.Join(filepath.Dir(path), r.model)} {
		if _, err := configFile(at); err == nil {
			c.Args = []string{at}
			return nil
		}
	}
	return usageError(fmt.Errorf("%s trains %s, which is not on this machine: give its config.json "+
		"after the file, as in memroom plan %s config.json", path, r.model, path))
}

func sortedKeys(m map[string]any) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// useKey takes one setting of a file.
func (c *planCmd) useKey(r *recipe, path, name string, v any, all map[string]any) {
	number, isNumber := asNumber(v)
	on, text := asBool(v), strings.ToLower(fmt.Sprint(v))
	switch name {
	case "base_model", "model_name_or_path":
		r.model = fmt.Sprint(v)
	case "per_device_train_batch_size", "micro_batch_size", "train_micro_batch_size_per_gpu",
		"batch_size":
		setInt(&c.Batch, 1, number, isNumber)
	case "gradient_accumulation_steps":
		setInt(&c.Accumulate, 1, number, isNumber)
	case "sequence_len", "cutoff_len", "max_seq_length", "max_length", "max_seq_len",
		"model_max_length":
		setInt(&c.Seq, 0, number, isNumber)
	case "num_processes":
		setInt(&c.Ranks, 1, number, isNumber)
	case "bf16", "fp16", "dtype", "mixed_precision":
		c.usePrecision(name, v, all)
	case "optim", "optimizer":
		c.useOptimizer(r, name, v)
	case "gradient_checkpointing", "enable_activation_checkpointing":
		c.Checkpointing = c.Checkpointing || on || text == "unsloth" || text == "offload"
	case "adapter", "finetuning_type":
		if strings.Contains(text, "lora") && c.LoraRank == 0 {
			c.LoraRank = 8 // PEFT's default, unless the file says otherwise
		}
		if text == "qlora" && c.LoadIn == "" {
			c.LoadIn = "4bit"
		}
	case "lora_r", "lora_rank":
		if isNumber && (c.LoraRank == 0 || c.LoraRank == 8) && hasAdapter(all) {
			c.LoraRank = number
		}
	case "lora_dropout":
		if f, err := strconv.ParseFloat(text, 64); err == nil && c.LoraDropout == 0 && hasAdapter(all) {
			c.LoraDropout = f
		}
	case "lora_target_modules", "lora_target":
		if len(c.LoraTargets) == 0 && hasAdapter(all) {
			c.LoraTargets = asNames(v)
		}
	case "lora_target_linear":
		if on && len(c.LoraTargets) == 0 && hasAdapter(all) {
			c.LoraTargets = []string{tape.AllLinear}
		}
	case "load_in_4bit", "load_in_8bit":
		if on && c.LoadIn == "" && hasAdapter(all) {
			c.LoadIn = strings.TrimPrefix(name, "load_in_")
		}
	case "quantization_bit":
		if isNumber && c.LoadIn == "" {
			c.LoadIn = fmt.Sprintf("%dbit", number)
		}
	case "double_quantization", "bnb_4bit_use_double_quant":
		c.DoubleQuant = c.DoubleQuant || on
	case "max_grad_norm", "gradient_clipping":
		c.Clip = true
	case "torch_compile", "compile":
		c.Compile = c.Compile || on
	case "use_liger_kernel", "enable_liger_kernel", "liger_fused_linear_cross_entropy":
		if on {
			c.Loss = "fused"
		}
	case "deepspeed", "deepspeed_config":
		c.useDeepSpeed(r, path, v)
	case "zero_optimization":
		c.useZero(v)
	case "distributed_type":
		c.useShard(map[string]string{"fsdp": "fsdp", "multi_gpu": "ddp"}[text])
	case "fsdp":
		if text != "" && text != "[]" && text != "false" {
			c.useShard("fsdp")
		}
	default:
		if !harmless(name) {
			r.unknown = append(r.unknown, name)
		}
	}
}

func (c *planCmd) useShard(kind string) {
	if c.Shard == "" {
		c.Shard = kind
	}
}

func setInt(to *int, unset, value int, ok bool) {
	if ok && *to == unset && value > 0 {
		*to = value
	}
}

// usePrecision: trainers that load the weights themselves load them in half precision; Hugging
// Face's Trainer alone switches autocast on over what it is given.
func (c *planCmd) usePrecision(name string, v any, all map[string]any) {
	text := strings.ToLower(fmt.Sprint(v))
	half := ""
	switch {
	case name == "dtype" || name == "mixed_precision":
		half = map[string]string{"bf16": "bf16", "bfloat16": "bf16", "fp16": "fp16",
			"float16": "fp16"}[text]
	case asBool(v) || text == "auto" && name == "bf16":
		half = name
	}
	if m, ok := v.(map[string]any); ok && asBool(m["enabled"]) { // DeepSpeed's way
		half = name
	}
	if half == "" || c.Precision != "" {
		return
	}
	loads := all["base_model"] != nil || all["cutoff_len"] != nil || name == "dtype"
	c.Precision = "amp_" + half
	if loads {
		c.Precision = half
	}
}

func (c *planCmd) useOptimizer(r *recipe, name string, v any) {
	text, ok := v.(string)
	if !ok || tape.KnownOptimizer(tape.OptimizerName(text)) != nil {
		r.unknown = append(r.unknown, fmt.Sprintf("%s: %v", name, v))
		return
	}
	if c.Optimizer == "adamw" {
		c.Optimizer = text
	}
}

// useDeepSpeed reads DeepSpeed's own file, which a trainer's file names, or its settings.
func (c *planCmd) useDeepSpeed(r *recipe, path string, v any) {
	fields, ok := v.(map[string]any)
	if file, isText := v.(string); isText {
		for _, at := range []string{file, filepath.Join(filepath.Dir(path), file)} {
			if text, err := os.ReadFile(at); err == nil && json.Unmarshal(text, &fields) == nil {
				ok = true
				break
			}
		}
		if !ok {
			r.unknown = append(r.unknown, "deepspeed: "+file+" (not found)")
			return
		}
	}
	if stage, isNumber := asNumber(fields["zero_stage"]); isNumber && stage > 0 {
		c.useShard(fmt.Sprintf("zero%d", stage))
	}
	c.useZero(fields["zero_optimization"])
}

func (c *planCmd) useZero(v any) {
	zero, ok := v.(map[string]any)
	if !ok {
		return
	}
	if stage, isNumber := asNumber(zero["stage"]); isNumber && stage > 0 && stage <= 3 {
		c.useShard(fmt.Sprintf("zero%d", stage))
	}
	if n, isNumber := asNumber(zero["reduce_bucket_size"]); isNumber && c.Bucket == 0 {
		c.Bucket = int64(n)
	}
	c.Overlap = c.Overlap || asBool(zero["overlap_comm"])
}

func hasAdapter(all map[string]any) bool {
	for _, name := range []string{"adapter", "finetuning_type"} {
		if strings.Contains(strings.ToLower(fmt.Sprint(all[name])), "lora") {
			return true
		}
	}
	return false
}

func asNumber(v any) (int, bool) {
	switch n := v.(type) {
	case int:
		return n, true
	case float64:
		return int(n), true
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
	if slices.Equal(names, []string{"all"}) {
		return []string{tape.AllLinear}
	}
	return names
}

// harmlessWords begin the names of settings that cost no memory.
var harmlessWords = []string{"learning_rate", "lr_", "num_epochs", "num_train_epochs", "max_steps",
	"output_dir", "logging", "log_", "save", "eval", "dataset", "data", "seed", "warmup",
	"weight_decay",
	"wandb", "report_to", "val_set", "train_on", "chat_template", "template", "special_tokens",
	"tokenizer", "overwrite", "push_to", "hub_", "lora_alpha", "adam_", "beta", "early_stopping",
	"do_train", "do_eval", "stage", "preprocessing", "plot_loss", "strict", "machine_rank",
	"num_machines", "main_", "rdzv", "same_network", "use_cpu", "compute_environment", "debug",
	"steps_per_print", "wall_clock", "train_batch_size", "resume", "load_best", "metric", "greater",
	"run_name", "remove_unused", "ddp_timeout", "shuffle", "epochs", "downcast_bf16", "tpu_"}

func harmless(name string) bool {
	return slices.ContainsFunc(harmlessWords, func(w string) bool {
		return strings.HasPrefix(name, w)
	})
}
