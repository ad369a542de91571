package report

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"memroom/event"
	"memroom/plan"
)

// Ladder writes what makes a setup fit: the chosen remedies one on top of the other, what each
// would do alone, and what to type.
func Ladder(w io.Writer, l *plan.Ladder, color bool) error {
	var b strings.Builder
	switch {
	case !l.Fits:
		fmt.Fprintf(&b, "does not fit: %s\n", l.Reason)
	case len(l.Rungs) == 0:
		fmt.Fprintf(&b, "fits without changes: needs %s, at most %s\n", l.After.DevicePeak,
			l.After.High)
	default:
		fmt.Fprintf(&b,
			"fits with these changes; a sample takes about %.2f times as long:\n\n", l.Slowdown)
		rungs(&b, l.Rungs)
		batch := fmt.Sprintf("batch %d", l.Setup.Batch)
		if l.Setup.Accumulate > 1 {
			batch = fmt.Sprintf("micro-batches of %d, %d accumulated to an effective batch of %d",
				l.Setup.Batch, l.Setup.Accumulate, l.Setup.EffectiveBatch())
		}
		fmt.Fprintf(&b, "\nneeds %s then, at most %s; %s\n", l.After.DevicePeak, l.After.High, batch)
	}
	if len(l.Alone) > 0 && (len(l.Rungs) > 0 || !l.Fits) {
		b.WriteString("\nwhat each change does alone:\n\n")
		rungs(&b, l.Alone)
	}
	if l.Consent != nil {
		b.WriteString("\nit would fit with changes that alter the results (allow them with --allow):\n\n")
		rungs(&b, l.Consent.Rungs)
		toType(&b, l.Consent.Flags)
	}
	if len(l.Rungs) > 0 {
		toType(&b, l.Flags)
	}
	if len(l.Advice) > 0 {
		b.WriteString("\nwhat another model or other data would do:\n\n")
		for _, r := range l.Advice {
			mark := ""
			if r.Fits {
				mark = ", which fits"
			}
			fmt.Fprintf(&b, "  %-22s saves %s, then needs %s%s: %s\n", r.ID, r.Saves,
				r.DevicePeak, mark, r.Title)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// toType writes the remedies in the words of each trainer.
func toType(b *strings.Builder, flags map[string]string) {
	b.WriteString("\nwhat to type, by trainer:\n\n")
	for _, trainer := range slices.Sorted(maps.Keys(flags)) {
		name := trainer
		for line := range strings.SplitSeq(flags[trainer], "\n") {
			fmt.Fprintf(b, "  %-14s %s\n", name, line)
			name = ""
		}
	}
}

func rungs(b *strings.Builder, list []plan.Rung) {
	fmt.Fprintf(b, "  %-22s %12s %12s %10s  %s\n", "remedy", "saves", "then needs", "time",
		"results")
	for _, r := range list {
		name := string(r.ID)
		if r.Pieces > 1 {
			name = fmt.Sprintf("%s x%d", name, r.Pieces)
		}
		mark := ""
		if r.Fits {
			mark = "  fits"
		}
		fmt.Fprintf(b, "  %-22s %12s %12s %9.2fx  %s%s\n", name, r.Saves, r.DevicePeak, r.Slowdown,
			r.Equivalence, mark)
	}
}

// DeviceMap writes how a model is spread over cards, next to what accelerate's "auto" would have
// done.
func DeviceMap(w io.Writer, m *plan.DeviceMap) error {
	var b strings.Builder
	verdict := "fits"
	if !m.Fits {
		verdict = "does not fit"
	}
	fmt.Fprintf(&b, "%s: the fullest card is %.0f %% full (accelerate's \"auto\": %.0f %%)\n\n",
		verdict, 100*m.Fullest, 100*m.Auto.Fullest)
	fmt.Fprintf(&b, "  %-8s %-14s %10s %10s %12s  %s\n", "device", "card", "size", "needs",
		"auto needs", "units")
	for i, d := range m.Devices {
		fmt.Fprintf(&b, "  cuda:%-3d %-14s %10s %10s %12s  %s\n", i, d.Name, d.Total, d.DevicePeak,
			m.Auto.Devices[i], span(d.Units))
	}
	for _, note := range append(idleCards(m), m.Notes...) {
		fmt.Fprintf(&b, "\n%s", note)
	}
	out, err := json.Marshal(m.Map)
	if err != nil {
		return err
	}
	fmt.Fprintf(&b, "\n\ndevice_map = %s\n", out)
	_, err = io.WriteString(w, b.String())
	return err
}

// idleCards returns lines about cards that a map leaves empty, and what uses them.
func idleCards(m *plan.DeviceMap) []string {
	idle := 0
	for _, d := range m.Devices {
		if len(d.Units) == 0 {
			idle++
		}
	}
	if !m.Fits || idle == 0 {
		return nil
	}
	return []string{fmt.Sprintf("%d of %s stay empty: with them the fullest card would be no emptier. "+
		"To use all, train a copy of the model on each (torchrun, DistributedDataParallel)", idle,
		event.Count(len(m.Devices), "card"))}
}

// Sharding writes on how many cards a training fits, and how it is divided among them.
func Sharding(w io.Writer, found *plan.Sharding, batch int) error {
	var b strings.Builder
	if best := found.Best; best == nil {
		b.WriteString("does not fit, on any number of these cards\n")
	} else {
		fmt.Fprintf(&b, "fits on %s: each card needs %s, between %s and %s\n", wayText(*best),
			best.DevicePeak, best.Low, best.High)
		if best.Host > 0 {
			fmt.Fprintf(&b, "the machine needs %s of host memory for what is offloaded\n", best.Host)
		}
		fmt.Fprintf(&b, "for the whole account add: --gpu %s%s\n", best.Card, wayFlags(*best))
	}
	fmt.Fprintf(&b, "\nmicro-batch %d on each card; on each number of cards the fastest way first\n",
		batch)
	divided := slices.ContainsFunc(found.Ways, func(w plan.Way) bool { return w.Shared() > 1 })
	if divided {
		b.WriteString("cards that divide the model work on one micro-batch together; their figures are " +
			"estimates\n")
	}
	width := len("sharded")
	for _, way := range found.Ways {
		width = max(width, len(wayShard(way)))
	}
	fmt.Fprintf(&b, "\n  %5s  %-14s %-*s %-14s %12s %12s  %s\n", "cards", "kind", width, "sharded",
		"checkpointing", "needs", "at most", "fits")
	for _, way := range found.Ways {
		fmt.Fprintf(&b, "  %5d  %-14s %-*s %-14s ", way.Cards, way.Card, width, wayShard(way),
			yesNo(way.Checkpointing))
		if way.Refused != "" {
			fmt.Fprintf(&b, "not planned: %s\n", way.Refused)
			continue
		}
		fmt.Fprintf(&b, "%12s %12s  %s\n", way.DevicePeak, way.High, yesNo(way.Fits))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// wayShard describes how the cards of a way share the work.
func wayShard(way plan.Way) string {
	var parts []string
	add := func(on bool, format string, args ...any) {
		if on {
			parts = append(parts, fmt.Sprintf(format, args...))
		}
	}
	add(way.Shard != "", "%s", way.Shard)
	add(way.Tensor > 1, "tensor %d", way.Tensor)
	add(way.Sequence, "sequence")
	add(way.Context > 1, "context %d", way.Context)
	add(len(way.Offload) > 0, "%s in host memory", strings.Join(way.Offload, ", "))
	if len(parts) == 0 {
		return "-"
	}
	return strings.Join(parts, ", ")
}

// wayText describes a way in words.
func wayText(way plan.Way) string {
	text := "one " + way.Card
	if way.Cards > 1 {
		text = fmt.Sprintf("%d cards of %s with %s", way.Cards, way.Card, wayShard(way))
	}
	if way.Checkpointing {
		text += " and checkpointing"
	}
	return text
}

// wayFlags returns a way as flags of plan.
func wayFlags(way plan.Way) (flags string) {
	if way.Cards > 1 {
		if way.Shard != "" {
			flags = " --shard " + way.Shard
		}
		flags += fmt.Sprintf(" --ranks %d", way.Cards)
	}
	if way.Tensor > 1 {
		flags += fmt.Sprintf(" --tensor-parallel %d --sequence-parallel --loss-parallel",
			way.Tensor)
	}
	if way.Context > 1 {
		flags += fmt.Sprintf(" --context-parallel %d", way.Context)
	}
	if len(way.Offload) > 0 {
		flags += " --offload " + strings.Join(way.Offload, ",")
	}
	if way.Checkpointing {
		flags += " --checkpointing"
	}
	return flags
}

// span shortens a list of units: layers.0 ... layers.11.
func span(units []string) string {
	if len(units) <= 3 {
		return strings.Join(units, ", ")
	}
	return units[0] + ", " + units[1] + " ... " + units[len(units)-1]
}
