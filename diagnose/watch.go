package diagnose

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"memroom/event"
)

// Watch judges a run while it runs. It is fed the reports of the probes and the readings of the
// meters, in order, and returns each finding once. A finding comes again only when something new is
// known about it (the line of code, a nearer end). Watch is not safe for concurrent use: the
// monitor feeds it from one place.
type Watch struct {
	limits    Thresholds
	processes map[place]*process
	hostLimit event.Bytes // that was set
	wall      event.Bytes // that host memory will hit first, as last seen
	limitOf   map[place]event.Bytes
	host      hostWatch
	eval      evalWatch
	models    map[string]bool // classes that were said
	caches    map[int]*cacheWatch
	traced    map[string]bool // functions that were said
	feeding   feedWatch
	trial     trialWatch
	loaded    map[int]event.Bytes            // the largest checkpoint that each process has loaded
	loads     map[string]bool                // what was said of them
	wholes    map[string]map[int]event.Bytes // file -> what each rank has read of it
	asks      []Ask
	forecasts map[string]Prediction
}

// place is one device of one process.
type place struct{ pid, device int }

// process is what is known about one device of one process.
type process struct {
	pid       int
	limits    Thresholds
	rank      *int
	series    Series
	taken     Series // what is taken for it, with freed memory between kept blocks
	holes     *Trend // its rise, where that is clearly faster
	gaping    bool   // this was said with the leak
	fragment  fragmentWatch
	thrash    thrashWatch
	spike     spikeWatch
	last      event.Step
	most      hostMost
	stepTime  time.Duration   // typical, of the last steps
	first     event.Step      // the second one seen: the first begins with imports
	recent    []time.Duration // of the last steps
	leak      *Trend          // as it was said
	byHeap    bool            // host memory is judged by the heap
	looked    int64           // step at which garbage was collected on suspicion, 0 not yet
	asked     bool            // for stacks and what grew on the heap
	quiet     int64           // step until which a cache fills
	collect   collection
	frames    []event.Frame
	holders   []Holder // what holds what grew, what matters most first
	heldAt    int64    // step at which that was answered, also with nobody; 0 not yet
	open      int      // questions about the heap that were not answered yet
	inVain    int      // answers for this rise that named nobody
	told      Prediction
	takenBack int    // leaks that turned out to be none
	said      string // the variable that was named for it
	lookedAt  time.Time
	heard     bool // it has answered what is on its heap
	built     int  // models that the program had begun by then
	models    bool // models built in a loop, or something else that grows like a leak, were named
}

// Ask is something a probe should do so that a judgement can be made or made better.
type Ask struct {
	PID   int
	Do    string // collect, record_stacks, heap: the probe's commands
	Steps int
}

// Prediction is a forecast in words and numbers, for the live view.
type Prediction struct {
	What      string        `json:"what"` // GPU memory of rank 0, host memory
	Step      int64         `json:"step"`
	LowStep   int64         `json:"low_step"`
	HighStep  int64         `json:"high_step"`
	In        time.Duration `json:"in_ns"` // from the step it was made at
	Low, High time.Duration `json:"-"`
}

// NewWatch begins to watch a run. hostLimit is a limit on host memory that no
// cgroup shows (a soft one), 0 for none.
func NewWatch(limits Thresholds, hostLimit event.Bytes) *Watch {
	return &Watch{limits: limits, processes: map[place]*process{}, hostLimit: hostLimit,
		wall: hostLimit, limitOf: map[place]event.Bytes{}, eval: newEvalWatch(),
		forecasts: map[string]Prediction{}}
}

// SetLimit sets how many bytes a process's allocator may reserve on a device: the card less its
// context and neighbours, or less where a fraction is set.
func (w *Watch) SetLimit(pid, device int, limit event.Bytes) {
	w.limitOf[place{pid,
		device}] = limit
}

// Steps takes the steps of a process in order.
func (w *Watch) Steps(pid int, rank *int, rows []event.Step) []event.Finding {
	var found []event.Finding
	for _, row := range rows {
		p := w.processes[place{pid, row.Device}]
		if p == nil {
			p = &process{pid: pid, limits: w.limits}
			p.spike.key = fmt.Sprintf("peak %d %d ", pid, row.Device)
			w.processes[place{pid, row.Device}] = p
		}
		if rank != nil {
			p.rank = rank
		}
		found = append(found, w.step(pid, p, row)...)
		if row.Device != event.HostDevice {
			found = append(found, w.hostBeside(pid, rank, row)...)
		}
	}
	return found
}

// hostBeside judges the host memory of a process that trains on a card, as often as the probe reads
// it there.
func (w *Watch) hostBeside(pid int, rank *int, row event.Step) []event.Finding {
	host := event.Step{Step: row.Step, Device: event.HostDevice, End: row.End,
		Duration: row.Duration, Resident: row.Resident, Anonymous: row.Anonymous, Heap: row.Heap}
	p := w.processes[place{pid, event.HostDevice}]
	if p != nil && (row.Step <= p.last.Step || p.sameHost(host)) || row.Anonymous == 0 {
		return nil
	}
	return w.Steps(pid, rank, []event.Step{host})
}

// sameHost reports whether the row repeats the last reading of the process's host memory.
func (p *process) sameHost(row event.Step) bool {
	if p.byHeap {
		return row.Heap == p.last.Heap
	}
	return row.Anonymous == p.last.Anonymous
}

// Gone forgets a process that has ended. It returns what is known better now than when it was said.
func (w *Watch) Gone(pid int) []event.Finding {
	var found []event.Finding
	for at, p := range w.processes {
		if at.pid == pid {
			found = append(found, w.finally(at, p)...)
		}
	}
	w.eval.end(pid)
	delete(w.caches, pid)
	delete(w.eval.known, pid)
	for at := range w.processes {
		if at.pid == pid {
			delete(w.forecasts, w.processes[at].name(at.device))
			delete(w.processes, at)
		}
	}
	return found
}

// Ended judges again what was said about the processes that are left at the end of an attempt.
func (w *Watch) Ended() []event.Finding {
	pids := map[int]bool{}
	for at := range w.processes {
		pids[at.pid] = true
	}
	var found []event.Finding
	for pid := range pids {
		found = append(found, w.Gone(pid)...)
	}
	return found
}

// finally words a leak with the figures of the whole run: those of its first steps may be far off.
func (w *Watch) finally(at place, p *process) []event.Finding {
	if p.leak == nil {
		return nil
	}
	if t, leaks := p.series.Leak(w.limits); leaks {
		p.leak = &t
	}
	for i, h := range p.holders {
		if strings.Contains(h.Kind, " of ") { // so many elements it had when it was looked at
			p.holders[i].At = p.heldAt
		}
	}
	found := p.again(at.device)
	for i := range found {
		found[i].Evidence = append(found[i].Evidence, p.evidence(at.pid)...)
	}
	return found
}

// Asks returns what probes should be asked to do, once each.
func (w *Watch) Asks() []Ask {
	asks := w.asks
	w.asks = nil
	return asks
}

// Forecasts returns the predictions that hold now.
func (w *Watch) Forecasts() []Prediction {
	var all []Prediction
	for _, p := range w.forecasts {
		all = append(all, p)
	}
	return all
}

func (w *Watch) step(pid int, p *process, row event.Step) []event.Finding {
	limit := w.limitOf[place{pid, row.Device}]
	floor, above := float64(row.Allocated), float64(p.above(row))
	reserved := float64(row.Reserved - row.InactiveSplit) // between kept parts it is not asked for
	if row.Device == event.HostDevice {
		floor, above = p.hostFloor(row)
		if w.host.sees(p.stepTime) { // temporaries may fit into what is free already
			above = 0
		}
		tree := max(w.host.tree, w.host.crest()-event.Bytes(above))
		reserved, limit = 0, p.heapLimit(w.wall, tree, row)
	}
	working := 0.0
	// Gradients are there after the step and not before backward, so this can be negative: what
	// counts is whether it grows. The same again was not read anew, and in the first step the
	// optimizer makes its state.
	if row.AtBackward > 0 && row.AtBackward != p.last.AtBackward && p.last.Step > 0 {
		working = float64(row.AtBackward) - floor
	}
	p.took(row.Duration)
	if p.first.Step == 0 && p.last.Step > 0 {
		p.first = row
	}
	p.most.step(row)
	p.series.Add(row.Step, floor, reserved, working, w.limits)
	p.take(row)
	p.collect.saw(floor)
	var found []event.Finding
	found = append(found, w.leaks(pid, p, row)...)
	found = append(found, w.forecast(p, row, float64(limit), above)...)
	if row.Device != event.HostDevice {
		found = append(found, p.fragment.step(row, limit, w.limits)...)
		found = append(found, p.thrash.step(row, w.limits)...)
		found = append(found, p.spike.step(row, limit, w.limits)...)
	}
	p.last = row
	for i := range found {
		found[i].Evidence = append(found[i].Evidence, p.evidence(pid)...)
	}
	return found
}

// hostFloor returns the bytes that the process holds in host memory: its heap where that is most of
// its memory, else its pages, which are noisy. The choice is made once, so that the series stays
// one.
func (p *process) hostFloor(row event.Step) (floor, above float64) {
	if p.last.Step == 0 {
		if p.byHeap = row.Heap > row.Anonymous/4; p.byHeap {
			p.series.Quantum = 4096
		}
	}
	if p.byHeap {
		return float64(row.Heap), float64(max(0, row.AtBackward-row.Heap))
	}
	return float64(row.Anonymous), 0
}

// heapLimit is where the floor would be when host memory hits its wall: the heap leaves room for
// the process's other pages and, as the last reading of the meters has it, for those of the run's
// other processes.
func (p *process) heapLimit(wall, tree event.Bytes, row event.Step) event.Bytes {
	if wall == 0 {
		return 0
	}
	wall -= max(0, tree-row.Anonymous)
	if p.byHeap {
		wall -= max(0, row.Anonymous-row.Heap)
	}
	return max(wall, 1)
}

// above is what a step needs above its floor: its peak if it set a new one, else what was live when
// backward began.
func (p *process) above(row event.Step) event.Bytes {
	if row.PeakAllocated > p.last.PeakAllocated && p.last.Step > 0 {
		return row.PeakAllocated - row.Allocated
	}
	return max(0, row.AtBackward-row.Allocated)
}

func (p *process) evidence(pid int) []string {
	if p.rank != nil {
		return []string{fmt.Sprintf("rank %d, process %d", *p.rank, pid)}
	}
	return []string{fmt.Sprintf("process %d", pid)}
}

func (p *process) name(device int) string {
	name := "host memory"
	if device != event.HostDevice {
		name = fmt.Sprintf("GPU %d memory", device)
	}
	if p.rank != nil {
		name += fmt.Sprintf(" of rank %d", *p.rank)
	}
	return name
}

// leaks goes from suspicion to a finding. On suspicion garbage is collected, once, so that memory
// which only waits for the collector falls back; if it does not, stacks or the heap are looked at
// while the rise goes on.
func (w *Watch) leaks(pid int, p *process, row event.Step) []event.Finding {
	if p.series.Suspect(w.limits) {
		w.look(pid, p, row)
	}
	if p.leak != nil {
		found := w.ended(p, row)
		if len(found) == 0 && p.holes != nil && !p.gaping && p.gapes(*p.leak) {
			found = p.again(row.Device)
		}
		return found
	}
	t, leaks := p.series.Leak(w.limits)
	if !leaks || p.takenBack >= mostTakenBack || row.Device == event.HostDevice &&
		!t.MattersOnHost(p.byHeap, w.limits) {
		return nil
	}
	if p.models && p.maybeModels() || p.onlyFills(row) { // said as that, or no leak
		return nil
	}
	if p.outdated(t) {
		p.forget() // the next step asks again
		return nil
	}
	if row.Device == event.HostDevice && w.overshadowed(pid, t) || p.searches(row.Device) ||
		p.waits(row) {
		return nil
	}
	if p.collect.doubts(t) {
		if p.collect.due(row.Step) {
			w.askCollection(pid, p)
		}
		return nil
	}
	p.leak, p.gaping = &t, false
	return []event.Finding{p.leakFinding(t, row.Device)}
}

// overshadowed reports whether the same process's memory on a card rises faster: what a graph that
// is kept there holds in host memory is no finding of its own.
func (w *Watch) overshadowed(pid int, t Trend) bool {
	for at, p := range w.processes {
		if at.pid == pid && at.device != event.HostDevice && p.series.rising &&
			p.series.trend.Slope > t.Slope {
			return true
		}
	}
	return false
}

// mostTakenBack bounds how often something may be called a leak and taken back: after that it is
// known to come and go.
const mostTakenBack = 2

// ended withdraws a leak that rises no more: a cache that took long to fill, or garbage that was
// collected after all. In the first steps these look like a leak.
func (w *Watch) ended(p *process, row event.Step) []event.Finding {
	lost, over := p.series.Ended(*p.leak, w.limits)
	if !over {
		return nil
	}
	f := p.leakFinding(*p.leak, row.Device)
	f.Severity, f.Remedies, f.Confidence, f.Evidence = event.SeverityInfo, nil, 0.5, nil
	f.Title = fmt.Sprintf(
		"no leak in %s: it grew by %s per step from step %d to %d and stopped, like a cache that is full",
		p.name(row.Device), event.Bytes(math.Round(p.leak.Slope)), p.leak.Onset, p.series.rose)
	if lost {
		f.Title = fmt.Sprintf(
			"no leak in %s: it grew by %s per step from step %d and was freed at step %d",
			p.name(row.Device), event.Bytes(math.Round(p.leak.Slope)), p.leak.Onset, row.Step)
	}
	p.leak, p.takenBack = nil, p.takenBack+1
	p.forget()
	return []event.Finding{f}
}

// look asks for a first count of the heap, and some steps later for stacks and for what grew
// meanwhile.
func (w *Watch) look(pid int, p *process, row event.Step) {
	growing := row.Device != event.HostDevice || p.byHeap ||
		p.series.trend.MattersOnHost(false, w.limits)
	switch {
	case !growing, row.Step < p.quiet:
	// what began after the look before has no baseline yet
	case p.looked == 0 || !p.asked && p.series.trend.Onset > p.looked+lookSteps:
		p.looked, p.lookedAt = row.Step, row.End
		w.askCollection(pid, p)
		w.askHeap(pid, p)
		if row.Device != event.HostDevice {
			w.asks = append(w.asks, Ask{PID: pid, Do: "record_stacks", Steps: lookSteps})
		}
	case p.collect.helped && p.collect.times < fewTimes && p.series.trend.Onset >= p.collect.at &&
		p.collect.due(row.Step):
		w.askCollection(pid, p) // was it that, or garbage from the start of the program?
	case !p.asked && row.Step >= p.looked+lookSteps:
		p.asked = true
		w.askHeap(pid, p)
	}
}

func (w *Watch) askHeap(pid int, p *process) {
	p.open++
	w.asks = append(w.asks, Ask{PID: pid, Do: "heap"})
}

func (w *Watch) askCollection(pid int, p *process) {
	p.collect.pending = true
	p.collect.times++
	w.asks = append(w.asks, Ask{PID: pid, Do: "collect"})
}

// Collected takes it that a probe has collected garbage, after its last step.
func (w *Watch) Collected(pid int) {
	for at, p := range w.processes {
		if at.pid == pid && p.collect.pending {
			p.collect = collection{at: p.last.Step, level: p.series.last(),
				growth: p.series.trend.Growth, open: seenAfter,
				helped: p.collect.helped, times: p.collect.times}
		}
	}
}

// collection is what is known about garbage: objects that refer to each other wait for the
// interpreter's collector, which may come only every hundred steps, and grow like a leak until
// then. Where a rise was lost when garbage was collected for us, the next one is called a leak only
// if it outlasts another collection.
type collection struct {
	pending bool    // asked for
	at      int64   // last step before it was done
	level   float64 // memory then
	growth  float64 // and how far it had risen
	open    int     // readings that may still show what it brought
	helped  bool
	times   int
}

const (
	// readings after a collection within which memory falls if it brought anything
	seenAfter    = 3
	fewTimes     = 3   // collections asked for without delay
	collectEvery = 100 // steps between the others: a collection can take a tenth of a second
)

// saw notes a reading after a collection.
func (c *collection) saw(floor float64) {
	if c.open == 0 {
		return
	}
	c.open--
	if floor < c.level-0.5*c.growth {
		c.helped, c.open = true, 0
	} else if c.open == 0 {
		c.helped = false
	}
}

// doubts reports whether a rise may be garbage that was not collected yet.
func (c *collection) doubts(t Trend) bool {
	return c.helped && (c.pending || c.open > 0 || t.Onset > c.at)
}

// due reports whether another collection may be asked for.
func (c *collection) due(step int64) bool {
	return !c.pending && c.open == 0 && (c.times < fewTimes || step >= c.at+collectEvery)
}

// lookSteps is how long the probe watches what a rising floor is made of.
const lookSteps = 12

func (p *process) leakFinding(t Trend, device int) event.Finding {
	f := leakFinding(p.name(device), t, p.frames)
	f.Key = fmt.Sprintf("leak %d %d", p.pid, device)
	if len(p.holders) > 0 && p.holders[0].Models > 0 {
		f.Detail, f.Remedies = "models_in_loop", []string{"release_models", "fresh_process"}
	}
	held := p.holding(device)
	if len(held) > 0 {
		f.Title += ", held by " + both(held)
	}
	for _, h := range held {
		f.Evidence = append(f.Evidence, h.evidence())
	}
	if cures, detail := curesOf(held); len(cures) > 0 {
		f.Remedies, f.Detail = cures, detail
	}
	p.between(&f, t)
	if len(p.frames) == 0 && len(held) == 0 {
		f.Evidence = append(f.Evidence, "the line is unknown: no call stacks were recorded")
	}
	return f
}

// gap is how a rise counts against the limit: the steps since its onset, what was taken in them,
// what of it is kept, and what lies free.
func (p *process) gap(t Trend) (steps, taken, kept, free float64) {
	grown := func(points []Point) (by, over float64) {
		if points = since(points, t.Onset); len(points) > 0 {
			first, last := points[0], points[len(points)-1]
			by, over = last.Value-first.Value, float64(last.Step-first.Step)
		}
		return by, over
	}
	taken, steps = grown(p.taken.floor)
	kept, _ = grown(p.series.floor)
	free, _ = grown(p.taken.reserved)
	return steps, taken, kept, free
}

// gapes reports whether clearly more is taken than is kept, and most of the rest is seen to lie
// free in between.
func (p *process) gapes(t Trend) bool {
	_, taken, kept, free := p.gap(t)
	return taken > p.limits.Holes*kept && kept > 0 && free >= (taken-kept)/2
}

// between adds to a finding what counts against the limit, where that is more than what is kept.
func (p *process) between(f *event.Finding, t Trend) {
	if p.gaping = p.gapes(t); !p.gaping {
		return
	}
	steps, taken, _, _ := p.gap(t)
	f.Bytes = event.Bytes(taken * float64(t.Steps) / steps)
	f.Title += fmt.Sprintf("; memory grows by %s per step, because what is freed between the kept "+
		"parts stays with the process", event.Bytes(math.Round(taken/steps)))
	f.Evidence[0] = fmt.Sprintf("grew by %s in %.0f steps, of which %s are kept; the rest was freed in "+
		"between, in pieces that what is asked for next does not fit into", event.Bytes(taken), steps,
		event.Bytes(t.Growth))
}

// Held is memory that one call stack allocated during a recording window and that stayed.
type Held struct {
	Growth event.Bytes
	Count  int
	Frames []event.Frame // innermost first
}

// Stacks takes what a recording window of so many steps found, most growth first. A leak that was
// already said is said again with its lines.
func (w *Watch) Stacks(pid, device, steps int, held []Held) []event.Finding {
	p := w.processes[place{pid, device}]
	if p == nil || len(held) == 0 {
		return nil
	}
	p.frames = sourceOf(held, steps)
	return p.again(device)
}

// sourceOf picks the stack that leaks: among those that grew steadily, the one that grew most. A
// stack that keeps one block (this step's batch or loss) does not grow; one that keeps a block a
// step has about half as many as the window has steps since its middle.
func sourceOf(held []Held, steps int) []event.Frame {
	best := held[0]
	for _, h := range held {
		if h.Count >= steps/3 {
			best = h
			break
		}
	}
	return best.Frames
}

// again words a leak anew that was said before its line was known.
func (p *process) again(device int) []event.Finding {
	if p.leak == nil || p.models && p.maybeModels() {
		return nil
	}
	return []event.Finding{p.leakFinding(*p.leak, device)}
}

// took renews the typical duration of a step: the median of the last ones. The first step begins
// with the import of the framework, and an evaluation in between lasts minutes; a mean would carry
// either for a long time.
func (p *process) took(d time.Duration) {
	const kept = 31
	if len(p.recent) == kept {
		p.recent = append(p.recent[:0], p.recent[1:]...)
	}
	p.recent = append(p.recent, d)
	sorted := slices.Sorted(slices.Values(p.recent))
	p.stepTime = sorted[len(sorted)/2]
}

// pace is the time from one step to the next: a step's own, or, where the program does other things
// in between (evaluation, the next model of a search), what it was on average.
func (p *process) pace(row event.Step) time.Duration {
	if p.first.Step == 0 || row.Step <= p.first.Step || p.first.End.IsZero() {
		return p.stepTime
	}
	mean := row.End.Sub(p.first.End) / time.Duration(row.Step-p.first.Step)
	return max(p.stepTime, mean)
}

// take notes what a process takes for what it keeps, where the two may differ: its pages beside its
// heap, and on a card what lies free in segments that are partly in use.
func (p *process) take(row event.Step) {
	split, limits := float64(row.InactiveSplit), p.limits
	switch {
	case row.Device != event.HostDevice:
		p.taken.Add(row.Step, float64(row.Allocated+row.InactiveSplit), split, 0, limits)
	// pages are read anew whenever the heap rises
	case p.byHeap && (row.Anonymous != p.last.Anonymous || row.Heap > p.last.Heap):
		p.taken.Add(row.Step, float64(row.Anonymous), split, 0, limits)
	}
	t := p.taken.trend
	switch {
	case !p.series.rising || p.taken.rose < row.Step-limits.LeakSteps:
		p.holes = nil
	case p.taken.rising && t.even && 2*t.Steps >= p.series.trend.Steps &&
		(row.Device != event.HostDevice || t.MattersOnHost(false, limits)):
		// what programs and allocators take at their beginning levels off
		slope, kept := math.Min(t.Slope, p.taken.lately(t.Steps/2)), p.series.trend.Slope
		if slope-2*t.Error > limits.Holes*kept {
			p.holes = &Trend{Slope: slope, Error: t.Error, Noise: t.Noise, Wander: t.Wander}
		} else if slope < kept {
			p.holes = nil
		}
	}
}

// room is what is left for what the process takes: under its wall, less what a step needs on the
// way. On the host that is the highest of the last readings of all processes.
func (w *Watch) room(row event.Step, limit, above float64) float64 {
	if row.Device != event.HostDevice {
		return limit - above - float64(row.Allocated+row.InactiveSplit)
	}
	return float64(w.wall - w.host.crest())
}

// forecast predicts when the floor will reach its limit, or what is taken for it will. It does so
// the first time, and again when the end has come much nearer than predicted, or is near.
func (w *Watch) forecast(p *process, row event.Step, limit, above float64) []event.Finding {
	f, told := p.series.Forecast(limit-above, w.limits)
	left := limit - above - f.Trend.Level
	if p.holes != nil && p.series.foreseeable(limit-above, w.limits) {
		left = w.room(row, limit, above)
		f = p.holes.reaches(left, row.Step)
		told = p.series.near(f, w.limits)
	}
	if row.Device == event.HostDevice && told { // how high the next steps go is known no better
		slack := int64(w.host.unrest() / f.Trend.Slope)
		f.Low, f.High = max(row.Step+1, f.Low-slack), f.High+slack
	}
	name := p.name(row.Device)
	if !told || row.Device == event.HostDevice && !p.series.trend.MattersOnHost(p.byHeap, w.limits) {
		delete(w.forecasts, name)
		return nil
	}
	after := func(step int64) time.Duration { return time.Duration(step-row.Step) * p.pace(row) }
	now := Prediction{What: name, Step: f.Step, LowStep: f.Low, HighStep: f.High, In: after(f.Step),
		Low: after(f.Low), High: after(f.High)}
	w.forecasts[name] = now
	if p.told.Step > 0 && p.told.holds(now, row.Step, w.limits) {
		return nil
	}
	p.told = now
	return []event.Finding{{
		Kind: "forecast", Key: "forecast " + name, Severity: severityOf(now.In), Step: row.Step,
		Bytes: event.Bytes(left), Confidence: 0.9,
		Title: fmt.Sprintf("%s will run out in about %s, at step ~%d", capital(name),
			inWords(now.In), f.Step),
		Evidence: []string{
			fmt.Sprintf("between step %d and %d (in %s to %s)", f.Low, f.High, inWords(now.Low),
				inWords(now.High)),
			fmt.Sprintf("%s are left, and each step takes %s more", event.Bytes(left),
				event.Bytes(f.Trend.Slope)),
		},
	}}
}

// holds reports whether a prediction needs no other words, now that it reads otherwise: the end is
// about as far off as it was said, or lies where it was said to and is not known much better. One
// that is put off is put off for some time.
func (p Prediction) holds(now Prediction, step int64, limits Thresholds) bool {
	moved, left := now.Step-p.Step, now.Step-step
	switch {
	case max(moved, -moved) <= left/3, moved > 0 && left < limits.LevelSteps:
		return true
	case now.Step < p.LowStep, now.Step > p.HighStep, -moved > left/2:
		return false
	}
	return 2*(now.HighStep-now.LowStep) > p.HighStep-p.LowStep
}

func severityOf(in time.Duration) event.Severity {
	if in < time.Hour {
		return event.SeverityError
	}
	return event.SeverityWarning
}

// inWords prints a duration as people say it: 40 s, 12 min, 2 h 10 min, 3 days.
func inWords(d time.Duration) string {
	switch {
	case d < 90*time.Second:
		return fmt.Sprintf("%d s", int(d.Round(time.Second).Seconds()))
	case d < 90*time.Minute:
		return fmt.Sprintf("%d min", int(d.Round(time.Minute).Minutes()))
	case d < 48*time.Hour:
		d = d.Round(10 * time.Minute)
		return fmt.Sprintf("%d h %02d min", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%d days", int(d.Hours()/24))
}
