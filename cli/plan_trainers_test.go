package cli

import (
	"math"
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

// What a trainer's flag plans is what a rehearsal of TRL's own trainer asks for; of an older TRL,
// of the same steps written out.
func TestTrainersAgreeWithRehearsals(t *testing.T) {
	if testing.Short() {
		t.Skip("needs a minute of processor time")
	}
	config := filepath.Join(t.TempDir(), "config.json")
	testenv.Write(t, config, []byte(smallLlama))
	whole, trl := t, "" // one Python for the first three, which ends with the last test
	lora := []string{"--lora-rank", "16", "--lora-targets", "q_proj,v_proj"}
	for _, c := range []struct {
		name, trainer, script string
		args, flags           []string
	}{
		{"adapters", "dpo", "trl_steps.py", []string{"lora"},
			append(lora, "--completion", "288", "--precision", "amp_bf16")},
		{"before", "kto", "trl_steps.py", []string{"before"},
			[]string{"--completion", "288", "--precision", "amp_bf16", "--reference", "none"}},
		{"whole logits", "orpo", "trl_steps.py", nil, []string{"--precision", "amp_bf16"}},
		{"older", "dpo", "preference.py", []string{"bf16"},
			[]string{"--precision", "bf16", "--trl", "1.13"}},
	} {
		t.Run(c.trainer+" "+c.name, func(t *testing.T) {
			var python string
			if c.script == "trl_steps.py" {
				if trl == "" {
					trl = warm(whole, testenv.Environment(t, "trl"))
				}
				python = trl
			} else {
				python = testenv.Python(t, "torch", "transformers")
			}
			args := append([]string{script(c.script), c.trainer}, append(c.args, config)...)
			flags := append([]string{config, "--trainer", c.trainer, "--batch", "4", "--seq", "384",
				"--gpu", "H200", "--optimizer", "adamw_fused"}, c.flags...)
			ours, said, code := planned(t, flags...)
			if code != exitOK {
				t.Fatal(said)
			}
			theirs, message, _ := rehearsed(t, python, []string{"--gpu", "H200"}, args...)
			if message != "" {
				t.Fatal(message)
			}
			off := 100 * (float64(ours.AllocatedPeak)/float64(theirs.AllocatedPeak) - 1)
			t.Logf("allocated %d, rehearsed %d, %+.2f %%; reserved %d, %d; peaks %s and %s",
				ours.AllocatedPeak, theirs.AllocatedPeak, off, ours.ReservedPeak, theirs.ReservedPeak,
				ours.Phase, theirs.Phase)
			if math.Abs(off) > 1 {
				t.Errorf("%s is off by %.2f %%", c.trainer, off)
			}
			if theirs.DevicePeak < ours.Low || theirs.DevicePeak > ours.High {
				t.Errorf("the rehearsal's %s is outside of %s to %s", theirs.DevicePeak, ours.Low, ours.High)
			}
		})
	}
}

// Flags that mean nothing together are refused with what to do instead.
func TestTrainersRefuse(t *testing.T) {
	for want, flags := range map[string][]string{
		"such as sft, dpo or grpo":     {"--completion", "64"},
		"--trl is for one of its":      {"--trl", "1.13"},
		"names a release":              {"--trainer", "dpo", "--trl", "newest"},
		"models that write text":       {"--trainer", "dpo", "--preset", "bert-base"},
		"which counts prompt":          {"--trainer", "grpo", "--seq", "128", "--completion", "256"},
		"not known: use one of sft":    {"--trainer", "rlhf"},
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

// Other models and copies are counted too: copies, a value model, an engine's share.
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
