package trial

import (
	"cmp"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"memroom/event"
)

// State of a trial.
type State string

// A trial waits, runs, and ends in one of four ways. Infeasible: it does not fit into the study's
// memory; that is a constraint of the space, not a bad value.
const (
	Waiting    State = "waiting"
	Running    State = "running"
	Finished   State = "finished"
	Failed     State = "failed"
	Infeasible State = "infeasible"
	Stopped    State = "stopped"
)

// Over reports whether nothing follows.
func (s State) Over() bool { return s != Waiting && s != Running }

// Point is a reported value.
type Point struct {
	Step  int     `json:"step"`
	Value float64 `json:"value"`
}

// Trial is one setting and what became of it.
type Trial struct {
	ID       int
	Params   Params
	State    State
	Value    *float64 // of the metric; nil: none
	Why      string   // it failed, is infeasible or was stopped
	Text     string   // stood last in the output where the metric's number should be
	Attempts []Attempt

	host, device event.Bytes // least reservation of the next attempt
	fit          bool        // the next attempt has --fit's remedies
	overtaken    int         // by trials that were started in its place
	history      []Point
	trust        Trust
	forecasts    [2]cached // of host and device memory
}

// cached is a forecast and the version of what was learnt that it comes from.
type cached struct {
	forecast Forecast
	version  int
}

// forecast asks what was learnt, once for each version of it: the queue is long.
func (t *Trial) forecast(which int, m *Memory) Forecast {
	c := &t.forecasts[which]
	if v := m.version(); v == 0 || c.version != v {
		*c = cached{m.Forecast(t.Params), v}
	}
	return c.forecast
}

// History is what the trial reported in its last attempt, with the highest trust.
func (t *Trial) History() []Point { return t.history }

// Attempt is one launch of a trial.
type Attempt struct {
	Run      string      `json:"run"`
	Host     event.Bytes `json:"host"`             // reserved at the start
	Upper    event.Bytes `json:"upper,omitempty"`  // end of the forecast; 0: Host is
	Guess    bool        `json:"guess,omitempty"`  // Host comes from very few trials
	Device   event.Bytes `json:"device,omitempty"` // on each of its cards
	Cards    []int       `json:"cards,omitempty"`
	CPUs     float64     `json:"cpus"`
	Fit      bool        `json:"fit,omitempty"`
	Why      string      `json:"why,omitempty"` // this much memory
	Started  time.Time   `json:"started"`
	Ended    time.Time   `json:"ended,omitzero"`
	Reserved event.Bytes `json:"reserved,omitempty"` // at the end: it may have grown or shrunk
	OnCard   event.Bytes `json:"on_card,omitempty"`  // what it could take of each card at the end
	Outcome  *Outcome    `json:"outcome,omitempty"`
}

// Outcome is how an attempt ended, whatever engine ran it.
type Outcome struct {
	ExitCode   int         `json:"exit_code"`
	Signal     string      `json:"signal,omitempty"`
	OOM        bool        `json:"oom,omitempty"`
	Where      event.Where `json:"where,omitempty"`
	Itself     bool        `json:"itself,omitempty"`    // the program gave up, nobody killed it
	Neighbour  bool        `json:"neighbour,omitempty"` // the machine was full, not its own limit
	AtLimit    bool        `json:"at_limit,omitempty"`  // an error for want of memory at its limit
	Lost       bool        `json:"lost,omitempty"`      // by no fault of its own; Evidence: why
	NotStarted string      `json:"not_started,omitempty"`
	Unrecorded bool        `json:"unrecorded,omitempty"` // not started: there is no room for its record
	Framework  bool        `json:"framework,omitempty"`  // --fit's remedies have something to act on
	PeakHost   event.Bytes `json:"peak_host"`
	// the peak in the record of the trial's run; 0 where there is none. PeakHost may be more, because
	// it covers what no reading saw
	Recorded   event.Bytes `json:"recorded,omitempty"`
	PeakDevice event.Bytes `json:"peak_device,omitempty"`
	Seconds    float64     `json:"seconds"`
	CPUs       float64     `json:"cpus,omitempty"`     // processors used on average
	Launches   int         `json:"launches,omitempty"` // with --fit more than one
	Evidence   string      `json:"evidence,omitempty"`
	Stopped    string      `json:"stopped,omitempty"` // by us, and why
	StopState  State       `json:"stop_state,omitempty"`
}

// Peak is the host memory that people are shown: what the record of the run has, where there is
// one.
func (o Outcome) Peak() event.Bytes { return cmp.Or(o.Recorded, o.PeakHost) }

// EndedByUs is the outcome of an attempt that the study ended for a reason. How its processes then
// died, or whether anybody saw it, decides nothing any more; only what was measured stays.
func (o Outcome) EndedByUs(why string, state State) Outcome {
	out := Outcome{ExitCode: o.ExitCode, Signal: o.Signal, Stopped: why, StopState: state,
		Framework: o.Framework, PeakHost: o.PeakHost, Recorded: o.Recorded,
		PeakDevice: o.PeakDevice, Seconds: o.Seconds, CPUs: o.CPUs, Launches: o.Launches}
	if state == Finished {
		out.ExitCode, out.Signal, out.Stopped, out.StopState = 0, "", "", ""
	}
	return out
}

// Options of a study that its decisions depend on.
type Options struct {
	Metric  string  `json:"metric"`
	Mode    string  `json:"mode"` // min or max
	Best    bool    `json:"best"` // the value of a trial is its best report, not the last
	Retries int     `json:"retries"`
	Fit     bool    `json:"fit"` // the ladder ends with --fit's remedies
	CPUs    float64 `json:"cpus,omitempty"`
	GPUs    int     `json:"gpus,omitempty"` // cards of each trial
	// declared memory of each trial; 0: learnt
	TrialHost   event.Bytes `json:"trial_host,omitempty"`
	TrialDevice event.Bytes `json:"trial_device,omitempty"`
	Concurrent  int         `json:"concurrent,omitempty"` // trials at once; 0: as many as fit
}

// Less reports whether a is the better value.
func (o Options) Less(a, b float64) bool {
	if o.Mode == "max" {
		return a > b
	}
	return a < b
}

// Study is the state of a search: which trials there are, what was learnt, what comes next.
type Study struct {
	Options Options
	Trials  []*Trial

	Host   Memory // peaks of host memory
	Device Memory // peaks on a card
	ASHA   *ASHA  // nil: every trial runs to its end

	running  map[int]*live
	waiting  []*Trial // in the order of preference
	cpuShare float64  // of ended attempts, mean
	cpuSeen  int
	// tooLarge are settings that did not fit with everything there is, by what of them may take
	// memory, and the trial that showed it
	tooLarge   map[string]int
	rehearsals *rehearsals // nil: nothing is rehearsed
	confirmed  bool        // trials have shown that rehearsals speak of them
	late       lateGrowth
}

// live is the state of a running attempt that its record does not hold.
type live struct {
	trial     *Trial
	reserved  event.Bytes // of host memory, now
	upper     event.Bytes // what it may grow to by forecast
	grew      int         // how often it did
	held      bool        // it stands still at its limit
	gone      bool        // its processes have ended
	had       event.Bytes // reserved before they had
	device    event.Bytes
	limit     event.Bytes // of its allocator on a card, at least the reservation
	age       time.Duration
	used      event.Bytes // last reading of what cannot be dropped
	peak      event.Bytes
	peakDev   event.Bytes
	toldPeak  event.Bytes // that rehearsals were compared with
	toldDev   event.Bytes
	cpus      float64     // measured; 0: not yet
	settled   bool        // its memory has stood still for long enough
	settledAt event.Bytes // its peak then
	level     bool        // that on the card too
	alone     bool        // it was given everything, because nothing was known
	guess     bool        // or what very few trials let guess
	shared    bool        // others may have a quarter next to it
	whole     event.Bytes // what it had before
}

// NewStudy begins an empty study.
func NewStudy(o Options) *Study {
	return &Study{Options: o, Device: Memory{Fixed: true}, running: map[int]*live{}}
}

// Add appends a trial that waits.
func (s *Study) Add(p Params) *Trial {
	t := &Trial{ID: len(s.Trials), Params: p, State: Waiting}
	s.Trials = append(s.Trials, t)
	s.waiting = append(s.waiting, t)
	return t
}

// Start records a launch.
func (s *Study) Start(id int, a Attempt) {
	t := s.Trials[id]
	t.Attempts = append(t.Attempts, a)
	t.State = Running
	t.history, t.trust, t.overtaken = nil, 0, 0
	if s.ASHA != nil {
		s.ASHA.Forget(id)
	}
	for i, w := range s.waiting {
		if w == t {
			for _, passed := range s.waiting[:i] {
				if passed.forecasts[0].forecast.Likely >= a.Host {
					passed.overtaken++ // by a smaller one
				}
			}
			s.waiting = append(s.waiting[:i:i], s.waiting[i+1:]...)
			break
		}
	}
	s.running[id] = &live{trial: t, reserved: a.Host, upper: a.Upper, device: a.Device,
		alone: a.Why == aloneWords, guess: a.Guess}
}

// Vacate frees what a trial has reserved once its processes have ended. A later event reports how
// they ended. ok is false while too little is known, because what that trial took should be learnt
// first.
func (s *Study) Vacate(id int) (ok bool) {
	l := s.running[id]
	if l == nil || l.gone || s.Host.Count() < trusted {
		return false
	}
	l.gone, l.had = true, l.reserved
	l.reserved, l.upper, l.used, l.held = 0, 0, 0, false
	return true
}

// Running lists the trials that run, by number.
func (s *Study) Running() []*Trial {
	var out []*Trial
	for _, id := range sortedIDs(s.running) {
		out = append(out, s.running[id].trial)
	}
	return out
}

// WaitingCount is how many trials wait.
func (s *Study) WaitingCount() int { return len(s.waiting) }

// Reading takes a value of the metric and reports whether the trial goes on.
func (s *Study) Reading(id int, r Reading) Decision {
	t := s.Trials[id]
	if t.State != Running || r.Trust < t.trust {
		return GoOn
	}
	if r.Trust > t.trust {
		t.trust, t.history = r.Trust, nil
		if s.ASHA != nil {
			s.ASHA.Forget(id)
		}
	}
	step := r.Step
	if step < 0 {
		step = len(t.history) + 1
	}
	t.history = append(t.history, Point{step, r.Value})
	if s.ASHA == nil {
		return GoOn
	}
	return s.ASHA.Report(id, len(t.history), r.Value)
}

// value is the trial's result by the rule of the study; ok is false without a finite one.
func (s *Study) value(t *Trial) (value float64, ok bool) {
	for _, p := range t.history {
		finite := !math.IsNaN(p.Value) && !math.IsInf(p.Value, 0)
		if !s.Options.Best {
			value, ok = p.Value, finite
			continue
		}
		if finite && (!ok || s.Options.Less(p.Value, value)) {
			value, ok = p.Value, true
		}
	}
	return value, ok
}

// Usage is a reading of a running attempt's memory.
type Usage struct {
	Host   event.Bytes // what cannot be dropped
	Peak   event.Bytes // the most so far
	Device event.Bytes
	CPUs   float64
	Held   bool          // it stands still at its limit and waits for memory
	Holds  bool          // it would stand still at its limit, and can be given more there
	Still  time.Duration // since the peak last rose
	// CardSteps are the training steps it has made with a card, and CardRose the one at which its
	// peak there last rose. 0: it has made none, or nobody can see them.
	CardSteps, CardRose int64
	Age                 time.Duration
	// Printed is how much output there is, read or not.
	Printed event.Bytes
}

// Observe takes a reading. When the memory of a trial that was given everything stands still, the
// rest of its reservation becomes free; the new size is returned, 0: no change.
func (s *Study) Observe(id int, u Usage) (resize event.Bytes) {
	l := s.running[id]
	if l == nil || l.gone {
		return 0
	}
	l.age = u.Age
	l.used, l.peak, l.held = u.Host, max(l.peak, u.Peak, u.Host), u.Held
	l.peakDev = max(l.peakDev, u.Device)
	if l.peak > l.toldPeak || l.peakDev > l.toldDev {
		s.Host.Exceeds(l.trial.Params, l.peak)
		s.Device.Exceeds(l.trial.Params, l.peakDev)
		l.toldPeak, l.toldDev = l.peak, l.peakDev
	}
	if u.Age > time.Second {
		l.cpus = u.CPUs
	}
	if l.alone && !l.settled && u.Holds {
		if tight := s.share(l, u); tight > 0 {
			return tight
		}
	}
	patience := max(2*time.Second, u.Age/3)
	if len(l.trial.history) > 0 { // it trains: what it builds up is built up
		patience = max(time.Second, u.Age/4)
	}
	if l.settled || u.Still < patience || u.Held {
		return 0
	}
	l.settled, l.settledAt = true, l.peak
	if !l.trial.fit {
		s.Host.Learn(Observation{Params: l.trial.Params, Running: true,
			Bytes: event.Bytes(float64(l.peak) * s.late.factor())})
	}
	if !l.alone && !l.guess && (l.grew == 0 || !u.Holds) {
		return 0
	}
	tight := event.Bytes(float64(l.peak)*settledMargin) + pad
	if tight >= l.reserved {
		return 0
	}
	l.reserved = tight
	return tight
}

// share lets some trials begin during the first one of a study, before anybody knows what they
// take. Each begins with little, and what it grows by leaves the first twice what that holds.
// The new reservation of the first is returned, 0: no change.
func (s *Study) share(l *live, u Usage) event.Bytes {
	if l.shared || u.Host >= l.reserved/4 {
		return 0
	}
	l.shared, l.whole = true, l.reserved
	l.reserved /= 2
	return l.reserved
}

// ObserveDevice takes the reading of the card. Once a trial has trained for some steps and its peak
// did not rise over the last half of them, others can be forecast from it, and a trial that got the
// whole card returns all but a little more than it has. ObserveDevice returns the new reservation,
// or 0 for no change. Memory before the first steps is no guide, because a program then holds a
// context and perhaps weights. A trial that has run out of memory once keeps what it got.
func (s *Study) ObserveDevice(id int, u Usage) (resize event.Bytes) {
	l := s.running[id]
	if l == nil || l.device == 0 || l.level || u.Device == 0 || u.CardSteps < levelSteps ||
		2*u.CardRose > u.CardSteps {
		return 0
	}
	l.level = true
	if l.trial.fit {
		return 0
	}
	s.Device.Learn(Observation{Params: l.trial.Params, Bytes: l.peakDev, Running: true})
	tight := event.Bytes(float64(l.peakDev)*levelMargin) + cardPad
	if tight >= l.device || l.trial.shortages() > 0 {
		return 0
	}
	l.device = tight
	return tight
}

// GrowDevice returns how much of its cards a trial may have now that it is close to its
// reservation; 0: there is no room, or it is not close.
func (s *Study) GrowDevice(id int, u Usage, c Capacity) event.Bytes {
	l := s.running[id]
	if l == nil || l.device == 0 || float64(u.Device) < near*float64(l.device) ||
		l.level && l.peakDev <= l.device {
		return 0
	}
	cards := l.trial.Attempts[len(l.trial.Attempts)-1].Cards
	more := event.Bytes(float64(l.device) * 0.25)
	if c.GPU > 0 {
		more = min(more, (c.GPU-s.reservedOnCards())/event.Bytes(max(1, len(cards))))
	}
	for _, card := range cards {
		if card < len(c.Cards) {
			more = min(more, s.roomOn(card, c))
		}
	}
	if more < growStep {
		return 0
	}
	l.device += more
	return l.device
}

// CardCap is what a running trial's allocator may take of each of its cards: its reservation and
// all that nobody has reserved there. So a forecast that was too low costs nothing as long as there
// is room. While its peak still moves the cap leaves it half as much again.
func (s *Study) CardCap(id int, c Capacity) event.Bytes {
	l := s.running[id]
	if l == nil || l.device == 0 {
		return 0
	}
	slack := s.slack(l.trial.Attempts[len(l.trial.Attempts)-1].Cards, c)
	limit := l.device + max(0, slack)
	if !l.level {
		limit = max(limit, l.peakDev+l.peakDev/2)
	}
	l.limit = limit
	return limit
}

// FirstCap is [Study.CardCap] for a trial that is about to start.
func (s *Study) FirstCap(l Launch, c Capacity) event.Bytes {
	if l.Device == 0 {
		return 0
	}
	return max(l.Device, s.slack(l.Cards, c))
}

// slack is what nobody has reserved on each of some cards.
func (s *Study) slack(cards []int, c Capacity) event.Bytes {
	slack := event.Bytes(math.MaxInt64)
	if c.GPU > 0 {
		slack = (c.GPU - s.reservedOnCards()) / event.Bytes(max(1, len(cards)))
	}
	for _, card := range cards {
		if card < len(c.Cards) {
			slack = min(slack, s.roomOn(card, c))
		}
	}
	if slack == math.MaxInt64 {
		return 0
	}
	return slack
}

// ResizedDevice records a reservation on the cards that was changed.
func (s *Study) ResizedDevice(id int, device event.Bytes) {
	if l := s.running[id]; l != nil {
		l.device = device
	}
}

// ReservedDevice is what a running trial has reserved now on each of its cards.
func (s *Study) ReservedDevice(id int) event.Bytes {
	if l := s.running[id]; l != nil {
		return l.device
	}
	return 0
}

const (
	// levelMargin and cardPad are left to a trial whose memory on the card stands still. Evaluation
	// may come later, and running out there costs the attempt.
	levelMargin = 1.25
	cardPad     = 512 * event.MiB
	levelSteps  = 8
	// settledMargin is left to a trial whose memory stands still.
	settledMargin = 1.15
	// growth of a reservation that was too small
	growth = 1.5
	// growStep is the least by which a running trial grows
	growStep = 64 * event.MiB
	// near is the share of its reservation at which a trial asks for more
	near = 0.9
)

const aloneWords = "nothing is known yet: it has everything to itself"

// Grow returns how much a running trial may have now that it is close to its reservation; 0: there
// is no room, or it is not close. A trial grows only into memory that nobody reserved.
func (s *Study) Grow(id int, u Usage, c Capacity) event.Bytes {
	l := s.running[id]
	if l == nil || l.gone || !c.Elastic && !u.Held && float64(u.Host) < near*float64(l.reserved) {
		return 0
	}
	room := s.room(l, c)
	if c.Elastic && !u.Held {
		// It is not certain that it needs more. At the limit, though, system calls fail that write
		// into fresh memory, and many programs do not survive that.
		gap := Gap(l.reserved)
		if u.Host < l.reserved-gap || room < gap {
			return 0
		}
		more := max(2*gap, u.Host+gap-l.reserved)
		if l.guess && !l.settled { // nobody knows how far it goes
			more = max(more, l.reserved/2)
		}
		l.reserved += min(more, room)
		return l.reserved
	}
	// Small steps first: what is reserved in vain keeps another trial from starting.
	if u.Host > l.reserved { // it has gone into what nobody reserved
		l.reserved = min(u.Host, l.reserved+room)
		room = s.room(l, c)
	}
	want := max(l.reserved/32, growStep/4, (l.upper-l.reserved)/2) << min(l.grew, 4)
	if room < growStep/8 && room < want {
		return 0
	}
	l.grew++
	l.reserved += min(want, room)
	return l.reserved
}

// room is what nobody has reserved and no older trial may need; never less than nothing, because
// what a trial holds is not taken from it.
func (s *Study) room(l *live, c Capacity) event.Bytes {
	return max(0, min(c.Host-s.reserved(), s.reallyFree(c))-s.older(l))
}

// Slack is how far every trial may go beyond its reservation for a moment: half of what nobody has
// reserved, so that two that do so at the same time stay within the budget.
func (s *Study) Slack(c Capacity) event.Bytes {
	return max(0, min(c.Host-s.reserved(), s.reallyFree(c))) / 2
}

// Near reports whether a trial is so close to its limit that it must not go on without more.
func (s *Study) Near(id int, u Usage) bool {
	l := s.running[id]
	return l != nil && !l.gone && u.Holds && !u.Held && u.Host >= l.reserved-Gap(l.reserved)
}

// Gap is how far below its limit a trial is given more, before it stands still there.
func Gap(reserved event.Bytes) event.Bytes {
	return min(max(reserved/64, 4*event.MiB), 32*event.MiB)
}

// older is what trials that began before this one may need more. Of those that stand still none
// would get on if each were given a little. The first of a study may still rise: a younger one must
// not take the last there is.
func (s *Study) older(l *live) (sum event.Bytes) {
	begun := l.trial.Attempts[len(l.trial.Attempts)-1].Started
	for _, r := range s.running {
		if r == l || !r.trial.Attempts[len(r.trial.Attempts)-1].Started.Before(begun) {
			continue
		}
		switch {
		case r.held:
			sum += max(r.upper-r.reserved, r.reserved/2)
		case r.alone || r.guess:
			sum += max(0, s.mayNeed(r)-r.reserved)
		}
	}
	return sum
}

// mayNeed returns the memory that a running trial of which little is known may come to hold: by the
// trials that ended, once there are some; before that twice its present memory, and less once that
// stands still.
func (s *Study) mayNeed(r *live) event.Bytes {
	if s.Host.Count() > 0 || s.Host.ahead.said != nil {
		return max(r.peak, r.trial.forecast(0, &s.Host).Pooled)
	}
	if r.settled {
		return event.Bytes(float64(r.peak) * s.late.factor())
	}
	return 2 * r.peak
}

// lateGrowth learns how much trials still grow after their memory has stood still: an evaluation
// or a checkpoint may come late.
type lateGrowth struct {
	seen int
	most float64 // of the last ones, slowly forgotten
}

func (g *lateGrowth) learn(settled, final event.Bytes) {
	if settled <= 0 {
		return
	}
	g.seen++
	g.most = max(1, float64(final)/float64(settled), g.most*0.9)
}

// factor begins with a guess.
func (g lateGrowth) factor() float64 {
	const guess, least = 1.35, 1.05
	if g.seen < 3 {
		return max(guess, g.most)
	}
	return max(least, g.most)
}

// Resized records a reservation that was changed.
func (s *Study) Resized(id int, host event.Bytes) {
	if l := s.running[id]; l != nil {
		l.reserved = host
	}
}

// Reserved is what a running trial has reserved now.
func (s *Study) Reserved(id int) event.Bytes {
	if l := s.running[id]; l != nil {
		return l.reserved
	}
	return 0
}

// Victim is chosen when every running trial stands still at its limit: the one that began last is
// ended, and waits with a larger reservation.
func (s *Study) Victim(held map[int]bool) (id int, ok bool) {
	last := time.Time{}
	for _, n := range sortedIDs(s.running) {
		t := s.running[n].trial
		if !held[n] {
			return 0, false
		}
		if begun := t.Attempts[len(t.Attempts)-1].Started; !begun.Before(last) {
			id, last, ok = n, begun, true
		}
	}
	return id, ok
}

// End records how an attempt ended and decides what follows: the trial is over, or waits again.
func (s *Study) End(id int, at time.Time, o Outcome, c Capacity) {
	t, l := s.Trials[id], s.running[id]
	a := &t.Attempts[len(t.Attempts)-1]
	a.Outcome, a.Ended, a.Reserved, a.OnCard = &o, at, a.Host, a.Device
	if l != nil {
		a.Reserved, a.OnCard = max(l.reserved, l.had), max(l.device, l.limit)
		if o.ExitCode == 0 && o.Stopped == "" {
			s.late.learn(l.settledAt, max(l.peak, o.PeakHost))
		}
		delete(s.running, id)
	}
	s.learn(t, *a, o)
	switch {
	case o.Stopped != "" && o.StopState != Waiting:
		s.over(t, o.StopState, o.Stopped)
	case o.Stopped != "":
		s.again(t, o.Stopped)
	case o.Lost || o.Neighbour:
		s.lost(t, o)
	case o.OOM:
		s.ladder(t, *a, o, c)
	case o.NotStarted != "":
		s.over(t, Failed, o.NotStarted)
	case o.AtLimit && t.atLimit() <= mostAtLimit && float64(a.Reserved) < 0.97*float64(c.most()):
		t.host = s.more(max(a.Reserved, o.PeakHost), c)
		if t.atLimit() == mostAtLimit {
			t.host = c.most()
		}
		s.again(t, fmt.Sprintf("exited with code %d after it had come to its limit of %s, where system "+
			"calls may fail", o.ExitCode, a.Reserved))
	case o.ExitCode != 0:
		s.failed(t, o)
	default:
		s.finished(t)
	}
}

func (s *Study) finished(t *Trial) {
	value, ok := s.value(t)
	switch {
	case ok && (t.Text == "" || t.trust >= TrustPattern || missing[strings.ToLower(t.Text)]):
		t.Value = &value
		s.over(t, Finished, "")
	case ok:
		t.Value = &value
		s.over(t, Finished, fmt.Sprintf("the last number; after it the output has %s: %s",
			s.Options.Metric, inLine(t.Text)))
	case len(t.history) == 0 && t.Text != "":
		s.over(t, Failed, fmt.Sprintf("it finished without a number for %s: the output has %s there",
			s.Options.Metric, strconv.Quote(t.Text)))
	case len(t.history) == 0:
		s.over(t, Failed, fmt.Sprintf("it finished without reporting %s: print it as a line "+
			"such as %s=0.1, or as JSON, or name what it does report with --metric", s.Options.Metric,
			s.Options.Metric))
	default:
		s.over(t, Failed, fmt.Sprintf("its last %s is %v, not a number to compare",
			s.Options.Metric, value))
	}
}

// missing are words for a value that was not measured at that line.
var missing = map[string]bool{"none": true, "null": true}

func (s *Study) failed(t *Trial, o Outcome) {
	why := fmt.Sprintf("the command exited with code %d", o.ExitCode)
	if o.Signal != "" {
		why = "the command was ended by " + o.Signal
	}
	if o.Evidence != "" {
		why += "; " + o.Evidence
	}
	if t.failures() <= s.Options.Retries {
		s.again(t, why)
		return
	}
	s.over(t, Failed, why)
}

// mostAtLimit attempts that ended with an error at their limit are repeated with more memory; the
// last with everything.
const mostAtLimit = 2

// atLimit counts such attempts.
func (t *Trial) atLimit() (n int) {
	for _, a := range t.Attempts {
		if a.Outcome != nil && a.Outcome.AtLimit {
			n++
		}
	}
	return n
}

// failures counts attempts that ended with an error of the program's own.
func (t *Trial) failures() (n int) {
	for _, a := range t.Attempts {
		if o := a.Outcome; o != nil && !o.OOM && !o.Lost && !o.Neighbour && o.ExitCode != 0 &&
			o.Stopped == "" {
			n++
		}
	}
	return n
}

// lost tries again what ended by no fault of its own, a few times.
func (s *Study) lost(t *Trial, o Outcome) {
	const most = 3
	why := "nobody knows how it ended: the machine or its keeper went away"
	switch {
	case o.Neighbour:
		why = "the whole machine ran out of memory"
	case o.Evidence != "":
		why = o.Evidence
	}
	n := 0
	for _, a := range t.Attempts {
		if a.Outcome != nil && (a.Outcome.Lost || a.Outcome.Neighbour) {
			n++
		}
	}
	if n >= most {
		s.over(t, Failed, fmt.Sprintf("%s, %d times", why, n))
		return
	}
	s.again(t, why)
}

// ladder: more memory; then --fit's remedies, which keep the effective batch; then infeasible.
func (s *Study) ladder(t *Trial, a Attempt, o Outcome, c Capacity) {
	if o.Where == event.WhereGPU {
		s.deviceLadder(t, a, o, c)
		return
	}
	if o.Where == event.WhereShm {
		s.over(t, Failed, "shared memory (/dev/shm) ran out: "+o.Evidence)
		return
	}
	had := max(a.Reserved, a.Host)
	if !a.Fit && float64(had) < 0.97*float64(c.most()) {
		t.host = s.more(had, c)
		if o.Itself || t.shortages() > 1 {
			t.host = c.most()
		}
		s.again(t, "ran out of host memory at "+had.String())
		return
	}
	if s.Options.Fit && o.Framework && !a.Fit {
		t.host, t.fit = c.most(), true
		s.again(t, "ran out of host memory with all of "+had.String()+"; remedies of --fit come next")
		return
	}
	s.over(t, Infeasible, fmt.Sprintf("it needs more than %s of host memory, all there is for "+
		"the study", had))
}

func (s *Study) deviceLadder(t *Trial, a Attempt, o Outcome, c Capacity) {
	most := event.Bytes(0)
	for _, card := range c.Cards {
		most = max(most, card.Budget)
	}
	had := a.hadOnCard()
	if !a.Fit && float64(had) < 0.97*float64(most) && t.shortages() < mostShortages {
		t.device = min(most, event.Bytes(float64(had)*growth))
		if t.shortages() > 1 {
			t.device = most
		}
		s.again(t, "ran out of device memory at "+had.String())
		return
	}
	if s.Options.Fit && o.Framework && !a.Fit {
		t.device, t.fit = most, true
		s.again(t, "ran out of device memory with a whole card; remedies of --fit come next")
		return
	}
	s.over(t, Infeasible, fmt.Sprintf("it needs more than the %s of a card", had))
}

// mostShortages of a trial on a card: each next attempt has more, the third everything.
const mostShortages = 5

// hadOnCard is what the attempt could take of a card when it ended.
func (a Attempt) hadOnCard() event.Bytes {
	if a.OnCard > 0 {
		return a.OnCard
	}
	return a.Device // a journal of before reservations on cards could change
}

// shortages counts attempts that ran out of memory.
func (t *Trial) shortages() (n int) {
	for _, a := range t.Attempts {
		if a.Outcome != nil && a.Outcome.OOM {
			n++
		}
	}
	return n
}

func (s *Study) more(had event.Bytes, c Capacity) event.Bytes {
	return min(c.most(), event.Bytes(float64(had)*growth)+pad)
}

// again puts a trial first in the queue.
func (s *Study) again(t *Trial, why string) {
	t.State, t.Why = Waiting, why
	s.waiting = append([]*Trial{t}, s.waiting...)
}

func (s *Study) over(t *Trial, state State, why string) {
	t.State, t.Why = state, why
	s.noteTooLarge(t)
	if value, ok := s.value(t); ok && state == Stopped {
		t.Value = &value
	}
}

// learn takes what an attempt showed. Runs that failed early do not count for the peak.
func (s *Study) learn(t *Trial, a Attempt, o Outcome) {
	if o.Seconds > 0.2 && o.CPUs > 0 {
		s.cpuSeen++
		s.cpuShare += (o.CPUs - s.cpuShare) / float64(s.cpuSeen)
	}
	switch {
	case a.Fit:
	case o.OOM && o.Where == event.WhereGPU:
		s.Device.Learn(Observation{Params: t.Params, Bytes: a.hadOnCard(), AtLeast: true})
	case o.OOM && !o.Neighbour && !o.Itself:
		s.Host.Learn(Observation{Params: t.Params, Bytes: max(a.Reserved, a.Host), AtLeast: true})
	case o.ExitCode == 0 || o.Stopped != "" && o.StopState == Stopped:
		s.Host.Learn(Observation{Params: t.Params, Bytes: o.PeakHost})
		s.Device.Learn(Observation{Params: t.Params, Bytes: o.PeakDevice})
	}
}

// Ending is the record of an attempt's end: enough to restore the study without deciding anew.
type Ending struct {
	At      time.Time   `json:"at"`
	Outcome Outcome     `json:"outcome"`
	State   State       `json:"state"`
	Why     string      `json:"why,omitempty"`
	Value   *float64    `json:"value,omitempty"`
	Host    event.Bytes `json:"host,omitempty"` // least reservation of the next attempt
	Device  event.Bytes `json:"device,omitempty"`
	Fit     bool        `json:"fit,omitempty"`
	// Reserved is what the attempt had at its end.
	Reserved event.Bytes `json:"reserved,omitempty"`
	OnCard   event.Bytes `json:"on_card,omitempty"`
	History  []Point     `json:"history,omitempty"`
	Trust    Trust       `json:"trust,omitempty"`
}

// Ending describes the end that was just decided.
func (s *Study) Ending(id int) Ending {
	t := s.Trials[id]
	a := t.Attempts[len(t.Attempts)-1]
	return Ending{At: a.Ended, Outcome: *a.Outcome, State: t.State, Why: t.Why, Value: t.Value,
		Host: t.host, Device: t.device, Fit: t.fit, Reserved: a.Reserved,
		OnCard: a.OnCard, History: thin(t.history), Trust: t.trust}
}

// longestHistory is how many points of a trial are kept in the record.
const longestHistory = 500

// thin leaves out points between, never the last, and none that JSON cannot hold.
func thin(points []Point) []Point {
	var out []Point
	every := len(points)/longestHistory + 1
	for i, p := range points {
		if (i%every == 0 || i == len(points)-1) && !math.IsNaN(p.Value) && !math.IsInf(p.Value, 0) {
			out = append(out, p)
		}
	}
	return out
}

// Restore applies a recorded end.
func (s *Study) Restore(id int, e Ending) error {
	if id < 0 || id >= len(s.Trials) || len(s.Trials[id].Attempts) == 0 {
		return fmt.Errorf("trial %d ends in the journal without having begun", id)
	}
	t := s.Trials[id]
	a := &t.Attempts[len(t.Attempts)-1]
	a.Outcome, a.Ended, a.Reserved, a.OnCard = &e.Outcome, e.At, e.Reserved, e.OnCard
	delete(s.running, id)
	t.history, t.trust = e.History, e.Trust
	if s.ASHA != nil && e.State.Over() {
		for i, p := range e.History {
			s.ASHA.Report(id, i+1, p.Value)
		}
	}
	s.learn(t, *a, e.Outcome)
	t.State, t.Why, t.Value = e.State, e.Why, e.Value
	s.noteTooLarge(t)
	t.host, t.device, t.fit = e.Host, e.Device, e.Fit
	if t.State == Waiting {
		s.waiting = append([]*Trial{t}, s.waiting...)
	}
	return nil
}

// Undo takes back a launch that never began.
func (s *Study) Undo(id int) {
	t := s.Trials[id]
	if t.State != Running || len(t.Attempts) == 0 {
		return
	}
	t.Attempts = t.Attempts[:len(t.Attempts)-1]
	delete(s.running, id)
	s.again(t, t.Why)
}

// Best is the best finished trial; nil: none.
func (s *Study) Best() *Trial {
	var best *Trial
	for _, t := range s.Trials {
		if t.State == Finished && (best == nil || s.Options.Less(*t.Value, *best.Value)) {
			best = t
		}
	}
	return best
}

// Leading returns the trial whose last report is the best, and that report, where none has
// finished: a budget may end a study before. It returns nil if none has reported.
func (s *Study) Leading() (*Trial, Point) {
	var best *Trial
	var last Point
	for _, t := range s.Trials {
		if n := len(t.history); n > 0 && t.Value == nil &&
			(best == nil || s.Options.Less(t.history[n-1].Value, last.Value)) {
			best, last = t, t.history[n-1]
		}
	}
	return best, last
}

// Count returns how many trials are in each state.
func (s *Study) Count() map[State]int {
	out := map[State]int{}
	for _, t := range s.Trials {
		out[t.State]++
	}
	return out
}

func sortedIDs(m map[int]*live) []int {
	ids := make([]int, 0, len(m))
	for id := range m {
		ids = append(ids, id)
	}
	sortInts(ids)
	return ids
}
