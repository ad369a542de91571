package supervise

import (
	"memroom/diagnose"
	"memroom/event"
	"memroom/probe"
)

// Judgement is the detector of a run: it hands what probes and meters say to package diagnose.
type Judgement struct {
	watch    *diagnose.Watch
	holdings map[int]map[int]diagnose.Holding // process -> device -> its memory there
	last     event.Sample
}

// NewJudgement begins to judge a run. hostLimit is a soft limit on host memory, 0 for none.
func NewJudgement(limits diagnose.Thresholds, hostLimit event.Bytes) *Judgement {
	return &Judgement{watch: diagnose.NewWatch(limits, hostLimit),
		holdings: map[int]map[int]diagnose.Holding{}}
}

// Sample takes a reading of the meters.
func (j *Judgement) Sample(s event.Sample) []event.Finding {
	j.last = s
	return j.watch.Sample(s)
}

// Steps takes the steps of a process.
func (j *Judgement) Steps(pid int, rank *int, rows []event.Step) []event.Finding {
	for _, row := range rows {
		if row.Device != event.HostDevice {
			h := j.holdings[pid][row.Device]
			h.Allocated, h.Reserved, h.Split = row.Allocated, row.Reserved, row.InactiveSplit
			j.hold(pid, row.Device, h)
		}
	}
	return j.watch.Steps(pid, rank, rows)
}

// Heard takes any other message of a probe.
func (j *Judgement) Heard(pid int, rank *int, message probe.Message) []event.Finding {
	switch m := message.(type) {
	case *probe.Account:
		if m.Device != event.HostDevice {
			j.hold(pid, m.Device, diagnose.Holding{Weights: m.Weights, Gradients: m.Gradients,
				Optimizer: m.Optimizer,
				Allocated: m.Allocated, Reserved: m.Reserved, Split: m.Split})
			j.watch.SetLimit(pid, m.Device, reservable(m))
		}
	case *probe.Phase:
		j.watch.Phase(pid, m.Phase, m.Begin)
		j.watch.PhasePeak(pid, m.Device, m.Begin, m.Peak)
	case *probe.Evaluation:
		seen := diagnose.Evaluated{Grad: m.Grad, Kept: m.Kept, Held: m.Held, Holder: m.Holder}
		if m.Batches > 0 {
			return j.watch.Evaluated(pid, seen, m.Batches)
		}
		return j.watch.Evaluation(pid, seen)
	case *probe.Stacks:
		held := make([]diagnose.Held, len(m.Groups))
		for i, g := range m.Groups {
			held[i] = diagnose.Held{Growth: g.Growth, Count: g.Count, Frames: g.Frames}
		}
		return j.watch.Stacks(pid, m.Device, m.Steps, held)
	case *probe.Heap:
		held := make([]diagnose.Holder, len(m.Holders))
		for i, h := range m.Holders {
			held[i] = diagnose.Holder{Name: h.Name, Kind: h.Kind, File: h.File, Line: h.Line, Code: h.Code,
				Host: h.Host, Card: h.Card, Nodes: h.Nodes, Models: h.Models, Fills: h.Fills}
		}
		return j.watch.Holders(pid, held, m.Built)
	case *probe.Checkpoint:
		return j.watch.Checkpoint(pid, diagnose.Checkpoint{Bytes: m.Bytes, Card: m.Card,
			Kept: m.Kept, Whole: m.Whole, File: m.File, Line: m.Line, Holder: diagnose.Holder{Name: m.Holder,
				File: m.HolderFile, Line: m.HolderLine}})
	case *probe.Worker:
		return j.watch.WorkerKeeps(diagnose.Holder{Name: m.Name, Kind: m.Kind, File: m.File,
			Line: m.Line, Host: m.Growth}, m.Workers, m.Batches, m.Held)
	case *probe.Caches:
		return j.watch.Caches(pid, diagnose.Caches{Count: m.Count, Bytes: m.Bytes, Card: m.Card,
			Largest: m.Largest, Sequences: m.Sequences, Tokens: m.Tokens, Pages: m.Anonymous,
			File: m.File, Line: m.Line, Holder: diagnose.Holder{Name: m.Holder, Kind: m.HolderKind,
				File: m.HolderFile, Line: m.HolderLine}})
	case *probe.Retraced:
		return j.watch.Retraced(pid, diagnose.Retraced{Function: m.Function, Traces: m.Traces,
			Grown: m.Grown, Argument: m.Argument, Change: m.Change, Type: m.Type, File: m.File,
			Line: m.Line})
	case *probe.Saved:
		return j.watch.Saved(pid, diagnose.Saved{Bytes: m.Bytes, Copied: m.Copied, Built: m.Built,
			Pages: m.Anonymous, Heap: m.Heap, File: m.File, Line: m.Line})
	case *probe.Feeding:
		return j.watch.Feeding(pid, m.Feed)
	case *probe.Models:
		return j.watch.Models(pid, diagnose.Models{Framework: m.Framework, Class: m.Class,
			Count: m.Count, Waited: m.Waited, Bytes: m.Bytes, Grown: m.Grown, File: m.File,
			Line: m.Line, Holder: diagnose.Holder{Name: m.Holder, Kind: m.HolderKind,
				File: m.HolderFile, Line: m.HolderLine}})
	case *probe.Done:
		if m.OK && m.Do == probe.DoCollect {
			j.watch.Collected(pid)
		}
	case *probe.Exit, *probe.Died:
		delete(j.holdings, pid)
		return j.watch.Gone(pid)
	}
	return nil
}

// Ended judges again what was said about processes that live until the end.
func (j *Judgement) Ended() []event.Finding { return j.watch.Ended() }

// reservable is the most that a process's allocator could reserve: its own and free memory, or
// less by a fraction.
func reservable(m *probe.Account) event.Bytes {
	limit := m.Free + m.Reserved
	if m.Limit > 0 {
		limit = min(limit, m.Limit)
	}
	return limit
}

func (j *Judgement) hold(pid, device int, h diagnose.Holding) {
	if j.holdings[pid] == nil {
		j.holdings[pid] = map[int]diagnose.Holding{}
	}
	j.holdings[pid][device] = h
}

// Asks returns the commands that would make a judgement better, by process.
func (j *Judgement) Asks() map[int][]probe.Command {
	asks := map[int][]probe.Command{}
	for _, a := range j.watch.Asks() {
		asks[a.PID] = append(asks[a.PID], probe.Command{Do: a.Do, Steps: a.Steps})
	}
	return asks
}

// Forecasts returns the predictions that hold now.
func (j *Judgement) Forecasts() []diagnose.Prediction { return j.watch.Forecasts() }

// Accounts returns the account of each card at the last reading. With several cards the process's
// own index does not say which it means, so only a single card's memory is taken apart.
func (j *Judgement) Accounts() map[string]diagnose.Account {
	accounts := map[string]diagnose.Account{}
	for _, d := range j.last.Devices {
		var held []diagnose.Holding
		if len(j.last.Devices) == 1 {
			for _, devices := range j.holdings {
				for _, h := range devices {
					held = append(held, h)
				}
			}
		}
		accounts[d.UUID] = diagnose.Card(d, held)
	}
	return accounts
}
