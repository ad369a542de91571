//go:build linux && !race

package supervise_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"memroom/event"
	"memroom/store"
	"memroom/testenv"
)

// trainedTo is the line of a script that trains the same every time: losses or weights, exactly.
var trainedTo = regexp.MustCompile(`LOSSES .*`)

// TestRealScripts runs unmodified training scripts of the usual kinds. Each must end well, train to
// the bit as it does without memroom, and, where the probe knows the framework, have its steps
// counted.
func TestRealScripts(t *testing.T) {
	example := func(name string) string { return filepath.Join(testenv.Root(t), "examples", name) }
	script := func(name string) string {
		return filepath.Join(testenv.Root(t), "probe", "testdata", "scripts", name)
	}
	for _, c := range []struct {
		name    string
		modules []string
		args    []string // of Python; before them comes what is in shell
		shell   string
		prints  string
		steps   int64
		ranks   int
	}{
		{"plain PyTorch loop", []string{"torch"},
			[]string{example("leaking_loop.py"), "--clean", "--steps", "30"}, "", "done", 30, 0},
		{"Hugging Face Trainer", []string{"torch", "transformers", "accelerate"},
			[]string{script("hf_trainer.py"), t.TempDir()}, "", "LOSSES", 6, 0},
		{"Lightning", []string{"torch", "lightning"}, []string{script("lightning_fit.py")}, "",
			"LOSSES", 16, 0},
		{"torchrun, two ranks", []string{"torch"}, []string{"-m", "torch.distributed.run",
			"--standalone", "--nproc-per-node", "2", script("ddp_gloo.py")}, "", "LOSSES", 8, 2},
		{"Keras fit", []string{"tensorflow"},
			[]string{example("keras_fit.py"), "--batches", "6", "--epochs", "1"}, "", "done: loss", 0, 0},
		{"Ray Tune", []string{"ray", "torch"},
			[]string{example("tune_overcommits.py"), "--samples", "2", "--mib", "16"}, "",
			"done: 2 trials, 0 failed", 0, 0},
		{"a shell script around them", []string{"torch"},
			[]string{example("batch_too_large.py"), "--batch", "4", "--steps", "2"},
			`set -e; for i in 1 2; do "$0" "$@"; done`, "done\nstep 1", 2, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			python := testenv.Python(t, c.modules...)
			t.Parallel()
			w := newWorkshop(t, ourselves)
			w.oneThread()
			command := append([]string{python}, c.args...)
			if c.shell != "" {
				command = append([]string{"sh", "-c", c.shell}, command...)
			}
			got := w.run(append([]string{"--"}, command...)...)
			if got.code != 0 || !strings.Contains(got.out, c.prints) {
				t.Fatalf("exit %d\n%s\n%s", got.code, got.out, got.err)
			}
			if c.prints == "LOSSES" {
				alone := testenv.Program{Python: python, Args: c.args,
					Env: []string{"OMP_NUM_THREADS=1"}}.MustAsk(t)
				if got, want := trainedTo.FindString(got.out),
					trainedTo.FindString(string(alone.Out)); got != want || want == "" {
					t.Errorf("under memroom %q, without it %q", got, want)
				}
				eachTold(t, w.folder(), max(1, c.ranks))
			}
			summary, err := w.folder().Summary()
			if err != nil {
				t.Fatal(err)
			}
			if summary.Steps < c.steps || c.prints == "LOSSES" && summary.Steps > c.steps ||
				summary.Verdict.IsOOM ||
				summary.Peaks.Unreclaimable < 10*event.MiB {
				t.Errorf("steps %d, want %d; verdict %+v; peaks %+v; notes %q", summary.Steps,
					c.steps, summary.Verdict, summary.Peaks, summary.Notes)
			}
			if ranks := ranksSeen(w.folder()); ranks != c.ranks {
				t.Errorf("%d ranks seen, want %d", ranks, c.ranks)
			}
		})
	}
}

// eachTold checks that every process that trains reported steps, and that the probe did not break
// in any.
func eachTold(t *testing.T, f *store.Folder, processes int) {
	t.Helper()
	told := map[int]bool{}
	for s := range f.Steps() {
		told[s.PID] = true
	}
	if len(told) != processes {
		t.Errorf("%d processes told of steps, want %d", len(told), processes)
	}
	for h := range f.Events() {
		if h.Kind == "fault" {
			t.Errorf("the probe broke: %+v", h)
		}
	}
}

// file writes a script where the command can read it.
func (w *workshop) file(name, text string) string {
	w.Helper()
	path := filepath.Join(w.home, name)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		w.Fatal(err)
	}
	return path
}

func ranksSeen(f *store.Folder) int {
	ranks := map[int]bool{}
	for s := range f.Steps() {
		if s.Rank != nil {
			ranks[*s.Rank] = true
		}
	}
	return len(ranks)
}

const rankRunsOut = `
import sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
kept = []
for step in range(100000):
    if dist.get_rank() == 1 and step > 5:
        torch.empty(1 << 50) if sys.argv[1] == "raises" else kept.append(bytearray(64 << 20))
    model(torch.randn(4, 8)).square().mean().backward()
`

// TestTorchrunRankRunsOut: one of two real ranks runs out of memory, by an exception and by the
// kernel, while the other waits for it in a collective call. The run must end, and the verdict must
// name the rank.
func TestTorchrunRankRunsOut(t *testing.T) {
	python := testenv.Python(t, "torch")
	for how, killer := range map[string]string{"raises": "itself", "hogs": "cgroup"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			w := newWorkshop(t, ourselves)
			w.oneThread()
			w.run("--host-mem", "1500MiB", "--grace", "20s", "--group", "pair", "--", python, "-m",
				"torch.distributed.run", "--standalone",
				"--nproc-per-node", "2", w.file("ddp.py", rankRunsOut), how)
			if how == "hogs" && w.state(w.folder()).Cgroup == "" {
				testenv.Needs(t, "a cgroup",
					"without one the soft limit ends the whole run at once")
			}
			if v := w.verdict(w.folder()); !v.IsOOM || v.KilledBy != killer || v.Rank == nil ||
				*v.Rank != 1 {
				t.Errorf("verdict %+v", v)
			}
		})
	}
}

// TestPythonException: the verdict of a Python that ends by a real out-of-memory exception names
// the wall.
func TestPythonException(t *testing.T) {
	w := newWorkshop(t, ourselves)
	got := w.run("--", testenv.Python(t, "torch"), "-c", "import torch; torch.empty(1 << 50)")
	v := w.verdict(w.folder())
	if got.code != 1 || !v.IsOOM || v.Where != event.WhereHost || v.KilledBy != "itself" {
		t.Errorf("exit %d, %+v\n%s", got.code, v, got.err)
	}
}

// TestWithoutProbe: other Pythons and switches that keep the probe out leave the meters working.
func TestWithoutProbe(t *testing.T) {
	for name, args := range map[string][]string{"isolated": {python(t), "-I", "-c"},
		"no environment": {python(t), "-E", "-c"}} {
		t.Run(name, func(t *testing.T) {
			w := newWorkshop(t, ourselves)
			got := w.run(append(append([]string{"--"}, args...),
				waitsForReadings+"kept = bytearray(50 << 20)\nreadings(3)\nprint('done')\n")...)
			summary, err := w.folder().Summary()
			if err != nil || got.out != "done\n" || summary.Peaks.Unreclaimable < 50*event.MiB {
				t.Errorf("%+v %v %+v", got, err, summary.Peaks)
			}
		})
	}
}

const ranksByArgument = `
import sys, torch, torch.distributed as dist
rank = int(sys.argv[2])
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=rank, world_size=2)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(100000):
    if rank == 1 and step > 5:
        torch.empty(1 << 50)
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
`

// TestRanksByArgument: two ranks that a shell starts, and that only their own code numbers. The
// shell's wait loses the code of the one that runs out of memory; the verdict does not lose its
// rank.
func TestRanksByArgument(t *testing.T) {
	w := newWorkshop(t, ourselves)
	w.oneThread()
	got := w.run("--", "sh", "-c", `"$0" "$1" "$2" 0 & "$0" "$1" "$2" 1 & wait`, testenv.Python(t, "torch"), w.file("ddp.py", ranksByArgument), filepath.Join(w.home, "meet"))
	if v := w.verdict(w.folder()); got.code != 0 || !v.IsOOM || v.Where != event.WhereHost ||
		v.Rank == nil || *v.Rank != 1 {
		t.Errorf("exit %d, %+v", got.code, v)
	}
}
