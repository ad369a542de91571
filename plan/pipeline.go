package plan

import (
	"fmt"

	"memroom/event"
	"memroom/models"
	"memroom/tape"
)

// pipeline is a stage's place in a pipeline that runs one forward and one backward pass in turn
// (1F1B).
type pipeline struct {
	stage, stages, batches int
	width                  int64      // of the activations that are handed on
	tokens                 int64      // of them, on this rank
	dtype                  tape.DType // in which they are handed on
}

// ahead is how many micro-batches a stage is ahead of its first backward pass.
func (p *pipeline) ahead() int { return min(p.stages-p.stage-1, p.batches) }

// settledRounds is how many turns of one forward and one backward pass are played: each asks for
// the same.
const settledRounds = 3

// buffers requests what PyTorch's pipeline receives into: one for each micro-batch, from either
// side.
func (p *pipeline) buffers(g *tape.Graph, batch int64) {
	bytes := batch * p.tokens * p.width * p.dtype.Size()
	for range p.batches {
		if p.stage > 0 {
			g.Forever("received activations", event.CategoryTemporary, bytes)
		}
		if p.stage < p.stages-1 {
			g.Forever("received gradients", event.CategoryTemporary, bytes)
		}
	}
}

// flight is a micro-batch between its forward and its backward pass.
type flight struct {
	inputs []*tape.Tensor
	sent   *tape.Param // the gradient of its input, for the stage before
	out    *tape.Tensor
}

// step is one step of the schedule.
func (p *pipeline) step(g *tape.Graph, m *models.Model, batch inputs, scaler *scaler, step int) {
	f := g.Enter()
	turns := min(p.batches-p.ahead(), settledRounds)
	flights := make([]*flight, p.ahead()+turns)
	next, done := 0, 0
	forward := func() {
		flights[next] = p.forward(g, f, m, batch, step)
		next++
	}
	backward := func() {
		p.backward(g, f, flights[done], scaler, step)
		done++
	}
	for range p.ahead() {
		forward()
	}
	for range turns {
		forward()
		backward()
	}
	for done < next {
		backward()
	}
	f.Leave()
}

func (p *pipeline) forward(g *tape.Graph, f *tape.Frame, m *models.Model, batch inputs,
	step int) *flight {
	g.Mark(step, "forward")
	one := &flight{inputs: batch(g)}
	var received *tape.Tensor
	if p.stage > 0 {
		received, one.sent = g.Received(p.dtype, m.Run.Batch, p.tokens, p.width)
		one.inputs = append(one.inputs, received)
	}
	for i := range one.inputs {
		in := one.inputs[i]
		f.Set(&one.inputs[i], in)
	}
	f.Set(&one.out, g.Whole(func() *tape.Tensor { return m.Loss(g, one.inputs) }))
	g.EndAutocast()
	return one
}

func (p *pipeline) backward(g *tape.Graph, f *tape.Frame, one *flight, scaler *scaler, step int) {
	g.Mark(step, "backward")
	if p.stage == p.stages-1 {
		scaler.backward(one.out)
	} else {
		g.BackwardSent(one.out)
	}
	f.Set(&one.out, nil)
	for i := range one.inputs {
		f.Set(&one.inputs[i], nil)
	}
	if one.sent != nil && one.sent.Grad != nil {
		one.sent.SendBack()
	}
}

// pipeline is the stage that is planned, nil where there is no pipeline.
func (s *Setup) pipeline(m *models.Model) *pipeline {
	if s.Pipeline < 2 {
		return nil
	}
	p := &pipeline{stage: s.stage, stages: s.Pipeline, batches: s.Microbatches, width: m.Width,
		tokens: s.ownTokens(s.Seq), dtype: s.computeType()}
	if half, ok := halfType(s.Precision); ok { // the residual stream under autocast is in fp32
		if s.fullyShards() || s.zero() != nil {
			p.dtype = half
		} else {
			p.dtype = tape.F32
		}
	}
	if s.Tensor > 1 && s.Sequence {
		p.tokens = max(1, p.tokens/int64(s.Tensor))
	}
	return p
}

// halfType is the type of autocast, where there is one.
func halfType(precision string) (tape.DType, bool) {
	switch precision {
	case "amp_bf16":
		return tape.BF16, true
	case "amp_fp16":
		return tape.F16, true
	}
	return tape.F32, false
}

// stageKinds are the stages that differ: the first has the embedding, the last the head, and of
// those between the second holds the most micro-batches.
func (s *Setup) stageKinds() []int {
	switch {
	case s.Pipeline < 2:
		return []int{0}
	case s.Pipeline == 2:
		return []int{0, 1}
	}
	return []int{0, 1, s.Pipeline - 1}
}

// stagePeak is what the ranks of one kind of stage need.
func (s *Setup) stagePeak(p *Prediction) RankPeak {
	each := s.Ranks / s.Pipeline // pipelines are the outermost division
	first, last := s.stage, s.stage
	name := "first stage, with the embedding"
	switch {
	case s.stage == s.Pipeline-1:
		name = "last stage, with the head and the loss"
	case s.stage > 0:
		last, name = s.Pipeline-2, "stages between"
		if last > first {
			name += fmt.Sprintf(" (stage %d of %d; later ones hold less)", s.stage+1, s.Pipeline)
		}
	}
	return RankPeak{First: first * each, Last: (last+1)*each - 1, Allocated: p.AllocatedPeak,
		Reserved: p.ReservedPeak, Device: p.DevicePeak, Kind: name}
}
