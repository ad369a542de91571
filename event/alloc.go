package event

// Kind is one thing that an allocator does.
type Kind uint8

// The kinds of a recorded allocator history, named as PyTorch names them.
const (
	KindUnknown Kind = iota
	KindAlloc
	KindFreeRequested
	KindFreeCompleted
	KindSegmentAlloc
	KindSegmentFree
	KindSegmentMap
	KindSegmentUnmap
	KindSnapshot
	KindOOM
)

var kindNames = [...]string{"unknown", "alloc", "free_requested", "free_completed", "segment_alloc",
	"segment_free",
	"segment_map", "segment_unmap", "snapshot", "oom"}

func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return kindNames[0]
}

// StackID names an interned call stack of one trace; 0 is "no stack".
type StackID uint32

// Frame is one line of a call stack.
type Frame struct {
	File string `json:"file"`
	Name string `json:"name"`
	Line int    `json:"line"`
}

// PoolID names an allocator pool: {0,0} is the default one, others are private (CUDA graphs,
// MemPool).
type PoolID [2]uint64

// Entry is one line of an allocator's recorded history, with the addresses it really used.
type Entry struct {
	Kind Kind
	Addr uint64
	// requested bytes for allocations and frees, segment bytes for segments, rounded bytes for an
	// OOM
	Size       int64
	Stream     uint64
	TimeUS     int64 // Unix time in microseconds, 0 when not recorded
	Stack      StackID
	Pool       PoolID
	DeviceFree int64 // only for an OOM: bytes free on the card at that moment
}

// BlockState is whether a block is free, allocated or waiting for another stream.
type BlockState uint8

// States of a block at the moment of a snapshot.
const (
	BlockFree    BlockState = iota
	BlockActive             // allocated
	BlockPending            // freed by the program, still in use on another stream
)

var blockStateNames = [...]string{"inactive", "active_allocated", "active_pending_free"}

func (s BlockState) String() string { return blockStateNames[s] }

// Block is a piece of a segment at the moment of a snapshot.
type Block struct {
	Addr      uint64
	Size      int64
	Requested int64 // what the program asked for; meaningless for a free block
	Stack     StackID
	State     BlockState
}

// Segment is memory that the allocator had from the driver at the moment of a snapshot: one
// cudaMalloc, or one contiguous mapped run of an expandable segment.
type Segment struct {
	Addr       uint64
	Size       int64
	Stream     uint64
	Pool       PoolID
	Stack      StackID
	Small      bool // of the pool for blocks up to 1 MiB
	Expandable bool
	Blocks     []Block // in order of address, without gaps
}

// Recording is what one device's allocator wrote down: its history, its state at the end of it, and
// the settings it had.
type Recording struct {
	Device   int
	History  History   // oldest first; a ring buffer may have lost the beginning
	Segments []Segment // in order of address
	Settings AllocatorSettings
	Version  string // torch release whose rules apply, as far as the file has it; empty is unknown
	// CutOff means that the history breaks off before the moment of Segments: the file was damaged.
	CutOff bool
}

// AllocatorSettings are PyTorch's, as far as a snapshot stores them. The memory limit and the
// card's size are not stored.
type AllocatorSettings struct {
	Known       bool   // false before torch 2.3
	Conf        string // PYTORCH_CUDA_ALLOC_CONF as last parsed
	MaxSplit    int64  // bytes, -1 unlimited
	GCThreshold float64
	Expandable  bool
	Divisions   map[int]int // roundup_power2_divisions by interval in MiB
}

// Category is the use of a block of memory.
type Category uint8

// Categories of device memory. Workspace is scratch that a library keeps or takes; temporary is
// scratch of the program.
const (
	CategoryUnknown Category = iota
	CategoryWeights
	CategoryGradients
	CategoryOptimizer
	CategoryActivations
	CategoryLoss // logits, log-probabilities and their gradients
	CategoryTemporary
	CategoryWorkspace
	CategoryInput
)

var categoryNames = [...]string{"unknown", "weights", "gradients", "optimizer", "activations",
	"loss", "temporary",
	"workspace", "input"}

// Categories lists all of them in the order in which people read them.
func Categories() []Category {
	return []Category{CategoryWeights, CategoryGradients, CategoryOptimizer, CategoryActivations,
		CategoryLoss,
		CategoryTemporary, CategoryWorkspace, CategoryInput, CategoryUnknown}
}

func (c Category) String() string {
	if int(c) < len(categoryNames) {
		return categoryNames[c]
	}
	return categoryNames[0]
}

// CategoryOf is the inverse of String. It returns CategoryUnknown for an unknown name.
func CategoryOf(name string) Category {
	for i, n := range categoryNames {
		if n == name {
			return Category(i)
		}
	}
	return CategoryUnknown
}

// MarshalText writes the name, so that categories can be keys and values in JSON.
func (c Category) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// UnmarshalText reads the name.
func (c *Category) UnmarshalText(text []byte) error { *c = CategoryOf(string(text)); return nil }
