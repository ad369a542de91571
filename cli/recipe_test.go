package cli

import (
	"fmt"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"memroom/testenv"
)

// fromRecipe reads a trainer's file as `plan` does, up to the model.
func fromRecipe(t *testing.T, text string) (planCmd, *recipe) {
	t.Helper()
	fields := map[string]any{}
	if err := yaml.Unmarshal([]byte(text), &fields); err != nil {
		t.Fatal(err)
	}
	c := planCmd{Batch: 1, Accumulate: 1, Ranks: 1, Optimizer: "adamw", Attn: "sdpa", Loss: "plain"}
	r := &recipe{path: filepath.Join(t.TempDir(), "x.yml"), all: map[string]any{}}
	c.readSettings(&session{}, r, flatten(fields, nil))
	return c, r
}

// changed lists the flags that a file set, in their order.
func changed(c planCmd) string {
	usual := reflect.ValueOf(planCmd{Batch: 1, Accumulate: 1, Ranks: 1, Optimizer: "adamw",
		Attn: "sdpa", Loss: "plain"})
	v := reflect.ValueOf(c)
	var words []string
	for i := range v.NumField() {
		if field := v.Type().Field(i); field.IsExported() && !field.Anonymous &&
			!reflect.DeepEqual(v.Field(i).Interface(), usual.Field(i).Interface()) {
			words = append(words, fmt.Sprintf("%s=%v", field.Name, v.Field(i).Interface()))
		}
	}
	return strings.Join(words, " ")
}

// TestSettingsOfTrainers: what each setting of a trainer's file means as flags of plan. A setting
// that is off, or left to a default, changes nothing; one that is not known is named.
func TestSettingsOfTrainers(t *testing.T) {
	for _, c := range []struct{ file, flags, unknown string }{
		{"per_device_train_batch_size: 4\ngradient_accumulation_steps: 8\nmax_seq_length: 2048\n" +
			"bf16: true",
			"Batch=4 Seq=2048 Precision=amp_bf16 Accumulate=8", ""},
		{"micro_batch_size: 0\nsequence_len: -5\nbf16: false\nfp16: no", "", ""},
		{"batch_size: '16'\nnum_processes: 2.0\nseed: 3\nlearning_rate: 2e-4", "Batch=16 Ranks=2", ""},
		{"batch_size: 1.5", "", ""},
		{"batch_size: auto\nbf16: auto", "Precision=amp_bf16", ""},
		{"torch_dtype: torch.bfloat16", "Precision=bf16", ""},
		{"torch_dtype: bfloat16\nbf16: true", "Precision=bf16 Autocast=true", ""},
		{"torch_dtype: bfloat16\nfp16: true", "Precision=bf16", ""},
		{"dtype: float32\nfp16: true", "Precision=amp_fp16", ""},
		{"precision: 16-mixed", "Precision=amp_fp16", ""}, {"precision: bf16-true", "Precision=bf16", ""},
		{"precision: 32-true", "Precision=fp32", ""},
		{"mixed_precision: fp16", "Precision=amp_fp16", ""}, {"mixed_precision: 'no'", "", ""},
		{"pure_bf16: true\nbf16: true", "Precision=bf16", ""},
		{"bf16: full", "Precision=bf16", ""},
		{"bf16:\n  enabled: true", "Precision=amp_bf16", ""}, {"fp16:\n  enabled: false", "", ""},

		{"optim: adafactor", "Optimizer=adafactor", ""},
		{"optim: paged_adamw_8bit\nmax_grad_norm: 1.0", "Optimizer=paged_adamw8bit Clip=true", ""},
		{"optim: nothing_known", "", "optim: nothing_known"},
		{"optimizer:\n  _component_: bitsandbytes.optim.PagedAdamW8bit", "Optimizer=paged_adamw8bit", ""},
		{"optimizer:\n  type: AdamW\n  fused: true", "Optimizer=adamw_fused", ""},
		{"max_grad_norm: 0\ngradient_clip_val: none", "", ""},
		{"gradient_checkpointing: true\ntorch_compile: true\nuse_liger_kernel: true",
			"Checkpointing=true Loss=fused Compile=true", ""},
		{"gradient_checkpointing: unsloth", "Checkpointing=true", ""},
		{"gradient_checkpointing: offload", "Checkpointing=true Offload=[activations]", ""},
		{"disable_gradient_checkpointing: false", "Checkpointing=true", ""},
		{"disable_gradient_checkpointing: true", "", ""},
		{"enable_activation_offloading: true\noptimizer_in_bwd: true",
			"InBackward=true Offload=[activations]", ""},
		{"activation_checkpoint:\n  mode: selective", "Checkpointing=true", "selective checkpointing"},
		{"attn_implementation: flash_attention_2", "Attn=flash", ""},
		{"attn_implementation: eager", "Attn=eager", ""}, {"flash_attention: true", "Attn=flash", ""},
		{"flash_attention: false", "", ""}, {"attn_implementation: magic", "",
			"attn_implementation: magic"},
		{"eager_attention: true\nuse_cache: true\nchannels_last: true",
			"Attn=eager ChannelsLast=true UseCache=true", ""},
		{"packing: true\nimage_max_pixels: 50176", "Image=224 Packed=true", ""},
		{"per_device_eval_batch_size: 8\neval_strategy: steps", "EvalBatch=8", ""},
		{"per_device_eval_batch_size: 8\neval_strategy: 'no'", "", ""},
		{"eval_batch_size: 8\nval_set_size: 0.1", "EvalBatch=8", ""},
		{"eval_batch_size: 8\nval_set_size: 0", "", ""}, {"eval_batch_size: 8\ndo_eval: true",
			"EvalBatch=8", ""},

		{"adapter: lora\nlora_r: 16\nlora_dropout: 0.05\nlora_target_modules: [q_proj, v_proj]",
			"LoraRank=16 LoraTargets=[q_proj v_proj] LoraDropout=0.05", ""},
		{"adapter: qlora\nlora_target_linear: true\nbase_model: x",
			"LoraRank=8 LoraTargets=[all-linear] LoadIn=4bit", ""},
		{"finetuning_type: lora\nlora_rank: 4\nlora_target: all\nquantization_bit: 8",
			"LoraRank=4 LoraTargets=[all-linear] LoadIn=8bit", ""},
		{"finetuning_type: freeze", "", "freeze (not planned)"}, {"finetuning_type: full\nlora_rank: 4",
			"", ""},
		{"use_peft: true\nlora_r: 32\nload_in_4bit: true\nuse_bnb_nested_quant: true",
			"LoraRank=32 LoadIn=4bit DoubleQuant=true", ""},
		{"use_peft: false\nlora_r: 32\nload_in_4bit: true", "", ""},
		{"use_peft: true\nuse_dora: true\nlora_modules_to_save: lm_head, embed_tokens",
			"LoraRank=8 Dora=true ModulesToSave=[lm_head embed_tokens]", ""},
		{"use_dora: true", "", ""},
		{"model:\n  _component_: torchtune.models.llama3.lora_llama3_8b\n" +
			"  lora_attn_modules: [q_proj, output_proj]\n" +
			"  apply_lora_to_mlp: true\n  lora_rank: 64",
			"LoraRank=64 LoraTargets=[down_proj gate_proj o_proj q_proj up_proj]", ""},
		{"model:\n  _component_: torchtune.models.llama3.qlora_llama3_8b", "LoraRank=8 LoadIn=4bit", ""},
		{"lora_query: true\nlora_value: true\nlora_head: true\nlora_r: 4\nquantize: bnb.nf4-dq",
			"LoraRank=4 LoraTargets=[lm_head q_proj v_proj] LoadIn=4bit DoubleQuant=true", ""},
		{"quantize: bnb.int8", "LoadIn=8bit", ""},

		{"zero_optimization:\n  stage: 3\n  reduce_bucket_size: 5e8\n  overlap_comm: true\n" +
			"  offload_optimizer:\n    device: cpu\n  offload_param:\n    device: nvme\ntrain_batch_size: 8",
			"Shard=zero3 Bucket=500000000 Overlap=true Offload=[optimizer parameters]", ""},
		{"zero_optimization:\n  stage: 0\n  offload_optimizer:\n    device: none", "", ""},
		{"zero_stage: 4", "", ""},
		{"distributed_type: FSDP\nfsdp_sharding_strategy: SHARD_GRAD_OP\nnum_processes: 4\n" +
			"fsdp_offload_params: true",
			"Ranks=4 Shard=fsdp1 NoReshard=true Offload=[parameters]", ""},
		{"distributed_type: FSDP\nfsdp_version: 2\nfsdp_reshard_after_forward: false\nnum_processes: 2",
			"Ranks=2 Shard=fsdp NoReshard=true", ""},
		{"distributed_type: MULTI_GPU\nnum_processes: 8", "Ranks=8 Shard=ddp", ""},
		{"distributed_type: 'NO'", "", ""},
		{"fsdp: full_shard auto_wrap offload\ndevices: 2", "Ranks=2 Shard=fsdp1 Offload=[parameters]",
			""},
		{"fsdp: ''", "", ""}, {"strategy: deepspeed_stage_2\ndevices: 4", "Ranks=4 Shard=zero2", ""},
		{"strategy: ddp\ndevices: 4", "Ranks=4 Shard=ddp", ""},
		{"deepspeed: examples/ds_zero2_config.json\nn_gpus: 4", "Ranks=4 Shard=zero2",
			"its name says ZeRO-2"},
		{"deepspeed: other.json", "", "other.json (not found)"},
		{"deepspeed: zero9.json", "", "zero9.json (not found)"},

		{"rl: dpo", "Trainer=dpo TRL=1.14", ""}, {"rl: simpo", "Trainer=dpo Reference=none TRL=1.14", ""},
		{"stage: sft", "", ""}, {"stage: rm", "Trainer=reward TRL=1.14", ""},
		{"stage: dpo\npref_loss: orpo", "Trainer=orpo TRL=1.14", ""},
		{"stage: dpo\npref_loss: sigmoid", "Trainer=dpo TRL=1.14", ""},
		{"rlhf_type: kto", "Trainer=kto TRL=1.14", ""}, {"rl: magic", "", "rl: magic"},
		{"num_generations: 8\nmax_prompt_length: 512\nmax_completion_length: 256\nbeta: 0.04",
			"Seq=768 Trainer=grpo Reference=copy Completion=256", ""},
		{"num_generations: 8\nbeta: 0\nuse_vllm: true\nvllm_mode: colocate\n" +
			"vllm_gpu_memory_utilization: 0.3",
			"Trainer=grpo EngineShare=0.3", ""},
		{"num_generations: 8\nuse_vllm: true\nvllm_gpu_memory_utilization: 0.3", "Trainer=grpo",
			"use_vllm"},
		{"max_completion_length: 256\nvllm_gpu_memory_utilization: 0.3", "", ""},
		{"precompute_ref_log_probs: true", "Trainer=dpo Reference=none", ""},
		{"reward_model: true", "Trainer=reward", ""}, {"reward_model: some/path", "", ""},
		{"a_new_setting: 5\nanother:\n  inner: yes please", "", "a_new_setting, another.inner"},
		{"a_new_setting: false\nmore: 0\nrest: ''\nlast: none\ndatasets:\n  path: x", "", ""},
	} {
		got, r := fromRecipe(t, c.file)
		unknown := strings.Join(r.unknown, ", ")
		if changed(got) != c.flags || !strings.Contains(unknown,
			c.unknown) || (unknown == "") != (c.unknown == "") {
			t.Errorf("%s\n got %s (%s)\nwant %s (%s)", c.file, changed(got), unknown, c.flags, c.unknown)
		}
	}
}

// TestFlagsComeBeforeFiles: what was said on the command line stays, and DeepSpeed's own file is
// looked for in the trainer's folder.
func TestFlagsComeBeforeFiles(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		testenv.Write(t, path, []byte(text))
		return path
	}
	write("ds.json", `{"zero_optimization": {"stage": 2}, "gradient_clipping": 1.0}`)
	fields, err := readRecipe(write("a.yml",
		"base_model: org/Llama-3-8B-Instruct\nmicro_batch_size: 4\n"+
			"sequence_len: 99\nbf16: true\ndeepspeed: configs/ds.json\nnum_processes: 2\nadapter: lora\n"))
	if err != nil || fields == nil {
		t.Fatal(fields, err)
	}
	c := planCmd{Batch: 7, Accumulate: 1, Ranks: 1, Optimizer: "sgd", Attn: "sdpa", Loss: "plain",
		Precision: "fp32", LoraRank: 3}
	r := &recipe{path: filepath.Join(dir, "a.yml"), all: map[string]any{}}
	c.readSettings(&session{}, r, flatten(fields, nil))
	if got := changed(c); got != "Batch=7 Seq=99 Precision=fp32 Optimizer=sgd Clip=true "+
		"LoraRank=3 Ranks=2 Shard=zero2" ||
		r.model != "org/Llama-3-8B-Instruct" || len(r.unknown) > 0 {
		t.Errorf("%s, model %s, %q", got, r.model, r.unknown)
	}
	for name, text := range map[string]string{
		"b.json": `{"model_type": "llama", "micro_batch_size": 1}`,
		"c.json": `{"hidden_size": 5}`, "d.json": "{", "e.txt": "micro_batch_size: 1"} {
		if fields, err := readRecipe(write(name, text)); fields != nil || err != nil {
			t.Errorf("%s is taken for a trainer's file: %v, %v", name, fields, err)
		}
	}
	for name, text := range map[string]string{"f.toml": "a = [", "g.yaml": "a: [1"} {
		if _, err := readRecipe(write(name, text)); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if fields, err := readRecipe(write("h.toml", "[training]\nlocal_batch_size = 3\n")); err != nil ||
		len(flatten(fields, nil)) != 1 {
		t.Errorf("%v, %v", fields, err)
	}
}
