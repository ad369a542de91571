package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"memroom/fit"
	"memroom/fit/driver"
	"memroom/testenv"
)

// fitted runs a script under `memroom run --fit` and returns its standard output, memroom's notes,
// the record and the exit code.
func fitted(t *testing.T, binary, home string, args ...string) (out, notes string,
	record fit.Record, code int) {
	t.Helper()
	cmd := exec.Command(binary, append([]string{"run"}, args...)...)
	cmd.Env = append(os.Environ(), "MEMROOM_HOME="+home, "OMP_NUM_THREADS=1")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	data, err := cmd.Output()
	if err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	runs, _ := filepath.Glob(filepath.Join(home, "runs", "*", "fit.json"))
	if len(runs) > 0 {
		content := testenv.Read(t, runs[len(runs)-1])
		if err := json.Unmarshal(content, &record); err != nil {
			t.Fatal(err)
		}
	}
	return string(data), stderr.String(), record, cmd.ProcessState.ExitCode()
}

// needsCgroup skips where no hard limit on host memory can be had: a soft one kills on its own
// clock.
func needsCgroup(t *testing.T, binary string) {
	t.Helper()
	home := t.TempDir()
	cmd := exec.Command(binary, "run", "--host-mem", "64MiB", "--", "true")
	cmd.Env = append(os.Environ(), "MEMROOM_HOME="+home)
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	states, _ := filepath.Glob(filepath.Join(home, "runs", "*", "keeper.json"))
	for _, path := range states {
		if data, err := os.ReadFile(path); err == nil && regexp.MustCompile(`"limit": *"(cgroup|scope)`).Match(data) {
			return
		}
	}
	testenv.Needs(t, "a memory cgroup", "none may be made here")
}

const greedyActivations = `
import sys, torch, torch.nn as nn, torch.nn.functional as F
torch.manual_seed(0); torch.set_num_threads(1)
class Block(nn.Module):
    def __init__(self, w):
        super().__init__(); self.a = nn.Linear(w, 4 * w); self.b = nn.Linear(4 * w, w)
    def forward(self, x): return x + self.b(F.gelu(self.a(x)))
model = nn.Sequential(nn.Linear(16, 64), *[Block(64) for _ in range(12)], nn.Linear(64, 10))
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
g = torch.Generator().manual_seed(1)
for step in range(3):
    x = torch.randn(int(sys.argv[1]), 16, generator=g); y = torch.randint(0, 10, (len(x),), generator=g)
    optimizer.zero_grad(); loss = F.cross_entropy(model(x), y); loss.backward(); optimizer.step()
    print("step", step, "loss %.5f" % loss.item(), flush=True)
`

// TestFitRecoversFromHostOOM: a real kernel kill in a cgroup, one relaunch, the same printed
// losses, and a second run that begins where the first ended.
func TestFitRecoversFromHostOOM(t *testing.T) {
	python := testenv.Python(t, "torch")
	binary := testenv.Binary(t)
	needsCgroup(t, binary)
	script := filepath.Join(t.TempDir(), "train.py")
	if err := os.WriteFile(script, []byte(greedyActivations), 0o644); err != nil {
		t.Fatal(err)
	}
	const rows, limit = "20000", "700MiB"
	want := testenv.Program{Python: python, Args: []string{script, rows},
		Env: []string{"OMP_NUM_THREADS=1"}}.MustAsk(t).Out
	home := t.TempDir()
	out, notes, record, code := fitted(t, binary, home, "--fit", "--host-mem", limit, "--", python,
		script, rows)
	if code != 0 || !sameLosses(t, out, string(want)) {
		t.Fatalf("exit %d, printed %q, want %q\n%s", code, out, want, notes)
	}
	if len(record.Attempts) != 2 || record.Attempts[0].OutOf == "" ||
		record.Attempts[1].OutOf != "" {
		t.Fatalf("attempts: %+v\n%s", record.Attempts, notes)
	}
	again, notes, record, code := fitted(t, binary, home, "--fit", "--host-mem", limit, "--",
		python, script, rows)
	if code != 0 || !sameLosses(t, again, string(want)) || len(record.Attempts) != 1 ||
		!record.Remembered {
		t.Errorf("the second run: exit %d, attempts %+v\n%s", code, record.Attempts, notes)
	}
}

// sameLosses compares "step N loss X" lines: as many, in the same order, each loss within 1e-4.
func sameLosses(t *testing.T, got, want string) bool {
	t.Helper()
	gotLines, wantLines := strings.Split(got, "\n"), strings.Split(want, "\n")
	if len(gotLines) != len(wantLines) {
		return false
	}
	for i := range wantLines {
		var stepGot, stepWant int
		var lossGot, lossWant float64
		a, _ := fmt.Sscanf(gotLines[i], "step %d loss %g", &stepGot, &lossGot)
		b, _ := fmt.Sscanf(wantLines[i], "step %d loss %g", &stepWant, &lossWant)
		if a != b || stepGot != stepWant || math.Abs(lossGot-lossWant) > 1e-4*math.Abs(lossWant) {
			return false
		}
	}
	return true
}

// TestFitGoesOnFromTheNewestCheckpoint: what the first attempt has saved is not computed again. A
// log that is newer is no checkpoint.
func TestFitGoesOnFromTheNewestCheckpoint(t *testing.T) {
	python := testenv.Python(t)
	binary := testenv.Binary(t)
	needsCgroup(t, binary)
	const script = `
import os, sys, time
begin = int(open(sys.argv[2]).read()) + 1 if "--resume" in sys.argv else 0
for step in range(begin, 4):
    print("step", step, flush=True)
    with open(sys.argv[1] % step, "w") as f: f.write(str(step))
    time.sleep(0.02)
    with open("train.log", "w") as f: f.write("saved")
    if step == 2 and begin == 0: time.sleep(0.1); hog = b"1" * (400 << 20)
`
	for _, c := range []struct {
		saved string
		flags []string
	}{{"saved-%d", []string{"--checkpoints", "saved-*"}}, {"out/%d.pt", nil}} {
		dir := t.TempDir()
		older := filepath.Join(dir, fmt.Sprintf(c.saved, 9)) // of another run
		old := time.Now().Add(-time.Hour)
		if err := errors.Join(os.WriteFile(filepath.Join(dir, "train.py"), []byte(script), 0o644),
			os.MkdirAll(filepath.Join(dir, "out"), 0o755),
			os.WriteFile(older, []byte("9"), 0o644), os.Chtimes(older, old, old)); err != nil {
			t.Fatal(err)
		}
		t.Chdir(dir)
		args := append([]string{"--fit", "--host-mem", "100MiB", "--resume-with",
			"{latest} --resume"}, c.flags...)
		out, notes, record, code := fitted(t, binary, t.TempDir(),
			append(args, "--", python, "train.py", c.saved)...)
		if want := "step 0\nstep 1\nstep 2\nstep 3\n"; code != 0 || out != want ||
			len(record.Attempts) != 2 {
			t.Errorf("%s: exit %d, printed %q, want %q\n%s", c.saved, code, out, want, notes)
		}
		if got, want := record.Last().Resumed, fmt.Sprintf(c.saved, 2); !strings.HasSuffix(got,
			want) {
			t.Errorf("went on from %q, not from %s", got, want)
		}
	}
}

// TestFitEndsWhenNothingFits: the ladder of remedies has an end, and memroom reports when it is
// reached.
func TestFitEndsWhenNothingFits(t *testing.T) {
	python := testenv.Python(t)
	binary := testenv.Binary(t)
	needsCgroup(t, binary)
	script := filepath.Join(t.TempDir(), "hog.py")
	if err := os.WriteFile(script, []byte("x = b'1' * (400 << 20)\nprint(len(x))\n"),
		0o644); err != nil {
		t.Fatal(err)
	}
	out, notes, record, code := fitted(t, binary, t.TempDir(), "--fit", "--host-mem", "100MiB",
		"--", python, script)
	if code != 137 || out != "" || !strings.Contains(record.Impossible,
		"outside of a training step") ||
		len(record.Attempts) != 2 {
		t.Errorf("exit %d, printed %q, record %+v\n%s", code, out, record, notes)
	}
	if !strings.Contains(strings.Join(strings.Fields(notes), " "), record.Impossible) {
		t.Errorf("the end is not said:\n%s", notes)
	}
}

// TestFitRemembersOnlyCures: a remedy that was demanded for a job which never ran out is not begun
// with the next time.
func TestFitRemembersOnlyCures(t *testing.T) {
	python := testenv.Python(t)
	binary := testenv.Binary(t)
	script, home := filepath.Join(t.TempDir(), "train.py"), t.TempDir()
	if err := os.WriteFile(script, []byte("print('done')\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"--remedy", "micro_batch=4"}, nil} {
		out, notes, record, code := fitted(t, binary, home, append(append([]string{"--fit"},
			args...), "--", python, script)...)
		if code != 0 || out != "done\n" || record.Remembered ||
			strings.Contains(notes, "earlier run") {
			t.Errorf("%q: exit %d, printed %q, record %+v\n%s", args, code, out, record, notes)
		}
	}
	if kept, _ := filepath.Glob(filepath.Join(driver.Memories(home), "*")); len(kept) > 0 {
		t.Errorf("remembered: %q", kept)
	}
}

// TestFitJudgesEachAttemptByItself: the text of an earlier attempt, in the same output, is no
// evidence against a later one.
func TestFitJudgesEachAttemptByItself(t *testing.T) {
	python := testenv.Python(t)
	binary := testenv.Binary(t)
	t.Chdir(t.TempDir())
	const script = `
import os
if not os.path.exists("been"):
    open("been", "w").close()
    raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.64 GiB of which 1.10 GiB is free.")
raise ValueError("the labels are wrong")
`
	if err := os.WriteFile("train.py", []byte(script), 0o644); err != nil {
		t.Fatal(err)
	}
	_, notes, record, code := fitted(t, binary, t.TempDir(), "--fit", "--", python, "train.py")
	if code != 1 || len(record.Attempts) != 2 || record.Last().OutOf != "" ||
		record.Last().Failed != "ValueError: the labels are wrong" {
		t.Errorf("exit %d, attempts %+v\n%s", code, record.Attempts, notes)
	}
	if !strings.Contains(notes, "failed with exit code 1") {
		t.Errorf("the end is not said:\n%s", notes)
	}
}

// TestFitRetreats: where a second run of the program's calls goes wrong, the next attempt leaves
// its calls whole.
func TestFitRetreats(t *testing.T) {
	python := testenv.Python(t)
	binary := testenv.Binary(t)
	t.Chdir(t.TempDir())
	const script = `
import json, os
given = [r["id"] for r in json.load(open(os.environ["MEMROOM_APPLY"]))["remedies"]] if "MEMROOM_APPLY" in os.environ else []
class CheckpointError(RuntimeError): pass
if "micro_batch" in given:
    raise CheckpointError("Recomputed values have different metadata")
if "activation_offload" not in given:
    raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.64 GiB of which 1.10 GiB is free.")
print("done")
`
	if err := os.WriteFile("train.py", []byte(script), 0o644); err != nil {
		t.Fatal(err)
	}
	out, notes, record, code := fitted(t, binary, t.TempDir(), "--fit", "--", python, "train.py")
	var ends []string
	for _, a := range record.Attempts {
		ends = append(ends, a.Ending())
	}
	if code != 0 || out != "done\n" || len(ends) != 3 || !strings.HasPrefix(ends[1],
		"failed with CheckpointError") {
		t.Errorf("exit %d, printed %q, attempts %q\n%s", code, out, ends, notes)
	}
}

// leavesMuch is a program that runs out of memory with loader workers, an orphan in a session of
// its own and shared memory. At the start it prints what is alive of the attempt before.
const leavesMuch = `
import os, sys, time, torch, torch.nn as nn, torch.nn.functional as F
from multiprocessing import shared_memory
def rows(path): return [line.split() for line in open(path)] if os.path.exists(path) else []
class Data(torch.utils.data.Dataset):
    def __len__(self): return 4096
    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        return torch.randn(3, 16, 16, generator=g), i % 10
def note(path):
    with open(path, "a") as f: f.write("%d\n" % os.getpid())
def begin(_): note(sys.argv[1])
def alive(pid):
    try: return open("/proc/%s/stat" % pid).read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError: return False
def main():
    path, way = sys.argv[1:3]
    left = [pid for pid, in rows(path) if alive(pid)]
    shared = sum(os.path.exists(name) for name, in rows(path + ".shm"))
    print("left", len(left), "shared", shared, flush=True)
    torch.manual_seed(0); torch.set_num_threads(1)
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            kept = bytearray(b"1" * (30 << 20)); os.close(1); os.close(2); note(path)
            shm = shared_memory.SharedMemory(create=True, size=30 << 20)
            shm.buf[:] = b"1" * (30 << 20)
            with open(path + ".shm", "a") as f: f.write("/dev/shm/%s\n" % shm.name)
            while os.path.exists(path) and not os.path.exists(path + ".end"): time.sleep(0.1)
            shm.unlink()
        os._exit(0)
    body = []
    for _ in range(6): body += [nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()]
    model = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), *body, nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(32, 10))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    loader = torch.utils.data.DataLoader(Data(), 1024, num_workers=2, worker_init_fn=begin,
        multiprocessing_context=way)
    for step, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward(); optimizer.step()
        print("step", step, "loss %.4f" % loss.item(), flush=True)
        if step == 1: break
    norm = model[2]
    print("mean %.5f seen %d" % (norm.running_mean.sum(), norm.num_batches_tracked))
    os._exit(0)
if __name__ == "__main__": main()
`

// TestFitBeginsClean: of an attempt that ran out nothing is alive when the next one begins, and its
// memory is back.
func TestFitBeginsClean(t *testing.T) {
	t.Parallel()
	python, binary := testenv.Python(t, "torch"), testenv.Binary(t)
	needsCgroup(t, binary)
	for _, way := range []string{"fork", "spawn"} {
		t.Run(way, func(t *testing.T) {
			dir := t.TempDir()
			script := filepath.Join(dir, "train.py")
			testenv.Write(t, script, []byte(leavesMuch))
			pids := filepath.Join(dir, "pids")
			defer func() { _ = os.WriteFile(pids+".end", nil, 0o600) }()
			out, notes, record, _ := fitted(t, binary, filepath.Join(dir, "home"), "--fit",
				"--forgetful", "--host-mem", "900MiB", "--", python, script, pids, way)
			if len(record.Attempts) < 2 {
				t.Fatalf("it was not launched again\n%s\n%s", out, notes)
			}
			if n := strings.Count(out, "left 0 shared 0\n"); n != len(record.Attempts) {
				t.Errorf("%d of %d attempts began clean\n%s\n%s", n, len(record.Attempts), out, notes)
			}
			if testing.Verbose() {
				t.Logf("%s\n%s", out, notes)
			}
		})
	}
}

// endsSlowly runs out of memory and leaves an orphan that does not end when it is asked to, but
// notes it. Told to end, its second attempt says that memory ran out.
const endsSlowly = `
import os, signal, sys, time
path = sys.argv[1]
tries = len(open(path).readlines()) if os.path.exists(path) else 0
print("attempt", tries + 1, flush=True)
def dies(*_): raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.64 GiB of which 1.10 GiB is free.")
ready, told = os.pipe()
if os.fork() == 0:
    os.setsid()
    signal.signal(signal.SIGTERM, lambda *_: open(path + ".asked", "w").close())
    with open(path, "a") as f: f.write("%d\n" % os.getpid())
    os.write(told, b"1"); os.close(1); os.close(2)
    while not os.path.exists(path + ".end"): time.sleep(0.02)
    os._exit(0)
os.read(ready, 1)
if len(sys.argv) > 2 and tries:
    signal.signal(signal.SIGTERM, dies)
    open(path + ".second", "w").close()
    time.sleep(60)
dies()
`

// TestFitEndsWhenItIsTold: a signal to memroom between two attempts, or in the second one, is the
// end of the run: no other attempt begins, and of the attempt before nothing is alive.
func TestFitEndsWhenItIsTold(t *testing.T) {
	t.Parallel()
	binary := testenv.Binary(t)
	python, err := exec.LookPath("python3")
	if err != nil {
		testenv.Needs(t, "python3", "the program is one")
	}
	for when, c := range map[string]struct {
		mark     string
		attempts int
		more     []string
	}{"between": {".asked", 1, nil}, "second": {".second", 2, []string{"second"}}} {
		t.Run(when, func(t *testing.T) {
			dir := t.TempDir()
			script, pids := filepath.Join(dir, "train.py"), filepath.Join(dir, "pids")
			testenv.Write(t, script, []byte(endsSlowly))
			defer func() { _ = os.WriteFile(pids+".end", nil, 0o600) }()
			cmd := exec.Command(binary, append([]string{"run", "--fit", "--forgetful", "--", python,
				script, pids}, c.more...)...)
			cmd.Env = append(os.Environ(), "MEMROOM_HOME="+filepath.Join(dir, "home"))
			var said strings.Builder
			cmd.Stdout, cmd.Stderr = &said, &said
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			for _, err := os.Stat(pids + c.mark); err != nil; _, err = os.Stat(pids + c.mark) {
				time.Sleep(5 * time.Millisecond)
			}
			orphans, _ := os.ReadFile(pids)
			_ = cmd.Process.Signal(syscall.SIGTERM)
			if c.attempts == 2 {
				_ = os.WriteFile(pids+".end", nil, 0o600) // the run waits for its last orphan
			}
			if err := cmd.Wait(); err == nil {
				t.Error("it ended well")
			}
			if n := strings.Count(said.String(), "attempt "); n < c.attempts ||
				strings.Contains(said.String(), fmt.Sprint("attempt ", c.attempts+1, "\n")) {
				t.Errorf("want %d attempts\n%s", c.attempts, said.String())
			}
			first, _, _ := strings.Cut(string(orphans), "\n")
			if stat, err := os.ReadFile("/proc/" + first + "/stat"); err == nil &&
				!strings.Contains(string(stat), ") Z ") {
				t.Errorf("of the first attempt process %s is alive\n%s", first, said.String())
			}
		})
	}
}
