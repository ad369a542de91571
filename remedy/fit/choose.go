package fit

import (
	"fmt"
	"slices"
	"strings"

	"memroom/event"
	"memroom/remedy"
)

// Remedy is one cure as it is put into effect: the probe reads the ones of level env and process,
// args is done before the launch.
type Remedy struct {
	ID     remedy.ID      `json:"id"`
	Level  remedy.Level   `json:"level"`
	Params map[string]any `json:"params,omitempty"`
}

// Facts are what is known about an attempt that ran out of memory, and about what it was already
// given. Zero: unknown.
type Facts struct {
	Where     event.Where
	Phase     string      // forward, backward, optimizer, ... as the probe saw it
	Requested event.Bytes // by the allocation that failed
	Allocated event.Bytes // at that moment
	Reserved  event.Bytes
	Limit     event.Bytes // of the allocator or, on the host, of all processes
	Needs     event.Bytes // what the probe found to be needed at the least, if it found that
	Hopeless  string      // why no remedy that keeps the mathematics can help, in the probe's words; empty: none said so
	UsesGPU   bool
	Idle      bool     // remedies were in effect inside the processes, and none of them found anything to act on
	On        []Remedy // in effect during the attempt
}

// Options are what the user allows and demands.
type Options struct {
	Allow   []string // consents for remedies that change the mathematics: precision, quantize, ...
	Forced  []Remedy
	Mapping Mapping // of the command's own arguments
	Uncut   bool    // cutting and repeating the program's calls has failed in this run
}

// Plan is the next launch.
type Plan struct {
	Remedies   []Remedy    // all that are in effect, those from before included
	Changed    []string    // what is new, in words
	Left       []Left      // what was not taken, and why
	Factor     int         // by which the command's own arguments divide the micro-batch; 1: not at all
	Impossible string      // the reason why there is nothing left to try; empty otherwise
	Needs      event.Bytes // at the least, where that is known
}

// Left is a remedy that was not taken.
type Left struct {
	ID  remedy.ID `json:"id"`
	Why string    `json:"why"`
}

// Choose gives the next launch after an attempt that ran out of memory. Each stage of the ladder is
// tried once; what is in effect tells how far we are.
func Choose(f Facts, o Options) Plan {
	if f.Idle && f.Hopeless == "" {
		return f.impossible(o,
			"the remedies found nothing to act on: memory runs out outside of PyTorch's training calls, or before the first one")
	}
	stages := Ladder(f, o)
	if f.Hopeless != "" {
		stages = consentedStage(f, o)
	}
	for _, stage := range stages {
		if fresh := notYet(stage.Remedies, f.On); len(fresh) > 0 {
			return f.plan(stage, fresh, o)
		}
	}
	if f.Hopeless != "" {
		return Plan{Remedies: f.On, Factor: 1, Left: notAllowed(f, o), Impossible: f.Hopeless,
			Needs: f.Needs}
	}
	return f.impossible(o, "every allowed remedy is on and it still runs out")
}

// impossible is the plan of which nothing comes: the reason, and the least that would be needed,
// where that is known.
func (f Facts) impossible(o Options, reason string) Plan {
	plan := Plan{Remedies: f.On, Factor: 1, Left: notAllowed(f, o)}
	plan.Impossible, plan.Needs = CannotFit(reason, max(f.Needs, f.Allocated+f.Requested), f.Limit)
	if plan.Needs == 0 && f.trainsOnCPU() {
		plan.Impossible += "; a higher limit helps, or pieces of a size that you choose: --remedy micro_batch=ROWS"
	}
	return plan
}

// CannotFit says the end of the attempts: with what is needed at the least, where that is more than
// is there. A lower figure was found under what has run out all the same, so it explains nothing.
func CannotFit(why string, needs, limit event.Bytes) (string, event.Bytes) {
	if needs == 0 || limit > 0 && needs <= limit {
		return why, 0
	}
	return fmt.Sprintf("cannot fit: needs at least %s, %s are there; %s", needs, limitWords(limit),
		why), needs
}

// GivenUp says the end after the last attempt that may be made: the reason, and what is needed at
// the least, where that is known.
func (f Facts) GivenUp(attempts int) (string, event.Bytes) {
	if f.Hopeless != "" {
		return f.Hopeless, f.Needs
	}
	return CannotFit(fmt.Sprintf("still out of memory after %d attempts (--max-attempts)",
		attempts), f.Allocated+f.Requested, f.Limit)
}

func (f Facts) onHost() bool {
	return f.Where == event.WhereHost || f.Where == event.WhereCgroup || f.Where == event.WhereShm
}

// trainsOnCPU: what ran out on the host is what a step needs, not room for data or for weights on
// their way to a card.
func (f Facts) trainsOnCPU() bool {
	return f.onHost() && f.Where != event.WhereShm && !f.UsesGPU && !f.Idle
}

func limitWords(limit event.Bytes) string {
	if limit == 0 {
		return "fewer"
	}
	return limit.String()
}

// notYet gives those that are not in effect, or with other parameters.
func notYet(wanted, on []Remedy) []Remedy {
	var fresh []Remedy
	for _, w := range wanted {
		known := slices.IndexFunc(on, func(r Remedy) bool {
			return r.ID == w.ID &&
				r.Level == w.Level
		})
		if known < 0 || w.rank() > on[known].rank() {
			fresh = append(fresh, w)
		}
	}
	return fresh
}

// rank orders the parameters of one remedy by how much they save.
func (r Remedy) rank() float64 {
	number := func(key string, otherwise float64) float64 {
		switch v := r.Params[key].(type) {
		case float64:
			return v
		case int:
			return float64(v)
		}
		return otherwise
	}
	switch r.ID {
	case remedy.MicroBatch, remedy.Checkpointing:
		if r.Level == remedy.LevelArgs {
			return number("factor", 1)
		}
		if pieces := number("pieces", 0); pieces > 0 {
			return pieces // after what is done by measure, whose rank is below 1
		}
		return 1 - number("factor", 1)
	case remedy.DataLoaderWorkers:
		return -number("workers", 0)
	case remedy.ActivationOffload, remedy.OptimizerOffload:
		if r.Params["measured"] == nil {
			return 1 // everything, rather than what is measured to be needed
		}
	}
	return 0
}

func (f Facts) plan(stage Stage, fresh []Remedy, o Options) Plan {
	plan := Plan{Factor: 1, Left: notAllowed(f, o)}
	for _, r := range f.On {
		if !slices.ContainsFunc(fresh, func(n Remedy) bool {
			return n.ID == r.ID &&
				n.Level == r.Level
		}) {
			plan.Remedies = append(plan.Remedies, r)
		}
	}
	plan.Remedies = append(plan.Remedies, fresh...)
	for _, r := range fresh {
		plan.Changed = append(plan.Changed, r.Words())
	}
	plan.Factor = Factor(plan.Remedies)
	return plan
}

// Factor is by how much the command's own arguments divide the micro-batch under these remedies; 1:
// not at all.
func Factor(remedies []Remedy) int {
	for _, r := range remedies {
		if r.ID == remedy.MicroBatch && r.Level == remedy.LevelArgs {
			return int(r.rank())
		}
	}
	return 1
}

// Inside are the remedies that the probe is given. A fixed number of pieces stands alone: blocks
// are checkpointed by measure, together with the choice of pieces that it replaces.
func Inside(remedies []Remedy) []Remedy {
	fixed := slices.ContainsFunc(remedies, func(r Remedy) bool {
		return r.ID == remedy.MicroBatch &&
			r.Params["pieces"] != nil
	})
	return slices.DeleteFunc(slices.Clone(remedies), func(r Remedy) bool {
		return r.Level == remedy.LevelArgs || fixed && r.ID == remedy.Checkpointing
	})
}

// Words say what a remedy does, for people.
func (r Remedy) Words() string {
	words := strings.ReplaceAll(string(r.ID), "_", " ")
	switch {
	case r.ID == remedy.MicroBatch && r.Level == remedy.LevelArgs:
		return fmt.Sprintf("a %v times smaller micro-batch, accumulated by the program's own arguments", r.Params["factor"])
	case r.ID == remedy.MicroBatch && r.Params["size"] != nil:
		return fmt.Sprintf("the batch in pieces of %v rows", r.Params["size"])
	case r.ID == remedy.MicroBatch && r.Params["pieces"] != nil:
		return fmt.Sprintf("the batch in %v pieces", r.Params["pieces"])
	case r.ID == remedy.MicroBatch:
		return "the batch in pieces, as many as needed"
	case r.ID == remedy.Checkpointing:
		return "blocks checkpointed, as many as needed"
	case r.ID == remedy.ExpandableSegments:
		return "expandable segments"
	case r.ID == remedy.ChunkedLoss:
		return "large cross entropies in pieces"
	case r.ID == remedy.ActivationOffload && r.Params["measured"] != nil:
		return "saved activations in host memory where nothing else helps"
	case r.ID == remedy.ActivationOffload:
		return "saved activations in host memory"
	case r.ID == remedy.OptimizerOffload && r.Params["measured"] != nil:
		return "optimizer state in host memory where nothing else helps"
	case r.ID == remedy.OptimizerOffload:
		return "optimizer state in host memory between steps"
	case r.ID == remedy.OptimizerFused && r.Params["slices"] != nil:
		return "the optimizer's step in slices"
	case r.ID == remedy.OptimizerFused:
		return "a fused optimizer"
	case r.ID == remedy.MixedPrecision:
		return fmt.Sprintf("autocast to %v", orDefault(r.Params["dtype"], "bf16"))
	case r.ID == remedy.DataLoaderWorkers:
		return fmt.Sprintf("at most %v data loader workers", orDefault(r.Params["workers"], 0))
	case r.ID == remedy.PinMemory:
		return "no pinned memory in data loaders"
	case r.ID == remedy.SetToNone:
		return "zero_grad lets gradients go instead of zeroing them"
	case r.ID == remedy.EmptyCache:
		return "the allocator's cache emptied when it is in the way"
	case r.ID == remedy.DeviceMap:
		return "Hugging Face models spread over the cards and host memory"
	}
	return words
}

func orDefault(v, otherwise any) any {
	if v == nil {
		return otherwise
	}
	return v
}
