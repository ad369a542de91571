package fit

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"memroom/event"
	"memroom/remedy"
)

// Remedy is one cure as it is put into effect: the probe reads the ones of level env and process,
// args is done before the launch.
type Remedy struct {
	ID     remedy.ID     `json:"id"`
	Level  remedy.Level  `json:"level"`
	Params remedy.Params `json:"params,omitzero"`
}

// Facts are what is known about an attempt that ran out of memory, and about what it was already
// given. Zero: unknown.
type Facts struct {
	Where     event.Where
	Phase     string      // forward, backward, optimizer, ... as the probe saw it
	Steps     int64       // that had been done before
	Requested event.Bytes // by the allocation that failed
	Allocated event.Bytes // at that moment
	Reserved  event.Bytes
	Limit     event.Bytes // of the allocator or, on the host, of all processes
	Needs     event.Bytes // what the probe found to be needed at the least, if it found that
	// why no remedy that keeps the mathematics can help, in the probe's words; empty: none said so
	Hopeless string
	// why the batch was not split, in the probe's words; empty: it was, or nobody tried
	Whole string
	// why remedies do not reach into the program's framework, and what helps there; empty: they do
	Foreign   string
	Libraries event.Bytes // host memory of the interpreter with its libraries, before any data
	Line      string      // FILE:LINE at which host memory was filled; empty: not known
	Leaked    event.Bytes // by what a leak took in all steps of the attempt, at its pace
	UsesGPU   bool
	Framework remedy.Framework // of which remedies are taken; empty: not known
	// remedies were in effect inside the processes, and none of them found anything to act on
	Idle bool
	// all that they said is why they cannot be had
	Refused bool
	// the attempt before had remedies too, and the same request failed with the same bytes held
	Stuck bool
	On    []Remedy // in effect during the attempt
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
	Title      string      // what is new, in a few words
	Changed    []string    // what is new, each remedy in words
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

// Choose returns the next launch after an attempt that ran out of memory. Each stage of the ladder
// is tried once; the remedies in effect show how far we are.
func Choose(f Facts, o Options) Plan {
	if f.Foreign != "" && f.Where != event.WhereShm {
		return f.impossible(o, f.Foreign)
	}
	if f.leaks() {
		return Plan{Remedies: f.On, Factor: 1, Left: notAllowed(f, o), Impossible: OfLeak}
	}
	if f.Idle && f.Hopeless == "" {
		return f.impossible(o, f.nothingToActOn())
	}
	stages := Ladder(f, o)
	if f.Hopeless != "" || f.Stuck {
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
	if f.Stuck {
		return f.impossible(o, f.sameAgain())
	}
	return f.impossible(o, f.allTried())
}

func (f Facts) onHost() bool {
	return f.Where == event.WhereHost || f.Where == event.WhereCgroup || f.Where == event.WhereShm
}

// trainsOnCPU: the host ran out of memory for a step, not of room for data or for weights on
// their way to a card.
func (f Facts) trainsOnCPU() bool {
	return f.onHost() && f.Where != event.WhereShm && !f.UsesGPU && !f.Idle
}

// notYet returns those that are not in effect, or with other parameters.
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
	switch r.ID {
	case remedy.MicroBatch, remedy.Checkpointing, remedy.ActivationBudget:
		factor := cmp.Or(r.Params.Factor, 1)
		if r.Level == remedy.LevelArgs {
			return factor
		}
		if r.Params.Pieces > 0 {
			// after what is chosen by measuring, whose rank is below 1
			return float64(r.Params.Pieces)
		}
		return 1 - factor
	case remedy.DataLoaderWorkers:
		return -float64(workers(r.Params))
	case remedy.ActivationOffload, remedy.OptimizerOffload:
		if !r.Params.Measured {
			return 1 // everything, rather than what is measured to be needed
		}
	}
	return 0
}

// workers are those that data loaders may have at most; a remedy without a number means none.
func workers(p remedy.Params) int {
	if p.Workers == nil {
		return 0
	}
	return *p.Workers
}

func (f Facts) plan(stage Stage, fresh []Remedy, o Options) Plan {
	plan := Plan{Factor: 1, Title: title(fresh), Changed: Words(fresh), Left: notAllowed(f, o)}
	for _, r := range f.On {
		if !slices.ContainsFunc(fresh, func(n Remedy) bool {
			return n.ID == r.ID &&
				n.Level == r.Level
		}) {
			plan.Remedies = append(plan.Remedies, r)
		}
	}
	plan.Remedies = append(plan.Remedies, fresh...)
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
			r.Params.Pieces > 0
	})
	return slices.DeleteFunc(slices.Clone(remedies), func(r Remedy) bool {
		return r.Level == remedy.LevelArgs || fixed && r.ID == remedy.Checkpointing
	})
}

// Words describe a remedy for people.
func (r Remedy) Words() string {
	p := r.Params
	switch r.ID {
	case remedy.MicroBatch:
		return r.microBatchWords()
	case remedy.Checkpointing:
		return "activation checkpointing, as much as needed"
	case remedy.ActivationBudget:
		if p.Budget > 0 {
			return fmt.Sprintf("an activation memory budget of %v for torch.compile", p.Budget)
		}
		return "an activation memory budget for torch.compile, if it is used"
	case remedy.ExpandableSegments:
		return "expandable segments in PyTorch's allocator"
	case remedy.ChunkedLoss:
		return "large cross-entropy losses in chunks"
	case remedy.ActivationOffload:
		return "activations offloaded to host memory" + onlyIf(p.Measured)
	case remedy.OptimizerOffload:
		return "optimizer state offloaded to host memory between steps" + onlyIf(p.Measured)
	case remedy.OptimizerFused:
		if p.Slices {
			return "the optimizer step in slices"
		}
		return "a fused optimizer"
	case remedy.MixedPrecision:
		return "autocast to " + cmp.Or(p.DType, "bf16")
	case remedy.DataLoaderWorkers:
		switch n := workers(p); n {
		case 0:
			return "no data loader workers"
		case 1:
			return "at most one data loader worker"
		default:
			return fmt.Sprintf("at most %d data loader workers", n)
		}
	case remedy.TFDataBudget:
		return "tf.data with one element in work and one read ahead"
	case remedy.PinMemory:
		return "no pinned memory in data loaders"
	case remedy.SetToNone:
		return "gradients freed instead of zeroed"
	case remedy.EmptyCache:
		return "the allocator's cache emptied when memory is short"
	case remedy.DeviceMap:
		return "Hugging Face models spread over the cards and host memory"
	}
	return strings.ReplaceAll(string(r.ID), "_", " ")
}

// Words describe each of the remedies for people.
func Words(remedies []Remedy) []string {
	var words []string
	for _, r := range remedies {
		words = append(words, r.Words())
	}
	return words
}

// title returns what the remedies do together, in a line.
func title(remedies []Remedy) string {
	var names []string
	for _, r := range remedies {
		if name := r.name(); name != "" && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	text := strings.Join(names, ", ")
	if last := strings.LastIndex(text, ", "); last > 0 {
		text = text[:last] + " and" + text[last+1:]
	}
	return text
}

// name is the short name of a remedy. Settings that cost nothing have none.
func (r Remedy) name() string {
	switch r.ID {
	case remedy.ExpandableSegments, remedy.ChunkedLoss, remedy.PinMemory, remedy.SetToNone,
		remedy.ActivationBudget:
		return ""
	case remedy.OptimizerFused:
		if r.Params.Slices {
			return ""
		}
	case remedy.MicroBatch:
		if r.Level == remedy.LevelProcess && r.Params.Size == 0 && r.Params.Pieces == 0 {
			return "smaller micro-batches"
		}
	case remedy.Checkpointing:
		return "activation checkpointing"
	case remedy.ActivationOffload:
		return "offload of activations"
	case remedy.OptimizerOffload:
		return "offload of optimizer state"
	}
	return r.Words()
}

func (r Remedy) microBatchWords() string {
	switch p := r.Params; {
	case r.Level == remedy.LevelArgs:
		return fmt.Sprintf("a %v times smaller micro-batch, by the command's own arguments",
			p.Factor)
	case p.Size > 0:
		return fmt.Sprintf("micro-batches of %d samples", p.Size)
	case p.Pieces > 0:
		return fmt.Sprintf("the batch split into %d micro-batches", p.Pieces)
	}
	return "smaller micro-batches, as small as needed"
}

func onlyIf(measured bool) string {
	if measured {
		return ", if needed"
	}
	return ""
}
