package probe

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"memroom/testenv"
)

// cells are those of a notebook: a loop that leaks, a healthy one, one that fails, an output, and
// letting go.
var cells = []struct {
	code   string
	shows  []string
	silent bool // of memroom
}{
	{"%load_ext memroom", nil, true},
	{`import gc, memroom, torch, time, weakref
def train(history, steps=250):
    model = torch.nn.Linear(256, 256)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(steps):
        y = model(torch.randn(64, 256))
        loss = y.square().mean()
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        if history is not None:
            history.append(y.detach())
        time.sleep(0.005)
train(None)
`, nil, true},
	{"train([])", []string{"memroom: possible leak in host memory", "`history` (list of ", "Try: "},
		false},
	// how much is free decides whether a forecast is made too
	{"print([f['kind'] for f in memroom.findings() if f['kind'] != 'forecast'])",
		[]string{"['leak']"}, true},
	{`refs = []
def fails():
    acts = [torch.ones(1024, 1024) for _ in range(8)]
    refs.append(weakref.ref(acts[0]))
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.65 GiB of which 512.00 MiB is free.")
fails()
`, []string{"raised OutOfMemoryError", "The card ran out of memory: 2GiB were asked for",
		"memroom: the failed cell still holds 32MiB: `acts in fails` 32MiB"}, false},
	{"torch.ones(1024, 512)", []string{"tensor("}, true},
	{"print(gc.collect() >= 0, refs[0]() is not None, memroom.held())",
		[]string{"True True [('failed cell: acts in fails', ", "('output: Out["}, true},
	{"freed = memroom.free()", []string{"memroom: freed 34MiB"}, false},
	{"print(refs[0]() is None, memroom.held())", []string{"True []"}, true},
	{"print('model' in dir(), len(refs), callable(train))", []string{"False 1 True"}, true},
	{`def breaks():
    shapes = [torch.ones(1024, 1024) for _ in range(8)]
    raise ValueError("shapes differ")
breaks()
`, []string{"raised ValueError",
		"memroom: the failed cell still holds 32MiB: `shapes in breaks` 32MiB"}, false},
	{"freed = memroom.free()", []string{"memroom: freed 32MiB"}, false},
	{"1 / 0", []string{"ZeroDivisionError"}, true},
}

// flowing joins what a kernel sent in several pieces: a print may come as more than one.
func flowing(text string) string { return strings.Join(strings.Fields(text), " ") }

// TestNotebook: in a real kernel, findings stand below the cell they are about, and an exhausted
// card is explained there. What a failed cell and an output hold is reported and freed; variables
// stay.
func TestNotebook(t *testing.T) {
	t.Parallel()
	frameworks := testenv.Python(t, "torch")
	kernel := testenv.Environment(t, "notebook")
	bin := filepath.Dir(testenv.Binary(t))
	site, err := exec.Command(frameworks, "-c",
		"import sysconfig; print(sysconfig.get_path('purelib'))").Output()
	if err != nil {
		t.Fatal(err)
	}
	var text []string
	for _, c := range cells {
		text = append(text, c.code+"\n")
	}
	cmd := exec.Command(kernel, script(t, "kernel.py"))
	cmd.Stdin = strings.NewReader(strings.Join(text, "-----\n"))
	cmd.Env = append(os.Environ(), "OMP_NUM_THREADS=1", "PATH="+bin+":"+os.Getenv("PATH"),
		"IPYTHONDIR="+t.TempDir(), "PYTHONPATH="+filepath.Join(testenv.Root(t), "python")+":"+
			strings.TrimSpace(string(site)))
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s\n%s", err, out, &errs)
	}
	shown := strings.Split(string(out), "-----\n")
	for i, c := range cells {
		if i >= len(shown) {
			t.Fatalf("%d of %d cells ran", i, len(cells))
		}
		for _, words := range c.shows {
			if !strings.Contains(flowing(shown[i]), flowing(words)) {
				t.Errorf("below %q\n%s\nthere is no %q", c.code, shown[i], words)
			}
		}
		if c.silent && strings.Contains(shown[i], "memroom:") {
			t.Errorf("below %q\n%s", c.code, shown[i])
		}
	}
}
