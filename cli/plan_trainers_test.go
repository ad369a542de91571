package cli

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"memroom/testenv"
)

// smallLlama is the configuration of preference.py, with a vocabulary large enough for logits to
// decide.
const smallLlama = `{"model_type": "llama", "architectures": ["LlamaForCausalLM"],
	"hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 4,
	"num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 24000, "pad_token_id": 0}`

// What a trainer's flag plans is what a rehearsal of the same steps, written out, asks for.
func TestTrainersAgreeWithRehearsals(t *testing.T) {
	if testing.Short() {
		t.Skip("needs a minute of processor time")
	}
	python := testenv.Python(t, "torch", "transformers")
	config := filepath.Join(t.TempDir(), "config.json")
	if err := os.WriteFile(config, []byte(smallLlama), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ trainer, precision, flag string }{
		{"dpo", "bf16", "bf16"}, {"orpo", "bf16", "bf16"}, {"kto", "amp", "amp_bf16"},
		{"grpo", "amp", "amp_bf16"},
	} {
		t.Run(c.trainer+" "+c.precision, func(t *testing.T) {
			flags := []string{config, "--trainer", c.trainer, "--precision", c.flag, "--batch", "4",
				"--seq", "384", "--gpu", "H200"}
			if c.trainer == "grpo" { // the script does not write its answers
				flags = append(flags, "--completion", "192", "--engine-share", "0.2")
			}
			ours, said, code := planned(t, flags...)
			if code != exitOK {
				t.Fatal(said)
			}
			theirs, message, _ := rehearsed(t, python, []string{"--gpu", "H200"},
				script("preference.py"), c.trainer, c.precision, config)
			if message != "" {
				t.Fatal(message)
			}
			off := 100 * (float64(ours.AllocatedPeak)/float64(theirs.AllocatedPeak) - 1)
			t.Logf("allocated %d, rehearsed %d, %+.2f %%; reserved %d, %d; peaks %s and %s",
				ours.AllocatedPeak, theirs.AllocatedPeak, off, ours.ReservedPeak, theirs.ReservedPeak,
				ours.Phase, theirs.Phase)
			if math.Abs(off) > 2 {
				t.Errorf("%s is off by %.2f %%", c.trainer, off)
			}
		})
	}
}

// Flags that mean nothing together are refused with what to do instead.
func TestTrainersRefuse(t *testing.T) {
	for want, flags := range map[string][]string{
		"add --trainer grpo or ppo":    {"--completion", "64"},
		"models that write text":       {"--trainer", "dpo", "--preset", "bert-base"},
		"which counts prompt":          {"--trainer", "grpo", "--seq", "128", "--completion", "256"},
		"not known: use one of dpo":    {"--trainer", "rlhf"},
		"leave out --loss fused":       {"--trainer", "orpo", "--loss", "fused"},
		"sharding both is not planned": {"--trainer", "ppo", "--ranks", "4", "--shard", "fsdp"},
	} {
		if !slices.Contains(flags, "--preset") {
			flags = append(flags, "--preset", "gpt2")
		}
		if _, said, code := planned(t, flags...); code == exitOK || !strings.Contains(said, want) {
			t.Errorf("%v: exit %d, %q; want %q", flags, code, said, want)
		}
	}
}

// What stands beside the trained model is counted: copies, a value model, an engine's share.
func TestTrainersCountCompanions(t *testing.T) {
	weights := func(flags ...string) int64 {
		p, said, code := planned(t, append([]string{"--preset", "gpt2", "--precision", "bf16",
			"--batch", "1", "--seq", "64", "--gpu", "A100-80"}, flags...)...)
		if code != exitOK {
			t.Fatal(said)
		}
		return int64(p.Categories["weights"])
	}
	one := weights()
	for want, flags := range map[float64][]string{
		1: {"--trainer", "orpo"}, 2: {"--trainer", "dpo"}, 4: {"--trainer", "ppo"},
	} {
		if got := float64(weights(flags...)) / float64(one); got < want-0.2 || got > want+0.2 {
			t.Errorf("%v: %.2f times the weights, want %.0f", flags, got, want)
		}
	}
	lora := []string{"--lora-rank", "8", "--trainer", "dpo"}
	if got := float64(weights(lora...)) / float64(one); got > 1.2 {
		t.Errorf("adapters need no copy: %.2f times the weights", got)
	}
	plain, _, _ := planned(t, "--preset", "gpt2", "--trainer", "grpo", "--seq", "128", "--gpu",
		"A100-80", "--engine-share", "0.5")
	if plain.DevicePeak < 40<<30 {
		t.Errorf("half of the card is not the engine's: %s", plain.DevicePeak)
	}
}
