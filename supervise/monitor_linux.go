package supervise

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net"
	"os"
	"slices"
	"strconv"
	"time"

	"memroom/diagnose"
	"memroom/event"
	"memroom/meter"
	"memroom/probe"
)

// Recorder is where a run is written to and read back from.
type Recorder interface {
	AppendSamples([]event.Sample) error
	AppendSteps([]event.RankedStep) error
	AppendEvent(event.Happened) error
	AppendAttempt(event.Attempt) error
	Attempts() iter.Seq[event.Attempt]
	SaveVerdict(event.Verdict) error
	SaveSummary(event.Summary) error
	SaveProgress(any) error
	Progress(any) error
}

// Devices reads the accelerators. An error may come along with the readings of the cards that
// answered.
type Devices interface {
	Read() ([]Device, error)
}

// Device is a reading of one card and who holds memory on it.
type Device struct {
	event.DeviceSample
	Processes map[int]event.Bytes // nil where the driver does not say
}

// Detector looks at the series of a run as they grow and says what it learns, once each.
type Detector interface {
	Sample(event.Sample) []event.Finding
	Steps(pid int, rank *int, rows []event.Step) []event.Finding
	Heard(pid int, rank *int, message probe.Message) []event.Finding
	// what probes should do so that it can say more, by process; each once
	Asks() map[int][]probe.Command
	Forecasts() []diagnose.Prediction
	Accounts() map[string]diagnose.Account // of each card
}

// Monitor is the watching process of a run.
type Monitor struct {
	Run     event.Run
	Files   Files
	Keeper  *Link // to the keeper that started this process
	Record  Recorder
	Devices Devices         // nil: none
	Probe   *probe.Listener // nil: nobody is heard
	Detect  Detector        // nil: nothing is looked for
	Policy  Policy          // nil: an attempt is the last

	Companions Companions // the other runs of its group; nil: it has none

	Options Options
	Report  string // path for the final report; empty: none
	Verdict string // path for a copy of the verdict; empty: none

	conn    *net.UnixConn
	state   State
	launch  Launch
	said    learnt
	proc    *meter.Proc
	meters  sampler
	people  *people
	limiter limiter
	alarm   *alarm
	batch   []event.Sample
	kept    time.Time // when a reading was last put into the record
	flushed time.Time
	written time.Time
	absent  map[string]bool
	steps   stepThinner

	speaking map[*probe.Conn]bool // probes that are connected
	asked    int64                // commands sent to probes: the last one's ID
}

// Options of watching. The zero value is not useful; see [DefaultOptions].
type Options struct {
	Interval time.Duration // between two readings
	// for the other ranks after one has run out of memory, and between TERM and KILL
	Grace      time.Duration
	PressureAt float64 // share of a limit at which OnPressure acts
	OnPressure string  // signal name or shell command; empty: nothing
	Proc       string  // mount of /proc
	Shm        string
}

// DefaultOptions reads four times a second.
func DefaultOptions() Options {
	return Options{Interval: 250 * time.Millisecond, Grace: 20 * time.Second, PressureAt: 0.92,
		Proc: "/proc", Shm: "/dev/shm"}
}

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
	// bytes of output and errors when it began: what stands before is about others
	Printed  [2]int64  `json:"printed"`
	Ended    *Ending   `json:"ended,omitempty"`
	StepTime []float64 `json:"step_ms,omitempty"` // of the last steps
	Share    float64   `json:"probe_share,omitempty"`
	CPU      float64   `json:"cost_cpu"` // of the monitors before this one
	// Before is what was used on each card before the command started: where the driver does not
	// say who uses a card, the rest is the run's.
	Before map[string]event.Bytes `json:"before,omitempty"`
	Now
}

type told struct {
	kind    kind
	payload []byte
	err     error
}

// Watch is the main function of the monitor. It returns when the run is over or the keeper has
// gone.
func (m *Monitor) Watch() error {
	SettleSoon()
	m.absent = map[string]bool{}
	_ = m.Record.Progress(&m.said)
	m.proc = meter.NewProc(m.Options.Proc)
	m.meters = sampler{proc: m.proc, shm: m.Options.Shm, note: m.note}
	conn := m.Keeper.conn
	defer conn.Close()
	m.conn = conn
	if err := writeJSON(conn, sayHello, hello{Role: roleMonitor, Out: -1, Err: -1}); err != nil {
		return err
	}
	keeper := make(chan told, 16)
	go listen(conn, keeper)
	return m.loop(keeper)
}

func listen(conn *net.UnixConn, to chan<- told) {
	r := bufio.NewReaderSize(conn, 4096)
	for {
		what, payload, err := readMessage(r)
		to <- told{what, payload, err}
		if err != nil {
			return
		}
	}
}

func (m *Monitor) loop(keeper <-chan told) error {
	ticker := time.NewTicker(m.Options.Interval)
	defer ticker.Stop()
	var heard <-chan probe.Heard
	if m.Probe != nil {
		heard = m.Probe.Messages()
	}
	defer m.flush()
	for {
		select {
		case t := <-keeper:
			over, err := m.hearKeeper(t, ticker)
			if over || err != nil {
				return err
			}
		case h, open := <-heard:
			if !open {
				heard = nil
				continue
			}
			m.hearProbe(h)
		case <-ticker.C:
			m.tick()
			dropProgram()
		}
	}
}

func (m *Monitor) hearKeeper(t told, ticker *time.Ticker) (over bool, err error) {
	if t.err != nil {
		m.happened(event.Happened{Kind: "note", PID: m.state.Child,
			Text: "the keeper was killed: nobody watches the command from here on"})
		return true, errors.New("the keeper has gone: " + t.err.Error())
	}
	switch t.kind {
	case tellLaunch:
		return false, json.Unmarshal(t.payload, &m.launch)
	case tellState:
		var state State // a fresh one: the exit of the attempt before must not stay
		if err := json.Unmarshal(t.payload, &state); err != nil {
			return true, err
		}
		m.state = state
		m.begin(ticker)
	case tellExited:
		var exit event.Exit
		if err := json.Unmarshal(t.payload, &exit); err != nil {
			return true, err
		}
		return false, m.attemptEnded(exit)
	case tellFinished:
		return true, nil
	case tellNote:
		m.note("output", string(t.payload))
	}
	return false, nil
}

// begin follows the process tree of the attempt that the keeper has started.
func (m *Monitor) begin(ticker *time.Ticker) {
	if m.state.Child == 0 {
		m.lookBefore()
		return
	}
	m.meters = sampler{proc: m.proc, devices: m.Devices, shm: m.Options.Shm, note: m.note,
		before: m.said.Before}
	m.meters.around, _ = meter.FindCgroup(m.Options.Proc, "self")
	m.meters.tree = &meter.Tree{Proc: m.proc, Keeper: m.state.Keeper, Except: []int{os.Getpid()}}
	if m.state.Cgroup != "" {
		m.meters.tree.Cgroup = &meter.Cgroup{Dir: m.state.Cgroup, Version: m.state.CgroupV}
	}
	m.people = newPeople(m.proc, m.state.Keeper)
	m.limiter = limiter{}
	m.alarm = &alarm{at: m.Options.PressureAt, act: m.Options.OnPressure}
	for _, n := range m.state.Notes {
		m.note("keeper", n)
	}
	if m.state.Limit == LimitSoft {
		ticker.Reset(min(m.Options.Interval, softTick))
	}
	m.kept = time.Time{}
	m.happened(event.Happened{Kind: "attempt", PID: m.state.Child,
		Text: fmt.Sprintf("attempt %d began", m.state.Attempt)})
	m.tick()
}

// softTick is the time between two readings where the monitor itself holds the limit: memory can
// grow by gigabytes in a second.
const softTick = 100 * time.Millisecond

// now is the time in the run, in milliseconds, by a clock that does not jump.
func (m *Monitor) now() int64 { return bootClock().Milliseconds() - m.state.BeganBootMS }

// happened records an event, with its moment.
func (m *Monitor) happened(h event.Happened) {
	h.AtMS, h.Attempt = m.now(), m.state.Attempt
	if err := m.Record.AppendEvent(h); err != nil {
		m.cannotRecord(err)
	}
}

// note keeps something that could not be measured or done. The same thing is said once.
func (m *Monitor) note(about, text string) {
	if m.absent[about+text] {
		return
	}
	m.absent[about+text] = true
	for _, n := range m.said.Notes {
		if n == text {
			return
		}
	}
	m.said.Notes = append(m.said.Notes, text)
	m.happened(event.Happened{Kind: "note", Text: text})
}

// cannotRecord: a full disk is no reason to stop watching. It is said once, in the monitor's own
// log.
func (m *Monitor) cannotRecord(err error) {
	if !m.absent["record"] {
		m.absent["record"] = true
		m.said.Notes = append(m.said.Notes, "the record has gaps: "+err.Error())
		fmt.Fprintln(os.Stderr, "record:", err)
	}
}

// found keeps findings and shows them.
func (m *Monitor) found(findings []event.Finding) {
	for _, f := range findings {
		m.said.Findings = append(slices.DeleteFunc(m.said.Findings, f.Restates), f)
		m.happened(event.Happened{Kind: "finding", Finding: &f, Text: f.Title})
		_ = writeJSON(m.conn, sayFinding, f)
	}
}

// tick takes a reading. With a soft limit ticks come faster than readings are kept.
func (m *Monitor) tick() {
	if m.meters.tree == nil || m.state.Exit != nil {
		return
	}
	now := time.Now()
	m.meters.tree.Refresh(now)
	s := m.meters.read(now, m.now(), m.state.Attempt)
	m.people.update(m.meters.tree)
	m.hold(&s)
	m.meters.last = s
	m.checkRanks(now)
	m.checkCompanions(now)
	m.nameSilent(now)
	m.alarm.check(m, s)
	m.relieve(now, s)
	m.raise(s)
	if m.state.Limit == LimitSoft && now.Sub(m.kept) < m.Options.Interval-softTick/2 {
		return
	}
	m.kept = now
	m.keep(s)
	switch {
	case now.Sub(m.flushed) >= time.Second:
		m.flush()
	case now.Sub(m.written) >= 400*time.Millisecond:
		m.writeReadings()
	}
}

// nameSilent says once which Python goes without the probe.
func (m *Monitor) nameSilent(now time.Time) {
	if m.Probe == nil || m.absent["silent"] {
		return
	}
	if who := m.people.silent(now, 5*time.Second); who != nil {
		m.absent["silent"] = true
		m.note("silent python",
			fmt.Sprintf("%s (process %d) did not load the probe (-I, -E, -S or another interpreter keep it "+
				"out): it is watched from outside only", who.name, who.pid))
	}
}

// keep puts a reading into the record.
func (m *Monitor) keep(s event.Sample) {
	m.said.Samples++
	m.batch = append(m.batch, s)
	if m.Detect != nil {
		m.found(m.Detect.Sample(s))
	}
}

// writeReadings writes the readings that wait: a killed monitor loses half a second of them, and
// the next one's start.
func (m *Monitor) writeReadings() {
	m.written = time.Now()
	err := m.Record.AppendSamples(m.batch)
	if err == nil {
		err = m.Record.AppendSteps(m.steps.take())
	}
	m.batch = m.batch[:0]
	if err != nil {
		m.cannotRecord(err)
	}
}

// flush writes the readings and what has been learnt so far.
func (m *Monitor) flush() {
	m.writeReadings()
	m.flushed = m.written
	m.judgeNow()
	saved := m.said
	saved.CPU += ownCPU()
	if err := m.Record.SaveProgress(saved); err != nil {
		m.cannotRecord(err)
	}
}

// lookBefore reads the cards before the command can touch them.
func (m *Monitor) lookBefore() {
	if m.Devices == nil || m.said.Before != nil {
		return
	}
	if devices, _ := m.Devices.Read(); len(devices) > 0 {
		m.said.Before = map[string]event.Bytes{}
		for _, d := range devices {
			m.said.Before[d.UUID] = d.Used
		}
	}
}

// judgeNow renews what a live view shows.
func (m *Monitor) judgeNow() {
	if m.meters.whole.Processes > 0 {
		host := diagnose.Host(m.meters.whole, m.hostLimit(m.meters.whole))
		m.said.Host = &host
	}
	if m.Detect != nil {
		m.said.Forecasts, m.said.Accounts = m.Detect.Forecasts(), m.Detect.Accounts()
	}
}

// hostLimit is the lowest wall for host memory.
func (m *Monitor) hostLimit(s event.Sample) event.Bytes {
	limit := m.state.HostLimit
	lower := func(other event.Bytes) {
		if other > 0 && (limit == 0 || other < limit) {
			limit = other
		}
	}
	if s.Cgroup != nil {
		lower(s.Cgroup.Limit)
	}
	if s.Machine != nil {
		lower(s.Machine.Total)
	}
	return limit
}

// raise lifts the peaks of the run and of the attempt to a reading.
func (m *Monitor) raise(s event.Sample) {
	raise(&m.said.Peaks, s, m.hostLimit(s))
	raise(&m.said.Attempt, s, m.hostLimit(s))
}

// raise lifts the peaks to a reading.
func raise(p *event.Peaks, s event.Sample, limit event.Bytes) {
	p.Resident = max(p.Resident, s.Resident)
	p.Unreclaimable = max(p.Unreclaimable, s.Unreclaimable())
	p.Swap = max(p.Swap, s.Swapped)
	p.Processes = max(p.Processes, s.Processes)
	p.HostLimit = limit
	if c := s.Cgroup; c != nil && c.Own {
		p.Cgroup = max(p.Cgroup, c.Current, c.Peak)
	}
	if s.Machine != nil {
		p.Shm, p.ShmTotal = max(p.Shm, s.Machine.ShmUsed), s.Machine.ShmTotal
	}
	for _, d := range s.Devices {
		at := devicePeak(p, d.UUID)
		at.Name, at.Total, at.Used = d.Name, d.Total, max(at.Used, d.Used)
	}
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

// signal asks the keeper to signal every process of the run.
func (m *Monitor) signal(number int) {
	_ = writeJSON(m.conn, saySignal, signalRequest{Number: number, All: true})
}

// ownCPU is the processor time this process has used.
func ownCPU() float64 { return cpuOf("self") }

// cpuOf is a process's processor time in seconds, from its stat file.
func cpuOf(pid string) float64 {
	data, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return 0
	}
	fields := statFields(string(data))
	if len(fields) < 13 {
		return 0
	}
	user, _ := strconv.ParseFloat(fields[11], 64)
	system, _ := strconv.ParseFloat(fields[12], 64)
	return (user + system) / clockTicks
}

// clockTicks is the kernel's unit of processor time in /proc: 100 a second on every Linux there is.
const clockTicks = 100
