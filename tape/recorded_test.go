package tape_test

import (
	"testing"

	"memroom/testenv/recorded"
)

// TestTapeAsksForWhatTheCardWasAsked: operations, autograd and optimizers together ask for what
// real training on an H200 asked for, request by request.
func TestTapeAsksForWhatTheCardWasAsked(t *testing.T) {
	for _, r := range recorded.Plain(t) {
		t.Run(r.ID, func(t *testing.T) {
			if wrong := recorded.Difference(r.Trained(r.Model(t)), r.Asked(t)); wrong != "" {
				t.Error(wrong)
			}
		})
	}
}
