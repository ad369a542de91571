package cli

import (
	"fmt"
	"strings"

	"memroom/allocsim"
	"memroom/models"
)

// usualSteps is the default of --steps.
const usualSteps = 3

// check refuses flags that would be taken and have no effect, with what to do instead.
func (c *planCmd) check() error {
	for _, n := range []struct {
		flag  string
		value int
	}{{"--batch", c.Batch}, {"--accumulate", c.Accumulate}, {"--ranks", c.Ranks}} {
		if n.value < 1 {
			return fmt.Errorf("%s %d: give 1 or more", n.flag, n.value)
		}
	}
	if err := checkTorch(c.Torch); err != nil {
		return err
	}
	if err := c.checkParallel(); err != nil {
		return err
	}
	if err := c.checkChoice(); err != nil {
		return err
	}
	for _, w := range []struct {
		wrong bool
		says  string
	}{
		{!c.Rehearse && c.Steps != usualSteps,
			"--steps counts the steps of a rehearsal: add --rehearse and the training command after --"},
		{!c.Rehearse && c.Map != "",
			"--map names arguments of a rehearsed command: add --rehearse and the training command after --"},
		{!c.Rehearse && c.Record != "",
			"--record keeps what a rehearsal recorded: add --rehearse and the training command after --"},
		{!c.Fit && len(c.Allow) > 0, "--allow admits remedies to the search: add --fit"},
		{c.Fit && c.HTML != "",
			"--html writes the page of one setup, and --fit searches many: leave one out; --fit --json keeps " +
				"the search"},
		{len(c.Devices) > 0 && c.HTML != "",
			"--html writes the page of one card: leave it out with --devices; --json keeps the map"},
		{len(c.Devices) > 0 && c.Fit && c.Ranks > 1,
			"--devices with --fit finds the number of ranks: leave out --ranks"},
		{len(c.Devices) > 0 && c.Fit && len(c.Allow) > 0,
			"--allow admits remedies on one card: leave out --devices, or leave out --allow"},
		{len(c.Devices) > 0 && (c.GPU != "" || c.Here),
			"--devices names the cards: leave out --gpu and --here"},
		{len(c.Devices) > 0 && c.AllocLimit > 0,
			"--devices names the cards: leave out --alloc-limit"},
		{c.Rehearse && (c.Fit || len(c.Devices) > 0),
			"--rehearse plans the script as it is: leave out " +
				"--fit and --devices; `memroom run --fit` changes a script"},
	} {
		if w.wrong {
			return fmt.Errorf("%s", w.says)
		}
	}
	return nil
}

// checkModel refuses sizes of what the model does not take.
func (c *planCmd) checkModel(model *models.Config) error {
	switch {
	case c.Seq > 0 && model.DefaultSeq() == 0:
		return fmt.Errorf("--seq %d: %s takes no sequence: leave it out", c.Seq, model.Type())
	case c.Image > 0 && !model.TakesImages():
		return fmt.Errorf("--image %d: %s takes no images: leave it out", c.Image, model.Type())
	}
	return nil
}

// checkTorch refuses releases whose allocator nobody has looked at.
func checkTorch(text string) error {
	v, err := allocsim.ParseVersion(text)
	if err != nil {
		return fmt.Errorf("--torch: %w", err)
	}
	if !v.Known() {
		return fmt.Errorf("--torch %s: only the allocators of torch %s to %s are known; give "+
			"the nearest version", strings.TrimSpace(text), allocsim.OldestKnown, allocsim.NewestKnown)
	}
	return nil
}
