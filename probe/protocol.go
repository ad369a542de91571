package probe

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"

	"memroom/event"
)

// Protocol is the version that this side speaks. A probe sends its own in Hello.
const Protocol = 1

// Message is a message of a probe: one of the pointer types below.
type Message interface{ kind() string }

// Hello opens a connection.
type Hello struct {
	Protocol  int    `json:"v"`
	PID       int    `json:"pid"` // in the probe's own pid namespace
	PPID      int    `json:"ppid"`
	Python    string `json:"python"`
	Program   string `json:"program"` // script, or "-m module"; never its arguments
	Rank      *int   `json:"rank"`
	LocalRank *int   `json:"local_rank"`
	World     *int   `json:"world"`
	Run       string `json:"run"`
	Where     *Where `json:"where,omitempty"` // nil: it cannot be asked where it stands
}

// Where is how a process is asked where its main thread stands: on Signal it appends its stack to
// the file that it has open as FD.
type Where struct {
	Signal int    `json:"signal"`
	Others int    `json:"others,omitempty"` // the signal that asks another thread about all of them
	FD     int    `json:"fd"`
	Path   string `json:"path"`
}

// Framework reports that the user has imported a framework.
type Framework struct {
	Name    string `json:"name"` // torch, tensorflow, jax
	Version string `json:"version"`
	CUDA    string `json:"cuda,omitempty"` // the toolkit it was built with
}

// Steps carries the optimizer steps since the last message.
type Steps struct {
	Rows    []event.Step
	Spent   time.Duration // of the processor inside hooks, since the first step ended
	Elapsed time.Duration // since then
}

// Phase reports that something other than a plain step began or ended.
type Phase struct {
	Phase     string      `json:"phase"` // eval, save
	Begin     bool        `json:"begin"`
	Step      int64       `json:"step"`
	AtUS      int64       `json:"at_us"`
	Allocated event.Bytes `json:"allocated"`
	Reserved  event.Bytes `json:"reserved"`
	Device    int         `json:"device"`
	Peak      event.Bytes `json:"peak"` // of allocated bytes on that device so far, 0 unknown
}

// Evaluation reports what the first batches of an evaluation left behind, and again, with the
// number of its batches, when it is over.
type Evaluation struct {
	Step    int64       `json:"step"`
	Grad    bool        `json:"grad"`    // results have a graph: gradients are on
	Kept    event.Bytes `json:"kept"`    // by Holder, of each batch; 0: nothing is known to be kept
	Count   int64       `json:"count"`   // tensors in Holder
	Held    event.Bytes `json:"held"`    // by Holder, in all
	Holder  string      `json:"holder"`  // variable and line, such as "logits in eval.py:12"
	Batches int64       `json:"batches"` // 0 while the evaluation runs
}

// Account divides the process's device memory by use, as far as the probe can see.
type Account struct {
	Step      int64       `json:"step"`
	Device    int         `json:"device"`
	Weights   event.Bytes `json:"weights"`
	Gradients event.Bytes `json:"gradients"`
	Optimizer event.Bytes `json:"optimizer"`
	Allocated event.Bytes `json:"allocated"`
	Reserved  event.Bytes `json:"reserved"`
	AtPeak    event.Bytes `json:"peak_allocated"`
	Split     event.Bytes `json:"inactive_split"`
	Total     event.Bytes `json:"total"` // of the card, 0 unknown
	Free      event.Bytes `json:"free"`  // of the card, by the driver
	Limit     event.Bytes `json:"limit"` // reserved bytes a memory fraction allows, 0 none
}

// OOM is an allocator that gave up; the program may still catch the exception.
type OOM struct {
	Step      int64         `json:"step"`
	Device    int           `json:"device"`
	Requested event.Bytes   `json:"requested"`
	Total     event.Bytes   `json:"total"`
	Free      event.Bytes   `json:"free"`
	Allocated event.Bytes   `json:"allocated"`
	Reserved  event.Bytes   `json:"reserved"`
	Split     event.Bytes   `json:"inactive_split"`
	Limit     event.Bytes   `json:"limit,omitempty"` // that the program set for its allocator; 0: none
	Phase     string        `json:"phase"`
	Snapshot  string        `json:"snapshot"` // path of the dump, empty if none was written
	Lines     bool          `json:"lines"`    // the dump has stacks
	Frames    []event.Frame `json:"frames"`
}

// Died is the exception that ended a Python.
type Died struct {
	Type   string        `json:"type"`
	Text   string        `json:"text"`
	Where  event.Where   `json:"where"` // empty: not about memory
	Frames []event.Frame `json:"frames"`
}

// Exit is the last message of a Python process that ends normally.
type Exit struct {
	SpentUS   int64 `json:"spent_us"`
	ElapsedUS int64 `json:"elapsed_us"`
	Dropped   int64 `json:"dropped"` // messages lost because the monitor did not read
	Faults    int64 `json:"faults"`
}

// Stacks is what a recording window found: the lines whose memory stayed, most growth first.
type Stacks struct {
	Steps  int          `json:"steps"` // length of the window
	Step   int64        `json:"step"`  // its last step
	Device int          `json:"device"`
	Groups []StackGroup `json:"groups"`
}

// StackGroup is the memory that one call stack allocated during the window and that is still there.
type StackGroup struct {
	Bytes  event.Bytes   `json:"bytes"`
	Growth event.Bytes   `json:"growth"` // of it: since the middle of the window
	Count  int           `json:"count"`
	Frames []event.Frame `json:"frames"`
}

// Heap is which variables hold more than the last time it was asked for.
type Heap struct {
	Step    int64        `json:"step"`
	Holders []HeapHolder `json:"holders"` // variables that hold what grew, what matters most first
	Built   int          `json:"built"`   // models that the program has begun so far
}

// HeapHolder is a variable, attribute, element or closure that holds more than before.
type HeapHolder struct {
	Name  string      `json:"name"` // such as trainer.meters["loss"].values
	Kind  string      `json:"kind"` // such as "list of 120"
	File  string      `json:"file"`
	Line  int         `json:"line"`  // where it grows, as far as its source shows
	Code  string      `json:"code"`  // the line itself
	Host  event.Bytes `json:"host"`  // growth by itself, in host memory
	Card  event.Bytes `json:"card"`  // and on cards
	Count int64       `json:"count"` // more tensors and arrays
	Nodes int64       `json:"nodes"` // more nodes of autograd graphs that it keeps
	// more modules and models in it, their parts among them
	Models int64 `json:"models,omitempty"`
	// it has an end, reached or not: a cache that fills, or a sum that the loop begins anew
	Fills bool `json:"fills,omitempty"`
}

// Models reports that the models of one class increase with each one that is built.
type Models struct {
	Step      int64       `json:"step"`
	Framework string      `json:"framework"` // torch, keras
	Class     string      `json:"class"`
	Count     int64       `json:"count"`  // alive, after garbage was collected
	Waited    int64       `json:"waited"` // those that had only waited for the collector
	Built     int64       `json:"built"`  // models of any class that the program has begun
	Bytes     event.Bytes `json:"bytes"`  // of their weights, gradients and optimizer state
	Grown     event.Bytes `json:"grown"`  // the process's host memory since the second model
	File      string      `json:"file"`   // where they are built or trained
	Line      int         `json:"line"`

	// The variable that holds most of them; empty: none was found.
	Holder     string `json:"holder"`
	HolderKind string `json:"holder_kind"`
	HolderFile string `json:"holder_file"`
	HolderLine int    `json:"holder_line"`
}

// Feeding reports the memory that feeding the model takes at one place of the program.
type Feeding struct{ event.Feed }

// Checkpoint reports that a checkpoint was loaded. Some steps later a second one reports how much
// of it still lives next to the model.
type Checkpoint struct {
	Step       int64       `json:"step"`
	Bytes      event.Bytes `json:"bytes"` // that were loaded
	Card       event.Bytes `json:"card"`  // of it to a card
	Kept       event.Bytes `json:"kept,omitempty"`
	Whole      string      `json:"whole,omitempty"` // a table or an array instead: its file
	File       string      `json:"file"`            // where it was loaded
	Line       int         `json:"line"`
	Holder     string      `json:"holder,omitempty"`
	HolderFile string      `json:"holder_file,omitempty"`
	HolderLine int         `json:"holder_line,omitempty"`
}

// Saved reports that a checkpoint was saved for which weights were copied, or a file was built, in
// host memory.
type Saved struct {
	Step      int64       `json:"step"`
	Bytes     event.Bytes `json:"bytes"`     // of its tensors
	Copied    event.Bytes `json:"copied"`    // of those: copies of weights and state, in host memory
	Built     event.Bytes `json:"built"`     // of a file in memory
	Anonymous event.Bytes `json:"anonymous"` // held by the process then
	Heap      event.Bytes `json:"heap"`      // of it by malloc, 0 unknown
	File      string      `json:"file"`      // where it was saved
	Line      int         `json:"line"`
}

// Worker reports that the dataset in a worker of a DataLoader keeps more and more.
type Worker struct {
	Worker  int         `json:"worker"`
	Workers int         `json:"workers"`
	Name    string      `json:"name"` // such as Images.cache
	Kind    string      `json:"kind"` // such as "dict of 640"
	File    string      `json:"file"`
	Line    int         `json:"line"`    // where it grows
	Growth  event.Bytes `json:"growth"`  // between two looks
	Batches int64       `json:"batches"` // of this worker between them
	Held    event.Bytes `json:"held"`    // in this worker
}

// Forked names a process that the program, or a data loader for it, has forked to work for it.
type Forked struct {
	PID int    `json:"pid"`
	By  string `json:"by"` // "loader" or "program"
}

// GivenUp reports that a part of the probe cost more than the promise over a window.
type GivenUp struct {
	Part  string  `json:"part"`
	Share float64 `json:"share"` // of the window's time that the whole probe took
	Eased bool    `json:"eased"` // it goes on, half as often
}

// Caches reports the caches of keys and values that generation keeps alive.
type Caches struct {
	Count     int64       `json:"count"`
	Bytes     event.Bytes `json:"bytes"`     // of all
	Card      event.Bytes `json:"card"`      // of it on cards
	Largest   event.Bytes `json:"largest"`   // of one
	Sequences int64       `json:"sequences"` // in that one, 0 unknown
	Tokens    int64       `json:"tokens"`    // of each sequence
	Anonymous event.Bytes `json:"anonymous"` // held by the process then
	File      string      `json:"file"`      // where the model is called
	Line      int         `json:"line"`

	// The variable that holds most of those that nobody works with; empty: none was found.
	Holder     string `json:"holder"`
	HolderKind string `json:"holder_kind"`
	HolderFile string `json:"holder_file"`
	HolderLine int    `json:"holder_line"`
}

// Retraced reports that a function of TensorFlow is traced at most of its calls.
type Retraced struct {
	Function string      `json:"function"`
	Traces   int64       `json:"traces"`
	Grown    event.Bytes `json:"grown"`    // the process's heap since the second trace
	Argument string      `json:"argument"` // that changes from trace to trace; empty: not known
	Change   string      `json:"change"`   // of it: value, shape, kind
	Type     string      `json:"type"`     // of it: float, list, tensor, ...
	File     string      `json:"file"`     // where it is defined
	Line     int         `json:"line"`
	CallFile string      `json:"called_file"`
	CallLine int         `json:"called_line"`
}

// Said is a sentence of a part inside the process: a remedy applied or declined.
type Said struct {
	Kind string `json:"kind"` // applied, declined, note
	Text string `json:"text"`
	ID   string `json:"id,omitempty"` // of the remedy

	// Figures of a remedy that measured before it chose; absent otherwise.
	Predicted    event.Bytes `json:"predicted,omitempty"` // allocated bytes expected at the peak
	Needs        event.Bytes `json:"needs,omitempty"`     // at the least, where nothing would fit
	Limit        event.Bytes `json:"limit,omitempty"`     // that was reckoned with
	Slight       bool        `json:"slight,omitempty"`    // it makes the peak hardly smaller
	Rows         int         `json:"rows,omitempty"`      // of the batch
	Pieces       int         `json:"pieces,omitempty"`
	Checkpointed int         `json:"checkpointed,omitempty"` // blocks
	// share of the forward pass that is run twice
	Twice float64 `json:"twice,omitempty"`
	// predicted: 0.1 is a tenth longer than the whole batch at once
	Slower      float64 `json:"slower,omitempty"`
	Equivalence string  `json:"equivalence,omitempty"`
	// why rounding grows from step to step in this training; empty where it does not, or where the
	// result is equal to the bit
	Amplifies string `json:"amplifies,omitempty"`
	// what results are rounded by otherwise where that is coarser than fp32, how much, and why
	Rounds string `json:"rounds,omitempty"`
}

// Report has the values that the program itself reported with memroom.report, and in a trial those
// that its framework logged. JSON has no word for NaN and infinity: such a value is nil.
type Report struct {
	Step   int64               `json:"step"`
	Values map[string]*float64 `json:"values"`
}

// Done answers a command.
type Done struct {
	ID   int64  `json:"id"`
	Do   string `json:"do,omitempty"` // the command; unknown from older probes
	OK   bool   `json:"ok"`
	Said string `json:"said"`
	Path string `json:"path,omitempty"`
}

// Fault is an exception of the probe itself: a bug of ours, kept from the user's program.
type Fault struct {
	Where string `json:"where"`
	Error string `json:"error"`
	Trail string `json:"trail"`
}

// Unknown is a message of a newer probe.
type Unknown struct{ Type string }

func (*Hello) kind() string      { return "hello" }
func (*Framework) kind() string  { return "framework" }
func (*Steps) kind() string      { return "steps" }
func (*Phase) kind() string      { return "phase" }
func (*Evaluation) kind() string { return "evaluation" }
func (*Account) kind() string    { return "account" }
func (*OOM) kind() string        { return "oom" }
func (*Died) kind() string       { return "died" }
func (*Exit) kind() string       { return "exit" }
func (*Stacks) kind() string     { return "stacks" }
func (*Heap) kind() string       { return "heap" }
func (*Models) kind() string     { return "models" }
func (*Feeding) kind() string    { return "feeding" }
func (*Checkpoint) kind() string { return "checkpoint" }
func (*Saved) kind() string      { return "saved" }
func (*Worker) kind() string     { return "worker" }
func (*Forked) kind() string     { return "forked" }
func (*GivenUp) kind() string    { return "given_up" }
func (*Caches) kind() string     { return "caches" }
func (*Retraced) kind() string   { return "retraced" }
func (*Said) kind() string       { return "said" }
func (*Report) kind() string     { return "report" }
func (*Done) kind() string       { return "done" }
func (*Fault) kind() string      { return "fault" }
func (u *Unknown) kind() string  { return u.Type }

// Decode reads one line. It returns *Unknown for a line of an unknown type, and an error for a line
// that is not a message.
func Decode(line []byte) (Message, error) {
	var head struct {
		Type string `json:"t"`
	}
	if err := json.Unmarshal(line, &head); err != nil || head.Type == "" {
		return nil, fmt.Errorf("probe message %q is not an object with a type", clip(line))
	}
	m := blank(head.Type)
	if err := json.Unmarshal(line, m); err != nil {
		return nil, fmt.Errorf("probe message %q: %w", clip(line), err)
	}
	return m, nil
}

func blank(kind string) Message {
	for _, m := range []Message{&Hello{}, &Framework{}, &Steps{}, &Phase{}, &Evaluation{},
		&Account{}, &OOM{},
		&Died{}, &Exit{}, &Stacks{},
		&Heap{}, &Models{}, &Feeding{}, &Checkpoint{}, &Saved{}, &Worker{}, &Caches{}, &Retraced{},
		&Forked{}, &GivenUp{},
		&Said{}, &Report{}, &Done{}, &Fault{}} {
		if m.kind() == kind {
			return m
		}
	}
	return &Unknown{Type: kind}
}

func clip(line []byte) []byte { return line[:min(len(line), 80)] }

// UnmarshalJSON keeps Unknown's type: whatever else is in the message is not ours to read.
func (u *Unknown) UnmarshalJSON([]byte) error { return nil }

// stepColumns is the number of columns of a row in protocol 1; newer probes may append more.
const stepColumns = 18

// UnmarshalJSON reads the rows, which are arrays of numbers to keep the probe cheap.
func (s *Steps) UnmarshalJSON(data []byte) error {
	var raw struct {
		Rows      [][]int64 `json:"rows"`
		SpentUS   int64     `json:"spent_us"`
		ElapsedUS int64     `json:"elapsed_us"`
	}
	if err := json.Unmarshal(data, &raw); err != nil {
		return err
	}
	s.Spent, s.Elapsed = microseconds(raw.SpentUS), microseconds(raw.ElapsedUS)
	s.Rows = make([]event.Step, 0, len(raw.Rows))
	for _, r := range raw.Rows {
		if len(r) < stepColumns {
			return fmt.Errorf("a step has %d columns, want %d", len(r), stepColumns)
		}
		s.Rows = append(s.Rows, event.Step{
			Step: r[0], Device: int(r[1]), End: time.UnixMicro(r[2]).UTC(),
			Duration: microseconds(r[3]), Wait: microseconds(r[4]), Backward: microseconds(r[5]),
			Optimizer:    microseconds(r[6]),
			MicroBatches: int(r[7]),
			Allocated:    event.Bytes(r[8]), Reserved: event.Bytes(r[9]),
			PeakAllocated: event.Bytes(r[10]), AtBackward: event.Bytes(r[11]),
			InactiveSplit: event.Bytes(r[12]), Retries: r[13], OOMs: r[14],
			Resident: event.Bytes(r[15]), Anonymous: event.Bytes(r[16]),
			Heap: event.Bytes(r[17]),
		})
	}
	return nil
}

func microseconds(n int64) time.Duration { return time.Duration(n) * time.Microsecond }

// Command is something a probe is asked to do at its next step boundary.
type Command struct {
	ID    int64  `json:"id"`
	Do    string `json:"do"`              // one of the constants below
	Steps int    `json:"steps,omitempty"` // for record_stacks
}

// What a probe can do. It answers each with Done, and the last four with a message of their own
// before it.
const (
	DoCollect      = "collect"       // gc.collect()
	DoEmptyCache   = "empty_cache"   // return the allocator's unused segments to the driver
	DoRecordStacks = "record_stacks" // record where memory comes from for Command.Steps steps
	DoSnapshot     = "snapshot"      // write the allocator's snapshot to the dumps folder
	DoHeap         = "heap"          // look which variables hold more
	DoAccount      = "account"       // divide device memory by use
)

// encode returns the command as a line.
func (c Command) encode() []byte {
	body, err := json.Marshal(struct {
		Type string `json:"t"`
		Command
	}{"do", c})
	if err != nil {
		panic(err) // numbers and a string cannot fail
	}
	return append(bytes.TrimSpace(body), '\n')
}
