package plan

import (
	"strings"
	"testing"

	"memroom/allocsim"
	"memroom/event"
	"memroom/models"
	"memroom/remedy"
)

// TestBareContexts: the context that is computed for a card agrees with what people saw on it, less
// the kernels and libraries that training loads on top.
func TestBareContexts(t *testing.T) {
	for _, seen := range []struct {
		card string
		bare event.Bytes
	}{
		{"RTX6000Ada", 426 * event.MiB}, // unslothai/unsloth-zoo#1053
		{"RTX3090", 256 * event.MiB},    // invoke-ai/InvokeAI#9413
		{"V100-16", 319 * event.MiB},    // pytorch/pytorch#28394, a Titan V of the same chip
	} {
		card, err := FindCard(seen.card)
		if err != nil {
			t.Fatal(err)
		}
		if low, high := card.Context-card.Doubt-kernelBytes,
			card.Context+card.Doubt-kernelBytes; seen.bare < low || seen.bare > high {
			t.Errorf("%s: a bare context of %s is outside what we allow, %s to %s", seen.card,
				seen.bare, low, high)
		}
	}
}

// TestUnmeasuredCardsAreDoubted checks that a card that was not measured has a wider interval than
// the H200, and that the answer explains why. A card of which only the size is known has an
// interval that holds for every known card of that size.
func TestUnmeasuredCardsAreDoubted(t *testing.T) {
	model, err := models.Preset("gpt2")
	if err != nil {
		t.Fatal(err)
	}
	ask := func(gpu string) *Prediction {
		card, err := FindCard(gpu)
		if err != nil {
			t.Fatal(err)
		}
		p, err := Predict(Setup{Model: model, Setup: remedy.Setup{Batch: 2, Seq: 256}},
			Target{Card: card, Given: true, Alloc: allocsim.DefaultConfig(), Torch: "2.11"})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	width := func(p *Prediction) float64 { return float64(p.High-p.Low) / float64(p.DevicePeak) }
	h200 := ask("H200")
	if !h200.Validated || len(h200.Warnings) > 0 {
		t.Errorf("the H200 was measured, yet: %q", h200.Warnings)
	}
	for _, gpu := range []string{"RTX4090", "A100-80", "H100", "T4", "24GiB", "80GiB", "60GiB",
		"16GiB"} {
		p := ask(gpu)
		if width(p) <= width(h200) || p.Validated || len(p.Warnings) == 0 ||
			!strings.Contains(p.Warnings[0], "calibrate") {
			t.Errorf("%s: width %.3f, validated %v, warnings %q", gpu, width(p), p.Validated,
				p.Warnings)
		}
	}
	for size, members := range map[string][]string{"24GiB": {"RTX3090", "RTX4090"},
		"80GiB": {"H100", "A100-80"}, "141GiB": {"H200"}} {
		p := ask(size)
		for _, m := range members {
			if d := ask(m).DevicePeak; d < p.Low || d > p.High {
				t.Errorf("%s needs %s on an %s, outside %s to %s", size, d, m, p.Low, p.High)
			}
		}
	}
}

// A rehearsal plays the card that a plan from a configuration assumes.
func TestRehearsalsPlayThePlannedCard(t *testing.T) {
	known := map[string][2]int64{ // resident threads, bytes of cuBLAS's workspace
		"H200": {2048, 32 << 20}, "A100-80": {2048, 8519680}, "RTX4090": {1536, 8519680},
		"T4": {1024, 8519680}, "RTX5090": {1536, 8519680}, "80GiB": {2048, 8519680},
	}
	for name, want := range known {
		card, err := FindCard(name)
		if err != nil {
			t.Fatal(err)
		}
		played, o := card.Played(), card.options()
		got := [2]int64{played["threads"].(int64), played["blas"].(int64)}
		if got != want || got != [2]int64{o.SMThreads, o.BLAS} || played["blaslt"] != o.BLASLt {
			t.Errorf("%s: rehearsals play %v, plans assume %d threads and %d bytes; want %v", name,
				played, o.SMThreads, o.BLAS, want)
		}
	}
	calibrated := Card{Name: "H200", Capability: 90, SMs: 132, BLAS: 1 << 20, BLASLt: 1 << 10}
	if p := calibrated.Played(); p["blas"] != int64(1<<20) || p["blaslt"] != int64(1<<10) {
		t.Errorf("what was measured on the card is not played: %v", p)
	}
}

// TestCardsByTheirUsualNames: what people and drivers call a card, and what they only nearly do.
func TestCardsByTheirUsualNames(t *testing.T) {
	for _, pair := range [][2]string{
		{"4090", "RTX4090"},
		{"RTX 4090", "RTX4090"},
		{"rtx-4090", "RTX4090"},
		{"NVIDIA GeForce RTX 4090", "RTX4090"},
		{"RTX4090 24GB", "RTX4090"},
		{"a100", "A100-80"},
		{"A100-80GB", "A100-80"},
		{"NVIDIA A100-SXM4-80GB", "A100-80"},
		{"NVIDIA A100-PCIE-40GB", "A100-40"},
		{"A100 40GB", "A100-40"},
		{"h100", "H100"},
		{"NVIDIA H100 80GB HBM3", "H100"},
		{"NVIDIA H100 PCIe", "H100-PCIe"},
		{"t4", "T4"},
		{"Tesla T4", "T4"},
		{"T4 16GB", "T4"},
		{"NVIDIA L4", "L4"},
		{"l40s", "L40S"},
		{"L40", "L40"},
		{"v100", "V100-32"},
		{"Tesla V100-SXM2-16GB", "V100-16"},
		{"RTX A6000", "A6000"},
		{"NVIDIA RTX A6000", "A6000"},
		{"NVIDIA RTX 6000 Ada Generation", "RTX6000Ada"},
		{"3090", "RTX3090"},
		{"3090 Ti", "RTX3090Ti"},
		{"2080 Ti", "RTX2080Ti"},
		{"2080ti", "RTX2080Ti"},
		{"RTX 4060 Ti", "RTX4060Ti-16"},
		{"4060", "RTX4060"},
		{"A10", "A10"},
		{"a10g", "A10G"},
		{"24", "24GiB"},
		{"24GB", "24GiB"},
		{"24 GB", "24GiB"},
		{"24g", "24GiB"},
		{"80", "80GiB"},
		{"24576MiB", "24GiB"},
	} {
		text, want := pair[0], pair[1]
		if c, err := FindCard(text); err != nil || c.Name != want {
			t.Errorf("%q: %s, %v; want %s", text, c.Name, err, want)
		}
	}
	for text, want := range map[string]string{"4099": `"4090"?`, "RTX 4090 Laptop GPU": "neither",
		"A1000": "A100-80", "banana": "neither a known name", "1080": "did you mean",
		"8xA100": "--devices 8xA100", "512MiB": "too small", "": "neither"} {
		if c, err := FindCard(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %s, %v; want %s", text, c.Name, err, want)
		}
	}
}
