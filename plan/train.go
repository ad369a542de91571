package plan

import (
	"strings"

	"memroom/event"
	"memroom/models"
	"memroom/tape"
)

// loop is the part of a setup that the training loop depends on.
type loop struct {
	precision    string
	packed       bool // weights are quantised; what is not packed is in half precision
	int8         bool // in 8 bits
	optimizer    string
	accumulate   int64
	clip         bool
	keepGrads    bool
	channelsLast bool
	steps        int
	batches      []inputs  // what the steps see in turn; nil is the model's own batch
	evaluation   inputs    // a batch of the evaluation after each step; nil is none
	inBackward   bool      // the optimizer steps in the backward pass
	autocast     bool      // over weights in half precision
	pipeline     *pipeline // the stage that is run; nil is the whole model
	aside        aside     // what a trainer does next to the step
	keepLogits   int       // evaluation batches whose logits stay until the evaluation is over
}

// inputs makes a batch on the device.
type inputs func(g *tape.Graph) []*tape.Tensor

// weightType is the type the weights are kept in.
func weightType(precision string) tape.DType {
	switch precision {
	case "bf16":
		return tape.BF16
	case "fp16":
		return tape.F16
	}
	return tape.F32
}

// weightType is the type of the weights that have none of their own.
func (l *loop) weightType() tape.DType {
	switch {
	case l.packed && strings.HasSuffix(l.precision, "fp16"):
		return tape.F16
	case l.packed:
		return tape.BF16
	}
	return weightType(l.precision)
}

// loadType is the type in which the model is loaded: DeepSpeed casts it to the half-precision one.
func (l *loop) loadType(o tape.Options) tape.DType {
	if half, ok := strings.CutPrefix(l.precision, "amp_"); ok && o.Zero != nil {
		return weightType(half)
	}
	return l.weightType()
}

// train records the load and some optimizer steps of a plain training loop.
func train(m *models.Model, o tape.Options, l loop) *tape.Graph {
	o.Training = true
	switch {
	case l.autocast && !strings.HasPrefix(l.precision, "amp_") && o.Zero == nil:
		o.Autocast, o.Half = true, weightType(l.precision)
	case o.FSDP != nil || o.Zero != nil: // their own policy casts weights, autocast is not needed
	case l.precision == "amp_bf16":
		o.Autocast, o.Half = true, tape.BF16
	case l.precision == "amp_fp16":
		o.Autocast, o.Half = true, tape.F16
	}
	g := tape.New(o)
	g.Mark(0, "load")
	g.Load(m.Root, l.loadType(o))
	if l.channelsLast {
		g.ToChannelsLast(m.Root)
	}
	trained := m.Root.Parameters()
	if l.aside.value != nil {
		l.aside.load(g) // before the second model: copies are of the first
		g.Load(l.aside.value.Root, l.loadType(o))
		trained = append(trained, l.aside.value.Root.Parameters()...)
	} else {
		l.aside.load(g)
	}
	opt := g.NewOptimizer(l.optimizer, trained)
	if l.inBackward {
		opt.InBackward()
	}
	if l.pipeline != nil {
		l.pipeline.buffers(g, m.Run.Batch)
	}
	loss := lastLoss{}
	if l.int8 {
		loss.frame = g.Enter()
	}
	scaler := newScaler(g, l.precision == "amp_fp16")
	for step := 1; step <= l.steps; step++ {
		batch := inputs(m.Inputs)
		if len(l.batches) > 0 {
			batch = l.batches[(step-1)%len(l.batches)]
		}
		l.aside.write(g, m, step)
		if l.pipeline != nil {
			l.pipeline.step(g, m, batch, scaler, step)
		}
		for range l.microBatches() {
			microBatch(g, m, batch, scaler, step, &loss, &l.aside)
		}
		g.Mark(step, "optimizer")
		if l.clip {
			scaler.unscale(opt)
			g.ClipNorm(opt)
		}
		scaler.step(opt)
		opt.ZeroGrad(l.keepGrads)
		if l.evaluation != nil {
			evaluate(g, m, l, step)
		}
	}
	return g
}

// microBatches is how many micro-batches a step has outside of a pipeline.
func (l *loop) microBatches() int64 {
	if l.pipeline != nil {
		return 0
	}
	return max(l.accumulate, 1)
}

// evaluate is model.eval() and torch.no_grad() over some batches, whose logits are kept for
// metrics.
func evaluate(g *tape.Graph, m *models.Model, l loop, step int) {
	g.Mark(step, "evaluation")
	g.Training = false
	kept := g.Enter()
	g.Outputs = kept
	g.Rerun(max(l.keepLogits, 1), kept, func() {
		f := g.Enter()
		in := l.evaluation(g)
		for _, t := range in {
			f.Keep(t)
		}
		g.NoGrad(func() { f.Keep(g.Whole(func() *tape.Tensor { return m.Loss(g, in) })) })
		f.Leave()
		g.EndAutocast()
	})
	g.Outputs = nil
	kept.Leave()
	g.Training = true
}

// lastLoss is a loop's variable for the loss: it holds the graph of a batch until the next loss is
// there. That costs memory only where nodes hold tensors after their backward.
type lastLoss struct {
	frame *tape.Frame // nil where it makes no difference
	loss  *tape.Tensor
}

func (l *lastLoss) set(loss *tape.Tensor) {
	if l.frame != nil {
		l.frame.Set(&l.loss, loss)
	}
}

// microBatch is forward and backward of one batch.
func microBatch(g *tape.Graph, m *models.Model, batch inputs, scaler *scaler, step int,
	last *lastLoss, a *aside) {
	a.before(g, m, batch, step)
	f := g.Enter()
	g.Mark(step, "forward")
	in := batch(g)
	for _, t := range in {
		f.Keep(t)
	}
	var loss *tape.Tensor
	f.Set(&loss, g.Scale(g.Whole(func() *tape.Tensor { return m.Loss(g, in) }))) // loss / steps
	last.set(loss)
	var value *tape.Tensor
	if a.value != nil {
		read := a.value.Inputs(g)
		for _, t := range read {
			f.Keep(t)
		}
		f.Set(&value, g.Scale(g.Whole(func() *tape.Tensor { return a.value.Loss(g, read) })))
		f.Set(&loss, g.Add(loss, value))
	}
	g.EndAutocast()
	a.after(g, m, batch, step)
	g.Mark(step, "backward")
	scaler.backward(loss)
	f.Leave()
}

// scaler is torch.amp.GradScaler; without fp16 it does nothing.
type scaler struct {
	g       *tape.Graph
	on      bool
	started bool
}

func newScaler(g *tape.Graph, on bool) *scaler { return &scaler{g: g, on: on} }

func (s *scaler) backward(loss *tape.Tensor) {
	if !s.on {
		s.g.Backward(loss)
		return
	}
	if !s.started {
		s.g.Forever("scaler", event.CategoryOptimizer, 4, 4)
		s.started = true
	}
	f := s.g.Enter()
	var scaled *tape.Tensor
	f.Set(&scaled, s.g.Mul(loss, s.g.Borrow(tape.F32)))
	s.g.Backward(scaled)
	f.Leave()
}

func (s *scaler) unscale(*tape.Optimizer) {
	if s.on {
		s.g.Scratch("scaler", 8, 8, 4, 4)
	}
}

func (s *scaler) step(opt *tape.Optimizer) {
	s.unscale(opt)
	opt.Step()
}
