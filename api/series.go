package api

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	"memroom/diagnose"
	"memroom/event"
	"memroom/store"
)

// course is what a run's readings and steps were over time.
type course struct {
	samples *store.Series
	steps   *store.Series
	printed printed
}

func courseOf(folder *store.Folder) *course {
	return &course{samples: folder.SampleSeries(), steps: folder.StepSeries()}
}

// seriesCache keeps the sums of the runs that were looked at last. Each takes some megabytes at
// most.
type seriesCache struct {
	mu    sync.Mutex
	order []string // the one used last at the end
	byID  map[string]*course
}

const cachedCourses = 12

func (c *seriesCache) of(folder *store.Folder) *course {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byID == nil {
		c.byID = map[string]*course{}
	}
	c.order = slices.DeleteFunc(c.order, func(id string) bool { return id == folder.ID })
	c.order = append(c.order, folder.ID)
	if len(c.order) > cachedCourses {
		delete(c.byID, c.order[0])
		c.order = c.order[1:]
	}
	if c.byID[folder.ID] == nil {
		c.byID[folder.ID] = courseOf(folder)
	}
	return c.byID[folder.ID]
}

// showSeries returns the course of a run between two moments, in at most so many points.
func (s *Server) showSeries(w http.ResponseWriter, r *http.Request) error {
	folder, err := s.run(r)
	if err != nil {
		return err
	}
	from, err := number(r, "from", 0, 0, 1<<60)
	if err != nil {
		return err
	}
	to, err := number(r, "to", 1<<60, 0, 1<<60)
	if err != nil {
		return err
	}
	points, err := number(r, "points", 1500, 1, 10_000)
	if err != nil {
		return err
	}
	if to < from {
		return failed(http.StatusBadRequest, "from=%d is behind to=%d", from, to)
	}
	data, err := s.series.of(folder).json(from, to, int(points))
	if err != nil {
		return readable(err)
	}
	return answerBytes(w, data)
}

// reportedPoints bounds how many reports a picture shows.
const reportedPoints = 2000

// Reported are the numbers that a program reported, such as its loss: a column a name, with null
// where a report did not have it.
type Reported struct {
	At      []int64               `json:"at"`
	Columns map[string][]*float64 `json:"columns"`
}

// reportedBy reads what a run's programs reported. Of many reports it keeps every second, fourth
// and so on, so that those that are kept reach from the first to the newest.
func reportedBy(ctx context.Context, folder *store.Folder) Reported {
	type row struct {
		at     int64
		values map[string]*float64
	}
	var rows []row
	seen, every := 0, 1
	store.LinesFrom(folder.Path("events.jsonl"), 0, func(line []byte) bool {
		if !bytes.Contains(line, []byte(`"kind":"report"`)) {
			return ctx.Err() == nil
		}
		var said struct {
			Values map[string]*float64 `json:"values"`
		}
		h, err := store.Decode[event.Happened](line)
		if err != nil || h.Kind != "report" || json.Unmarshal(h.Data, &said) != nil {
			return true
		}
		if seen++; (seen-1)%every != 0 {
			return true
		}
		if rows = append(rows, row{h.AtMS, said.Values}); len(rows) == reportedPoints {
			every *= 2
			for i := range rows[:reportedPoints/2] {
				rows[i] = rows[2*i]
			}
			rows = rows[:reportedPoints/2]
		}
		return ctx.Err() == nil
	})
	r := Reported{At: make([]int64, len(rows)), Columns: map[string][]*float64{}}
	for i, row := range rows {
		r.At[i] = row.at
		for name, value := range row.values {
			if r.Columns[name] == nil {
				r.Columns[name] = make([]*float64, len(rows))
			}
			r.Columns[name][i] = value
		}
	}
	return r
}

// numbersOf returns what a run's programs reported, or the losses that they printed where they
// reported nothing.
func numbersOf(ctx context.Context, folder *store.Folder, c *course) Reported {
	if r := reportedBy(ctx, folder); len(r.At) > 0 {
		return r
	}
	return c.printed.of(ctx, folder, c.samples)
}

// showReports answers with the numbers that a run's programs reported or printed.
func (s *Server) showReports(w http.ResponseWriter, r *http.Request) error {
	folder, err := s.run(r)
	if err != nil {
		return err
	}
	return answer(w, numbersOf(r.Context(), folder, s.series.of(folder)))
}

// shownColumn leaves out what no picture shows.
func shownColumn(name string) bool {
	switch name[strings.LastIndexByte(name, '.')+1:] {
	case "anonymous", "file", "proportional", "retries", "ooms", "at_backward", "inactive_split",
		"heap", "resident", "cgroup_at_limit", "ours", "output", "errors":
		return name == "resident" // of the run, not of a step's process
	}
	return true
}

// json is the course as the page reads it: {samples: {...}, steps: {...}}.
func (c *course) json(from, to int64, points int) ([]byte, error) {
	b := []byte(`{"samples":`)
	samples, err := c.samples.Between(from, to, points, shownColumn)
	if err != nil {
		return nil, err
	}
	b = appendPiece(b, samples)
	steps, err := c.steps.Between(from, to, points, shownColumn)
	if err != nil {
		return nil, err
	}
	b = append(b, `,"steps":`...)
	b = appendPiece(b, steps)
	return append(b, '}'), nil
}

// appendPiece writes a piece: at, and for each column the highest values, and the lowest where they
// differ from them.
func appendPiece(b []byte, p store.Piece) []byte {
	b = append(b, `{"from":`...)
	b = strconv.AppendInt(b, p.From, 10)
	b = append(b, `,"to":`...)
	b = strconv.AppendInt(b, p.To, 10)
	b = append(b, `,"count":`...)
	b = strconv.AppendInt(b, p.Count, 10)
	b = append(b, `,"offset":`...)
	b = strconv.AppendInt(b, p.Offset, 10)
	b = append(b, `,"exact":`...)
	b = strconv.AppendBool(b, p.Exact)
	b = append(b, `,"sketch":`...)
	b = strconv.AppendBool(b, p.Sketch)
	b = append(b, `,"at":`...)
	b = appendInts(b, p.At, nil)
	b = append(b, `,"columns":{`...)
	for i, c := range p.Columns {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendQuote(b, c.Name)
		b = append(b, `:{"high":`...)
		b = appendInts(b, c.High, c.Low)
		if !slices.Equal(c.Low, c.High) && !p.Exact {
			b = append(b, `,"low":`...)
			b = appendInts(b, c.Low, c.Low)
		}
		b = append(b, '}')
	}
	return append(b, `}}`...)
}

// appendInts writes numbers. A missing number becomes null: low or the number itself marks it.
func appendInts(b []byte, list, low []int64) []byte {
	b = append(b, '[')
	for i, v := range list {
		if i > 0 {
			b = append(b, ',')
		}
		if low != nil && low[i] == math.MaxInt64 || v == math.MinInt64 {
			b = append(b, "null"...)
			continue
		}
		b = strconv.AppendInt(b, v, 10)
	}
	return append(b, ']')
}

// Moment is what memory was made of at a moment.
type Moment struct {
	AtMS   int64              `json:"at_ms"`
	Sample *event.Sample      `json:"sample,omitempty"`
	Steps  []event.RankedStep `json:"steps,omitempty"` // the last of each process before
	Host   *diagnose.Account  `json:"host,omitempty"`
	Cards  []CardAccount      `json:"cards,omitempty"`
}

// CardAccount is the account of one card.
type CardAccount struct {
	UUID string `json:"uuid"`
	Name string `json:"name,omitempty"`
	diagnose.Account
}

func (s *Server) showAccount(w http.ResponseWriter, r *http.Request) error {
	folder, err := s.run(r)
	if err != nil {
		return err
	}
	at, err := number(r, "at_ms", 1<<60, 0, 1<<60)
	if err != nil {
		return err
	}
	run, _ := folder.Run()
	return answer(w, momentOf(r.Context(), s.series.of(folder),
		accountsBefore(r.Context(), folder, at), run, at))
}

// stepPlace identifies the process and the device of a step.
type stepPlace struct{ pid, device int }

// told is what probes had reported up to a moment.
type told struct {
	held map[stepPlace]diagnose.Holding // by the processes that live
	gone map[int]bool                   // processes that do not
}

// momentOf makes the account of a moment as the monitor would have made it then.
func momentOf(ctx context.Context, c *course, said told, run event.Run, at int64) Moment {
	m := Moment{AtMS: at}
	c.samples.Before(ctx, at, func(line []byte) {
		// nothing is left to account for when the processes have ended
		if sample, err := store.Decode[event.Sample](line); err == nil && (m.Sample == nil ||
			m.Sample.Processes == 0 || sample.Processes > 0) {
			m.Sample = &sample
		}
	})
	last := map[stepPlace]event.RankedStep{}
	c.steps.Before(ctx, at, func(line []byte) {
		if step, err := store.Decode[event.RankedStep](line); err == nil {
			last[stepPlace{step.PID, step.Device}] = step
		}
	})
	for _, step := range last {
		m.Steps = append(m.Steps, step)
	}
	slices.SortFunc(m.Steps, func(a, b event.RankedStep) int {
		return cmp.Or(cmp.Compare(a.PID, b.PID), cmp.Compare(a.Device, b.Device))
	})
	if m.Sample == nil {
		return m
	}
	m.AtMS = m.Sample.AtMS
	host := diagnose.Host(*m.Sample, wallOf(run, *m.Sample))
	if host.Limit > 0 {
		m.Host = &host
	}
	for _, d := range m.Sample.Devices {
		var held []diagnose.Holding
		if len(m.Sample.Devices) == 1 { // else the process's own index does not say which it means
			for place, h := range said.held {
				if step, ok := last[place]; ok {
					h.Allocated, h.Reserved = step.Allocated, step.Reserved
					h.Split = step.InactiveSplit
				}
				held = append(held, h)
			}
			for place, step := range last {
				_, known := said.held[place]
				if !known && !said.gone[place.pid] && step.Device != event.HostDevice {
					held = append(held, diagnose.Holding{Allocated: step.Allocated,
						Reserved: step.Reserved, Split: step.InactiveSplit})
				}
			}
		}
		m.Cards = append(m.Cards, CardAccount{d.UUID, d.Name, diagnose.Card(d, held)})
	}
	return m
}

// accountsBefore reads what probes said that each process holds, and which have ended.
func accountsBefore(ctx context.Context, folder *store.Folder, at int64) told {
	held, gone := map[stepPlace]diagnose.Holding{}, map[int]bool{}
	for h := range folder.Events() {
		if h.AtMS > at || ctx.Err() != nil {
			break
		}
		switch h.Kind {
		case "account":
			var said struct {
				Device                        int
				Weights, Gradients, Optimizer event.Bytes
				Allocated, Reserved           event.Bytes
				Split                         event.Bytes `json:"inactive_split"`
			}
			if json.Unmarshal(h.Data, &said) == nil && said.Device != event.HostDevice {
				delete(gone, h.PID) // a number that is used again
				held[stepPlace{h.PID, said.Device}] = diagnose.Holding{Weights: said.Weights,
					Gradients: said.Gradients, Optimizer: said.Optimizer,
					Allocated: said.Allocated, Reserved: said.Reserved, Split: said.Split}
			}
		case "exit", "died":
			gone[h.PID] = true
			for place := range held {
				if place.pid == h.PID {
					delete(held, place)
				}
			}
		}
	}
	return told{held, gone}
}

// wallOf is the lowest limit for host memory.
func wallOf(run event.Run, s event.Sample) event.Bytes {
	wall := run.HostMem
	if s.Cgroup != nil && s.Cgroup.Limit > 0 && (wall == 0 || s.Cgroup.Limit < wall) {
		wall = s.Cgroup.Limit
	}
	if s.Machine != nil && (wall == 0 || s.Machine.Total < wall) {
		wall = s.Machine.Total
	}
	return wall
}
