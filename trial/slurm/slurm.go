// Package slurm runs trials as batch jobs of Slurm, through its own commands: sbatch, squeue,
// sacct, scontrol and scancel. The study's folder must be on a file system that the nodes see:
// scripts and output lie there.
package slurm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"memroom/event"
	"memroom/trial"
	"memroom/trial/remote"
)

// Engine is the Slurm cluster of this machine.
type Engine struct {
	Dir string // see Take
	// JobName is the name of the study's jobs in the queue, different for every study.
	JobName string
	Args    []string // further arguments of sbatch

	jobs  map[string]string // ID -> Slurm's number, N or N_TASK
	stops map[string]int    // how often a job was asked to end
	phase map[string]remote.Phase
	batch int
}

// Name returns the name of the engine.
func (e *Engine) Name() string { return "Slurm" }

// Open looks for the commands.
func (e *Engine) Open() error {
	for _, name := range []string{"sbatch", "squeue", "scontrol", "scancel"} {
		if _, err := exec.LookPath(name); err != nil {
			return fmt.Errorf("--on slurm: %s is not on PATH here: run memroom on a node from which "+
				"jobs are submitted (a login node), or leave --on out for this machine", name)
		}
	}
	e.jobs, e.stops, e.phase = map[string]string{}, map[string]int{}, map[string]remote.Phase{}
	return nil
}

// Take makes the study's folder for scripts and output, and looks for the jobs of an earlier
// process.
func (e *Engine) Take(dir string) error {
	e.Dir = dir
	return e.readJobs()
}

// call runs one of Slurm's commands. A controller that does not answer is away.
func (e *Engine) call(name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if err == nil {
		return out.String(), nil
	}
	text := strings.TrimSpace(errs.String())
	if text == "" {
		text = err.Error()
	}
	if ctx.Err() != nil || isAway(text) {
		return "", fmt.Errorf("slurm %w: %s: %s", remote.ErrAway, name, lastLine(text))
	}
	return "", fmt.Errorf("%s: %s", name, lastLine(text))
}

// isAway reports whether the controller cannot be reached, as opposed to refusing.
func isAway(text string) bool {
	for _, words := range []string{"Unable to contact slurm controller", "Connection refused",
		"Connection timed out", "Socket timed out", "Zero Bytes were transmitted",
		"Transport endpoint is not connected", "Slurm backup controller in standby",
		"Resource temporarily unavailable", "Slurm temporarily unable to accept job",
		"Unexpected message received", "Protocol authentication error", "Munge"} {
		if strings.Contains(text, words) {
			return true
		}
	}
	return false
}

func lastLine(text string) string {
	return text[strings.LastIndexByte(text, '\n')+1:]
}

// Capacity adds up the nodes that take jobs.
func (e *Engine) Capacity() (trial.Capacity, error) {
	text, err := e.call("scontrol", "show", "node", "-o")
	if err != nil {
		return trial.Capacity{}, err
	}
	return capacityOf(text), nil
}

// capacityOf reads `scontrol show node -o`. Memory that others were given is not ours; what we were
// given is taken off by the study itself, so it is not known here and counts as free: Slurm lets
// a job wait that does not fit.
func capacityOf(text string) (c trial.Capacity) {
	c.Nodes = map[string]event.Bytes{}
	for line := range strings.Lines(text) {
		f := fields(line)
		if down(f["State"]) {
			continue
		}
		real, _ := strconv.ParseInt(f["RealMemory"], 10, 64)
		special, _ := strconv.ParseInt(f["MemSpecLimit"], 10, 64)
		cpus, _ := strconv.ParseFloat(f["CPUTot"], 64)
		host := event.Bytes(real-special) * event.MiB
		c.Host += host
		c.NodeHost = max(c.NodeHost, host)
		c.Nodes[f["NodeName"]] = host
		c.CPUs += cpus
		c.NodeCPUs = max(c.NodeCPUs, cpus)
		for i := range gpusOf(f["Gres"]) {
			c.Cards = append(c.Cards, trial.Card{UUID: fmt.Sprintf("%s:%d", f["NodeName"], i),
				Budget: remote.UnknownCard, Free: remote.UnknownCard})
		}
	}
	c.HostFree = c.Host
	return c
}

var field = regexp.MustCompile(`(\w+)=(\S*)`)

func fields(line string) map[string]string {
	out := map[string]string{}
	for _, m := range field.FindAllStringSubmatch(line, -1) {
		if _, twice := out[m[1]]; !twice {
			out[m[1]] = m[2]
		}
	}
	return out
}

func down(state string) bool {
	for _, word := range []string{"DOWN", "DRAIN", "FAIL", "INVAL", "UNKNOWN", "MAINT"} {
		if strings.Contains(state, word) {
			return true
		}
	}
	return state == ""
}

var gres = regexp.MustCompile(`gpu(?::[^:,(]+)*?:(\d+)`)

// gpusOf counts the cards in a list of generic resources: gpu:a100:4(S:0-1),gpu:2.
func gpusOf(list string) (n int) {
	for _, m := range gres.FindAllStringSubmatch(list, -1) {
		k, _ := strconv.Atoi(m[1])
		n += k
	}
	return n
}

// Submit hands jobs over; those with the same needs go as one array.
func (e *Engine) Submit(jobs []remote.Job) map[string]error {
	failed := map[string]error{}
	groups := map[string][]remote.Job{}
	var order []string
	for _, job := range jobs {
		if _, known := e.jobs[job.ID]; known {
			continue
		}
		key := strings.Join(e.needs(job), " ")
		if groups[key] == nil {
			order = append(order, key)
		}
		groups[key] = append(groups[key], job)
	}
	for _, key := range order {
		if err := e.submitGroup(groups[key]); err != nil {
			for _, job := range groups[key] {
				failed[job.ID] = err
			}
		}
	}
	return failed
}

// needs returns the arguments of sbatch for what a trial takes.
func (e *Engine) needs(job remote.Job) []string {
	l := job.Launch
	mem := (l.Host + remote.Overhead + event.MiB - 1) / event.MiB
	args := []string{fmt.Sprintf("--mem=%dM", mem),
		fmt.Sprintf("--cpus-per-task=%d", max(1, int(math.Ceil(l.CPUs-1e-9))))}
	if len(l.Cards) > 0 {
		args = append(args, fmt.Sprintf("--gres=gpu:%d", len(l.Cards)))
	}
	if len(job.Avoid) > 0 {
		args = append(args, "--exclude="+strings.Join(job.Avoid, ","))
	}
	return args
}

// submitGroup writes what the jobs are, then submits them, then writes down their number: wherever
// we are killed, the next process finds the jobs by their comment in the queue.
func (e *Engine) submitGroup(jobs []remote.Job) error {
	e.batch++
	tag := fmt.Sprintf("b%d", e.batch)
	var list strings.Builder
	for _, job := range jobs {
		if err := e.writeScript(job); err != nil {
			return err
		}
		fmt.Fprintln(&list, job.ID)
	}
	if err := os.WriteFile(e.path(tag+".tasks"), []byte(list.String()), 0o600); err != nil {
		return err
	}
	args := []string{"--parsable", "--no-requeue", "--nodes=1", "--ntasks=1",
		"--job-name=" + e.JobName,
		"--comment=" + tag, "--output=" + e.path(tag+"-%a.slurm"), "--open-mode=append"}
	args = append(args, e.needs(jobs[0])...)
	if len(jobs) > 1 {
		args = append(args, fmt.Sprintf("--array=0-%d", len(jobs)-1))
	}
	args = append(args, e.Args...)
	batch := e.path(tag + ".sh")
	text := fmt.Sprintf("#!/bin/sh\nn=$((${SLURM_ARRAY_TASK_ID:-0} + 1))\n"+
		"exec /bin/sh %s/\"$(sed -n ${n}p %s)\".sh\n", quote(e.Dir), quote(e.path(tag+".tasks")))
	if err := os.WriteFile(batch, []byte(text), 0o700); err != nil {
		return err
	}
	out, err := e.call("sbatch", append(args, batch)...)
	if err != nil {
		return err
	}
	number, _, _ := strings.Cut(strings.TrimSpace(lastLine(strings.TrimSpace(out))), ";")
	return e.noteJobs(number, jobs)
}

// writeScript is what a node runs for one trial.
func (e *Engine) writeScript(job remote.Job) error {
	var text strings.Builder
	fmt.Fprintf(&text, "cd %s || { echo \"memroom: this node does not see the study's folder\"; "+
		"exit 125; }\n", quote(job.Dir))
	for _, name := range sortedNames(job.Env) {
		fmt.Fprintf(&text, "export %s=%s\n", name, quote(job.Env[name]))
	}
	words := make([]string, len(job.Command))
	for i, w := range job.Command {
		words[i] = quote(w)
	}
	fmt.Fprintf(&text, "exec %s >> %s 2>&1\n", strings.Join(words, " "), quote(e.output(job.ID)))
	return os.WriteFile(e.path(job.ID+".sh"), []byte(text.String()), 0o600)
}

func sortedNames(m map[string]string) []string {
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// quote makes one word of the shell.
func quote(word string) string { return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'" }

func (e *Engine) path(name string) string { return filepath.Join(e.Dir, name) }

func (e *Engine) output(id string) string { return e.path(id + ".out") }

// noteJobs keeps Slurm's numbers.
func (e *Engine) noteJobs(number string, jobs []remote.Job) error {
	file, err := os.OpenFile(e.path("jobs"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer file.Close()
	for i, job := range jobs {
		one := number
		if len(jobs) > 1 {
			one = fmt.Sprintf("%s_%d", number, i)
		}
		e.jobs[job.ID] = one
		if _, err := fmt.Fprintf(file, "%s %s\n", job.ID, one); err != nil {
			return err
		}
	}
	return file.Sync()
}

// patience is how long the controller is waited for when a study is taken up again.
const patience = 5 * time.Minute

// readJobs finds the jobs of earlier processes: those written down, and those that were submitted
// right before a crash and stand in the queue.
func (e *Engine) readJobs() error {
	if err := os.MkdirAll(e.Dir, 0o700); err != nil {
		return err
	}
	data, err := os.ReadFile(e.path("jobs"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	for line := range strings.Lines(string(data)) {
		if id, number, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
			e.jobs[id] = number
		}
	}
	entries, err := os.ReadDir(e.Dir)
	if err != nil {
		return err
	}
	tasks := map[string][]string{}
	for _, entry := range entries {
		tag, ok := strings.CutSuffix(entry.Name(), ".tasks")
		if !ok {
			continue
		}
		n, _ := strconv.Atoi(strings.TrimPrefix(tag, "b"))
		e.batch = max(e.batch, n)
		list, _ := os.ReadFile(e.path(entry.Name()))
		tasks[tag] = strings.Fields(string(list))
	}
	if len(tasks) == 0 {
		return nil
	}
	queue, err := e.queue()
	for began := time.Now(); errors.Is(err, remote.ErrAway) && time.Since(began) < patience; {
		time.Sleep(time.Second)
		queue, err = e.queue()
	}
	if err != nil {
		return err
	}
	for _, q := range queue {
		ids := tasks[q.comment]
		if q.task < len(ids) {
			e.jobs[ids[q.task]] = q.number
		}
	}
	return nil
}

// queued is a line of squeue.
type queued struct {
	number  string // N or N_TASK
	task    int
	state   string
	reason  string
	comment string
}

// queue lists the study's jobs, with those that ended a few minutes ago.
func (e *Engine) queue() ([]queued, error) {
	text, err := e.call("squeue", "-h", "-r", "-t", "all", "-n", e.JobName, "-o", "%i|%K|%T|%r|%k")
	if err != nil {
		return nil, err
	}
	var out []queued
	for line := range strings.Lines(text) {
		part := strings.Split(strings.TrimSpace(line), "|")
		if len(part) != 5 {
			continue
		}
		task, _ := strconv.Atoi(part[1]) // N/A: 0
		out = append(out, queued{part[0], task, part[2], part[3], part[4]})
	}
	return out, nil
}

// Look asks the queue, and the accounting for what the queue has forgotten.
func (e *Engine) Look(ids []string) (map[string]remote.Status, error) {
	queue, err := e.queue()
	if err != nil {
		return nil, err
	}
	states := map[string]queued{}
	for _, q := range queue {
		states[q.number] = q
	}
	out := map[string]remote.Status{}
	for _, id := range ids {
		number, known := e.jobs[id]
		if !known {
			continue
		}
		q, there := states[number]
		if !there {
			if q, there = e.accounted(number); !there {
				if _, err := os.Stat(e.output(id)); err != nil {
					continue
				}
				// Slurm has forgotten it; its last words are in its output.
				q = queued{state: "COMPLETED", reason: "forgotten"}
			}
		}
		s := statusOf(q.state, q.reason)
		if s.Phase == remote.Ended && s.Cause == remote.Exited {
			s.Code = e.exitCode(number)
			if s.Code != 0 {
				s.Text = e.said(id)
			}
		}
		e.phase[id] = s.Phase
		out[id] = s
	}
	return out, nil
}

// accounted asks sacct; without slurmdbd there is none.
func (e *Engine) accounted(number string) (q queued, ok bool) {
	text, err := e.call("sacct", "-X", "-P", "-n", "-j", number, "--format=JobID,State")
	if err != nil {
		return q, false
	}
	for line := range strings.Lines(text) {
		id, state, found := strings.Cut(strings.TrimSpace(line), "|")
		if found && id == number {
			return queued{number: number, state: state, reason: "accounting"}, true
		}
	}
	return q, false
}

// statusOf puts a state of Slurm into our words. sacct writes "CANCELLED by 1000".
func statusOf(state, reason string) remote.Status {
	word, _, _ := strings.Cut(state, " ")
	word = strings.TrimSuffix(word, "+")
	ended := func(cause remote.Cause, text string) remote.Status {
		return remote.Status{Phase: remote.Ended, Cause: cause, Text: text}
	}
	switch word {
	case "PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT",
		"RESV_DEL_HOLD":
		return remote.Status{Phase: remote.Queued, Text: reason}
	case "RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING":
		return remote.Status{Phase: remote.Running}
	case "COMPLETED":
		return ended(remote.Exited, "")
	case "FAILED":
		return ended(remote.Exited, "")
	case "OUT_OF_MEMORY":
		return ended(remote.OutOfMemory, "Slurm: OUT_OF_MEMORY")
	case "TIMEOUT", "DEADLINE":
		return ended(remote.TimeLimit, "Slurm's time limit ended it ("+word+")")
	case "NODE_FAIL", "BOOT_FAIL":
		return ended(remote.NodeFailure, "Slurm: "+word)
	case "PREEMPTED":
		return ended(remote.Preempted, "Slurm: a job with a higher priority took its place")
	case "CANCELLED", "REVOKED":
		return ended(remote.Cancelled, "cancelled in Slurm by somebody else")
	}
	return remote.Status{Phase: remote.Running, Text: state}
}

// exitCode asks how the batch script ended, while Slurm remembers.
func (e *Engine) exitCode(number string) int {
	text, err := e.call("scontrol", "show", "job", "-o", number)
	if err != nil {
		return 0
	}
	code, signal, _ := strings.Cut(fields(text)["ExitCode"], ":")
	n, _ := strconv.Atoi(code)
	if s, _ := strconv.Atoi(signal); s > 0 && n == 0 {
		return 128 + s
	}
	return n
}

// said is the last line that a job printed.
func (e *Engine) said(id string) string {
	data, err := e.Output(id, 0)
	if err != nil || len(data) == 0 {
		return ""
	}
	text := strings.TrimSpace(strings.ToValidUTF8(string(data[max(0, len(data)-400):]), "?"))
	return lastLine(text)
}

// Output reads the file that the job writes, which the nodes and we see.
func (e *Engine) Output(id string, from int64) ([]byte, error) {
	file, err := os.Open(e.output(id))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if _, err := file.Seek(from, io.SeekStart); err != nil {
		return nil, err
	}
	const most = 8 << 20 // the rest comes the next time
	return io.ReadAll(io.LimitReader(file, most))
}

// Stop ends a job: in the queue at once; a running one is asked first.
func (e *Engine) Stop(id string) error {
	number, known := e.jobs[id]
	if !known {
		return nil
	}
	e.stops[id]++
	const patience = 10 // times
	if e.phase[id] == remote.Running && e.stops[id] <= patience {
		if e.stops[id] > 1 {
			return nil
		}
		_, err := e.call("scancel", "--full", "--signal=TERM", number)
		return err
	}
	_, err := e.call("scancel", number)
	return err
}
