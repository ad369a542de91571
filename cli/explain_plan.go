package cli

import (
	"fmt"
	"slices"

	"memroom/allocsim"
	"memroom/event"
	"memroom/explain"
	"memroom/models"
	"memroom/plan"
	"memroom/remedy"
)

// How far a predicted saving may be off: a twentieth where plan's answer is validated on a card, a
// fifth elsewhere.
const (
	checkedDoubt   = 0.05
	uncheckedDoubt = 0.2
)

// plan predicts the job before and after each remedy where the user names the model.
func (c *explainCmd) plan(m *explain.Material) error {
	if c.Model == "" {
		return nil
	}
	model, err := c.model()
	if err != nil {
		return err
	}
	setup := plan.Setup{Model: model, Setup: c.setup(m)}
	before, err := predicted(setup)
	if err != nil {
		return fmt.Errorf("--model %s: %w", c.Model, err)
	}
	m.Setup = &setup.Setup
	m.Planned = func(r *remedy.Remedy) (low, high event.Bytes, ok bool) {
		after := setup
		if after.Setup, ok = r.Rewrite(setup.Setup); !ok {
			return 0, 0, false
		}
		p, err := predicted(after)
		if err != nil || slices.Equal(p.Phases, before.Phases) {
			return 0, 0, false // nothing at all changed: plan does not model this remedy
		}
		doubt := uncheckedDoubt
		if before.Validated && p.Validated {
			doubt = checkedDoubt
		}
		saved := float64(before.ReservedPeak - p.ReservedPeak)
		return event.Bytes(saved * (1 - doubt)), event.Bytes(saved * (1 + doubt)), true
	}
	return nil
}

func (c *explainCmd) model() (*models.Config, error) {
	return findModel(c.Model)
}

// setup joins the flags with what the logs show.
func (c *explainCmd) setup(m *explain.Material) remedy.Setup {
	s := remedy.Setup{Batch: c.Batch, Seq: c.Seq, Image: c.Image, Precision: c.Precision,
		Optimizer: c.Optimizer}
	for _, log := range m.Logs {
		h := log.Hints
		first(&s.Batch, h.Batch)
		first(&s.Seq, h.Seq)
		first(&s.Accumulate, h.Accumulate)
		s.Checkpointing = s.Checkpointing || h.Settings[string(remedy.Checkpointing)] != ""
		if s.Precision == "" && h.Settings[string(remedy.MixedPrecision)] != "" {
			s.Precision = "amp_bf16"
		}
		if s.AllocConf == "" {
			s.AllocConf = h.AllocConf
		}
	}
	if s.Precision == "" {
		s.Precision = "fp32"
	}
	return s
}

func first(value *int, other int) {
	if *value == 0 {
		*value = other
	}
}

func predicted(s plan.Setup) (*plan.Prediction, error) {
	conf, err := allocsim.ParseConf(s.AllocConf)
	if err != nil {
		return nil, err
	}
	return plan.Predict(s, plan.Target{Card: plan.DefaultCard(), Alloc: conf, Torch: "2.11"})
}
