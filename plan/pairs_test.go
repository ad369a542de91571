package plan

import (
	"testing"

	"memroom/models"
)

// TestPairsAreNamedWhereTheyMayBeMeant holds the note about chosen and rejected sequences to
// adapters on text models: anybody else would read about a training that they do not do.
func TestPairsAreNamedWhereTheyMayBeMeant(t *testing.T) {
	for _, c := range []struct {
		name        string
		rank, batch int
		said        bool
	}{
		{"adapters, pairs", 16, 32, true},
		{"adapters, odd batch", 16, 33, false},
		{"all weights", 0, 32, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			config, err := models.Preset("llama-2-7b")
			if err != nil {
				t.Fatal(err)
			}
			s := &Setup{Model: config}
			s.LoRARank, s.Batch = c.rank, c.batch
			if got := s.maybePairs(); got != c.said {
				t.Fatalf("maybePairs = %v, want %v", got, c.said)
			}
		})
	}
}
