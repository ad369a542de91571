//go:build linux && !race

package supervise_test

import (
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"memroom/event"
)

// times returns how often a test of chance is repeated: a few times, or MEMROOM_KILLS times
// (bench/kill uses 50).
func times(t *testing.T, few int) int {
	t.Helper()
	if text := os.Getenv("MEMROOM_KILLS"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	return few
}

// training counts to sixty in three seconds, goes on until it is released, and writes a file at the
// end. It touches memory on the way.
const training = `
import os, sys, time
kept = []
for i in range(60):
    kept.append(bytearray(200000))
    print("step", i, flush=True)
    print("note", i, file=sys.stderr, flush=True)
    time.sleep(0.05)
while not os.path.exists(sys.argv[1] + ".release"):
    time.sleep(0.01)
open(sys.argv[1], "w").write("complete")
`

// TestKilledFrontOrMonitor kills the front end or the monitor at a random moment. The training must
// complete, its output must be whole, readings must go on after the kill, and the store must know
// how it ended. bench/kill, on a quiet machine, also asks that no more than a second of readings is
// missing.
func TestKilledFrontOrMonitor(t *testing.T) {
	bothUsers(t, func(t *testing.T, who asUser) {
		for i := range times(t, 4) {
			t.Run(strconv.Itoa(i), func(t *testing.T) {
				t.Parallel()
				killOne(t, who, i%2 == 0)
			})
		}
	})
}

func killOne(t *testing.T, who asUser, front bool) {
	w := newWorkshop(t, who)
	done := filepath.Join(w.home, "done")
	cmd := w.memroom(append([]string{"run", "--"}, append(w.script(training), done)...)...)
	cmd.Stderr = io.Discard // through a pipe: two streams
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	moment := rand.N(2500 * time.Millisecond)
	time.Sleep(moment)
	folder, state := w.waitFolder()
	if front {
		_ = cmd.Process.Kill()
	} else {
		w.eventually("a monitor", func() bool { return w.monitor(state.Keeper) > 0 })
		if err := syscall.Kill(w.monitor(state.Keeper), syscall.SIGKILL); err != nil {
			t.Error(err)
		}
	}
	before := len(slices.Collect(folder.Samples()))
	w.eventually("readings after the kill",
		func() bool { return len(slices.Collect(folder.Samples())) >= before+3 })
	if err := os.WriteFile(done+".release", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	w.eventually("the run to be judged",
		func() bool { _, err := folder.Summary(); return err == nil })
	if data, _ := os.ReadFile(done); string(data) != "complete" {
		t.Errorf("killed after %v: the training did not complete", moment)
	}
	for path, word := range map[string]string{folder.Output(): "step", folder.Errors(): "note"} {
		data, _ := os.ReadFile(path)
		if lines := strings.Count(string(data), word); lines != 60 {
			t.Errorf("killed after %v: %d lines of %s recorded, want 60", moment, lines,
				filepath.Base(path))
		}
	}
	if v := w.verdict(folder); v.ExitCode != 0 || v.IsOOM {
		t.Errorf("verdict %+v", v)
	}
	gap := largestGap(folder.Samples())
	// A second of readings, and the time between two of them.
	if os.Getenv("MEMROOM_KILLS") != "" && gap > 1300*time.Millisecond {
		t.Errorf("killed after %v: %v without a reading", moment, gap)
	}
	if !front && cmd.ProcessState.ExitCode() != 0 {
		t.Errorf("front end: %v", cmd.ProcessState)
	}
}

// monitor returns the monitor's process: the keeper's child that is not the command.
func (w *workshop) monitor(keeper int) int {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", keeper))
	for _, task := range tasks {
		data, _ := os.ReadFile(task)
		for _, pid := range strings.Fields(string(data)) {
			line, _ := os.ReadFile("/proc/" + pid + "/cmdline")
			if strings.Contains(string(line), "_monitor") {
				n, _ := strconv.Atoi(pid)
				return n
			}
		}
	}
	return 0
}

func largestGap(samples func(func(event.Sample) bool)) time.Duration {
	var gap, last int64
	for s := range samples {
		gap, last = max(gap, s.AtMS-last), s.AtMS
	}
	return time.Duration(gap) * time.Millisecond
}

// hog takes memory until something stops it, at the latest when it has what a test machine can
// spare.
const hog = `
import time
kept = []
while len(kept) < 512:
    kept.append(bytearray(4 << 20))
    time.sleep(0.002)
`

// TestHostOOM lets a real training run into a real limit: the kernel's where a cgroup can be made,
// ours elsewhere.
func TestHostOOM(t *testing.T) {
	bothUsers(t, func(t *testing.T, who asUser) {
		for i := range times(t, 3) {
			t.Run(strconv.Itoa(i), func(t *testing.T) { oomOnce(t, who) })
		}
	})
}

func oomOnce(t *testing.T, who asUser) {
	w := newWorkshop(t, who)
	copied := filepath.Join(w.home, "verdict.json")
	got := w.run(append([]string{"--host-mem", "96MiB", "--verdict", copied, "--"},
		w.script(hog)...)...)
	folder := w.folder()
	v, state := w.verdict(folder), w.state(folder)
	if !v.IsOOM {
		t.Fatalf("not seen as out of memory: %+v; %+v", v, got)
	}
	if state.Cgroup != "" && (v.KilledBy != "cgroup" || v.Signal != "SIGKILL" || got.code != 137) {
		t.Errorf("verdict %+v, exit %d; want a kill of the cgroup", v, got.code)
	}
	if state.Cgroup == "" && (v.KilledBy != "memroom" || v.Where != event.WhereHost) {
		t.Errorf("verdict %+v; want the soft limit", v)
	}
	if _, err := os.Stat(copied); err != nil {
		t.Error(err)
	}
	summary, err := folder.Summary()
	if err != nil {
		t.Errorf("the monitor did not live to report: %v", err)
	}
	if summary.Peaks.Unreclaimable < 96*event.MiB || summary.Peaks.HostLimit != 96*event.MiB {
		t.Errorf("it ran into its limit of 96MiB, the report says %+v", summary.Peaks)
	}
	if _, err := os.Stat(state.Cgroup); state.Cgroup != "" && err == nil {
		w.eventually("the cgroup to be removed", func() bool {
			_,
				err := os.Stat(state.Cgroup)
			return err != nil
		})
	}
}

// TestKilledBySomebody: SIGKILL without a kill counted is no memory problem.
func TestKilledBySomebody(t *testing.T) {
	bothUsers(t, func(t *testing.T, who asUser) {
		w := newWorkshop(t, who)
		got := w.run("--", "sh", "-c", "sleep 0.3; kill -KILL $$")
		if v := w.verdict(w.folder()); v.IsOOM || v.KilledBy != "somebody" || got.code != 137 {
			t.Errorf("%+v, exit %d", v, got.code)
		}
	})
}

// TestDaemons: a process that forks away from its parents is still watched, outlives the command
// undisturbed, and what it writes later is recorded.
func TestDaemons(t *testing.T) {
	w := newWorkshop(t, ourselves)
	release := filepath.Join(w.home, "release")
	got := w.run(append([]string{"--"}, append(w.script(waitsForReadings+`
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        kept = bytearray(60 << 20)
        open(sys.argv[1] + ".up", "w").close()
        while not os.path.exists(sys.argv[1]):
            time.sleep(0.05)
        print("from the daemon", flush=True)
        os._exit(0)
    os._exit(0)
while not os.path.exists(sys.argv[1] + ".up"):
    time.sleep(0.01)
readings(3)
print("main ends", flush=True)
`), release)...)...)
	if got.out != "main ends\n" || got.code != 0 {
		t.Errorf("%+v", got)
	}
	folder := w.folder()
	summary, err := folder.Summary()
	if err != nil || summary.Peaks.Resident < 60<<20 || summary.Peaks.Processes < 2 {
		t.Errorf("the daemon was not seen: %+v %v", summary.Peaks, err)
	}
	state := w.state(folder)
	if !alive(state.Keeper) {
		t.Error("the keeper left the daemon behind")
	}
	if err := os.WriteFile(release, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	w.eventually("the daemon's last words", func() bool {
		data, _ := os.ReadFile(folder.Output())
		return strings.Contains(string(data), "from the daemon")
	})
	w.eventually("the keeper to end", func() bool { return !alive(state.Keeper) })
}

// TestRankException: a rank ends by an exception about memory, which only its probe can tell. The
// other would wait for ever.
func TestRankException(t *testing.T) {
	bothUsers(t, func(t *testing.T, who asUser) {
		w := newWorkshop(t, who)
		program := w.script(`
import os, subprocess, sys, time
if len(sys.argv) > 1:
    time.sleep(0.5)
    if sys.argv[1] == "2":
        bytearray(1 << 62)
    time.sleep(600)
ranks = [subprocess.Popen([sys.executable, sys.argv[0], str(r)], env={**os.environ, "RANK": str(r), "WORLD_SIZE": "3"}) for r in (0, 1, 2)]
for r in ranks:
    r.wait()
`)
		w.run(append([]string{"--grace", "1s", "--"}, program...)...)
		v := w.verdict(w.folder())
		if !v.IsOOM || v.KilledBy != "memroom" || v.Where != event.WhereHost || v.Rank == nil ||
			*v.Rank != 2 {
			t.Errorf("verdict %+v", v)
		}
	})
}

// TestRankThatRunsOut: one rank of two is killed for memory, the other would wait for ever. The
// group is ended and the verdict names the rank.
func TestRankThatRunsOut(t *testing.T) {
	w := newWorkshop(t, ourselves)
	program := w.script(`
import os, subprocess, sys, time
if len(sys.argv) > 1:
    kept = []
    while sys.argv[1] == "1":
        kept.append(bytearray(4 << 20)); time.sleep(0.005)
    time.sleep(600)
ranks = [subprocess.Popen([sys.executable, sys.argv[0], str(r)], env={**os.environ, "RANK": str(r), "WORLD_SIZE": "2"}) for r in (0, 1)]
ranks[0].wait()
`)
	w.run(append([]string{"--host-mem", "128MiB", "--grace", "1s", "--"}, program...)...)
	folder := w.folder()
	v := w.verdict(folder)
	if w.state(folder).Cgroup == "" {
		t.Skip("needs a cgroup of the run's own: without one the soft limit ends the whole run at once")
	}
	if !v.IsOOM || v.KilledBy != "memroom" || v.Rank == nil || *v.Rank != 1 {
		t.Errorf("verdict %+v", v)
	}
}

// TestScriptThatLosesTheCode: a script around the training drops its exit code. The verdict goes by
// what happened inside, unless something of the script went on and ended in order.
func TestScriptThatLosesTheCode(t *testing.T) {
	w := newWorkshop(t, ourselves)
	program := strings.Join(w.script("import sys, time\nif len(sys.argv) > 1:\n    bytearray(1 << "+
		"62)\ntime.sleep(0.3)\n"), " ")
	for _, c := range []struct {
		name, script string
		oom          bool
	}{
		{"a pipe", program + " die | cat", true},
		{"in the background", program + " die & wait", true},
		{"it went on", program + " die; " + program, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := w.run("--", "sh", "-c", c.script)
			v := w.verdict(w.folder())
			if got.code != 0 || v.IsOOM != c.oom {
				t.Errorf("exit %d, %+v", got.code, v)
			}
			if c.oom && (v.Where != event.WhereHost || !strings.Contains(got.err,
				"although its exit code is 0")) {
				t.Errorf("%+v, said %q", v, got.err)
			}
			if !c.oom && !strings.Contains(got.err, "died of memory; the command went on") {
				t.Errorf("said %q", got.err)
			}
		})
	}
}

// caughtRanks are two ranks that make steps. The second's allocator fails and the rank catches the
// error. There is no card here, so the script sends the messages that its probe would send on one.
// Then the group stands still, or goes on.
const caughtRanks = `
import os, subprocess, sys, time
if len(sys.argv) > 2:
    from _memroom_probe import link
    rank, goes_on = int(sys.argv[2]), sys.argv[1] == "on"
    for step in range(1, 30):
        if step == 5 and rank == 0:
            time.sleep(0.1)  # it ends a step that both had begun
        now, took = int(time.time() * 1e6), 500000 if step == 5 else 50000
        link.send("steps", {"rows": [[step, 0, now, took, 0, 0, 0, 1, 1, 1, 1, 1, 0, 0, 0, 1, 1, 0]], "spent_us": 0, "elapsed_us": now % 1000000})
        if step == 5 and rank == 1:
            link.send("oom", {"step": 5, "device": 0, "requested": 2 << 30, "total": 8 << 30, "free": 1 << 30, "allocated": 6 << 30, "reserved": 7 << 30,
                              "inactive_split": 0, "phase": "forward", "snapshot": "", "lines": False, "frames": []})
        if step == 5 and not goes_on:
            time.sleep(600)
        time.sleep(0.5 if goes_on and step > 5 else 0.1)
    sys.exit(0)
ranks = [subprocess.Popen([sys.executable, sys.argv[0], sys.argv[1], str(r)], env={**os.environ, "RANK": str(r), "WORLD_SIZE": "2"}) for r in (0, 1)]
for r in ranks:
    r.wait()
`

// TestRankThatCatches: a rank catches its error and nobody makes a step after that. It is said
// while it lasts, and the group is ended.
func TestRankThatCatches(t *testing.T) {
	w := newWorkshop(t, ourselves)
	got := w.run(append([]string{"--grace", "200ms", "--"}, append(w.script(caughtRanks),
		"stands")...)...)
	v := w.verdict(w.folder())
	if !v.IsOOM || v.Where != event.WhereGPU || v.KilledBy != "memroom" || v.Rank == nil ||
		*v.Rank != 1 {
		t.Errorf("verdict %+v", v)
	}
	if !strings.Contains(got.err,
		"memroom: Rank 1 ran out of GPU memory (it asked for 2GiB)") {
		t.Errorf("said %q", got.err)
	}
	// The ranks go on for twice the grace, and a step takes a tenth of it: a busy machine has time.
	got = w.run(append([]string{"--grace", "6s", "--"}, append(w.script(caughtRanks),
		"on")...)...)
	if v := w.verdict(w.folder()); v.IsOOM || v.KilledBy != "" || got.code != 0 ||
		strings.Contains(got.err, "stands") {
		t.Errorf("ranks that go on: %+v, %+v", v, got)
	}
}

// TestGroup: of two runs of one group, as on two nodes that share a home, one runs out of memory.
// The other would wait for it for ever.
func TestGroup(t *testing.T) {
	w := newWorkshop(t, ourselves)
	waits := w.memroom("run", "--group", "job7", "--node-rank", "1", "--grace", "500ms", "--",
		"sleep", "600")
	var said strings.Builder
	waits.Stderr = &said
	if err := waits.Start(); err != nil {
		t.Fatal(err)
	}
	folder, _ := w.waitFolder()
	alone := w.run("--group", "another", "--", w.script("bytearray(1 << 62)")[0],
		w.script("bytearray(1 << 62)")[1])
	out := w.run(append([]string{"--group", "job7", "--host-mem", "64MiB", "--"},
		w.script(hog)...)...)
	if alone.code != 1 || out.code == 0 {
		t.Fatalf("%+v, %+v", alone, out)
	}
	_ = waits.Wait()
	v := w.verdict(folder)
	if v.IsOOM || v.KilledBy != "memroom" || v.Signal != "SIGTERM" ||
		!strings.Contains(strings.Join(v.Evidence, "\n"), "node 0 of group job7") {
		t.Errorf("verdict %+v", v)
	}
	if !strings.Contains(said.String(),
		"memroom: This run was ended because node 0 of group job7") {
		t.Errorf("said %q", said.String())
	}
	late := w.run("--group", "job7", "--grace", "100ms", "--", "sleep", "3")
	if v := w.verdict(w.folder()); late.code != 0 || v.ExitCode != 0 {
		t.Errorf("a later run of the same group was ended for an old one: %+v", v)
	}
}
