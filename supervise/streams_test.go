//go:build linux && !race

package supervise_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"memroom/event"
	"memroom/testenv"
)

func TestStreamsStaySeparateAndUnchanged(t *testing.T) {
	w := newWorkshop(t, ourselves)
	every := w.script(waitsForReadings + `
os.write(1, bytes(range(256)) * 300)
os.write(2, bytes(reversed(range(256))) * 200)
os.write(1, b"no newline at the end")
readings(12)
`)
	got := w.run(append([]string{"--quiet", "--"}, every...)...)
	bytesUp := make([]byte, 256)
	for i := range bytesUp {
		bytesUp[i] = byte(i)
	}
	down := bytes.Clone(bytesUp)
	for i := range down {
		down[i] = byte(255 - i)
	}
	if want := strings.Repeat(string(bytesUp), 300) + "no newline at the end"; got.out != want {
		t.Errorf("stdout differs: %d bytes, want %d", len(got.out), len(want))
	}
	if want := strings.Repeat(string(down), 200); got.err != want {
		t.Errorf("stderr differs: %d bytes, want %d: %.200q", len(got.err), len(want), got.err)
	}
	recorded, err := os.ReadFile(w.folder().Output())
	if err != nil || string(recorded) != got.out {
		t.Errorf("the record of stdout differs: %d bytes, %v", len(recorded), err)
	}
	last := event.Sample{}
	for last = range w.folder().Samples() {
	}
	if int(last.Output) != len(got.out) || int(last.Errors) != len(got.err) {
		t.Errorf("the last reading has %d bytes of output and %d of errors", last.Output, last.Errors)
	}
}

func TestMergedStreamsKeepTheirOrder(t *testing.T) {
	w := newWorkshop(t, ourselves)
	cmd := w.memroom("run", "--quiet", "--", "sh", "-c",
		"for i in 1 2 3 4 5 6 7 8 9; do echo out$i; echo err$i >&2; done")
	both, err := cmd.CombinedOutput() // one pipe for both, as in > log 2>&1
	if err != nil {
		t.Fatal(err)
	}
	var want strings.Builder
	for i := 1; i <= 9; i++ {
		fmt.Fprintf(&want, "out%d\nerr%d\n", i, i)
	}
	if string(both) != want.String() {
		t.Errorf("got %q", both)
	}
}

func TestStdin(t *testing.T) {
	w := newWorkshop(t, ourselves)
	big := strings.Repeat("0123456789abcdef", 64<<10)
	t.Run("pipe", func(t *testing.T) {
		cmd := w.memroom("run", "--", "cat")
		cmd.Stdin = strings.NewReader(big)
		if got := w.finish(cmd); got.out != big {
			t.Errorf("%d bytes came back, want %d", len(got.out), len(big))
		}
	})
	t.Run("file", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "input")
		if err := os.WriteFile(path, []byte(big), 0o600); err != nil {
			t.Fatal(err)
		}
		file, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		cmd := w.memroom("run", "--", "sh", "-c", "head -c 10; wc -c < /dev/stdin")
		cmd.Stdin = file
		if got := w.finish(cmd); !strings.HasPrefix(got.out, big[:10]) {
			t.Errorf("got %q", got.out)
		}
	})
	// the writer must get a broken pipe, as without us
	t.Run("reader that stops", func(t *testing.T) {
		cmd := w.memroom("run", "--", "sh", "-c", "read line; exec <&-; sleep 2; echo $line")
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		broken := make(chan error, 1)
		go func() {
			for {
				if _, err := io.WriteString(in, "hello\n"); err != nil {
					broken <- err
					return
				}
			}
		}()
		got := w.finish(cmd)
		if err := <-broken; err == nil || got.out != "hello\n" {
			t.Errorf("writer: %v, out %q", err, got.out)
		}
	})
}

func TestExitCodes(t *testing.T) {
	w := newWorkshop(t, ourselves)
	dir := t.TempDir()
	plain := filepath.Join(dir, "plain")
	noInterpreter := filepath.Join(dir, "script")
	garbage := filepath.Join(dir, "garbage")
	noFirstLine := filepath.Join(dir, "noFirstLine")
	for path, content := range map[string]string{plain: "text",
		noInterpreter: "#!/no/such/interpreter\n", garbage: "\x00\x01\x02",
		noFirstLine: "exit $1\n"} {
		if err := os.WriteFile(path, []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(plain, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name    string
		command []string
		code    int
		says    string
	}{
		{"success", []string{"true"}, 0, ""},
		{"its own", []string{"sh", "-c", "exit 42"}, 42, ""},
		{"by signal", []string{"sh", "-c", "kill -SEGV $$"}, 128 + 11, ""},
		{"killed", []string{"sh", "-c", "kill -KILL $$"}, 128 + 9, ""},
		{"not found", []string{"no-such-command-anywhere"}, 127, "not found"},
		{"no such path", []string{"/no/such/path"}, 127, "not found"},
		{"not executable", []string{plain}, 126, "not executable"},
		{"a folder", []string{dir}, 126, "is a folder"},
		{"no interpreter", []string{noInterpreter}, 127, "interpreter"},
		{"not a program", []string{garbage}, 126, "exec format"},
		{"a script that names no interpreter", []string{noFirstLine, "7"}, 7, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := w.run(append([]string{"--quiet", "--"}, c.command...)...)
			if got.code != c.code || !strings.Contains(got.err, c.says) {
				t.Errorf("exit %d, want %d; said %q, want %q in it", got.code, c.code, got.err,
					c.says)
			}
			if c.says == "" && got.err != "" {
				t.Errorf("memroom spoke into the command's stderr: %q", got.err)
			}
		})
	}
}

func TestSignalsAreForwarded(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP,
		syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGQUIT,
		syscall.SIGABRT, syscall.SIGXCPU, syscall.Signal(40)} {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()
			heardSignals()
			w := newWorkshop(t, ourselves)
			cmd := w.memroom(append([]string{"run", "--"}, w.script(fmt.Sprintf(`
import signal, sys, time
signal.signal(%d, lambda n, f: (print("got", n, flush=True), sys.exit(7)))
print("ready", flush=True)
time.sleep(60)
`, sig))...)...)
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			line := make([]byte, 6)
			if _, err := io.ReadFull(out, line); err != nil || string(line) != "ready\n" {
				t.Fatalf("%q %v", line, err)
			}
			if err := cmd.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			rest, _ := io.ReadAll(out)
			_ = cmd.Wait()
			if want := fmt.Sprintf("got %d\n", sig); string(rest) != want ||
				cmd.ProcessState.ExitCode() != 7 {
				t.Errorf("%q, exit %d", rest, cmd.ProcessState.ExitCode())
			}
		})
	}
}

func TestNohupIsInherited(t *testing.T) {
	w := newWorkshop(t, ourselves)
	cmd := exec.Command("sh", "-c", `trap '' HUP; exec "$0" run -- sh -c 'kill -HUP $$; echo survived'`, binary)
	cmd.Env = w.memroom().Env
	if got := w.finish(cmd); got.out != "survived\n" {
		t.Errorf("%+v", got)
	}
}

// TestArgumentsAreBytes: names and values that are no UTF-8 reach the command as they are, from a
// folder that is none.
func TestArgumentsAreBytes(t *testing.T) {
	w := newWorkshop(t, ourselves)
	odd := "a\xff\xfe\x01b"
	dir := filepath.Join(t.TempDir(), "caf\xe9")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := w.memroom("run", "--quiet", "--verdict", "verdict.json", "--", "sh", "-c",
		`printf '%s|%s|' "$1" "$ODD"; pwd`, "sh", odd)
	cmd.Env, cmd.Dir = append(cmd.Env, "ODD="+odd), dir
	if got := w.finish(cmd); got.out != odd+"|"+odd+"|"+dir+"\n" || got.code != 0 || got.err != "" {
		t.Errorf("%+v", got)
	}
	if _, err := os.Stat(filepath.Join(dir, "verdict.json")); err != nil {
		t.Error(err)
	}
}

// TestSlowReader: nobody reads our stdout while the command writes more than any pipe holds. It
// must end all the same, and nothing may be lost.
func TestSlowReader(t *testing.T) {
	w := newWorkshop(t, ourselves)
	marker := filepath.Join(w.home, "ended")
	cmd := w.memroom("run", "--", "sh", "-c",
		"head -c 8000000 /dev/zero | tr '\\0' x; touch "+marker)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.eventually("the command to end", func() bool { _, err := os.Stat(marker); return err == nil })
	all, err := io.ReadAll(out)
	if err != nil || len(all) != 8000000 {
		t.Errorf("%d bytes, %v", len(all), err)
	}
	_ = cmd.Wait()
}

// TestClosedReader: when our reader has gone the command gets the broken pipe it would have got
// without us.
func TestClosedReader(t *testing.T) {
	w := newWorkshop(t, ourselves)
	cmd := exec.Command("bash", "-c", `"$0" run -- yes | head -n 1; exit ${PIPESTATUS[0]}`, binary)
	cmd.Env = w.memroom().Env
	if got := w.finish(cmd); got.out != "y\n" || got.code != 128+int(syscall.SIGPIPE) {
		t.Errorf("%+v", got)
	}
}

func TestMuchOutput(t *testing.T) {
	size := int64(64 << 20)
	if os.Getenv("MEMROOM_FULL") != "" {
		size = 1 << 30
	}
	w := newWorkshop(t, ourselves)
	cmd := w.memroom("run", "--", "sh", "-c",
		fmt.Sprintf("yes 0123456789abcdefghijklmnopqrstuvwxyz | head -c %d", size))
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	sum := sha256.New()
	n, err := io.Copy(sum, out)
	if err != nil || n != size {
		t.Errorf("%d bytes, %v; want %d", n, err, size)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	want := sha256.New()
	line := []byte("0123456789abcdefghijklmnopqrstuvwxyz\n")
	for left := size; left > 0; {
		k := min(int64(len(line)), left)
		want.Write(line[:k])
		left -= k
	}
	if !bytes.Equal(sum.Sum(nil), want.Sum(nil)) {
		t.Error("the bytes differ")
	}
}

func TestCommandThatClosesItsStreams(t *testing.T) {
	w := newWorkshop(t, ourselves)
	begin := time.Now()
	got := w.run("--", "sh", "-c", "echo before; exec >&- 2>&- <&-; sleep 0.3; exit 5")
	if got.out != "before\n" || got.code != 5 {
		t.Errorf("%+v after %v", got, time.Since(begin))
	}
}

// newWorkshopOn puts a workshop's home on a small file system with these options.
func newWorkshopOn(t *testing.T, options string) *workshop {
	t.Helper()
	if os.Getuid() != 0 {
		testenv.Needs(t, "root", "to mount a small file system")
	}
	w := newWorkshop(t, ourselves)
	if err := syscall.Mount("tmpfs", w.home, "tmpfs", 0, options); err != nil {
		testenv.Needs(t, "mount", err.Error())
	}
	t.Cleanup(func() { _ = syscall.Unmount(w.home, syscall.MNT_DETACH) })
	return w
}

// TestFullDisk: the store is on a file system without room. The training goes on, its output is
// shown, and the trouble is said once.
func TestFullDisk(t *testing.T) {
	w := newWorkshopOn(t, "size=4m")
	got := w.run("--no-probe", "--", "sh", "-c", "head -c 9000000 /dev/zero | tr '\\0' x; exit 9")
	if len(got.out) != 9000000 || got.code != 9 {
		t.Errorf("%d bytes of output, exit %d", len(got.out), got.code)
	}
	if n := strings.Count(got.err, "no longer recorded"); n != 1 {
		t.Errorf("said %d times: %q", n, got.err)
	}
	if exit, err := w.folder().Exit(); err != nil || exit.Code != 9 {
		t.Errorf("output left no room for the exit code: %+v, %v", exit, err)
	}
}

// TestFullDiskAndAPausingReader: output cannot be recorded, and our reader pauses while the command
// ends. The end of the output, where the traceback is, must arrive whole when the reader goes on,
// with the exit code.
func TestFullDiskAndAPausingReader(t *testing.T) {
	w := newWorkshopOn(t, "size=1m")
	marker := markerFor(t)
	// It writes until nothing takes any more: disk, queue, socket and pipes are full when it ends.
	program := filepath.Join(filepath.Dir(marker), "fill.py")
	if err := os.WriteFile(program, []byte(`
import os, sys, time
os.set_blocking(1, False)
written, full = 0, 0
while full < 50:
    try:
        written += os.write(1, b"%07d\n" % (written // 8))
        full = 0
    except BlockingIOError:
        full += 1
        time.sleep(0.02)
open(sys.argv[1] + ".new", "w").write(str(written))
os.rename(sys.argv[1] + ".new", sys.argv[1])
sys.exit(9)
`), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := w.memroom("run", "--no-probe", "--", python(t), program, marker)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.eventually("the command to end", func() bool { _, err := os.Stat(marker); return err == nil })
	time.Sleep(4 * time.Second) // the pause is what is tested
	all, err := io.ReadAll(out)
	told, _ := os.ReadFile(marker)
	written, _ := strconv.Atoi(string(told))
	if last := fmt.Sprintf("%07d\n", written/8-1); err != nil || len(all) != written ||
		!strings.HasSuffix(string(all), last) {
		t.Errorf("%d bytes of %d, %v; the end is %q", len(all), written, err,
			all[max(0, len(all)-16):])
	}
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 9 {
		t.Errorf("exit %d", code)
	}
}

func TestReadOnlyHome(t *testing.T) {
	w := newWorkshop(t, nobody)
	if os.Getuid() != 0 {
		testenv.Needs(t, "root", "to become nobody")
	}
	if err := os.Chown(w.home, 0, 0); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(w.home, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := w.memroom("run", "--", "echo", "goes on")
	cmd.Dir = "/"
	if got := w.finish(cmd); got.out != "goes on\n" || got.code != 0 ||
		strings.Count(got.err, "is kept in") != 1 {
		t.Errorf("%+v", got)
	}
}
