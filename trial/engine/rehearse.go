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

// rehearsing is the one rehearsal that runs at a time, in parallel with the trials.
type rehearsing struct {
	ctx     context.Context
	cancel  context.CancelFunc
	results chan rehearsalResult
	busy    bool
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
	e.rehearse.results = make(chan rehearsalResult, 1)
	e.Study.ExpectRehearsals(true)
}

// rehearseNext begins the next rehearsal, if one is due.
func (e *Engine) rehearseNext() {
	if e.rehearse.results == nil || e.rehearse.busy {
		return
	}
	t := e.Study.Unrehearsed()
	if t == nil {
		return
	}
	e.rehearse.busy = true
	ctx, id, params := e.rehearse.ctx, t.ID, t.Params
	go func() {
		said, err := e.Rehearser.Rehearse(ctx, id, params)
		e.rehearse.results <- rehearsalResult{params, said, err}
	}()
}

// rehearsed takes the result of a rehearsal. If the first one fails, the program is not rehearsed
// again. A single setting that breaks the program will show that as a trial.
func (e *Engine) rehearsed(r rehearsalResult) {
	e.rehearse.busy = false
	switch {
	case r.err == nil:
		e.rehearse.any = true
		e.Study.Rehearsed(r.params, &r.said, e.capacity)
		return
	case e.rehearse.ctx.Err() != nil:
		e.note("the time for rehearsals is over (%s): the rest is learnt from the trials",
			e.Spec.Rehearse.Round(time.Second))
	case e.rehearse.any:
		e.note("not rehearsed: %v (%s)", r.err, r.params)
		e.Study.Rehearsed(r.params, nil, e.capacity)
		return
	default:
		e.note("%v; memory is learnt from the trials", r.err)
	}
	e.rehearse.results = nil
	e.Study.ExpectRehearsals(false)
}
