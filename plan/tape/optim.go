package tape

import (
	"fmt"
	"slices"
	"strings"

	"memroom/event"
)

// Optimizer makes and uses the state of an optimizer as torch.optim does on CUDA (foreach by default).
type Optimizer struct {
	g      *Graph
	kind   string
	params []*Param
	state  bool
}

// optimKind says what one optimizer keeps and takes. The counts are tensors of the parameter's size.
type optimKind struct {
	states   int  // per parameter, made in the first step
	temps    int  // lists of temporaries alive together in a foreach step
	step     bool // a step counter on the device, 4 bytes per parameter
	loop     bool // one parameter at a time: temps live one by one
	clone    bool // state is a clone of the gradient, made while stepping (SGD's momentum)
	factored bool
	bits8    bool
	note     string
}

var optimKinds = map[string]optimKind{
	"adamw":        {states: 2, temps: 1},
	"adam":         {states: 2, temps: 1},
	"adamw_fused":  {states: 2, step: true},
	"adam_fused":   {states: 2, step: true},
	"adamw_loop":   {states: 2, temps: 1, loop: true},
	"adam_loop":    {states: 2, temps: 1, loop: true},
	"adam_amsgrad": {states: 3, temps: 1},
	"nadam":        {states: 2, temps: 1},
	"radam":        {states: 2, temps: 2},
	"adamax":       {states: 2, temps: 1},
	"adagrad":      {states: 1, temps: 1},
	"adadelta":     {states: 2, temps: 2},
	"rmsprop":      {states: 1, temps: 1},
	"sgd":          {},
	"sgdm":         {states: 1, clone: true},
	"sgdm_fused":   {states: 1, clone: true},
	"lion":         {states: 1, temps: 1, loop: true, note: "lion is not part of torch: one moment and one temporary are assumed"},
	"adafactor":    {factored: true, loop: true},
	"adam8bit":     {states: 2, bits8: true, note: "adam8bit (bitsandbytes) was not measured"},
	"adamw8bit":    {states: 2, bits8: true, note: "adamw8bit (bitsandbytes) was not measured"},
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

// KnownOptimizer gives an error that lists the known names.
func KnownOptimizer(kind string) error {
	if _, ok := optimKinds[kind]; !ok {
		return fmt.Errorf("optimizer %q is not known: use one of %s", kind, strings.Join(OptimizerNames(), ", "))
	}
	return nil
}

// NewOptimizer prepares an optimizer over the trainable parameters, in order.
func (g *Graph) NewOptimizer(kind string, params []*Param) *Optimizer {
	o := &Optimizer{g: g, kind: kind}
	for _, p := range params {
		if !p.Frozen {
			o.params = append(o.params, p)
		}
	}
	return o
}

// Step is optimizer.step(): state on the first call, then temporaries.
func (o *Optimizer) Step() {
	g, k := o.g, optimKinds[o.kind]
	g.module, g.op = "", o.kind
	if g.HostOptim { // the step runs on the host, on its own copy
		return
	}
	if !o.state {
		o.makeState(k)
	}
	switch {
	case k.factored:
		o.stepAdafactor()
	case k.loop:
		for _, p := range o.withGrad() {
			g.module = p.Name
			for range k.temps {
				g.temp(o.bytes(p), event.CategoryTemporary)
			}
		}
	default:
		var held []*storage
		for range k.temps {
			for _, p := range o.withGrad() {
				g.module = p.Name
				held = append(held, g.alloc(o.bytes(p), event.CategoryTemporary))
			}
		}
		for _, st := range held {
			g.unrefStorage(st)
		}
	}
	o.state = true
	g.module, g.op = "", ""
}

// bytes is a parameter's size as far as this rank's optimizer goes.
func (o *Optimizer) bytes(p *Param) int64 {
	return o.g.Shard.part(p.Numel()*p.DType.Size(), o.g.Shard.Optim)
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

func (o *Optimizer) makeState(k optimKind) {
	g := o.g
	for _, p := range o.withGrad() {
		g.module = p.Name
		bytes := o.bytes(p)
		if k.step {
			g.alloc(4, event.CategoryOptimizer)
		}
		if k.bits8 {
			o.make8bit(p)
			continue
		}
		if k.factored {
			o.makeFactors(p)
			continue
		}
		for range k.states {
			g.alloc(bytes, event.CategoryOptimizer)
		}
	}
}

// make8bit is bitsandbytes' state: a byte per element and a scale per block of 256; small tensors stay in fp32.
func (o *Optimizer) make8bit(p *Param) {
	n := p.Numel()
	for range 2 {
		if n < 4096 {
			o.g.alloc(4*n, event.CategoryOptimizer)
			continue
		}
		o.g.alloc(n, event.CategoryOptimizer)
		o.g.alloc(4*divUp(n, 256), event.CategoryOptimizer)
	}
}

// makeFactors is Adafactor's state: row and column variances for matrices, a full one for vectors.
func (o *Optimizer) makeFactors(p *Param) {
	if len(p.Shape) < 2 {
		o.g.alloc(p.Numel()*p.DType.Size(), event.CategoryOptimizer)
		return
	}
	rows, cols := p.Shape[len(p.Shape)-2], p.Shape[len(p.Shape)-1]
	lead := p.Numel() / (rows * cols)
	o.g.alloc(lead*rows*p.DType.Size(), event.CategoryOptimizer)
	o.g.alloc(lead*cols*p.DType.Size(), event.CategoryOptimizer)
}

// stepAdafactor takes, for one parameter at a time, the update of the gradient's size and small norms.
func (o *Optimizer) stepAdafactor() {
	for _, p := range o.withGrad() {
		o.g.module = p.Name
		bytes := p.Numel() * p.DType.Size()
		update := o.g.alloc(bytes, event.CategoryTemporary)
		o.g.temp(bytes, event.CategoryTemporary)
		o.g.unrefStorage(update)
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
	held = append(held, g.alloc(4*n, event.CategoryTemporary), g.alloc(4, event.CategoryTemporary), g.alloc(4, event.CategoryTemporary))
	for _, st := range held {
		g.unrefStorage(st)
	}
	g.op = ""
}

// StateBytes is what an optimizer keeps for the trainable parameters.
func StateBytes(kind string, params []*Param, d DType) int64 {
	k := optimKinds[kind]
	var n int64
	for _, p := range params {
		switch {
		case p.Frozen:
		case k.bits8:
			n += 2*p.Numel() + 8*divUp(p.Numel(), 256)
		default:
			n += int64(k.states) * p.Numel() * d.Size()
		}
	}
	return n
}
