package tape

import (
	"memroom/event"
)

// Options control how the program runs.
type Options struct {
	Autocast  bool
	Half      DType // type of autocast: BF16 or F16
	SMs       int64 // streaming multiprocessors of the card: sizes of reduction buffers depend on them
	SMThreads int64 // resident threads of one multiprocessor
	Hopper    bool  // compute capability 9 or 10: cuDNN attention, large cuBLAS workspace
	BLAS      int64 // bytes of the cuBLAS workspace
	BLASLt    int64 // bytes of the cuBLASLt workspace
	Training  bool
	FSDP      *FSDP // nil: the weights are not gathered by fully sharded data parallelism
	Zero      *Zero // nil: no DeepSpeed
	DDP       *DDP  // nil: gradients are not summed in buckets
	WideSave  bool  // softmax keeps its input too, as torch did before 1.11
	Offload   bool  // saved activations wait in host memory
	HostOptim bool  // so does the optimizer's state
	// and, under ZeRO-3 and FSDP, every weight that is not in use
	HostParams bool
	// the output of the input's embedding requires a gradient (enable_input_require_grads), as it
	// does where adapters are trained under checkpointing
	InputGrads bool
	// factor on convolution and RNN workspaces, whose exact size is not known; 0 is 1
	ConvScale float64

	// sizes measured on the card, asked for when the first is needed; may be nil
	Workspaces func() *Workspaces
}

// thread is one host thread's library handles. Forward and backward run on two of them.
type thread struct{ blas, blasLt bool }

// Graph is one process: its timeline, its autograd state, its library handles.
type Graph struct {
	Options
	tl       event.Timeline
	nextID   int32
	seq      uint64
	module   string
	op       string
	cat      event.Category // category of new allocations; unknown means by phase
	tags     map[event.Tag]int32
	lastTag  event.Tag
	lastID   int32
	main     thread
	engine   thread
	inEngine bool
	noGrad   int
	casts    []cachedCast // autocast's cache of weight copies
	ckpt     *checkpoint  // the region being recorded
	redo     *checkpoint  // the region being recomputed
	frames   []*Frame
	rnnState bool

	hostNow  int64 // bytes of offloaded activations that wait in host memory
	HostPeak int64 // the most there were at once

	Outputs *Frame // where an evaluation keeps logits, nil while training

	AdaptersOff bool // layers run as if they had no adapters

	passes int       // backward passes so far
	wanted []wanted  // inputs with gradients, see WantGrad
	given  []*Tensor // parts of the model's result, see Given
	fsdp   *fsdp
	ddp    *ddp
	eager  *Optimizer // steps each parameter as its gradient comes
	zero   *zero
	Watch  func(block string) // called as each block runs; may be nil

	inBlock      string // the block that ran last
	UsesDNN      bool   // a cuDNN kernel ran: its library is loaded
	Checkpointed bool   // a block ran under checkpointing
	Shapes       Shapes // convolutions and recurrent networks met
	Approx       bool   // a workspace of unknown size was used
	Doubt        int64  // bytes that workspaces of patch embeddings may take less
	Guess        bool   // a convolution ran that was not measured at any batch size
	Unsure       bool   // a convolution ran in a layout whose workspaces were seen to vary
	noCast       int
	tensors      []Tensor
	storages     []storage
	ready        nodeHeap
}

// New begins a process with an empty device.
func New(o Options) *Graph {
	if o.ConvScale == 0 {
		o.ConvScale = 1
	}
	g := &Graph{Options: o, nextID: 1, tags: map[event.Tag]int32{}}
	g.tl.Tags = []event.Tag{{}}
	return g
}

// Timeline returns what was recorded so far.
func (g *Graph) Timeline() *event.Timeline { return &g.tl }

// Mark begins a phase of a step.
func (g *Graph) Mark(step int, phase string) {
	g.tl.Marks = append(g.tl.Marks, event.Mark{At: len(g.tl.Ops), Step: step, Phase: phase})
}

// In runs fn inside a named module.
func (g *Graph) In(name string, fn func()) {
	old := g.module
	g.module = name
	g.enterBlock(name)
	fn()
	g.module = old
}

// As runs fn with all allocations, and those of the backward pass of what it records, in one
// category.
func (g *Graph) As(cat event.Category, fn func()) {
	old := g.cat
	g.cat = cat
	fn()
	g.cat = old
}

func (g *Graph) category() event.Category {
	if g.cat != event.CategoryUnknown {
		return g.cat
	}
	return event.CategoryTemporary
}

func (g *Graph) tag(cat event.Category) int32 {
	t := event.Tag{Category: cat, Op: g.op, Module: g.module}
	if t == g.lastTag {
		return g.lastID
	}
	return g.intern(t)
}

func (g *Graph) intern(t event.Tag) int32 {
	id, ok := g.tags[t]
	if !ok {
		id = int32(len(g.tl.Tags))
		g.tl.Tags = append(g.tl.Tags, t)
		g.tags[t] = id
	}
	g.lastTag, g.lastID = t, id
	return id
}

// NoGrad runs fn without recording.
func (g *Graph) NoGrad(fn func()) {
	g.noGrad++
	fn()
	g.noGrad--
}

// NoAutocast runs fn in a region where autocast is switched off, as rotary embeddings do.
func (g *Graph) NoAutocast(fn func()) {
	g.noCast++
	fn()
	g.noCast--
}

func (g *Graph) autocastOn() bool { return g.Autocast && g.noCast == 0 && !g.inBackwardOps() }

// inBackwardOps reports whether the engine computes gradients: autocast is off there, except while
// a checkpoint recomputes.
func (g *Graph) inBackwardOps() bool { return g.inEngine && g.redo == nil }

// blas is called by every matrix product after its result exists: the first one of a thread takes
// the workspace.
func (g *Graph) blas(lt bool) {
	th := &g.main
	if g.inEngine {
		th = &g.engine
	}
	if !th.blas {
		th.blas = true
		g.forever(g.BLAS, "cublas")
	}
	if lt && !th.blasLt {
		th.blasLt = true
		g.forever(g.BLASLt, "cublaslt")
	}
}

// forever requests memory that a library keeps until the process ends.
func (g *Graph) forever(bytes int64, name string) {
	op := g.op
	g.op = name
	g.alloc(bytes, event.CategoryWorkspace)
	g.op = op
}

// Forever requests small allocations that stay.
func (g *Graph) Forever(op string, cat event.Category, sizes ...int64) {
	g.op = op
	for _, b := range sizes {
		g.alloc(b, cat)
	}
	g.op = ""
}

// Scratch requests allocations that live together and go together.
func (g *Graph) Scratch(op string, sizes ...int64) {
	g.op = op
	var held []*storage
	for _, b := range sizes {
		held = append(held, g.alloc(b, event.CategoryTemporary))
	}
	for _, st := range held {
		g.unrefStorage(st)
	}
	g.op = ""
}
