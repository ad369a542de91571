package plan

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"

	"memroom/allocsim"
	"memroom/event"
	"memroom/models"
	"memroom/tape"
)

// Target is where a setup shall run.
type Target struct {
	Card       Card
	Given      bool            // the user named a card: say whether it fits
	AllocLimit event.Bytes     // cap on reserved bytes, 0 is none
	Neighbours event.Bytes     // what other processes hold on the card now
	Alloc      allocsim.Config // allocator settings
	Torch      string          // version whose allocator is modelled
	// Stop is called before each timeline is made; an error ends the work. nil: the work is never
	// stopped.
	Stop func() error

	calibrated *Calibration // what was measured on the card here, if it was
	ranks      int          // processes that train together; more than one communicate
	groups     int          // communicators of one process beyond the first
	engine     float64      // share of the card that an inference engine takes
	hardest    int          // the order of samples that did not fit last: tried first
	likely     bool         // judge by the figure itself, not by the upper end of its interval
}

// Prediction is the answer to "how much, and does it fit?".
type Prediction struct {
	AllocatedPeak event.Bytes            `json:"allocated_peak"`
	ReservedPeak  event.Bytes            `json:"reserved_peak"`
	DevicePeak    event.Bytes            `json:"device_peak"`
	Low           event.Bytes            `json:"low"`  // of device_peak
	High          event.Bytes            `json:"high"` // of device_peak; decides fits
	Fits          *bool                  `json:"fits"` // null without a card or a limit
	Phase         string                 `json:"phase"`
	Categories    map[string]event.Bytes `json:"categories"`
	// fits, probably fits, probably does not fit, does not fit; empty without a card or a limit
	Verdict  string      `json:"verdict,omitempty"`
	Room     event.Bytes `json:"room,omitempty"` // what the verdict compares with
	MaxBatch *int64      `json:"max_batch"`      // null without a card or a limit
	MaxSeq   *int64      `json:"max_seq,omitempty"`
	// where no batch is sure to fit: the largest that probably does
	LikelyBatch *int64   `json:"likely_batch,omitempty"`
	Method      string   `json:"method"`              // config, rehearsal, or python
	Allocator   string   `json:"allocator,omitempty"` // whose peaks these are; empty: PyTorch's
	Validated   bool     `json:"validated"`
	Warnings    []string `json:"warnings"`
	// the setup, the version of torch and the card, in a line
	Assumed string `json:"assumed"`

	PeakOp     string      `json:"peak_op"`
	PeakModule string      `json:"peak_module,omitempty"`
	Phases     []PhasePeak `json:"phases"`
	Retries    int64       `json:"alloc_retries,omitempty"`
	Parameters int64       `json:"parameters,omitempty"`
	Trainable  int64       `json:"trainable,omitempty"`
	Host       *HostNeed   `json:"host,omitempty"`
	Card       *Card       `json:"card,omitempty"`
	AllocLimit event.Bytes `json:"alloc_limit,omitempty"`
	Setup      *Setup      `json:"setup,omitempty"`
	// by which rules a model that is divided among ranks was planned; nil where none is
	Estimate *Estimate `json:"estimate,omitempty"`
	// what each kind of rank of a rehearsed command or of a pipeline needs
	Ranks []RankPeak `json:"ranks,omitempty"`
	// who holds the peak, by line of the rehearsed program, most first
	Lines []LineShare `json:"lines,omitempty"`
	// of a rehearsed program: its files that were imported or read, below the folder where it
	// began, and the folders of installed packages
	Files   []string `json:"files,omitempty"`
	Folders []string `json:"folders,omitempty"`
	// allocated bytes over the step that holds the peak, for pictures
	Series []SeriesPoint `json:"-"`
}

// PhasePeak is how high memory goes in one phase, over all steps.
type PhasePeak struct {
	Phase     string      `json:"phase"`
	Allocated event.Bytes `json:"allocated"`
	Reserved  event.Bytes `json:"reserved"`
}

// LineShare is what one line of a program holds at the peak.
type LineShare struct {
	Line     string                 `json:"line"` // "train.py:12"; empty where none asked
	Bytes    event.Bytes            `json:"bytes"`
	Category map[string]event.Bytes `json:"categories"`
}

// RankPeak is what the ranks from First to Last need, each.
type RankPeak struct {
	First     int         `json:"first"`
	Last      int         `json:"last"`
	Allocated event.Bytes `json:"allocated_peak"`
	Reserved  event.Bytes `json:"reserved_peak"`
	Device    event.Bytes `json:"device_peak"`
	Kind      string      `json:"kind,omitempty"` // what sets them apart
}

// Among is the target of one of so many ranks, which communicate.
func (t Target) Among(ranks int) Target {
	t.ranks = ranks
	return t
}

// sameKind is how far the peaks of ranks of one kind may lie apart: sharded optimizers do not share
// parameters out to the byte.
const sameKind = 0.01

// SameKind reports whether two ranks need the same, or nearly so.
func (p *Prediction) SameKind(q *Prediction) bool {
	near := func(a, b event.Bytes) bool {
		return math.Abs(float64(a-b)) <= sameKind*float64(max(a, b))
	}
	return near(p.AllocatedPeak, q.AllocatedPeak) && near(p.ReservedPeak, q.ReservedPeak)
}

// raise makes a kind of rank as large as another of its ranks.
func (r *RankPeak) raise(p *Prediction) {
	r.Allocated, r.Reserved = max(r.Allocated, p.AllocatedPeak), max(r.Reserved, p.ReservedPeak)
	r.Device = max(r.Device, p.DevicePeak)
}

// OfRanks joins the predictions of some ranks: that of the largest, with each kind of rank and the
// most that one of it needs. Ranks between two that agree are like them; between two that differ,
// like the larger.
func OfRanks(answers map[int]*Prediction, ranks int) *Prediction {
	known := slices.Sorted(maps.Keys(answers))
	largest := answers[0]
	var kinds []RankPeak
	for i, n := range known {
		p, from, to := answers[n], n, n
		if p.DevicePeak > largest.DevicePeak {
			largest = p
		}
		if i+1 == len(known) {
			to = ranks - 1
		} else if p.DevicePeak >= answers[known[i+1]].DevicePeak {
			to = known[i+1] - 1
		}
		if i > 0 {
			from = kinds[len(kinds)-1].Last + 1
		}
		if i > 0 && p.SameKind(answers[known[i-1]]) {
			kinds[len(kinds)-1].Last = to
			kinds[len(kinds)-1].raise(p)
			continue
		}
		kinds = append(kinds, RankPeak{First: from, Last: to, Allocated: p.AllocatedPeak,
			Reserved: p.ReservedPeak, Device: p.DevicePeak})
	}
	if warned := answers[0].Warnings; largest != answers[0] {
		for _, w := range warned {
			if !slices.Contains(largest.Warnings, w) && !strings.HasPrefix(w, playedRank) {
				largest.Warnings = append(largest.Warnings, w)
			}
		}
	}
	largest.Ranks = kinds
	return largest
}

// playedRank begins the note about which rank was rehearsed.
const playedRank = "the process group is played"

// SeriesPoint is allocated memory at one moment of the timeline.
type SeriesPoint struct {
	Op        int
	Allocated event.Bytes
	Phase     string
}

// Predict answers for one setup and target.
func Predict(s Setup, t Target) (*Prediction, error) {
	p, here, err := foresee(&s, &t)
	if err == nil && t.bounded() {
		t.reach(p, &s, here)
	}
	return p, err
}

// predictOnly answers without the largest batch and sequence, which take many times as long.
func predictOnly(s Setup, t Target) (*Prediction, error) {
	p, _, err := foresee(&s, &t)
	return p, err
}

// foresee fills the setup in and answers for it; the verdict is that of a bounded target.
func foresee(s *Setup, t *Target) (p *Prediction, here verdict, err error) {
	if err := s.Check(); err != nil {
		return nil, here, err
	}
	*s = s.WithDefaults()
	t.ranks, t.groups, t.engine = s.Ranks, s.groups(), s.Engine
	kinds := s.stageKinds()
	var peaks []RankPeak
	for _, stage := range kinds {
		one := *s
		one.stage = stage
		answer, v, err := foreseeStage(&one, t)
		if err != nil {
			return nil, here, err
		}
		if len(kinds) > 1 {
			peaks = append(peaks, one.stagePeak(answer))
		}
		if p == nil || answer.DevicePeak > p.DevicePeak {
			p = answer
		}
		if stage == kinds[0] || v.worse(here) {
			here = v
		}
	}
	p.Ranks = peaks
	if p.Fits != nil && *p.Fits != here.fits { // a stage of a pipeline that needs less does not fit
		p.conclude(here.fits, p.Room)
	}
	return p, here, nil
}

// foreseeStage answers for one stage of a pipeline, or for all ranks where there is none.
func foreseeStage(s *Setup, t *Target) (p *Prediction, here verdict, err error) {
	runs, err := simulateAll(s, t)
	if err != nil {
		return nil, here, err
	}
	p = runs.prediction(s, t)
	if t.bounded() {
		here = runs.decide(p, s, t)
	}
	return p, here, nil
}

// allKernels is what torch before 1.13 loads onto the card with the context: every kernel it has.
// Its documentation of then speaks of 1343 MB in all on a V100.
const allKernels = 830 * event.MiB

// collectiveBytes is assumed for NCCL: channels, buffers and kernels. Users report 0.3 to 1.6 GB
// for one communicator. Four published FSDP figures on two cards, whose allocated bytes we match
// to about 1 %, leave 0.9 to 1.1 GiB to it (bench/published, PowerLM's rows).
const (
	collectiveLow   = 128 * event.MiB
	collectiveBytes = 960 * event.MiB
	collectiveHigh  = 1536 * event.MiB

	// of each further group in which a rank communicates, such as HSDP's two
	groupBytes = 256 * event.MiB
	groupHigh  = 768 * event.MiB
)

func (t *Target) bounded() bool { return t.Given || t.AllocLimit > 0 }

// simulation is one timeline through the allocator.
type simulation struct {
	tl      *event.Timeline
	res     allocsim.Result
	usesDNN bool
	approx  bool
	guess   bool
	unsure  bool
	doubt   event.Bytes // that workspaces may take less

	checkpointed bool        // a block was run again in the backward pass
	hostPeak     event.Bytes // offloaded activations, at most at one time
}

// convScales are the factors at which workspaces of unknown size are tried; the spread of the
// results is the interval.
var convScales = []float64{1, 0.97, 0.98, 0.99, 1.01, 1.02, 1.03, 1.05}

// variant is one of the runs of a setup whose peak is not one number.
type variant struct {
	scale float64 // of workspaces of unknown size
	order int     // of samples of different lengths, see orderOf
	lag   int     // releases that wait for the card, see tape.FSDP
	other bool    // adapters sit on the layers that unsaidTargets names second
	words bool    // embedding and logits are cut over the ranks of tensor parallelism
}

// variants lists the runs of a setup; those beyond the first are made only where the first asks for
// them.
func (s *Setup) variants() []variant {
	var list []variant
	if s.varies() {
		for i := range lengthOrders {
			list = append(list, variant{scale: 1, order: i})
		}
		return list
	}
	if s.Shard == "fsdp1" {
		return []variant{{scale: 1}, {scale: 1, lag: 1}, {scale: 1, lag: 2}}
	}
	if s.wordsUnsaid() {
		return []variant{{scale: 1}, {scale: 1, words: true}}
	}
	if s.targetsUnsaid() {
		return []variant{{scale: 1}, {scale: 1, other: true}}
	}
	for _, scale := range convScales {
		list = append(list, variant{scale: scale})
	}
	return list
}

// simulations are the runs of one setup: one, or several where workspaces or the order of samples
// are not known.
type simulations struct {
	model  *models.Model
	all    []simulation
	orders bool // the runs differ in the order of samples
	lags   bool // the runs differ in how far the host is ahead of the card
	places bool // the runs differ in the layers that get adapters, or in what tensor parallelism cuts

	// what is reserved when batches come without an attention mask, where that is less; 0 if not
	unmasked event.Bytes
}

func simulateAll(s *Setup, t *Target) (*simulations, error) {
	out := &simulations{orders: s.varies(), lags: s.Shard == "fsdp1" && !s.varies()}
	out.places = (s.targetsUnsaid() || s.wordsUnsaid()) && !out.orders && !out.lags
	for _, v := range s.variants() {
		m, err := s.modelOf(v)
		if v.other && err != nil { // the model has no layer of those names: there is no choice
			break
		}
		if err != nil {
			return nil, err
		}
		sim, err := simulate(m, s, t, v)
		if err != nil {
			return nil, err
		}
		if out.model == nil {
			out.model = m
		}
		out.all = append(out.all, sim)
		if !sim.approx && !out.orders && !out.lags && !out.places {
			break
		}
	}
	return out, out.unmask(s, t)
}

// unmask finds what a model whose memory depends on it reserves when batches come without an
// attention mask.
func (r *simulations) unmask(s *Setup, t *Target) error {
	if !r.model.MaskCosts || s.Padded || s.varies() {
		return nil
	}
	bare := *s
	bare.bare = true
	m, err := bare.model()
	if err != nil {
		return err
	}
	sim, err := simulate(m, &bare, t, variant{scale: 1})
	if err != nil {
		return err
	}
	if sim.res.ReservedPeak < r.all[0].res.ReservedPeak {
		r.unmasked = sim.res.ReservedPeak
	}
	return nil
}

// simulate records the setup's timeline and sends it through the allocator.
func simulate(m *models.Model, s *Setup, t *Target, v variant) (simulation, error) {
	if t.Stop != nil {
		if err := t.Stop(); err != nil {
			return simulation{}, err
		}
	}
	g, err := recordTape(m, s, t, v)
	if err != nil {
		return simulation{}, err
	}
	sim := simulation{tl: g.Timeline(), usesDNN: g.UsesDNN, approx: g.Approx, guess: g.Guess,
		unsure: g.Unsure, doubt: event.Bytes(g.Doubt), checkpointed: g.Checkpointed,
		hostPeak: event.Bytes(g.HostPeak)}
	sim.res, err = t.replay(sim.tl, 0)
	return sim, err
}

// recordTape runs one variant of the setup on a tape.
func recordTape(m *models.Model, s *Setup, t *Target, v variant) (g *tape.Graph, err error) {
	defer func() {
		if r := recover(); r != nil {
			impossible, ok := r.(tape.Impossible)
			if !ok {
				panic(r)
			}
			err = fmt.Errorf("%s", impossible.Why)
		}
	}()
	o := t.Card.options()
	o.ConvScale = v.scale
	o.Workspaces = sync.OnceValue(t.workspaces)
	o.Zero = s.zero()
	if s.Shard == "ddp" {
		o.DDP = &tape.DDP{View: s.BucketView}
	}
	if o.FSDP, err = s.fsdp(); err != nil {
		return nil, err
	}
	if o.FSDP != nil {
		o.FSDP.Lag = v.lag
	}
	o.WideSave = s.olderThan(leanSoftmax)
	o.Offload, o.HostOptim = s.Offloads("activations"), s.Offloads("optimizer")
	o.HostParams = s.Offloads("parameters")
	o.InputGrads = s.LoRARank > 0 && s.Checkpointing
	o.HostOptim = o.HostOptim || o.HostParams && s.fullyShards()
	l, err := s.loop(v.order)
	if err != nil {
		return nil, err
	}
	l.pipeline = s.pipeline(m)
	return train(m, o, l), nil
}

// replay sends a timeline through the target's allocator, under a cap on reserved bytes if limit is
// not 0.
func (t *Target) replay(tl *event.Timeline, limit event.Bytes) (allocsim.Result, error) {
	res, err := allocsim.Run(tl, allocsim.Options{Config: t.Alloc, Limit: limit, Version: t.Torch})
	if err != nil {
		return res, fmt.Errorf("this setup is too large for any card: %w", err)
	}
	return res, nil
}

// overhead returns the memory of the card that is used outside the allocator.
func (t *Target) overhead(usesDNN bool) event.Bytes {
	bytes := t.Card.Context
	if usesDNN {
		bytes += t.Card.DNN
	}
	if v := release(t.Torch); v > 0 && v < lazyTorch {
		bytes += allKernels
	}
	if t.ranks > 1 {
		bytes += collectiveBytes + event.Bytes(t.groups)*groupBytes
	}
	return bytes + event.Bytes(t.engine*float64(t.Card.Total))
}

// room is how many bytes the allocator may reserve on the card.
func (t *Target) room(usesDNN bool) event.Bytes {
	return t.Card.Total - t.Card.Shared - t.Neighbours - t.overhead(usesDNN)
}

func (r *simulations) prediction(s *Setup, t *Target) *Prediction {
	main := r.all[0]
	p := &Prediction{
		AllocatedPeak: main.res.AllocatedPeak, ReservedPeak: r.typical(), Method: "config",
		Warnings:   []string{},
		Parameters: r.model.Root.Count(), Trainable: r.model.Root.Trainable(), Setup: s,
		AllocLimit: t.AllocLimit, Estimate: s.estimate(),
	}
	whole := r.model
	if one := s.undivided(); s.divided() {
		if m, err := one.model(); err == nil {
			whole, p.Parameters, p.Trainable = m, m.Root.Count(), m.Root.Trainable()
		}
	}
	if t.Given {
		card := t.Card
		p.Card = &card
	}
	p.DevicePeak = p.ReservedPeak + t.overhead(main.usesDNN)
	main.describe(p)
	p.Categories["context"] = t.overhead(main.usesDNN)
	p.Categories["cache"] = p.ReservedPeak - p.AllocatedPeak
	p.Host = hostNeed(r.model, whole, s, r.hostPeak())
	r.interval(p, s, t)
	p.assume(s.words(r.model.Run.Image)+", "+t.torch(), t)
	return p
}

// typical is the reserved peak to report: the run itself, or the median of several where sizes are
// guesses. Reserved memory is a step function of what is uncertain, so a single run may lie on an
// outlier; sizes that follow from the same convolutions at other batches are right more often than
// any run next to them.
func (r *simulations) typical() event.Bytes {
	peaks := r.peaks()
	switch {
	case r.lags, r.places:
		return r.all[0].res.ReservedPeak
	case r.orders:
		return peaks[len(peaks)/2]
	case r.all[0].approx && !r.all[0].guess:
		return r.all[0].res.ReservedPeak
	}
	return (peaks[(len(peaks)-1)/2] + peaks[len(peaks)/2]) / 2
}

func (r *simulations) spread() (low, high event.Bytes) {
	low = math.MaxInt64
	for _, s := range r.all {
		low, high = min(low, s.res.ReservedPeak), max(high, s.res.ReservedPeak)
	}
	return low, high
}

// margins of the interval, as fractions of the device peak, on either side of the spread of the
// runs. They come from the errors measured on the H200; see bench/plan.
type margins struct{ below, above float64 }

var (
	// op order verified request by request; room for what differs between versions
	exactMargins  = margins{0.02, 0.02}
	familyMargins = margins{0.03, 0.03} // described from the source, verified on other sizes
	cnnMargins    = margins{0.03, 0.03} // convolution workspaces
	// adapters and packed weights: some blocks are placed otherwise; a Phi-3 with adapters reserved
	// 8 % less than its timeline, with equal allocated bytes
	adapterMargin = margins{0.08, 0.05}
	// 8-bit layers hold their inputs past the backward pass: a block of the size of the logits
	// found its place in a measured run and not in the timeline, 11 % of it
	int8Margins = margins{0.10, 0.03}
	// DeepSpeed's stage 3 reserved 4 to 17 % more than the timeline asks for
	zero3Margins = margins{0.06, 0.20}
	// compiled models reserved 0.52 to 1.16 of what eager ones do, see compiledNote
	compiledMargins = margins{0.50, 0.22}
	guessMargins    = margins{0.02, 0.025} // convolutions that were measured at no batch size
	layoutMargins   = margins{0, 0.055}    // channels-last convolutions in fp32
	// another card of a measured generation: versions and clocks differ
	sameGeneration = margins{0.02, 0.02}
	// another generation: attention and reduction kernels differ
	otherCard         = margins{0.05, 0.06}
	otherConvolutions = margins{0.08, 0.08} // and so do convolutions, by more
	unvalidatedPart   = margins{0.10, 0.10} // features never measured
)

// compiledNote is the note on what is not known about torch.compile.
const compiledNote = "a compiled model is planned as if it ran eagerly: what torch.compile fuses and " +
	"recomputes is known only after it has compiled; 11 measured models reserved 0.52 to 1.16 of " +
	"that, which the interval covers"

// looseReserved is how much more a model described from its source may reserve.
const looseReserved = 0.01

// plus adds two doubts about the same thing, which may both be at their worst.
func (m margins) plus(o margins) margins { return margins{m.below + o.below, m.above + o.above} }

// and joins doubts that have nothing to do with each other: they add up as independent errors do,
// by their squares.
func (m margins) and(o margins) margins {
	return margins{math.Hypot(m.below, o.below), math.Hypot(m.above, o.above)}
}

// interval sets the bounds of a prediction. It returns by how much the reserved bytes alone may be
// higher than the highest run, as a fraction: 0 for what was verified operation by operation.
func (r *simulations) interval(p *Prediction, s *Setup, t *Target) (reserved float64) {
	m := exactMargins
	switch {
	case s.varies():
		p.warn("samples have %d to %d tokens, and their order decides what the allocator's cache wastes: "+
			"the interval covers %d orders; expandable_segments:True removes most of the waste",
			s.Shortest, s.Seq, lengthOrders)
	case r.lags:
		p.warn("FSDP1 frees gathered weights when the card has used them, and the host may be " +
			"ahead by two of them: the interval covers that")
	case r.places:
	case len(r.all) > 1:
		m = cnnMargins
		p.warn("cuDNN chooses the workspaces of convolutions and recurrent layers, and some were never " +
			"measured for these shapes: the interval covers sizes from 3 %% less to 5 %% more; `memroom " +
			"calibrate` with this model measures them")
	}
	if r.all[0].approx && r.all[0].guess {
		m = m.plus(guessMargins)
	}
	if r.all[0].unsure {
		m = m.plus(layoutMargins)
	}
	if s.Compile {
		m = m.and(compiledMargins)
		reserved += compiledMargins.above
		p.warn("%s", compiledNote)
	}
	if s.LoRARank > 0 {
		m = m.and(adapterMargin)
		reserved += adapterMargin.above
	}
	if s.LoadIn == "8bit" {
		m = m.and(int8Margins)
		reserved += int8Margins.above
	}
	if s.LoadIn == "8bit" && s.Checkpointing {
		p.warn("checkpointing saves little with 8-bit weights: each of their layers keeps its input for the " +
			"backward pass where checkpointing cannot drop it; with --load-in 4bit it can")
	}
	if s.Shard == "zero3" {
		m = m.and(zero3Margins)
		reserved += zero3Margins.above
		p.warn("ZeRO-3 prefetches weights on a stream of its own, by an order it learns in the first " +
			"step: what its cache wastes is known only roughly")
	}
	if s.divided() {
		m = m.and(estimateMargins)
		reserved += estimateMargins.above
	}
	if r.model.Loose {
		m = m.and(familyMargins)
		reserved += looseReserved
	}
	p.Validated = !s.divided()
	if e := s.estimate(); e != nil {
		e.say(p)
	}
	m = m.and(p.doubtCard(t, len(r.all) > 1 && !s.varies() && !r.lags && !r.places))
	for _, note := range s.unvalidated() {
		m = m.and(unvalidatedPart)
		reserved += unvalidatedPart.above / 2
		p.Validated = false
		p.warn("unvalidated: %s", note)
	}
	if s.LoRARank > 0 {
		p.warn("%s", s.loraNote())
	}
	if s.LoadIn != "" && !s.NoUpcast {
		p.warn("what is not packed is in fp32 (prepare_model_for_kbit_training) and the step runs under " +
			"autocast, as Hugging Face's Trainer with bf16=True; a loop without autocast computes in fp32: " +
			"twice the activations and more")
	}
	for _, note := range slices.Concat(s.said, s.doubts(t), s.trainerNotes()) {
		p.warn("%s", note)
	}
	if s.Checkpointing && !r.all[0].checkpointed {
		p.warn("activation checkpointing changes nothing: %s has no blocks that support it",
			s.Model.Type())
	}
	for _, note := range r.model.Notes {
		p.warn("%s", note)
	}
	low, high := r.spread()
	if r.all[0].approx && !r.places { // runs that differ much may all lie on one side
		low -= (high - low) / 2
	}
	low -= 2 * r.all[0].doubt // smaller ones may find a place in the cache, too
	over := t.overhead(r.all[0].usesDNN)
	if s.Ranks > 1 {
		p.warn("NCCL's own buffers are assumed to take %s of the card in addition to PyTorch's memory; the "+
			"interval allows for %s to %s", s.collectives(), collectiveLow,
			collectiveHigh+event.Bytes(s.groups())*groupHigh)
		more := event.Bytes(s.groups())
		low -= collectiveBytes - collectiveLow + more*groupBytes
		high += collectiveHigh - collectiveBytes + more*(groupHigh-groupBytes)
	}
	if r.unmasked > 0 {
		p.warn("batches are assumed to have the attention mask that tokenizers make; without a mask "+
			"PyTorch reserves %s, which the interval covers", r.unmasked)
		low = min(low, r.unmasked)
	}
	p.bounds(low+over, high+over, m, t)
	return reserved
}

// The answers to "does it fit?".
const (
	Fits            = "fits"
	ProbablyFits    = "probably fits"         // the figure does, the upper end of the interval not
	ProbablyDoesNot = "probably does not fit" // only the lower end does
	DoesNotFit      = "does not fit"
)

// conclude puts down whether a prediction fits into so many bytes of the card.
func (p *Prediction) conclude(fits bool, room event.Bytes) {
	p.Fits, p.Room = &fits, room
	switch {
	case fits:
		p.Verdict = Fits
	case p.DevicePeak <= room:
		p.Verdict = ProbablyFits
	case p.Low <= room:
		p.Verdict = ProbablyDoesNot
	default:
		p.Verdict = DoesNotFit
	}
}

// confine brings a prediction under a wall that the run survives, because the allocator frees its
// cache to stay below.
func (p *Prediction) confine(most, overhead event.Bytes) {
	if p.High > most {
		p.High = most
		p.stayBelow(most, overhead)
	}
}

// stayBelow lowers what a prediction is taken to need to a wall, but not its upper end.
func (p *Prediction) stayBelow(most, overhead event.Bytes) {
	if p.DevicePeak > most {
		p.warn("without the limit PyTorch would reserve %s: it stays below %s because the allocator "+
			"frees its cache when memory is short, which costs time", p.ReservedPeak, most-overhead)
		p.DevicePeak, p.ReservedPeak = most, most-overhead
		p.Categories["cache"] = max(0, p.ReservedPeak-p.AllocatedPeak)
	}
	p.Low = min(p.Low, p.DevicePeak)
}

// Widen moves both ends of the interval away by a fraction of the device peak.
func (p *Prediction) Widen(by float64) {
	p.Low = max(0, p.Low-scaleBytes(p.DevicePeak, by))
	p.High += scaleBytes(p.DevicePeak, by)
}

// doubtCard returns what a card that was not measured adds to the interval, and adds a warning.
func (p *Prediction) doubtCard(t *Target, convolutions bool) margins {
	m, why := t.Card.margins(convolutions)
	if why != "" {
		p.Validated = false
		p.warn("%s", why)
	}
	if t.Card.Shared > 0 {
		p.warn("%s of the card are set aside: one of this size drives a screen, or is a board whose "+
			"memory serves the host too (Jetson); --alloc-limit SIZE plans without that", t.Card.Shared)
	}
	return m
}

// bounds sets the interval around what the runs gave.
func (p *Prediction) bounds(low, high event.Bytes, m margins, t *Target) {
	p.Low = max(0, scaleBytes(low, 1-m.below)-t.Card.Doubt-t.Card.Less)
	p.High = scaleBytes(high, 1+m.above) + t.Card.Doubt
}

func scaleBytes(b event.Bytes, f float64) event.Bytes { return event.Bytes(float64(b) * f) }

func (p *Prediction) warn(format string, args ...any) {
	p.Warnings = append(p.Warnings, fmt.Sprintf(format, args...))
}

// unvalidated lists the parts of a setup whose figures were never compared with a card.
func (s *Setup) unvalidated() []string {
	var list []string
	if s.whole != "" {
		list = append(list,
			fmt.Sprintf("only the text model (%s) of %s is planned: weights and activations of its other "+
				"parts come on top", s.Model.Type(), s.whole))
	}
	if s.ChunkedLoss {
		list = append(list,
			"a fused loss (logits in chunks, gradients made in the forward pass, as Liger does)")
	}
	if s.LoadIn != "" && s.Model.Has("num_local_experts", "num_experts") {
		list = append(list, "packed experts (each is unpacked for its product)")
	}
	if s.Trainer != "" {
		list = append(list, s.Trainer+": the steps of TRL as we know them, rehearsed; on a card only "+
			"GRPO and RLOO were measured, and reserved 3 % less")
	}
	if s.fullyShards() && (s.LoRARank > 0 || s.LoadIn != "") {
		list = append(list, "adapters or packed weights under FSDP (from the sources of both)")
	}
	if len(s.Offload) > 0 {
		list = append(list, "offload to host memory")
	}
	if s.Attention == "flash" {
		list = append(list, "the flash-attention package (PyTorch's own kernel is assumed)")
	}
	if note := tape.OptimizerNote(s.Optimizer); note != "" {
		list = append(list, note)
	}
	return list
}

// describe fills in what the peak consists of and where it is.
func (sim *simulation) describe(p *Prediction) {
	p.Categories = map[string]event.Bytes{}
	var sum event.Bytes
	lines := map[string]*LineShare{}
	for _, i := range allocsim.LiveAt(sim.tl, sim.res.AllocatedPeakAt) {
		op := sim.tl.Ops[i]
		tag, size := sim.tl.Tags[op.Tag], event.Bytes(op.Size)
		p.Categories[tag.Category.String()] += size
		sum += size
		if tag.Line == "" {
			continue
		}
		if lines[tag.Line] == nil {
			lines[tag.Line] = &LineShare{Line: tag.Line, Category: map[string]event.Bytes{}}
		}
		lines[tag.Line].Bytes += size
		lines[tag.Line].Category[tag.Category.String()] += size
	}
	for _, line := range lines {
		p.Lines = append(p.Lines, *line)
	}
	slices.SortFunc(p.Lines, func(a, b LineShare) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Line, b.Line))
	})
	p.Categories["rounding"] = p.AllocatedPeak - sum
	tag := sim.tl.Tags[sim.tl.Ops[sim.res.AllocatedPeakAt].Tag]
	p.PeakOp, p.PeakModule = tag.Op, tag.Module
	seen := map[string]int{}
	var highest event.Bytes
	for _, m := range sim.res.Marks {
		i, ok := seen[m.Phase]
		if !ok {
			i = len(p.Phases)
			seen[m.Phase] = i
			p.Phases = append(p.Phases, PhasePeak{Phase: m.Phase})
		}
		p.Phases[i].Allocated = max(p.Phases[i].Allocated, m.AllocatedPeak)
		p.Phases[i].Reserved = max(p.Phases[i].Reserved, m.ReservedPeak)
		if m.AllocatedPeak > highest {
			highest, p.Phase = m.AllocatedPeak, m.Phase
		}
	}
	p.Series = sim.series()
	p.Retries = sim.res.Retries
}

// peakStep is the operations of the step that holds the peak, the last of several: from its first
// mark to the next step's.
func (sim *simulation) peakStep() (from, to int) {
	var high event.Bytes
	step, start, to := 0, 0, len(sim.tl.Ops)
	for i, m := range sim.res.Marks {
		if i == 0 || m.Step != step {
			if start == from && i > 0 {
				to = m.At
			}
			step, start = m.Step, m.At
		}
		if m.AllocatedPeak >= high {
			high, from, to = m.AllocatedPeak, start, len(sim.tl.Ops)
		}
	}
	return from, to
}

// series is the allocated bytes after each operation of the step that holds the peak.
func (sim *simulation) series() []SeriesPoint {
	from, to := sim.peakStep()
	size := make(map[int32]int64, len(sim.tl.Ops)/2)
	var now int64
	var out []SeriesPoint
	mark, phase := 0, ""
	for i, op := range sim.tl.Ops[:to] {
		for mark < len(sim.tl.Marks) && sim.tl.Marks[mark].At <= i {
			phase = sim.tl.Marks[mark].Phase
			mark++
		}
		if op.Kind == event.OpAlloc {
			size[op.ID] = op.Size
			now += op.Size
		} else {
			now -= size[op.ID]
		}
		if i >= from {
			out = append(out, SeriesPoint{i, event.Bytes(now), phase})
		}
	}
	return out
}

// hostPeak is the most that offloaded activations take in host memory in any of the runs.
func (r *simulations) hostPeak() event.Bytes {
	var most event.Bytes
	for _, s := range r.all {
		most = max(most, s.hostPeak)
	}
	return most
}
