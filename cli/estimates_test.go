package cli

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"memroom/event"
	"memroom/testenv"
)

// estimatedScript trains in place as a script, and through memroom.estimate when asked.
const estimatedScript = `import os, sys
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(512, 2048)
        self.last = torch.nn.Linear(2048, 10)

    def forward(self, x):
        return self.last(torch.relu(self.first(x)))

def train(model):
    model.to("cuda")
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        x = torch.zeros(64, 512).to("cuda")
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

if len(sys.argv) == 1:
    train(Net())
    sys.exit()
import json, memroom
model = Net()
model(torch.zeros(2, 512)).sum().backward()
model.zero_grad()
kept = model.first.weight.detach().clone()
ways = [memroom.estimate(model, (64, 512), "AdamW", gpu="RTX4090")]
with memroom.rehearse(gpu="RTX4090") as r:
    train(model)
    passed = "over"
ways.append(r)
for code in (lambda: 1 / 0, lambda: os._exit(4), lambda: os.abort()):
    try:
        memroom.estimate(code)
    except memroom.RehearsalError as error:
        print(str(error).splitlines()[0], file=sys.stderr)
assert "passed" not in globals() and torch.equal(kept, model.first.weight)
assert model.first.weight.device.type == "cpu" and not torch.cuda.is_initialized()
print(json.dumps([[e.allocated, e.reserved, e.device, e.lines[0].line] for e in ways]))
`

// TestEstimateEqualsRehearsal compares the Python package's answer with that of plan --rehearse of
// the same code, and lets children die.
func TestEstimateEqualsRehearsal(t *testing.T) {
	python, dir := testenv.Python(t), t.TempDir()
	script := filepath.Join(dir, "train.py")
	testenv.Write(t, script, []byte(estimatedScript))
	want, message, code := rehearsed(t, warm(t, python), []string{"--gpu", "RTX4090"}, script)
	if code != exitOK {
		t.Fatalf("exit %d: %s", code, message)
	}
	if len(want.Lines) == 0 || !strings.Contains(want.Lines[0].Line, "train.py:") {
		t.Errorf("lines at the peak: %v", want.Lines)
	}
	cmd := exec.Command(warm(t, python), script, "estimate")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PYTHONPATH="+filepath.Join(testenv.Root(t), "python"),
		"MEMROOM_BINARY="+testenv.Binary(t))
	var heard strings.Builder
	cmd.Stderr = &heard
	answer, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, heard.String())
	}
	var got [][]any
	if err := json.Unmarshal(answer, &got); err != nil {
		t.Fatal(err)
	}
	for _, way := range got {
		if event.Bytes(way[0].(float64)) != want.AllocatedPeak ||
			event.Bytes(way[1].(float64)) != want.ReservedPeak ||
			event.Bytes(way[2].(float64)) != want.DevicePeak {
			t.Errorf("estimated %v, rehearsed %d, %d and %d", way, want.AllocatedPeak,
				want.ReservedPeak, want.DevicePeak)
		}
	}
	for _, says := range []string{"ZeroDivisionError", "ended with code 4", "SIGABRT"} {
		if !strings.Contains(heard.String(), says) {
			t.Errorf("%q is not in %q", says, heard.String())
		}
	}
}
