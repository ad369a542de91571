package trial

import (
	"math"
	"regexp"
	"testing"
)

// TestLettersOfNames: what belongs to a name is what a regular expression calls a word, at every
// byte.
func TestLettersOfNames(t *testing.T) {
	word := regexp.MustCompile(`^[0-9A-Za-z_]$`)
	for c := range 256 {
		if got := isWord(byte(c)); got != (c < 128 && word.MatchString(string(rune(c)))) {
			t.Errorf("%q: %v", rune(c), got)
		}
	}
}

// TestWholeNumbersLieOnTheirSteps: whatever is asked for, a value is within its bounds, and a
// multiple of its step.
func TestWholeNumbersLieOnTheirSteps(t *testing.T) {
	for step := 1.0; step <= 6; step++ {
		d := Domain{Kind: Int, Low: 3, High: 20, Step: step}
		for f := -5.0; f <= 30; f += 0.25 {
			got, ok := d.whole(f).Float()
			if !ok || got < 3 || got > 20 || math.Mod(got, step) != 0 {
				t.Errorf("step %v: %v became %v", step, f, got)
			}
			if f >= 3 && f <= 20 && math.Abs(got-f) > step {
				t.Errorf("step %v: %v became %v, which is far away", step, f, got)
			}
		}
	}
}

// TestLineOfLogarithms checks that a memory model of logarithms predicts bytes, not their
// logarithm, and stays finite.
func TestLineOfLogarithms(t *testing.T) {
	f := &fitted{weights: []float64{2, 3}}
	if got := f.predicted([]float64{1, 4}); got != 14 {
		t.Errorf("2 + 3 x 4 is %v", got)
	}
	f.logs = true
	if got := f.predicted([]float64{1, 0}); math.Abs(got-math.Exp(2)) > 1e-9 {
		t.Errorf("exp(2) is %v", got)
	}
	if got := f.predicted([]float64{1, 1e6}); math.IsInf(got, 0) {
		t.Error("a large logarithm became infinite")
	}
}

// TestWordsOfOneKey: a table with one key is a call of that word; a word that nobody knows is an
// error.
func TestWordsOfOneKey(t *testing.T) {
	d, err := tableDomain(map[string]any{"int": []any{int64(1), int64(6)}})
	if err != nil || d.Low != 1 || d.High != 6 {
		t.Errorf("{int: [1, 6]}: %+v, %v", d, err)
	}
	if d, err := tableDomain(map[string]any{"values": []any{"a", "b"}}); err != nil ||
		len(d.Values) != 2 {
		t.Errorf("{values: [a, b]}: %+v, %v", d, err)
	}
	if d, err := tableDomain(map[string]any{"frobnicate": []any{int64(1), int64(6)}}); err == nil {
		t.Errorf("a word that nobody knows became %+v", d)
	}
}
