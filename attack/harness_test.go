package attack

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"memroom/testenv"
)

// long reports whether everything is tried, or the short form that belongs to the ordinary tests.
func long() bool { return os.Getenv("MEMROOM_ATTACK") == "long" }

// times returns how many inputs of a kind are tried.
func times(short, all int) int {
	if long() {
		return all
	}
	return short
}

// memroom is the binary under attack. Another user runs it too.
func memroom(t testing.TB) string {
	t.Helper()
	return testenv.Binary(t)
}

func TestMain(m *testing.M) {
	if name := os.Getenv(knockEnv); name != "" {
		fmt.Println(knock(name, os.Args[1]))
		os.Exit(0)
	}
	if os.Getenv(askEnv) != "" {
		askAsOther(os.Args[1])
		os.Exit(0)
	}
	if path := os.Getenv(measureEnv); path != "" {
		measure(path, os.Args[1:])
	}
	code := m.Run()
	tally.print()
	os.Exit(code)
}

// tally counts what was tried, by kind.
var tally = &counts{kinds: map[string]*count{}}

type counts struct {
	mu    sync.Mutex
	order []string
	kinds map[string]*count
	harm  [lostBytes + 1]int64
}

// harm is what must never happen.
type harm int

const (
	crashes harm = iota
	hangs
	lostBytes
)

// suffer counts harm.
func (c *counts) suffer(what harm, n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.harm[what] += n
}

type count struct {
	tried, answered, refused int
	resident                 int64 // highest, bytes
}

// add counts one input: answered means exit code 0, or another code that is an answer.
func (c *counts) add(kind string, refused bool, resident int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.kinds[kind]
	if k == nil {
		k = &count{}
		c.kinds[kind] = k
		c.order = append(c.order, kind)
	}
	k.tried++
	if refused {
		k.refused++
	} else {
		k.answered++
	}
	k.resident = max(k.resident, resident)
}

func (c *counts) print() {
	total := 0
	for _, kind := range c.order {
		k := c.kinds[kind]
		total += k.tried
		line := fmt.Sprintf("attack: %-28s %6d tried, %6d answered, %6d refused", kind, k.tried,
			k.answered, k.refused)
		if k.resident > 0 {
			line += fmt.Sprintf(", at most %d MiB resident", k.resident>>20)
		}
		fmt.Println(line)
	}
	if total > 0 {
		fmt.Printf("attack: %-28s %6d tried, %d crashes, %d hangs, %d bytes lost\n", "all", total,
			c.harm[crashes], c.harm[hangs], c.harm[lostBytes])
	}
}

// outcome is what one command did.
type outcome struct {
	code           int
	stdout, stderr string
	resident       int64         // peak, as the kernel counted it
	cpu            time.Duration // processor time, which does not depend on how busy the machine is
}

// Bounds on one command. Processor time and memory are enforced by the kernel or read from it.
const (
	cpuSeconds  = 60
	addressGiB  = 24 // ends a command that would take the machine with it; Go reserves much of it
	mostPrinted = 16 << 20
)

// run runs memroom with its resources limited.
func run(t testing.TB, env []string, stdin string, args ...string) outcome {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	report := filepath.Join(t.TempDir(), "measured")
	script := fmt.Sprintf("ulimit -t %d; ulimit -v %d; exec \"$@\"", cpuSeconds, addressGiB<<20)
	cmd := exec.Command(self, append([]string{"sh", "-c", script, "sh", memroom(t)}, args...)...)
	cmd.Env = append(append(os.Environ(), env...), measureEnv+"="+report)
	cmd.Stdin = strings.NewReader(stdin)
	o := finish(t, cmd)
	text, err := os.ReadFile(report)
	if err != nil {
		t.Fatal(err, o.stderr)
	}
	if _, err := fmt.Sscan(string(text), &o.code, &o.resident, &o.cpu); err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	return o
}

// measureEnv makes this test's binary run a command and write down what it took. The kernel counts
// the peak of whoever starts a process into that process's own, and a test that makes hostile files
// is large; this process is small.
const measureEnv = "MEMROOM_ATTACK_MEASURE"

func measure(report string, args []string) {
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, measureEnv+"=") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	var resident int64
	if u, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage); ok {
		resident = u.Maxrss << 10
	}
	text := fmt.Sprintln(cmd.ProcessState.ExitCode(), resident,
		int64(cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime()))
	if err := os.WriteFile(report, []byte(text), 0o600); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func finish(t testing.TB, cmd *exec.Cmd) outcome {
	t.Helper()
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return outcome{code: cmd.ProcessState.ExitCode(), stdout: out.String(), stderr: errs.String()}
}

// command is a way to hand a file to memroom. FILE stands for it, DIR for a folder to write in.
type command struct {
	line  string
	codes string // exit codes that are answers, apart from 2, which is a refusal
}

var (
	crash   = regexp.MustCompile(`(?m)^(panic:|fatal error:|goroutine \d+|runtime: |SIG[A-Z]+:)`)
	control = regexp.MustCompile(`[\x00-\x08\x0b-\x1f\x7f\x{80}-\x{9f}]`)
)

// wrong returns the first forbidden thing that a command did, or "". budget is the bytes it may
// have resident.
func (o *outcome) wrong(codes, path string, budget int64) string {
	switch {
	case crash.MatchString(o.stderr):
		tally.suffer(crashes, 1)
		return "it crashed"
	case o.cpu >= cpuSeconds*time.Second:
		tally.suffer(hangs, 1)
		return "it hangs"
	case o.code < 0 || o.code > 5:
		tally.suffer(crashes, 1)
		return fmt.Sprintf("exit code %d: killed, or a bug", o.code)
	case !strings.Contains(codes+"2", fmt.Sprint(o.code)):
		return fmt.Sprintf("exit code %d is none of %s2", o.code, codes)
	case o.code == 2 && !strings.HasPrefix(o.stderr, "memroom: "):
		return "it refuses without saying why"
	case o.code == 2 && len(o.stderr) > 4000:
		return "its message is too long to read"
	case control.MatchString(o.stdout) || control.MatchString(o.stderr):
		return "it prints control characters"
	case len(o.stdout)+len(o.stderr) > mostPrinted:
		return "it prints without end"
	case budget > 0 && o.resident > budget:
		return fmt.Sprintf("it took %d MiB, budget %d MiB", o.resident>>20, budget>>20)
	}
	return ""
}

// target is a place to put hostile files, and what to do with them.
type target struct {
	dir  string
	home string
}

func newTarget(t testing.TB) target {
	return target{dir: t.TempDir(), home: filepath.Join(t.TempDir(), "home")}
}

// throw hands one file to one command and judges what happens.
func (g target) throw(t testing.TB, kind, name string, data []byte, c command, budget int64) {
	t.Helper()
	path := filepath.Join(g.dir, name)
	testenv.Write(t, path, data)
	defer os.Remove(path)
	var args []string
	for _, word := range strings.Fields(c.line) {
		word = strings.ReplaceAll(word, "FILE", path)
		args = append(args, strings.ReplaceAll(word, "DIR", g.dir))
	}
	o := run(t, []string{"MEMROOM_HOME=" + g.home}, "", args...)
	tally.add(kind, o.code == 2, o.resident)
	if w := o.wrong(c.codes, path, budget); w != "" {
		t.Errorf("%s: memroom %s: %s (code %d, %v of processor time)%s\n%s", kind, c.line, w,
			o.code,
			o.cpu, keep(name, data), shorten(o.stderr))
	}
}

// keep saves an input that did harm, where the user asked for it.
func keep(name string, data []byte) string {
	dir := os.Getenv("MEMROOM_ATTACK_KEEP")
	if dir == "" {
		return ""
	}
	path := filepath.Join(dir, fmt.Sprintf("%x-%s", len(data), name))
	if err := os.WriteFile(path, data, 0o600); err != nil {
		return ": not kept: " + err.Error()
	}
	return ": kept in " + path
}

func shorten(text string) string {
	if len(text) > 2000 {
		return text[:1000] + "\n...\n" + text[len(text)-1000:]
	}
	return text
}

// root skips a test that needs to be root.
func root(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		testenv.Needs(t, "root", "another user and small disks cannot be made")
	}
}

// eventually waits until something holds. The limit is only there to end a test that hangs.
func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	for !holds() {
		select {
		case <-ctx.Done():
			t.Fatalf("never: %s", what)
		case <-time.After(20 * time.Millisecond):
		}
	}
}
