package guard

import (
	"fmt"

	"memroom/event"
	"memroom/plan"
)

// Result is what became of a check.
type Result struct {
	Name   string           `json:"name"`
	Line   int              `json:"line,omitempty"` // of memroom.toml
	GPU    string           `json:"gpu,omitempty"`
	Budget event.Bytes      `json:"budget,omitempty"`
	Error  string           `json:"error,omitempty"` // why there is no answer
	Now    *plan.Prediction `json:"now,omitempty"`
	Before *plan.Prediction `json:"before,omitempty"` // at the other revision
	// why there is nothing to compare with
	NotCompared string      `json:"not_compared,omitempty"`
	Difference  *Difference `json:"difference,omitempty"`
	Over        []string    `json:"over"`   // what was exceeded, a sentence each
	Cached      bool        `json:"cached"` // nothing that it depends on has changed
}

// Judge fills in what is exceeded.
func (r *Result) Judge(c *Check) {
	r.Over = []string{}
	if r.Now == nil {
		return
	}
	if p := r.Now; c.Budget > 0 && p.DevicePeak > c.Budget {
		r.Over = append(r.Over, fmt.Sprintf("needs %s of device memory, %s above the budget of %s",
			p.DevicePeak, p.DevicePeak-c.Budget, c.Budget))
	} else if p.Fits != nil && !*p.Fits && c.Budget == 0 {
		r.Over = append(r.Over, fmt.Sprintf("%s: needs %s (%s to %s) of %s", p.Verdict, p.DevicePeak,
			p.Low, p.High, where(p)))
	}
	if r.Before == nil || !c.Growth.Given {
		return
	}
	more, allowed := r.Now.DevicePeak-r.Before.DevicePeak, c.Growth.Allows(r.Before.DevicePeak)
	if more > allowed {
		r.Over = append(r.Over, fmt.Sprintf("needs %s more than before, %s more than may be added",
			more, more-allowed))
	}
}

func where(p *plan.Prediction) string {
	if p.Card != nil {
		return p.Room.String() + " of the " + p.Card.Name
	}
	return p.Room.String()
}

// Failed reports whether the check exceeds something.
func (r *Result) Failed() bool { return len(r.Over) > 0 }

// Report is the whole answer.
type Report struct {
	Against string   `json:"against,omitempty"` // the other revision, as it was asked for
	Commit  string   `json:"commit,omitempty"`  // its commit
	Config  string   `json:"config"`            // the file with the checks, below the repository
	Results []Result `json:"checks"`
}
