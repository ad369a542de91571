package supervise

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net"
	"os"
	"path/filepath"
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

// Devices reads the accelerators. An error means none can be read now.
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
	tree    *meter.Tree
	around  *meter.Cgroup
	people  *people
	limiter limiter
	alarm   *alarm
	batch   []event.Sample
	last    event.Sample
	whole   event.Sample // the last reading of everything at one moment
	ticks   int
	flushed time.Time
	written time.Time
	pss     proportional
	absent  map[string]bool
	steps   stepThinner

	speaking map[*probe.Conn]bool // probes that are connected
	asked    int64                // commands sent to probes: the last one's ID
}

// Options of watching. The zero value is not useful; see [DefaultOptions].
type Options struct {
	Interval   time.Duration // between two readings
	Grace      time.Duration // for the other ranks after one has run out of memory, and between TERM and KILL
	PressureAt float64       // share of a limit at which OnPressure acts
	OnPressure string        // signal name or shell command; empty: nothing
	Proc       string        // mount of /proc
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
	Well     int             `json:"well,omitempty"` // Pythons that ended in order after another had died of memory
	OOMs     []ProbeOOM      `json:"ooms,omitempty"`
	Said     []probe.Said    `json:"said,omitempty"`    // in this attempt
	Attempt  event.Peaks     `json:"attempt,omitempty"` // peaks of this attempt alone
	// Libraries is what each Python of this attempt held once its framework was loaded.
	Libraries map[int]event.Bytes `json:"libraries,omitempty"`
	Printed   [2]int64            `json:"printed"` // bytes of output and errors when it began: what stands before is about others
	Ended     *Ending             `json:"ended,omitempty"`
	StepTime  []float64           `json:"step_ms,omitempty"` // of the last steps
	Share     float64             `json:"probe_share,omitempty"`
	CPU       float64             `json:"cost_cpu"` // of the monitors before this one
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
	m.around, _ = meter.FindCgroup(m.Options.Proc, "self")
	m.tree = &meter.Tree{Proc: m.proc, Keeper: m.state.Keeper, Except: []int{os.Getpid()}}
	if m.state.Cgroup != "" {
		m.tree.Cgroup = &meter.Cgroup{Dir: m.state.Cgroup, Version: m.state.CgroupV}
	}
	m.people = newPeople(m.proc, m.state.Keeper)
	m.limiter = limiter{}
	m.alarm = &alarm{at: m.Options.PressureAt, act: m.Options.OnPressure}
	for _, n := range m.state.Notes {
		m.note("keeper", n)
	}
	if m.state.Limit == LimitSoft {
		ticker.Reset(min(m.Options.Interval, 100*time.Millisecond))
	}
	m.last, m.whole, m.ticks = event.Sample{}, event.Sample{}, 0
	m.pss = proportional{}
	m.happened(event.Happened{Kind: "attempt", PID: m.state.Child,
		Text: fmt.Sprintf("attempt %d began", m.state.Attempt)})
	m.tick()
}

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
	if m.tree == nil || m.state.Exit != nil {
		return
	}
	now := time.Now()
	m.tree.Refresh(now)
	s := m.read(now)
	m.people.update(m.tree)
	m.hold(&s)
	m.checkRanks(now)
	m.checkCompanions(now)
	m.nameSilent(now)
	m.alarm.check(m, s)
	m.relieve(now, s)
	m.last = s
	m.raise(s)
	every := max(1, int(m.Options.Interval/(100*time.Millisecond)))
	if m.state.Limit == LimitSoft && m.ticks%every != 0 {
		m.ticks++
		return
	}
	m.ticks++
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
			fmt.Sprintf("%s (process %d) did not load the probe (-I, -E, -S or another interpreter keep it out): it is watched from outside only", who.name, who.pid))
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

// read takes one reading of everything. What changes slowly is read once a second.
func (m *Monitor) read(now time.Time) event.Sample {
	detail := m.ticks%4 == 0 || m.last.Processes == 0
	s := event.Sample{AtMS: m.now(), Attempt: m.state.Attempt}
	m.tree.Read(&s, detail)
	m.readProportional(&s, now)
	m.readCgroup(&s, detail)
	s.Machine, s.Devices = m.last.Machine, m.last.Devices
	if detail {
		m.readMachine(&s)
		// a call into the driver costs more than ten files; between two, the allocator's own peaks
		// count
		m.readDevices(&s)
	}
	m.readShm(&s)
	s.Held = m.held(s)
	if detail {
		m.whole = s
	}
	return s
}

// held is what the run has that cannot be dropped, each page once. The kernel counts so in a cgroup
// of the run's own; elsewhere the last proportional reading tells what part of the sum over the
// processes is real, and the cgroup around the run and the machine cannot hold less than the run.
// 0: as the sum says.
func (m *Monitor) held(s event.Sample) event.Bytes {
	c := s.Cgroup
	if c != nil && c.Own {
		return max(0, c.Current-max(0, c.File-c.Shmem))
	}
	if s.Processes < 2 {
		return 0 // a process alone shares with nobody
	}
	sum := s.Anonymous + s.Shared
	held := sum
	if m.pss.sharing > 0 {
		held = event.Bytes(m.pss.sharing * float64(sum))
	}
	if c != nil && c.Current > 0 {
		held = min(held, max(0, c.Current-max(0, c.File-c.Shmem)))
	}
	if s.Machine != nil && s.Machine.Total > 0 {
		held = min(held, s.Machine.Total-s.Machine.Available)
	}
	if held == sum {
		return 0
	}
	return held
}

// readProportional takes the dear reading: every half minute, and when processes came or went a
// moment ago, but never for more than a third of a percent of the time. It is given up where it
// stays slow: it holds the memory lock of the process it reads.
func (m *Monitor) readProportional(s *event.Sample, now time.Time) {
	const every, settled, each, all, share, tries = 30 * time.Second, time.Second,
		20 * time.Millisecond, 100 * time.Millisecond, 300, 3
	p := &m.pss
	if s.Processes != p.processes {
		p.processes, p.changed = s.Processes, now
	}
	due := now.Sub(p.at) >= every || p.changed.After(p.at) && now.Sub(p.changed) >= settled
	if !due || s.Processes < 2 || p.slow >= tries || now.Sub(p.at) < share*p.cost {
		return
	}
	begin := time.Now()
	pss, ok := m.tree.Proportional(each, all)
	p.at, p.cost = now, time.Since(begin)
	if ok {
		s.Proportional, p.slow = pss.All, 0
		p.sharing = min(1, float64(pss.Held)/float64(max(1, s.Anonymous+s.Shared)))
	} else if p.slow++; p.slow == tries {
		m.note("pss",
			fmt.Sprintf("proportional memory is not read: it takes %v here; pages that processes share may count once for each",
				p.cost.Round(time.Millisecond)))
	}
}

// proportional is what is known of the pages that the run's processes share.
type proportional struct {
	at        time.Time // of the last reading
	cost      time.Duration
	slow      int     // readings in a row that took too long
	sharing   float64 // what part of the sum over processes was real; 0 unknown
	processes int     // at the last tick, and since when there are as many
	changed   time.Time
}

// readCgroup reads usage and kills each time, what it is made of and the limits once a second.
func (m *Monitor) readCgroup(s *event.Sample, detail bool) {
	group, own := m.tree.Cgroup, true
	if group == nil {
		group, own = m.around, false
	}
	if group == nil {
		m.note("cgroup",
			"no memory cgroup is mounted: limits and kills are read from the machine's counters only")
		return
	}
	if before := m.last.Cgroup; before != nil && !detail {
		now := *before
		var err error
		if now.Current, now.OOMKill, err = group.Quick(); err == nil {
			now.Peak = max(now.Peak, now.Current)
			s.Cgroup = &now
			return
		}
	}
	reading, err := group.Read()
	if err != nil {
		m.note("cgroup", "the cgroup's memory cannot be read: "+err.Error())
		return
	}
	reading.Own = own
	s.Cgroup = &reading
}

func (m *Monitor) readMachine(s *event.Sample) {
	machine, err := m.proc.Machine()
	if err != nil {
		m.note("meminfo", "the machine's memory cannot be read: "+err.Error())
		return
	}
	if _, _, err := m.proc.Pressure(); err != nil {
		m.note("psi", "memory pressure is not available: "+err.Error())
	}
	s.Machine = &machine
}

// readShm reads shared memory each time: it fills within a second, and a bus error right after is
// only understood by the last reading.
func (m *Monitor) readShm(s *event.Sample) {
	total, used, err := meter.SharedMemory(m.Options.Shm)
	if err != nil {
		m.note("shm", "shared memory cannot be read: "+err.Error())
		return
	}
	machine := event.MachineSample{}
	if s.Machine != nil {
		machine = *s.Machine
	}
	machine.ShmTotal, machine.ShmUsed = total, used
	s.Machine = &machine
}

func (m *Monitor) readDevices(s *event.Sample) {
	if m.Devices == nil {
		return
	}
	devices, err := m.Devices.Read()
	if err != nil {
		m.note("gpu", "cards cannot be read: "+err.Error())
		return
	}
	ours := map[int]bool{}
	for _, pid := range m.tree.Processes() {
		ours[pid] = true
	}
	readings := make([]event.DeviceSample, 0, len(devices))
	for _, d := range devices {
		if !m.divide(&d, ours) {
			m.note("gpu processes",
				"the driver does not say which process uses the card: the run's share is what came since it began")
		}
		readings = append(readings, d.DeviceSample)
	}
	s.Devices = readings
}

// divide tells the run's share of a card from its neighbours'. Where the driver names no processes,
// or names them by numbers of another namespace (containers), what was there before the run counts
// as the neighbours'.
func (m *Monitor) divide(d *Device, ours map[int]bool) bool {
	named := d.Processes != nil
	for pid, used := range d.Processes {
		if _, err := os.Stat(filepath.Join(m.Options.Proc, strconv.Itoa(pid))); err != nil {
			named = false
		}
		if ours[pid] {
			d.Ours += used
		} else {
			d.Others += used
		}
	}
	if !named {
		d.Others = min(m.said.Before[d.UUID], d.Used)
		d.Ours = d.Used - d.Others
	}
	return named
}

// lookBefore reads the cards before the command can touch them.
func (m *Monitor) lookBefore() {
	if m.Devices == nil || m.said.Before != nil {
		return
	}
	if devices, err := m.Devices.Read(); err == nil {
		m.said.Before = map[string]event.Bytes{}
		for _, d := range devices {
			m.said.Before[d.UUID] = d.Used
		}
	}
}

// judgeNow renews what a live view shows.
func (m *Monitor) judgeNow() {
	if m.whole.Processes > 0 {
		host := diagnose.Host(m.whole, m.hostLimit(m.whole))
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
