package plan

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"memroom/allocsim"
	"memroom/event"
)

// Rehearsal is what the user's script asked of the allocator in a few steps on fake tensors, as the
// probe recorded it.
type Rehearsal struct {
	Torch    string   // version of the script's torch; empty when it never imported torch
	Reason   string   // why the record ends: "steps", "end" of the script, or "error"
	Error    string   // a sentence for the user where the rehearsal could not go on
	Steps    int      // optimizer steps taken
	Part     bool     // it may end before the first one: a test of a part of training
	Warnings []string // what the rehearsal had to answer by itself
	UsesDNN  bool     // cuDNN was used: its handles cost device memory
	// GradScaler was on: it skips the first steps, so that the optimizer's state may come later
	Scaled   bool
	Compiled bool // what torch.compile wrote was played
	Graphs   bool // some of it as CUDA graphs
	// cudnn.benchmark was on: cuDNN tries kernels with workspaces that nobody knows
	Tries     bool
	NoBLAS    bool   // no matrix was multiplied: cuBLAS was never loaded
	Grouped   bool   // a process group was made: NCCL has a communicator
	Estimated bool   // workspaces of convolutions or recurrent layers are not exactly known
	Conv      bool   // some of them are convolutions, which are known less well
	HalfConv  bool   // and in half precision
	Other     string // a framework other than torch that the script trains with
	// whose rules the timeline follows: empty for PyTorch, "bfc" for TensorFlow
	Allocator string
	Files     []string       // of the program that were imported or read, below where it began
	Folders   []string       // where installed packages lie
	Timeline  event.Timeline // alloc and free in order
	// by allocation: bytes of workspaces that cuDNN may choose instead, on the card
	Larger map[int32]int64
}

// rehearsalMargins of the interval, as fractions of the device peak on either side of the spread of
// the runs: op order and sizes were verified request by request (docs/measurements.md); kernels we
// never met may ask for more.
var rehearsalMargins = margins{0.006, 0.012}

// What Inductor writes depends on timings in places (products that are padded). Of 24 compiled
// models 21 reserved within 2.5 %, an OPT 6.5 % and a RoBERTa under autocast 11.5 % less, a
// convolutional network 5.5 % more.
var playedMargins = margins{0.14, 0.07}

// A CUDA graph's memory is a pool of its own; what its recording keeps there was never measured.
var graphMargins = margins{0.15, 0.35}

// Where workspaces are estimates, the spread of the runs is widened by these. Convolutions in half
// precision have the farthest outlier of those that no table holds (a ResNet-34 at 160 pixels: 3.9
// % above the middle run).
const (
	dnnBelow    = 0.03
	dnnAbove    = 0.010
	halfAbove   = 0.06 // and below
	smallSpread = 0.01 // of the device peak: workspaces hardly matter
	// of the allocated peak: steps that differ less, as by their losses, are alike
	peakSpread = 0.005
	// with cudnn.benchmark; of two scripts that were measured one took 2.1, one 4.5 times as much
	triesAbove = 4.0
)

// Predict sends the rehearsed timeline through the allocator and returns its need on the target.
func (r *Rehearsal) Predict(t Target) (*Prediction, error) {
	if err := r.Check(); err != nil {
		return nil, err
	}
	if t.Torch == "" {
		t.Torch = r.Torch
	}
	r.loads(&t)
	if r.Allocator == allocatorBFC {
		return r.predictBFC(&t)
	}
	runs, err := r.simulate(&t, 0)
	if err != nil {
		return nil, err
	}
	p := runs.rehearsed(r, &t)
	if t.bounded() {
		r.decide(p, runs, &t)
	}
	return p, r.enlarge(p, &t)
}

// enlarge moves the upper end of the interval to where it is with the workspaces that cuDNN may
// choose instead. They decide nothing: without room for one PyTorch takes the next proposal.
func (r *Rehearsal) enlarge(p *Prediction, t *Target) error {
	tl, most := r.Timeline, int64(0)
	tl.Ops = slices.Clone(tl.Ops)
	for i, op := range tl.Ops {
		if size := r.Larger[op.ID]; op.Kind == event.OpAlloc && size > op.Size {
			tl.Ops[i].Size, most = size, max(most, size)
		}
	}
	if most == 0 {
		return nil
	}
	res, err := allocsim.Run(&tl, allocsim.Options{Config: t.Alloc, Version: t.Torch})
	if err != nil {
		return fmt.Errorf("allocator model: %w", err)
	}
	over := t.overhead(r.UsesDNN)
	high := scaleBytes(res.ReservedPeak+over, 1+rehearsalMargins.above) + t.Card.Doubt
	if t.bounded() {
		high = min(high, t.wall(r.UsesDNN)+over)
	}
	if high > p.High {
		p.High = high
		p.warn("the upper end has workspaces of up to %s: how cuDNN computes gradients of filters in fp32 "+
			"(by Fourier transforms, in partial sums) is not known without the card. A few steps under "+
			"`memroom run` there show it; with less room, as under --gpu-mem, PyTorch takes smaller ones",
			event.Bytes(most))
	}
	return nil
}

// Libraries that a script may or may not load, measured on the H200: a DCGAN without any matrix
// product took 128 MiB less than every other training, DistributedDataParallel with one rank 168
// MiB more than the same model without it.
const (
	blasBytes    = 128 * event.MiB
	communicator = 168 * event.MiB
	// contexts of cards that are smaller than this hold no such kernels
	leastWithoutLib = 3 * blasBytes
)

// loads corrects the card's context for the libraries that the script does and does not load.
func (r *Rehearsal) loads(t *Target) {
	if r.NoBLAS && t.Card.Context > leastWithoutLib {
		t.Card.Context -= blasBytes
	}
	if r.Grouped {
		t.Card.Context += communicator
	}
}

// words is what was rehearsed, in a line.
func (r *Rehearsal) words() string {
	return "the script as it is, " + event.Count(r.Steps, "step")
}

// Check explains to the user why there is nothing to predict from.
func (r *Rehearsal) Check() error {
	switch {
	case r.Error != "":
		return fmt.Errorf("rehearsal: %s", r.Error)
	case r.Other != "" && !r.allocates():
		return fmt.Errorf("rehearsal: the script trains with %s, whose memory PyTorch's rules do not "+
			"describe: run it under `memroom run` and look at `memroom show`", r.Other)
	case r.Torch == "" && r.Allocator == "":
		return fmt.Errorf("rehearsal: the command never imported torch: give the training command " +
			"itself, such as python train.py, in an environment with torch")
	case !r.allocates():
		return fmt.Errorf("rehearsal: the script put nothing on a GPU: does it choose cuda only under a " +
			"flag, or train on the CPU?")
	case r.Steps == 0 && !r.Part:
		return fmt.Errorf("rehearsal: the script ended before its first optimizer step, so " +
			"it never reached the peak of training")
	}
	return nil
}

func (r *Rehearsal) allocates() bool {
	return slices.ContainsFunc(r.Timeline.Ops, func(op event.Op) bool { return op.Size > 0 })
}

// simulate runs the timeline once, or at several sizes of the workspaces that are estimates.
func (r *Rehearsal) simulate(t *Target, limit event.Bytes) (*simulations, error) {
	out := &simulations{}
	for _, scale := range convScales {
		tl := r.scaled(scale)
		res, err := allocsim.Run(tl, allocsim.Options{Config: t.Alloc, Limit: limit,
			Version: t.Torch})
		if err != nil {
			return nil, fmt.Errorf("allocator model: %w", err)
		}
		out.all = append(out.all, simulation{tl: tl, res: res, usesDNN: r.UsesDNN,
			approx: r.Estimated, guess: r.Estimated})
		if !r.Conv { // recurrent layers' are exact within a few KiB, but for tiny ones
			break
		}
	}
	return out, nil
}

// estimatedOps are the operations whose workspaces are estimates.
var estimatedOps = map[string]bool{"convolution": true, "convolution_backward": true,
	"recurrent": true}

// scaled is the timeline with every estimated workspace larger or smaller by a factor. Factor 1 is
// the timeline itself.
func (r *Rehearsal) scaled(factor float64) *event.Timeline {
	if factor == 1 {
		return &r.Timeline
	}
	tl := r.Timeline
	tl.Ops = make([]event.Op, len(r.Timeline.Ops))
	for i, op := range r.Timeline.Ops {
		tag := tl.Tags[op.Tag]
		if op.Kind == event.OpAlloc && tag.Category == event.CategoryWorkspace &&
			estimatedOps[tag.Op] {
			op.Size = max(1, int64(math.Round(float64(op.Size)*factor)))
		}
		tl.Ops[i] = op
	}
	return &tl
}

// rehearsed is the prediction of these runs.
func (s *simulations) rehearsed(r *Rehearsal, t *Target) *Prediction {
	main := s.all[0]
	p := &Prediction{AllocatedPeak: main.res.AllocatedPeak, ReservedPeak: main.res.ReservedPeak,
		Method:   "rehearsal",
		Warnings: append([]string{}, r.Warnings...), AllocLimit: t.AllocLimit, Validated: true,
		Files: r.Files, Folders: r.Folders}
	// estimates in fp32 and of recurrent layers are exact more often than not, and then so is their
	// run
	if r.HalfConv {
		p.ReservedPeak = s.typical()
	}
	if t.Given {
		card := t.Card
		p.Card = &card
	}
	over := t.overhead(r.UsesDNN)
	p.DevicePeak = p.ReservedPeak + over
	main.describe(p)
	p.Categories["context"] = over
	p.Categories["cache"] = p.ReservedPeak - p.AllocatedPeak
	s.rehearsalInterval(p, r, t)
	p.assume(r.words()+", "+t.torch(), t)
	return p
}

func (s *simulations) rehearsalInterval(p *Prediction, r *Rehearsal, t *Target) {
	m := rehearsalMargins
	if r.Reason == "end" && r.Steps == 1 {
		p.warn("the script took one optimizer step only: the second is usually higher, because the " +
			"optimizer's state exists by then")
	}
	m = m.plus(p.doubtCard(t, r.Estimated))
	over := t.overhead(r.UsesDNN)
	low, high := s.likely()
	if r.Estimated {
		m = m.plus(margins{dnnBelow, dnnAbove})
		p.warn("workspaces of convolutions and recurrent layers are chosen by cuDNN on the card: the " +
			"interval covers sizes 3 %% below to 5 %% above; `memroom calibrate` measures them")
		if r.HalfConv {
			low = min(low, scaleBytes(p.DevicePeak, (1-halfAbove)/(1-m.below))-over)
		}
		if r.HalfConv && float64(high-low) > smallSpread*float64(p.DevicePeak) {
			high = max(high, scaleBytes(p.DevicePeak, (1+halfAbove)/(1+m.above))-over)
		}
	}
	low = min(low, s.all[0].reached())
	if r.Scaled {
		low = max(0, low-p.Categories["optimizer"])
	}
	if slices.ContainsFunc(r.Warnings, compileLeftOut) {
		m = m.plus(compiledMargins)
		p.warn("%s", compiledNote)
	} else if r.Compiled {
		m = m.plus(playedMargins)
	}
	if r.Graphs {
		m = m.plus(graphMargins)
		p.Validated = false
	}
	if r.Tries {
		m.above += triesAbove
		p.Validated = false
		p.warn("torch.backends.cudnn.benchmark is on: in its first passes cuDNN tries kernels that may " +
			"take several times what is counted here, as far as there is room")
	}
	p.bounds(low+over, high+over, m, t)
}

// likely is the range of the runs without the highest of several, which one coincidence of sizes
// can lift by a whole segment.
func (s *simulations) likely() (low, high event.Bytes) {
	low, high = s.spread()
	if len(s.all) < 4 {
		return low, high
	}
	peaks := s.peaks()
	return low, peaks[len(peaks)-2]
}

// reached is what was reserved in the phase that first allocated as much as any. What is reserved
// after it only found no place among what was free: by a coincidence of sizes, or in an evaluation
// and the epoch after it, to which a run may not come.
func (s *simulation) reached() event.Bytes {
	for _, m := range s.res.Marks {
		if float64(m.AllocatedPeak) >= (1-peakSpread)*float64(s.res.AllocatedPeak) {
			return m.ReservedPeak
		}
	}
	return s.res.ReservedPeak
}

// peaks are the reserved peaks of the runs, lowest first.
func (s *simulations) peaks() []event.Bytes {
	peaks := make([]event.Bytes, len(s.all))
	for i, run := range s.all {
		peaks[i] = run.res.ReservedPeak
	}
	slices.Sort(peaks)
	return peaks
}

// decide reports whether the script fits the target.
func (r *Rehearsal) decide(p *Prediction, runs *simulations, t *Target) {
	v := r.judge(p, runs, t)
	over := t.overhead(r.UsesDNN)
	p.conclude(v.fits, v.wall+over)
	if v.fits {
		p.confine(v.wall+over, over)
	}
}

// judge decides whether the step fits. It does if the upper end of the interval is below the wall,
// or if the timeline survives under the wall because the allocator frees its cache before it fails.
func (r *Rehearsal) judge(p *Prediction, runs *simulations, t *Target) verdict {
	_, high := runs.likely()
	v := verdict{wall: t.wall(r.UsesDNN), static: p.Categories["weights"] +
		p.Categories["optimizer"]}
	margin := event.Bytes(0)
	if v.wall != t.AllocLimit {
		margin = p.High - t.overhead(r.UsesDNN) - high
	}
	v.need = high + margin
	v.fits = v.need <= v.wall
	if !v.fits && runs.lowest() <= v.wall {
		again, err := r.simulate(t, v.wall-margin)
		v.fits = err == nil && again.survived()
	}
	return v
}

func (s *simulations) survived() bool {
	for _, run := range s.all {
		if run.res.OOM != nil {
			return false
		}
	}
	return true
}

// compileLeftOut recognises the probe's word for a script that would have been compiled.
func compileLeftOut(warning string) bool {
	return strings.HasPrefix(warning, "torch.compile was left out")
}
