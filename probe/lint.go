package probe

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// lintPatience is how long one file may take. Real files take milliseconds; a generated one may
// take longer than anybody waits.
const lintPatience = 30 * time.Second

// Lint runs the walk over the syntax tree on files and calls answer with each file's line of JSON,
// in order. installed is what Install returned. A file that hangs or kills the interpreter gets an
// answer with that reason, and the rest go on.
func Lint(ctx context.Context, python, installed string, files []string,
	answer func(line []byte) error) error {
	script := filepath.Join(installed, "_memroom_probe", "lint", "run.py")
	for len(files) > 0 {
		done, err := lintSome(ctx, python, script, files, answer)
		files = files[done:]
		if err == nil {
			continue
		}
		if ctx.Err() != nil || done == 0 && !isStuck(err) {
			return err
		}
		line, _ := json.Marshal(map[string]any{"file": files[0], "error": err.Error()})
		if err := answer(line); err != nil {
			return err
		}
		files = files[1:]
	}
	return nil
}

// stuck is the fault of one file, not of the interpreter.
type stuck struct{ why string }

func (s *stuck) Error() string { return s.why }

func isStuck(err error) bool { _, ok := err.(*stuck); return ok }

// lintSome starts one interpreter and feeds it files until it is done or dies. It returns how many
// were answered.
func lintSome(ctx context.Context, python, script string, files []string,
	answer func([]byte) error) (done int, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// -I: the user's environment and folder cannot shadow the standard library.
	cmd := exec.CommandContext(ctx, python, "-I", "-B", script)
	var complaints strings.Builder
	cmd.Stderr = &complaints
	in, err := cmd.StdinPipe()
	if err != nil {
		return 0, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := cmd.Start(); err != nil {
		return 0, fmt.Errorf("start %s: %w", python, err)
	}
	go feedNames(in, files)
	lines := make(chan []byte)
	go readLines(ctx, out, lines)
	defer func() { cancel(); cmd.Wait() }()
	for done < len(files) {
		select {
		case line, open := <-lines:
			if !open {
				return done, died(python, done, complaints.String(), cmd)
			}
			if err := answer(line); err != nil {
				return done, err
			}
			done++
		case <-time.After(lintPatience):
			return done, &stuck{fmt.Sprintf("not analysed within %v", lintPatience)}
		}
	}
	return done, nil
}

func feedNames(in io.WriteCloser, files []string) {
	defer in.Close()
	enc := json.NewEncoder(in)
	for _, f := range files {
		if enc.Encode(f) != nil {
			return
		}
	}
}

func readLines(ctx context.Context, out io.Reader, lines chan<- []byte) {
	defer close(lines)
	scanner := bufio.NewScanner(out)
	scanner.Buffer(nil, 16<<20)
	for scanner.Scan() {
		select {
		case lines <- append([]byte(nil), scanner.Bytes()...):
		case <-ctx.Done():
			return
		}
	}
}

// died distinguishes an interpreter that cannot run the script at all from one that a file crashed.
func died(python string, done int, complaints string, cmd *exec.Cmd) error {
	err := cmd.Wait()
	if done == 0 && cmd.ProcessState != nil && cmd.ProcessState.ExitCode() > 0 {
		last := strings.TrimSpace(complaints)
		if i := strings.LastIndexByte(last, '\n'); i >= 0 {
			last = last[i+1:]
		}
		return fmt.Errorf("%s cannot run the linter (Python 3.8 or newer is needed): %s", python,
			last)
	}
	return &stuck{fmt.Sprintf("the interpreter died on it: %v", err)}
}
