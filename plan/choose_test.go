package plan

import (
	"testing"

	"memroom/allocsim"
	"memroom/models"
)

// TestSweepEqualsPlans compares every point with a plan of its own.
func TestSweepEqualsPlans(t *testing.T) {
	model, err := models.Preset("gpt2")
	if err != nil {
		t.Fatal(err)
	}
	target := Target{Alloc: allocsim.DefaultConfig()}
	for name, change := range map[string]func(*Setup){
		"plain":         func(*Setup) {},
		"adapters":      func(s *Setup) { s.LoRARank = 8 },
		"checkpointing": func(s *Setup) { s.Checkpointing = true },
		"lengths":       func(s *Setup) { s.Shortest, s.LoRARank = 16, 8 },
	} {
		s := Setup{Model: model}
		change(&s)
		points, err := Sweep(s, target, []int{1, 3}, []int{64, 200})
		if err != nil || len(points) != 4 {
			t.Fatalf("%s: %d points, %v", name, len(points), err)
		}
		for _, got := range points {
			one := s
			one.Batch, one.Seq = got.Batch, got.Seq
			p, err := Predict(one, target)
			if err != nil {
				t.Fatal(err)
			}
			want := SweepPoint{got.Batch, got.Seq, p.DevicePeak, p.Low, p.High, p.Fits}
			if got != want {
				t.Errorf("%s: %+v, alone %+v", name, got, want)
			}
		}
	}
}
