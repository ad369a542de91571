package cli

import (
	"fmt"
	"slices"

	"memroom/event"
	"memroom/meter/nvml"
	"memroom/models"
	"memroom/plan"
	"memroom/remedy"
	"memroom/report"
)

// cheapest answers `plan --fit`: the cheapest set of remedies with which the setup fits.
func (c *planCmd) cheapest(s *session, model *models.Config, target plan.Target) error {
	if !target.Given && target.AllocLimit == 0 {
		return usageError(fmt.Errorf("--fit needs something to fit into: add --gpu NAME|SIZE, --here or " +
			"--alloc-limit SIZE"))
	}
	ladder, err := plan.FindCheapest(c.setup(model), target,
		func(r *remedy.Remedy) bool { return slices.Contains(c.Allow, r.Consent) })
	if err != nil {
		return err
	}
	if c.JSON {
		err = s.printJSON(ladder)
	} else {
		err = report.Ladder(s.Out, ladder, s.color)
	}
	if err == nil && !ladder.Fits {
		return exitQuietly(exitDoesNotFit)
	}
	return err
}

// deviceMap answers `plan --devices`.
func (c *planCmd) deviceMap(s *session, model *models.Config, target plan.Target) error {
	cards, err := plan.ParseCards(c.Devices)
	if err != nil {
		return usageError(err)
	}
	m, err := plan.PlaceOn(c.setup(model), target, cards)
	if err != nil {
		return err
	}
	if c.JSON {
		err = s.printJSON(m)
	} else {
		err = report.DeviceMap(s.Out, m)
	}
	if err == nil && !m.Fits {
		return exitQuietly(exitDoesNotFit)
	}
	return err
}

// sharding answers `plan --devices --fit`.
func (c *planCmd) sharding(s *session, model *models.Config, target plan.Target) error {
	cards, err := plan.ParseCards(c.Devices)
	if err != nil {
		return usageError(err)
	}
	found, err := plan.FindSharding(c.setup(model), target, cards)
	if err != nil {
		return err
	}
	if c.JSON {
		err = s.printJSON(found)
	} else {
		err = report.Sharding(s.Out, found, c.Batch)
	}
	if err == nil && !found.Fits {
		return exitQuietly(exitDoesNotFit)
	}
	return err
}

// noteNoCard warns that a limit on device memory has nothing to limit.
func noteNoCard(s *session, size event.Bytes) {
	if size == 0 {
		return
	}
	if lib, err := nvml.Open(); err == nil {
		defer lib.Close()
		if devices, _ := lib.Devices(); len(devices) > 0 {
			return
		}
	}
	s.note("memroom: no NVIDIA card answers on this machine: --gpu-mem %s limits nothing here", size)
}

// hereCard is this machine's first card and what others hold on it now.
func hereCard() (plan.Card, event.Bytes, error) {
	lib, err := nvml.Open()
	if err != nil {
		return plan.Card{}, 0, fmt.Errorf("--here: %w; name a card with --gpu instead", err)
	}
	defer lib.Close()
	devices, err := lib.Devices()
	if len(devices) == 0 {
		return plan.Card{}, 0,
			fmt.Errorf("--here: no card answers (%v); name one with --gpu instead", err)
	}
	seen := devices[0]
	card, err := plan.FindCard(seen.Name)
	if err != nil { // a card we have no name for: its size, with the constants of the default one
		if card, err = plan.FindCard(seen.Total.String()); err != nil {
			return plan.Card{}, 0, err
		}
		card.Name, card.Measured = seen.Name, false
	}
	// A card's total is what a process can use on it when it is idle; the driver's own share is
	// used from the start.
	own := max(0, seen.Total-card.Total)
	return card, max(0, seen.Used-own), nil
}
