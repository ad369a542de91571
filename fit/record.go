package fit

import (
	"fmt"
	"slices"

	"memroom/event"
	"memroom/remedy"
)

// Record is the story of a fitted run, kept in its folder.
type Record struct {
	Attempts []Tried `json:"attempts"`
	// the first attempt began with what made an earlier run fit
	Remembered bool   `json:"remembered,omitempty"`
	Impossible string `json:"impossible,omitempty"`
	// why the last attempt is no success, though it ended with exit code 0
	Hollow string      `json:"hollow,omitempty"`
	Needs  event.Bytes `json:"needs,omitempty"`
	Left   []Left      `json:"left,omitempty"`
}

// Tried is one attempt: what was in effect and what came of it.
type Tried struct {
	Number   int        `json:"number"`
	Remedies []Remedy   `json:"remedies,omitempty"`
	Title    string     `json:"title,omitempty"` // what it was given, in a few words
	Changed  []string   `json:"changed,omitempty"`
	Said     []Sentence `json:"said,omitempty"`
	Resumed  string     `json:"resumed,omitempty"` // checkpoint it went on from
	// frameworks that it imported: torch, tensorflow, jax
	Frameworks []string    `json:"frameworks,omitempty"`
	OutOf      event.Where `json:"out_of,omitempty"` // what ran out; empty: nothing did
	ExitCode   int         `json:"exit_code"`
	Allocated  event.Bytes `json:"allocated,omitempty"` // peak in the framework's allocator
	Reserved   event.Bytes `json:"reserved,omitempty"`
	Host       event.Bytes `json:"host,omitempty"` // peak on the host, without what can be dropped
	// where that is what ran out, or nothing is on a card
	HostLimit event.Bytes `json:"host_limit,omitempty"`
	Requested event.Bytes `json:"requested,omitempty"` // by the allocation that failed
	Held      event.Bytes `json:"held,omitempty"`      // allocated in that moment
	CardFree  event.Bytes `json:"card_free,omitempty"` // on the card, in that moment
	Failed    string      `json:"failed,omitempty"`    // what ended it, where that was not memory
	StepMS    float64     `json:"step_ms,omitempty"`
	Steps     int64       `json:"steps,omitempty"`
	Libraries event.Bytes `json:"libraries,omitempty"` // host memory once the framework was loaded
}

// Sentence is something a remedy said from inside the process.
type Sentence struct {
	Kind      string      `json:"kind"` // applied, declined, note
	Text      string      `json:"text"`
	ID        remedy.ID   `json:"id,omitempty"`
	Predicted event.Bytes `json:"predicted,omitempty"`
	Needs     event.Bytes `json:"needs,omitempty"`
	Limit     event.Bytes `json:"limit,omitempty"`
	Slight    bool        `json:"slight,omitempty"` // it makes the peak smaller by less than 1 %
	Rows      int         `json:"rows,omitempty"`
	Pieces    int         `json:"pieces,omitempty"`
	Twice     float64     `json:"twice,omitempty"`
	// than the whole batch at once, predicted: 0.1 is a tenth
	Slower      float64 `json:"slower,omitempty"`
	Equivalence string  `json:"equivalence,omitempty"`
	// why rounding grows from step to step in this training; empty where it does not
	Amplifies string `json:"amplifies,omitempty"`
	// what results are rounded by otherwise where that is coarser than fp32, how much, and why
	Rounds string `json:"rounds,omitempty"`
}

// Last is the attempt that ended the run.
func (r Record) Last() *Tried {
	if len(r.Attempts) == 0 {
		return nil
	}
	return &r.Attempts[len(r.Attempts)-1]
}

// Tells reports whether there is a story: anything was done, or could not be.
func (r Record) Tells() bool {
	return len(r.Attempts) > 1 || r.Impossible != "" || r.Last() != nil &&
		len(r.Last().Remedies) > 0
}

// Cured reports whether the remedies of the last attempt follow from having run out of memory, in
// this run or in the one that it began with.
func (r Record) Cured() bool {
	ranOut := func(t Tried) bool { return t.OutOf != "" }
	return r.Remembered || slices.ContainsFunc(r.Attempts, ranOut)
}

// Failed reports whether an attempt ended by something else than memory and was followed by
// another.
func (r Record) Failed() bool {
	return slices.ContainsFunc(r.Attempts, func(t Tried) bool { return t.Failed != "" })
}

// Stuck reports whether the last two attempts, both with remedies, ran out by the same request with
// the same bytes held: a tighter plan did not touch what is there in that moment.
func (r Record) Stuck() bool {
	n := len(r.Attempts)
	if n < 3 {
		return false
	}
	before, last := r.Attempts[n-2], r.Attempts[n-1]
	return before.OutOf != "" && before.OutOf == last.OutOf && last.Requested > 0 && last.Held > 0 &&
		before.Requested == last.Requested && before.Held == last.Held &&
		len(before.Remedies) > 0
}

// NoTraining explains why the last attempt is no success although it ended with exit code 0: it
// trained nothing, and one before it did. Empty where there is no such sign. An attempt that went
// on from a checkpoint may have found nothing left to do.
func (r Record) NoTraining() string {
	last := r.Last()
	if last == nil || last.Steps > 0 || last.Resumed != "" {
		return ""
	}
	for _, t := range r.Attempts {
		if t.Steps > 0 {
			return fmt.Sprintf("attempt %d made no training step; attempt %d made %d. "+
				"The training did not happen", last.Number, t.Number, t.Steps)
		}
	}
	return ""
}

// RanOut is the largest division by the command's own arguments under which an attempt ran out of
// memory, 0 when none did.
func (r Record) RanOut() int {
	most := 0
	for _, t := range r.Attempts {
		if t.OutOf != "" {
			most = max(most, Factor(t.Remedies))
		}
	}
	return most
}

// Limit is the wall that the remedies reckoned with, 0 when none of them said.
func (t Tried) Limit() event.Bytes {
	var limit event.Bytes
	for _, s := range t.Said {
		limit = max(limit, s.Limit)
	}
	return limit
}

// Idle reports whether remedies were in effect inside the processes and none of them met anything
// to say a word about.
func (t Tried) Idle() bool {
	inside, met := false, false
	for _, r := range t.Remedies {
		if r.Level == remedy.LevelProcess {
			inside = true
			met = met || slices.ContainsFunc(t.Said,
				func(s Sentence) bool { return s.ID == r.ID })
		}
	}
	return inside && !met
}

// Refused reports whether remedies inside the processes said why they cannot be had, and none of
// them did anything: with less room to plan with they would say the same.
func (t Tried) Refused() bool {
	return len(t.Said) > 0 && !slices.ContainsFunc(t.Said,
		func(s Sentence) bool { return s.Kind != "declined" })
}

// Ending describes in a few words how an attempt ended.
func (t Tried) Ending() string {
	switch {
	case t.OutOf != "":
		return "ran out of " + t.OutOf.Memory()
	case t.Failed != "":
		return "failed with " + t.Failed
	}
	return fmt.Sprintf("ended with exit code %d", t.ExitCode)
}

// Helped reports whether a remedy took effect and made the peak clearly smaller, as far as it said.
func (s Sentence) Helped() bool { return s.Kind == "applied" && !s.Slight }

// Helped reports whether anything that was changed can be why an attempt did not run out. Where
// nothing was said, nobody knows.
func (t Tried) Helped() bool {
	outside := func(r Remedy) bool {
		return r.Level == remedy.LevelArgs || r.Level == remedy.LevelEnv && t.Reserved > 0
	}
	return len(t.Said) == 0 || slices.ContainsFunc(t.Remedies, outside) ||
		slices.ContainsFunc(t.Said, Sentence.Helped)
}

// Hopeless returns the words in which an attempt said that nothing can help, and what would be
// needed; "" when it did not.
func (t Tried) Hopeless() (string, event.Bytes) {
	why, needs := "", event.Bytes(0)
	for _, s := range t.Said {
		if s.Needs > needs {
			why, needs = s.Text, s.Needs
		}
	}
	return why, needs
}

// Foreign returns what helps where the program uses no framework but one that remedies do not reach
// into; "" otherwise. Libraries import several: one that is within reach is enough to try.
func (t Tried) Foreign() string {
	if len(t.Frameworks) == 1 {
		return outOfReach[t.Frameworks[0]]
	}
	return ""
}

// Whole returns the words in which the probe said why it did not split the batch; "" where it did,
// or never tried.
func (t Tried) Whole() string {
	why := ""
	for _, s := range t.Said {
		switch {
		case s.ID != remedy.MicroBatch:
		case s.Kind == "applied":
			return ""
		case s.Kind == "declined" && why == "":
			why = s.Text
		}
	}
	return why
}

// Amplifies returns the reason why results are rounded differently where this training makes more
// of it: a remedy that took effect, or a library that did without its work space; "" where neither
// is the case.
func (t Tried) Amplifies() string {
	return t.first(func(s Sentence) string { return s.Amplifies })
}

// Rounds returns what results are rounded by otherwise, and why, where that is coarser than fp32 by
// what the run saw of itself; "" where it is not.
func (t Tried) Rounds() string {
	return t.first(func(s Sentence) string { return s.Rounds })
}

// first returns the first words that a sentence has which was not declined; "" if none has any.
func (t Tried) first(words func(Sentence) string) string {
	for _, s := range t.Said {
		if found := words(s); s.Kind != "declined" && found != "" {
			return found
		}
	}
	return ""
}

// Equivalence of an attempt's results to those of the unchanged program: the weakest of what its
// remedies are known and were found to be.
func (t Tried) Equivalence() remedy.Equivalence {
	weakest := Equivalence(t.Remedies)
	for _, s := range t.Said {
		if s.Kind == "applied" && s.Equivalence == string(remedy.Expected) &&
			weakest == remedy.Exact {
			weakest = remedy.Expected
		}
	}
	return weakest
}
