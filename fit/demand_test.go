package fit

import (
	"testing"

	"memroom/remedy"
)

// TestWeakestEquivalence: what a set of remedies promises about the results is what its weakest
// one promises, in any order.
func TestWeakestEquivalence(t *testing.T) {
	of := map[remedy.Equivalence]remedy.ID{}
	for _, r := range remedy.Catalogue() {
		if _, ok := of[r.Equivalence]; !ok {
			of[r.Equivalence] = r.ID
		}
	}
	order := []remedy.Equivalence{remedy.Exact, remedy.Expected, remedy.Changes}
	for i, weaker := range order {
		if of[weaker] == "" {
			t.Fatalf("no remedy is %s", weaker)
		}
		for _, stronger := range order[:i+1] {
			a, b := Remedy{ID: of[weaker]}, Remedy{ID: of[stronger]}
			for _, both := range [][]Remedy{{a, b}, {b, a}} {
				if got := Equivalence(both); got != weaker {
					t.Errorf("%v is %s, want %s", both, got, weaker)
				}
			}
		}
	}
	if got := Equivalence(nil); got != remedy.Exact {
		t.Errorf("nothing is %s", got)
	}
}

// TestSharesThatAreDemanded: an activation budget may be the whole, a threshold may not.
func TestSharesThatAreDemanded(t *testing.T) {
	for text, want := range map[string]bool{
		"activation_budget=0.3": true, "activation_budget=1": true, "activation_budget=0": false,
		"activation_budget=1.01": false, "activation_budget=-0.1": false,
		"activation_budget=much":   false,
		"gc_threshold=0.8":         true,
		"gc_threshold=1":           false,
		"gc_threshold=0":           false,
		"gc_threshold=often":       false,
		"mixed_precision=bf16":     true,
		"mixed_precision=fp16":     true,
		"mixed_precision=fp8":      false,
		"micro_batch=4":            true,
		"micro_batch=-1":           false,
		"activation_offload=1MiB":  true,
		"activation_offload=1 big": false,
		"set_to_none=1":            false,
	} {
		if _, err := Force(text); (err == nil) != want {
			t.Errorf("%s: %v", text, err)
		}
	}
	r, err := Force("activation_budget=0.3")
	if err != nil || r.Params.Budget != 0.3 ||
		r.Words() != "an activation memory budget of 0.3 for torch.compile" {
		t.Errorf("%+v, %q, %v", r, r.Words(), err)
	}
	r.Params.Budget = 0
	if got := r.Words(); got != "an activation memory budget for torch.compile, if it is used" {
		t.Errorf("without a size: %q", got)
	}
}
