package fit

import (
	"slices"
	"strings"

	"memroom/event"
	"memroom/remedy"
)

// CausedByCuts reports whether an exception comes from what the remedies do to the program's calls,
// pieces and second runs, rather than from the program: by its kind, or by a frame of ours or of
// the backward pass, where second runs happen.
func CausedByCuts(kind string, frames []event.Frame) bool {
	ours := func(f event.Frame) bool {
		return strings.Contains(f.File, "_memroom_probe") ||
			strings.Contains(f.File, "torch/autograd/") || strings.Contains(f.File,
			"torch/utils/checkpoint")
	}
	return kind == "CheckpointError" || slices.ContainsFunc(frames, ours)
}

// Uncut are the remedies that leave the program's calls whole, let them run once and try nothing
// out on parts of a batch; nil where no other is among them.
func Uncut(remedies []Remedy) []Remedy {
	if !slices.ContainsFunc(remedies, Remedy.cuts) {
		return nil
	}
	uncut := slices.DeleteFunc(slices.Clone(remedies), Remedy.cuts)
	for i, r := range uncut {
		uncut[i].Params.Untried = r.Params.Measured
	}
	return uncut
}

// cuts: the remedy changes the arguments of a call, or makes it twice.
func (r Remedy) cuts() bool {
	return r.Level == remedy.LevelProcess && (r.ID == remedy.MicroBatch ||
		r.ID == remedy.Checkpointing)
}
