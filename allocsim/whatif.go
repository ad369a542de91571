package allocsim

import (
	"errors"
	"fmt"

	"memroom/event"
)

// Run replays a recording's requests under other settings or a smaller card. Segments get the
// addresses that they had in the recording for as long as the run goes the same way; o.Driver
// overrides that.
//
// A recording that lost its beginning starts from the state found by rewinding when the settings
// shape memory in the same way; under other settings the blocks alive at its beginning are
// allocated first, in order of address, because how they came to lie elsewhere is not known.
func (r *Replayed) Run(o Options) (Result, error) {
	run, from, err := r.begin(o)
	if err != nil {
		return Result{}, err
	}
	return run.run(from)
}

// begin returns a runner in the state before the first entry, and the first operation to do.
func (r *Replayed) begin(o Options) (*runner, int, error) {
	if r.Timeline == nil {
		return nil, 0, errors.New(
			"the recording was replayed without keeping its requests: set ReplayOptions.Timeline")
	}
	if o.Version == "" {
		o.Version = r.Version.String()
	}
	recorded := NewRecordedDriver(r.Mallocs)
	if o.Driver == nil {
		o.Driver = recorded
	}
	a, err := New(o)
	if err != nil {
		return nil, 0, err
	}
	run := &runner{a: a, t: r.Timeline, live: make([]Block, 0, len(r.Timeline.Ops)/2+1)}
	if r.Prelude == 0 || !r.Config.sameShape(&o.Config) {
		return run, 0, nil
	}
	for _, s := range r.Start {
		if !s.Expandable {
			recorded.occupy(s.Addr, s.Size)
		}
	}
	a.load(r.rankedStart(), r.lowest, func(_ event.Block, b Block) {
		run.live = append(run.live, b)
	})
	return run, r.Prelude, nil
}

// sameShape reports whether two settings cut memory into blocks in the same way. Limits and garbage
// collection only decide when it is given back.
func (c *Config) sameShape(o *Config) bool {
	return c.Expandable == o.Expandable && c.MaxSplit == o.MaxSplit && c.Divisions == o.Divisions &&
		c.LargeSegment == o.LargeSegment
}

// rankedStart is the state before the first entry with streams numbered as in the timeline.
func (r *Replayed) rankedStart() []event.Segment {
	start := make([]event.Segment, len(r.Start))
	for i, s := range r.Start {
		s.Stream = uint64(r.streamRank(s.Stream))
		start[i] = s
	}
	return start
}

// Outcome is the effect of one choice of settings on a recording.
type Outcome struct {
	Conf          string      `json:"conf"` // for PYTORCH_CUDA_ALLOC_CONF; empty is the default
	ReservedPeak  event.Bytes `json:"reserved_peak"`
	AllocatedPeak event.Bytes `json:"allocated_peak"`
	// peak reserved beyond peak active: what fragmentation and rounding cost
	Overhead event.Bytes `json:"overhead"`
	Retries  int64       `json:"num_alloc_retries"`
	OOM      bool        `json:"oom"`
	OOMAt    *OOMAt      `json:"-"`
	// Spread is how far the reserved peak moves under other assumptions about the driver's
	// addresses.
	Spread      event.Bytes `json:"spread"`
	Recorded    bool        `json:"recorded,omitempty"` // the settings of the recording
	Recommended bool        `json:"recommended,omitempty"`
}

// Table compares settings on one recording.
type Table struct {
	Outcomes []Outcome `json:"outcomes"`
	Reason   string    `json:"reason"` // why the recommended one is the one
}

// TriedConfs are the settings a user is offered: each has a case in which it is the best one.
var TriedConfs = []string{
	"",
	"expandable_segments:True",
	"max_split_size_mb:128",
	"max_split_size_mb:512",
	"roundup_power2_divisions:4",
	"roundup_power2_divisions:8",
	"garbage_collection_threshold:0.8",
	"expandable_segments:True,roundup_power2_divisions:8",
}

// WhatIf tries the useful settings on a recording under a limit or a card, and chooses the one to
// take. recordedConf is the recording's own settings string.
func (r *Replayed) WhatIf(o Options, recordedConf string) (Table, error) {
	confs := TriedConfs
	known := false
	for _, c := range confs {
		known = known || c == recordedConf
	}
	if !known {
		confs = append([]string{recordedConf}, confs...)
	}
	var t Table
	for _, conf := range confs {
		c, err := ParseConf(conf)
		if err != nil {
			continue // the recording's own string, of a release that knows more than we do
		}
		o.Config = c
		if c.GCThreshold > 0 && o.Limit == 0 && conf != recordedConf {
			continue // does nothing without a limit
		}
		outcome, err := r.outcome(o)
		if err != nil {
			return t, err
		}
		outcome.Conf, outcome.Recorded = conf, conf == recordedConf
		t.Outcomes = append(t.Outcomes, outcome)
	}
	t.recommend()
	return t, nil
}

// outcome runs one setting, under three assumptions about addresses where these could matter.
func (r *Replayed) outcome(o Options) (Outcome, error) {
	got, err := r.Run(o)
	if err != nil {
		return Outcome{}, err
	}
	out := Outcome{ReservedPeak: got.ReservedPeak, AllocatedPeak: got.AllocatedPeak,
		Overhead: got.ReservedPeak - got.ActivePeak, Retries: got.Retries,
		OOM: got.OOM != nil, OOMAt: got.OOM}
	if o.Config.Expandable || r.Version.ties() != byAddress {
		return out, nil
	}
	low, high := got.ReservedPeak, got.ReservedPeak
	for _, d := range []Driver{NewAscendingDriver(), NewRandomDriver(1)} {
		o.Driver = d
		other, err := r.Run(o)
		if err != nil {
			return out, err
		}
		low, high = min(low, other.ReservedPeak), max(high, other.ReservedPeak)
	}
	out.Spread = high - low
	return out, nil
}

// recommend marks the outcome to take: one with few retries (each stops the device), then little
// reserved memory, and none where all run out. Settings of the recording are kept unless another
// saves at least two percent.
func (t *Table) recommend() {
	best := -1
	for i := range t.Outcomes {
		if best < 0 || t.Outcomes[i].betterThan(&t.Outcomes[best]) {
			best = i
		}
	}
	if best < 0 {
		return
	}
	now := -1
	for i := range t.Outcomes {
		if t.Outcomes[i].Recorded {
			now = i
		}
	}
	if now >= 0 && !t.Outcomes[best].worthChanging(&t.Outcomes[now]) {
		best = now
	}
	t.Outcomes[best].Recommended = !t.Outcomes[best].OOM
	t.Reason = t.reason(best, now)
}

func (o *Outcome) betterThan(p *Outcome) bool {
	switch {
	case o.OOM != p.OOM:
		return !o.OOM
	case (o.Retries > 0) != (p.Retries > 0):
		return o.Retries == 0
	}
	return o.ReservedPeak < p.ReservedPeak
}

func (o *Outcome) worthChanging(now *Outcome) bool {
	if o.OOM != now.OOM || (o.Retries > 0) != (now.Retries > 0) {
		return o.betterThan(now)
	}
	return float64(o.ReservedPeak) < 0.98*float64(now.ReservedPeak)
}

func (t *Table) reason(best, now int) string {
	b := &t.Outcomes[best]
	name := b.name()
	switch {
	case b.OOM:
		return "no setting avoids running out of memory: the program itself needs more than there is"
	case now < 0:
		return fmt.Sprintf("%s reserves least: %s at its peak", name, b.ReservedPeak)
	case best == now && b.Retries == 0:
		return fmt.Sprintf("the recording's settings (%s) are as good as any: %s at the peak", name,
			b.ReservedPeak)
	case best == now:
		return fmt.Sprintf("the recording's settings (%s) are as good as any, but the cache is flushed "+
			"%d times, and each flush stops the device", name, b.Retries)
	}
	n := &t.Outcomes[now]
	switch {
	case n.OOM:
		return fmt.Sprintf("%s gets through with %s reserved at the peak, where the recording's settings "+
			"(%s) run out of memory", name, b.ReservedPeak, n.name())
	case n.Retries > 0 && b.Retries == 0:
		return fmt.Sprintf("%s never has to flush the cache, where the recording's settings (%s) flush "+
			"it %d times", name, n.name(), n.Retries)
	}
	return fmt.Sprintf("%s reserves %s at the peak instead of %s", name, b.ReservedPeak,
		n.ReservedPeak)
}

func (o *Outcome) name() string {
	if o.Conf == "" {
		return "default"
	}
	return o.Conf
}
