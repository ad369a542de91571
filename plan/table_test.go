package plan

import (
	"bytes"
	"compress/gzip"
	"testing"

	"memroom/allocsim"
	"memroom/event"
	"memroom/models"
	"memroom/remedy"
	"memroom/tape"
)

// TestShippedTable: the table in the binary is whole, and holds the convolutions of ResNet-50 at a
// usual batch size.
func TestShippedTable(t *testing.T) {
	w, err := readTable(bytes.NewReader(shippedConv))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range shapesOf(t, "resnet50", 32).Conv {
		if _, ok := w.Measured(c); !ok {
			t.Errorf("%+v is not in the table", c)
		}
	}
}

func shapesOf(t *testing.T, name string, batch int) Shapes {
	t.Helper()
	shapes, err := vision(name, batch).Shapes()
	if err != nil {
		t.Fatal(err)
	}
	return shapes
}

func vision(name string, batch int) Setup {
	model := models.ConfigOf(map[string]any{"model_type": "torchvision", "name": name})
	return Setup{Model: model, Setup: remedy.Setup{Batch: batch, Image: 224, Precision: "amp_bf16",
		Optimizer: "sgdm"}}
}

func TestTableRoundTrip(t *testing.T) {
	in := []ConvSizes{
		{tape.Convolution{X: [4]int64{8, 3, 224, 224}, W: [4]int64{64, 3, 7, 7},
			Stride: [2]int64{2, 2}, Pad: [2]int64{3, 3}, Dilation: [2]int64{1, 1}, Groups: 1,
			DType: "fp32"}, tape.ConvBytes{Forward: 1, InputGrad: 2, WeightGrad: 3}},
		{tape.Convolution{X: [4]int64{8, 32, 1, 99}, W: [4]int64{32, 1, 1, 3},
			Stride: [2]int64{1, 2}, Pad: [2]int64{0, 1}, Dilation: [2]int64{1, 1}, Groups: 32,
			DType: "bf16", ChannelsLast: true}, tape.ConvBytes{}},
	}
	var file bytes.Buffer
	packed := gzip.NewWriter(&file)
	for _, s := range in {
		if err := s.write(packed); err != nil {
			t.Fatal(err)
		}
	}
	packed.Close()
	w, err := readTable(&file)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range in {
		if got, ok := w.Measured(s.Convolution); !ok || got != s.ConvBytes {
			t.Errorf("%+v came back as %+v, %v", s, got, ok)
		}
	}
}

// TestCalibrationDecides: sizes measured on a card replace rules and the shipped table, for the
// version they were measured with, and an answer that rests on them alone has no doubt about
// convolutions left.
func TestCalibrationDecides(t *testing.T) {
	setup := vision("resnet18", 24)
	ask := func(c *Calibration, torch string) *Prediction {
		target := Target{Card: DefaultCard(), Given: true, Alloc: allocsim.DefaultConfig(),
			Torch: torch}
		if c != nil {
			target.Calibrate(c)
		}
		p, err := Predict(setup, target)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	cal := &Calibration{Card: DefaultCard(), Torch: "2.11.0+cu130"}
	for _, c := range shapesOf(t, "resnet18", 24).Conv {
		cal.Conv = append(cal.Conv, ConvSizes{c, tape.ConvBytes{Forward: int64(event.GiB),
			InputGrad: int64(event.GiB), WeightGrad: int64(event.GiB)}})
	}
	plain, with, other := ask(nil, "2.11"), ask(cal, "2.11"), ask(cal, "2.7")
	if len(with.Warnings) != 0 || with.ReservedPeak < plain.ReservedPeak+event.GiB/2 {
		t.Errorf("calibrated: %s reserved (%s without), warnings %q", with.ReservedPeak,
			plain.ReservedPeak, with.Warnings)
	}
	if len(other.Warnings) == 0 || other.ReservedPeak > plain.ReservedPeak+event.GiB/2 {
		t.Errorf("another version of torch used the calibration: %s reserved, warnings %q",
			other.ReservedPeak, other.Warnings)
	}
	cal.Context += event.GiB
	if got := ask(cal, "2.7"); got.DevicePeak < other.DevicePeak+event.GiB {
		t.Errorf("the card's own context was not used: %s, %s before", got.DevicePeak,
			other.DevicePeak)
	}
}
