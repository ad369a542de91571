package diagnose

import (
	"cmp"
	"fmt"
	"slices"

	"memroom/event"
)

// Snapshot is the analysis of a recorded allocator history of one device.
type Snapshot struct {
	Device  int `json:"device"`
	Entries int `json:"entries"`
	Allocs  int `json:"allocs"`
	// OlderBlocks were there before recording began: the recording is not from the start of the
	// program.
	OlderBlocks int `json:"older_blocks"`

	AllocatedPeak event.Bytes `json:"allocated_peak"`
	ReservedPeak  event.Bytes `json:"reserved_peak"`
	Peak          Moment      `json:"peak"`     // where allocated was highest
	Reserve       Moment      `json:"reserved"` // where reserved was highest
	End           Moment      `json:"end"`

	Categories []CategoryShare `json:"categories"` // at the peak, largest first
	Groups     []StackGroup    `json:"groups"`     // at the peak, largest first
	Steps      []StepRow       `json:"steps,omitempty"`
	Growth     *Growth         `json:"growth,omitempty"`
	OOMs       []OOMEvent      `json:"ooms,omitempty"` // of very many the first and the last
	OOMCount   int             `json:"oom_count"`
	Marks      []event.Mark    `json:"marks,omitempty"`
	Warnings   []string        `json:"warnings,omitempty"`

	ledger *Ledger
}

// Moment is the state of memory after one entry.
type Moment struct {
	At          int         `json:"at"` // index of the entry, -1 before the first
	Step        int         `json:"step"`
	Phase       string      `json:"phase"`
	Seconds     float64     `json:"seconds"` // since the first entry; 0 when the recording has no times
	Allocated   event.Bytes `json:"allocated"`
	Requested   event.Bytes `json:"requested"`
	Reserved    event.Bytes `json:"reserved"`
	LargestFree event.Bytes `json:"largest_free"` // longest free piece inside the reserved memory
	FreePieces  int         `json:"free_pieces"`
}

// Unallocated is what is reserved and not in use at that moment.
func (m Moment) Unallocated() event.Bytes { return m.Reserved - m.Allocated }

// CategoryShare is what one kind of memory held at a moment.
type CategoryShare struct {
	Category   event.Category `json:"category"`
	Bytes      event.Bytes    `json:"bytes"`
	Blocks     int            `json:"blocks"`
	Confidence float64        `json:"confidence"` // 0 to 1, by bytes
}

// StackGroup is what one call stack held at a moment.
type StackGroup struct {
	Bytes      event.Bytes    `json:"bytes"`
	Blocks     int            `json:"blocks"`
	Largest    event.Bytes    `json:"largest"`
	Category   event.Category `json:"category"`
	Confidence float64        `json:"confidence"`
	Frames     []event.Frame  `json:"frames,omitempty"`
	// made before recording began, by an unknown stack
	Older bool          `json:"older,omitempty"`
	Stack event.StackID `json:"-"`
}

// StepRow is how memory went in one step.
type StepRow struct {
	Step      int         `json:"step"`
	Begin     int         `json:"begin"` // index of its first entry
	Allocated event.Bytes `json:"allocated_peak"`
	Reserved  event.Bytes `json:"reserved_peak"`
	Floor     event.Bytes `json:"floor"` // the least that was allocated during it
}

// Growth is a floor that rises from step to step, with the stacks that keep their allocations.
type Growth struct {
	PerStep    event.Bytes  `json:"per_step"`
	FirstStep  int          `json:"first_step"`
	LastStep   int          `json:"last_step"`
	Floor      event.Bytes  `json:"floor"` // at the last step
	Confidence float64      `json:"confidence"`
	Suspects   []StackGroup `json:"suspects,omitempty"` // Bytes and Blocks are for one step
}

// AnalyseSnapshot reads a device's history.
func AnalyseSnapshot(l *Ledger) *Snapshot {
	p := l.categorise()
	s := &Snapshot{Device: l.Device, Entries: l.Entries, Allocs: len(l.Allocs) - l.Before,
		OlderBlocks: l.Before, Marks: p.marks(), ledger: l}
	s.findPeaks(p)
	s.Categories = l.CategoriesAt(int32(s.Peak.At))
	s.Groups = l.GroupsAt(int32(s.Peak.At))
	s.Steps = l.stepRows(p)
	s.Growth = l.growth(p, s.Steps)
	s.OOMs, s.OOMCount = l.explainOOMs(s.ReservedPeak), len(l.OOMs)
	s.warn(p)
	return s
}

// Ledger returns the table the analysis was made from, with categories filled in.
func (s *Snapshot) Ledger() *Ledger { return s.ledger }

func (s *Snapshot) findPeaks(p *phases) {
	peakAt, reservedAt := int32(-1), int32(-1)
	first := true
	s.ledger.Walk(func(at int32, allocated int64) {
		if first || event.Bytes(allocated) > s.AllocatedPeak {
			s.AllocatedPeak, peakAt, first = event.Bytes(allocated), at, false
		}
	})
	first = true
	s.ledger.WalkReserved(func(at int32, reserved int64) {
		if first || event.Bytes(reserved) > s.ReservedPeak {
			s.ReservedPeak, reservedAt, first = event.Bytes(reserved), at, false
		}
	})
	s.Peak, s.Reserve = s.ledger.momentAt(peakAt, p), s.ledger.momentAt(reservedAt, p)
	s.End = s.ledger.momentAt(int32(s.ledger.Entries)-1, p)
}

func (s *Snapshot) warn(p *phases) {
	l := s.ledger
	if l.Entries == 0 {
		s.Warnings = append(s.Warnings,
			"the snapshot holds no history, only the memory at its end: record with "+
				"torch.cuda.memory._record_memory_history() to see peaks and steps")
	} else if l.Before > 0 {
		s.Warnings = append(s.Warnings,
			fmt.Sprintf("the recording begins in mid-run: %d blocks are older than it and have no call stack "+
				"of their own", l.Before))
	}
	if l.Entries > 0 && !p.stacks {
		s.Warnings = append(s.Warnings,
			"no call stacks were recorded: categories are unknown or guessed from lifetimes (record with "+
				"context=\"all\")")
	}
	if l.Implausible > 0 {
		s.Warnings = append(s.Warnings,
			fmt.Sprintf("%d entries or blocks have impossible sizes or addresses and were left out: the file "+
				"is damaged", l.Implausible))
	}
	if l.Lost > 0 {
		s.Warnings = append(s.Warnings,
			fmt.Sprintf("%d releases are missing from the recording (skipped actions, or a damaged file): "+
				"they are taken to be where the address was given out again", l.Lost))
	}
	if l.Unknown > 0 {
		s.Warnings = append(s.Warnings,
			fmt.Sprintf("%d entries are of a kind this version does not know and were left out",
				l.Unknown))
	}
}

// momentAt returns the state after the entry at.
func (l *Ledger) momentAt(at int32, p *phases) Moment {
	m := Moment{At: int(at), Phase: PhaseUnknown.String()}
	for i := range l.Allocs {
		if a := &l.Allocs[i]; a.LiveAt(at) {
			m.Allocated += event.Bytes(a.Size())
			m.Requested += event.Bytes(a.Requested())
		}
	}
	for _, s := range l.Segments {
		if s.Start <= at && s.End > at {
			m.Reserved += event.Bytes(s.Size)
		}
	}
	largest, pieces := l.freeAt(at, nil)
	m.LargestFree, m.FreePieces = event.Bytes(largest), pieces
	for _, span := range p.spans {
		if span.begin <= at && at < span.end {
			m.Step, m.Phase = span.step, span.phase.String()
		}
	}
	m.Seconds = l.SecondsAt(at)
	return m
}

// SecondsAt returns the time of an entry since the first one, interpolated between samples; 0
// without a clock.
func (l *Ledger) SecondsAt(at int32) float64 {
	i := int(max(at, 0)) / timeStride
	if i >= len(l.times) {
		return float64(max(0, l.LastUS-l.FirstUS)) / 1e6
	}
	before, after := l.times[i], l.LastUS
	if i+1 < len(l.times) {
		after = l.times[i+1]
	}
	share := float64(int(max(at, 0))%timeStride) / timeStride
	return max(0, float64(before-l.FirstUS)+share*float64(max(0, after-before))) / 1e6
}

// CategoriesAt sums the blocks that were live after the entry at, by category.
func (l *Ledger) CategoriesAt(at int32) []CategoryShare {
	var shares [16]CategoryShare
	for i := range l.Allocs {
		a := &l.Allocs[i]
		if !a.LiveAt(at) {
			continue
		}
		c := &shares[a.Category]
		c.Category = a.Category
		c.Bytes += event.Bytes(a.Size())
		c.Blocks++
		c.Confidence += float64(a.Size()) * float64(a.Sure) / 100
	}
	var found []CategoryShare
	for _, c := range shares {
		if c.Blocks > 0 {
			c.Confidence /= float64(max(c.Bytes, 1))
			found = append(found, c)
		}
	}
	slices.SortStableFunc(found, func(x, y CategoryShare) int {
		return cmp.Compare(y.Bytes,
			x.Bytes)
	})
	return found
}

// GroupsAt sums the blocks that were live after the entry at, by call stack and category.
func (l *Ledger) GroupsAt(at int32) []StackGroup {
	groups := newGrouping(l)
	for i := range l.Allocs {
		if a := &l.Allocs[i]; a.LiveAt(at) {
			groups.add(a)
		}
	}
	return groups.largestFirst()
}

// grouping sums allocations by call stack and category.
type grouping struct {
	l      *Ledger
	index  map[groupKey]int
	groups []StackGroup
}

type groupKey struct {
	stack    event.StackID
	category event.Category
	older    bool
}

func newGrouping(l *Ledger) *grouping { return &grouping{l: l, index: map[groupKey]int{}} }

func (g *grouping) add(a *Allocation) {
	key := groupKey{a.Stack, a.Category, a.Start < 0 && a.Stack == 0}
	i, ok := g.index[key]
	if !ok {
		i = len(g.groups)
		g.index[key] = i
		g.groups = append(g.groups, StackGroup{Category: a.Category, Frames: g.l.Frames(a.Stack),
			Older: key.older, Stack: a.Stack})
	}
	group := &g.groups[i]
	group.Bytes += event.Bytes(a.Size())
	group.Blocks++
	group.Largest = max(group.Largest, event.Bytes(a.Size()))
	group.Confidence += float64(a.Size()) * float64(a.Sure) / 100
}

// largestFirst returns the groups; confidences become shares of the bytes.
func (g *grouping) largestFirst() []StackGroup {
	for i := range g.groups {
		g.groups[i].Confidence /= float64(max(g.groups[i].Bytes, 1))
	}
	slices.SortStableFunc(g.groups, func(x, y StackGroup) int {
		return cmp.Compare(y.Bytes,
			x.Bytes)
	})
	return g.groups
}
