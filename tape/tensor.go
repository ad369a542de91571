package tape

import (
	"fmt"

	"memroom/event"
)

// DType is the element type of a tensor.
type DType uint8

// The element types that training uses.
const (
	F32 DType = iota
	F16
	BF16
	F64
	I64
	I32
	Bool
	U8
)

var dtypeSizes = [...]int64{F32: 4, F16: 2, BF16: 2, F64: 8, I64: 8, I32: 4, Bool: 1, U8: 1}

// Size is the bytes of one element.
func (d DType) Size() int64 { return dtypeSizes[d] }

// Half reports whether the type is a 16-bit float.
func (d DType) Half() bool { return d == F16 || d == BF16 }

// Floating reports whether the type can carry a gradient.
func (d DType) Floating() bool { return d <= F64 }

// storage is a block of device memory; it is released when the last tensor on it goes.
type storage struct {
	id    int32 // of the allocation in the timeline
	op    int32 // index of the allocation in the timeline
	bytes int64
	refs  int32
}

// Tensor is a view of a storage, with the node that made it. It is created with one reference, the
// floating one.
type Tensor struct {
	g        *Graph
	st       *storage
	node     *Node
	out      int // which output of node
	Shape    []int64
	stride   []int64
	refs     int32
	DType    DType
	floating bool
	isView   bool // made by a view operation: autograd never adds into it
	leaf     bool // a parameter, or an input that wants a gradient
	needs    bool // requires grad
	param    *Param
}

// Param is a leaf that may be trained.
type Param struct {
	*Tensor
	Name   string
	Grad   *Tensor
	Frozen bool
	Lora   *Lora // adapters next to a linear weight
	Bits   int64 // packed into so many bits, 0 is not
	Double bool  // the scales of a packed weight are packed too
	Own    bool  // kept in fp32 whatever the weights' type
	// ranks over which FSDP cuts it, where they are fewer than for the rest; 0 is all
	Spread   int64
	received bool // activations from another stage, not a weight
	acc      *Node
	part     *part // this rank's part, where the model is spread over ranks
}

// RequiresGrad reports whether a gradient flows into the tensor.
func (t *Tensor) RequiresGrad() bool { return t.needs }

// Dim is the size of dimension i; negative i counts from the end.
func (t *Tensor) Dim(i int) int64 {
	if i < 0 {
		i += len(t.Shape)
	}
	return t.Shape[i]
}

// Numel is the number of elements.
func (t *Tensor) Numel() int64 { return numel(t.Shape) }

func numel(shape []int64) int64 {
	n := int64(1)
	for _, d := range shape {
		n *= d
	}
	return n
}

func (t *Tensor) hold() *Tensor {
	t.refs++
	return t
}

// drop releases one reference; with the last one the storage may be released and the graph behind
// the tensor too.
func (t *Tensor) drop() {
	if t == nil {
		return
	}
	t.refs--
	if t.refs > 0 {
		return
	}
	if t.refs < 0 {
		panic(fmt.Sprintf("tape: tensor %v released twice in %s", t.Shape, t.g.module))
	}
	if t.node != nil {
		t.node.unref()
	}
	t.g.unrefStorage(t.st)
}

func (g *Graph) unrefStorage(st *storage) {
	if st == nil {
		return
	}
	st.refs--
	if st.refs == 0 && st.bytes > 0 {
		g.tl.Ops = append(g.tl.Ops, event.Op{Kind: event.OpFree, ID: st.id})
	}
}

func (g *Graph) unrefAll(list []*storage) {
	for _, st := range list {
		g.unrefStorage(st)
	}
}

// sink takes the floating reference away if there is one, else takes a new one: the caller owns a
// reference afterwards.
func (t *Tensor) sink() *Tensor {
	if t.floating {
		t.floating = false
		return t
	}
	return t.hold()
}

// eat releases the arguments of an operation that were temporaries.
func eat(args ...*Tensor) {
	for _, t := range args {
		if t != nil && t.floating {
			t.floating = false
			t.drop()
		}
	}
}

// alloc requests memory; nothing is requested for zero bytes, as in PyTorch.
func (g *Graph) alloc(bytes int64, cat event.Category) *storage {
	st := g.newStorage()
	st.bytes = bytes
	st.refs = 1
	if bytes <= 0 {
		return st
	}
	st.id = g.nextID
	g.nextID++
	st.op = int32(len(g.tl.Ops))
	g.tl.Ops = append(g.tl.Ops, event.Op{Size: bytes, ID: st.id, Tag: g.tag(cat)})
	return st
}

// temp requests memory and releases it at once: scratch of one kernel.
func (g *Graph) temp(bytes int64, cat event.Category) { g.unrefStorage(g.alloc(bytes, cat)) }

// New makes a contiguous floating tensor.
func (g *Graph) New(shape []int64, d DType) *Tensor {
	return g.newStrided(shape, contiguousStrides(shape), d)
}

func (g *Graph) newStrided(shape, stride []int64, d DType) *Tensor {
	t := g.newTensor()
	t.g, t.Shape, t.stride, t.DType = g, shape, stride, d
	t.refs, t.floating = 1, true
	t.st = g.alloc(numel(shape)*d.Size(), g.category())
	return t
}

// alias makes a floating tensor on the storage of t.
func (g *Graph) alias(t *Tensor, shape, stride []int64) *Tensor {
	v := g.newTensor()
	v.g, v.Shape, v.stride, v.DType = g, shape, stride, t.DType
	v.refs, v.floating, v.isView = 1, true, true
	v.st = t.st
	t.st.refs++
	return v
}

// newTensor and newStorage hand out objects from chunks: a large model makes a million of them.
func (g *Graph) newTensor() *Tensor {
	if len(g.tensors) == 0 {
		g.tensors = make([]Tensor, 512)
	}
	t := &g.tensors[0]
	g.tensors = g.tensors[1:]
	if g.redo != nil {
		g.redo.made = append(g.redo.made, t)
	}
	return t
}

func (g *Graph) newStorage() *storage {
	if len(g.storages) == 0 {
		g.storages = make([]storage, 512)
	}
	st := &g.storages[0]
	g.storages = g.storages[1:]
	return st
}

// retag sets the purpose that an allocation turned out to have.
func (t *Tensor) retag(cat event.Category) {
	if t.st == nil || t.st.bytes <= 0 || t.st.refs == 0 {
		return
	}
	op := &t.g.tl.Ops[t.st.op]
	tag := t.g.tl.Tags[op.Tag]
	switch tag.Category {
	case cat, event.CategoryWeights, event.CategoryInput:
		return
	case event.CategoryLoss:
		if cat == event.CategoryActivations {
			return
		}
	}
	tag.Category = cat
	op.Tag = t.g.intern(tag)
}

// Frame holds the local variables of one Python function.
type Frame struct {
	g     *Graph
	args  []*Tensor
	slots []**Tensor
}

// Enter begins a function. A module call keeps its arguments alive until it returns, whatever the
// function does to its own variables, because the caller's argument tuple holds them.
func (g *Graph) Enter(args ...*Tensor) *Frame {
	f := &Frame{g: g}
	for _, a := range args {
		f.Keep(a)
	}
	g.frames = append(g.frames, f)
	return f
}

// Also keeps a tensor that others hold too, such as an output that the caller stores. A nil frame
// keeps nothing.
func (f *Frame) Also(t *Tensor) {
	if f != nil {
		f.args = append(f.args, t.hold())
	}
}

// Keep binds a tensor to a variable that lives until the function returns.
func (f *Frame) Keep(t *Tensor) *Tensor {
	if t != nil {
		f.args = append(f.args, t.sink())
	}
	return t
}

// Set assigns to a variable: the old value is released after the new one exists. Passing nil is
// `del`.
func (f *Frame) Set(v **Tensor, t *Tensor) *Tensor {
	known := false
	for _, s := range f.slots {
		known = known || s == v
	}
	if !known {
		f.slots = append(f.slots, v)
		*v = nil
	}
	old := *v
	*v = t
	if t != nil {
		t.sink()
	}
	old.drop()
	return t
}

// Pair returns what assigns the two results of a call to two variables.
func (f *Frame) Pair(v, w **Tensor) func(a, b *Tensor) {
	return func(a, b *Tensor) {
		f.Set(v, a)
		f.Set(w, b)
	}
}

// Both is Leave with two results.
func (f *Frame) Both(a, b *Tensor) (*Tensor, *Tensor) {
	f.Leave(a, b)
	return a, b
}

// Leave ends the function and returns its results as temporaries of the caller.
func (f *Frame) Leave(results ...*Tensor) *Tensor {
	for _, r := range results {
		if r != nil && !r.floating {
			r.hold().floating = true
		}
	}
	f.release()
	f.g.frames = f.g.frames[:len(f.g.frames)-1]
	if len(results) == 0 {
		return nil
	}
	return results[0]
}

func (f *Frame) release() {
	for _, a := range f.args {
		a.drop()
	}
	for _, s := range f.slots {
		(*s).drop()
		*s = nil
	}
	f.args, f.slots = nil, nil
}

// Del releases a temporary that no operation takes.
func Del(ts ...*Tensor) { eat(ts...) }
