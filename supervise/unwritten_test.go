//go:build linux && !race

package supervise_test

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// TestFullStandardOutput: the place that output goes to cannot be written. A command that succeeds
// is no success then; one that fails keeps its code. The record has the output.
func TestFullStandardOutput(t *testing.T) {
	w := newWorkshop(t, ourselves)
	for command, want := range map[string]int{"echo words": 6, "echo words; exit 4": 4, "true": 0} {
		full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		cmd := w.memroom("run", "--", "sh", "-c", command)
		var said bytes.Buffer
		cmd.Stdout, cmd.Stderr = full, &said
		_ = cmd.Run()
		full.Close()
		if code := cmd.ProcessState.ExitCode(); code != want {
			t.Errorf("%s: exit %d, want %d; said %q", command, code, want, said.String())
		}
		if want == 6 && !strings.Contains(said.String(), "no space left on device") {
			t.Errorf("said %q", said.String())
		}
	}
	if got := w.finish(w.memroom("show", "--output")); got.code != 0 {
		t.Errorf("%+v", got)
	}
}

// TestNonBlockingOutput: somebody has made our standard output non-blocking, as some terminals and
// programs do. Everything arrives all the same.
func TestNonBlockingOutput(t *testing.T) {
	w := newWorkshop(t, ourselves)
	r, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	cmd := w.memroom("run", "--", "sh", "-c", "head -c 3000000 /dev/zero")
	cmd.Stdout = out
	if err := syscall.SetNonblock(int(out.Fd()), true); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	out.Close()
	folder, _ := w.waitFolder()
	w.eventually("the command to end", func() bool { _, err := folder.Exit(); return err == nil })
	var all bytes.Buffer
	if _, err := all.ReadFrom(r); err != nil || all.Len() != 3000000 {
		t.Errorf("%d bytes, %v", all.Len(), err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

// TestLittleAddressSpace: under a low `ulimit -v` there is a message, not a page of registers. The
// Go runtime puts its heap at random places, and about one launch in twenty finds no room there
// before any code of ours runs: such launches end before main, in the start of the runtime or the
// initialisation of packages, and are few.
func TestLittleAddressSpace(t *testing.T) {
	w := newWorkshop(t, ourselves)
	for _, kib := range []string{"1000000", "1900000"} {
		told := 0
		for range 5 {
			cmd := exec.Command("bash", "-c", `ulimit -v "$1"; exec "$0" run -- true`, binary, kib)
			cmd.Env = w.memroom().Env
			got := w.finish(cmd)
			if got.code == 125 && !strings.Contains(got.err, "goroutine") &&
				strings.Contains(got.err, "(ulimit -v); memroom needs 2GiB") {
				told++
			} else if !strings.Contains(got.err, "runtime.main()") ||
				strings.Contains(got.err, "main.main()") {
				t.Errorf("%s KiB: %+v", kib, got)
			}
		}
		if told < 3 {
			t.Errorf("%s KiB: %d of 5 launches told what is wrong", kib, told)
		}
	}
	cmd := exec.Command("bash", "-c", `ulimit -v 3000000; exec "$0" run -- echo fine`, binary)
	cmd.Env = w.memroom().Env
	if got := w.finish(cmd); got.out != "fine\n" || got.code != 0 {
		t.Errorf("%+v", got)
	}
}
