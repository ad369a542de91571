package plan

import (
	"encoding/json"
	"fmt"
	"testing"

	"memroom/event"
	"memroom/testenv"
)

// TestAutoIsAccelerates holds the peer's placement that we print against the real accelerate.
func TestAutoIsAccelerates(t *testing.T) {
	python := testenv.Python(t, "torch", "transformers", "accelerate")
	out := testenv.Program{Python: python, Args: []string{"testdata/auto.py"}}.MustAsk(t).Out
	var answers [][]json.RawMessage
	if err := json.Unmarshal(out, &answers); err != nil {
		t.Fatal(err)
	}
	for _, a := range answers {
		var name string
		var sizes, blocks []int
		for i, into := range []any{&name, &sizes, &blocks} {
			if err := json.Unmarshal(a[i], into); err != nil {
				t.Fatal(err)
			}
		}
		s, target := setupFor(t, name, 1, 128)
		s.Precision = "bf16"
		var cards []Card
		for _, size := range sizes {
			card := DefaultCard()
			card.Total = event.Bytes(size) * event.GiB
			cards = append(cards, card)
		}
		m, err := PlaceOn(s, target, cards)
		if err != nil {
			t.Fatal(err)
		}
		if fmt.Sprint(m.Auto.Layers) != fmt.Sprint(blocks) {
			t.Errorf("%s on %v: accelerate puts %v blocks, we say %v", name, sizes, blocks,
				m.Auto.Layers)
		}
	}
}
