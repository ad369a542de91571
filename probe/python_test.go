package probe

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"memroom/testenv"
)

// interpreters returns every Python on PATH from 3.8 to 3.14, and the one of the test environment:
// the probe must live in all.
func interpreters(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{"default": testenv.Python(t)}
	for _, minor := range []string{"8", "9", "10", "11", "12", "13", "14"} {
		for _, path := range append(versionManagers(minor), "python3."+minor) {
			// past a shim
			if out, err := exec.Command(path, "-c",
				"import sys; print(sys.executable)").Output(); err == nil {
				found["3."+minor] = strings.TrimSpace(string(out))
			}
		}
	}
	return found
}

// versionManagers returns interpreters of one minor version that pyenv has but may not have on
// PATH.
func versionManagers(minor string) []string {
	home, err := os.UserHomeDir()
	if err != nil {
		return nil
	}
	found, _ := filepath.Glob(filepath.Join(home, ".pyenv", "versions", "3."+minor+".*", "bin",
		"python3"))
	return found
}

// installed returns a fresh copy of the probe.
func installed(t *testing.T) string {
	t.Helper()
	dir, err := Install(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// job is a Python program under the probe, with a monitor that collects its messages.
type job struct {
	out, err string
	failed   error
	heard    []Heard
}

// runJob runs python with args under the probe until it ends and the monitor has heard everything.
func runJob(t *testing.T, python string, setup Setup, env []string, args ...string) job {
	t.Helper()
	if setup.Dir == "" {
		setup.Dir = installed(t)
	}
	if setup.Socket == "" {
		setup.Socket = socketPath(t)
	}
	l, err := Listen(setup.Socket)
	if err != nil {
		t.Fatal(err)
	}
	collected, accepted := make(chan []Heard), make(chan struct{})
	go func() {
		var all []Heard
		for h := range l.Messages() {
			if h.Conn.PID == os.Getpid() { // ours: see drain
				close(accepted)
				continue
			}
			all = append(all, h)
		}
		collected <- all
	}()
	cmd := exec.Command(python, args...)
	cmd.Env = setup.Environ(append(append(os.Environ(), "OMP_NUM_THREADS=1",
		"TF_CPP_MIN_LOG_LEVEL=3"), env...))
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	failed := cmd.Run()
	drain(t, l, setup.Socket, accepted)
	l.Close()
	return job{out.String(), errs.String(), failed, <-collected}
}

// drain waits until everything has been read that processes sent that have ended. The listener
// takes connections in their order, so that one of ours comes after all of theirs.
func drain(t *testing.T, l *Listener, socket string, accepted <-chan struct{}) {
	t.Helper()
	last, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	last.Close()
	<-accepted
	left := func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		for c := range l.conns {
			if c.PID != os.Getpid() && syscall.Kill(c.PID, 0) == syscall.ESRCH {
				return true
			}
		}
		return false
	}
	for left() {
		time.Sleep(time.Millisecond)
	}
}

// socketPath is short enough for a unix socket wherever the test's own folder lies.
func socketPath(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "mr")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return filepath.Join(dir, "s")
}

// messages returns what was heard of one type, and fails on anything the probe should not have
// said.
func messages[M Message](t *testing.T, j job) []M {
	t.Helper()
	var found []M
	for _, h := range j.heard {
		if h.Err != nil && !errors.Is(h.Err, io.EOF) {
			t.Errorf("unreadable: %v", h.Err)
		}
		if f, ok := h.Message.(*Fault); ok {
			t.Errorf("the probe broke: %+v", *f)
		}
		if m, ok := h.Message.(M); ok {
			found = append(found, m)
		}
	}
	return found
}

// TestPythonUnits runs the Python tests that need no framework, of the probe and of the rooms it
// installs.
func TestPythonUnits(t *testing.T) {
	root := testenv.Root(t)
	for name, python := range interpreters(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const discover = `import sys, unittest
sys.path.insert(0, sys.argv[1])
suite = unittest.TestSuite(unittest.TestLoader().discover(d) for d in sys.argv[2:])
result = unittest.TextTestRunner().run(suite)
sys.exit(not (result.wasSuccessful() and result.testsRun))`
			args := []string{"-B", "-W", "error", "-c", discover, filepath.Join(root, "probe", "py")}
			for _, room := range []string{"probe", "lint", "plan"} {
				args = append(args, filepath.Join(root, room, "pytests"))
			}
			cmd := exec.Command(python, args...)
			if name != "default" { // every interpreter would read the same files
				cmd.Env = append(os.Environ(), "MEMROOM_STRUCTURE=0")
			}
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
		})
	}
}

func TestHello(t *testing.T) {
	for name, python := range interpreters(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			script := filepath.Join(t.TempDir(), "hi.py")
			if err := os.WriteFile(script, []byte("import sys; print('hi', len(sys.argv))"),
				0o644); err != nil {
				t.Fatal(err)
			}
			j := runJob(t, python, Setup{Run: "r1"}, []string{"RANK=3", "LOCAL_RANK=1",
				"WORLD_SIZE=4"}, "-X", "dev", "-W", "error", script, "--password", "secret")
			if j.failed != nil || j.out != "hi 3\n" || j.err != "" {
				t.Fatalf("out %q, err %q, %v", j.out, j.err, j.failed)
			}
			hello := messages[*Hello](t, j)
			if len(hello) != 1 || hello[0].Program != script || *hello[0].Rank != 3 ||
				*hello[0].LocalRank != 1 || *hello[0].World != 4 || hello[0].Run != "r1" {
				t.Fatalf("hello: %+v", hello)
			}
			if hello[0].PID != j.heard[0].Conn.PID {
				t.Errorf("it says pid %d, the kernel %d", hello[0].PID, j.heard[0].Conn.PID)
			}
			if exits := messages[*Exit](t, j); len(exits) != 1 {
				t.Errorf("exit messages: %+v", exits)
			}
		})
	}
}

// TestStepsAside compares what a program can see of sitecustomize with and without the probe.
func TestStepsAside(t *testing.T) {
	const look = `import sys
s = sys.modules.get("sitecustomize")
print(s and (s.__name__, s.__file__, s.__spec__.origin, getattr(s, "mark", None)), [p for p in sys.path if "probe-" in p], "usercustomize" in sys.modules)
try:
    import sitecustomize
    print(sitecustomize is s)
except Exception as e: print(repr(e), getattr(e, "name", None))`
	theirs := t.TempDir()
	for name, body := range map[string]string{"works": "mark = 'theirs'\n",
		"raises": "raise ValueError('mine')\n", "": ""} {
		for version, python := range interpreters(t) {
			t.Run(name+version, func(t *testing.T) {
				t.Parallel()
				dir := filepath.Join(theirs, name+version)
				os.MkdirAll(dir, 0o755)
				if body != "" {
					if err := os.WriteFile(filepath.Join(dir, "sitecustomize.py"), []byte(body),
						0o644); err != nil {
						t.Fatal(err)
					}
				}
				plain := exec.Command(python, "-c", look)
				plain.Env = append(os.Environ(), "PYTHONPATH="+dir)
				want, err := plain.CombinedOutput()
				if err != nil {
					t.Fatal(err)
				}
				j := runJob(t, python, Setup{}, []string{"PYTHONPATH=" + dir}, "-c", look)
				if j.failed != nil || j.out+j.err != string(want) && j.err+j.out != string(want) {
					t.Errorf("with the probe:\n%s%s\nwithout:\n%s", j.err, j.out, want)
				}
				if len(messages[*Hello](t, j)) != 1 {
					t.Error("the probe was not there at all")
				}
			})
		}
	}
}

// oldInterpreters returns Pythons that the probe does not live in but must not disturb.
func oldInterpreters(t *testing.T) map[string]string {
	t.Helper()
	home, err := os.UserHomeDir()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, version := range []string{"2.7", "3.5", "3.6", "3.7"} {
		managed, _ := filepath.Glob(filepath.Join(home, ".pyenv", "versions", version+".*", "bin",
			"python"))
		for _, path := range append(managed, "python"+version) {
			if exec.Command(path, "-c", "pass").Run() == nil {
				found[version] = path
			}
		}
	}
	return found
}

// TestOldPythonIsLeftAlone: a Python 2.7 under memroom runs the user's own sitecustomize, if there
// is one, and prints nothing of ours. Programs of that age are started by training scripts too.
func TestOldPythonIsLeftAlone(t *testing.T) {
	const look = `import sys
s = sys.modules.get("sitecustomize")
sys.stdout.write("%s %s" % (getattr(s, "mark", None), [p for p in sys.path if "probe-" in p]))`
	old := oldInterpreters(t)
	if len(old) == 0 {
		testenv.Needs(t, "Python 2.7, 3.5, 3.6 or 3.7", "none is installed")
	}
	for version, python := range old {
		for name, body := range map[string]string{"works": "mark = 'theirs'\n",
			"raises": "raise ValueError('mine')\n", "none": ""} {
			t.Run(version+name, func(t *testing.T) {
				dir := t.TempDir()
				if body != "" {
					if err := os.WriteFile(filepath.Join(dir, "sitecustomize.py"), []byte(body),
						0o644); err != nil {
						t.Fatal(err)
					}
				}
				plain := exec.Command(python, "-c", look)
				plain.Env = append(os.Environ(), "PYTHONPATH="+dir)
				want, wantErr := plain.CombinedOutput()
				j := runJob(t, python, Setup{}, []string{"PYTHONPATH=" + dir}, "-c", look)
				if (j.failed == nil) != (wantErr == nil) || j.out != lastLine(want) ||
					strings.Contains(j.err, "probe-") && name != "raises" ||
					strings.Contains(j.err, "Error") != strings.Contains(string(want), "Error") {
					t.Errorf("with the probe:\n%s%s\nwithout:\n%s", j.err, j.out, want)
				}
			})
		}
	}
}

// TestFailingImportsLookTheSame: the traceback of a module that we wait for, and that fails, has no
// frame of ours.
func TestFailingImportsLookTheSame(t *testing.T) {
	python := testenv.Python(t)
	for _, body := range []string{"import nothing_of_this_name", "raise ImportError('x')", "1 / 0",
		"raise SystemExit(3)", "def f(): raise OSError('no library')\nf()", "syntax error"} {
		dir := t.TempDir()
		if err := os.MkdirAll(filepath.Join(dir, "torch"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "torch", "__init__.py"), []byte(body+"\n"),
			0o644); err != nil {
			t.Fatal(err)
		}
		plain := exec.Command(python, "-c", "import torch")
		plain.Env = append(os.Environ(), "PYTHONPATH="+dir)
		want, _ := plain.CombinedOutput()
		j := runJob(t, python, Setup{}, []string{"PYTHONPATH=" + dir}, "-c", "import torch")
		if j.err != string(want) {
			t.Errorf("%s: with the probe:\n%s\nwithout:\n%s", body, j.err, want)
		}
	}
}

func lastLine(text []byte) string {
	lines := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
	return lines[len(lines)-1]
}

func TestOff(t *testing.T) {
	j := runJob(t, testenv.Python(t), Setup{}, []string{"MEMROOM_OFF=1"}, "-c",
		"import sys; print('_memroom_probe.imports' in sys.modules)")
	if j.out != "False\n" || len(j.heard) != 0 {
		t.Errorf("out %q, heard %v", j.out, j.heard)
	}
}

// TestMonitorGone: no socket, a dead one, one that nobody reads. The program must not notice.
func TestMonitorGone(t *testing.T) {
	python, dir := testenv.Python(t), installed(t)
	const chatty = `import _memroom_probe.link as l
for i in range(20000): l.send("said", {"kind": "note", "text": "x" * 200})
print("done", len(l.state.pending) <= l.MAX_PENDING)`
	run := func(t *testing.T, socket string) {
		cmd := exec.Command(python, "-c", chatty)
		cmd.Env = Setup{Dir: dir, Socket: socket}.Environ(os.Environ())
		start := time.Now()
		out, err := cmd.CombinedOutput()
		if err != nil || string(out) != "done True\n" {
			t.Errorf("%v: %s", err, out)
		}
		t.Logf("took %v", time.Since(start))
	}
	t.Run("none", func(t *testing.T) { run(t, filepath.Join(t.TempDir(), "nobody")) })
	t.Run("path too long", func(t *testing.T) { run(t, "/tmp/"+strings.Repeat("x", 200)) })
	t.Run("unread", func(t *testing.T) {
		l, err := Listen(socketPath(t))
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close() // nobody takes its messages, so it stops reading
		run(t, l.socket.Addr().String())
	})
}

// TestFork: a forked child does not speak over its parent's connection, and gets its own when it
// has something to say.
func TestFork(t *testing.T) {
	const fork = `import os, sys
from _memroom_probe import link
pid = os.fork()
link.send("said", {"kind": "note", "text": str(os.getpid())})
if pid: os.waitpid(pid, 0)
else: sys.exit(0)`
	j := runJob(t, testenv.Python(t), Setup{}, nil, "-c", fork)
	if j.failed != nil || j.err != "" {
		t.Fatal(j.failed, j.err)
	}
	if n := len(messages[*Hello](t, j)); n != 2 {
		t.Fatalf("%d processes said hello, want 2", n)
	}
	for _, h := range j.heard {
		if said, ok := h.Message.(*Said); ok && said.Text != strconv.Itoa(h.Conn.PID) {
			t.Errorf("process %s spoke over the connection of %d", said.Text, h.Conn.PID)
		}
	}
}

// TestForeignDescriptor: a program that closes our descriptor and gets its number for a file of its
// own keeps it clean.
func TestForeignDescriptor(t *testing.T) {
	const closer = `import os, sys
from _memroom_probe import link
fd = link.state.sock.fileno()
os.close(fd)
f = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.dup2(f, fd)
link.send("said", {"kind": "note", "text": "hello"})
link.commands()
os.write(fd, b"theirs")
print(open(sys.argv[1]).read())`
	j := runJob(t, testenv.Python(t), Setup{}, nil, "-c", closer,
		filepath.Join(t.TempDir(), "file"))
	if j.failed != nil || j.out != "theirs\n" {
		t.Errorf("out %q, err %q, %v", j.out, j.err, j.failed)
	}
}

func TestUncaughtExceptionIsDescribed(t *testing.T) {
	const die = "def eat():\n    raise MemoryError('no more')\neat()\n"
	script := filepath.Join(t.TempDir(), "die.py")
	if err := os.WriteFile(script, []byte(die), 0o644); err != nil {
		t.Fatal(err)
	}
	j := runJob(t, testenv.Python(t), Setup{}, nil, script)
	died := messages[*Died](t, j)
	if j.failed == nil || len(died) != 1 || died[0].Where != "host" ||
		died[0].Type != "MemoryError" {
		t.Fatalf("died: %+v, %v", died, j.failed)
	}
	if f := died[0].Frames; len(f) != 2 || f[0].Line != 2 || f[0].Name != "eat" ||
		f[0].File != script {
		t.Errorf("frames: %+v", died[0].Frames)
	}
	if !strings.Contains(j.err, "MemoryError: no more") || strings.Contains(j.err, "memroom") {
		t.Errorf("the traceback the user sees: %s", j.err)
	}
}

// TestMonitorComesBack: a second monitor at the same path hears hello and the framework anew, and
// its commands are obeyed.
func TestMonitorComesBack(t *testing.T) {
	const patient = `import time
from _memroom_probe import link, process
from _memroom_probe.watch import steps
loop = steps.Loop()
loop.begin("torch", "0.0")
loop.close(None, ())
for i in range(600):
    time.sleep(0.01)
    loop.close(None, ())
`
	socket, dir := socketPath(t), installed(t)
	first, err := Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(testenv.Python(t), "-c", patient)
	cmd.Env = Setup{Dir: dir, Socket: socket}.Environ(os.Environ())
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	heardHello(t, first)
	first.Close()
	second, err := Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	conn := heardHello(t, second)
	if err := conn.Do(Command{ID: 5, Do: DoCollect}); err != nil {
		t.Fatal(err)
	}
	framework := false
	for h := range second.Messages() {
		switch m := h.Message.(type) {
		case *Framework:
			framework = m.Name == "torch"
		case *Done:
			if m.ID != 5 || !m.OK || !framework {
				t.Errorf("answer %+v, framework repeated: %v", *m, framework)
			}
			return
		}
	}
}

func heardHello(t *testing.T, l *Listener) *Conn {
	t.Helper()
	for h := range l.Messages() {
		if _, ok := h.Message.(*Hello); ok {
			return h.Conn
		}
	}
	t.Fatal("nobody said hello")
	return nil
}
