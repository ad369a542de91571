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
		return Remedy{}, fmt.Errorf("no remedy is called %q; `memroom run --fit --dry-run` lists those that can be applied", name)
	}
	if len(known.Levels) == 0 {
		return Remedy{}, fmt.Errorf("%s cannot be applied without an edit of your code; `memroom explain` shows the edit", name)
	}
	r := Remedy{ID: known.ID, Level: known.Levels[0]}
	if slices.Contains(known.Levels, remedy.LevelProcess) {
		r.Level = remedy.LevelProcess
	}
	if known.ID == remedy.MicroBatch || known.ID == remedy.Checkpointing {
		r.Params = map[string]any{"failed": true}
	}
	if !valued {
		return r, nil
	}
	params, err := r.valued(value)
	r.Params = params
	return r, err
}

// valued gives the parameters for a value in the remedy's own unit.
func (r Remedy) valued(value string) (map[string]any, error) {
	whole := func(key string) (map[string]any, error) {
		n, err := strconv.Atoi(value)
		if err != nil || n < 0 {
			return nil, fmt.Errorf("--remedy %s=%s: the value is a whole number", r.ID, value)
		}
		return map[string]any{key: n}, nil
	}
	switch r.ID {
	case remedy.MicroBatch:
		params, err := whole("size")
		if err == nil && params["size"] == 0 {
			return nil, fmt.Errorf("--remedy %s=0: a piece has at least one row", r.ID)
		}
		return params, err
	case remedy.DataLoaderWorkers:
		return whole("workers")
	case remedy.MaxSplitSize:
		return whole("mb")
	case remedy.Roundup:
		return whole("divisions")
	case remedy.MixedPrecision:
		if value != "bf16" && value != "fp16" {
			return nil, fmt.Errorf("--remedy %s=%s: the value is bf16 or fp16", r.ID, value)
		}
		return map[string]any{"dtype": value}, nil
	case remedy.ActivationOffload:
		size, err := event.ParseBytes(value)
		if err != nil {
			return nil, fmt.Errorf("--remedy %s: %w", r.ID, err)
		}
		return map[string]any{"above": int64(size)}, nil
	case remedy.GCThreshold:
		share, err := strconv.ParseFloat(value, 64)
		if err != nil || share <= 0 || share >= 1 {
			return nil, fmt.Errorf("--remedy %s=%s: the value is between 0 and 1", r.ID, value)
		}
		return map[string]any{"threshold": share}, nil
	}
	return nil, fmt.Errorf("--remedy %s takes no value", r.ID)
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
