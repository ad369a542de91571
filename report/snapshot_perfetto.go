package report

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"

	"memroom/diagnose"
	"memroom/event"
)

const (
	perfettoBlocks = 20_000 // blocks shown as slices: the largest
	perfettoPoints = 50_000 // of each counter
)

// SnapshotPerfetto writes the history as a Chrome trace, which Perfetto (ui.perfetto.dev) and
// chrome://tracing open: counters of reserved and allocated bytes and of each category, phases as
// slices, the largest blocks as slices on a track for each category, failures as instants. Times
// are those of the recording; without them an entry is a microsecond.
func SnapshotPerfetto(out io.Writer, devices []Device) error {
	w := &perfettoWriter{out: bufio.NewWriterSize(out, 1<<16)}
	fmt.Fprint(w.out, `{"displayTimeUnit":"ms","traceEvents":[`)
	for _, d := range devices {
		w.device(d.Snapshot)
	}
	fmt.Fprint(w.out, "\n]}\n")
	if w.err != nil {
		return w.err
	}
	return w.out.Flush()
}

// chromeEvent is one event of the Chrome trace format; ts and dur are microseconds.
type chromeEvent struct {
	Name     string         `json:"name"`
	Category string         `json:"cat,omitempty"`
	Phase    string         `json:"ph"`
	Time     float64        `json:"ts"`
	Duration float64        `json:"dur,omitempty"`
	Process  int            `json:"pid"`
	Thread   int            `json:"tid"`
	ID       string         `json:"id,omitempty"`
	Scope    string         `json:"s,omitempty"`
	Args     map[string]any `json:"args,omitempty"`
}

type perfettoWriter struct {
	out   *bufio.Writer
	wrote bool
	err   error
	pid   int
	clock clock
}

func (w *perfettoWriter) write(e chromeEvent) {
	if w.err != nil {
		return
	}
	e.Process = w.pid
	data, err := json.Marshal(e)
	if err != nil {
		w.err = err
		return
	}
	if w.wrote {
		w.out.WriteByte(',')
	}
	w.wrote = true
	w.out.WriteByte('\n')
	_, w.err = w.out.Write(data)
}

func (w *perfettoWriter) device(s *diagnose.Snapshot) {
	l := s.Ledger()
	w.pid, w.clock = s.Device+1, newClock(l)
	w.write(chromeEvent{Name: "process_name", Phase: "M",
		Args: map[string]any{"name": fmt.Sprintf("device %d", s.Device)}})
	w.write(chromeEvent{Name: "thread_name", Phase: "M", Thread: 1,
		Args: map[string]any{"name": "phases"}})
	w.counters(l)
	w.phases(s)
	w.blocks(l)
	for _, o := range s.OOMs {
		w.write(chromeEvent{Name: "out of memory", Phase: "i", Thread: 1, Scope: "p",
			Time: w.clock.at(o.At), Args: map[string]any{"what": oomSentence(o)}})
	}
}

// counters writes the curves, thinned so that of each piece of the recording the highest total is
// kept.
func (w *perfettoWriter) counters(l *diagnose.Ledger) {
	reserved := newCurve(l.Entries)
	l.WalkReserved(func(at int32, bytes int64) { reserved.add(at, bytes) })
	for i := range reserved.when {
		w.write(chromeEvent{Name: "reserved", Phase: "C", Time: w.clock.at(reserved.when[i]),
			Args: map[string]any{"bytes": reserved.value[i]}})
	}
	piece := int32(max(1, l.Entries/perfettoPoints))
	var sums, best [16]int64
	var total, high int64
	last := int32(-1)
	flush := func() {
		args := map[string]any{}
		for _, c := range event.Categories() {
			args[c.String()] = best[c]
		}
		w.write(chromeEvent{Name: "allocated", Phase: "C", Time: w.clock.at(last), Args: args})
	}
	l.WalkBlocks(func(at int32, a *diagnose.Allocation, freed bool) {
		if at/piece != last/piece && last >= 0 || at >= 0 && last < 0 {
			flush()
			high = -1
		}
		last = at
		size := a.Size()
		if freed {
			size = -size
		}
		sums[a.Category] += size
		if total += size; total >= high {
			best, high = sums, total
		}
	})
	flush()
}

func (w *perfettoWriter) phases(s *diagnose.Snapshot) {
	for i, m := range s.Marks {
		end := s.Entries
		if i+1 < len(s.Marks) {
			end = s.Marks[i+1].At
		}
		begin := w.clock.at(int32(m.At))
		w.write(chromeEvent{Name: m.Phase, Category: "phase", Phase: "X", Thread: 1, Time: begin,
			Duration: max(0.001, w.clock.at(int32(end))-begin),
			Args:     map[string]any{"step": m.Step}})
	}
}

// blocks writes the largest blocks as nestable asynchronous slices: those of a category share a
// track and may overlap.
func (w *perfettoWriter) blocks(l *diagnose.Ledger) {
	chosen := make([]int32, len(l.Allocs))
	for i := range chosen {
		chosen[i] = int32(i)
	}
	if len(chosen) > perfettoBlocks {
		slices.SortFunc(chosen, func(x, y int32) int {
			return cmp.Compare(l.Allocs[y].Size(),
				l.Allocs[x].Size())
		})
		chosen = chosen[:perfettoBlocks]
		slices.Sort(chosen)
	}
	for _, i := range chosen {
		a := &l.Allocs[i]
		var frames []string
		for _, f := range diagnose.TellingFrames(l.Frames(a.Stack)) {
			frames = append(frames, frameText(f))
		}
		e := chromeEvent{Name: a.Category.String() + " " + event.Bytes(a.Size()).String(),
			Category: a.Category.String(), Phase: "b", Thread: 2 + int(a.Category),
			ID: fmt.Sprint(i), Time: w.clock.at(a.Start), Args: map[string]any{"bytes": a.Size(),
				"phase": a.Phase.String(), "stack": frames}}
		w.write(e)
		e.Phase, e.Args, e.Time = "e", nil, w.clock.at(min(a.End, int32(l.Entries)))
		w.write(e)
	}
}

// clock turns entries into microseconds since the first one.
type clock struct {
	l     *diagnose.Ledger
	timed bool
}

func newClock(l *diagnose.Ledger) clock { return clock{l, l.FirstUS > 0} }

func (c clock) at(entry int32) float64 {
	entry = max(entry, 0)
	if !c.timed {
		return float64(entry)
	}
	return c.l.SecondsAt(entry) * 1e6
}
