package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"memroom/event"
	"memroom/fit"
	"memroom/plan"
	"memroom/probe"
	"memroom/store"
)

// rehearseFlags are the flags of `memroom plan --rehearse -- COMMAND`.
type rehearseFlags struct {
	Rehearse bool   `help:"Rehearse the training command after -- on fake tensors, without a GPU, and plan from what it asks for."`
	Steps    int    `group:"Rehearsal" help:"With --rehearse: optimizer steps to rehearse; the second is usually the highest." default:"3"`
	Record   string `group:"Rehearsal" help:"With --rehearse: keep the recorded timeline in this file." placeholder:"FILE"`
	Map      string `group:"Rehearsal" help:"With --rehearse: the command's own arguments for the batch and the sequence, to find the largest: micro_batch=--bs,seq=--len." placeholder:"MAP"`
}

// rehearse predicts from a rehearsal of the command.
func (c *planCmd) rehearse(s *session) (*plan.Prediction, error) {
	if len(c.Args) == 0 {
		return nil, usageError(fmt.Errorf("--rehearse needs the training command after --, as in: memroom " +
			"plan --rehearse -- python train.py"))
	}
	if c.Preset != "" {
		return nil, usageError(fmt.Errorf("--rehearse takes the model from the script: leave out --preset"))
	}
	if c.Steps < 1 || c.Steps > 1000 {
		return nil, usageError(fmt.Errorf("--steps %d: rehearse between 1 and 1000 steps", c.Steps))
	}
	target, err := c.target()
	if err != nil {
		return nil, err
	}
	knobs, err := c.knobs()
	if err != nil {
		return nil, usageError(err)
	}
	if l := launched(c.Args); c.Ranks > 1 || l.ranks > 1 {
		if c.Ranks == 1 {
			c.Ranks = l.ranks
		}
		c.Args, c.perNode, c.elastic = l.args, l.perNode, l.elastic
		target = target.Among(c.Ranks)
	}
	record, err := c.rehearsal(s, target, c.Args, c.Record)
	if err != nil {
		return nil, err
	}
	p, err := record.Predict(target)
	if err != nil {
		return nil, err
	}
	if c.Ranks > 1 {
		if p, err = c.otherRanks(s, target, p); err != nil {
			return nil, err
		}
		p.Widen(rankMargin)
	}
	for _, k := range knobs {
		c.largest(s, p, record, target, k)
	}
	return p, nil
}

// knob is an argument of the command whose largest value is wanted.
type knob struct {
	name, flag string
	value      int64
}

// knobs reads --map. The command must show each argument with a value: the search starts there.
func (c *planCmd) knobs() ([]knob, error) {
	var found []knob
	if c.Map == "" {
		return nil, nil
	}
	for _, pair := range strings.Split(c.Map, ",") {
		name, flag, _ := strings.Cut(strings.TrimSpace(pair), "=")
		if flag == "" || name != "micro_batch" && name != "seq" {
			return nil, fmt.Errorf("--map %s: write micro_batch=--FLAG, or "+
				"micro_batch=--FLAG,seq=--FLAG",
				c.Map)
		}
		value, err := strconv.ParseInt(fit.Argument(c.Args, flag), 10, 64)
		if err != nil || value < 1 {
			return nil,
				fmt.Errorf("--map %s: the command does not say how large %s is: add it with its value, as in %s "+
					"8", c.Map, flag, flag)
		}
		found = append(found, knob{name: name, flag: flag, value: value})
	}
	return found, nil
}

// maxRehearsed bounds the search: nobody trains with more samples at once, or longer ones.
const maxRehearsed = 1 << 20

// largest adds the largest value of an argument that fits to a prediction, or a warning with the
// reason why it is unknown.
func (c *planCmd) largest(s *session, p *plan.Prediction, record *plan.Rehearsal,
	target plan.Target, k knob) {
	if p.Fits == nil {
		p.Warnings = append(p.Warnings,
			fmt.Sprintf("the largest %s needs a bound: give --gpu or --alloc-limit", k.flag))
		return
	}
	n, err := record.Largest(target, k.value, maxRehearsed, func(value int64) (*plan.Rehearsal,
		error) {
		s.note("rehearsing with %s %d", k.flag, value)
		return c.rehearsal(s, target, fit.SetArgument(c.Args, k.flag, strconv.FormatInt(value, 10)),
			"")
	})
	switch {
	case err != nil:
		p.Warnings = append(p.Warnings, fmt.Sprintf("the largest %s is not known: %v", k.flag, err))
	case k.name == "seq":
		p.MaxSeq = &n
	default:
		p.MaxBatch = &n
	}
}

// rehearsal runs the command with the probe in it and reads what the probe recorded.
func (c *planCmd) rehearsal(s *session, target plan.Target, args []string,
	keep string) (*plan.Rehearsal, error) {
	dir, remove, err := temporaryFolder("rehearsal")
	if err != nil {
		return nil, err
	}
	defer remove()
	record := filepath.Join(dir, "record.jsonl") // what the script writes for itself lies beside it
	if keep != "" {
		if info, err := os.Stat(keep); err == nil && !info.Mode().IsRegular() {
			return nil, usageError(fmt.Errorf("--record %s: not a regular file", keep))
		}
		if err := os.Remove(keep); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
	}
	drawn := &lastDrawn{out: s.Err}
	defer drawn.flush()
	said := &heardOutput{next: drawn}
	if f, ok := fileOf(s.Err); ok && isTerminal(f) {
		said.next = raw(s.Err) // the user's own command, which may draw
	}
	status, err := c.runRehearsed(s.ctx, said, args, dir, record, target)
	if err != nil {
		return nil, err
	}
	file, err := os.Open(record)
	if errors.Is(err, os.ErrNotExist) {
		return nil, unrecorded(args, status, said)
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if keep != "" {
		if err := keepRecord(keep, record); err != nil {
			return nil, err
		}
	}
	r, err := plan.ReadRehearsal(file)
	if err != nil {
		return nil, err
	}
	return r, failed(r, status, said)
}

func keepRecord(to, from string) error {
	file, err := os.Create(to)
	if err != nil {
		return err
	}
	return errors.Join(copyFile(file, from), file.Close())
}

// unrecorded explains a command that left no record.
func unrecorded(args []string, status string, said *heardOutput) error {
	switch {
	case strings.Contains(status, "killed"):
		return fmt.Errorf("rehearsal: %s was %s before it recorded anything: does it need more host "+
			"memory than there is?", args[0], status)
	case status != "":
		return fmt.Errorf("rehearsal: %s ended with %s before it recorded anything%s", args[0],
			status, said.last())
	}
	return fmt.Errorf("rehearsal: %s ran without memroom's probe: is it a Python that was started "+
		"with -I, -E or -S?", args[0])
}

// failed is the error of a script that broke before its first step; later failures leave enough to
// plan from.
func failed(r *plan.Rehearsal, status string, said *heardOutput) error {
	if status == "" || r.Error != "" {
		return nil
	}
	how, last := "ended with "+status, said.last()
	if pythonError.MatchString(last) {
		how = "raised an error"
	}
	if r.Steps > 0 {
		r.Warnings = append(r.Warnings,
			fmt.Sprintf("the script %s after %d optimizer steps%s", how, r.Steps, last))
		return nil
	}
	return fmt.Errorf("rehearsal: the script %s before its first optimizer step%s", how, last)
}

// pythonError matches the last line of a traceback.
var pythonError = regexp.MustCompile(`^: [\w.]*(Error|Exception|Interrupt|Warning)(:|$)`)

// runRehearsed returns how the command ended, empty for success. Its output goes to standard error:
// the answer alone is on standard output.
func (c *planCmd) runRehearsed(ctx context.Context, said *heardOutput, args []string, dir,
	record string, target plan.Target) (string, error) {
	path, err := exec.LookPath(args[0])
	if err != nil {
		return "", exitWith(exitNotFound, "rehearsal: %s: not found on PATH", args[0])
	}
	installed, err := probe.Install(filepath.Join(probeHome(dir), "probe"))
	if err != nil {
		return "", err
	}
	asked := filepath.Join(dir, "target.json")
	if err := c.writeTarget(asked, target); err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, path, args[1:]...)
	environ := c.environ
	if environ == nil {
		environ = os.Environ()
	}
	cmd.Env = probe.Setup{Dir: installed, Apply: asked, Rehearse: record}.Environ(environ)
	if c.Ranks > 1 {
		cmd.Env = append(cmd.Env, c.rankEnviron()...)
	}
	cmd.Stdout, cmd.Stderr = said, said
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 5 * time.Second
	err = cmd.Run()
	if used, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage); ok {
		c.resident = event.Bytes(used.Maxrss) * event.KiB
	}
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return "", fmt.Errorf("rehearsal: interrupted")
	case errors.As(err, &exit):
		return exit.String(), nil
	// a process that the script left behind still holds its output
	case errors.Is(err, exec.ErrWaitDelay):
		return "", nil
	}
	return "", err
}

// probeHome is where `run` keeps the probe too, so that Python compiles it once; without one it is
// compiled each time.
func probeHome(fallback string) string {
	if home, err := store.DefaultHome(); err == nil {
		if _, err := store.Open(home); err == nil {
			return home
		}
	}
	return fallback
}

// writeTarget writes the description of the card that the probe imitates.
func (c *planCmd) writeTarget(path string, t plan.Target) error {
	card := t.Card.Played()
	card["steps"], card["ranks"], card["rank"], card["count"] = c.Steps, c.Ranks, c.rank, c.cards()
	known := filepath.Join(filepath.Dir(path), "workspaces")
	torch, err := writeWorkspaces(known, t)
	if err != nil {
		return err
	}
	if torch != "" {
		card["workspaces"], card["workspaces_torch"] = known, torch
	}
	text, err := json.Marshal(map[string]any{"target": card})
	if err != nil {
		return err
	}
	return os.WriteFile(path, text, 0o600)
}

// writeWorkspaces writes the measured workspace sizes of the card's convolutions to a file. It
// returns the PyTorch release they were measured with.
func writeWorkspaces(path string, t plan.Target) (string, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return "", err
	}
	torch, err := t.WriteWorkspaces(f)
	return torch, errors.Join(err, f.Close())
}

// heardOutput passes a stream on and keeps its last lines for an error message.
type heardOutput struct {
	mu   sync.Mutex
	next io.Writer
	kept []byte
}

const tailBytes = 4 << 10

func (t *heardOutput) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept = append(t.kept, p...)
	if over := len(t.kept) - tailBytes; over > 0 {
		t.kept = append(t.kept[:0], t.kept[over:]...)
	}
	if t.next != nil {
		_, _ = t.next.Write(p) // a closed terminal must not stop the rehearsal
	}
	return len(p), nil
}

// lastDrawn passes on each line as it was when it ended: what a progress bar drew over it before is
// for terminals.
type lastDrawn struct {
	out  io.Writer
	line []byte
}

func (d *lastDrawn) Write(p []byte) (int, error) {
	for _, b := range p {
		if len(d.line) > 0 && d.line[len(d.line)-1] == '\r' && b != '\n' {
			d.line = d.line[:0]
		}
		if d.line = append(d.line, b); b == '\n' || len(d.line) > tailBytes {
			d.flush()
		}
	}
	return len(p), nil
}

// flush writes the line as it is.
func (d *lastDrawn) flush() {
	line := bytes.TrimRight(d.line, "\r\n")
	if len(d.line) > 0 {
		_, _ = d.out.Write(append(line, '\n'))
	}
	d.line = d.line[:0]
}

// last returns the last line of output that is not blank, as the end of a sentence.
func (t *heardOutput) last() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	lines := bytes.Split(bytes.TrimSpace(t.kept), []byte("\n"))
	if line := bytes.TrimSpace(lines[len(lines)-1]); len(line) > 0 {
		return fmt.Sprintf(": %.300s", line)
	}
	return ""
}
