package local

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"memroom/event"
	"memroom/supervise"
	"memroom/trial"
)

// TestMain is the keeper of an attempt where a test starts one: it is this program again.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "_keeper" {
		if err := supervise.Keep(filesIn(os.Args[2]), onceReady{os.Stdout}); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// onceReady is written to once: whoever started the keeper waits for the end of it.
type onceReady struct{ file *os.File }

func (r onceReady) Write(p []byte) (int, error) {
	n, err := r.file.Write(p)
	r.file.Close()
	return n, err
}

func filesIn(dir string) supervise.Files {
	return supervise.Files{Dir: dir, Output: filepath.Join(dir, "output"), Errors: filepath.Join(dir,
		"errors"),
		State: filepath.Join(dir, "state.json"), Exit: filepath.Join(dir, "exit.json")}
}

// begin prepares and starts an attempt of a shell command with a real keeper.
func begin(t *testing.T, command string) *Backend {
	t.Helper()
	dir, err := os.MkdirTemp("", "attempt")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	b := &Backend{Host: event.GiB, Grace: 200 * time.Millisecond, New: func(trial.Launch) (Job,
		error) {
		return Job{Run: "one", Files: filesIn(dir), Events: filepath.Join(dir, "events"),
			Samples: filepath.Join(dir, "samples"), Keeper: []string{"memroom", "_keeper", dir},
			Launch: supervise.Launch{Attempt: 1, Path: "/bin/sh", Args: []string{"sh", "-c", command},
				Command: []string{"sh"}, Env: os.Environ(), Dir: dir, Streams: supervise.Streams{
					In: supervise.Null, Out: supervise.Pipe, Err: supervise.Pipe, Merged: true}},
			Summary: func() (event.Summary, error) { return event.Summary{}, os.ErrNotExist }}, nil
	}}
	if err := b.Open(); err != nil {
		t.Fatal(err)
	}
	run, err := b.Prepare(trial.Launch{})
	if err == nil {
		err = b.Start(run)
	}
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// ending hears an attempt to its end.
func ending(t *testing.T, b *Backend, heard func(output string)) (output string, o trial.Outcome) {
	t.Helper()
	for deadline := time.After(time.Minute); ; {
		select {
		case h := <-b.Events():
			output += string(h.Output)
			if heard != nil && len(h.Output) > 0 {
				heard(output)
			}
			if h.End != nil {
				return output, *h.End
			}
		case <-deadline:
			t.Fatalf("no end after a minute: %q", output)
		}
	}
}

// TestAttemptsFromBeginningToEnd checks that the output of a command that a real keeper starts is
// passed on, that its end is reported with its exit code, and that the attempt is forgotten then.
func TestAttemptsFromBeginningToEnd(t *testing.T) {
	for code := range 2 {
		b := begin(t, fmt.Sprintf("echo loss=1; echo more >&2; exit %d", code))
		output, o := ending(t, b, nil)
		if output != "loss=1\nmore\n" || o.ExitCode != code || o.Lost || b.job("one") != nil {
			t.Errorf("exit %d: %q, %+v", code, output, o)
		}
	}
}

// TestAttemptsThatAreStopped: SIGTERM first, and SIGKILL where that is not heard.
func TestAttemptsThatAreStopped(t *testing.T) {
	for trap, signal := range map[string]string{"": "SIGTERM", "trap '' TERM; ": "SIGKILL"} {
		b := begin(t, trap+"echo ready; while :; do sleep 0.1; done")
		_, o := ending(t, b, func(output string) {
			if strings.Contains(output, "ready") {
				b.Stop("one")
			}
		})
		if !strings.Contains(o.Signal, strings.TrimPrefix(signal, "SIG")) {
			t.Errorf("%q: %+v, want %s", trap, o, signal)
		}
	}
}
