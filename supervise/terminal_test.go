//go:build linux && !race

package supervise_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// desk is a terminal with somebody at it: what the user sees collects in seen.
type desk struct {
	testing.TB
	master *os.File
	slave  *os.File
	mu     sync.Mutex
	shown  bytes.Buffer
}

// heardSignals makes the shells on desks start as in a window. Tests that run in the background, or
// under nohup, were started with these signals ignored; children would inherit that, and a shell
// can never take it back. Signals that this process catches are at their default in its children.
var heardSignals = sync.OnceFunc(func() {
	for _, sig := range []os.Signal{unix.SIGINT, unix.SIGHUP, unix.SIGQUIT} {
		if signal.Ignored(sig) {
			signal.Notify(make(chan os.Signal, 1), sig)
		}
	}
})

func newDesk(t testing.TB) *desk {
	t.Helper()
	heardSignals()
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	d := &desk{TB: t, master: os.NewFile(uintptr(fd), "ptmx"), slave: slave}
	d.resize(33, 101)
	go func() {
		buf := make([]byte, 4096)
		for {
			n, err := d.master.Read(buf)
			d.mu.Lock()
			d.shown.Write(buf[:n])
			d.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() { d.slave.Close(); d.master.Close() })
	return d
}

func (d *desk) resize(rows, columns uint16) {
	_ = unix.IoctlSetWinsize(int(d.slave.Fd()), unix.TIOCSWINSZ,
		&unix.Winsize{Row: rows, Col: columns})
}

func (d *desk) seen() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.shown.String()
}

func (d *desk) waitFor(text string) {
	d.Helper()
	began, limit := time.Now(), patience(d.TB)
	for !strings.Contains(d.seen(), text) {
		if time.Since(began) > limit {
			d.Fatalf("waited %v for %q; seen: %q", limit, text, d.seen())
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// raw reports whether every key goes to the program at the desk as it is.
func (d *desk) raw() bool {
	mode, err := unix.IoctlGetTermios(int(d.slave.Fd()), unix.TCGETS)
	return err == nil && mode.Lflag&unix.ICANON == 0
}

func (d *desk) typeKeys(keys string) {
	d.Helper()
	if _, err := d.master.WriteString(keys); err != nil {
		d.Fatal(err)
	}
}

// sit starts a command at the desk, as the foreground job of a session of its own.
func (d *desk) sit(cmd *exec.Cmd) {
	d.Helper()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = d.slave, d.slave, d.slave
	cmd.SysProcAttr.Setsid, cmd.SysProcAttr.Setctty = true, true
	if err := cmd.Start(); err != nil {
		d.Fatal(err)
	}
}

func TestTerminalLooksLikeOne(t *testing.T) {
	w, d := newWorkshop(t, ourselves), newDesk(t)
	cmd := w.memroom(append([]string{"run", "--quiet", "--"}, w.script(`
import os, sys, signal
print("tty", sys.stdin.isatty(), sys.stdout.isatty(), sys.stderr.isatty(), os.get_terminal_size(), flush=True)
signal.signal(signal.SIGWINCH, lambda *a: print("resized", os.get_terminal_size(), flush=True))
print("\033[31mred\033[0m", flush=True)
print("read", repr(input()), flush=True)
print("read", repr(input()), flush=True)
`)...)...)
	d.sit(cmd)
	d.waitFor("tty True True True os.terminal_size(columns=101, lines=33)")
	d.waitFor("\x1b[31mred\x1b[0m")
	d.typeKeys("h\x7fhello\r") // the command's terminal edits lines: backspace works
	d.waitFor("read 'hello'")
	d.resize(40, 120)
	_ = cmd.Process.Signal(unix.SIGWINCH)
	d.waitFor("resized os.terminal_size(columns=120, lines=40)")
	d.typeKeys("bye\r")
	d.waitFor("read 'bye'")
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v; seen %q", err, d.seen())
	}
}

func TestCtrlC(t *testing.T) {
	w, d := newWorkshop(t, ourselves), newDesk(t)
	cmd := w.memroom(append([]string{"run", "--quiet", "--"}, w.script(`
import time
try:
    print("ready", flush=True); time.sleep(60)
except KeyboardInterrupt:
    print("interrupted", flush=True); raise SystemExit(3)
`)...)...)
	d.sit(cmd)
	d.waitFor("ready")
	d.typeKeys("\x03")
	d.waitFor("interrupted")
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 3 {
		t.Errorf("exit %d", code)
	}
}

// TestCtrlZ: the job stops, its parent (a shell) sees it stopped and has its terminal as it was;
// continued, it goes on.
func TestCtrlZ(t *testing.T) {
	w, d := newWorkshop(t, ourselves), newDesk(t)
	// bash with job control is the user's shell here. It prints when the job has stopped and brings
	// it back with fg.
	script := fmt.Sprintf("set -m; %s run --quiet -- %s; echo stopped=$?; stty -a | grep -o -e "+
		"'-\\?icanon'; fg >/dev/null; echo ended=$?",
		binary, strings.Join(w.script(`
import os, sys, time
print("ready", flush=True)
while not os.path.exists(sys.argv[0] + ".release"):
    time.sleep(0.05)
print("finished", flush=True)
raise SystemExit(6)
`), " "))
	cmd := exec.Command("bash", "-i", "-c", script)
	cmd.Env, cmd.SysProcAttr = append(w.memroom().Env, "PS1="), &syscall.SysProcAttr{}
	d.sit(cmd)
	d.waitFor("ready")
	d.typeKeys("\x1a")
	d.waitFor("stopped=")
	d.waitFor("icanon")
	w.file("script.py.release", "")
	d.waitFor("finished")
	d.waitFor("ended=6")
	if strings.Contains(d.seen(), "-icanon") {
		t.Errorf("the shell got the terminal back raw: %q", d.seen())
	}
	_ = cmd.Wait()
}

// TestCtrlCStopsALoop: a shell, interactive or running a script, ends its loop when the user
// interrupts a command in it. It knows by how the command ended.
func TestCtrlCStopsALoop(t *testing.T) {
	for name, shell := range map[string][]string{"interactive": {"bash", "--norc", "-i", "-c"},
		"script": {"bash", "-c"}} {
		t.Run(name, func(t *testing.T) {
			w, d := newWorkshop(t, ourselves), newDesk(t)
			loop := fmt.Sprintf("for i in 1 2 3; do %s run --quiet -- sh -c 'echo turn $$; exec sleep 60'; "+
				"done; echo after the loop", binary)
			cmd := exec.Command(shell[0], append(shell[1:], loop)...)
			cmd.Env, cmd.SysProcAttr = append(w.memroom().Env, "PS1="), &syscall.SysProcAttr{}
			d.sit(cmd)
			d.waitFor("turn ")
			w.waitFolder()
			d.typeKeys("\x03")
			_ = cmd.Wait()
			if turns := strings.Count(d.seen(), "turn "); turns != 1 ||
				strings.Contains(d.seen(), "after the loop") {
				t.Errorf("it went on: %q", d.seen())
			}
		})
	}
}

// TestBackground: a job that was started in the background and is brought to the foreground gets
// keys, in a terminal that is not the one of the shell's line editor, and its lines end as they
// would without us.
func TestBackground(t *testing.T) {
	w, d := newWorkshop(t, ourselves), newDesk(t)
	up := filepath.Join(w.home, "up")
	script := fmt.Sprintf("set -m; %s run --quiet -- sh -c 'echo ready; touch %s; read line; "+
		"echo got $line; exit 4' & until test -e %[2]s; do sleep 0.05; done; fg >/dev/null; "+
		"echo ended=$?", binary, up)
	cmd := exec.Command("bash", "--norc", "-i", "-c", script)
	cmd.Env, cmd.SysProcAttr = append(w.memroom().Env, "PS1="), &syscall.SysProcAttr{}
	d.sit(cmd)
	d.waitFor("ready\r\n")
	w.eventually("the terminal to be handed over", d.raw)
	d.typeKeys("hello\r")
	d.waitFor("got hello\r\n")
	d.waitFor("ended=4")
	_ = cmd.Wait()
}

// TestHangup: when the window is closed the command's whole group gets the signal, as without us.
func TestHangup(t *testing.T) {
	w, d := newWorkshop(t, ourselves), newDesk(t)
	marker := filepath.Join(w.home, "told")
	cmd := w.memroom("run", "--", "sh", "-c",
		"(trap 'echo yes > "+marker+"; exit' HUP; echo ready; while :; do sleep 0.1; done) & wait")
	d.sit(cmd)
	d.waitFor("ready")
	_ = cmd.Process.Signal(unix.SIGHUP) // what the shell sends when its window goes
	w.eventually("the hangup to arrive", func() bool {
		data,
			_ := os.ReadFile(marker)
		return string(data) == "yes\n"
	})
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 128+1 {
		t.Errorf("exit %d", code)
	}
}

func TestOneStreamOnATerminal(t *testing.T) {
	w, d := newWorkshop(t, ourselves), newDesk(t)
	cmd := w.memroom("run", "--quiet", "--", "sh", "-c",
		"test -t 2 && echo bar >&2; test -t 1 || echo data")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr, cmd.Stdin = &out, d.slave, nil
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	d.waitFor("bar")
	if out.String() != "data\n" {
		t.Errorf("got %q", out.String())
	}
}

func TestSummaryOnATerminal(t *testing.T) {
	w, d := newWorkshop(t, ourselves), newDesk(t)
	cmd := w.memroom("run", "--", "sleep", "0.4")
	d.sit(cmd)
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	d.waitFor("memroom: the command finished")
	d.waitFor("  memory  host: peak")
	if n := strings.Count(d.seen(), "memroom: "); n > 10 {
		t.Errorf("the summary has %d lines", n)
	}
}
