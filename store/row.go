package store

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"memroom/event"
)

// Status of a run.
type Status string

// Lost means that nobody lives who could say how the run ended: the machine went down, or the
// keeper was killed.
const (
	Running Status = "running"
	Ended   Status = "ended"
	Lost    Status = "lost"
)

// Row is one run in a list.
type Row struct {
	ID        string      `json:"id"`
	Name      string      `json:"name,omitempty"`
	Tags      []string    `json:"tags,omitempty"`
	Command   string      `json:"command"`
	Host      string      `json:"host,omitempty"`
	Group     string      `json:"group,omitempty"`
	NodeRank  int         `json:"node_rank,omitempty"`
	Status    Status      `json:"status"`
	Unwatched int         `json:"unwatched,omitempty"` // its process goes on, but its keeper was killed
	Started   time.Time   `json:"started"`
	Seconds   float64     `json:"seconds,omitempty"`
	ExitCode  *int        `json:"exit_code,omitempty"`
	IsOOM     bool        `json:"is_oom,omitempty"`
	Where     event.Where `json:"where,omitempty"`
	KilledBy  string      `json:"killed_by,omitempty"`
	Attempts  int         `json:"attempts,omitempty"`
	PeakHost  event.Bytes `json:"peak_host,omitempty"`
	HostLimit event.Bytes `json:"host_limit,omitempty"`
	PeakGPU   event.Bytes `json:"peak_gpu,omitempty"`
	GPUTotal  event.Bytes `json:"gpu_total,omitempty"`
	Steps     int64       `json:"steps,omitempty"`
	Findings  int         `json:"findings,omitempty"`
	// Reported means that another machine sends the record. Heard is when it last did, ClockAhead
	// by how many seconds its clock differs. Started is in this machine's time.
	Reported   bool      `json:"reported,omitempty"`
	Heard      time.Time `json:"heard,omitzero"`
	ClockAhead float64   `json:"clock_ahead_seconds,omitempty"`
	// why the record cannot be read; such a run is kept
	Damaged string `json:"damaged,omitempty"`
}

// keeperState is the part of keeper.json that a list needs.
type keeperState struct {
	Keeper      int         `json:"keeper"`
	KeeperStart uint64      `json:"keeper_start"`
	Finished    bool        `json:"finished"`
	Exit        *event.Exit `json:"exit"`
	Began       time.Time   `json:"began"`
}

// Row reads a run's folder into a line of a list. From a damaged folder it returns what can be
// read.
func (f *Folder) Row() Row {
	row := Row{ID: f.ID, Status: Lost}
	run, err := f.ownRecord()
	if err != nil {
		row.Damaged = err.Error()
		run = event.Run{}
	} else {
		row.Name, row.Tags, row.Command, row.Host, row.Started = run.Name, run.Tags,
			strings.Join(run.Command, " "), run.Host, run.Started
	}
	state, _ := ReadRecord[keeperState](f, stateFile)
	if row.Started.IsZero() {
		row.Started = state.Began
	}
	row.Group, row.NodeRank = run.Group, run.NodeRank
	row.Status = f.statusOf(run.Host, state)
	if from, yes := f.Reported(); yes {
		row.addReported(from)
	}
	exit, err := f.Exit()
	if err == nil && row.Status != Running {
		row.Status, row.Seconds, row.ExitCode = Ended, exit.Seconds, &exit.Code
	}
	if v, err := f.Verdict(); err == nil {
		row.IsOOM, row.Where, row.KilledBy = v.IsOOM, v.Where, v.KilledBy
	}
	if s, err := f.Summary(); err == nil {
		row.addSummary(s)
	}
	return row
}

// addReported brings the start into the server's own time.
func (r *Row) addReported(from Reported) {
	r.Reported, r.Heard, r.ClockAhead = true, from.Heard, from.Ahead().Seconds()
	if !r.Started.IsZero() {
		r.Started = r.Started.Add(-from.Ahead())
	}
}

func (r *Row) addSummary(s event.Summary) {
	r.PeakHost, r.HostLimit, r.Steps, r.Findings, r.Attempts = s.Peaks.Unreclaimable,
		s.Peaks.HostLimit, s.Steps, len(s.Findings), len(s.Attempts)
	for _, d := range s.Peaks.Devices {
		if used := max(d.Used, d.Reserved); used > r.PeakGPU {
			r.PeakGPU, r.GPUTotal = used, d.Total
		}
	}
}

// statusOf goes by the keeper's process. One on another machine that shares this home cannot be
// seen. Then it goes by the record, which a monitor renews every second.
func (f *Folder) statusOf(host string, state keeperState) Status {
	switch {
	case state.Keeper == 0:
		return Lost
	case state.Finished:
		return Ended
	}
	if from, yes := f.Reported(); yes {
		if time.Since(from.Heard) < heardWithin {
			return Running
		}
		return Lost
	}
	switch {
	case elsewhere(host):
		if f.writtenWithin(time.Now(), stillWriting) {
			return Running
		}
	case processIs(state.Keeper, state.KeeperStart):
		return Running
	}
	return Lost
}

// stillWriting bounds the age of a record whose writer lives: network file systems show changes up
// to a minute late, and clocks differ.
const stillWriting = 3 * time.Minute

func elsewhere(host string) bool {
	here, err := os.Hostname()
	return err == nil && host != "" && host != here
}

// processIs reports whether a process of that number, started at that moment (clock ticks after
// boot), lives.
func processIs(pid int, started uint64) bool {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return false
	}
	at := strings.LastIndex(string(data), ") ")
	if at < 0 {
		return false
	}
	fields := strings.Fields(string(data[at+2:]))
	return len(fields) > 19 && fields[0] != "Z" && fields[19] == strconv.FormatUint(started, 10)
}

// Running reports whether the run's keeper lives and its command has not ended.
func (f *Folder) Running() bool {
	state, err := ReadRecord[keeperState](f, stateFile)
	run, _ := f.Run()
	return err == nil && f.statusOf(run.Host, state) == Running
}

// Elsewhere returns the machine that a run is on, if it is another one.
func (f *Folder) Elsewhere() (host string, yes bool) {
	run, _ := f.Run()
	return run.Host, elsewhere(run.Host)
}

// stamp changes whenever something that a Row shows may have changed.
func (f *Folder) stamp() string {
	var times []string
	for _, name := range []string{runFile, stateFile, exitFile, verdictFile, summaryFile} {
		if info, err := os.Stat(f.Path(name)); err == nil {
			times = append(times, strconv.FormatInt(info.ModTime().UnixNano(), 36))
		} else {
			times = append(times, "-")
		}
	}
	return strings.Join(times, " ")
}

// failed reports whether a run did not end well, as far as is known.
func (r Row) failed() bool {
	return r.Status == Lost || r.ExitCode != nil && *r.ExitCode != 0
}

// State describes in a word or two how a run stands.
func (r Row) State() string {
	switch {
	case r.Status == Running:
		return "running"
	case r.Damaged != "":
		return "damaged"
	case r.Unwatched > 0:
		return fmt.Sprintf("unwatched, process %d", r.Unwatched)
	case r.Status == Lost || r.ExitCode == nil:
		return "lost"
	case r.IsOOM:
		return "out of " + r.Where.Memory()
	case *r.ExitCode == 0:
		return "ok"
	case *r.ExitCode == 128+int(syscall.SIGINT):
		return "interrupted"
	}
	return fmt.Sprintf("exit %d", *r.ExitCode)
}
