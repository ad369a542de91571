package report

import (
	"compress/gzip"
	"io"
	"time"

	"github.com/google/pprof/profile"

	"memroom/diagnose"
	"memroom/event"
)

// SnapshotPprof writes what was allocated as a profile for `go tool pprof`: what lived at each
// device's peak and all that was ever allocated, by call stack, with labels for category, phase and
// device.
func SnapshotPprof(out io.Writer, devices []Device) error {
	b := profileBuilder{functions: map[[2]string]*profile.Function{},
		locations: map[event.Frame]*profile.Location{}}
	b.p = &profile.Profile{
		SampleType: []*profile.ValueType{{Type: "inuse_objects", Unit: "count"},
			{Type: "inuse_space", Unit: "bytes"},
			{Type: "alloc_objects", Unit: "count"}, {Type: "alloc_space", Unit: "bytes"}},
		DefaultSampleType: "inuse_space",
		PeriodType:        &profile.ValueType{Type: "space", Unit: "bytes"},
		Period:            1,
	}
	for _, d := range devices {
		b.device(d.Snapshot)
	}
	if err := b.p.CheckValid(); err != nil {
		return err
	}
	// not profile.Write, which drops the error of a full disk at the end
	packed := gzip.NewWriter(out)
	if err := b.p.WriteUncompressed(packed); err != nil {
		return err
	}
	return packed.Close()
}

type profileBuilder struct {
	p         *profile.Profile
	functions map[[2]string]*profile.Function
	locations map[event.Frame]*profile.Location
}

// device adds one sample for each stack, category and phase.
func (b *profileBuilder) device(s *diagnose.Snapshot) {
	l := s.Ledger()
	if b.p.TimeNanos == 0 && l.FirstUS > 0 {
		b.p.TimeNanos, b.p.DurationNanos = l.FirstUS*1000, max(0,
			l.LastUS-l.FirstUS)*int64(time.Microsecond)
	}
	type key struct {
		stack    event.StackID
		category event.Category
		phase    diagnose.Phase
	}
	samples := map[key]*profile.Sample{}
	for i := range l.Allocs {
		a := &l.Allocs[i]
		k := key{a.Stack, a.Category, a.Phase}
		sample := samples[k]
		if sample == nil {
			sample = &profile.Sample{Value: make([]int64, 4),
				Location: b.stack(l.Frames(a.Stack), a),
				Label: map[string][]string{"category": {a.Category.String()},
					"phase": {a.Phase.String()}},
				NumLabel: map[string][]int64{"device": {int64(s.Device)}}}
			samples[k] = sample
			b.p.Sample = append(b.p.Sample, sample)
		}
		if a.LiveAt(int32(s.Peak.At)) {
			sample.Value[0]++
			sample.Value[1] += a.Size()
		}
		if a.Start >= 0 {
			sample.Value[2]++
			sample.Value[3] += a.Size()
		}
	}
}

// stack returns the locations of a stack, innermost first. A sample without one is put under a name
// with the reason.
func (b *profileBuilder) stack(frames []event.Frame, a *diagnose.Allocation) []*profile.Location {
	switch {
	case len(frames) > 0:
	case a.Start < 0:
		frames = []event.Frame{{Name: "(made before recording began)"}}
	default:
		frames = []event.Frame{{Name: "(no Python stack)"}}
	}
	locations := make([]*profile.Location, len(frames))
	for i, f := range frames {
		locations[i] = b.location(f)
	}
	return locations
}

func (b *profileBuilder) location(f event.Frame) *profile.Location {
	if l, ok := b.locations[f]; ok {
		return l
	}
	file, name := cleanText(f.File), cleanText(f.Name)
	if name == "" {
		name = "?"
	}
	function, ok := b.functions[[2]string{file, name}]
	if !ok {
		function = &profile.Function{ID: uint64(len(b.p.Function) + 1), Name: name,
			SystemName: name, Filename: file}
		b.functions[[2]string{file, name}] = function
		b.p.Function = append(b.p.Function, function)
	}
	l := &profile.Location{ID: uint64(len(b.p.Location) + 1),
		Line: []profile.Line{{Function: function, Line: int64(f.Line)}}}
	b.locations[f] = l
	b.p.Location = append(b.p.Location, l)
	return l
}
