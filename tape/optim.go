package tape

import (
	"fmt"
	"slices"

	"memroom/event"
)

// Optimizer makes and uses the state of an optimizer as torch.optim does on CUDA (foreach by
// default).
type Optimizer struct {
	g      *Graph
	kind   string
	params []*Param
	state  bool
	done   map[*Param]bool // parameters that have their state, where each is stepped apart
}

// optimKind describes the tensors that one optimizer keeps and takes. The counts are tensors of the
// parameter's size.
type optimKind struct {
	states   int  // per parameter, made in the first step
	passing  int  // lists of temporaries that come and go before the others exist
	temps    int  // lists of temporaries alive together in a foreach step
	step     bool // a step counter on the device, 4 bytes per parameter
	loop     bool // one parameter at a time: temps live one by one
	adam     bool // in such a loop: a root, its quotient, which lives until the next one is there
	clone    bool // state is a clone of the gradient, made while stepping (SGD's momentum)
	early    bool // state is made with the optimizer, before the first step (Adagrad)
	factored bool
	bits8    bool
	single   bool  // states are in fp32, whatever the parameter's type (bitsandbytes' 32 bit)
	muon     bool  // momentum, made orthogonal in bf16; vectors are left to AdamW
	lowRank  int64 // states of matrices have so many rows, and a projection next to them
	paged    bool  // states of large parameters are in memory that the driver pages: not counted
	note     string
}

var optimKinds = map[string]optimKind{
	"adamw":            {states: 2, temps: 1},
	"adam":             {states: 2, temps: 1},
	"adam_wd":          {states: 2, passing: 1, temps: 1},
	"adamw_fused":      {states: 2, step: true},
	"adam_fused":       {states: 2, step: true},
	"adamw_loop":       {states: 2, loop: true, adam: true},
	"adam_loop":        {states: 2, loop: true, adam: true},
	"adam_amsgrad":     {states: 3, temps: 1},
	"nadam":            {states: 2, temps: 1},
	"radam":            {states: 2, temps: 1},
	"adamax":           {states: 2, temps: 1},
	"adagrad":          {states: 1, temps: 2, early: true},
	"adadelta":         {states: 2, temps: 2},
	"rmsprop":          {states: 1, temps: 1},
	"rmsprop_momentum": {states: 2, temps: 1},
	"sgd":              {},
	"sgd_wd":           {temps: 1},
	"sgdm":             {states: 1, clone: true},
	"sgdm_wd":          {states: 1, temps: 1, clone: true},
	"sgdm_nesterov":    {states: 1, clone: true},
	"sgdm_fused":       {states: 1, clone: true},
	"lion": {states: 1, temps: 1, loop: true,
		note: "lion is not part of torch: one moment and one temporary are assumed"},
	"muon": {muon: true, loop: true},
	"galore_adamw": {states: 2, temps: 1, loop: true, lowRank: 128,
		note: "GaLore's projections have rank 128 here, and its decomposition is a library's: estimated"},
	"apollo_adamw": {states: 2, temps: 1, loop: true, lowRank: 256,
		note: "APOLLO's projections have rank 256 here: estimated"},
	"adafactor":        {factored: true, loop: true},
	"adam8bit":         {states: 2, bits8: true},
	"adamw8bit":        {states: 2, bits8: true},
	"lion8bit":         {states: 1, bits8: true},
	"adamw32bit":       {states: 2, single: true},
	"lion32bit":        {states: 1, single: true},
	"rmsprop32bit":     {states: 1, single: true},
	"rmsprop8bit":      {states: 1, bits8: true},
	"paged_lion8bit":   {states: 1, bits8: true, paged: true},
	"paged_lion32bit":  {states: 1, single: true, paged: true},
	"paged_adamw32bit": {states: 2, single: true, paged: true},
	"paged_adam8bit":   {states: 2, bits8: true, paged: true},
	"paged_adamw8bit":  {states: 2, bits8: true, paged: true},
}

// aliases are the names that Hugging Face's Trainer and others use for these optimizers.
var aliases = map[string]string{"adamw_torch": "adamw", "adamw_hf": "adamw",
	"adamw_torch_fused": "adamw_fused", "adamw_bnb_8bit": "adamw8bit", "adamw_8bit": "adamw8bit",
	"paged_adamw_8bit": "paged_adamw8bit", "lion_8bit": "lion8bit",
	"adamw_apex_fused": "adamw_fused", "adamw_torch_8bit": "adamw8bit", "lion_32bit": "lion32bit",
	"paged_lion_32bit": "paged_lion32bit", "paged_lion_8bit": "paged_lion8bit",
	"rmsprop_bnb": "rmsprop32bit", "rmsprop_bnb_32bit": "rmsprop32bit",
	"rmsprop_bnb_8bit": "rmsprop8bit", "paged_adamw": "paged_adamw32bit",
	"adamw_torch_xla": "adamw", "galore": "galore_adamw", "apollo": "apollo_adamw",
	"galore_adamw_layerwise": "galore_adamw", "apollo_adamw_layerwise": "apollo_adamw",
	"paged_adamw_32bit": "paged_adamw32bit", "adamw_bnb": "adamw32bit"}

// OptimizerName is the name an optimizer is known by here.
func OptimizerName(name string) string {
	if known, ok := aliases[name]; ok {
		return known
	}
	return name
}

// OptimizerNames lists what is known.
func OptimizerNames() []string {
	names := make([]string, 0, len(optimKinds))
	for n := range optimKinds {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

// OptimizerNote is a caution about an optimizer's figures, or "".
func OptimizerNote(kind string) string { return optimKinds[kind].note }

// KnownOptimizer returns an error that lists the known names.
func KnownOptimizer(kind string) error {
	if _, ok := optimKinds[kind]; !ok {
		return fmt.Errorf("optimizer %q is not known%s", kind, event.DidYouMeanOf(kind, OptimizerNames()))
	}
	return nil
}

// NewOptimizer prepares an optimizer over the trainable parameters, in order.
func (g *Graph) NewOptimizer(kind string, params []*Param) *Optimizer {
	o := &Optimizer{g: g, kind: kind}
	if g.zero != nil {
		params = []*Param{g.zero.flat}
	}
	for _, p := range params {
		if !p.Frozen {
			o.params = append(o.params, p)
		}
	}
	if k := optimKinds[kind]; k.early && !g.HostOptim {
		g.op = kind
		o.makeState(k, o.params)
		o.state = true
		g.module, g.op = "", ""
	}
	return o
}

// Step is optimizer.step(): state on the first call, then temporaries.
func (o *Optimizer) Step() {
	g, k := o.g, optimKinds[o.kind]
	g.module, g.op = "", o.kind
	if g.zero != nil {
		g.zero.step()
		g.op = o.kind
	}
	if g.HostOptim { // the step runs on the host, on its own copy
		return
	}
	with := o.withGrad()
	if !o.state && !k.clone {
		o.makeState(k, with)
	}
	switch {
	case k.factored:
		o.stepAdafactor(with)
	case k.muon:
		o.stepMuon(with)
	case k.lowRank > 0:
		o.stepLowRank(with, k.lowRank)
	case k.adam:
		o.loopAdam(with)
	case k.loop:
		for _, p := range with {
			g.module = p.Name
			for range k.temps {
				g.temp(o.bytes(p), event.CategoryTemporary)
			}
		}
	default:
		o.stepForeach(k, with)
	}
	o.state = true
	g.module, g.op = "", ""
}

// loopAdam is Adam's step one parameter at a time. The variable that holds a parameter's
// denominator lets it go when it takes the next one's.
func (o *Optimizer) loopAdam(with []*Param) {
	var last *storage
	for _, p := range with {
		o.g.module = p.Name
		root := o.g.alloc(o.bytes(p), event.CategoryTemporary)
		next := o.g.alloc(o.bytes(p), event.CategoryTemporary)
		o.g.unrefStorage(root)
		o.g.unrefStorage(last)
		last = next
	}
	o.g.unrefStorage(last)
}

// InBackward makes the optimizer step each parameter as soon as its gradient is there, which goes
// at once.
func (o *Optimizer) InBackward() { o.g.eager = o }

func (o *Optimizer) stepOne(p *Param) {
	if p.Frozen || p.Grad == nil {
		return
	}
	op, module := o.g.op, o.g.module
	one := &Optimizer{g: o.g, kind: o.kind, params: []*Param{p}, state: o.done[p]}
	one.Step()
	if o.done == nil {
		o.done = map[*Param]bool{}
	}
	o.done[p] = true
	p.Grad.drop()
	p.Grad = nil
	o.g.op, o.g.module = op, module
}

// stepForeach takes whole lists of temporaries, one tensor a parameter.
func (o *Optimizer) stepForeach(k optimKind, with []*Param) {
	release := func(list []*storage) {
		for _, st := range list {
			o.g.unrefStorage(st)
		}
	}
	for range k.passing {
		release(o.list(with))
	}
	var held []*storage
	for range k.temps {
		held = append(held, o.list(with)...)
	}
	if !o.state && k.clone {
		o.makeState(k, with)
	}
	release(held)
}

func (o *Optimizer) list(with []*Param) []*storage {
	list := make([]*storage, 0, len(with))
	for _, p := range with {
		o.g.module = p.Name
		list = append(list, o.g.alloc(o.bytes(p), event.CategoryTemporary))
	}
	return list
}

// bytes is a parameter's size as far as this rank's optimizer goes.
func (o *Optimizer) bytes(p *Param) int64 {
	if p.part != nil {
		return numel(p.part.shape) * p.part.dtype.Size()
	}
	return p.Numel() * p.DType.Size()
}

// own is a parameter as this rank's optimizer sees it.
func (o *Optimizer) own(p *Param) *Param {
	if p.part == nil {
		return p
	}
	return &Param{Name: p.Name, Tensor: &Tensor{Shape: p.part.shape, DType: p.part.dtype,
		stride: contiguousStrides(p.part.shape)}}
}

func (o *Optimizer) withGrad() []*Param {
	var list []*Param
	for _, p := range o.params {
		if p.Grad != nil {
			list = append(list, p)
		}
	}
	return list
}

func (o *Optimizer) makeState(k optimKind, params []*Param) {
	g := o.g
	if k.bits8 { // tables of 256 numbers, one for each kind of state
		for range k.states {
			g.alloc(4*256, event.CategoryOptimizer)
		}
	}
	for _, p := range params {
		g.module = p.Name
		bytes := o.bytes(p)
		if k.step {
			g.alloc(4, event.CategoryOptimizer)
		}
		if k.bits8 {
			o.make8bit(k, p)
			continue
		}
		if k.factored {
			o.makeFactors(p)
			continue
		}
		if k.muon || k.lowRank > 0 {
			o.makeMatrix(k, p)
			continue
		}
		if k.single {
			o.makeSingle(k, p)
			continue
		}
		for range k.states {
			g.alloc(bytes, event.CategoryOptimizer)
		}
	}
}

// makeSingle is bitsandbytes' state in 32 bit. Its kernels take no temporaries.
func (o *Optimizer) makeSingle(k optimKind, p *Param) {
	n := o.own(p).Numel()
	if k.paged && n >= leastPaged {
		return
	}
	for range k.states {
		o.g.alloc(4*n, event.CategoryOptimizer)
	}
}

// leastPaged is how many elements a parameter has whose state bitsandbytes pages.
const leastPaged = 100_000

// make8bit is bitsandbytes' state: a byte per element and a scale per block of 256; small tensors
// stay in fp32.
func (o *Optimizer) make8bit(k optimKind, p *Param) {
	n := o.own(p).Numel()
	if n < 4096 {
		for range k.states {
			o.g.alloc(4*n, event.CategoryOptimizer)
		}
		return
	}
	for range k.states {
		if !k.paged || n < leastPaged {
			o.g.alloc(n, event.CategoryOptimizer)
		}
		o.g.alloc(4*divUp(n, 256), event.CategoryOptimizer)
	}
}

// makeFactors is Adafactor's state: row and column variances for matrices, a full one for vectors.
func (o *Optimizer) makeFactors(p *Param) {
	p = o.own(p)
	if len(p.Shape) < 2 {
		o.g.alloc(p.Numel()*p.DType.Size(), event.CategoryOptimizer)
		return
	}
	rows, cols := p.Shape[len(p.Shape)-2], p.Shape[len(p.Shape)-1]
	lead := p.Numel() / (rows * cols)
	o.g.alloc(lead*rows*p.DType.Size(), event.CategoryOptimizer)
	o.g.alloc(lead*cols*p.DType.Size(), event.CategoryOptimizer)
}

// stepAdafactor works on one parameter at a time: norms, means of rows and columns, and an update
// of the gradient's size. Its variables live until the next parameter overwrites them.
func (o *Optimizer) stepAdafactor(with []*Param) {
	g := o.g
	var row, col, squared, update *storage
	set := func(v **storage, bytes int64) {
		old := *v
		*v = g.alloc(bytes, event.CategoryTemporary)
		g.unrefStorage(old)
	}
	for _, p := range with {
		p = o.own(p)
		g.module = p.Name
		size := p.DType.Size()
		o.norm(p)
		var next *storage
		if n := len(p.Shape); n > 1 {
			rows, cols := p.Shape[n-2], p.Shape[n-1]
			lead := p.Numel() / (rows * cols)
			old := row
			row = g.alloc(lead*rows*size, event.CategoryTemporary)
			o.reduce(p, n-1)
			g.unrefStorage(old)
			old = col
			col = g.alloc(lead*cols*size, event.CategoryTemporary)
			o.reduce(p, n-2)
			g.unrefStorage(old)
			next = g.alloc(p.Numel()*size, event.CategoryTemporary)
			g.temp(lead*size, event.CategoryTemporary)
		} else {
			set(&squared, p.Numel()*size)
			next = g.alloc(p.Numel()*size, event.CategoryTemporary)
		}
		g.unrefStorage(update)
		update = next
		o.norm(p)
	}
	for _, st := range []*storage{update, squared, col, row} {
		g.unrefStorage(st)
	}
}

// norm is the norm of a whole tensor of a parameter's shape: a number and the kernel's scratch to
// find it.
func (o *Optimizer) norm(p *Param) {
	st := o.g.alloc(p.DType.Size(), event.CategoryTemporary)
	o.reduce(p)
	o.g.unrefStorage(st)
}

// reduce is the kernel's scratch for a reduction over one dimension, or over all.
func (o *Optimizer) reduce(p *Param, dims ...int) {
	reduced := make([]bool, len(p.Shape))
	for i := range reduced {
		reduced[i] = len(dims) == 0
	}
	for _, d := range dims {
		reduced[d] = true
	}
	o.g.reduceScratch(p.Tensor, reduced)
}

// makeMatrix is the state of optimizers that treat matrices apart: Muon's momentum, or moments of a
// projected gradient and the projection. Vectors have AdamW's two moments.
func (o *Optimizer) makeMatrix(k optimKind, p *Param) {
	p = o.own(p)
	n, size := p.Numel(), p.DType.Size()
	switch {
	case len(p.Shape) != 2:
		o.g.alloc(n*size, event.CategoryOptimizer)
		o.g.alloc(n*size, event.CategoryOptimizer)
	case k.muon:
		o.g.alloc(n*size, event.CategoryOptimizer)
	default:
		long, short := max(p.Shape[0], p.Shape[1]), min(p.Shape[0], p.Shape[1])
		rank := min(k.lowRank, short)
		o.g.alloc(rank*short*size, event.CategoryOptimizer)
		o.g.alloc(rank*long*size, event.CategoryOptimizer)
		o.g.alloc(rank*long*size, event.CategoryOptimizer)
	}
}

// muonSteps is how often Muon's iteration runs.
const muonSteps = 5

// stepMuon makes the update of one matrix after the other orthogonal, in bf16.
func (o *Optimizer) stepMuon(with []*Param) {
	g := o.g
	var update *storage
	temp := func(bytes int64) *storage { return g.alloc(bytes, event.CategoryTemporary) }
	for _, p := range with {
		p = o.own(p)
		g.module = p.Name
		if len(p.Shape) != 2 {
			g.temp(o.bytes(p), event.CategoryTemporary)
			continue
		}
		next := temp(p.Numel() * p.DType.Size())
		g.unrefStorage(update)
		update = next
		short := min(p.Shape[0], p.Shape[1])
		var half, gram, twice *storage
		if p.DType != BF16 {
			half = temp(2 * p.Numel())
		}
		o.norm(&Param{Tensor: &Tensor{Shape: p.Shape, DType: BF16, stride: p.stride}})
		for range muonSteps {
			for _, v := range []struct {
				at    **storage
				bytes int64
			}{{&gram, 2 * short * short}, {&twice, 2 * short * short}, {&half, 2 * p.Numel()}} {
				old := *v.at
				*v.at = temp(v.bytes)
				g.blas(false)
				g.unrefStorage(old)
			}
		}
		g.unrefStorage(gram)
		g.unrefStorage(twice)
		g.unrefStorage(update)
		update = half
	}
	g.unrefStorage(update)
}

// stepLowRank projects each gradient, and takes the update back to the parameter's size.
func (o *Optimizer) stepLowRank(with []*Param, rank int64) {
	g := o.g
	for _, p := range with {
		p = o.own(p)
		g.module = p.Name
		size := p.DType.Size()
		if len(p.Shape) != 2 {
			g.temp(o.bytes(p), event.CategoryTemporary)
			continue
		}
		long, short := max(p.Shape[0], p.Shape[1]), min(p.Shape[0], p.Shape[1])
		if !o.state { // the projection comes from a decomposition in fp32
			wide := g.alloc(4*p.Numel(), event.CategoryTemporary)
			left := g.alloc(4*p.Numel(), event.CategoryTemporary)
			g.temp(4*short*short, event.CategoryTemporary)
			g.unrefStorage(left)
			g.unrefStorage(wide)
		}
		low := g.alloc(min(rank, short)*long*size, event.CategoryTemporary)
		norm := g.alloc(min(rank, short)*long*size, event.CategoryTemporary)
		g.temp(p.Numel()*size, event.CategoryTemporary)
		g.unrefStorage(norm)
		g.unrefStorage(low)
	}
}

// ZeroGrad drops the gradients, in order, or keeps them to be overwritten.
func (o *Optimizer) ZeroGrad(keep bool) {
	if keep {
		return
	}
	for _, p := range o.params {
		if p.Grad != nil {
			p.Grad.drop()
			p.Grad = nil
		}
	}
}

// ClipNorm is clip_grad_norm_: a norm for each gradient, their norm, and a factor applied in place.
func (g *Graph) ClipNorm(o *Optimizer) {
	g.op = "clip"
	var held []*storage
	for range o.withGrad() {
		held = append(held, g.alloc(4, event.CategoryTemporary))
	}
	n := int64(len(held))
	held = append(held, g.alloc(4*n, event.CategoryTemporary), g.alloc(4, event.CategoryTemporary),
		g.alloc(4, event.CategoryTemporary))
	for _, st := range held {
		g.unrefStorage(st)
	}
	g.op = ""
}

// StateBytes returns the bytes of an optimizer's state for the trainable parameters.
func StateBytes(kind string, params []*Param, d DType) int64 {
	k := optimKinds[kind]
	var n int64
	for _, p := range params {
		switch {
		case p.Frozen:
		case k.bits8 && p.Numel() < 4096:
			n += int64(k.states) * 4 * p.Numel()
		case k.bits8:
			n += int64(k.states) * (p.Numel() + 4*divUp(p.Numel(), 256))
		case k.single:
			n += int64(k.states) * 4 * p.Numel()
		case k.factored && len(p.Shape) > 1:
			rows, cols := p.Shape[len(p.Shape)-2], p.Shape[len(p.Shape)-1]
			n += p.Numel() / (rows * cols) * (rows + cols) * d.Size()
		case k.factored:
			n += p.Numel() * d.Size()
		case k.muon && len(p.Shape) == 2:
			n += p.Numel() * d.Size()
		case k.lowRank > 0 && len(p.Shape) == 2:
			long, short := max(p.Shape[0], p.Shape[1]), min(p.Shape[0], p.Shape[1])
			n += min(k.lowRank, short) * (2*long + short) * d.Size()
		case k.muon:
			n += 2 * p.Numel() * d.Size()
		default:
			n += int64(k.states) * p.Numel() * d.Size()
		}
	}
	return n
}
