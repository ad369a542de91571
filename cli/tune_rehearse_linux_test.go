package cli

import (
	"strings"
	"testing"

	"memroom/testenv"
	"memroom/trial"
)

// rehearsedScript trains a layer on a card where there is one. Where its width comes from differs.
const rehearsedScript = `
import os, sys, tomllib, torch
device = "cuda" if torch.cuda.is_available() else "cpu"
model = torch.nn.Linear(WIDTH, WIDTH).to(device)
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
for step in range(4):
    loss = model(torch.randn(2, WIDTH, device=device)).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(f"loss={loss.item()}")
`

func rehearsedWith(width string) string {
	head, tail, _ := strings.Cut(strings.TrimPrefix(rehearsedScript, "\n"), "\n")
	return head + "\nWIDTH = " + width + "\n" + tail
}

// TestTuneRehearsesBeforeTheFirstTrial: weights of 6 GiB cannot fit into 2 GiB, no matter how the
// script gets its settings. The study reports that before anything is started.
func TestTuneRehearsesBeforeTheFirstTrial(t *testing.T) {
	testenv.Python(t, "torch")
	for _, c := range []struct {
		name, width string
		args        []string
	}{
		{"argument", "int(sys.argv[1])", []string{"--", "python", "train.py",
			"grid_search(64,40000)"}},
		{"environment", `int(os.environ["WIDTH"])`, []string{"--env", "WIDTH=grid_search(64,40000)",
			"--", "python", "train.py"}},
		{"config file", `tomllib.load(open(sys.argv[1], "rb"))["model"]["width"]`,
			[]string{"--param", "width=grid_search(64,40000)", "--template", "conf.toml", "--",
				"python", "train.py", "conf.toml"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newTune(t)
			r.file("train.py", rehearsedWith(c.width))
			r.file("conf.toml", "[model]\nwidth = ${width}\n")
			got, text, code := r.tune(append([]string{"--rehearse", "9m", "--samples", "1",
				"--host-mem", "2GiB", "--metric", "loss"}, c.args...)...)
			if code != 0 || len(got.Trials) != 2 {
				t.Fatalf("code %d: %s", code, text)
			}
			for _, one := range got.Trials {
				width, _ := one.Params[0].Value.Float()
				want, attempts := trial.Finished, 1
				if width > 64 {
					want, attempts = trial.Infeasible, 0
				}
				if one.State != want || one.Attempts != attempts {
					t.Errorf("width %v: %s after %d attempts, want %s after %d\n%s", width, one.State,
						one.Attempts, want, attempts, text)
				}
			}
			if !strings.Contains(text, "by rehearsal") {
				t.Errorf("the reason is missing: %s", text)
			}
		})
	}
}

// TestTuneLearnsWhatCannotBeRehearsed: a program without PyTorch runs as ever.
func TestTuneLearnsWhatCannotBeRehearsed(t *testing.T) {
	r := newTune(t)
	got, text, code := r.tune("--rehearse", "5m", "--samples", "2", "--metric", "loss", "--host-mem",
		"1GiB", "--", "python", "-c", "import sys; print('loss=' + sys.argv[1])", "uniform(0,1)")
	if code != 0 || len(got.Trials) != 2 || got.Best == nil {
		t.Errorf("code %d: %s", code, text)
	}
	if !strings.Contains(text, "memory is learnt from the trials") {
		t.Errorf("nobody says that nothing was rehearsed: %s", text)
	}
}
