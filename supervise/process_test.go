//go:build linux && !race

package supervise_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"memroom/event"
	"memroom/store"
	"memroom/supervise"
	"memroom/testenv"
)

// These tests run the real binary over real processes. It lies in a folder that other users may
// enter, because some of them run it as nobody.
var binary string

func TestMain(m *testing.M) {
	if binary = os.Getenv("MEMROOM_TEST_BINARY"); binary != "" { // on a machine without Go
		os.Exit(m.Run())
	}
	dir, err := os.MkdirTemp("", "memroom-test-")
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	binary = filepath.Join(dir, "memroom")
	if err == nil {
		build := exec.Command("go", "build", "-o", binary, "memroom/cmd/memroom")
		if os.Getenv("MEMROOM_RACE") != "" { // needs a C compiler, and slows everything
			build = exec.Command("go", "build", "-race", "-o", binary, "memroom/cmd/memroom")
			build.Env = append(os.Environ(), "CGO_ENABLED=1")
		}
		var out []byte
		if out, err = build.CombinedOutput(); err != nil {
			err = fmt.Errorf("go build: %w\n%s", err, out)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// asUser is the user who runs memroom.
type asUser string

const (
	ourselves asUser = "ourselves"
	nobody    asUser = "nobody"
)

// bothUsers runs a test as we are and, when we are root, as an unprivileged user too.
func bothUsers(t *testing.T, test func(t *testing.T, who asUser)) {
	t.Run(string(ourselves), func(t *testing.T) { test(t, ourselves) })
	t.Run(string(nobody), func(t *testing.T) {
		if os.Getuid() != 0 {
			testenv.Needs(t, "root",
				"to become an unprivileged user; the other half runs as one already")
		}
		test(t, nobody)
	})
}

// workshop is a store of its own and the commands run in it.
type workshop struct {
	testing.TB
	home      string
	temporary string // folder for temporary files
	who       asUser
	env       []string // besides ours
}

func newWorkshop(t testing.TB, who asUser) *workshop {
	t.Helper()
	home, err := os.MkdirTemp("", "memroom-home-")
	if err != nil {
		t.Fatal(err)
	}
	w := &workshop{TB: t, home: home, temporary: os.TempDir(), who: who}
	if who == nobody {
		if err := os.Chown(home, 65534, 65534); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { os.RemoveAll(home) })
	return w
}

// records is where memroom keeps its runs: a folder of its own in the home, which holds the scripts
// and files of the tests too.
func (w *workshop) records() string { return filepath.Join(w.home, "records") }

// oneThread keeps frameworks to one thread: tests that run side by side share two processors.
func (w *workshop) oneThread() { w.env = append(w.env, "OMP_NUM_THREADS=1") }

// memroom prepares a command line of the real binary.
func (w *workshop) memroom(args ...string) *exec.Cmd {
	cmd := exec.Command(binary, args...)
	cmd.Env = append(os.Environ(), "MEMROOM_HOME="+w.records(), "HOME="+w.home,
		"TMPDIR="+w.temporary)
	cmd.Env = append(cmd.Env, w.env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	if w.who == nobody {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: 65534, Gid: 65534}
		cmd.Dir = w.home
	}
	return cmd
}

// result is what came of a finished command line.
type result struct {
	out, err string
	code     int
}

func (w *workshop) finish(cmd *exec.Cmd) result {
	w.Helper()
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		w.Fatalf("%v: %v", cmd.Args, err)
	}
	return result{out.String(), errs.String(), cmd.ProcessState.ExitCode()}
}

func (w *workshop) run(args ...string) result {
	return w.finish(w.memroom(append([]string{"run"}, args...)...))
}

// folder is the newest run of the store.
func (w *workshop) folder() *store.Folder {
	w.Helper()
	s := &store.Store{Home: w.records()}
	ids, err := s.IDs()
	if err != nil || len(ids) == 0 {
		w.Fatalf("no run in the store: %v", err)
	}
	return s.Folder(ids[len(ids)-1])
}

// waitFolder waits until a run with a started command is there.
func (w *workshop) waitFolder() (*store.Folder, supervise.State) {
	w.Helper()
	var found *store.Folder
	var state supervise.State
	w.eventually("a command to start", func() bool {
		s := &store.Store{Home: w.records()}
		ids, _ := s.IDs()
		if len(ids) == 0 {
			return false
		}
		found = s.Folder(ids[len(ids)-1])
		state = w.state(found)
		return state.Child > 0 || state.Exit != nil
	})
	return found, state
}

func (w *workshop) state(f *store.Folder) (state supervise.State) {
	data, err := os.ReadFile(f.StateFile())
	if err == nil {
		_ = json.Unmarshal(data, &state)
	}
	return state
}

// patience is how long a test waits for other processes. How long they take is the machine's
// business, so there is no limit but half of what the test binary has left (go test -timeout).
func patience(tb testing.TB) time.Duration {
	if t, ok := tb.(*testing.T); ok {
		if end, set := t.Deadline(); set {
			return (time.Until(end) / 2).Round(time.Second)
		}
	}
	return 10 * time.Minute
}

// eventually waits for something that other processes do.
func (w *workshop) eventually(what string, is func() bool) {
	w.Helper()
	began, limit := time.Now(), patience(w.TB)
	for !is() {
		if time.Since(began) > limit {
			w.Fatalf("waited %v for %s", limit, what)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (w *workshop) verdict(f *store.Folder) event.Verdict {
	w.Helper()
	v, err := f.Verdict()
	if err != nil {
		w.Fatal(err)
	}
	return v
}

func alive(pid int) bool {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err == nil && !strings.Contains(string(data), ") Z ")
}

// waitsForReadings begins a Python program that needs the monitor to have looked at it, however
// slow the machine is: readings(n) waits until the record has n more.
const waitsForReadings = `
import glob, os, sys, time
def readings(n):
    def recorded():
        found = glob.glob(os.environ["MEMROOM_HOME"] + "/runs/*/samples.jsonl")
        return sum(open(path, "rb").read().count(b"\n") for path in found)
    enough = recorded() + n
    while recorded() < enough:
        time.sleep(0.05)
`

// script writes a Python program where every user can read it.
func (w *workshop) script(text string) []string {
	w.Helper()
	path := filepath.Join(w.home, "script.py")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		w.Fatal(err)
	}
	return []string{python(w), path}
}

// python is a plain interpreter that any user may run; the one of the test environment may lie in
// root's home.
func python(t testing.TB) string {
	t.Helper()
	if _, err := os.Stat("/usr/bin/python3"); err == nil {
		return "/usr/bin/python3"
	}
	return testenv.Python(t)
}
