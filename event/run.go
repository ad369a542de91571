package event

import (
	"encoding/json"
	"slices"
	"strings"
	"time"
	"unicode"
)

// Run is the record of one use of `memroom run`, as it is kept: secrets masked, environment reduced
// to the allow-list.
type Run struct {
	ID       string            `json:"id"`
	Name     string            `json:"name,omitempty"`
	Tags     []string          `json:"tags,omitempty"`
	Command  []string          `json:"command"`
	Dir      string            `json:"dir"`
	Host     string            `json:"host"`
	User     string            `json:"user,omitempty"`
	Group    string            `json:"group,omitempty"`
	NodeRank int               `json:"node_rank,omitempty"`
	Env      map[string]string `json:"env,omitempty"`
	Started  time.Time         `json:"started"`
	Version  string            `json:"version,omitempty"` // of memroom
	HostMem  Bytes             `json:"host_mem,omitempty"`
	GPUMem   Bytes             `json:"gpu_mem,omitempty"`
}

// Again is the line to type for another run of the command, under the same limits and with further
// flags of `memroom run`. A limit among the flags replaces the run's own. A command that is not
// known, holds a masked secret or is too long to read stays for the user to fill in.
func (r Run) Again(flags ...string) string {
	words := append([]string{"memroom", "run"}, flags...)
	for _, own := range []struct {
		flag  string
		limit Bytes
	}{{"--host-mem", r.HostMem}, {"--gpu-mem", r.GPUMem}} {
		if own.limit > 0 && !slices.Contains(flags, own.flag) {
			words = append(words, own.flag, own.limit.AsSet())
		}
	}
	return strings.Join(append(words, "--"), " ") + " " + r.typed()
}

// typed is the command as one types it in a shell.
func (r Run) typed() string {
	const readable = 160 // characters: a line to copy may be longer than the screen is wide
	words := make([]string, len(r.Command))
	for i, w := range r.Command {
		words[i] = quoted(w)
	}
	text := strings.Join(words, " ")
	if text == "" || len(text) > readable || strings.Contains(text, "***") {
		return "YOUR COMMAND"
	}
	return text
}

// quoted is a word as a shell reads it.
func quoted(word string) string {
	plain := func(c rune) bool {
		return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' ||
			strings.ContainsRune("-_./=:,@%+", c) || c > unicode.MaxASCII && unicode.IsLetter(c)
	}
	if word != "" && strings.IndexFunc(word, func(c rune) bool { return !plain(c) }) < 0 {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// Attempt is one launch of a run's command.
type Attempt struct {
	Number  int       `json:"number"` // from 1
	Command []string  `json:"command,omitempty"`
	Changed []string  `json:"changed,omitempty"` // what is different from the attempt before, in words
	Started time.Time `json:"started"`
	Ended   time.Time `json:"ended,omitzero"`
	Exit    *Exit     `json:"exit,omitempty"`
	Verdict *Verdict  `json:"verdict,omitempty"`
}

// Exit is how the command's own process ended. It is written as exit.json by the one process that
// could reap it.
type Exit struct {
	Attempt int       `json:"attempt"`
	Code    int       `json:"exit_code"` // as a shell reports it: the process's own, or 128+n
	Signal  string    `json:"signal,omitempty"`
	At      time.Time `json:"at"`
	Seconds float64   `json:"seconds"`
	// of the largest single process, as the kernel counted it
	MaxResident Bytes `json:"max_rss,omitempty"`
	// the most that the run's own cgroup held, files in the page cache included
	CgroupPeak Bytes   `json:"cgroup_peak,omitempty"`
	CPUSeconds float64 `json:"cpu_seconds,omitempty"`
	StartError string  `json:"start_error,omitempty"` // the command was never executed: why
	// why another attempt cannot read the same stdin
	InputSpent string `json:"input_spent,omitempty"`
}

// Peaks are the highest readings of a run, each with the limit that applied; 0 where not measured.
type Peaks struct {
	Resident      Bytes `json:"rss"`
	Unreclaimable Bytes `json:"unreclaimable"` // anonymous + shared
	Cgroup        Bytes `json:"cgroup,omitempty"`
	HostLimit     Bytes `json:"host_limit,omitempty"`
	// what others held of the machine when the least was free, where the machine is the limit and
	// they held most of what was taken
	HostOthers Bytes        `json:"host_others,omitempty"`
	Swap       Bytes        `json:"swap,omitempty"`
	Shm        Bytes        `json:"shm,omitempty"`
	ShmTotal   Bytes        `json:"shm_total,omitempty"`
	Processes  int          `json:"procs,omitempty"`
	Devices    []DevicePeak `json:"gpus,omitempty"`
	// Ray's workers by what they worked on: most at once, largest, most together.
	Ray []RaySample `json:"ray,omitempty"`
}

// HostLeft is what the run could still have taken at its peak; 0 where nothing was left or no limit
// is known.
func (p Peaks) HostLeft() Bytes {
	return max(0, p.HostLimit-p.HostOthers-max(p.Unreclaimable, 0))
}

// DevicePeak is the highest reading of one accelerator. Allocated and Reserved come from the
// framework's allocator.
type DevicePeak struct {
	UUID      string `json:"uuid"`
	Name      string `json:"name,omitempty"`
	Total     Bytes  `json:"total"`
	Used      Bytes  `json:"used"`
	Ours      Bytes  `json:"ours,omitempty"` // by the run's processes, where the driver names them
	Allocated Bytes  `json:"allocated,omitempty"`
	Reserved  Bytes  `json:"reserved,omitempty"`
}

// Happened is one line of a run's events: something that happened at a moment and is worth keeping.
// Exactly which fields are set depends on Kind; docs/format/run.md lists the kinds.
type Happened struct {
	AtMS    int64 `json:"at_ms"`
	Attempt int   `json:"attempt,omitempty"`
	// note, finding, process, framework, oom, died, phase, account, pressure, action, remedy,
	// verdict
	Kind    string          `json:"kind"`
	Text    string          `json:"text,omitempty"`
	PID     int             `json:"pid,omitempty"`
	Rank    *int            `json:"rank,omitempty"`
	Finding *Finding        `json:"finding,omitempty"`
	Data    json.RawMessage `json:"data,omitempty"`
}

// Summary is the final report of a run, written as summary.json and by `run --json`.
type Summary struct {
	Run      Run       `json:"run"`
	Exit     *Exit     `json:"exit,omitempty"`
	Verdict  *Verdict  `json:"verdict,omitempty"`
	Attempts []Attempt `json:"attempts,omitempty"`
	Peaks    Peaks     `json:"peaks"`
	Steps    int64     `json:"steps,omitempty"`
	StepMS   float64   `json:"step_ms,omitempty"` // median duration of a step
	Findings []Finding `json:"findings,omitempty"`
	Notes    []string  `json:"notes,omitempty"` // what could not be measured or done, once each
	Feeding  []Feed    `json:"feeding,omitempty"`
	Samples  int64     `json:"samples"`
	// Of memroom itself: processor seconds and resident bytes of keeper and monitor.
	CostCPU      float64 `json:"cost_cpu_seconds"`
	CostResident Bytes   `json:"cost_rss"`
	// time inside the probe's hooks / time since the framework was imported
	ProbeShare float64 `json:"probe_share,omitempty"`
}

// RankedStep is a step with the process it was made in.
type RankedStep struct {
	AtMS    int64 `json:"at_ms"`
	Attempt int   `json:"attempt,omitempty"`
	PID     int   `json:"pid"`
	Rank    *int  `json:"rank,omitempty"`
	Step
}
