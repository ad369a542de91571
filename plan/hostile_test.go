package plan

import (
	"math/rand/v2"
	"strings"
	"testing"

	"memroom/models"
	"memroom/remedy"
)

// fields that configurations use, for strange ones made of them.
var configFields = []string{"hidden_size", "n_embd", "d_model", "dim", "intermediate_size",
	"ffn_dim", "d_ff", "num_hidden_layers", "n_layer", "num_layers", "encoder_layers",
	"decoder_layers", "n_layers", "num_attention_heads", "n_head", "num_heads",
	"num_key_value_heads", "head_dim", "d_kv", "vocab_size", "max_position_embeddings",
	"n_positions",
	"sliding_window", "num_experts_per_tok", "num_local_experts", "embedding_size", "patch_size",
	"image_size", "window_size", "vocab", "embed", "hidden", "layers", "in", "out",
	"encoder_attention_heads", "decoder_attention_heads", "encoder_ffn_dim", "decoder_ffn_dim",
	"num_hidden_groups", "word_embed_proj_dim", "max_source_positions"}

// TestStrangeConfigurationsGetAnAnswerOrAReason runs every family on configurations of random small
// numbers: an error with a reason is fine, a panic or a prediction without memory is not.
func TestStrangeConfigurationsGetAnAnswerOrAReason(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	answered := 0
	numbers := []any{1.0, 2.0, 3.0, 4.0, 7.0, 8.0, 12.0, 16.0, 33.0, 64.0, 0.0, -1.0, nil, "x", 2.5,
		true}
	for _, kind := range models.Types() {
		for round := range 25 {
			fields := map[string]any{"model_type": kind, "name": "resnet18"}
			for _, f := range configFields {
				if n := rng.IntN(3); n > 0 && round > 0 {
					fields[f] = numbers[rng.IntN(len(numbers)-6*(n-1))]
				} else if round == 0 || rng.IntN(2) == 0 {
					fields[f] = []any{64.0, 128.0, 4.0, 2.0}[rng.IntN(4)]
				}
				// one layer is as the next: many would only take time
				if n, is := fields[f].(float64); is && n > 4 && strings.Contains(f, "layer") {
					fields[f] = 4.0
				}
			}
			s := Setup{Model: models.ConfigOf(fields), Setup: remedy.Setup{Batch: 1 + rng.IntN(3),
				Seq: 1 + rng.IntN(40), Precision: Precisions[rng.IntN(len(Precisions))],
				Attention: []string{"sdpa", "eager"}[rng.IntN(2)], Checkpointing: rng.IntN(2) == 0},
				Padded: rng.IntN(3) == 0}
			if check(t, kind, fields, s) {
				answered++
			}
		}
	}
	if answered < len(models.Types()) {
		t.Errorf("only %d of the configurations made sense: the test is too strange", answered)
	}
	t.Logf("%d answered", answered)
}

// check reports whether the configuration was answered rather than refused.
func check(t *testing.T, kind string, fields map[string]any, s Setup) bool {
	t.Helper()
	defer func() {
		if r := recover(); r != nil {
			t.Errorf("%s: panic %v\nsetup %+v\nfields %v", kind, r, s.Setup, fields)
		}
	}()
	p, err := Predict(s, testTarget())
	if err != nil {
		return false
	}
	if p.AllocatedPeak <= 0 || p.ReservedPeak < p.AllocatedPeak {
		t.Errorf("%s: allocated %d, reserved %d for %v", kind, p.AllocatedPeak, p.ReservedPeak,
			fields)
	}
	return true
}
