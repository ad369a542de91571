package plan

import (
	"strings"
	"time"

	"memroom/event"
	"memroom/models"
	"memroom/tape"
)

// Calibration is what was measured on one card, with one version of PyTorch.
type Calibration struct {
	Card
	UUID   string      `json:"uuid"`
	Driver string      `json:"driver,omitempty"`
	Torch  string      `json:"torch"`
	CUDNN  int         `json:"cudnn,omitempty"`
	When   time.Time   `json:"when"`
	Conv   []ConvSizes `json:"convolutions,omitempty"`
	RNN    []RNNSizes  `json:"recurrent,omitempty"`

	table *tape.Workspaces // laid over the shipped ones
}

// ConvSizes are the workspaces of a convolution on the card.
type ConvSizes struct {
	tape.Convolution
	tape.ConvBytes
}

// RNNSizes are the workspace and the reserve of a recurrent network on the card.
type RNNSizes struct {
	tape.Recurrent
	tape.RNNBytes
}

// Shapes are the operations of setups whose workspaces cuDNN chooses on the card.
type Shapes = tape.Shapes

// Shapes lists the convolutions and recurrent networks that a setup runs.
func (s Setup) Shapes() (Shapes, error) {
	if err := s.Check(); err != nil {
		return Shapes{}, err
	}
	s = s.WithDefaults()
	m, err := s.model()
	if err != nil {
		return Shapes{}, err
	}
	g, err := recordTape(m, &s, &Target{Card: DefaultCard()}, variant{scale: 1})
	if err != nil {
		return Shapes{}, err
	}
	return g.Shapes, nil
}

// workspaces are the measured sizes, ready to be looked up.
func (c *Calibration) workspaces(into *tape.Workspaces) {
	for _, s := range c.Conv {
		into.AddConv(s.Convolution, s.ConvBytes)
	}
	for _, s := range c.RNN {
		into.AddRNN(s.Recurrent, s.RNNBytes)
	}
}

// Merge adds the sizes of an earlier calibration of the same card and versions that this one has
// not.
func (c *Calibration) Merge(old *Calibration) {
	if old.UUID != c.UUID || old.Torch != c.Torch || old.CUDNN != c.CUDNN {
		return
	}
	conv, rnn := map[tape.Convolution]bool{}, map[tape.Recurrent]bool{}
	for _, s := range c.Conv {
		conv[s.Convolution] = true
	}
	for _, s := range c.RNN {
		rnn[s.Recurrent] = true
	}
	for _, s := range old.Conv {
		if !conv[s.Convolution] {
			c.Conv = append(c.Conv, s)
		}
	}
	for _, s := range old.RNN {
		if !rnn[s.Recurrent] {
			c.RNN = append(c.RNN, s)
		}
	}
}

// Plausible reports whether what a file holds can have been measured.
func (c *Calibration) Plausible() bool {
	sizes := []int64{int64(c.Context), int64(c.DNN), int64(c.BLAS), int64(c.BLASLt)}
	for _, s := range c.Conv {
		sizes = append(sizes, s.Forward, s.InputGrad, s.WeightGrad)
	}
	for _, s := range c.RNN {
		sizes = append(sizes, s.Workspace, s.Reserve)
	}
	for _, n := range sizes {
		if n < 0 || n > int64(event.TiB) {
			return false
		}
	}
	return c.Total >= event.GiB && c.SMs > 0 && c.SMs < 1<<16 && c.Capability > 0 &&
		c.Capability < 1000
}

// Calibrate returns the target what was measured on its card.
func (t *Target) Calibrate(c *Calibration) {
	name := t.Card.Name
	t.Card = c.Card
	t.Card.Name = name
	t.calibrated = c
}

// workspaces are the sizes known for the target's card and version: those shipped, overlaid by
// those of a calibration. They belong to a version of PyTorch: those of another one are left out.
func (t *Target) workspaces() *tape.Workspaces {
	var shipped *tape.Workspaces
	if t.shipped() {
		shipped = shippedTable()
	}
	if t.calibrated == nil || !sameRelease(t.calibrated.Torch, t.Torch) {
		return shipped
	}
	return t.calibrated.over(shipped)
}

// shipped reports whether the shipped sizes are those of the target's card and version.
func (t *Target) shipped() bool {
	return t.Card.Capability == 90 && t.Card.SMs == 132 && sameRelease(t.Torch, tableTorch)
}

// over lays the calibration's sizes over others, once: a search asks for them hundreds of times.
func (c *Calibration) over(others *tape.Workspaces) *tape.Workspaces {
	if c.table == nil {
		c.table = others.Clone()
		c.workspaces(c.table)
	}
	return c.table
}

// sameRelease compares versions by their first two numbers: 2.11.0+cu130 is 2.11.
func sameRelease(a, b string) bool {
	release := func(v string) string {
		parts := strings.SplitN(v, ".", 3)
		return strings.Join(parts[:min(2, len(parts))], ".")
	}
	return release(a) == release(b)
}

// standardNets are what a calibration measures when no model is given: the convolutions people
// train most, of every kind.
var standardNets = []string{"resnet50", "resnet18", "vgg16", "mobilenet_v2", "convnext_tiny",
	"efficientnet_b0", "densenet121"}

// StandardShapes are the convolutions of well-known networks at one batch size and one image size,
// in two precisions, and a few recurrent networks.
func StandardShapes() (Shapes, error) {
	var all Shapes
	for _, precision := range []string{"amp_bf16", "fp32"} {
		rnn := Setup{Model: models.ConfigOf(map[string]any{"model_type": "lstm", "vocab": 1000.0,
			"embed": 512.0, "hidden": 512.0, "layers": 2.0})}
		rnn.Batch, rnn.Seq, rnn.Precision = 32, 129, precision
		setups := []Setup{rnn}
		for _, name := range standardNets {
			s := Setup{Model: models.ConfigOf(map[string]any{"model_type": "torchvision",
				"name": name})}
			s.Batch, s.Image, s.Precision = 32, 224, precision
			setups = append(setups, s)
		}
		for _, s := range setups {
			shapes, err := s.Shapes()
			if err != nil {
				return all, err
			}
			all.Add(shapes)
		}
	}
	return all, nil
}
