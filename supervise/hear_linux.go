package supervise

import (
	"encoding/json"
	"io"
	"slices"
	"strconv"
	"time"

	"memroom/event"
	"memroom/probe"
)

// hearProbe takes what a Python of the run says.
func (m *Monitor) hearProbe(h probe.Heard) {
	if m.people == nil {
		m.people = newPeople(m.proc, m.state.Keeper)
	}
	pid, rank := h.Conn.PID, m.people.rankOf(h.Conn.PID)
	if m.speaking == nil {
		m.speaking = map[*probe.Conn]bool{}
	}
	m.speaking[h.Conn] = true
	if h.Err == io.EOF {
		delete(m.speaking, h.Conn)
	}
	if h.Err != nil {
		if h.Err != io.EOF {
			m.note("probe", "a message of the probe could not be read: "+h.Err.Error())
		}
		return
	}
	switch message := h.Message.(type) {
	case *probe.Hello:
		m.people.named(pid, message.Rank, message.World)
		rank = m.people.rankOf(pid)
		m.happenedJSON("process", pid, rank, message.Program, message)
	case *probe.Steps:
		m.takeSteps(pid, rank, message)
		return
	case *probe.OOM:
		oom := ProbeOOM{Rank: rank, PID: pid, OOM: *message}
		// a program may catch one at every step
		m.said.OOMs = lastOf(append(m.said.OOMs, oom), mostSaid)
		m.caughtOOM(oom)
		m.raiseOOM(*message)
		m.happenedJSON("oom", pid, rank, "", message)
	case *probe.Died:
		m.said.Deaths = lastOf(m.said.Deaths, mostSaid-1)
		m.said.Deaths = append(m.said.Deaths, Death{PID: pid, Rank: rank, Type: message.Type,
			Text: message.Text, Where: message.Where, Frames: message.Frames})
		m.happenedJSON("died", pid, rank, message.Type, message)
	case *probe.Exit:
		if message.ElapsedUS > 0 {
			m.said.Share = max(m.said.Share, float64(message.SpentUS)/float64(message.ElapsedUS))
		}
		m.endedWell(pid)
		m.happenedJSON("exit", pid, rank, "", message)
	case *probe.Framework:
		m.imported(pid)
		m.happenedJSON("framework", pid, rank, message.Name+" "+message.Version, message)
	case *probe.Said:
		if len(m.said.Said) < mostSaid {
			m.said.Said = append(m.said.Said, *message)
		}
		m.happenedJSON("remedy", pid, rank, message.Text, message)
	case *probe.Phase:
		m.busy()
		m.happenedJSON("phase", pid, rank, message.Phase, message)
	case *probe.Evaluation:
		m.happenedJSON("evaluation", pid, rank, message.Holder, message)
	case *probe.Account:
		m.happenedJSON("account", pid, rank, "", message)
	case *probe.Stacks:
		m.happenedJSON("stacks", pid, rank, "", message)
	case *probe.Heap:
		m.happenedJSON("heap", pid, rank, "", message)
	case *probe.Report:
		m.happenedJSON("report", pid, rank, "", message)
	case *probe.Fault:
		m.happenedJSON("fault", pid, rank, message.Error, message)
	}
	if m.Detect != nil {
		m.found(m.Detect.Heard(pid, rank, h.Message))
	}
}

// imported reads what a process holds once a framework is loaded: the interpreter and its
// libraries, which nothing makes smaller.
func (m *Monitor) imported(pid int) {
	status, err := m.proc.Status(pid)
	if err != nil {
		return
	}
	if m.said.Libraries == nil {
		m.said.Libraries = map[int]event.Bytes{}
	}
	m.said.Libraries[pid] = status.Anonymous + status.Shared
}

// endedWell counts the Pythons that go on after another has died of memory: a script around them
// that succeeds may have meant it so. Workers that a Python started itself are no sign of that.
func (m *Monitor) endedWell(pid int) {
	died := func(d Death) bool { return d.PID == pid }
	lost := func(d Death) bool { return d.Where != "" }
	if slices.ContainsFunc(m.said.Deaths, died) || m.people.startedByPython(pid) {
		return
	}
	if m.killsSoFar() > 0 || slices.ContainsFunc(m.said.Deaths, lost) {
		m.said.Well++
	}
}

// happenedJSON records a message of the probe as it came.
func (m *Monitor) happenedJSON(kind string, pid int, rank *int, text string, message any) {
	data, err := json.Marshal(message)
	if err == nil {
		m.happened(event.Happened{Kind: kind, PID: pid, Rank: rank, Text: text, Data: data})
	}
}

func (m *Monitor) takeSteps(pid int, rank *int, message *probe.Steps) {
	if message.Elapsed > 0 {
		m.said.Share = max(m.said.Share, float64(message.Spent)/float64(message.Elapsed))
	}
	for _, row := range message.Rows {
		m.said.Steps = max(m.said.Steps, row.Step)
		m.steps.add(event.RankedStep{AtMS: m.now(), Attempt: m.state.Attempt, PID: pid, Rank: rank,
			Step: row})
		m.stepTook(row.Duration)
		m.stepped(row)
		m.raiseAllocator(row)
	}
	if m.Detect != nil {
		m.found(m.Detect.Steps(pid, rank, message.Rows))
		m.ask(m.Detect.Asks())
	}
}

// ask sends probes the commands that the detector wants carried out. A probe that is gone needs
// none.
func (m *Monitor) ask(asks map[int][]probe.Command) {
	for conn := range m.speaking {
		for _, command := range asks[conn.PID] {
			m.asked++
			command.ID = m.asked
			if err := conn.Do(command); err != nil {
				m.note("probe", err.Error())
			}
		}
	}
}

// stepTook keeps the durations of the last steps, for the median in the summary.
func (m *Monitor) stepTook(d time.Duration) {
	const kept = 256
	if len(m.said.StepTime) == kept {
		m.said.StepTime = m.said.StepTime[1:]
	}
	m.said.StepTime = append(m.said.StepTime, float64(d.Microseconds())/1000)
}

func lastOf[T any](list []T, n int) []T { return list[max(0, len(list)-n):] }

// mostSaid bounds what is kept of a process that talks too much.
const mostSaid = 200

// raiseAllocator lifts the allocator's peaks, of the run and of the attempt. With one card it is
// that card; with more the process's own index says nothing about which, so the peaks are kept
// under the name the process uses.
func (m *Monitor) raiseAllocator(row event.Step) {
	if row.Device == event.HostDevice {
		return
	}
	for _, peaks := range []*event.Peaks{&m.said.Peaks, &m.said.Attempt} {
		at := allocatorPeak(peaks, row.Device)
		at.Allocated, at.Reserved = max(at.Allocated, row.PeakAllocated, row.Allocated),
			max(at.Reserved, row.Reserved)
	}
}

// raiseOOM lifts the peaks to the moment at which an allocator gave up: memory can be gone within
// less than the time between two readings.
func (m *Monitor) raiseOOM(oom probe.OOM) {
	if oom.Device == event.HostDevice || oom.Total == 0 {
		return
	}
	for _, peaks := range []*event.Peaks{&m.said.Peaks, &m.said.Attempt} {
		at := allocatorPeak(peaks, oom.Device)
		at.Allocated, at.Reserved = max(at.Allocated, oom.Allocated), max(at.Reserved, oom.Reserved)
		at.Used, at.Total = max(at.Used, oom.Total-oom.Free), max(at.Total, oom.Total)
	}
}

// allocatorPeak is the peak that an allocator's figures belong to.
func allocatorPeak(peaks *event.Peaks, device int) *event.DevicePeak {
	if len(peaks.Devices) == 1 {
		return &peaks.Devices[0]
	}
	return devicePeak(peaks, "device "+strconv.Itoa(device))
}

// stepThinner keeps at most ten steps a second of each process for the record; the detectors see
// all of them.
type stepThinner struct {
	waiting []event.RankedStep
	last    map[int]time.Time // of each process
}

func (t *stepThinner) add(s event.RankedStep) {
	if t.last == nil {
		t.last = map[int]time.Time{}
	}
	since := s.End.Sub(t.last[s.PID])
	if since >= 0 && since < 100*time.Millisecond && s.OOMs == 0 { // below 0 the clock was set back
		return
	}
	t.last[s.PID] = s.End
	t.waiting = append(t.waiting, s)
}

func (t *stepThinner) take() []event.RankedStep {
	taken := t.waiting
	t.waiting = nil
	return taken
}

func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}
