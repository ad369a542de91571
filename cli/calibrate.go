package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"memroom/event"
	"memroom/meter/nvml"
	"memroom/plan"
	"memroom/probe"
	"memroom/remedy"
	"memroom/tape"
)

type calibrateCmd struct {
	Args []string `arg:"" optional:"" name:"config" help:"Measure the convolutions and recurrent layers of this model: config.json or its folder. Default: a standard set of layers."`

	Preset       string        `help:"A well-known model instead of a file, such as torchvision/resnet50." placeholder:"NAME"`
	Batch        []int         `help:"Micro-batches to measure the model at." default:"1"`
	Seq          int           `help:"Tokens per sample, as in plan."`
	Image        int           `help:"Side of the image in pixels, as in plan."`
	Precision    []string      `help:"Precisions to measure the model in." default:"amp_bf16"`
	ChannelsLast bool          `help:"Images and convolutions in channels-last order."`
	Time         time.Duration `help:"Begin no further shape after this long." default:"90s"`
	Python       string        `placeholder:"PATH" help:"Interpreter with PyTorch; python3 on PATH otherwise."`
	List         bool          `help:"Print the shapes that would be measured, as JSON, and measure nothing."`
	Forget       bool          `help:"Drop what was measured on this machine's cards."`
	JSON         bool          `name:"json" help:"Print JSON."`
}

func (calibrateCmd) Help() string {
	return `Measures the card that PyTorch calls cuda:0, in a minute or two, and keeps it for plan: what it gives up beyond PyTorch's allocator
(context, kernels, libraries), the workspaces of cuBLAS, and what cuDNN takes for convolutions and recurrent layers. Those are chosen
by shape, so give the model that you train, with its batch size: plan's answer for it on this card then rests on no estimate. The card
should have nothing else running on it. What was measured before for the same card and versions is kept.`
}

func (calibrateCmd) examples() []example {
	return []example{
		{line: "memroom calibrate --preset torchvision/resnet50 --batch 64,128 --precision amp_bf16,fp32 " +
			"--list"},
		{line: "memroom calibrate --forget"},
	}
}

func (c *calibrateCmd) Run(s *session) error {
	defer s.putAway()()
	if c.Forget {
		return c.forget(s)
	}
	shapes, err := c.shapes()
	if err != nil {
		return err
	}
	if c.List {
		return s.printJSON(shapes)
	}
	lib, err := nvml.Open()
	if err != nil {
		return exitWith(exitUsage, "calibrate: %w", err)
	}
	defer lib.Close()
	pythons := findPythons(c.Python)
	if len(pythons) == 0 {
		return exitWith(exitUsage,
			"calibrate: no python3 on PATH: name the one you train with by --python")
	}
	w := &cardMeasurement{s: s, lib: lib, shapes: shapes}
	cut := w.measure(pythons[0], c.Time)
	if cut != nil && !errors.Is(cut, probe.ErrCalibrationCut) {
		return exitWith(exitUsage, "calibrate: %w", cut)
	}
	if err := keepCalibration(&w.found); err != nil {
		return exitWith(exitUsage, "calibrate: %w", err)
	}
	if err := c.print(s, &w.found); err != nil {
		return err
	}
	if cut != nil {
		return exitWith(1, "calibrate: %w (what was measured is kept)", cut)
	}
	return nil
}

func (c *calibrateCmd) print(s *session, found *plan.Calibration) error {
	if c.JSON {
		return s.printJSON(found)
	}
	_, err := fmt.Fprintf(s.Out,
		"%s (%s): %s beyond the allocator, %s more once cuDNN is used; cuBLAS keeps %s a thread; %d "+
			"multiprocessors, %s usable\n"+
			"workspaces of %d convolutions and %d recurrent layers are known, for PyTorch %s\nplan uses this "+
			"from now on\n",
		found.Name, found.UUID, found.Context, found.DNN, found.BLAS, found.SMs, found.Total,
		len(found.Conv), len(found.RNN), found.Torch)
	return err
}

// shapes are those of the model given, at every batch and precision asked for, or the standard set.
func (c *calibrateCmd) shapes() (plan.Shapes, error) {
	if c.Preset == "" && len(c.Args) == 0 {
		return plan.StandardShapes()
	}
	model, err := chooseModel(c.Preset, c.Args)
	if err != nil {
		return plan.Shapes{}, err
	}
	if len(c.Batch) == 0 || len(c.Precision) == 0 {
		return plan.Shapes{},
			usageError(errors.New("give at least one --batch and one --precision"))
	}
	all := plan.Shapes{Conv: []tape.Convolution{}, RNN: []tape.Recurrent{}}
	for _, batch := range c.Batch {
		for _, precision := range c.Precision {
			setup := plan.Setup{Model: model, Setup: remedy.Setup{Batch: batch, Seq: c.Seq,
				Image: c.Image, Precision: precision, ChannelsLast: c.ChannelsLast}}
			shapes, err := setup.Shapes()
			if err != nil {
				return all, err
			}
			all.Add(shapes)
		}
	}
	return all, nil
}

// cardMeasurement is one calibration under way.
type cardMeasurement struct {
	s      *session
	lib    *nvml.Library
	shapes plan.Shapes
	before []nvml.Device
	beyond map[string]event.Bytes // by stage: what the card gave up beyond the allocator
	failed int
	found  plan.Calibration
}

// measure runs the calibration and reads the driver at each stage. With ErrCalibrationCut, found is
// good but not whole.
func (w *cardMeasurement) measure(python string, limit time.Duration) error {
	dir, remove, err := temporaryFolder("calibrate")
	if err != nil {
		return err
	}
	defer remove()
	installed, err := probe.Install(dir)
	if err != nil {
		return err
	}
	if w.before, err = w.lib.Devices(); len(w.before) == 0 {
		return fmt.Errorf("no card answers: %w", errors.Join(err, errors.New("see `memroom doctor`")))
	}
	w.beyond = map[string]event.Bytes{}
	cut := probe.Calibrate(w.s.ctx, python, installed, probe.CardWork{Shapes: w.shapes, Time: limit,
		Stage: w.stage, Shape: w.shape})
	if cut != nil && !errors.Is(cut, probe.ErrCalibrationCut) {
		return cut
	}
	if w.failed > 0 {
		w.s.note("%d shapes could not be run on this card: plan estimates them", w.failed)
	}
	if err := w.conclude(); err != nil {
		return err
	}
	return cut
}

// conclude makes the card's constants of the readings.
func (w *cardMeasurement) conclude() error {
	if w.beyond["kernels"] <= 0 || w.beyond["cudnn"] < w.beyond["kernels"] {
		return fmt.Errorf("the readings make no sense (%v): is something else running on the card?",
			w.beyond)
	}
	if change := w.settled(); change > unrest || change < -unrest {
		return fmt.Errorf("other processes took or freed %s on the card during the "+
			"measurement: run it again when the card is idle", max(change, -change))
	}
	w.found.Context, w.found.DNN = w.beyond["kernels"], w.beyond["cudnn"]-w.beyond["kernels"]
	if driver, err := w.lib.Driver(); err == nil {
		w.found.Driver = driver.Version
	}
	w.found.When = time.Now().UTC().Truncate(time.Second)
	return nil
}

// unrest is how much others may take or give back on the card during a calibration: a desktop's
// share goes up and down.
const unrest = 64 * event.MiB

// settled is how much more the card holds afterwards than before, once the driver has taken back
// what was measured.
func (w *cardMeasurement) settled() event.Bytes {
	var change event.Bytes
	for range 20 {
		now, err := w.lib.Devices()
		if err != nil && len(now) == 0 {
			return 0
		}
		if change = used(now, w.found.UUID) - used(w.before, w.found.UUID); change <= unrest {
			return change
		}
		time.Sleep(150 * time.Millisecond)
	}
	return change
}

// stage reads the driver while the process holds still.
func (w *cardMeasurement) stage(st probe.CardStage) error {
	w.s.note("measuring: %s ...", st.Stage)
	now, err := w.lib.Devices()
	if len(now) == 0 {
		return fmt.Errorf("the card no longer answers: %w", err)
	}
	if st.Name != "" {
		uuid, err := w.identify(st)
		if err != nil {
			return err
		}
		w.found.Card = plan.Card{Name: st.Name, Total: st.Total, SMs: st.SMs,
			Capability: st.Capability, Measured: true}
		w.found.UUID, w.found.Torch, w.found.CUDNN = uuid, st.Torch, st.CUDNN
	}
	if st.BLAS > 0 {
		w.found.BLAS, w.found.BLASLt = st.BLAS, st.BLASLt
	}
	w.beyond[st.Stage] = used(now, w.found.UUID) - used(w.before, w.found.UUID) - st.Reserved
	if st.Stage == "cudnn" {
		w.s.note("measuring: %d convolutions, %d recurrent layers ...", len(w.shapes.Conv),
			len(w.shapes.RNN))
	}
	return nil
}

// identify finds the card that torch uses among those the driver lists. It compares UUIDs, because
// environment variables change the order of CUDA's cards and hide some of them.
func (w *cardMeasurement) identify(st probe.CardStage) (string, error) {
	for _, d := range w.before {
		if st.UUID != "" && strings.TrimPrefix(d.UUID, "GPU-") == strings.TrimPrefix(st.UUID,
			"GPU-") {
			return d.UUID, nil
		}
	}
	if len(w.before) == 1 && !w.before[0].MIG {
		return w.before[0].UUID, nil
	}
	return "",
		fmt.Errorf("cannot tell which of the driver's cards torch uses (%s, UUID %q): parts "+
			"of a card (MIG) are not measured, and with several cards torch must report the "+
			"UUID", st.Name, st.UUID)
}

func used(devices []nvml.Device, uuid string) event.Bytes {
	for _, d := range devices {
		if d.UUID == uuid {
			return d.Used
		}
	}
	return 0
}

// shape keeps what was measured for one shape.
func (w *cardMeasurement) shape(m probe.ShapeBytes) error {
	switch {
	case m.Failed != "":
		w.failed++
	case m.Conv != nil && *m.Conv >= 0 && *m.Conv < len(w.shapes.Conv):
		size := plan.ConvSizes{Convolution: w.shapes.Conv[*m.Conv]}
		if err := json.Unmarshal(m.Bytes, &size.ConvBytes); err != nil {
			return fmt.Errorf("a measurement that Python sent cannot be read (%w): "+
				"run `memroom calibrate` again", err)
		}
		w.found.Conv = append(w.found.Conv, size)
	case m.RNN != nil && *m.RNN >= 0 && *m.RNN < len(w.shapes.RNN):
		size := plan.RNNSizes{Recurrent: w.shapes.RNN[*m.RNN]}
		if err := json.Unmarshal(m.Bytes, &size.RNNBytes); err != nil {
			return fmt.Errorf("a measurement that Python sent cannot be read (%w): "+
				"run `memroom calibrate` again", err)
		}
		w.found.RNN = append(w.found.RNN, size)
	}
	return nil
}
