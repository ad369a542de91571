package cli

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"memroom/fit/driver"
	"memroom/testenv"
)

// Without remedies it fails with a full card; with them it goes on.
const runsOutOnce = `
import os
if "MEMROOM_APPLY" not in os.environ:
    raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.64 GiB of which 1.10 GiB is free.")
`

// fittedFrom runs a command under `memroom run --fit` with this standard input.
func fittedFrom(t *testing.T, binary string, in *os.File, command ...string) (out, notes string,
	code int) {
	t.Helper()
	cmd := exec.Command(binary, append([]string{"run", "--fit", "--forgetful", "--"},
		command...)...)
	cmd.Env = append(os.Environ(), "MEMROOM_HOME="+t.TempDir(), "OMP_NUM_THREADS=1")
	var stdout, stderr strings.Builder
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, &stdout, &stderr
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()
}

// TestFitGivesEveryAttemptTheSameInput: a program that comes in over standard input is the same
// program in the second attempt.
func TestFitGivesEveryAttemptTheSameInput(t *testing.T) {
	python := testenv.Python(t)
	binary := testenv.Binary(t)
	program := runsOutOnce + "print('trained')\n"
	file := func(content string, from int64) *os.File {
		path := filepath.Join(t.TempDir(), "train.py")
		testenv.Write(t, path, []byte(content))
		f, err := os.Open(path)
		if err == nil {
			_, err = f.Seek(from, io.SeekStart)
		}
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	for name, in := range map[string]*os.File{
		"file":                 file(program, 0),
		"file from its middle": file("syntax error in what was read before\n"+program, 37),
		"pipe":                 pipeOf(t, program),
		"long pipe":            pipeOf(t, strings.Repeat("# a comment\n", 40_000)+program),
		"socket":               socketOf(t, program),
	} {
		out, notes, code := fittedFrom(t, binary, in, python, "-")
		in.Close()
		if code != 0 || out != "trained\n" {
			t.Errorf("%s: exit %d, printed %q\n%s", name, code, out, notes)
		}
	}
}

func pipeOf(t *testing.T, content string) *os.File {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	go func() { defer w.Close(); _, _ = io.WriteString(w, content) }()
	return r
}

func socketOf(t *testing.T, content string) *os.File {
	t.Helper()
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	ours := os.NewFile(uintptr(ends[1]), "socket")
	conn, err := net.FileConn(ours)
	ours.Close()
	if err != nil {
		t.Fatal(err)
	}
	go func() { defer conn.Close(); _, _ = io.WriteString(conn, content) }()
	return os.NewFile(uintptr(ends[0]), "socket")
}

// TestFitInputInAShell: here-documents, closed and empty inputs, and a loop whose list stays what
// it is: the command does not read it, so nobody may.
func TestFitInputInAShell(t *testing.T) {
	python := testenv.Python(t)
	binary := testenv.Binary(t)
	script := filepath.Join(t.TempDir(), "train.py")
	testenv.Write(t, script, []byte(runsOutOnce+"print('trained')\n"))
	run := fmt.Sprintf("%s run --fit --forgetful -- %s ", binary, python)
	for name, c := range map[string]struct{ line, want string }{
		"here-document": {run + "- <<'END'\n" + runsOutOnce + "print('trained')\nEND\n",
			"trained\n"},
		"closed":  {run + script + " <&-", "trained\n"},
		"nothing": {run + script + " </dev/null", "trained\n"},
		"loop": {"printf 'a\\nb\\nc\\n' | while read x; do echo $x; " + run + script + "; done",
			"a\ntrained\nb\ntrained\nc\ntrained\n"},
		"rest of a pipe": {"{ printf 'first\\n'; sleep 0.1; printf 'second\\n'; } | { " + binary +
			" run --fit --forgetful -- head -n 0; cat; }", "first\nsecond\n"},
	} {
		cmd := exec.Command("bash", "-c", c.line)
		cmd.Env = append(os.Environ(), "MEMROOM_HOME="+t.TempDir())
		var notes bytes.Buffer
		cmd.Stderr = &notes
		out, err := cmd.Output()
		if err != nil || string(out) != c.want {
			t.Errorf("%s: %v, printed %q, want %q\n%s", name, err, out, c.want, &notes)
		}
	}
}

// TestFitRefusesWhatItCannotGiveAgain: a pipe is kept up to a bound. Behind it the second attempt
// would read something else than the first, so there is none.
func TestFitRefusesWhatItCannotGiveAgain(t *testing.T) {
	python := testenv.Python(t)
	binary := testenv.Binary(t)
	const size = 257 << 20
	in, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		defer w.Close()
		block := make([]byte, 1<<20)
		for range size / len(block) {
			if _, err := w.Write(block); err != nil {
				return
			}
		}
	}()
	script := filepath.Join(t.TempDir(), "train.py")
	const reads = `
import sys
n = 0
while True:
    data = sys.stdin.buffer.read(1 << 20)
    if not data: break
    n += len(data)
print(n, flush=True)
`
	testenv.Write(t, script, []byte(reads+runsOutOnce))
	out, notes, code := fittedFrom(t, binary, in, python, script)
	if code != 1 || out != fmt.Sprintln(size) {
		t.Errorf("exit %d, printed %q, want one attempt that reads %d bytes", code, out, size)
	}
	if !strings.Contains(notes, "not launched again") || !strings.Contains(notes, "< FILE") {
		t.Errorf("the reason is not said:\n%s", notes)
	}
}

// TestFitAsksTheTerminalAgain: whoever answered once can answer again.
func TestFitAsksTheTerminalAgain(t *testing.T) {
	python := testenv.Python(t)
	binary := testenv.Binary(t)
	master, slave := openTerminal(t)
	if _, err := master.WriteString("one\ntwo\n"); err != nil {
		t.Fatal(err)
	}
	script := filepath.Join(t.TempDir(), "train.py")
	if err := os.WriteFile(script, []byte("print(input(), flush=True)\n"+runsOutOnce),
		0o600); err != nil {
		t.Fatal(err)
	}
	out, notes, code := fittedFrom(t, binary, slave, python, "-u", script)
	if code != 0 || out != "one\ntwo\n" {
		t.Errorf("exit %d, printed %q\n%s", code, out, notes)
	}
}

func openTerminal(t *testing.T) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		testenv.Needs(t, "a pseudo-terminal", err.Error())
	}
	t.Cleanup(func() { master.Close() })
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { slave.Close() })
	return master, slave
}

// TestFitClaimsNoSuccessWithoutTraining: the first attempt trains and runs out, the second ends
// with exit code 0 and trains nothing.
func TestFitClaimsNoSuccessWithoutTraining(t *testing.T) {
	python := testenv.Python(t, "torch")
	binary := testenv.Binary(t)
	script := filepath.Join(t.TempDir(), "train.py")
	const program = `
import os, sys
if "MEMROOM_APPLY" in os.environ: sys.exit(0)
import torch
model = torch.nn.Linear(4, 4); optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(3):
    model(torch.ones(2, 4)).sum().backward(); optimizer.step()
`
	testenv.Write(t, script, []byte(program+runsOutOnce))
	home := t.TempDir()
	_, notes, record, code := fitted(t, binary, home, "--fit", "--", python, script)
	if code == 0 || len(record.Attempts) != 2 || record.Attempts[0].Steps != 3 ||
		record.Attempts[1].Steps != 0 || record.Hollow == "" {
		t.Errorf("exit %d, record %+v\n%s", code, record, notes)
	}
	if !strings.Contains(strings.Join(strings.Fields(notes), " "), record.Hollow) ||
		strings.Contains(notes, "exact") {
		t.Errorf("it is told as a success:\n%s", notes)
	}
	if kept, _ := filepath.Glob(filepath.Join(driver.Memories(home), "*")); len(kept) > 0 {
		t.Errorf("remembered as what works: %q", kept)
	}
}
