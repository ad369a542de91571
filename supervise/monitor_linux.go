package supervise

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net"
	"os"
	"strings"
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

// Detector looks at the series of a run as they grow and reports what it finds, once each.
type Detector interface {
	Sample(event.Sample) []event.Finding
	Steps(pid int, rank *int, rows []event.Step) []event.Finding
	Heard(pid int, rank *int, message probe.Message) []event.Finding
	// what probes should do so that it can say more, by process; each once
	Asks() map[int][]probe.Command
	Forecasts() []diagnose.Prediction
	Accounts() map[string]diagnose.Account // of each card
	// what is known better at the end of an attempt, or no longer holds
	Ended() []event.Finding
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

	job     job     // what the parts share
	meters  sampler // reads
	record  record  // writes down
	judge   judge   // decides what it means, and what follows
	hearer  hearer  // hears the probes
	limiter limiter // ends the run at a limit, or when one of the next two asks for it
	ranks   ranks
	group   group
	alarm   alarm  // warns near a limit
	relief  relief // frees cache on a full card
	stands  whereabouts
	kept    time.Time     // when a reading was last put into the record
	verdict event.Verdict // on the last attempt that has ended

	interval time.Duration // between two readings now; 0: as the options say
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

type told struct {
	kind    kind
	payload []byte
	err     error
}

// Watch is the main function of the monitor. It returns when the run is over or the keeper has
// gone.
func (m *Monitor) Watch() error {
	SettleSoon()
	conn := m.Keeper.conn
	defer conn.Close()
	m.assemble(conn)
	if err := writeJSON(conn, sayHello, hello{Role: roleMonitor, Out: -1, Err: -1}); err != nil {
		return err
	}
	keeper := make(chan told, 16)
	go listen(conn, keeper)
	return m.loop(keeper)
}

// assemble joins the parts of the monitor.
func (m *Monitor) assemble(conn *net.UnixConn) {
	proc := meter.NewProc(m.Options.Proc)
	m.job = job{run: m.Run, files: m.Files, options: m.Options, conn: conn, proc: proc,
		people: newPeople(proc, 0)}
	m.judge = judge{job: &m.job, record: &m.record, meters: &m.meters, detect: m.Detect,
		policy: m.Policy}
	m.record = newRecord(&m.job, m.Record, m.judge.now)
	m.meters = sampler{proc: proc, shm: m.Options.Shm, note: m.record.note}
	m.hearer = hearer{job: &m.job, record: &m.record, judge: &m.judge, meters: &m.meters,
		ranks: &m.ranks, stands: &m.stands, probes: m.Probe, speaking: map[*probe.Conn]bool{}}
	m.newLimits()
}

// newLimits begins to guard an attempt: limits of the one before are over.
func (m *Monitor) newLimits() {
	m.limiter = limiter{job: &m.job, record: &m.record, meters: &m.meters}
	m.ranks = ranks{job: &m.job, record: &m.record, meters: &m.meters, limiter: &m.limiter}
	m.group = group{job: &m.job, record: &m.record, limiter: &m.limiter, others: m.Companions}
	m.alarm = alarm{job: &m.job, record: &m.record}
	m.relief = relief{record: &m.record, judge: &m.judge, hearer: &m.hearer}
	m.stands = whereabouts{job: &m.job, record: &m.record, ways: map[int]probe.Where{},
		asked: map[int]time.Duration{}, owed: map[string]owed{}, heard: map[string]int64{},
		reads: map[string]reading{}}
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
	heard := m.hearer.messages()
	defer m.record.flush()
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
			m.hearer.hear(h)
		case <-ticker.C:
			m.tick()
			m.pace(ticker)
			dropProgram()
		}
	}
}

func (m *Monitor) hearKeeper(t told, ticker *time.Ticker) (over bool, err error) {
	if t.err != nil {
		m.record.happened(event.Happened{Kind: "note", PID: m.job.state.Child,
			Text: "memroom's process that held the command was killed: nobody watches it from here on"})
		return true, errors.New("the keeper has gone: " + t.err.Error())
	}
	switch t.kind {
	case tellLaunch:
		return false, json.Unmarshal(t.payload, &m.job.launch)
	case tellState:
		var state State // a fresh one: the exit of the attempt before must not stay
		if err := json.Unmarshal(t.payload, &state); err != nil {
			return true, err
		}
		m.job.state = state
		m.begin()
		m.pace(ticker)
	case tellExited:
		var exit event.Exit
		if err := json.Unmarshal(t.payload, &exit); err != nil {
			return true, err
		}
		return false, m.attemptEnded(exit)
	case tellOver:
		m.record.happened(event.Happened{Kind: "action",
			Text: "not launched again: " + m.readSignal() + " was sent through memroom"})
		return false, m.finish(*m.job.state.Exit)
	case tellFinished:
		return true, nil
	case tellNote:
		m.record.note("output", string(t.payload))
	}
	return false, nil
}

// begin follows the process tree of the attempt that the keeper has started.
func (m *Monitor) begin() {
	state := &m.job.state
	if state.Child == 0 { // the cards as they are before the command can touch them
		if m.record.said.Before == nil {
			m.record.said.Before = usedNow(m.Devices)
		}
		return
	}
	m.meters = sampler{proc: m.job.proc, devices: m.Devices, shm: m.Options.Shm,
		note: m.record.note, before: m.record.said.Before}
	m.meters.around, _ = meter.FindCgroup(m.Options.Proc, "self")
	m.meters.tree = &meter.Tree{Proc: m.job.proc, Keeper: state.Keeper,
		Except: []int{os.Getpid()}, Cgroup: m.job.cgroup()}
	m.job.people = newPeople(m.job.proc, state.Keeper)
	m.newLimits()
	for _, n := range state.Notes {
		m.record.note("keeper", n)
	}
	m.kept = time.Time{}
	m.record.happened(event.Happened{Kind: "attempt", PID: state.Child,
		Text: fmt.Sprintf("attempt %d began", state.Attempt)})
	m.tick()
}

// softTick is the time between two readings where the monitor itself holds the limit: memory can
// grow by gigabytes in a second.
const softTick = 100 * time.Millisecond

// pace sets the time until the next reading.
func (m *Monitor) pace(ticker *time.Ticker) {
	ordinary := m.Options.Interval
	if m.job.state.Limit == LimitSoft {
		ordinary = min(ordinary, softTick)
	}
	if next := m.stands.pace(ordinary); next != m.interval {
		m.interval = next
		ticker.Reset(next)
	}
}

// tick takes a reading. Where ticks come faster than usual not every reading is kept.
func (m *Monitor) tick() {
	if m.meters.tree == nil || m.job.state.Exit != nil {
		return
	}
	now := time.Now()
	m.meters.tree.Refresh(now)
	s := m.meters.read(now, m.job.now(), m.job.state.Attempt)
	m.job.people.update(m.meters.tree)
	m.limiter.hold(&s)
	m.meters.last = s
	m.ranks.check(now)
	m.group.check(now)
	m.hearer.nameSilent(now)
	m.alarm.check(s)
	m.relief.check(now, s)
	m.stands.check(s, m.job.hostLimit(s))
	m.record.said.raise(s, m.job.hostLimit(s))
	if now.Sub(m.kept) < m.Options.Interval-m.interval/2 && m.interval < m.Options.Interval {
		return
	}
	m.kept = now
	printed := m.job.printed()
	s.Output, s.Errors = event.Bytes(printed[0]), event.Bytes(printed[1])
	m.judge.sample(s)
	m.record.keep(s, now)
}

// attemptEnded judges the attempt, records it, and informs the keeper of what follows. Everything
// it does may be repeated by another monitor if this one is killed in the middle.
func (m *Monitor) attemptEnded(exit event.Exit) error {
	m.job.state.Exit = &exit
	m.readSignal()
	m.hearer.hearLastWords()
	m.stands.end()
	m.record.flush()
	verdict := m.judge.ended(exit)
	m.verdict = verdict
	m.record.check(m.record.to.SaveVerdict(verdict))
	decision := m.judge.decide(exit, verdict)
	m.record.attempt(attemptOf(exit, verdict, decision.Changed))
	if decision.Again {
		return m.again(decision)
	}
	return m.finish(exit)
}

// finish closes the record with the last attempt.
func (m *Monitor) finish(exit event.Exit) error {
	m.record.finish(exit, m.verdict, m.Report, m.Verdict)
	return writeMessage(m.job.conn, sayDone, nil)
}

// readSignal takes over which signal the keeper has passed on last, from its file, and returns it.
func (m *Monitor) readSignal() string {
	if now, err := ReadState(m.job.files.State); err == nil {
		m.job.state.UserSignal, m.job.state.UserSignalMS = now.UserSignal, now.UserSignalMS
	}
	return m.job.state.UserSignal
}

// again asks the keeper for another launch.
func (m *Monitor) again(d Decision) error {
	m.record.said.forgetAttempt(m.job.printed())
	m.record.happened(event.Happened{Kind: "action", Text: "launched again: " +
		strings.Join(d.Changed, "; ")})
	return writeJSON(m.job.conn, sayLaunch, Launch{Args: d.Args, Env: d.Env,
		Path: m.job.launch.Path, HostLimit: m.job.state.HostLimit, Note: d.Note})
}
