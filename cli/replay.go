package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"memroom/allocsim"
	"memroom/diagnose"
	"memroom/event"
	"memroom/plan"
	"memroom/report"
	"memroom/trace"
)

type replayCmd struct {
	File       string      `arg:"" help:"Snapshot written by torch.cuda.memory._dump_snapshot(); .gz, .xz and .zst are read as they are."`
	AllocConf  *string     `name:"alloc-conf" aliases:"conf" help:"Replay under these settings, as in PYTORCH_CUDA_ALLOC_CONF; an empty text means PyTorch's defaults." placeholder:"CONF"`
	AllocLimit event.Bytes `name:"alloc-limit" aliases:"capacity" help:"Replay under a cap on reserved bytes." placeholder:"SIZE"`
	GPU        string      `name:"gpu" help:"Replay on this card, whose CUDA context takes its share: a name such as H100, or a size." placeholder:"SIZE|NAME"`
	WhatIf     bool        `name:"what-if" help:"Try the useful settings and recommend one."`
	Device     int         `help:"Only this device." default:"-1"`
	Torch      string      `name:"torch" help:"Release that made the recording, where its keys do not tell." placeholder:"VERSION"`
	JSON       bool        `name:"json" help:"Print JSON."`
	readFlags  `embed:""`
}

func (replayCmd) Help() string {
	return `Without settings or a limit the recording is verified: every placement and every segment is compared with what the
model of PyTorch's allocator does, and the state at the end block by block. With them, the same requests are replayed under
other settings or on a smaller card.`
}

func (replayCmd) examples() []example {
	return []example{
		{line: "memroom replay examples/files/mlp.pickle.gz"},
		{line: "memroom replay examples/files/mlp.pickle.gz --alloc-conf expandable_segments:True --json"},
		{line: "memroom replay examples/files/oom.pickle.gz --what-if --alloc-limit 16GiB"},
	}
}

// replayResult is what --json prints. Exact, DivergedAt and Mismatches are about the recording;
// peaks, retries and OOMs are those of the recording, or of the settings and limits asked for.
type replayResult struct {
	Device        int         `json:"device"`
	Events        int         `json:"events"`
	Allocs        int         `json:"allocs"`
	Exact         bool        `json:"exact"`
	DivergedAt    *int        `json:"diverged_at"`
	Mismatches    int         `json:"mismatches"`
	AllocatedPeak event.Bytes `json:"allocated_peak"`
	ReservedPeak  event.Bytes `json:"reserved_peak"`
	ActivePeak    event.Bytes `json:"active_peak"`
	Retries       int64       `json:"num_alloc_retries"`
	OOMs          int64       `json:"num_ooms"`
	OOM           bool        `json:"oom"`
	// cap on reserved bytes that was replayed under, null for none
	Capacity    *event.Bytes          `json:"capacity"`
	Conf        string                `json:"conf"`
	Torch       string                `json:"torch"`
	WhatIf      *allocsim.Table       `json:"what_if,omitempty"`
	Divergences []allocsim.Divergence `json:"divergences,omitempty"`
	Truncated   *truncation           `json:"truncated,omitempty"`
	Warnings    []string              `json:"warnings,omitempty"`
	Devices     []replayResult        `json:"devices,omitempty"` // where there are several

	failed *allocsim.OOMAt
}

func (c *replayCmd) Run(s *session) error {
	defer boundGarbage(c.File, s)()
	options, assumed, err := c.options()
	if err != nil {
		return usageError(err)
	}
	read, err := c.limits().Open(c.File)
	if err != nil {
		return err
	}
	var results []replayResult
	for i := range read.Recordings {
		rec := &read.Recordings[i]
		if (c.Device >= 0 && rec.Device != c.Device) || (c.Device < 0 && rec.History.Len() == 0 &&
			len(read.Recordings) > 1) {
			continue
		}
		one, err := c.replay(read, rec, options)
		if err != nil {
			return fmt.Errorf("device %d: %w", rec.Device, err)
		}
		results = append(results, one)
	}
	if len(results) == 0 {
		return fmt.Errorf("%s has no history to replay: was torch.cuda.memory._record_memory_history() "+
			"on?", c.File)
	}
	result := combine(results)
	result.Warnings = slices.Concat(read.Warnings, result.Warnings, assumed)
	if read.Truncated {
		result.Truncated = &truncation{read.Offset, read.Reason}
	}
	return c.print(s, &result, results)
}

// options reads the settings and limits to replay under, with what is assumed of a card beyond its
// size.
func (c *replayCmd) options() (o allocsim.Options, assumed []string, err error) {
	o = allocsim.Options{Limit: c.AllocLimit, Version: c.Torch}
	if err := checkTorch(c.Torch); err != nil {
		return o, nil, usageError(err)
	}
	if c.AllocConf != nil {
		conf, err := allocsim.ParseConf(*c.AllocConf)
		if err != nil {
			return o, nil, err
		}
		o.Config = conf
	}
	if c.GPU != "" {
		card, err := plan.FindCard(c.GPU)
		if err != nil {
			return o, nil, err
		}
		o.DeviceTotal, o.Outside = card.Total, card.Context
		assumed = append(assumed, card.Assumed()+"; --alloc-limit sets the cap itself")
	}
	return o, assumed, nil
}

// replay verifies one device's recording and, where asked for, replays its requests under other
// conditions.
func (c *replayCmd) replay(read *trace.Snapshot, rec *event.Recording,
	o allocsim.Options) (replayResult, error) {
	other := c.AllocConf != nil || o.Limit > 0 || o.DeviceTotal > 0
	verified, err := allocsim.Replay(rec, allocsim.ReplayOptions{Version: c.Torch,
		Timeline: other || c.WhatIf})
	if err != nil {
		return replayResult{}, err
	}
	r := verifiedResult(rec, verified)
	if c.AllocConf == nil {
		o.Config = verified.Config
	}
	if other {
		got, err := verified.Run(o)
		if err != nil {
			return r, err
		}
		r.take(&got)
		r.Capacity = capacity(o)
		if c.AllocConf != nil {
			r.Conf = *c.AllocConf
		}
	}
	if c.WhatIf {
		// as `memroom snapshot` compares them: a recording that ran out, under the memory it had
		analysis, _ := diagnose.ReplaySnapshot(read, rec)
		said := len(analysis.Warnings)
		r.WhatIf = diagnose.CompareSettings(rec, analysis, verified, o)
		r.Warnings = append(r.Warnings, analysis.Warnings[said:]...)
	}
	return r, nil
}

func verifiedResult(rec *event.Recording, v *allocsim.Replayed) replayResult {
	r := replayResult{Device: rec.Device, Events: v.Events, Allocs: v.Allocs, Exact: v.Exact(),
		Mismatches:    v.Mismatches,
		AllocatedPeak: event.Bytes(v.Stats.All.AllocatedBytes.Peak),
		ReservedPeak:  event.Bytes(v.Stats.All.ReservedBytes.Peak),
		ActivePeak:    event.Bytes(v.Stats.All.ActiveBytes.Peak), Retries: v.Stats.AllocRetries,
		OOMs: v.Stats.OOMs, OOM: v.Stats.OOMs > 0,
		Conf: rec.Settings.Conf, Torch: v.Version.String(), Divergences: v.Divergences,
		Warnings: v.Warnings}
	if v.DivergedAt >= 0 {
		r.DivergedAt = &v.DivergedAt
	}
	if !v.Complete {
		r.Warnings = append(r.Warnings,
			fmt.Sprintf("the recording began in mid-run, with %d blocks alive: earlier peaks are "+
				"not known", v.Before))
	}
	if v.Placed > 0 {
		r.Warnings = append(r.Warnings,
			fmt.Sprintf("%d allocations in private pools (CUDA graphs, MemPool) were taken as "+
				"recorded, not predicted", v.Placed))
	}
	return r
}

// take replaces the recording's figures with those of a run under other conditions.
func (r *replayResult) take(got *allocsim.Result) {
	r.AllocatedPeak, r.ReservedPeak, r.ActivePeak = got.AllocatedPeak, got.ReservedPeak,
		got.ActivePeak
	r.Retries, r.OOMs, r.OOM, r.failed = got.Retries, got.OOMs, got.OOM != nil, got.OOM
}

// capacity returns the lowest cap on reserved bytes that was replayed under.
func capacity(o allocsim.Options) *event.Bytes {
	limit := o.Limit
	if card := o.DeviceTotal - o.Outside; o.DeviceTotal > 0 && (limit == 0 || card < limit) {
		limit = card
	}
	if limit == 0 {
		return nil
	}
	return &limit
}

// combine returns one answer for several devices: sums of events, the highest peaks, and each
// device's own below.
func combine(results []replayResult) replayResult {
	all := results[0]
	if len(results) == 1 {
		return all
	}
	for _, r := range results[1:] {
		all.Events += r.Events
		all.Allocs += r.Allocs
		all.Mismatches += r.Mismatches
		all.Exact = all.Exact && r.Exact
		if all.DivergedAt == nil {
			all.DivergedAt = r.DivergedAt
		}
		all.AllocatedPeak = max(all.AllocatedPeak, r.AllocatedPeak)
		all.ReservedPeak = max(all.ReservedPeak, r.ReservedPeak)
		all.ActivePeak = max(all.ActivePeak, r.ActivePeak)
		all.Retries += r.Retries
		all.OOMs += r.OOMs
		all.OOM = all.OOM || r.OOM
	}
	all.Devices = results
	return all
}

func (c *replayCmd) print(s *session, result *replayResult, devices []replayResult) error {
	var err error
	if c.JSON {
		err = s.printJSON(result)
	} else {
		err = result.text(s, c.File, devices)
	}
	if err == nil && !result.Exact {
		return exitQuietly(exitDiverged)
	}
	return err
}

// text prints the answer for people.
func (r *replayResult) text(s *session, file string, devices []replayResult) error {
	var b strings.Builder
	if r.Truncated != nil {
		fmt.Fprintf(&b, "%s %s breaks off: %s\n", s.paint(yellow, "truncated:"), file,
			r.Truncated.Reason)
	}
	for i := range devices {
		d := &devices[i]
		if len(devices) > 1 {
			fmt.Fprintf(&b, "%s\n", s.paint(bold, fmt.Sprintf("device %d", d.Device)))
		}
		d.deviceText(&b, s)
	}
	for _, w := range r.Warnings {
		fmt.Fprintf(&b, "%s %s\n", s.paint(yellow, "note:"), w)
	}
	_, err := io.WriteString(s.Out, b.String())
	return err
}

func (r *replayResult) deviceText(b *strings.Builder, s *session) {
	fmt.Fprintf(b, "%s, %s, rules of torch %s, settings %s\n", event.Count(r.Events, "event"),
		event.Count(r.Allocs, "allocation"), r.Torch, confName(r.Conf))
	if r.Exact {
		fmt.Fprintf(b, "%s every placement and segment is as recorded\n", s.paint(green, "exact:"))
	} else {
		fmt.Fprintf(b,
			"%s %d placements or segments differ from the recording, the first at event %d\n",
			s.paint(red, "diverged:"), r.Mismatches, *r.DivergedAt)
		for _, d := range r.Divergences[:min(5, len(r.Divergences))] {
			fmt.Fprintf(b, "  event %d: %s\n", d.At, d.What)
		}
	}
	if r.Capacity != nil {
		fmt.Fprintf(b, "under a cap of %s:\n", *r.Capacity)
	}
	fmt.Fprintf(b, "peaks: %s reserved, %s active, %s allocated; retries: %d\n", r.ReservedPeak,
		r.ActivePeak, r.AllocatedPeak, r.Retries)
	switch {
	case r.failed != nil:
		fmt.Fprintf(b, "%s %s were asked for with %s reserved, of which %s allocated\n",
			s.paint(red, "out of memory:"), r.failed.Segment, r.failed.Reserved, r.failed.Allocated)
	case r.OOM:
		fmt.Fprintf(b, "%s %s in the recording\n", s.paint(red, "out of memory:"),
			event.Count(r.OOMs, "time"))
	}
	if r.WhatIf != nil {
		report.WhatIf(report.NewText(b, s.color), r.WhatIf)
	}
}

func confName(conf string) string {
	if conf == "" {
		return "default"
	}
	return conf
}
