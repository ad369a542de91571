package cli

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"memroom/event"
	"memroom/testenv"
	"memroom/trial/relay"
)

// relayOutput runs a command with --relay and takes its output apart.
func relayOutput(t *testing.T, dir string, args ...string) (text string, p relay.Parser, code int) {
	t.Helper()
	cmd := exec.Command(testenv.Binary(t), append([]string{"run", "--relay", "t-1"}, args...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "MEMROOM_HOME="+filepath.Join(dir, "home"))
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	_ = cmd.Run()
	p.ID = "t-1"
	var plain bytes.Buffer
	for _, h := range p.Feed(out.Bytes()) {
		plain.Write(h.Output)
	}
	if p.End == nil {
		t.Fatalf("no end in %q; %s", out.String(), errs.String())
	}
	return plain.String(), p, cmd.ProcessState.ExitCode()
}

func TestRelayTellsHowACommandEnded(t *testing.T) {
	dir := t.TempDir()
	text, p, code := relayOutput(t, dir, "--", "sh", "-c", "printf a; echo b >&2; printf c; exit 3")
	if text != "ab\nc" || code != 3 || p.End.ExitCode != 3 || p.End.OOM || p.Begun == nil {
		t.Errorf("output %q, exit %d, end %+v", text, code, p.End)
	}
	// tail keeps a line as long as it gets; no interpreter is needed.
	_, p, code = relayOutput(t, dir, "--host-mem", "64MiB", "--", "sh", "-c",
		"head -c 200M /dev/zero | tail")
	if !p.End.OOM || p.End.Where == event.WhereGPU || p.End.PeakHost < 16*event.MiB {
		t.Errorf("exit %d, end %+v", code, p.End)
	}
	// Somebody said that this machine is larger than it is.
	text, p, code = relayOutput(t, dir, "--host-mem", "4096TiB", "--", "echo", "begun")
	if text != "" || code != exitNotStarted || !p.End.Lost || !p.Begun.Less(4096*event.TiB) ||
		!strings.Contains(p.End.Evidence, "the trial was given 4PiB") {
		t.Errorf("output %q, exit %d, begun %+v, end %+v", text, code, p.Begun, p.End)
	}
	text, p, code = relayOutput(t, dir, "--", "sh", "-c", "sleep 300 & echo $!")
	pid, err := strconv.Atoi(strings.TrimSpace(text))
	if code != 0 || err != nil || p.End.ExitCode != 0 {
		t.Fatalf("exit %d, output %q, end %+v", code, text, p.End)
	}
	waitFor(t, "what it left behind has ended", func() bool {
		return syscall.Kill(pid, 0) == syscall.ESRCH
	})
}

// TestRelayedCommandEndsWithItsFrontEnd: a cluster that has killed memroom hands its memory to
// other jobs, so the command must not live on.
func TestRelayedCommandEndsWithItsFrontEnd(t *testing.T) {
	dir := t.TempDir()
	cmd := exec.Command(testenv.Binary(t), "run", "--relay", "t-1", "--", "sh", "-c",
		"trap '' TERM; sleep 300 & echo $! > left.new; mv left.new left; wait; sleep 300")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "MEMROOM_HOME="+filepath.Join(dir, "home"))
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid := 0
	waitFor(t, "the command has begun", func() bool {
		data, err := os.ReadFile(filepath.Join(dir, "left"))
		pid, _ = strconv.Atoi(strings.TrimSpace(string(data)))
		return err == nil && pid > 0
	})
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	waitFor(t, "the command has ended", func() bool { return syscall.Kill(pid, 0) == syscall.ESRCH })
	waitFor(t, "nothing writes its record any more", func() bool {
		lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
		for _, line := range lines {
			if text, _ := os.ReadFile(line); bytes.Contains(text, []byte(dir)) {
				return false
			}
		}
		return true
	})
}
