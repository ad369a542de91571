package cli

import (
	"context"
	"io"
	"time"

	"memroom/event"
	"memroom/plan"
	"memroom/trial"
)

// rehearsalMost is how long one rehearsal of a study may take.
const rehearsalMost = 2 * time.Minute

// Rehearse runs the first steps of a trial on fake tensors and returns the memory they ask for.
func (t *tuning) Rehearse(ctx context.Context, id int, p trial.Params) (r trial.Rehearsed,
	err error) {
	ctx, cancel := context.WithTimeout(ctx, rehearsalMost)
	defer cancel()
	launch := trial.Launch{Trial: id, Params: p}
	command, err := t.commandOf(launch)
	if err != nil {
		return r, err
	}
	c := planCmd{Ranks: 1}
	c.Steps = usualSteps
	// nobody is to find a run of a rehearsal among those of the study
	c.environ = append(t.environ(launch), "WANDB_MODE=disabled")
	target, err := c.target()
	if err != nil {
		return r, err
	}
	if cards := t.engine.Capacity().Cards; len(cards) > 0 {
		if card, err := plan.FindCard(cards[0].Name); err == nil {
			target.Card = card
		}
	}
	quiet := *t.session
	quiet.ctx, quiet.Err = ctx, io.Discard
	record, err := c.rehearsal(&quiet, target, command, "")
	if err != nil {
		return r, err
	}
	said, err := record.Predict(target)
	if err != nil {
		return r, err
	}
	kept := event.Bytes(0)
	for _, name := range []string{"weights", "gradients", "optimizer"} {
		kept += said.Categories[name]
	}
	return trial.Rehearsed{Tensors: said.AllocatedPeak, Resident: c.resident, Low: said.Low,
		High: said.High, Kept: kept}, nil
}
