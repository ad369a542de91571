package event

// Timeline is what a program asks of an allocator, in order and without addresses: the one input of
// the engine in package allocsim. It comes from a recorded snapshot, from a model description
// (plan) or from a rehearsal of the user's script.
type Timeline struct {
	Ops   []Op
	Tags  []Tag  // Ops refer to them by index; index 0 is the empty tag
	Marks []Mark // in ascending order of At
}

// Op is one request: an allocation that gets a new ID, or the release of one.
type Op struct {
	Size int64 // requested bytes; 0 for a release
	// names the allocation within the timeline; each ID is allocated once and freed at most once
	ID     int32
	Tag    int32 // index into Timeline.Tags, of the allocation; unused for a release
	Stream int32
	Kind   OpKind
	// 0 is the default pool; others are private (CUDA graphs, MemPool) and never share memory with
	// it
	Pool uint8
}

// OpKind is the kind of request that an Op makes.
type OpKind uint8

// The kinds of request. Deferred frees are recorded where they completed, see FreePending.
const (
	OpAlloc OpKind = iota
	OpFree         // the block is reusable at once
	// the program let go, another stream still uses it: active, no longer allocated
	OpFreePending
	OpFreeDone   // the release begun by OpFreePending completes
	OpEmptyCache // torch.cuda.empty_cache()
	// a request that failed when it was recorded: allocated and released at once; failing again
	// ends nothing
	OpTry
)

// Tag names the purpose of an allocation, so that a report can name what is live at the peak.
type Tag struct {
	Category Category `json:"category"`
	// operation that made it, such as "linear" or "sdpa backward"
	Op     string  `json:"op,omitempty"`
	Module string  `json:"module,omitempty"` // where in the model, such as "layers.3.mlp"
	Line   string  `json:"line,omitempty"`   // of the user's program, such as "train.py:12"
	Stack  StackID `json:"-"`
}

// Mark means that from the operation at index At on, the program is in this phase of this step.
type Mark struct {
	At    int    `json:"at"`
	Step  int    `json:"step"`  // 0 before the first step
	Phase string `json:"phase"` // load, forward, backward, optimizer, eval, save
}
