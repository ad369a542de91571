package trial

import (
	"fmt"
	"math"
	"slices"
	"time"

	"memroom/event"
)

// Capacity is the budget of a study, and the memory that is free at this moment.
type Capacity struct {
	CPUs     float64
	Host     event.Bytes // the study's budget
	HostFree event.Bytes // of the machine or the cgroup around us, neighbours included
	// Of the largest node of a cluster, where one trial must fit; 0: there is one machine.
	NodeHost event.Bytes
	NodeCPUs float64
	Nodes    map[string]event.Bytes // memory of each node of a cluster, by its name
	// Elastic: a trial at its limit stands still and can be given more. Reservations then begin with
	// what is likely, and what some will need beyond that is kept free for all of them together.
	Elastic bool
	Cards   []Card
	GPU     event.Bytes // budget over all cards; 0: what they have
}

// most is what a single trial can have at the most.
func (c Capacity) most() event.Bytes {
	if c.NodeHost > 0 {
		return min(c.Host, c.NodeHost)
	}
	return c.Host
}

func (c Capacity) mostCPUs() float64 {
	if c.NodeCPUs > 0 {
		return min(c.CPUs, c.NodeCPUs)
	}
	return c.CPUs
}

// Card is one accelerator.
type Card struct {
	UUID   string
	Name   string
	Budget event.Bytes // of the card for the study
	Free   event.Bytes // really
}

// Launch is what a backend is asked to start.
type Launch struct {
	Trial   int
	Attempt int // from 1
	Params  Params
	Host    event.Bytes
	Upper   event.Bytes // what it may grow to by forecast; at most Host: nothing is known of that
	Guess   bool        // Host comes from very few trials
	Device  event.Bytes
	Cap     event.Bytes // of its allocator on each card: at least Device
	Cards   []int
	CPUs    float64
	Fit     bool
	Why     string
}

// patience: a trial that was overtaken this often holds everybody up until it fits.
const patience = 64

// window is how many waiting trials are looked at: the cost of a decision must not grow with the
// queue.
const window = 256

// Next returns the next trial to start, if one fits now. The largest that fits goes first, as in
// packing boxes; those that were passed over too often block the others. One at a time go in their
// order: there is nothing to pack, and schedulers decide by who came before.
func (s *Study) Next(c Capacity) (Launch, bool) {
	if len(s.waiting) == 0 || s.frozen() || s.ramping(c) || s.Options.Concurrent > 0 &&
		len(s.running) >= s.Options.Concurrent {
		return Launch{}, false
	}
	var best Launch
	found := false
	early := s.early()
	for _, t := range s.waiting[:min(window, len(s.waiting))] {
		if s.awaits(t) && t != early {
			continue
		}
		if s.rehearsals != nil && s.rehearsals.remedies[sizeKey(t.Params)] && !t.fit &&
			len(t.Attempts) == 0 {
			s.beginWithRemedies(t, c)
		}
		l, ready := s.need(t, c)
		if !ready {
			return Launch{}, false // an unknown trial runs before the others
		}
		larger := s.Options.Concurrent != 1 && l.Host+l.Device > best.Host+best.Device
		if found && !larger && t.overtaken < patience {
			continue
		}
		fits := s.fits(&l, c)
		if fits && (!found || larger) {
			best, found = l, true
		}
		if t.overtaken >= patience {
			if fits {
				return l, true
			}
			return Launch{}, false
		}
	}
	return best, found
}

// Room reports whether any further trial could be started now. A searcher is asked only then: it
// learns from each result until the last moment.
func (s *Study) Room(c Capacity) bool {
	if s.Options.Concurrent > 0 && len(s.running) >= s.Options.Concurrent {
		return false
	}
	if s.frozen() {
		return false
	}
	for _, r := range s.running {
		if r.alone && !r.settled && !s.wholeNodes(c) {
			return false
		}
	}
	l := Launch{CPUs: s.cpus(c), Host: leastReservation}
	return len(s.running) == 0 || s.fits(&l, c)
}

// frozen reports whether a running trial stands still at its limit. It holds memory without getting
// on: what becomes free is for it, before anybody else is started.
func (s *Study) frozen() bool {
	for _, r := range s.running {
		if r.held {
			return true
		}
	}
	return false
}

// ramping reports whether enough trials run of which nothing is known: while few have shown what
// they take, each that did lets three more begin. Before that a few may run with the first.
func (s *Study) ramping(c Capacity) bool {
	if s.Options.TrialHost > 0 || s.Host.Count() >= trusted {
		return false
	}
	if s.wholeNodes(c) {
		return false
	}
	if s.Host.ahead.said != nil {
		return (s.unconfirmed(c) || s.sizesOpen()) && !c.Elastic && len(s.running) >= confirming(c)
	}
	settled, open := s.Host.Count(), 0
	for _, r := range s.running {
		if r.shared && !r.settled {
			return !s.oneMoreBeside(r)
		}
		switch {
		case r.settled:
			settled++
		case c.NodeHost == 0 || r.reserved < c.most(): // one that has all cannot run out early
			open++
		}
	}
	return open > 0 && open >= 3*settled
}

// wholeNodes reports whether trials of which nothing is known begin on a node each: a cluster's
// allocation stays what it is, so only those that end show what trials take, and each node that
// would be idle shows one more.
func (s *Study) wholeNodes(c Capacity) bool {
	return c.NodeHost > 0 && !c.Elastic && s.Host.Count() == 0 && s.Host.ahead.said == nil
}

// confirming trials begin with twice what rehearsals say, until some of them hold that: where
// reservations cannot grow, a rehearsal that says too little would cost every attempt.
func confirming(c Capacity) int { return max(4, int(c.Host/max(1, c.NodeHost))/3) }

// unconfirmed reports whether no trials have shown yet that rehearsals speak of them: that they
// hold for a while much of what was said.
func (s *Study) unconfirmed(c Capacity) bool {
	const some, aWhile = 3, 5 * time.Second
	if c.Elastic || s.confirmed {
		return false
	}
	shown := s.Host.Count()
	for _, r := range s.running {
		said, _ := s.Host.ahead.bytes(r.trial.Params)
		if r.age >= aWhile && float64(r.peak) > said/2 {
			shown++
		}
	}
	s.confirmed = shown >= some
	return !s.confirmed
}

// oneMoreBeside reports whether another trial may begin during the first of a study: when those
// before it have shown for a moment what they begin with, and all could double that.
func (s *Study) oneMoreBeside(first *live) bool {
	const moment = 100 * time.Millisecond
	if len(s.running) > besideFirst {
		return false
	}
	var sum event.Bytes
	for _, r := range s.running {
		if r.age < moment {
			return false
		}
		sum += max(first.whole/besideShare, 2*r.peak)
	}
	return sum <= first.whole/4*3
}

// need returns the memory and processors without which a trial is not started. It is not ready
// while nothing is known and another trial is just finding out.
func (s *Study) need(t *Trial, c Capacity) (l Launch, ready bool) {
	l = Launch{Trial: t.ID, Attempt: len(t.Attempts) + 1, Params: t.Params, CPUs: s.cpus(c),
		Fit: t.fit}
	host, ok := s.hostNeed(t, c, &l)
	if !ok {
		return l, false
	}
	l.Host = min(max(host, t.host, leastReservation), c.most())
	l.Upper = min(l.Upper, c.most())
	if t.host > host {
		l.Why = "it ran out with less"
	}
	if s.Options.GPUs == 0 {
		return l, true
	}
	l.Device, ok = s.deviceNeed(t, c)
	return l, ok
}

// besideFirst trials may begin during the first one of a study, each with a share of what there is.
const (
	besideFirst = 3
	besideShare = 16
)

// leastReservation is below what any interpreter needs.
const leastReservation = 32 * event.MiB

func (s *Study) hostNeed(t *Trial, c Capacity, l *Launch) (event.Bytes, bool) {
	if s.Options.TrialHost > 0 {
		l.Why = "declared"
		return s.Options.TrialHost, true
	}
	if f := t.forecast(0, &s.Host); f.Known {
		l.Why = f.Why
		if c.Elastic {
			l.Upper, l.Guess = f.Pooled, f.Guess
			return f.Likely, true
		}
		if s.Host.ahead.said != nil && s.unconfirmed(c) {
			l.Why += "; twice that, until some have confirmed it"
			return 2 * f.Bytes, true
		}
		return f.Bytes, true
	}
	if len(s.running) == 0 {
		l.Why = aloneWords
		return min(c.most(), c.HostFree), true
	}
	if s.wholeNodes(c) {
		l.Why = "nothing is known yet: it has a node to itself"
		return c.NodeHost, true
	}
	var most event.Bytes
	for _, r := range s.running {
		if r.shared && !r.settled && s.Options.GPUs == 0 {
			l.Why, l.Guess = "nothing is known yet: it gets a little, next to the first", true
			return r.whole / besideShare, true
		}
		if r.alone && !r.settled {
			return 0, false
		}
		most = max(most, r.peak)
	}
	l.Why = "from the trials that run now"
	return event.Bytes(float64(most)*settledMargin) + pad, true
}

func (s *Study) deviceNeed(t *Trial, c Capacity) (event.Bytes, bool) {
	var most event.Bytes
	for _, card := range c.Cards {
		most = max(most, card.Budget)
	}
	if s.Options.TrialDevice > 0 {
		return min(max(s.Options.TrialDevice, t.device), most), true
	}
	if f := t.forecast(1, &s.Device); f.Known {
		// A cap on a card cannot grow while the trial runs: some more room for error. The upper end of
		// a rehearsal has that.
		if !f.Rehearsed {
			f.Bytes += f.Bytes / 20
		}
		return min(max(f.Bytes, t.device), most), true
	}
	if len(s.running) == 0 {
		return most, true
	}
	return 0, false // the first one is just finding out
}

// cpus returns the processors of a trial: as declared, else as measured so far, else one.
func (s *Study) cpus(c Capacity) float64 {
	if s.Options.CPUs > 0 {
		return s.Options.CPUs
	}
	sum, n := s.cpuShare*float64(min(s.cpuSeen, 8)), float64(min(s.cpuSeen, 8))
	for _, l := range s.running {
		if l.settled && l.cpus > 0 {
			sum, n = sum+l.cpus, n+1
		}
	}
	if n == 0 {
		return min(1, c.mostCPUs())
	}
	return min(max(sum/n, 0.05), c.mostCPUs())
}

// fits reports whether there is room now, and chooses the cards.
func (s *Study) fits(l *Launch, c Capacity) bool {
	used := 0.0
	for _, r := range s.running {
		if r.gone {
			continue
		}
		a := r.trial.Attempts[len(r.trial.Attempts)-1]
		share := a.CPUs
		if s.Options.CPUs == 0 && r.cpus > 0 && r.settled {
			share = max(0.05, min(r.cpus, max(share, r.cpus)))
		}
		used += share
	}
	const dust = 1e-9
	if len(s.running) > 0 && used+l.CPUs > c.CPUs+dust {
		return false
	}
	if l.Host > c.Host-s.reserved() {
		return false
	}
	if len(s.running) > 0 && l.Host+s.spare(*l) > c.Host-s.reserved() {
		return false
	}
	if l.Host > s.reallyFree(c) && !(len(s.running) == 0 && c.HostFree >= l.Host/2) {
		return false
	}
	return s.placeOnCards(l, c)
}

// reserved is the host memory that running trials have reserved.
func (s *Study) reserved() (sum event.Bytes) {
	for _, r := range s.running {
		sum += r.reserved
	}
	return sum
}

// spare is what is kept free for running trials, and one more, to grow into. Not all of them need
// the upper end of their forecast: their errors add up as those of independent numbers do.
func (s *Study) spare(l Launch) event.Bytes {
	square := func(upper, reserved event.Bytes) float64 {
		more := float64(max(0, upper-reserved))
		return more * more
	}
	sum := square(l.Upper, l.Host)
	together := event.Bytes(0) // where little is known, all may be wrong in the same direction
	for _, r := range s.running {
		if r.alone || r.guess {
			together += max(0, s.mayNeed(r)-r.reserved)
			continue
		}
		sum += square(r.upper, r.reserved)
	}
	return event.Bytes(math.Sqrt(sum)) + together
}

// reallyFree is what is free now less what running trials may still take of their reservations.
func (s *Study) reallyFree(c Capacity) event.Bytes {
	free := c.HostFree
	for _, r := range s.running {
		free -= max(0, r.reserved-r.used)
	}
	return free
}

// reservedOnCards is what running trials have reserved on all cards together.
func (s *Study) reservedOnCards() (sum event.Bytes) {
	for _, r := range s.running {
		sum += r.device * event.Bytes(len(r.trial.Attempts[len(r.trial.Attempts)-1].Cards))
	}
	return sum
}

// roomOn returns the memory of a card that nobody has reserved and that is really free, less what
// running trials may still take.
func (s *Study) roomOn(card int, c Capacity) event.Bytes {
	room, free := c.Cards[card].Budget, c.Cards[card].Free
	for _, r := range s.running {
		if slices.Contains(r.trial.Attempts[len(r.trial.Attempts)-1].Cards, card) {
			room -= r.device
			free -= max(0, r.device-r.peakDev)
		}
	}
	return min(room, free)
}

// placeOnCards takes the fullest cards that still have room, so that an empty one stays whole for a
// large trial.
func (s *Study) placeOnCards(l *Launch, c Capacity) bool {
	if s.Options.GPUs == 0 {
		return true
	}
	type place struct {
		card int
		room event.Bytes
	}
	if c.GPU > 0 && s.reservedOnCards()+l.Device*event.Bytes(s.Options.GPUs) > c.GPU {
		return false
	}
	var places []place
	for i := range c.Cards {
		if room := s.roomOn(i, c); room >= l.Device {
			places = append(places, place{i, room})
		}
	}
	slices.SortStableFunc(places, func(a, b place) int {
		switch {
		case a.room < b.room:
			return -1
		case a.room > b.room:
			return 1
		}
		return 0
	})
	if len(places) < s.Options.GPUs {
		return false
	}
	l.Cards = nil
	for _, p := range places[:s.Options.GPUs] {
		l.Cards = append(l.Cards, p.card)
	}
	return true
}

// Impossible explains resources that no trial can ever get, with what would be possible.
func (o Options) Impossible(c Capacity) error {
	switch {
	case o.CPUs > c.mostCPUs():
		return fmt.Errorf("each trial asks for %v processors and there are %v: "+
			"at most --cpus-per-trial %v", o.CPUs, c.mostCPUs(), c.mostCPUs())
	case o.TrialHost > c.Host:
		return fmt.Errorf("each trial asks for %s of host memory and the study has %s: "+
			"at most --trial-mem %s, or a larger --host-mem", o.TrialHost, c.Host, c.most())
	case o.TrialHost > c.most():
		return fmt.Errorf("each trial asks for %s of host memory and the largest node has %s: "+
			"at most --trial-mem %s", o.TrialHost, c.NodeHost, c.most())
	case o.GPUs > 0 && len(c.Cards) == 0:
		return fmt.Errorf("each trial asks for %s and none is seen here: "+
			"--gpus-per-trial 0 trains on the processor; `memroom doctor` shows why", event.Count(o.GPUs, "card"))
	case o.GPUs > len(c.Cards):
		return fmt.Errorf("each trial asks for %s, %d are there: "+
			"at most --gpus-per-trial %d", event.Count(o.GPUs, "card"), len(c.Cards), len(c.Cards))
	}
	var most event.Bytes
	for _, card := range c.Cards {
		most = max(most, card.Budget)
	}
	if o.TrialDevice > most && o.GPUs > 0 {
		return fmt.Errorf("each trial asks for %s on a card and the largest has %s for the "+
			"study: at most --trial-gpu-mem %s", o.TrialDevice, most, most)
	}
	return nil
}

func sortInts(ids []int) { slices.Sort(ids) }
