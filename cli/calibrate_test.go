package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"memroom/event"
	"memroom/plan"
	"memroom/probe"
	"memroom/tape"
	"memroom/testenv"
)

// TestCalibrationRunsToItsEnd runs the calibration's own script where there is no card: under a
// rehearsal, which answers for an H200 on fake tensors. Every line must come and be readable; the
// sizes are the rehearsal's.
func TestCalibrationRunsToItsEnd(t *testing.T) {
	python := testenv.Python(t, "torch")
	dir := t.TempDir()
	installed, err := probe.Install(filepath.Join(dir, "probe"))
	if err != nil {
		t.Fatal(err)
	}
	shapes := `{"seconds": 60, "convolutions": [
		{"x": [2, 8, 16, 16], "w": [8, 8, 3, 3], "stride": [1, 1], "pad": [1, 1], "dilation": [1, 1], "groups": 1, "dtype": "bf16"},
		{"x": [2, 8, 16, 16], "w": [8, 1, 3, 3], "stride": [1, 1], "pad": [1, 1], "dilation": [1, 1], "groups": 8, "dtype": "fp32", "channels_last": true},
		{"x": [2, 8, 16, 16], "w": [8, 3, 3, 3], "stride": [1, 1], "pad": [1, 1], "dilation": [1, 1], "groups": 1, "dtype": "fp32"}],
	"recurrent": [{"kind": "lstm", "batch": 4, "steps": 8, "in": 16, "hidden": 32, "layers": 2, "directions": 1, "dropout": true, "dtype": "fp32"},
		{"kind": "gru", "batch": 4, "steps": 8, "in": 16, "hidden": 32, "layers": 1, "directions": 2, "dtype": "bf16"}]}`
	drive := "import sys; sys.path.insert(0, sys.argv[1]); import run; run.hold = run.say; " +
		"run.main(sys.argv[2])"
	for name, text := range map[string]string{"shapes.json": shapes, "drive.py": drive} {
		testenv.Write(t, filepath.Join(dir, name), []byte(text))
	}
	t.Setenv("MEMROOM_HOME", dir)
	t.Setenv("OMP_NUM_THREADS", "1")
	var out, said bytes.Buffer
	args := []string{"plan", "--rehearse", "--steps", "100", "--gpu", "H200", "--", python,
		filepath.Join(dir, "drive.py"),
		filepath.Join(installed, "_memroom_probe", "calibrate"), filepath.Join(dir, "shapes.json")}
	if code := Main(context.Background(), args, Streams{In: strings.NewReader(""), Out: &out,
		Err: &said}); code != exitOK {
		t.Fatalf("exit %d\n%s", code, said.String())
	}
	seen := map[string]int{}
	for _, line := range strings.Split(said.String(), "\n") {
		var l struct {
			probe.CardStage
			probe.ShapeBytes
			End bool
		}
		if json.Unmarshal([]byte(line), &l) != nil {
			continue
		}
		switch {
		case l.Stage != "":
			seen[l.Stage]++
			if l.Stage == "context" && (l.Name == "" || l.Total == 0 || l.SMs == 0 ||
				l.Torch == "") || l.Stage == "kernels" && l.BLAS == 0 {
				t.Errorf("facts are missing: %s", line)
			}
		case l.Failed != "":
			seen["failed"]++
		case l.RNN != nil:
			seen["rnn"]++
			var sizes plan.RNNSizes
			if err := json.Unmarshal(l.Bytes, &sizes.RNNBytes); err != nil ||
				sizes.Workspace <= 0 || sizes.Reserve <= 0 {
				t.Errorf("%s: %v", line, err)
			}
		case l.Conv != nil:
			seen["conv"]++
		case l.End:
			seen["end"]++
		}
	}
	// The third convolution's filter has too few channels: it fails alone.
	want := map[string]int{"context": 1, "kernels": 1, "cudnn": 1, "conv": 2, "rnn": 2, "failed": 1,
		"end": 1}
	for what, n := range want {
		if seen[what] != n {
			t.Errorf("%s came %d times, want %d\n%s", what, seen[what], n, said.String())
		}
	}
}

// TestRehearsalTakesMeasuredSizes: what a calibration measured of a script's convolution is what
// its rehearsal asks for.
func TestRehearsalTakesMeasuredSizes(t *testing.T) {
	python := testenv.Python(t, "torch")
	script := filepath.Join(t.TempDir(), "conv.py")
	text := `import torch
net = torch.nn.Conv2d(8, 8, 3, padding=1, bias=False).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(3):
    net(torch.randn(2, 8, 16, 16, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
`
	testenv.Write(t, script, []byte(text))
	home := t.TempDir()
	t.Setenv("MEMROOM_HOME", home)
	t.Setenv("OMP_NUM_THREADS", "1")
	predict := func() (p plan.Prediction) {
		var out, said bytes.Buffer
		args := []string{"plan", "--rehearse", "--json", "--gpu", "H200", "--", python, script}
		if code := Main(context.Background(), args, Streams{In: strings.NewReader(""), Out: &out,
			Err: &said}); code != exitOK {
			t.Fatalf("exit %d: %s%s", code, out.String(), said.String())
		}
		if err := json.Unmarshal(out.Bytes(), &p); err != nil {
			t.Fatal(err)
		}
		return p
	}
	without := predict()
	measured := plan.Calibration{Card: plan.DefaultCard(), UUID: "GPU-1", Torch: "2.11.0"}
	measured.Name = "NVIDIA H200"
	measured.Conv = []plan.ConvSizes{{Convolution: tape.Convolution{X: [4]int64{2, 8, 16, 16},
		W: [4]int64{8, 8, 3, 3}, Stride: [2]int64{1, 1}, Pad: [2]int64{1, 1},
		Dilation: [2]int64{1, 1}, Groups: 1, DType: "fp32"},
		ConvBytes: tape.ConvBytes{Forward: int64(3 * event.GiB), WeightGrad: int64(event.GiB)}}}
	if err := keepCalibration(&measured); err != nil {
		t.Fatal(err)
	}
	with := predict()
	if with.AllocatedPeak < 3*event.GiB || with.AllocatedPeak > 3*event.GiB+64*event.MiB ||
		len(with.Warnings) > 0 {
		t.Errorf("allocated %s with a measured workspace of 3 GiB (%s without), warnings %q",
			with.AllocatedPeak, without.AllocatedPeak, with.Warnings)
	}
	if without.AllocatedPeak > event.GiB || len(without.Warnings) == 0 {
		t.Errorf("without a calibration: allocated %s, warnings %q", without.AllocatedPeak,
			without.Warnings)
	}
}
