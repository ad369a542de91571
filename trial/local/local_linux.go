package local

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"memroom/event"
	"memroom/lazyregexp"
	"memroom/meter"
	"memroom/supervise"
	"memroom/trial"
)

// Job is an attempt as the store knows it.
type Job struct {
	Run     string
	Files   supervise.Files
	Events  string // file of what happened, with the program's reports
	Samples string // file of readings
	Steps   string // file of what the probe saw of training steps
	Limit   string // file with what the allocator may take of a card; the probe reads it
	Keeper  []string
	Launch  supervise.Launch // of a new one
	Summary func() (event.Summary, error)
}

// Backend is the machine we are on.
type Backend struct {
	// New makes the record of an attempt; Find returns that of an earlier one.
	New  func(trial.Launch) (Job, error)
	Find func(run string) (Job, error)
	// Budgets of the study; Host 0 means what is free at the start.
	Host event.Bytes
	GPU  event.Bytes
	// Cards reads the accelerators; nil: there are none.
	Cards func() []trial.Card
	CPUs  float64       // 0: all
	Grace time.Duration // between asking a trial to end and ending it
	// Firm: the kernel ends a trial at its limit, because nobody is there to raise it.
	Firm bool

	proc   *meter.Proc
	around *meter.Cgroup
	events chan trial.Happening
	// slack is how far attempts may go beyond their reservations, in bytes
	slack atomic.Int64

	// mu is taken before an attempt's own
	mu    sync.Mutex
	jobs  map[string]*running
	holds bool // attempts stand still at their limits here
}

// running is an attempt with a keeper.
type running struct {
	Job
	front *supervise.Front

	mu       sync.Mutex
	state    supervise.State
	group    *meter.Cgroup // nil: none of its own
	hold     bool          // it stands still at its limit
	reserved event.Bytes
	limit    event.Bytes // of its cgroup: the reservation and the slack
	most     event.Bytes // that its cgroup ever held, files included
	wasFull  bool        // it came to its limit
	stood    event.Bytes // the limit to which it came last, perhaps raised since
	stoodAt  time.Time
	endFull  bool // it ended soon after, and had not grown
	stopped  bool
	paused   bool  // it was made to stand still
	heard    int64 // bytes of Events that were read
	shown    int64 // bytes of output that were handed on
	began    time.Time
	grown    time.Time // when its peak last rose
	peak     event.Bytes
	card     cardReading
	ticks    cpuReading
	last     sampleReading
	alarm    *alarm // nil: it does not stand still at its limit
}

// Open looks at the machine.
func (b *Backend) Open() error {
	b.proc = meter.NewProc("/proc")
	b.around, _ = meter.FindCgroup("/proc", "self")
	b.events = make(chan trial.Happening, 64)
	b.jobs = map[string]*running{}
	if b.CPUs == 0 {
		b.CPUs = float64(min(runtime.NumCPU(), runtime.GOMAXPROCS(0)))
	}
	free, err := b.free()
	if err != nil {
		return err
	}
	if b.Host == 0 {
		b.Host = free - max(free/20, 192*event.MiB) // for us and for what comes and goes
		if b.Host < 64*event.MiB {
			return fmt.Errorf("only %s of host memory are free here, too little to train: end other "+
				"programs, or give the study its memory with --host-mem", free)
		}
	}
	return nil
}

// Limit returns the most memory that this machine, or the cgroup around us, could ever provide.
func (b *Backend) Limit() event.Bytes {
	machine, err := b.proc.Machine()
	if err != nil {
		return 0
	}
	limit := machine.Total
	if b.around != nil {
		if l := b.around.Limit(); l > 0 {
			limit = min(limit, l)
		}
	}
	return limit
}

// free is what can really be had now.
func (b *Backend) free() (event.Bytes, error) {
	machine, err := b.proc.Machine()
	if err != nil {
		return 0, fmt.Errorf("how much memory this machine has cannot be read: %w", err)
	}
	free := machine.Available
	if b.around == nil {
		return free, nil
	}
	if s, err := b.around.Read(); err == nil && s.Limit > 0 {
		used := s.Current - (s.File - s.Shmem) // file pages give way
		if s.AtLimit > 0 {
			used = max(used, s.AtLimit-(s.File-s.Shmem))
		}
		free = min(free, s.Limit-used)
	}
	return free, nil
}

// Capacity reads what there is.
func (b *Backend) Capacity() (trial.Capacity, error) {
	free, err := b.free()
	c := trial.Capacity{CPUs: b.CPUs, Host: b.Host, HostFree: free, GPU: b.GPU,
		Elastic: b.elastic()}
	if b.Cards != nil {
		c.Cards = b.Cards()
	}
	return c, err
}

// elastic reports whether the attempts that run stand still at their limits. What the machine
// allows is known once the first has a cgroup, or none.
func (b *Backend) elastic() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range b.jobs {
		r.mu.Lock()
		started, grouped, holds := r.state.Attempt > 0, r.group != nil, r.hold
		r.mu.Unlock()
		if holds || started && !grouped {
			b.holds = holds
		}
	}
	return b.holds
}

// Prepare makes the record of an attempt.
func (b *Backend) Prepare(l trial.Launch) (string, error) {
	job, err := b.New(l)
	if err != nil {
		return "", err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.jobs[job.Run] = &running{Job: job, card: cardReading{limit: max(l.Device, l.Cap)}}
	return job.Run, nil
}

// Start begins a prepared attempt.
func (b *Backend) Start(run string) error {
	r := b.job(run)
	link, err := supervise.StartKeeper(r.Keeper, os.Environ(), nil)
	if err != nil {
		return err
	}
	r.front = b.newFront(r)
	if err := r.front.Join(link); err != nil {
		return err
	}
	if err := r.front.Launch(r.Launch); err != nil {
		return err
	}
	r.begin(time.Now())
	go b.follow(r)
	return nil
}

// took counts output that was handed on, and reports whether the attempt is being ended.
func (r *running) took(bytes int) (stopped bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.shown += int64(bytes)
	return r.stopped
}

func (r *running) begin(at time.Time) { r.began, r.grown = at, at }

func (b *Backend) job(run string) *running {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.jobs[run]
}

func (b *Backend) newFront(r *running) *supervise.Front {
	front := &supervise.Front{Files: r.Files}
	front.Show = func(_ int, data []byte) {
		if r.took(len(data)) {
			return // what follows decides nothing, and may be much
		}
		b.events <- trial.Happening{Run: r.Run, Output: bytes.Clone(data), Step: -1}
	}
	front.OnState = func(s supervise.State) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.state = s
		if s.Cgroup != "" && r.group == nil && !s.Finished {
			r.group = &meter.Cgroup{Dir: s.Cgroup, Version: s.CgroupV}
			r.hold = !b.Firm && s.HostLimit > 0 && hold(r.group, s.HostLimit)
			if r.hold {
				r.paused = true // a scheduler that was killed may have left it so
				r.pause(false)
				r.alarm = newAlarm(r.group, func() {
					b.events <- trial.Happening{Run: r.Run, Tight: true, Step: -1}
				})
				_ = r.setLimit(s.HostLimit, b.slackOf(r))
				r.alarm.limit(s.HostLimit)
			}
		}
	}
	front.Exited = func(exit event.Exit) {
		if exit.Code != 0 {
			r.mu.Lock()
			r.lookFull(r.limit, exit.CgroupPeak)
			r.endFull = r.keptStill()
			r.mu.Unlock()
		}
		if exit.Code == 0 && b.empty(r) {
			b.events <- trial.Happening{Run: r.Run, Gone: true, Step: -1}
		}
	}
	return front
}

// empty reports whether nothing is left in an attempt's cgroup: its memory is back.
func (b *Backend) empty(r *running) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.group == nil {
		return false
	}
	pids, err := r.group.Processes()
	return err == nil && len(pids) == 0
}

// Rejoin takes up an attempt of an earlier process: alive, ended meanwhile, or never begun.
func (b *Backend) Rejoin(run string, l trial.Launch) (begun bool, err error) {
	job, err := b.Find(run)
	if err != nil {
		return false, nil //nolint:nilerr // without a record it cannot have begun
	}
	state, err := supervise.ReadState(job.Files.State)
	if err != nil {
		return false, nil //nolint:nilerr // the keeper writes it before it can start anything
	}
	r := &running{Job: job, state: state, card: cardReading{limit: l.Device}}
	r.begin(state.Began)
	b.mu.Lock()
	b.jobs[run] = r
	b.mu.Unlock()
	r.front = b.newFront(r)
	if r.front.Attach(0, 0) == nil {
		go b.follow(r)
		return true, nil
	}
	// The keeper has gone. Its last words are in the files.
	state, err = supervise.ReadState(job.Files.State)
	if err != nil || state.Attempt == 0 {
		return false, nil
	}
	r.state = state
	go b.conclude(r)
	return true, nil
}

// follow hears an attempt to its end.
func (b *Backend) follow(r *running) {
	over := make(chan struct{})
	listening := make(chan struct{})
	go func() {
		defer close(listening)
		ticker := time.NewTicker(150 * time.Millisecond)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				b.hearReports(r)
			case <-over:
				return
			}
		}
	}()
	state, err := r.front.Follow()
	close(over)
	<-listening
	r.front.Close()
	r.mu.Lock()
	if err == nil {
		r.state = state
	}
	r.mu.Unlock()
	b.finish(r)
}

// conclude is follow for an attempt that ended while nobody listened.
func (b *Backend) conclude(r *running) { b.finish(r) }

// readRest passes on the output that was not passed on yet. The keeper of an attempt that has just
// ended reports only the end.
func (b *Backend) readRest(r *running) {
	if r.took(0) {
		return
	}
	file, err := os.Open(r.Files.Output)
	if err != nil {
		return
	}
	defer file.Close()
	if _, err := file.Seek(r.shown, io.SeekStart); err != nil {
		return
	}
	buf := make([]byte, 64<<10)
	for {
		n, err := file.Read(buf)
		if n > 0 {
			b.events <- trial.Happening{Run: r.Run, Output: bytes.Clone(buf[:n]), Step: -1}
		}
		if err != nil {
			return
		}
	}
}

// finish ends what the command left behind, so that its memory is back before the next start, and
// reports how the attempt ended.
func (b *Backend) finish(r *running) {
	left := b.sweep(r)
	r.mu.Lock()
	if r.alarm != nil {
		r.alarm.close()
	}
	r.mu.Unlock()
	b.readRest(r)
	b.hearReports(r)
	o := b.outcome(r)
	if left > 0 && o.ExitCode == 0 {
		o.Evidence = fmt.Sprintf("%s that it left behind were ended", event.Count(left, "process"))
	}
	b.mu.Lock()
	delete(b.jobs, r.Run)
	b.mu.Unlock()
	b.events <- trial.Happening{Run: r.Run, End: &o, Step: -1}
}

// sweep ends the processes that a command left behind and waits until they have gone.
func (b *Backend) sweep(r *running) (left int) {
	r.mu.Lock()
	state, group := r.state, r.group
	r.mu.Unlock()
	const gentle, longest = 2 * time.Second, 15 * time.Second
	began := time.Now()
	asked := false
	for time.Since(began) < longest {
		tree := meter.Tree{Proc: meter.NewProc("/proc"), Keeper: aliveKeeper(state),
			Except: []int{state.Monitor}, Cgroup: group}
		tree.Refresh(time.Now())
		pids := slices.DeleteFunc(slices.Clone(tree.Processes()), func(pid int) bool {
			return pid == state.Keeper || pid == state.Monitor || pid == os.Getpid()
		})
		if len(pids) == 0 {
			return left
		}
		if time.Since(began) > 100*time.Millisecond { // some are just on their way out
			left = max(left, len(pids))
			signal := syscall.SIGTERM
			if time.Since(began) > gentle {
				signal = syscall.SIGKILL
			}
			if !asked || signal == syscall.SIGKILL {
				for _, pid := range pids {
					_ = syscall.Kill(pid, signal)
				}
				asked = true
			}
			if group != nil {
				release(group)
			}
		}
		time.Sleep(30 * time.Millisecond)
	}
	return left
}

// aliveKeeper returns the keeper's number while it is that process; its number may be somebody
// else's by now.
func aliveKeeper(state supervise.State) int {
	if state.Keeper > 0 && supervise.SameProcess(state.Keeper, state.KeeperStart) {
		return state.Keeper
	}
	return 0
}

// outcome reads how an attempt ended from its record.
func (b *Backend) outcome(r *running) trial.Outcome {
	o := trial.Outcome{Launches: 1, PeakHost: r.peak}
	summary, err := r.Summary()
	exit := summary.Exit
	if exit == nil {
		exit = r.state.Exit
	}
	if exit == nil {
		o.Lost, o.ExitCode = true, -1
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			o.Evidence = err.Error()
		}
		return o
	}
	o.ExitCode, o.Signal, o.Seconds = exit.Code, exit.Signal, exit.Seconds
	o.NotStarted = exit.StartError
	o.Unrecorded = strings.Contains(exit.StartError, supervise.NotRecorded)
	if exit.Seconds > 0 {
		o.CPUs = exit.CPUSeconds / exit.Seconds
	}
	o.Launches = max(1, len(summary.Attempts))
	peaks := summary.Peaks
	most := exit.MaxResident
	switch {
	case peaks.Cgroup > 0 && most == 0:
		most = min(smallest, peaks.Cgroup)
	case peaks.Cgroup > 0:
		most = min(most, peaks.Cgroup)
	}
	o.PeakHost, o.Recorded = max(o.PeakHost, peaks.Unreclaimable, most), peaks.Unreclaimable
	for _, d := range peaks.Devices {
		o.PeakDevice = max(o.PeakDevice, ownPeak(d, r.card.limit))
	}
	o.Framework = summary.Steps > 0 || r.framework()
	if v := summary.Verdict; v != nil {
		o.OOM, o.Where = v.IsOOM, v.Where
		o.Itself = v.KilledBy == "itself"
		o.Neighbour = v.IsOOM && v.KilledBy == "kernel" && v.Where == event.WhereHost &&
			r.group == nil
		if len(v.Evidence) > 1 { // the first one is the exit code
			o.Evidence = v.Evidence[len(v.Evidence)-1]
		}
	}
	if o.ExitCode != 0 && o.Evidence == "" {
		o.Evidence = lastLine(r.Files.Output)
	}
	r.mu.Lock()
	full, reserved := r.wasFull, r.reserved
	// A thread that touches memory there waits: what goes on and fails is a system call.
	filled := r.endFull && float64(o.PeakHost) >= mostlyOwn*float64(r.stood)
	r.mu.Unlock()
	o.AtLimit = o.ExitCode != 0 && !o.OOM && (filled || full && o.PeakHost >= reserved/2 &&
		(brokenAtLimit(o) || failedCall.MatchString(tailText(r.Files.Output))))
	return o
}

// mostlyOwn is the share of a limit that an attempt itself holds where its memory, and not page
// cache, fills the cgroup.
const mostlyOwn = 0.9

// failedCall is what programs print of a system call that found no memory.
var failedCall = lazyregexp.New(`(?i)\bbad address\b|\berrno 1[24]\b|\bEFAULT\b|\bENOMEM\b|` +
	`\bcannot allocate memory\b`)

// brokenAtLimit reports whether an attempt ended like one that has no memory for a signal's frame.
// At the limit a thread that touches fresh memory waits, but a system call that writes into it
// fails with a bad address. Reaching the limit alone proves nothing, because page cache fills a
// cgroup too, and the kernel drops it.
func brokenAtLimit(o trial.Outcome) bool {
	for _, signal := range []syscall.Signal{syscall.SIGSEGV, syscall.SIGBUS} {
		if o.Signal == unix.SignalName(signal) || o.ExitCode == 128+int(signal) {
			return true
		}
	}
	return false
}

// lookFull notes whether the attempt came to a limit of its cgroup, of which known is the most that
// is known to have been in use. Version 2 slows it down before that. The caller holds the lock.
func (r *running) lookFull(limit, known event.Bytes) {
	const batch = 256 * event.KiB // in which the kernel counts
	if r.group == nil || !r.hold || r.group.Version != 1 || limit == 0 {
		return
	}
	if most, err := number(r.group, "memory.max_usage_in_bytes"); err == nil {
		known = max(known, most) // else the cgroup has gone with the last process
	}
	if known >= limit-batch {
		r.wasFull = r.wasFull || known > r.most
		r.stood, r.stoodAt = limit, time.Now()
	}
	r.most = max(r.most, known)
}

// keptStill reports whether an attempt that ends now came to its limit a short while ago and has
// not grown since. The limit may be raised between the call that failed there and the end. One
// that went on beyond the old limit found its memory. The caller holds the lock.
func (r *running) keptStill() bool {
	const soon, little = 30 * time.Second, 4 * event.MiB
	return r.stood > 0 && time.Since(r.stoodAt) < soon && r.most <= r.stood+max(r.stood/32, little)
}

// tailText is the end of what the command said.
func tailText(path string) string {
	file, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer file.Close()
	const tail = 4096
	if info, err := file.Stat(); err == nil && info.Size() > tail {
		_, _ = file.Seek(-tail, io.SeekEnd)
	}
	data, _ := io.ReadAll(io.LimitReader(file, tail))
	return strings.TrimSpace(strings.ToValidUTF8(string(data), "?"))
}

// lastLine is the last line that the command said: usually the error's text.
func lastLine(path string) string {
	text := tailText(path)
	text = text[strings.LastIndexAny(text, "\r\n")+1:]
	if len(text) > 200 {
		text = text[:200] + "..."
	}
	if text == "" {
		return ""
	}
	return "it said last: " + text
}

// framework reports whether a Python of the run imported one that --fit can act on.
func (r *running) framework() bool {
	data, err := os.ReadFile(r.Events)
	return err == nil && bytes.Contains(data, []byte(`"kind":"framework"`))
}

// hearReports reads what the program reported since the last time.
func (b *Backend) hearReports(r *running) {
	file, err := os.Open(r.Events)
	if err != nil {
		return
	}
	defer file.Close()
	if _, err := file.Seek(r.heard, io.SeekStart); err != nil {
		return
	}
	data, err := io.ReadAll(io.LimitReader(file, 4<<20))
	if err != nil {
		return
	}
	end := bytes.LastIndexByte(data, '\n') + 1
	r.heard += int64(end)
	for line := range bytes.Lines(data[:end]) {
		if !bytes.Contains(line, []byte(`"kind":"report"`)) {
			continue
		}
		var h event.Happened
		var said struct {
			Step   *int                `json:"step"`
			Values map[string]*float64 `json:"values"`
		}
		if json.Unmarshal(line, &h) != nil || json.Unmarshal(h.Data, &said) != nil {
			continue
		}
		out := trial.Happening{Run: r.Run, Values: map[string]float64{}, Step: -1}
		for name, value := range said.Values {
			out.Values[name] = math.NaN()
			if value != nil {
				out.Values[name] = *value
			}
		}
		if said.Step != nil && *said.Step > 0 {
			out.Step = *said.Step
		}
		b.events <- out
	}
}

// Stop ends an attempt: SIGTERM, and after the grace SIGKILL to everything.
func (b *Backend) Stop(run string) {
	r := b.job(run)
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stopped {
		return
	}
	r.stopped = true
	if r.front == nil {
		return
	}
	r.front.Signal(syscall.SIGTERM)
	if r.group != nil && r.hold {
		release(r.group) // one that stands still could not hear it
	}
	r.pause(false)
	grace := b.Grace
	if grace == 0 {
		grace = 5 * time.Second
	}
	time.AfterFunc(grace, func() {
		if b.job(run) != nil {
			r.front.Signal(syscall.SIGKILL)
			b.killAll(r)
		}
	})
}

func (b *Backend) killAll(r *running) {
	r.mu.Lock()
	state, group := r.state, r.group
	r.mu.Unlock()
	tree := meter.Tree{Proc: meter.NewProc("/proc"), Keeper: aliveKeeper(state),
		Except: []int{state.Monitor}, Cgroup: group}
	tree.Refresh(time.Now())
	for _, pid := range tree.Processes() {
		if pid != state.Keeper && pid != state.Monitor && pid != os.Getpid() {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

// Events are what attempts did.
func (b *Backend) Events() <-chan trial.Happening { return b.events }

// Close leaves the attempts to themselves. Those that stand still would do so for ever.
func (b *Backend) Close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range b.jobs {
		r.mu.Lock()
		if r.group != nil && r.hold {
			release(r.group)
		}
		r.pause(false)
		r.mu.Unlock()
	}
}

// smallest: of a process below the keeper's own size the kernel does not know how large it was (see
// supervise). Its cgroup does, files in the page cache included.
const smallest = 64 * event.MiB

// contextMost is what a process may hold on a card outside its allocator: the driver's context and
// the libraries' kernels and workspaces.
const contextMost = 768 * event.MiB

// ownPeak is what a trial took of a card. Where the driver names no processes, as in a container,
// its figure counts everybody on the card, other trials too. Then the framework knows its own;
// where that is silent too, the trial had no more than it was allowed.
func ownPeak(d event.DevicePeak, limit event.Bytes) event.Bytes {
	switch {
	case d.Ours > 0:
		return max(d.Ours, d.Reserved)
	case d.Reserved > 0:
		return max(d.Reserved, min(d.Used, d.Reserved+contextMost))
	case limit > 0:
		return min(d.Used, limit)
	}
	return d.Used
}
