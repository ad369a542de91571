package diagnose

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"memroom/event"
)

// hostWatch judges the readings of the meters: the host, its swap and shared memory, the cards and
// who else is on them.
type hostWatch struct {
	said    map[string]bool
	swap    window           // bytes of swap in use on the machine
	private window           // bytes of the program's workers that no other process maps
	mapped  window           // and all that they map
	forked  [2]int           // the one that was read, and how many they are
	loads   bool             // a process of the run waits for a data loader
	idle    map[string]int64 // card -> since when it is unused, ms
	trend   Series           // of what the kernel cannot drop, a point every trendEveryMS
	trendAt int64
	lowest  float64
	tree    event.Bytes   // what the kernel cannot drop of all processes together, as last read
	recent  []event.Bytes // the most of it up to each of the last readings
	peak    event.Bytes   // by the kernel's count, as last read
}

const (
	trendEveryMS = 10_000
	idleMS       = 60_000
)

// window keeps recent readings and measures how much they grew.
type window struct{ at, value []int64 }

func (w *window) add(at int64, value event.Bytes, keepMS int64) {
	w.at, w.value = append(w.at, at), append(w.value, int64(value))
	for len(w.at) > 1 && w.at[1] < at-keepMS {
		w.at, w.value = w.at[1:], w.value[1:]
	}
}

func (w *window) growth() event.Bytes {
	if len(w.value) == 0 {
		return 0
	}
	return event.Bytes(w.value[len(w.value)-1] - w.value[0])
}

// stillRises distinguishes growth that goes on from growth at a start. Growth that goes on has
// lasted some seconds, and a fair part of it is in the later half. Workers that start fill their
// queues at once and are level then.
func (w *window) stillRises() bool {
	const leastMS, laterShare = 3000, 0.25
	n := len(w.value)
	if n < 2 || w.at[n-1]-w.at[0] < leastMS {
		return false
	}
	later := w.value[n-1] - w.value[n/2]
	return float64(later) >= laterShare*float64(w.growth())
}

// perMinute is the growth as a rate.
func (w *window) perMinute() event.Bytes {
	if len(w.at) == 0 {
		return 0
	}
	took := max(1, w.at[len(w.at)-1]-w.at[0])
	return event.Bytes(float64(w.growth()) * 60_000 / float64(took))
}

func (w *window) clear() { w.at, w.value = nil, nil }

// Sample takes a reading of the meters.
func (w *Watch) Sample(s event.Sample) []event.Finding {
	h := &w.host
	if h.said == nil {
		h.said, h.idle = map[string]bool{}, map[string]int64{}
	}
	h.loads = h.loads || w.waitsForLoader()
	var found []event.Finding
	for _, look := range []func(event.Sample, Thresholds) *event.Finding{h.pressure, h.nearlyOut,
		h.swapping, h.shm, h.workers, h.neighbour, h.unusedCard} {
		if f := look(s, w.limits); f != nil && !h.said[f.Kind+firstWords(f.Title)] {
			h.said[f.Kind+firstWords(f.Title)] = true
			found = append(found, *f)
		}
	}
	found = append(found, w.sized(s)...)
	found = append(found, w.trials(s)...)
	found = append(found, w.eval.sample(s, len(w.processes) > 0, w.onHostAlone())...)
	return append(found, w.hostForecast(s)...)
}

// waitsForLoader reports whether a process was seen to wait for a data loader.
func (w *Watch) waitsForLoader() bool {
	for _, p := range w.processes {
		if p.last.Wait > 0 {
			return true
		}
	}
	return false
}

// onHostAlone reports whether the run trains on no card.
func (w *Watch) onHostAlone() bool {
	for at := range w.processes {
		if at.device != event.HostDevice {
			return false
		}
	}
	return len(w.processes) > 0
}

// firstWords of a finding say what it is about, whatever its figures are at the moment.
func firstWords(title string) string {
	if i := strings.IndexAny(title, "0123456789"); i >= 0 {
		return title[:i]
	}
	return title
}

// Pressure returns the shares of the last ten seconds in which some and all processes waited for
// memory that the run needs, in percent, and whose counters show it. A cgroup of the run's own
// counts as it is. The counters of an enclosing cgroup and of the machine also hold what others
// wait for at limits of their own, so they count only where that place itself is short.
func Pressure(s event.Sample, limits Thresholds) (some, full float64, where string) {
	short := 2 * limits.AvailableShare
	if m := s.Machine; m != nil && float64(m.Available) < short*float64(m.Total) {
		some, full, where = m.PressureSome, m.PressureFull, "the machine"
	}
	c := s.Cgroup
	if c == nil || c.PressureFull < full {
		return some, full, where
	}
	atLimit := float64(max(c.Current, c.AtLimit)) > (1-short)*float64(c.Limit)
	if c.Own || where != "" || c.Limit > 0 && atLimit {
		some, full, where = c.PressureSome, c.PressureFull, "the cgroup"
	}
	return some, full, where
}

func (h *hostWatch) pressure(s event.Sample, limits Thresholds) *event.Finding {
	some, full, where := Pressure(s, limits)
	if full < limits.PressureFull && some < limits.PressureSome {
		return nil
	}
	return &event.Finding{
		Kind: "host_pressure", Severity: event.SeverityWarning, Bytes: s.Unreclaimable(),
		Confidence: 0.9,
		Title: fmt.Sprintf(
			"host memory is short: processes waited for it %.0f %% of the last 10 s, all of them %.0f %%",
			some, full),
		Evidence: []string{"pressure stall information of " + where,
			fmt.Sprintf("the run holds %s that the kernel cannot free", s.Unreclaimable())},
		Remedies: h.cures("stream_data", "raise_limit"),
	}
}

func (h *hostWatch) nearlyOut(s event.Sample, limits Thresholds) *event.Finding {
	left, total, where := event.Bytes(-1), event.Bytes(0), ""
	if m := s.Machine; m != nil && m.Total > 0 {
		left, total, where = m.Available, m.Total, "the machine"
	}
	if c := s.Cgroup; c != nil && c.Limit > 0 && (left < 0 || c.Limit-(c.Current-c.File) < left) {
		left, total, where = c.Limit-(c.Current-c.File), c.Limit, "the cgroup"
	}
	if left < 0 || float64(left) > limits.AvailableShare*float64(total) {
		return nil
	}
	if held := s.Unreclaimable(); where == "the machine" && held > 0 && held < (total-left)/2 {
		return &event.Finding{
			Kind: "host_pressure", Severity: event.SeverityWarning, Bytes: left, Confidence: 0.95,
			Title: fmt.Sprintf("other processes fill host memory: %s are free, this run holds %s",
				left.Of(total), held.Beside(total)),
			Evidence: []string{fmt.Sprintf("others and the kernel hold %s", total-left-held)},
		}
	}
	return &event.Finding{
		Kind: "host_pressure", Severity: event.SeverityError, Bytes: left, Confidence: 0.95,
		Title: fmt.Sprintf("only %s host memory are free (%s)", left.Of(total), where),
		Evidence: []string{fmt.Sprintf("the run holds %s that the kernel cannot free, in %s",
			s.Unreclaimable(), event.Count(s.Processes, "process"))},
		Remedies: h.cures("stream_data", "raise_limit"),
	}
}

func (h *hostWatch) swapping(s event.Sample, limits Thresholds) *event.Finding {
	if s.Machine == nil || s.Machine.SwapTotal == 0 {
		return nil
	}
	h.swap.add(s.AtMS, s.Machine.SwapTotal-s.Machine.SwapFree, limits.WorkerWindowMS)
	if h.swap.growth() < limits.SwapGrowth || s.Swapped == 0 {
		return nil
	}
	return &event.Finding{
		Kind: "swap", Severity: event.SeverityWarning, Bytes: s.Swapped, Confidence: 0.9,
		Title: fmt.Sprintf(
			"the host is swapping: swap grew by %s in the last minute, %s of this run are in it",
			h.swap.growth(), s.Swapped),
		Evidence: []string{"swap in use " +
			(s.Machine.SwapTotal - s.Machine.SwapFree).Of(s.Machine.SwapTotal)},
		Remedies: h.cures("stream_data", "optimizer_offload", "raise_limit"),
	}
}

// cures puts those of a data loader first, where the run was seen to use one.
func (h *hostWatch) cures(others ...string) []string {
	if !h.loads {
		return others
	}
	return append([]string{"dataloader_workers", "pin_memory"}, others...)
}

func (h *hostWatch) shm(s event.Sample, limits Thresholds) *event.Finding {
	m := s.Machine
	if m == nil || m.ShmTotal == 0 || float64(m.ShmUsed) < limits.ShmShare*float64(m.ShmTotal) {
		return nil
	}
	return &event.Finding{
		Kind: "shm", Severity: event.SeverityError, Bytes: m.ShmUsed, Confidence: 0.9,
		Title: fmt.Sprintf(
			"/dev/shm is nearly full (%s): DataLoader workers crash with a bus error when it is",
			m.ShmUsed.Of(m.ShmTotal)),
		Remedies: []string{"shm_size", "dataloader_workers"},
	}
}

// workers sees copy-on-write growth: reference counts written by forked workers copy the parent's
// pages one by one, so their private memory grows while what each maps stays the same.
func (h *hostWatch) workers(s event.Sample, limits Thresholds) *event.Finding {
	w := s.Workers
	if w == nil {
		return nil // not read this time
	}
	if now := [2]int{w.PID, w.Count}; now != h.forked { // the next epoch's workers start low
		h.forked = now
		h.private.clear()
		h.mapped.clear()
	}
	h.private.add(s.AtMS, w.Private, 10*limits.WorkerWindowMS)
	h.mapped.add(s.AtMS, w.Resident, 10*limits.WorkerWindowMS)
	grown := h.private.growth()
	// a worker that starts writes to much of what it inherits, and is level then
	if grown < limits.WorkerGrowth || 2*h.mapped.growth() > grown || !h.private.stillRises() {
		return nil
	}
	who := "worker processes"
	if h.loads {
		who = "DataLoader workers"
	}
	return &event.Finding{
		Kind: "worker_growth", Severity: event.SeverityWarning, Bytes: grown, Confidence: 0.8,
		Title: fmt.Sprintf("%s copy their parent's memory (copy-on-write): %s more in %d processes, "+
			"%s per minute; samples = memroom.share(samples) keeps them once", who, grown, w.Count,
			h.private.perMinute()),
		Evidence: []string{
			fmt.Sprintf("%d processes that the program forked; %s are theirs alone, sum of resident "+
				"memory level at %s", w.Count, w.Private, w.Resident),
			"reading a Python object writes its reference count, which copies its page"},
		Remedies: []string{"share_data", "dataloader_workers", "stream_data"},
	}
}

// neighbour sees another process that takes what this run may need: it holds much of a card that is
// nearly full. One on a card with room is none of the user's business.
func (h *hostWatch) neighbour(s event.Sample, limits Thresholds) *event.Finding {
	for _, d := range s.Devices {
		free := float64(d.Total) - float64(d.Used)
		if d.Others < limits.NeighbourBytes ||
			float64(d.Others) < limits.NeighbourShare*float64(d.Total) ||
			free > limits.NeighbourFree*float64(d.Total) {
			continue
		}
		return &event.Finding{
			Kind: "neighbour", Severity: event.SeverityWarning, Bytes: d.Others, Confidence: 0.95,
			Title: fmt.Sprintf("another process holds %s on %s", d.Others.Of(d.Total), d.Name),
			Evidence: []string{fmt.Sprintf("card %s: used %s, by this run %s", d.UUID, d.Used,
				d.Ours)},
			Remedies: []string{"free_neighbour"},
		}
	}
	return nil
}

// unusedCard sees a card that lies idle while the host is short of memory.
func (h *hostWatch) unusedCard(s event.Sample, limits Thresholds) *event.Finding {
	short := s.Swapped > 0 && h.swap.growth() > limits.SwapGrowth/4 ||
		s.Machine != nil && s.Machine.Total > 0 &&
			float64(s.Machine.Available) < 2*limits.AvailableShare*float64(s.Machine.Total)
	for _, d := range s.Devices {
		if d.Utilisation > limits.IdleGPU || d.Ours > 0 || d.Others > d.Total/2 {
			delete(h.idle, d.UUID)
			continue
		}
		if since, known := h.idle[d.UUID]; !known {
			h.idle[d.UUID] = s.AtMS
		} else if short && s.AtMS-since >= idleMS {
			return &event.Finding{
				Kind: "unused_gpu", Severity: event.SeverityWarning, Bytes: d.Total - d.Used,
				Confidence: 0.85,
				Title: fmt.Sprintf(
					"%s is idle while host memory runs out: %s are free on it", d.Name,
					d.Total-d.Used),
				Evidence: []string{fmt.Sprintf(
					"utilisation %d %%; this run held no memory on it for %d s", d.Utilisation,
					(s.AtMS-since)/1000)},
			}
		}
	}
	return nil
}

// hostWall is the wall that host memory of the run will hit first: the limit that was set, its
// cgroup's, or what it has and could still get from the machine.
func (w *Watch) hostWall(s event.Sample) event.Bytes {
	wall := w.hostLimit
	lower := func(limit event.Bytes) {
		if limit > 0 && (wall == 0 || limit < wall) {
			wall = limit
		}
	}
	if s.Cgroup != nil {
		lower(s.Cgroup.Limit)
	}
	if s.Machine != nil && s.Machine.Available > 0 {
		lower(s.Machine.Available + s.Unreclaimable())
	}
	return wall
}

// crestReadings is how many readings show what steps need at their highest point.
const crestReadings = 12

// rose notes how high the run stood since the last reading: between two of them the kernel alone
// sees it, where the cgroup is the run's own.
func (h *hostWatch) rose(s event.Sample) {
	most := h.tree
	if c := s.Cgroup; c != nil && c.Own {
		if c.Peak > h.peak && h.peak > 0 {
			most = max(most, c.Peak-max(0, c.File-c.Shmem))
		}
		h.peak = c.Peak
	}
	if h.recent = append(h.recent, most); len(h.recent) > crestReadings {
		h.recent = h.recent[1:]
	}
}

// sees reports whether the last readings cover steps of this length.
func (h *hostWatch) sees(step time.Duration) bool {
	return len(h.recent) == crestReadings && step < time.Second
}

// crest is the most that the run held lately: steps are ended by what they need on the way.
func (h *hostWatch) crest() event.Bytes {
	if len(h.recent) == 0 {
		return 0
	}
	return slices.Max(h.recent)
}

// unrest is by how much one reading usually differs from the next.
func (h *hostWatch) unrest() float64 {
	var changes []float64
	for i := 1; i < len(h.recent); i++ {
		changes = append(changes, math.Abs(float64(h.recent[i]-h.recent[i-1])))
	}
	if len(changes) == 0 {
		return 0
	}
	return median(changes)
}

// hostForecast extrapolates the whole tree's memory over time, for programs that report no steps.
// The floor of each ten seconds counts as a step.
func (w *Watch) hostForecast(s event.Sample) []event.Finding {
	h := &w.host
	h.tree = s.Unreclaimable()
	w.wall = w.hostWall(s)
	h.rose(s)
	value := float64(h.tree)
	if h.lowest == 0 || value < h.lowest {
		h.lowest = value
	}
	if s.AtMS-h.trendAt < trendEveryMS {
		return nil
	}
	h.trend.Add(s.AtMS/trendEveryMS, h.lowest, 0, 0, w.limits)
	h.trendAt, h.lowest = s.AtMS, 0
	f, told := h.trend.Forecast(float64(w.wall), w.limits)
	if !told || f.Trend.Growth < 8*float64(w.limits.HostGrowth) || h.said["forecast"] {
		return nil
	}
	h.said["forecast"] = true
	after := func(step int64) string {
		return inWords((trendEveryMS * 1e6) * time.Duration(step-s.AtMS/trendEveryMS))
	}
	return []event.Finding{{
		Kind: "forecast", Severity: event.SeverityWarning,
		Bytes: w.wall - event.Bytes(f.Trend.Level), Confidence: 0.7,
		Title: fmt.Sprintf("host memory of all processes will run out in about %s", after(f.Step)),
		Evidence: []string{fmt.Sprintf("between %s and %s from now; it grew by %s in %s",
			after(f.Low), after(f.High),
			event.Bytes(f.Trend.Growth), inWords((trendEveryMS*1e6)*time.Duration(f.Trend.Steps)))},
	}}
}
