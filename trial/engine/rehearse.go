package engine

import (
	"context"
	"time"

	"memroom/trial"
)

// Rehearser measures the memory of settings without training.
type Rehearser interface {
	Rehearse(ctx context.Context, id int, p trial.Params) (trial.Rehearsed, error)
}

// rehearsing are the rehearsals that run in parallel with the trials.
type rehearsing struct {
	ctx     context.Context
	cancel  context.CancelFunc
	results chan rehearsalResult
	busy    int
	any     bool // one has said something
}

type rehearsalResult struct {
	params trial.Params
	said   trial.Rehearsed
	err    error
}

// beginRehearsals lets trials wait for their rehearsal, until the time for all of them is over.
func (e *Engine) beginRehearsals(ctx context.Context) {
	e.rehearse.ctx, e.rehearse.cancel = context.WithCancel(ctx)
	if e.Rehearser == nil || e.Spec.Rehearse <= 0 {
		return
	}
	e.rehearse.ctx, e.rehearse.cancel = context.WithTimeout(ctx, e.Spec.Rehearse)
	e.rehearse.results = make(chan rehearsalResult, mostRehearsals)
	e.Study.ExpectRehearsals(true)
}

// mostRehearsals run at a time, a processor of two each: as many as tell the size of the others.
const mostRehearsals = 8

// rehearseNext begins the next rehearsals, if some are due.
func (e *Engine) rehearseNext() {
	most := min(max(1, int(e.capacity.CPUs/2)), mostRehearsals)
	for e.rehearse.results != nil && e.rehearse.busy < most {
		t := e.Study.Unrehearsed()
		if t == nil {
			return
		}
		e.rehearse.busy++
		ctx, id, params, results := e.rehearse.ctx, t.ID, t.Params, e.rehearse.results
		go func() {
			said, err := e.Rehearser.Rehearse(ctx, id, params)
			results <- rehearsalResult{params, said, err}
		}()
	}
}

// rehearsed takes the result of a rehearsal. If all of the first ones fail, the program is not
// rehearsed again. A single setting that breaks the program will show that as a trial.
func (e *Engine) rehearsed(r rehearsalResult) {
	e.rehearse.busy--
	switch {
	case r.err == nil:
		e.rehearse.any = true
		e.Study.Rehearsed(r.params, &r.said, e.capacity)
		return
	case e.rehearse.ctx.Err() != nil:
		e.note("the time for rehearsals is over (%s): the rest is learnt from the trials",
			e.Spec.Rehearse.Round(time.Second))
	case e.rehearse.any || e.rehearse.busy > 0:
		e.note("not rehearsed: %v (%s)", r.err, r.params)
		e.Study.Rehearsed(r.params, nil, e.capacity)
		return
	default:
		e.note("%v; memory is learnt from the trials", r.err)
	}
	e.rehearse.results = nil
	e.Study.ExpectRehearsals(false)
}
