package cli

import (
	"path/filepath"
	"strings"
	"testing"

	"memroom/testenv"
)

// TestTrainersFiles: settings that people have become a setup; what was not understood is listed.
func TestTrainersFiles(t *testing.T) {
	model := writeConfig(t, `{"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2,
		"num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 1000}`)
	for _, c := range []struct {
		name, text string
		wants      []string // in what was assumed
		says       string
	}{
		{"axolotl.yml", `
base_model: someone/model
load_in_4bit: true
adapter: qlora
lora_r: 32
lora_target_linear: true
lora_dropout: 0.05
sequence_len: 256
micro_batch_size: 2
gradient_accumulation_steps: 4
optimizer: paged_adamw_8bit
bf16: auto
gradient_checkpointing: true
flux_capacitor: 3
`, []string{"batch 2", "4 accumulated", "sequence 256", "bf16", "paged_adamw8bit", "checkpointing",
			"weights in 4bit", "LoRA rank 32", "all-linear"}, "left out: flux_capacitor"},
		{"llamafactory.yaml", `
model_name_or_path: someone/model
finetuning_type: lora
lora_rank: 16
lora_target: q_proj,v_proj
cutoff_len: 128
per_device_train_batch_size: 3
bf16: true
`, []string{"batch 3", "sequence 128", "bf16", "LoRA rank 16", "on q_proj, v_proj"}, ""},
		{"ds.json", `{"train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": true},
			"zero_optimization": {"stage": 2, "reduce_bucket_size": 1000000}}`,
			[]string{"batch 2", "amp_bf16", "8 ranks (zero2)"}, ""},
		{"args.json", `{"per_device_train_batch_size": 4, "fp16": true, "optim": "adamw_torch_fused",
			"learning_rate": 0.001, "torch_compile": true}`,
			[]string{"batch 4", "amp_fp16", "adamw_fused", "compiled"}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), c.name)
			testenv.Write(t, path, []byte(c.text))
			args := []string{path, model}
			if c.name == "ds.json" {
				args = append(args, "--ranks", "8")
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
			if !strings.Contains(message, c.says) {
				t.Errorf("%q is not in %q", c.says, message)
			}
		})
	}
}

func TestTrainersFilesWithoutTheirModel(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.yml")
	testenv.Write(t, path, []byte("base_model: nobody/none\n"))
	t.Setenv("HF_HUB_CACHE", t.TempDir())
	_, message, code := planned(t, path)
	if code != exitUsage || !strings.Contains(message, "nobody/none, which is not on this machine") {
		t.Errorf("exit %d: %s", code, message)
	}
}
