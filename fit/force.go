package fit

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"memroom/event"
	"memroom/remedy"
)

// Force reads what the user demands with --remedy: NAME or NAME=VALUE.
func Force(text string) (Remedy, error) {
	name, value, valued := strings.Cut(text, "=")
	known, ok := remedy.Find(remedy.ID(name))
	if !ok {
		return Remedy{}, fmt.Errorf("no remedy is called %q; `memroom run --fit --dry-run` lists those "+
			"that can be applied", name)
	}
	if len(known.Levels) == 0 {
		return Remedy{}, fmt.Errorf("%s cannot be applied without an edit of your code; `memroom "+
			"explain` shows the edit", name)
	}
	r := Remedy{ID: known.ID, Level: known.Levels[0]}
	if slices.Contains(known.Levels, remedy.LevelProcess) {
		r.Level = remedy.LevelProcess
	}
	if known.ID == remedy.MicroBatch || known.ID == remedy.Checkpointing {
		r.Params.Failed = true
	}
	if !valued {
		return r, nil
	}
	params, err := r.valued(value)
	r.Params = params
	return r, err
}

// valued returns the parameters for a value in the remedy's own unit.
func (r Remedy) valued(value string) (p remedy.Params, err error) {
	switch r.ID {
	case remedy.MicroBatch:
		if p.Size, err = r.wholeNumber(value); err == nil && p.Size == 0 {
			err = fmt.Errorf("--remedy %s=0: a micro-batch has at least one sample", r.ID)
		}
	case remedy.DataLoaderWorkers:
		var n int
		n, err = r.wholeNumber(value)
		p.Workers = &n
	case remedy.MaxSplitSize:
		p.SplitMB, err = r.wholeNumber(value)
	case remedy.Roundup:
		p.Divisions, err = r.wholeNumber(value)
	case remedy.MixedPrecision:
		if p.DType = value; value != "bf16" && value != "fp16" {
			err = fmt.Errorf("--remedy %s=%s: the value is bf16 or fp16", r.ID, value)
		}
	case remedy.ActivationOffload:
		if p.Above, err = event.ParseBytes(value); err != nil {
			err = fmt.Errorf("--remedy %s: %w", r.ID, err)
		}
	case remedy.ActivationBudget:
		p.Budget, err = strconv.ParseFloat(value, 64)
		if err != nil || p.Budget <= 0 || p.Budget > 1 {
			err = fmt.Errorf("--remedy %s=%s: the value is a share, above 0 and at most 1", r.ID,
				value)
		}
	case remedy.GCThreshold:
		p.Threshold, err = strconv.ParseFloat(value, 64)
		if err != nil || p.Threshold <= 0 || p.Threshold >= 1 {
			err = fmt.Errorf("--remedy %s=%s: the value is between 0 and 1", r.ID, value)
		}
	default:
		err = fmt.Errorf("--remedy %s takes no value", r.ID)
	}
	return p, err
}

func (r Remedy) wholeNumber(value string) (int, error) {
	n, err := strconv.Atoi(value)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("--remedy %s=%s: the value is a whole number", r.ID, value)
	}
	return n, nil
}

// Equivalence is the weakest of those of the remedies.
func Equivalence(remedies []Remedy) remedy.Equivalence {
	weakest := remedy.Exact
	for _, r := range remedies {
		known, ok := remedy.Find(r.ID)
		if ok && known.Equivalence == remedy.Changes {
			return remedy.Changes
		}
		if ok && known.Equivalence == remedy.Expected {
			weakest = remedy.Expected
		}
	}
	return weakest
}
