package plan

import (
	"fmt"

	"memroom/allocsim"
	"memroom/event"
)

// allocatorBFC is the record's word for TensorFlow's allocator.
const allocatorBFC = "bfc"

// bfcMargins are wide because nothing about them was measured: the step is traced, not run.
var bfcMargins = margins{0.3, 0.3}

// predictBFC answers for a Keras script: the traced step through TensorFlow's allocator, which
// grows as it needs.
func (r *Rehearsal) predictBFC(t *Target) (*Prediction, error) {
	res, err := r.growBFC(0)
	if err != nil {
		return nil, err
	}
	over := t.overhead(r.UsesDNN)
	p := &Prediction{AllocatedPeak: res.AllocatedPeak, ReservedPeak: res.ReservedPeak,
		DevicePeak: res.ReservedPeak + over, Method: "rehearsal", Allocator: "TensorFlow",
		Warnings: append([]string{}, r.Warnings...), AllocLimit: t.AllocLimit}
	if t.Given {
		card := t.Card
		p.Card = &card
	}
	main := simulation{tl: &r.Timeline, res: res, usesDNN: r.UsesDNN}
	main.describe(p)
	p.Categories["context"] = over
	p.Categories["cache"] = p.ReservedPeak - p.AllocatedPeak
	p.Low = scaleBytes(res.AllocatedPeak, 1-bfcMargins.below) + over
	p.High = scaleBytes(res.ReservedPeak, 1+bfcMargins.above) + over
	p.assume(r.words()+", TensorFlow's allocator", t)
	if !t.bounded() {
		return p, nil
	}
	return p, r.decideBFC(p, t)
}

// decideBFC runs the step under the wall, lowered by the margin. The size of the pool alone means
// little, because regions double.
func (r *Rehearsal) decideBFC(p *Prediction, t *Target) error {
	wall := t.wall(r.UsesDNN)
	fits := p.High-t.overhead(r.UsesDNN) <= wall
	if !fits {
		res, err := r.growBFC(scaleBytes(wall, 1/(1+bfcMargins.above)))
		if err != nil {
			return err
		}
		fits = res.OOM == nil
	}
	p.conclude(fits, wall+t.overhead(r.UsesDNN))
	if fits && p.Card != nil {
		p.High = min(p.High, p.Card.Total-t.Neighbours)
	}
	return nil
}

func (r *Rehearsal) growBFC(limit event.Bytes) (allocsim.Result, error) {
	res, err := allocsim.RunBFC(&r.Timeline, allocsim.BFCOptions{Limit: limit, Growth: true,
		CollectGarbage: true})
	if err != nil {
		return res, fmt.Errorf("allocator model: %w", err)
	}
	return res, nil
}
