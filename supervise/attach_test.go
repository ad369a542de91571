//go:build linux && !race

package supervise_test

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"memroom/testenv"
)

// TestAttach: the front end is killed, another one takes over: it sees the output so far, the rest,
// and the exit code.
func TestAttach(t *testing.T) {
	w := newWorkshop(t, ourselves)
	cmd := w.memroom("run", "--", "sh", "-c", "echo before; sleep 1; echo after; exit 9")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.waitFolder()
	time.Sleep(200 * time.Millisecond)
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	got := w.finish(w.memroom("attach"))
	if got.out != "before\nafter\n" || got.code != 9 {
		t.Errorf("%+v", got)
	}
	// it is over: the keeper in its last moment answers, or the record
	again := w.finish(w.memroom("attach", "last"))
	if again.out != got.out || again.code != 9 {
		t.Errorf("%+v", again)
	}
}

// TestAttachAtTerminal: keys reach a command whose first front end is gone; Ctrl-P Ctrl-Q leaves it
// running.
func TestAttachAtTerminal(t *testing.T) {
	w, d := newWorkshop(t, ourselves), newDesk(t)
	first := w.memroom("run", "--quiet", "--", "sh", "-c",
		"echo ready; read a; echo one=$a; read b; echo two=$b; exit 8")
	d.sit(first)
	d.waitFor("ready")
	_ = first.Process.Kill()
	_ = first.Wait()

	second := newDesk(t)
	leaver := w.memroom("attach")
	second.sit(leaver)
	second.waitFor("leaves it running")
	second.typeKeys("x\r")
	second.waitFor("one=x")
	second.typeKeys("\x11z\x10") // neither alone leaves
	second.waitFor("z")
	time.Sleep(50 * time.Millisecond)
	second.typeKeys("\x11")
	if err := leaver.Wait(); err != nil {
		t.Errorf("leaving: %v; seen %q", err, second.seen())
	}
	third := newDesk(t)
	last := w.memroom("attach")
	third.sit(last)
	third.waitFor("leaves it running")
	third.typeKeys("y\r")
	third.waitFor("two=zy") // and the command never got the two
	_ = last.Wait()
	if code := last.ProcessState.ExitCode(); code != 8 {
		t.Errorf("exit %d; seen %q", code, third.seen())
	}
}

func TestDetach(t *testing.T) {
	w := newWorkshop(t, ourselves)
	release := filepath.Join(w.home, "release")
	got := w.run("--detach", "--", "sh", "-c",
		"until test -e "+release+"; do sleep 0.05; done; echo later; exit 3")
	id := strings.TrimSpace(got.out)
	if got.code != 0 || !strings.Contains(id, "-") {
		t.Fatalf("%+v", got)
	}
	if live := w.finish(w.memroom("runs", "--active")); !strings.Contains(live.out, id) {
		t.Errorf("it runs, but: %+v", live)
	}
	w.file("release", "")
	if rest := w.finish(w.memroom("attach", "--all", id)); rest.out != "later\n" || rest.code != 3 {
		t.Errorf("%+v", rest)
	}
}

// TestDetachThatCannotStart: nobody will look at a run that never began, so it is said at once.
func TestDetachThatCannotStart(t *testing.T) {
	w := newWorkshop(t, ourselves)
	path := filepath.Join(w.home, "script")
	if err := os.WriteFile(path, []byte("#!/no/such/interpreter\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if got := w.run("--detach", "--", path); got.code != 127 || got.out != "" ||
		!strings.Contains(got.err, "its interpreter is missing") {
		t.Errorf("%+v", got)
	}
}

func TestTopAndView(t *testing.T) {
	w, d := newWorkshop(t, ourselves), newDesk(t)
	release := filepath.Join(w.home, "release")
	cmd := w.memroom("run", "--view", "--", "sh", "-c",
		"echo words of the command; until test -e "+release+"; do sleep 0.05; done; exit 5")
	d.sit(cmd)
	d.waitFor("host memory")
	d.waitFor("words of the command")
	w.file("release", "")
	_ = cmd.Wait()
	d.waitFor("\x1b[?1049l") // the first screen comes back
	if code := cmd.ProcessState.ExitCode(); code != 5 {
		t.Errorf("exit %d", code)
	}
	lines := w.finish(w.memroom("top", "--every", "100ms"))
	if lines.code != 0 || !strings.Contains(lines.out, "exit 5") {
		t.Errorf("%+v", lines)
	}
}

// TestOnPressure: before the wall the command gets the signal it asked for, or the hook runs.
func TestOnPressure(t *testing.T) {
	// it stays between the mark and the limit, so that a slow monitor rings too
	grow := `
import signal, sys, time
signal.signal(signal.SIGUSR1, lambda *a: (print("checkpoint", flush=True), sys.exit(0)))
kept = []
while True:
    if len(kept) < 70:
        kept.append(bytearray(2 << 20))
    time.sleep(0.02)
`
	w := newWorkshop(t, ourselves)
	got := w.run(append([]string{"--host-mem", "200MiB", "--pressure-at", "0.6", "--on-pressure",
		"USR1", "--"}, w.script(grow)...)...)
	if got.out != "checkpoint\n" || got.code != 0 {
		t.Errorf("%+v", got)
	}
	marker := filepath.Join(w.home, "hook")
	w.run(append([]string{"--host-mem", "200MiB", "--pressure-at", "0.5", "--on-pressure",
		"echo \"$MEMROOM_REASON\" > " + marker + "; kill -USR1 $MEMROOM_CHILD", "--"},
		w.script(grow)...)...)
	w.eventually("the hook", func() bool {
		data, _ := os.ReadFile(marker)
		return strings.Contains(string(data), "MiB")
	})
}

// TestPkill: people end trainings with pkill -f train.py. The keeper's command line does not name
// the script, so it lives to write down what happened.
func TestPkill(t *testing.T) {
	if _, err := exec.LookPath("pkill"); err != nil {
		testenv.Needs(t, "pkill", err.Error())
	}
	w := newWorkshop(t, ourselves)
	script := w.script("import time; time.sleep(60)")
	unique := filepath.Join(w.home, "unique-train.py")
	if err := os.Rename(script[1], unique); err != nil {
		t.Fatal(err)
	}
	cmd := w.memroom("run", "--", script[0], unique)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	folder, _ := w.waitFolder()
	time.Sleep(200 * time.Millisecond)
	_ = exec.Command("pkill", "-KILL", "-f", unique).Run()
	_ = cmd.Wait()
	w.eventually("the verdict", func() bool { _, err := folder.Summary(); return err == nil })
	if v := w.verdict(folder); v.KilledBy != "somebody" || v.IsOOM {
		t.Errorf("%+v", v)
	}
}

// TestKilledTwice: front end and monitor die together.
func TestKilledTwice(t *testing.T) {
	w := newWorkshop(t, ourselves)
	cmd := w.memroom("run", "--", "sh", "-c", "sleep 1; echo over; exit 2")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	folder, state := w.waitFolder()
	w.eventually("a monitor", func() bool { return w.monitor(state.Keeper) > 0 })
	_ = syscall.Kill(w.monitor(state.Keeper), syscall.SIGKILL)
	_ = cmd.Process.Kill()
	_, _ = io.Copy(io.Discard, out)
	_ = cmd.Wait()
	w.eventually("the summary", func() bool { _, err := folder.Summary(); return err == nil })
	if exit, err := folder.Exit(); err != nil || exit.Code != 2 {
		t.Errorf("%+v %v", exit, err)
	}
	if data, _ := os.ReadFile(folder.Output()); string(data) != "over\n" {
		t.Errorf("output %q", data)
	}
}
