//go:build linux && !race

package supervise_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// orphan starts a run, kills its keeper and monitor, and returns the state they left.
func (w *workshop) orphan() (id string, child int, cgroup string) {
	w.Helper()
	got := w.run("--detach", "--", "sleep", "1000")
	id = strings.TrimSpace(got.out)
	if got.code != 0 {
		w.Fatalf("%+v", got)
	}
	folder, state := w.waitFolder()
	w.Cleanup(func() { _ = syscall.Kill(state.Child, syscall.SIGKILL) })
	if err := syscall.Kill(state.Keeper, syscall.SIGKILL); err != nil {
		w.Fatal(err)
	}
	w.eventually("the keeper to die", func() bool { return !alive(state.Keeper) })
	w.eventually("the monitor to leave", func() bool { return !alive(state.Monitor) })
	if !alive(state.Child) {
		w.Fatalf("the command of %s died with its keeper", folder.ID)
	}
	return id, state.Child, state.Cgroup
}

// TestKilledKeeper: nobody can learn how the command of a killed keeper ends, but every command
// shows what is known: whether it runs and as which process. The next run removes what was left, as
// soon as it is provably dead.
func TestKilledKeeper(t *testing.T) {
	bothUsers(t, func(t *testing.T, who asUser) {
		w := newWorkshop(t, who)
		id, child, cgroup := w.orphan()
		still := fmt.Sprintf("still runs as process %d", child)
		w.says("while it runs", id, still)
		if got := w.finish(w.memroom("runs")); !strings.Contains(got.out,
			fmt.Sprintf("unwatched, process %d", child)) {
			t.Errorf("runs: %+v", got)
		}
		if got := w.finish(w.memroom("rm", id)); got.code == 0 ||
			!strings.Contains(got.err, still) {
			t.Errorf("rm: %+v", got)
		}
		if w.run("--", "true"); cgroup != "" {
			if _, err := os.Stat(cgroup); err != nil || !alive(child) {
				t.Errorf("the next run disturbed a command that lives: %v", err)
			}
		}
		if err := syscall.Kill(child, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		w.eventually("the command to end", func() bool { return !alive(child) })
		w.says("after its end", id, "the command has ended, its exit code is unknown")
		folder := filepath.Join(w.records(), "runs", id)
		if got := w.run("--", "true"); got.code != 0 {
			t.Fatalf("%+v", got)
		}
		for _, left := range []string{filepath.Join(folder, "keeper.sock"), cgroup} {
			if _, err := os.Stat(left); left != "" && err == nil {
				t.Errorf("%s is still there", left)
			}
		}
		w.says("after the cleaning", id, "the command has ended, its exit code is unknown")
		if got := w.finish(w.memroom("rm", id)); got.code != 0 {
			t.Errorf("rm: %+v", got)
		}
	})
}

// says checks the output of show and attach for a run whose keeper was killed.
func (w *workshop) says(when, id, want string) {
	w.Helper()
	if got := w.finish(w.memroom("show", id)); got.code != 0 || !strings.Contains(got.out, want) {
		w.Errorf("show %s: %+v", when, got)
	}
	if got := w.finish(w.memroom("attach", id)); got.code != 125 || !strings.Contains(got.err,
		want) {
		w.Errorf("attach %s: %+v", when, got)
	}
}

// TestFrontOfAKilledKeeper: the front end prints what became of the command, and what to do.
func TestFrontOfAKilledKeeper(t *testing.T) {
	w := newWorkshop(t, ourselves)
	cmd := w.memroom("run", "--", "sleep", "1000")
	var said strings.Builder
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_, state := w.waitFolder()
	defer func() { _ = syscall.Kill(state.Child, syscall.SIGKILL) }()
	_ = syscall.Kill(state.Keeper, syscall.SIGKILL)
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 125 || !strings.Contains(said.String(),
		fmt.Sprintf("still runs as process %d", state.Child)) {
		t.Errorf("exit %d, said %q", code, said.String())
	}
}

// TestLongHomeLeavesNothing: a home too long for a socket's address gets a folder for sockets
// elsewhere. It goes with the run, and with the next one if the keeper was killed.
func TestLongHomeLeavesNothing(t *testing.T) {
	w := newWorkshop(t, ourselves)
	w.home = filepath.Join(w.home, strings.Repeat("deep", 20))
	temporary := t.TempDir()
	t.Setenv("TMPDIR", temporary)
	if err := os.MkdirAll(w.home, 0o700); err != nil {
		t.Fatal(err)
	}
	w.temporary = temporary
	left := func() []string {
		found, _ := filepath.Glob(filepath.Join(temporary, "memroom-*"))
		return found
	}
	got := w.run(append([]string{"--"}, w.script("print('words')")...)...)
	if got.out != "words\n" || got.code != 0 {
		t.Fatalf("%+v", got)
	}
	w.eventually("the folder to go", func() bool { return len(left()) == 0 })
	_, child, _ := w.orphan()
	if len(left()) != 1 {
		t.Fatalf("the test tests nothing: %v", left())
	}
	_ = syscall.Kill(child, syscall.SIGKILL)
	w.run("--", "true")
	w.eventually("the folders to go", func() bool { return len(left()) == 0 })
}
