package supervise

import (
	"slices"
	"strconv"
	"time"

	"memroom/diagnose"
	"memroom/event"
	"memroom/probe"
)

// learnt is what a monitor knows so far, kept so that another can go on.
type learnt struct {
	Peaks    event.Peaks     `json:"peaks"`
	Findings []event.Finding `json:"findings,omitempty"`
	Notes    []string        `json:"notes,omitempty"`
	Samples  int64           `json:"samples"`
	Steps    int64           `json:"steps"`
	Deaths   []Death         `json:"deaths,omitempty"`
	// Pythons that ended in order after another had died of memory
	Well    int          `json:"well,omitempty"`
	OOMs    []ProbeOOM   `json:"ooms,omitempty"`
	Said    []probe.Said `json:"said,omitempty"`    // in this attempt
	Attempt event.Peaks  `json:"attempt,omitempty"` // peaks of this attempt alone
	// Libraries is what each Python of this attempt held once its framework was loaded.
	Libraries map[int]event.Bytes `json:"libraries,omitempty"`
	// Frameworks are those that its Pythons have imported.
	Frameworks []string `json:"frameworks,omitempty"`
	// bytes of output and errors when it began: what stands before is about others
	Printed  [2]int64  `json:"printed"`
	Ended    *Ending   `json:"ended,omitempty"`
	StepTime []float64 `json:"step_ms,omitempty"` // of the last steps
	// Shares are the parts of their processes' time that probes have used, as last reported.
	Shares map[int]float64 `json:"probe_shares,omitempty"`
	CPU    float64         `json:"cost_cpu"` // of the monitors before this one
	// Before is what was used on each card before the command started: where the driver does not
	// say who uses a card, the rest is the run's.
	Before map[string]event.Bytes `json:"before,omitempty"`
	// Feeding is what waits for the model, at each place of the program.
	Feeding []event.Feed `json:"feeding,omitempty"`
	// Grown are the lines at which host memory grew in this attempt.
	Grown []diagnose.Grown `json:"grown,omitempty"`
	Now
}

// mostSaid bounds what is kept of a process that talks too much.
const mostSaid = 200

// forgetAttempt drops what is about one attempt only; printed is how long the output is now.
func (l *learnt) forgetAttempt(printed [2]int64) {
	l.Deaths, l.OOMs, l.Ended, l.Said, l.StepTime, l.Well = nil, nil, nil, nil, nil, 0
	l.Attempt, l.Printed, l.Steps = event.Peaks{}, printed, 0
	l.Libraries, l.Frameworks, l.Grown = nil, nil, nil
}

// ranOut keeps that an allocator gave up. A program may catch one such error at every step.
func (l *learnt) ranOut(oom ProbeOOM) {
	l.OOMs = lastOf(append(l.OOMs, oom), mostSaid)
	l.raiseOOM(oom.OOM)
}

// fed keeps the largest report about feeding from one place of the program.
func (l *learnt) fed(f event.Feed) {
	for i, known := range l.Feeding {
		if known.Source == f.Source && known.File == f.File && known.Line == f.Line {
			if f.Total >= known.Total {
				l.Feeding[i] = f
			}
			return
		}
	}
	if len(l.Feeding) < mostSaid {
		l.Feeding = append(l.Feeding, f)
	}
}

// died keeps that a Python ended by an exception.
func (l *learnt) died(d Death) { l.Deaths = append(lastOf(l.Deaths, mostSaid-1), d) }

// heardSaid keeps what a part inside the process did or declined.
func (l *learnt) heardSaid(s probe.Said) {
	if len(l.Said) < mostSaid {
		l.Said = append(l.Said, s)
	}
}

// endedWell counts the Pythons that go on after another has died of memory: a script around them
// that succeeds may have meant it so. killed is set when the kernel has counted a kill.
func (l *learnt) endedWell(pid int, killed bool) {
	died := func(d Death) bool { return d.PID == pid }
	lost := func(d Death) bool { return d.Where != "" }
	if slices.ContainsFunc(l.Deaths, died) {
		return
	}
	if killed || slices.ContainsFunc(l.Deaths, lost) {
		l.Well++
	}
}

// uses keeps that a framework was imported.
func (l *learnt) uses(framework string) {
	if !slices.Contains(l.Frameworks, framework) {
		l.Frameworks = append(l.Frameworks, framework)
	}
}

// imported keeps what a process held once a framework was loaded.
func (l *learnt) imported(pid int, held event.Bytes) {
	if l.Libraries == nil {
		l.Libraries = map[int]event.Bytes{}
	}
	l.Libraries[pid] = held
}

// probeTook keeps the share of its process's time that a probe has used.
func (l *learnt) probeTook(pid int, spent, elapsed float64) {
	if elapsed <= 0 {
		return
	}
	if l.Shares == nil {
		l.Shares = map[int]float64{}
	}
	if _, known := l.Shares[pid]; known || len(l.Shares) < mostSaid {
		l.Shares[pid] = spent / elapsed
	}
}

// share is the largest part of its process's time that a probe has used.
func (l *learnt) share() (most float64) {
	for _, share := range l.Shares {
		most = max(most, share)
	}
	return most
}

// stepTook keeps the durations of the last steps, for the median in the summary.
func (l *learnt) stepTook(d time.Duration) {
	const kept = 256
	if len(l.StepTime) == kept {
		l.StepTime = l.StepTime[1:]
	}
	l.StepTime = append(l.StepTime, float64(d.Microseconds())/1000)
}

// peaks are those that every figure raises: the run's and the attempt's.
func (l *learnt) peaks() [2]*event.Peaks { return [2]*event.Peaks{&l.Peaks, &l.Attempt} }

// raise lifts the peaks to a reading. limit is the lowest wall for host memory.
func (l *learnt) raise(s event.Sample, limit event.Bytes) {
	for _, p := range l.peaks() {
		raise(p, s, limit)
	}
}

// raiseAllocator raises the allocator's peaks. With one card it is that card. With more, the
// process's own index does not identify the card, so the peaks are kept under the name the process
// uses.
func (l *learnt) raiseAllocator(row event.Step) {
	if row.Device == event.HostDevice {
		return
	}
	for _, p := range l.peaks() {
		at := allocatorPeak(p, row.Device)
		at.Allocated, at.Reserved = max(at.Allocated, row.PeakAllocated, row.Allocated),
			max(at.Reserved, row.Reserved)
	}
}

// raiseOOM lifts the peaks to the moment at which an allocator gave up: memory can be gone within
// less than the time between two readings.
func (l *learnt) raiseOOM(oom probe.OOM) {
	if oom.Device == event.HostDevice || oom.Total == 0 {
		return
	}
	for _, p := range l.peaks() {
		at := allocatorPeak(p, oom.Device)
		at.Allocated, at.Reserved = max(at.Allocated, oom.Allocated), max(at.Reserved, oom.Reserved)
		at.Used, at.Total = max(at.Used, oom.Total-oom.Free), max(at.Total, oom.Total)
	}
}

// raise lifts the peaks to a reading.
func raise(p *event.Peaks, s event.Sample, limit event.Bytes) {
	p.Resident = max(p.Resident, s.Resident)
	p.Unreclaimable = max(p.Unreclaimable, s.Unreclaimable())
	p.Swap = max(p.Swap, s.Swapped)
	p.Processes = max(p.Processes, s.Processes)
	p.HostLimit = limit
	if m := s.Machine; m != nil && limit == m.Total {
		if others := m.Total - m.Available - s.Unreclaimable(); others > m.Total/2 {
			p.HostOthers = max(p.HostOthers, others)
		}
	}
	if c := s.Cgroup; c != nil && c.Own {
		p.Cgroup = max(p.Cgroup, c.Current, c.Peak)
	}
	if s.Machine != nil {
		p.Shm, p.ShmTotal = max(p.Shm, s.Machine.ShmUsed), s.Machine.ShmTotal
	}
	for _, g := range s.Ray {
		at := rayPeak(p, g.Name)
		at.Count, at.Largest, at.Sum = max(at.Count, g.Count), max(at.Largest, g.Largest),
			max(at.Sum, g.Sum)
	}
	for _, d := range s.Devices {
		at := devicePeak(p, d.UUID)
		at.Name, at.Total, at.Used = d.Name, d.Total, max(at.Used, d.Used)
		if !d.Guessed {
			at.Ours = max(at.Ours, d.Ours)
		}
	}
}

// raiseAtEnd lifts the peaks to what is known only afterwards: memory can go from little to the
// limit between two readings. The kernel knows the most that one process ever had, and kills in a
// cgroup only when its limit is full of what cannot be dropped.
func raiseAtEnd(p *event.Peaks, exit event.Exit, verdict event.Verdict, state State,
	own event.Bytes) {
	p.Cgroup = max(p.Cgroup, own, exit.CgroupPeak)
	if p.Resident > 0 {
		p.Resident = max(p.Resident, exit.MaxResident)
	}
	// Of a job that ended within a few readings nobody saw the peak. Its cgroup counts page cache
	// too, and its largest process the libraries it maps: the smaller one is nearer.
	const fewReadings = 2 // seconds
	if most := p.Cgroup; most > 0 && exit.Seconds < fewReadings {
		if exit.MaxResident > 0 {
			most = min(most, exit.MaxResident)
		}
		p.Unreclaimable = max(p.Unreclaimable, most)
	}
	if killed := verdict.KilledBy == "cgroup" || verdict.KilledBy == "slurm" ||
		verdict.KilledBy == "kernel"; verdict.IsOOM && killed {
		p.Unreclaimable = max(p.Unreclaimable, own)
	}
	if verdict.IsOOM && verdict.KilledBy == "cgroup" && state.Cgroup != "" && state.HostLimit > 0 {
		p.HostLimit = state.HostLimit
		p.Unreclaimable, p.Cgroup = max(p.Unreclaimable, p.HostLimit), max(p.Cgroup, p.HostLimit)
		p.Resident = max(p.Resident, exit.MaxResident)
	}
}

func rayPeak(p *event.Peaks, name string) *event.RaySample {
	for i := range p.Ray {
		if p.Ray[i].Name == name {
			return &p.Ray[i]
		}
	}
	p.Ray = append(p.Ray, event.RaySample{Name: name})
	return &p.Ray[len(p.Ray)-1]
}

func devicePeak(p *event.Peaks, uuid string) *event.DevicePeak {
	for i := range p.Devices {
		if p.Devices[i].UUID == uuid {
			return &p.Devices[i]
		}
	}
	p.Devices = append(p.Devices, event.DevicePeak{UUID: uuid})
	return &p.Devices[len(p.Devices)-1]
}

// allocatorPeak is the peak that an allocator's figures belong to.
func allocatorPeak(peaks *event.Peaks, device int) *event.DevicePeak {
	if len(peaks.Devices) == 1 {
		return &peaks.Devices[0]
	}
	return devicePeak(peaks, "device "+strconv.Itoa(device))
}

func lastOf[T any](list []T, n int) []T { return list[max(0, len(list)-n):] }

func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}
