package plan

import (
	"testing"

	"memroom/allocsim"
	"memroom/models"
	"memroom/remedy"
)

// TestLongestSequenceIsBeyondTheFirstWall: how much the cache wastes goes up and down, so 530
// tokens do not fit this card and 675 do. Wherever the search begins it goes that far, and its
// answer fits when it is asked for.
func TestLongestSequenceIsBeyondTheFirstWall(t *testing.T) {
	model, err := models.ParseConfig([]byte(`{"model_type": "llama", "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22,
		"num_attention_heads": 32, "num_key_value_heads": 4, "vocab_size": 32000, "tie_word_embeddings": false}`))
	if err != nil {
		t.Fatal(err)
	}
	card, err := FindCard("24GiB")
	if err != nil {
		t.Fatal(err)
	}
	target := Target{Card: card, Given: true, Alloc: allocsim.DefaultConfig(), Torch: "2.11"}
	for _, from := range []int{455, 500, 1024} {
		s := Setup{Model: model}
		s.Batch, s.Seq = 3, from
		p, err := Predict(s, target)
		if err != nil {
			t.Fatal(err)
		}
		s.Seq = int(*p.MaxSeq)
		if again, err := predictOnly(s, target); err != nil || !*again.Fits || s.Seq < 675 {
			t.Errorf("from %d: longest sequence %d, which fits: %v %v", from, s.Seq,
				err == nil && *again.Fits, err)
		}
	}
}

// TestLongestSequenceOfATable: a model with a table of positions is asked for as many as it has,
// whatever sequence the question began with.
func TestLongestSequenceOfATable(t *testing.T) {
	card, err := FindCard("H200")
	if err != nil {
		t.Fatal(err)
	}
	target := Target{Card: card, Given: true, Alloc: allocsim.DefaultConfig(), Torch: "2.11"}
	for text, want := range map[string]int64{
		`{"model_type":"whisper"}`:                           448,
		`{"model_type":"whisper","max_target_positions":96}`: 96,
		`{"model_type":"m2m_100","d_model":64,"encoder_attention_heads":4,
			"decoder_attention_heads":4,"encoder_layers":1,"decoder_layers":1,
			"max_position_embeddings":300}`: 300,
	} {
		s := Setup{Model: mustConfig(t, text)}
		s.Batch, s.Seq = 1, 64
		p, err := Predict(s, target)
		if err != nil || *p.MaxSeq != want {
			t.Errorf("%s: longest sequence %d, want %d: %v", text, *p.MaxSeq, want, err)
		}
	}
}

// TestVerdictAgreesWithTheLargestBatch: a run that stays below the card because the allocator frees
// its cache probably fits. No batch is likelier than one that probably does not.
func TestVerdictAgreesWithTheLargestBatch(t *testing.T) {
	model := models.ConfigOf(tied(llamaOf(2048, 8192, 16, 32, 8, 128256)))
	for card, want := range map[string]string{"12000MiB": ProbablyDoesNot, "12400MiB": ProbablyFits} {
		target, err := testTarget(), error(nil)
		if target.Card, err = FindCard(card); err != nil {
			t.Fatal(err)
		}
		target.Given = true
		p, err := Predict(Setup{Model: model, Setup: remedy.Setup{Batch: 1, Seq: 512,
			Precision: "bf16", Optimizer: "adamw"}}, target)
		if err != nil {
			t.Fatal(err)
		}
		likely := p.LikelyBatch != nil && *p.LikelyBatch > 0
		if p.Verdict != want || likely != (want == ProbablyFits) || *p.Fits ||
			(p.DevicePeak == p.Room) != likely || p.High <= p.Room {
			t.Errorf("%s: %s, needs %s of %s, at most %s, a batch probably fits: %v", card, p.Verdict,
				p.DevicePeak, p.Room, p.High, likely)
		}
	}
}
