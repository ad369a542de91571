package event

import "strings"

// Severity of a finding.
type Severity string

// Severities, worst first.
const (
	SeverityError   Severity = "error"
	SeverityWarning Severity = "warning"
	SeverityInfo    Severity = "info"
)

// Finding is something memroom learnt about the user's job.
type Finding struct {
	// leak, fragmentation, thrash, spike, host_pressure, neighbour, forecast, ...
	Kind string `json:"kind"`
	// Key names the subject of a finding that may be judged again: the latest of a key counts.
	Key      string   `json:"key,omitempty"`
	Detail   string   `json:"detail,omitempty"` // the situation, as `explain` names it: eval_batch, ...
	Severity Severity `json:"severity"`
	Title    string   `json:"title"` // one sentence, with the numbers
	Evidence []string `json:"evidence,omitempty"`
	Frames   []Frame  `json:"frames,omitempty"` // the user's lines of code, innermost first
	Step     int64    `json:"step,omitempty"`   // when it was noticed
	// when it was first said, milliseconds since the run began; 0 unknown
	FirstMS    int64    `json:"first_ms,omitempty"`
	Bytes      Bytes    `json:"bytes,omitempty"`  // how much memory it is about
	Memory     string   `json:"memory,omitempty"` // of a leak: which memory, "GPU 0 memory"
	Confidence float64  `json:"confidence"`       // 0 to 1
	Remedies   []string `json:"remedies,omitempty"`
}

// Where memory ran out.
type Where string

// The walls a job can hit.
const (
	WhereGPU     Where = "gpu"
	WhereHost    Where = "host"
	WhereShm     Where = "shm"
	WhereCgroup  Where = "cgroup"
	WhereMPS     Where = "mps"
	WhereUnknown Where = "unknown"
)

// Verdict is how an attempt ended, with the evidence. It is written as verdict.json.
type Verdict struct {
	ExitCode int    `json:"exit_code"`
	Signal   string `json:"signal,omitempty"`
	IsOOM    bool   `json:"is_oom"`
	Where    Where  `json:"where,omitempty"`
	// kernel, cgroup, memroom, ray, slurm, somebody, itself
	KilledBy string   `json:"killed_by,omitempty"`
	Rank     *int     `json:"rank,omitempty"`
	Host     string   `json:"host,omitempty"`
	Evidence []string `json:"evidence"`
}

// Restates reports whether a finding is about the same thing as an earlier one, about which more is
// known now: its line of code, or that it has ended. A leak that goes on after it was withdrawn
// replaces the withdrawal: both together would contradict each other.
func (f Finding) Restates(earlier Finding) bool {
	if f.Key != "" && f.Key == earlier.Key {
		return true
	}
	if f.Kind == "leak" && earlier.Kind == "leak" && f.Memory != "" && f.Memory == earlier.Memory &&
		f.Severity != SeverityInfo && earlier.Severity == SeverityInfo {
		return true
	}
	return f.Step > 0 && f.Kind == earlier.Kind && f.Step == earlier.Step &&
		f.Bytes == earlier.Bytes
}

// Leaked is what a leak took of a memory in so many steps, at its pace; 0 where the finding is no
// leak, was withdrawn, or is about another memory.
func (f Finding) Leaked(where Where, steps int64) Bytes {
	onCard := strings.HasPrefix(f.Memory, "GPU")
	if f.Kind != "leak" || f.Severity == SeverityInfo || f.Step == 0 ||
		onCard != (where == WhereGPU) {
		return 0
	}
	return f.Bytes / Bytes(f.Step) * Bytes(steps)
}

// LargeLeak is the share of a limit, as its divisor, from which on a leak is the reason why memory
// ran out.
const LargeLeak = 5

// Memory names the memory that ran out, for people: "GPU memory", "host memory".
func (w Where) Memory() string {
	switch w {
	case WhereGPU:
		return "GPU memory"
	case WhereHost, WhereCgroup:
		return "host memory"
	case WhereShm:
		return "shared memory (/dev/shm)"
	case WhereMPS:
		return "MPS memory"
	}
	return "memory"
}
