package cli

import (
	"path/filepath"
	"strings"
	"testing"

	"memroom/testenv"
)

// trainersShapes are files in the shapes that public projects use, in our own words.
var trainersShapes = []struct {
	name, text string
	args       []string
	wants      []string // in what was assumed
	says       []string // in what is printed
	silent     bool     // nothing is left out
}{
	{name: "axolotl-full-fsdp2.yaml", text: `
base_model: NousResearch/Meta-Llama-3-8B
model_type: LlamaForCausalLM
datasets:
  - path: some/data
    type: alpaca
sequence_len: 512
sample_packing: true
pad_to_sequence_len: true
micro_batch_size: 2
gradient_accumulation_steps: 8
num_epochs: 1
optimizer: adamw_torch_fused
lr_scheduler: cosine
learning_rate: 2e-5
bf16: auto
tf32: false
gradient_checkpointing: true
flash_attention: true
fsdp_version: 2
fsdp_config:
  offload_params: false
  state_dict_type: FULL_STATE_DICT
  auto_wrap_policy: TRANSFORMER_BASED_WRAP
  reshard_after_forward: true
fsdp:
  - full_shard
  - auto_wrap
special_tokens:
  pad_token: <pad>
`, args: []string{"--ranks", "8"}, wants: []string{"batch 2", "8 accumulated", "sequence 512",
		"bf16", "adamw_fused", "checkpointing", "flash", "8 ranks (fsdp)"}},
	{name: "axolotl-dpo.yml", text: `
base_model: meta-llama/Llama-3.2-1B
rl: dpo
sequence_len: 512
micro_batch_size: 2
optimizer: adamw_torch
bf16: true
gradient_checkpointing: true
`, wants: []string{"batch 2", "dpo (pairs)", "sequence 512"}, silent: true},
	{name: "factory-orpo.yaml", text: `
model_name_or_path: meta-llama/Llama-3.2-1B
stage: dpo
pref_loss: orpo
pref_beta: 0.1
finetuning_type: lora
lora_target: all
cutoff_len: 256
per_device_train_batch_size: 1
bf16: true
`, wants: []string{"orpo (pairs)", "all-linear"}},
	{name: "trl-grpo.yaml", text: `
model_name_or_path: meta-llama/Llama-3.2-1B
per_device_train_batch_size: 4
gradient_accumulation_steps: 2
num_generations: 8
max_prompt_length: 256
max_completion_length: 128
use_vllm: true
vllm_mode: colocate
vllm_gpu_memory_utilization: 0.25
beta: 0.04
bf16: true
`, args: []string{"--gpu", "A100-80"}, wants: []string{"grpo, answers of 128 tokens", "sequence 384"}, silent: true},
	{name: "factory-reward.yaml", text: `
model_name_or_path: meta-llama/Llama-3.2-1B
stage: rm
cutoff_len: 256
per_device_train_batch_size: 2
bf16: true
`, wants: []string{"reward (pairs)"}},
	{name: "axolotl-lora8.yml", text: `
base_model: someone/model
load_in_8bit: true
adapter: lora
lora_r: 16
lora_alpha: 32
lora_target_modules: [q_proj, k_proj, v_proj, o_proj]
lora_modules_to_save: [lm_head]
sequence_len: 256
micro_batch_size: "4"
optimizer: adamw_bnb_8bit
bf16: true
val_set_size: 0.05
eval_batch_size: 4
deepspeed: deepspeed_configs/zero2.json
`, args: []string{"--ranks", "2"}, wants: []string{"batch 4", "weights in 8bit", "LoRA rank 16",
		"o_proj", "adamw8bit", "2 ranks (zero2)"}, says: []string{"its name says ZeRO-2"}},
	{name: "llamafactory-full-z3.yaml", text: `
model_name_or_path: someone/model
trust_remote_code: true
stage: sft
do_train: true
finetuning_type: full
deepspeed: ds_z3.json
dataset: identity
template: llama3
cutoff_len: 256
max_samples: 1000
preprocessing_num_workers: 16
output_dir: saves/full
per_device_train_batch_size: 1
gradient_accumulation_steps: 2
learning_rate: 1.0e-5
num_train_epochs: 3.0
bf16: true
ddp_timeout: 180000000
`, args: []string{"--ranks", "4"}, wants: []string{"sequence 256", "2 accumulated", "amp_bf16",
		"4 ranks (zero3)"}, silent: true},
	{name: "llamafactory-qlora-dora.yaml", text: `
model_name_or_path: someone/model
quantization_bit: 4
quantization_method: bnb
double_quantization: false
stage: sft
finetuning_type: lora
lora_target: all
lora_rank: 8
use_dora: true
cutoff_len: 128
per_device_train_batch_size: 2
pure_bf16: true
flash_attn: fa2
`, wants: []string{"weights in 4bit", "LoRA rank 8", "DoRA", "all-linear", "flash"}},
	{name: "trl-sft.yaml", text: `
model_name_or_path: someone/model
torch_dtype: bfloat16
attn_implementation: flash_attention_2
dataset_name: some/data
use_peft: true
lora_r: 32
lora_alpha: 16
lora_target_modules: all-linear
load_in_4bit: true
use_bnb_nested_quant: true
per_device_train_batch_size: 4
gradient_checkpointing: true
gradient_checkpointing_kwargs:
  use_reentrant: false
max_length: 192
packing: true
bf16: true
optim: paged_adamw_8bit
`, wants: []string{"batch 4", "sequence 192", "bf16", "weights in 4bit", "LoRA rank 32",
		"all-linear", "paged_adamw8bit", "checkpointing", "flash"}, silent: true},
	{name: "trl-nested.yaml", text: `
model:
  model_name_or_path: someone/model
  dtype: bfloat16
peft:
  use_peft: true
  lora_r: 4
  lora_target_modules: [q_proj, v_proj]
training:
  per_device_train_batch_size: 3
  gradient_accumulation_steps: 2
  bf16: true
  max_length: 64
  use_liger_kernel: true
  mystery_buffer: 12
`, wants: []string{"batch 3", "2 accumulated", "sequence 64", "LoRA rank 4", "q_proj, v_proj",
		"bf16"}, says: []string{"training.mystery_buffer"}},
	{name: "torchtune-full-single.yaml", text: `
output_dir: /tmp/out
tokenizer:
  _component_: torchtune.models.llama3.llama3_tokenizer
  path: /tmp/tokenizer.model
  max_seq_len: 512
model:
  _component_: torchtune.models.llama3_2.llama3_2_1b
checkpointer:
  _component_: torchtune.training.FullModelHFCheckpointer
  checkpoint_dir: /tmp/Llama-3.2-1B
  checkpoint_files: [model.safetensors]
dataset:
  _component_: torchtune.datasets.alpaca_dataset
  packed: false
seed: null
shuffle: true
batch_size: 4
epochs: 1
optimizer:
  _component_: bitsandbytes.optim.PagedAdamW8bit
  lr: 2e-5
loss:
  _component_: torchtune.modules.loss.LinearCrossEntropyLoss
optimizer_in_bwd: true
gradient_accumulation_steps: 1
clip_grad_norm: null
compile: false
enable_activation_checkpointing: true
enable_activation_offloading: false
dtype: bf16
device: cuda
metric_logger:
  _component_: torchtune.training.metric_logging.DiskLogger
  log_dir: logs
`, args: []string{}, wants: []string{"batch 4", "sequence 512", "bf16", "paged_adamw8bit",
		"checkpointing"}, says: []string{"the published sizes of llama-3.2-1b"}},
	{name: "torchtune-qlora.yaml", text: `
model:
  _component_: torchtune.models.llama3_1.qlora_llama3_1_8b
  lora_attn_modules: [q_proj, v_proj, output_proj]
  apply_lora_to_mlp: true
  apply_lora_to_output: false
  lora_rank: 8
  lora_alpha: 16
  lora_dropout: 0.0
optimizer:
  _component_: torch.optim.AdamW
  fused: true
  weight_decay: 0.01
batch_size: 2
max_seq_len: 256
enable_activation_checkpointing: true
dtype: bf16
`, wants: []string{"batch 2", "sequence 256", "weights in 4bit", "LoRA rank 8", "o_proj",
		"gate_proj", "adamw_fused"}, says: []string{"the published sizes of llama-3-8b"}},
	{name: "accelerate-fsdp1.yaml", text: `
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
downcast_bf16: 'no'
fsdp_config:
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_backward_prefetch: BACKWARD_PRE
  fsdp_sharding_strategy: SHARD_GRAD_OP
  fsdp_state_dict_type: SHARDED_STATE_DICT
mixed_precision: bf16
num_machines: 1
num_processes: 4
rdzv_backend: static
`, args: []string{"MODEL", "--seq", "64"}, wants: []string{"4 ranks (fsdp1", "amp_bf16"}},
	{name: "accelerate-deepspeed.yaml", text: `
distributed_type: DEEPSPEED
deepspeed_config:
  gradient_accumulation_steps: 4
  offload_optimizer_device: cpu
  offload_param_device: cpu
  zero3_init_flag: true
  zero_stage: 3
mixed_precision: bf16
num_processes: 8
`, args: []string{"MODEL", "--seq", "64"}, wants: []string{"8 ranks (zero3)", "4 accumulated",
		"amp_bf16", "optimizer and parameters in host memory"}, silent: true},
	{name: "accelerate-hybrid.yaml", text: `
distributed_type: FSDP
fsdp_config:
  fsdp_version: 1
  fsdp_sharding_strategy: HYBRID_SHARD
  fsdp_offload_params: true
mixed_precision: bf16
num_machines: 2
num_processes: 16
`, args: []string{"MODEL", "--seq", "64"}, wants: []string{"16 ranks (fsdp1, 2 groups)",
		"parameters in host memory"}, silent: true},
	{name: "accelerate-hybrid2.yaml", text: `
distributed_type: FSDP
fsdp_config:
  fsdp_version: 2
  fsdp_sharding_strategy: HYBRID_SHARD
mixed_precision: bf16
num_machines: 4
num_processes: 32
`, args: []string{"MODEL", "--seq", "64"}, wants: []string{"32 ranks (hsdp, 4 groups)"},
		silent: true},
	{name: "trainer-hybrid.json", text: `{"per_device_train_batch_size": 1, "bf16": true,
		"fsdp": "hybrid_shard auto_wrap offload"}`, args: []string{"MODEL", "--seq", "64",
		"--ranks", "16"}, wants: []string{"16 ranks (fsdp1, 2 groups)",
		"parameters in host memory"}, silent: true},
	{name: "deepspeed-auto.json", text: `{"fp16": {"enabled": "auto", "loss_scale": 0},
		"bf16": {"enabled": true}, "optimizer": {"type": "AdamW", "params": {"lr": "auto",
		"betas": "auto"}}, "zero_optimization": {"stage": 1, "overlap_comm": true,
		"reduce_bucket_size": 5e5, "contiguous_gradients": true},
		"gradient_accumulation_steps": "auto", "gradient_clipping": "auto",
		"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto"}`,
		args: []string{"MODEL", "--seq", "64", "--ranks", "2"}, wants: []string{"2 ranks (zero1)",
			"amp_bf16"}, silent: true},
	{name: "trainer-args.json", text: `{"output_dir": "x", "training": {
		"per_device_train_batch_size": 2, "per_device_eval_batch_size": 8, "eval_strategy": "steps",
		"optim": "adafactor", "bf16": true, "max_grad_norm": 1.0, "gradient_checkpointing": true}}`,
		args: []string{"MODEL", "--seq", "64"}, wants: []string{"batch 2", "adafactor", "amp_bf16",
			"checkpointing", "evaluation"}},
	{name: "litgpt.yaml", text: `
checkpoint_dir: checkpoints/meta-llama/Llama-3.2-1B
out_dir: out/finetune
precision: bf16-true
quantize: bnb.nf4
devices: 1
lora_r: 32
lora_alpha: 16
lora_dropout: 0.05
lora_query: true
lora_key: false
lora_value: true
train:
  micro_batch_size: 2
  max_seq_length: 128
  epochs: 2
data:
  class_path: litgpt.data.Alpaca2k
`, wants: []string{"batch 2", "sequence 128", "weights in 4bit", "LoRA rank 32", "q_proj, v_proj"},
		says: []string{"published sizes of llama-3.2-1b"}},
	{name: "lightning.yaml", text: `
trainer:
  precision: bf16-mixed
  accumulate_grad_batches: 4
  gradient_clip_val: 1.0
  max_epochs: 10
  devices: 2
  strategy: ddp
data:
  batch_size: 4
`, args: []string{"MODEL", "--seq", "64"}, wants: []string{"amp_bf16", "4 accumulated",
		"2 ranks (ddp)", "batch 4"}},
	{name: "torchtitan.toml", text: `
[model]
name = "llama3"
flavor = "8B"
[optimizer]
name = "AdamW"
lr = 3e-4
[training]
local_batch_size = 1
seq_len = 128
max_norm = 1.0
steps = 10
[parallelism]
data_parallel_shard_degree = 4
tensor_parallel_degree = 1
[activation_checkpoint]
mode = "full"
`, args: []string{"MODEL"}, wants: []string{"sequence 128", "4 ranks (fsdp)", "checkpointing"}},
	{name: "torchtitan-3d.toml", text: `
[training]
local_batch_size = 8
seq_len = 128
[parallelism]
data_parallel_replicate_degree = 1
data_parallel_shard_degree = 2
tensor_parallel_degree = 2
pipeline_parallel_degree = 2
pipeline_parallel_schedule = "1F1B"
pipeline_parallel_microbatch_size = 2
enable_async_tensor_parallel = false
`, args: []string{"MODEL"}, wants: []string{"batch 2", "sequence 128",
		"8 ranks (fsdp, tensor 2, pipeline 2 with 4 micro-batches)"}, silent: true},
	{name: "axolotl-nd.yaml", text: `
base_model: NousResearch/Llama-3.2-1B
sequence_len: 128
micro_batch_size: 1
bf16: true
dp_shard_size: 2
tensor_parallel_size: 2
context_parallel_size: 2
fsdp_version: 2
fsdp_config:
  offload_params: false
  reshard_after_forward: true
`, wants: []string{"8 ranks (fsdp, tensor 2, context 2)", "bf16"}, silent: true},
	{name: "axolotl-ring.yaml", text: `
base_model: NousResearch/Llama-3.2-1B
sequence_len: 128
micro_batch_size: 1
bf16: true
flash_attention: true
sequence_parallel_degree: 4
heads_k_stride: 1
ring_attn_func: varlen_llama3
`, wants: []string{"4 ranks (ddp, context 4)", "sequence 128"}, silent: true},
	{name: "accelerate-nd.yaml", text: `
distributed_type: FSDP
fsdp_config:
  fsdp_version: 2
  fsdp_offload_params: true
mixed_precision: bf16
num_processes: 16
parallelism_config:
  parallelism_config_dp_replicate_size: 2
  parallelism_config_dp_shard_size: 2
  parallelism_config_tp_size: 2
  parallelism_config_cp_size: 2
  parallelism_config_cp_comm_strategy: allgather
`, args: []string{"MODEL", "--seq", "64"}, wants: []string{
		"16 ranks (hsdp, 2 groups, tensor 2, context 2)", "parameters in host memory"}, silent: true},
	{name: "torchtitan-rest.toml", text: `
[training]
local_batch_size = 1
seq_len = 128
[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree = 2
`, args: []string{"MODEL", "--ranks", "8"}, wants: []string{"8 ranks (fsdp, tensor 2)"},
		silent: true},
	{name: "torchtune-tp.yaml", text: `
model:
  _component_: torchtune.models.llama3_2.llama3_2_1b
batch_size: 1
dtype: bf16
tensor_parallel_dim: 4
data_parallel_shard_dim: -1
fsdp_cpu_offload: false
`, args: []string{"MODEL", "--seq", "64"}, wants: []string{"4 ranks (tensor 4)"}, silent: true},
	{name: "nemo.yaml", text: `
trainer:
  devices: 8
model:
  micro_batch_size: 1
  tensor_model_parallel_size: 2
  pipeline_model_parallel_size: 2
  sequence_parallel: true
`, args: []string{"MODEL", "--seq", "64"}, wants: []string{
		"8 ranks (ddp, tensor 2, sequence, pipeline 2 with 2 micro-batches)"}},
	{name: "factory-sp.yaml", text: `
model_name_or_path: meta-llama/Llama-3.2-1B
stage: sft
finetuning_type: full
cutoff_len: 128
per_device_train_batch_size: 1
sequence_parallel_size: 2
bf16: true
`, wants: []string{"2 ranks (ddp, context 2)"}, silent: true},
}

// TestTrainersFilesOfManyProjects: the files that people have become the setup they mean.
func TestTrainersFilesOfManyProjects(t *testing.T) {
	model := writeConfig(t, `{"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2,
		"num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 1000}`)
	for _, c := range trainersShapes {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, c.name)
			for at, text := range map[string]string{path: c.text, filepath.Join(dir, "ds_z3.json"): `{
				"zero_optimization": {"stage": 3, "overlap_comm": false}, "bf16": {"enabled": "auto"}}`} {
				testenv.Write(t, at, []byte(text))
			}
			t.Setenv("HF_HUB_CACHE", dir)
			named := strings.Contains(strings.Join(c.says, " "), "published sizes")
			args := append([]string{path}, c.args...)
			switch {
			case len(c.args) > 0 && c.args[0] == "MODEL":
				args[1] = model
			case !named:
				args = append([]string{path, model}, c.args...)
			}
			p, message, code := planned(t, args...)
			if code != exitOK {
				t.Fatalf("exit %d: %s", code, message)
			}
			for _, want := range c.wants {
				if !strings.Contains(p.Assumed, want) {
					t.Errorf("%q is not in %q", want, p.Assumed)
				}
			}
			for _, want := range c.says {
				if !strings.Contains(message, want) {
					t.Errorf("%q is not in %q", want, message)
				}
			}
			if c.silent && strings.Contains(message, "not understood") {
				t.Errorf("it says %q", message)
			}
		})
	}
}
