// Package remote runs trials on somebody else's cluster: each is a job whose command is
// `memroom run --relay`, and its output is all that comes back. Which cluster it is, an [Engine]
// knows. A cluster that does not answer for a while is waited for.
package remote

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"memroom/event"
	"memroom/trial"
	"memroom/trial/relay"
)

// Job is an attempt as a cluster is asked to run it.
type Job struct {
	ID      string // also the relay's name; the same attempt has the same one for ever
	Launch  trial.Launch
	Command []string // memroom run ... -- the program
	Env     map[string]string
	Dir     string
	Avoid   []string // nodes that have less than it needs, whatever they say
}

// Phase is where a job stands.
type Phase int

// A job that the cluster does not know is Unknown: never submitted, or forgotten.
const (
	Unknown Phase = iota
	Queued
	Running
	Ended
)

// Cause is why a job ended, in the cluster's own words.
type Cause string

// Causes that clusters distinguish. Exited: the command ended by itself, well or not.
const (
	Exited      Cause = "exited"
	OutOfMemory Cause = "out of memory" // of its own allocation
	NodeMemory  Cause = "node memory"   // the node was full
	TimeLimit   Cause = "time limit"
	NodeFailure Cause = "node failure"
	Preempted   Cause = "preempted"
	Cancelled   Cause = "cancelled"
	NeverRan    Cause = "never ran" // the cluster refused or could not start it
)

// Status is what the cluster reports about a job.
type Status struct {
	Phase Phase
	Cause Cause
	Code  int    // of the command, where known
	Text  string // the cluster's own words
}

// Engine is a cluster, as far as trials need it. Errors that wrap [ErrAway] mean that it does not
// answer now; others are final.
type Engine interface {
	Name() string
	// Capacity is what the cluster has, and Host what of it others leave to us.
	Capacity() (trial.Capacity, error)
	// Submit hands jobs over. One that the cluster has already is left alone. The errors are by ID.
	Submit(jobs []Job) map[string]error
	// Look asks how jobs stand; those that the cluster does not know are left out.
	Look(ids []string) (map[string]Status, error)
	// Output returns what a job printed, from an offset on; the job may not have begun.
	Output(id string, from int64) ([]byte, error)
	// Stop asks a job to end.
	Stop(id string) error
}

// ErrAway: the cluster does not answer.
var ErrAway = errors.New("does not answer")

// Backend is a cluster as a study sees it.
type Backend struct {
	Engine Engine
	Host   event.Bytes // budget of the study; 0: what the cluster has
	GPU    event.Bytes
	// New describes the job of an attempt.
	New func(trial.Launch) (Job, error)
	// Note is called when the cluster goes away and comes back.
	Note func(string)
	Poll time.Duration // 0: a second

	events chan trial.Happening
	over   chan struct{}
	wake   chan struct{}

	mu       sync.Mutex
	jobs     map[string]*running
	capacity trial.Capacity
	claimed  map[string]event.Bytes // by nodes, as the cluster knows them
	less     map[string]event.Bytes // what nodes really have that claim more
	away     time.Time              // since when it does not answer
}

// running is an attempt that has not ended.
type running struct {
	Job
	parser    relay.Parser
	read      int64 // bytes of its output
	submitted bool
	stop      bool // wanted
	asked     time.Time
	phase     Phase
	began     time.Time // it was seen running
	missing   time.Time // since when the cluster does not know it
	ended     time.Time // since when the cluster reports that it has
}

// Open asks the cluster for the first time.
func (b *Backend) Open() error {
	b.events = make(chan trial.Happening, 64)
	b.over = make(chan struct{})
	b.wake = make(chan struct{}, 1)
	b.jobs = map[string]*running{}
	if b.Poll == 0 {
		b.Poll = time.Second
	}
	b.Engine = &serial{engine: b.Engine}
	c, err := b.Engine.Capacity()
	if err != nil {
		return err
	}
	b.took(c)
	if b.capacity.Host < leastHost {
		return fmt.Errorf("%s has %s of memory for trials, and a training needs %s or more: add nodes, "+
			"or give a larger --host-mem", b.Engine.Name(), b.capacity.Host, leastHost)
	}
	go b.work()
	return nil
}

// leastHost is below what any training needs.
const leastHost = 64 * event.MiB

// Overhead is what memroom and the cluster's own processes take in addition to the command.
const Overhead = 128 * event.MiB

// UnknownCard stands for the size of a card that the cluster does not report. A trial gets a whole
// card, and is not capped there.
const UnknownCard = event.TiB

// took keeps a reading of the capacity. A trial's job asks for its memory and the overhead.
func (b *Backend) took(c trial.Capacity) {
	if c.NodeHost == 0 {
		c.NodeHost = c.Host
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.claimed = c.Nodes
	if len(b.less) > 0 {
		c.NodeHost = 0
		for node, claimed := range c.Nodes {
			has := claimed
			if less := b.less[node]; less > 0 {
				has = min(has, less)
			}
			c.Host -= claimed - has
			c.NodeHost = max(c.NodeHost, has)
		}
	}
	c.NodeHost -= Overhead
	c.GPU = b.GPU
	if b.Host > 0 {
		c.Host = min(b.Host, c.Host)
	}
	c.HostFree, c.NodeHost = min(c.HostFree, c.Host), min(c.NodeHost, c.Host)
	b.capacity = c
}

// hasLess keeps what a node really has that was given a job it cannot hold. Where the cluster has
// another name for it, it is the smallest node that claims enough.
func (b *Backend) hasLess(on relay.Begin, given event.Bytes) {
	node := on.Host
	b.mu.Lock()
	if _, known := b.claimed[node]; !known {
		for _, name := range slices.Sorted(maps.Keys(b.claimed)) {
			claims := b.claimed[name]
			least := b.claimed[node]
			if claims >= given && b.less[name] == 0 && (least == 0 || claims < least) {
				node = name
			}
		}
	}
	claims, known := b.claimed[node]
	if known {
		if b.less == nil {
			b.less = map[string]event.Bytes{}
		}
		b.less[node] = on.Memory
	}
	b.mu.Unlock()
	if known && b.Note != nil {
		b.Note(fmt.Sprintf("node %s has %s of memory, not the %s that %s counts there: no trial that "+
			"needs more is meant for it", on.Host, on.Memory, claims, b.Engine.Name()))
	}
	if c, err := b.Engine.Capacity(); err == nil {
		b.took(c)
	}
}

// Capacity is the last reading: a study asks often, a cluster is asked now and then.
func (b *Backend) Capacity() (trial.Capacity, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := b.capacity
	c.Cards = slices.Clone(c.Cards)
	return c, nil
}

// Prepare describes the job of an attempt. Nothing is handed over yet.
func (b *Backend) Prepare(l trial.Launch) (string, error) {
	job, err := b.New(l)
	if err != nil {
		return "", err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.jobs[job.ID] = &running{Job: job, parser: relay.Parser{ID: job.ID}}
	return job.ID, nil
}

// Start hands a prepared attempt to the cluster, now or when it answers again.
func (b *Backend) Start(run string) error {
	b.mu.Lock()
	b.jobs[run].asked = time.Now()
	b.mu.Unlock()
	b.hurry()
	return nil
}

func (b *Backend) hurry() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// Rejoin takes up an attempt of an earlier process. The cluster knows it, or it never began.
func (b *Backend) Rejoin(run string, l trial.Launch) (begun bool, err error) {
	known, err := b.lookPatiently(run)
	if err != nil {
		return false, err
	}
	status, found := known[run]
	if !found {
		return false, nil
	}
	job, err := b.New(l)
	if err != nil {
		return false, err
	}
	job.ID = run
	b.mu.Lock()
	defer b.mu.Unlock()
	b.jobs[run] = &running{Job: job, parser: relay.Parser{ID: run}, submitted: true,
		asked: time.Now(), phase: status.Phase}
	b.hurry()
	return true, nil
}

// patience is how long a study that is taken up again waits for its cluster.
const patience = 5 * time.Minute

// lookPatiently asks for one job until the cluster answers, because without an answer nobody knows
// whether the attempt runs.
func (b *Backend) lookPatiently(run string) (known map[string]Status, err error) {
	for began := time.Now(); ; time.Sleep(b.Poll) {
		known, err = b.Engine.Look([]string{run})
		if err == nil {
			b.cameBack()
			return known, nil
		}
		if !errors.Is(err, ErrAway) || time.Since(began) > patience {
			return nil, err
		}
		b.wentAway(err)
	}
}

// work asks the cluster in a loop.
func (b *Backend) work() {
	var measured time.Time
	for {
		b.submit()
		b.look()
		if time.Since(measured) > 5*b.Poll {
			measured = time.Now()
			if c, err := b.Engine.Capacity(); err == nil {
				b.took(c)
			}
		}
		select {
		case <-b.over:
			return
		case <-b.wake: // several are often started together
			time.Sleep(min(b.Poll, 150*time.Millisecond))
		case <-time.After(b.Poll):
		}
	}
}

// submit hands over what was started since the last time.
func (b *Backend) submit() {
	b.mu.Lock()
	var jobs []Job
	for _, id := range slices.Sorted(maps.Keys(b.jobs)) {
		if r := b.jobs[id]; !r.submitted && !r.asked.IsZero() {
			r.Avoid = nil
			for _, node := range slices.Sorted(maps.Keys(b.less)) {
				if b.less[node] < r.Launch.Host+Overhead {
					r.Avoid = append(r.Avoid, node)
				}
			}
			jobs = append(jobs, r.Job)
		}
	}
	b.mu.Unlock()
	if len(jobs) == 0 {
		return
	}
	failed := b.Engine.Submit(jobs)
	for _, job := range jobs {
		b.mu.Lock()
		r := b.jobs[job.ID]
		err := failed[job.ID]
		r.submitted = err == nil
		stop := r.stop
		b.mu.Unlock()
		switch {
		case err == nil:
		case errors.Is(err, ErrAway) && !stop:
			b.wentAway(err) // it is tried again
		default:
			b.end(r, trial.Outcome{ExitCode: 125, NotStarted: err.Error()})
		}
	}
}

// look asks how everything stands.
func (b *Backend) look() {
	b.mu.Lock()
	var ids []string
	for id, r := range b.jobs {
		if r.submitted {
			ids = append(ids, id)
		}
	}
	b.mu.Unlock()
	if len(ids) == 0 {
		return
	}
	slices.Sort(ids)
	known, err := b.Engine.Look(ids)
	if err != nil {
		b.wentAway(err)
		return
	}
	b.cameBack()
	for _, id := range ids {
		if r := b.job(id); r != nil {
			b.follow(r, known[id])
		}
	}
}

func (b *Backend) wentAway(err error) {
	b.mu.Lock()
	first := b.away.IsZero()
	if first {
		b.away = time.Now()
	}
	b.mu.Unlock()
	if first && b.Note != nil {
		b.Note(fmt.Sprintf("%v; trials there go on, memroom waits for it", err))
	}
}

func (b *Backend) cameBack() {
	b.mu.Lock()
	away := b.away
	b.away = time.Time{}
	b.mu.Unlock()
	if !away.IsZero() && b.Note != nil {
		b.Note(fmt.Sprintf("%s answers again after %s", b.Engine.Name(),
			time.Since(away).Round(time.Second)))
	}
}

func (b *Backend) job(run string) *running {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.jobs[run]
}

// forgotten is how long a cluster may not know a job before it is lost: it was restarted, or its
// answer was older than the job.
const forgotten = 5 * time.Second

// lateOutput is how long the last words of a job that has ended may still be under way, through a
// shared file system.
const lateOutput = 10 * time.Second

// follow takes what a job did since the last time.
func (b *Backend) follow(r *running, s Status) {
	b.mu.Lock()
	r.phase = s.Phase
	if s.Phase >= Running && r.began.IsZero() {
		r.began = time.Now()
	}
	stop := r.stop
	b.mu.Unlock()
	if s.Phase >= Running || s.Phase == Unknown {
		b.readOutput(r)
	}
	switch s.Phase {
	case Unknown:
		if r.missing.IsZero() {
			r.missing = time.Now()
		}
		if r.parser.End != nil || time.Since(r.missing) > forgotten {
			b.end(r, outcome(r.parser.End, Status{Phase: Unknown, Cause: NodeFailure,
				Text: b.Engine.Name() + " no longer knows the job"}, stop, r.Launch.Host))
		}
		return
	case Ended:
		if r.ended.IsZero() {
			r.ended = time.Now()
		}
		if r.parser.End == nil && s.Cause == Exited && time.Since(r.ended) < lateOutput {
			break
		}
		b.end(r, outcome(r.parser.End, s, stop, r.Launch.Host))
	case Queued, Running:
		if stop {
			_ = b.Engine.Stop(r.ID) // again, until it has heard
		}
	}
	r.missing = time.Time{}
}

// readOutput takes everything that a job printed since the last time.
func (b *Backend) readOutput(r *running) {
	for {
		data, err := b.Engine.Output(r.ID, r.read)
		if err != nil || len(data) == 0 {
			return
		}
		b.mu.Lock()
		r.read += int64(len(data))
		begun := r.parser.Begun
		happened := r.parser.Feed(data)
		b.mu.Unlock()
		if on := r.parser.Begun; on != begun && on.Less(r.Launch.Host) {
			b.hasLess(*on, r.Launch.Host)
		}
		for _, h := range happened {
			h.Run = r.ID
			b.events <- h
		}
	}
}

func (b *Backend) end(r *running, o trial.Outcome) {
	b.mu.Lock()
	delete(b.jobs, r.ID)
	b.mu.Unlock()
	b.events <- trial.Happening{Run: r.ID, End: &o, Step: -1}
}

// outcome combines the reports of the run itself and of the cluster. The run knows what ran out and
// how much it took; the cluster knows who ended it from outside.
func outcome(told *trial.Outcome, s Status, stopped bool, reserved event.Bytes) trial.Outcome {
	o := trial.Outcome{ExitCode: -1, Launches: 1}
	if told != nil {
		o = *told
	}
	if told != nil && (o.ExitCode == 0 || o.OOM) || stopped {
		if stopped && told == nil {
			o.ExitCode, o.Signal = 143, "SIGTERM"
		}
		return o // finished or out of memory by its own word, whatever came after
	}
	o.Evidence = firstOf(s.Text, o.Evidence)
	switch s.Cause {
	case OutOfMemory:
		o.OOM, o.Where = true, event.WhereHost
		o.ExitCode, o.PeakHost = firstOf(o.ExitCode, 137), max(o.PeakHost, reserved)
	case NodeMemory:
		o.OOM, o.Where, o.Neighbour, o.ExitCode = true, event.WhereHost, true, 137
	case TimeLimit, Cancelled:
		o.Stopped, o.StopState = s.Text, trial.Stopped
	case NodeFailure, Preempted:
		o.Lost = true
	case NeverRan:
		o.NotStarted, o.ExitCode = s.Text, 125
	case Exited:
		if told == nil {
			exited(&o, s)
		}
	}
	return o
}

// exited: the command of the job ended and the run said nothing. It never began, or was killed
// together with memroom.
func exited(o *trial.Outcome, s Status) {
	o.ExitCode = s.Code
	switch s.Code {
	case 0: // it cannot have succeeded: nobody saw it
		o.Lost = true
	case 125, 126, 127, 2:
		o.NotStarted = firstOf(s.Text, fmt.Sprintf("memroom could not start it (exit %d)", s.Code))
	case 137, -9:
		o.Lost, o.Signal = true, "SIGKILL"
	}
}

func firstOf[T comparable](values ...T) T {
	var zero T
	for _, v := range values {
		if v != zero {
			return v
		}
	}
	return zero
}

// Usage is the last reading that a job sent. In a queue it takes nothing and gets no older.
func (b *Backend) Usage(run string) (u trial.Usage, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := b.jobs[run]
	if r == nil {
		return u, false
	}
	u = r.parser.Usage
	u.Held, u.Still = false, 0 // nobody can give or take while it runs
	u.Printed = event.Bytes(r.read)
	u.Age = 0
	if !r.began.IsZero() {
		u.Age = time.Since(r.began)
	}
	return u, true
}

var errFixed = errors.New("a cluster's allocation cannot be changed")

// Resize is not possible on a cluster.
func (b *Backend) Resize(string, event.Bytes) error { return errFixed }

// Release has nothing to do: nothing is held at its limit there.
func (b *Backend) Release(string) {}

// Stop asks a job to end; the cluster takes it from there.
func (b *Backend) Stop(run string) {
	b.mu.Lock()
	r := b.jobs[run]
	if r != nil {
		r.stop = true
	}
	b.mu.Unlock()
	if r != nil {
		b.hurry()
	}
}

// Events are what jobs did.
func (b *Backend) Events() <-chan trial.Happening { return b.events }

// Close leaves the jobs to the cluster.
func (b *Backend) Close() { close(b.over) }
