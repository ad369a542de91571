package tape

import (
	"slices"
	"strings"

	"memroom/event"
)

// FSDP describes how a model is spread over ranks by PyTorch's fully sharded data parallelism.
type FSDP struct {
	Ranks  int64
	Stored DType // type of a rank's own part of the weights, and of its gradients
	Gather DType // type in which weights are gathered and computed with
	Reduce DType // type in which gradients are summed over the ranks
	Keep   bool  // gathered weights stay from forward to backward
	Flat   bool  // FullyShardedDataParallel: one flat parameter a unit; else fully_shard
	// names of the blocks that are units of their own, as given to [Graph.Unit]
	Blocks []string
	Lag    int // releases on other streams that wait, as they do where the host runs ahead
}

// part is one rank's part of a parameter.
type part struct {
	shape []int64
	dtype DType
	wide  int64   // bytes of an element when gathered
	whole *Tensor // gradient before it was summed over the ranks
}

// unit is a group of parameters that are gathered together.
type unit struct {
	f       *fsdp
	params  []*Param
	sizes   []int64    // elements of each parameter's part, padded
	gather  []*storage // whole weights, where they are here
	pending *storage   // result of an all-gather that was not copied out yet
	here    bool
	forward int  // place in the order of forward passes, -1 before its first
	reduced bool // gradients were summed in this backward pass
	flat    int64
	trained int64    // elements of a flat parameter's gradient
	grads   *storage // a flat parameter's summed gradients
}

// fsdp is the state of one process.
type fsdp struct {
	FSDP
	g      *Graph
	root   *unit
	units  map[string]*unit
	order  []*unit // forward passes since the last backward
	last   *storage
	input  *storage // of the last reduction
	late   []*storage
	inited bool
}

// Streams of collectives; 0 is the default stream.
const (
	gatherStream = 1
	reduceStream = 2
	castStream   = 3
)

// spread groups the parameters into units and loads each rank's part of them.
func (g *Graph) spread(m *Module) {
	f := &fsdp{FSDP: *g.FSDP, g: g, units: map[string]*unit{}}
	g.fsdp = f
	f.root = &unit{f: f, forward: -1}
	inUnit := map[*Param]*unit{}
	var list []*unit
	for _, p := range m.Parameters() {
		name := f.blockOf(p.Name)
		u := f.units[name]
		switch {
		case name == "":
			u = f.root
		case u == nil:
			u = &unit{f: f, forward: -1}
			f.units[name] = u
			list = append(list, u)
		}
		u.params = append(u.params, p)
		inUnit[p] = u
	}
	for _, u := range append(list, f.root) {
		u.measure()
	}
	if f.Flat {
		for _, u := range append(list, f.root) {
			u.loadFlat()
		}
	}
}

// ranksOf is over how many ranks a parameter is cut.
func (f *FSDP) ranksOf(p *Param) int64 {
	if p.Spread > 0 {
		return p.Spread
	}
	return f.Ranks
}

// blockOf is the block that a parameter belongs to, or "".
func (f *FSDP) blockOf(param string) string {
	best := ""
	for _, b := range f.Blocks {
		if len(b) > len(best) && strings.Contains("."+param, "."+b+".") {
			best = b
		}
	}
	return best
}

// measure finds each rank's part: a slice of the first dimension, or of a flat parameter.
func (u *unit) measure() {
	for _, p := range u.params {
		p.part = &part{dtype: u.f.Stored, wide: u.f.Gather.Size()}
		shape := slices.Clone(p.Shape)
		if p.Bits > 0 { // bytes that hold packed values
			p.part.dtype, p.part.wide, shape = U8, 1, []int64{p.packedSizes()[0]}
		}
		if u.f.Flat {
			u.flat += roundUp(divUp(numel(shape)*p.part.wide, u.f.Gather.Size()), 8)
			continue
		}
		if len(shape) > 0 {
			shape[0] = divUp(shape[0], u.f.ranksOf(p))
		}
		p.part.shape = shape
		u.sizes = append(u.sizes, numel(shape))
	}
	if !u.f.Flat {
		return
	}
	n := u.f.Ranks
	u.flat = roundUp(u.flat, n)
	u.trained = u.flat
	if slices.ContainsFunc(u.params, func(p *Param) bool { return p.Lora != nil }) {
		// PEFT makes adapters units of their own: the rest of the block has no gradient
		u.trained = 0
		for _, p := range trained(u.params) {
			u.trained += roundUp(p.Numel(), 8)
		}
		u.trained = roundUp(u.trained, n)
	}
	left := u.flat / n // the first rank's part holds the first parameters
	for _, p := range u.params {
		own := min(left, p.Numel())
		if p.Bits > 0 {
			own = min(left, divUp(p.packedSizes()[0], u.f.Gather.Size()))
			p.part.dtype = u.f.Gather
		}
		p.part.shape = []int64{own}
		left -= own
	}
}

// Piece is one rank's part of a parameter, or of a unit's flat one.
type Piece struct {
	Bytes   int64
	Trained bool
}

// Pieces are the parts that one rank keeps of a model.
func (f *FSDP) Pieces(m *Module) []Piece {
	var list []Piece
	at := map[string]int{} // where a unit's flat parameter stands
	for _, p := range m.Parameters() {
		if !f.Flat {
			shape, size := slices.Clone(p.Shape), f.Stored.Size()
			if p.Bits > 0 {
				shape, size = []int64{p.packedSizes()[0]}, 1
			}
			if len(shape) > 0 {
				shape[0] = divUp(shape[0], f.ranksOf(p))
			}
			list = append(list, Piece{numel(shape) * size, !p.Frozen})
			continue
		}
		name := f.blockOf(p.Name)
		i, known := at[name]
		if !known {
			i, at[name] = len(list), len(list)
			list = append(list, Piece{})
		}
		list[i].Bytes += divUp(p.Numel()*f.Stored.Size(), f.Ranks)
		list[i].Trained = list[i].Trained || !p.Frozen
	}
	return list
}

// loadFlat moves the parameters to the card, joins them and keeps one part.
func (u *unit) loadFlat() {
	g := u.f.g
	size := u.f.Stored.Size()
	var held []*storage
	for _, p := range u.params {
		g.module, g.op = p.Name, "load"
		bytes := p.Numel() * size
		if p.Bits > 0 {
			bytes = u.f.g.loadScales(p)
		}
		held = append(held, g.alloc(bytes, event.CategoryWeights))
	}
	joined := g.alloc(u.flat*size, event.CategoryWeights)
	kept := g.alloc(u.flat/u.f.Ranks*size, event.CategoryWeights)
	g.unrefStorage(joined)
	if g.HostParams {
		g.unrefStorage(kept)
	}
	g.unrefAll(held)
	for _, p := range u.params {
		u.f.standIn(p)
	}
	g.module, g.op = "", ""
}

// standIn makes the parameter that operations see: it has the type they compute in and no memory of
// its own, which its unit gathers.
func (f *fsdp) standIn(p *Param) {
	t := p.Tensor
	t.g, t.DType, t.refs, t.needs = f.g, f.Gather, 1, !p.Frozen
	t.stride = contiguousStrides(t.Shape)
	t.st = f.g.alloc(0, event.CategoryWeights)
}

// loadPart loads a rank's part of a parameter.
func (f *fsdp) loadPart(p *Param) {
	if p.st != nil {
		return
	}
	if !f.g.HostParams {
		f.g.alloc(numel(p.part.shape)*p.part.dtype.Size(), event.CategoryWeights)
	}
	if p.Bits > 0 {
		f.g.loadScales(p)
	}
	f.standIn(p)
}

// loadScales loads the scales and tables of a packed weight, which every rank has. It
// returns the bytes of the packed values.
func (g *Graph) loadScales(p *Param) int64 {
	sizes := p.packedSizes()
	for _, n := range sizes[1:] {
		g.alloc(n, event.CategoryWeights)
	}
	return sizes[0]
}

// on allocates for a stream of its own.
func (f *fsdp) on(stream int32, bytes int64, cat event.Category) *storage {
	st := f.g.alloc(bytes, cat)
	if bytes > 0 {
		f.g.tl.Ops[st.op].Stream = stream
	}
	return st
}

// release frees memory of another stream, now or when the card has caught up with the host.
func (f *fsdp) release(st *storage) {
	if st == nil {
		return
	}
	f.late = append(f.late, st)
	for len(f.late) > f.Lag {
		f.g.unrefStorage(f.late[0])
		f.late = f.late[1:]
	}
}

// wire is the bytes that one rank sends when a unit is gathered.
func (u *unit) wire() int64 {
	if u.f.Flat {
		return u.flat / u.f.Ranks * u.f.Gather.Size()
	}
	var n int64
	for i, p := range u.params {
		n += u.sizes[i] * p.part.wide
	}
	return n
}

// ask starts the all-gather of a unit whose weights are not here.
func (u *unit) ask() {
	f := u.f
	if u.here || u.pending != nil || len(u.params) == 0 {
		return
	}
	g := f.g
	op := g.op
	g.op = "all-gather"
	n := u.wire()
	if f.Flat {
		sent := u.sent(castStream)
		st := f.on(gatherStream, n*f.Ranks, event.CategoryWeights)
		g.unrefAll(sent)
		u.gather, u.here = append(u.gather[:0], st), true
		g.op = op
		return
	}
	sent := u.sent(gatherStream)
	var whole int64
	for i, p := range u.params {
		whole += u.sizes[i] * p.part.wide * f.ranksOf(p)
	}
	u.pending = f.on(gatherStream, whole, event.CategoryWeights)
	g.unrefAll(sent)
	g.op = op
}

// sent is what a rank puts together on the card to send its part: a copy in the type that is
// gathered, and where the part is in host memory the part itself, one parameter at a time.
func (u *unit) sent(stream int32) []*storage {
	f := u.f
	casts := f.Gather != f.Stored
	switch {
	case !f.g.HostParams && casts:
		return []*storage{f.on(stream, u.wire(), event.CategoryWeights)}
	case !f.g.HostParams:
		return nil
	case f.Flat:
		part := f.on(stream, u.flat/f.Ranks*f.Stored.Size(), event.CategoryWeights)
		if !casts {
			return []*storage{part}
		}
		cast := f.on(stream, u.wire(), event.CategoryWeights)
		f.g.unrefStorage(part)
		return []*storage{cast}
	}
	var held []*storage
	for i, p := range u.params {
		copied := f.on(stream, u.sizes[i]*p.part.dtype.Size(), event.CategoryWeights)
		if casts && p.Bits == 0 {
			cast := f.on(stream, u.sizes[i]*p.part.wide, event.CategoryWeights)
			f.g.unrefStorage(copied)
			copied = cast
		}
		held = append(held, copied)
	}
	return held
}

// bring waits for the all-gather and copies its result into the parameters. In forward the result
// is kept until the next unit's was copied out.
func (u *unit) bring(forward bool) {
	f := u.f
	if u.pending == nil {
		return
	}
	g := f.g
	op, module := g.op, g.module
	g.op = "all-gather"
	before := f.last
	if forward {
		f.last = nil
	}
	var blocks int64
	for i, p := range u.params {
		g.module = p.Name
		bytes := u.sizes[i] * p.part.wide
		u.gather = append(u.gather, g.alloc(bytes*f.ranksOf(p), event.CategoryWeights))
		blocks += divUp(bytes, copyBlock)
	}
	g.temp(8*blocks+32*int64(len(u.params))+8, event.CategoryTemporary)
	if forward {
		g.unrefStorage(before)
		f.last = u.pending
	} else {
		g.unrefStorage(u.pending)
	}
	u.pending, u.here = nil, true
	g.op, g.module = op, module
}

// copyBlock is the bytes that one block of the copying kernels handles; each has an entry in their
// table.
const copyBlock = 2048

// leave frees the gathered weights.
func (u *unit) leave() {
	for _, st := range u.gather {
		if u.f.Flat {
			u.f.release(st)
			continue
		}
		u.f.g.unrefStorage(st)
	}
	u.gather, u.here = u.gather[:0], false
}

// before is a unit's pre-forward hook.
func (u *unit) before() {
	u.ask()
	u.bring(true)
}

// after is a unit's post-forward hook.
func (u *unit) after(root bool) {
	f := u.f
	if !f.Keep && (!f.Flat || !root) {
		u.leave()
	}
	if f.g.noGrad == 0 {
		u.forward = len(f.order)
		f.order = append(f.order, u)
	} else if root {
		u.leave()
	}
	if root {
		f.g.unrefStorage(f.last)
		f.last = nil
	}
}

// beforeBackward gathers a unit for its backward pass and asks for the one that comes next.
func (u *unit) beforeBackward() {
	u.ask()
	u.bring(false)
	if u.forward > 0 {
		u.f.order[u.forward-1].ask()
	}
}

// afterBackward sums the unit's gradients over the ranks; each keeps its part.
func (u *unit) afterBackward() {
	if u.reduced {
		return
	}
	u.reduced = true
	if u.f.Flat {
		u.reduceFlat()
		return
	}
	u.leave()
	f, g := u.f, u.f.g
	var list []*Param
	var n, whole, blocks int64
	for i, p := range u.params {
		if p.part.whole != nil {
			list = append(list, p)
			n += u.sizes[i]
			whole += u.sizes[i] * f.ranksOf(p)
			blocks += divUp(u.sizes[i]*f.Reduce.Size(), copyBlock)
		}
	}
	if len(list) == 0 {
		return
	}
	g.op = "reduce-scatter"
	g.unrefStorage(f.input)
	f.input = g.alloc(whole*f.Reduce.Size(), event.CategoryGradients)
	g.temp(8*blocks+48*int64(len(list))+16, event.CategoryTemporary)
	last := list[len(list)-1].part.whole // a variable of the loop holds it
	for _, p := range list[:len(list)-1] {
		p.part.whole.drop()
		p.part.whole = nil
	}
	out := f.on(reduceStream, n*f.Reduce.Size(), event.CategoryGradients)
	if f.Reduce != f.Stored {
		cast := f.on(reduceStream, n*f.Stored.Size(), event.CategoryGradients)
		g.unrefStorage(out)
		out = cast
	}
	f.keepGrads(list, out)
	list[len(list)-1].part.whole = nil
	last.drop()
	g.op = ""
}

// keepGrads makes views of the summed gradients those of the parameters, or adds to what is there.
// Gradients of weights in host memory go there too.
func (f *fsdp) keepGrads(list []*Param, out *storage) {
	if f.g.HostParams {
		f.g.unrefStorage(out)
		out = f.g.alloc(0, event.CategoryGradients)
	}
	for _, p := range list {
		if p.Grad == nil {
			out.refs++
			p.Grad = &Tensor{g: f.g, st: out, Shape: p.part.shape, DType: f.Stored, refs: 1,
				isView: true}
		}
	}
	f.g.unrefStorage(out)
}

// reduceFlat is the same for a flat parameter: its gradient is put together from those of the
// parameters, cast, and summed.
func (u *unit) reduceFlat() {
	f, g := u.f, u.f.g
	var list []*Param
	for _, p := range u.params {
		if p.part.whole != nil {
			list = append(list, p)
		}
	}
	if len(list) == 0 {
		u.leave()
		return
	}
	g.op = "reduce-scatter"
	joined := f.on(gatherStream, u.trained*f.Gather.Size(), event.CategoryGradients)
	u.leave()
	for _, p := range list {
		p.part.whole.drop()
		p.part.whole = nil
	}
	whole := joined
	if f.Reduce != f.Gather {
		whole = f.on(reduceStream, u.trained*f.Reduce.Size(), event.CategoryGradients)
	}
	out := f.on(reduceStream, u.trained/f.Ranks*f.Reduce.Size(), event.CategoryGradients)
	if whole != joined {
		g.unrefStorage(whole)
	}
	if f.Reduce != f.Stored {
		cast := f.on(reduceStream, u.trained/f.Ranks*f.Stored.Size(), event.CategoryGradients)
		g.unrefStorage(out)
		out = cast
	}
	f.release(joined)
	if u.grads == nil { // it goes with the next forward pass, not with zero_grad
		out.refs++
		u.grads = out
	}
	f.keepGrads(list, out)
	g.op = ""
}

// begin is the first unit's work at the start of a forward pass.
func (f *fsdp) begin() {
	if !f.Flat {
		return
	}
	g := f.g
	if !f.inited {
		f.inited = true
		g.op = "fsdp buffers"
		for _, u := range f.all() {
			for _, bytes := range []int64{u.wire(), u.flat * f.Gather.Size(),
				u.flat * f.Stored.Size()} {
				g.temp(bytes, event.CategoryTemporary)
			}
		}
	}
	for _, u := range f.all() {
		if u.grads != nil && u.params[0].Grad == nil {
			g.unrefStorage(u.grads)
			u.grads = nil
		}
	}
}

// all lists the units, the root first.
func (f *fsdp) all() []*unit {
	list := []*unit{f.root}
	for _, b := range f.Blocks {
		if u := f.units[b]; u != nil {
			list = append(list, u)
		}
	}
	return list
}

// finish is the callback at the end of a backward pass: units that were not reduced, the root among
// them, are.
func (f *fsdp) finish() {
	for _, u := range f.all() {
		u.afterBackward()
	}
	for _, u := range f.all() {
		u.reduced, u.forward = false, -1
		f.g.unrefStorage(u.pending)
		u.pending = nil
	}
	f.g.unrefStorage(f.input)
	f.input, f.order = nil, f.order[:0]
	if !f.Flat || !f.g.HostParams {
		return
	}
	for _, u := range f.all() { // copied to the host as they came, and held until now
		f.g.unrefStorage(u.grads)
		u.grads = nil
	}
}

// Unit runs a block whose parameters may be a unit of fully sharded training. The arguments are
// borrowed.
func (g *Graph) Unit(name string, fn func(args []*Tensor) *Tensor, args []*Tensor) *Tensor {
	if g.Watch != nil {
		g.Watch(name)
	}
	f := g.fsdp
	if f == nil || g.redo != nil || f.units[name] == nil {
		return fn(args)
	}
	u := f.units[name]
	u.before()
	inner, made := u.watchInputs(args)
	out := fn(inner)
	for _, t := range made {
		t.drop()
	}
	u.after(false)
	if out.node != nil {
		out.node.before = u.beforeBackward
	}
	return out
}

// watchInputs puts a node before the block: it runs when the block's backward pass is over.
func (u *unit) watchInputs(args []*Tensor) (inner, made []*Tensor) {
	g := u.f.g
	if !g.wants(args...) {
		return args, nil
	}
	inner = slices.Clone(args)
	var from []*Tensor
	for i, a := range args {
		if a == nil || !a.needs {
			continue
		}
		v := g.alias(a, a.Shape, a.stride)
		v.floating, v.isView = false, a.isView
		from, made, inner[i] = append(from, a), append(made, v), v
	}
	n := g.prepare("post-backward", from...)
	n.emit(made...)
	n.backward = func(_ *Node, b *pass) {
		for i, gr := range b.grad {
			if gr != nil {
				b.out[i] = gr.hold()
			}
		}
		u.afterBackward()
	}
	return inner, made
}

// Whole runs the model's forward pass, whose parameters outside of blocks are gathered around it.
func (g *Graph) Whole(fn func() *Tensor) *Tensor {
	f := g.fsdp
	if g.ddp != nil {
		g.ddp.begin()
	}
	if f == nil {
		return fn()
	}
	f.begin()
	f.root.before()
	out := fn()
	f.root.after(true)
	for _, t := range g.given {
		t.drop()
	}
	g.given = nil
	if out.node != nil {
		out.node.before = f.root.beforeBackward
	}
	return out
}

// Given notes a part of the model's result next to its loss, such as the logits: it lives until the
// caller has the result, which is after FSDP has let the gathered weights go.
func (g *Graph) Given(t *Tensor) {
	if g.fsdp != nil {
		g.given = append(g.given, t.hold())
	}
}

func roundUp(n, to int64) int64 { return divUp(n, to) * to }
