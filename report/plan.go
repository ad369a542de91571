package report

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"memroom/event"
	"memroom/plan"
)

// planCategories are the parts of the peak in the order of the bar, with a letter and a colour
// each.
var planCategories = []struct{ name, letter, color, what string }{
	{"weights", "W", "34", "weights and buffers"},
	{"gradients", "G", "35", "gradients"},
	{"optimizer", "O", "36", "optimizer state"},
	{"activations", "A", "32", "saved for the backward pass"},
	{"loss", "L", "33", "logits, log-probabilities, their gradients"},
	{"temporary", "t", "37", "temporaries"},
	{"workspace", "s", "37", "workspaces of cuBLAS and cuDNN"},
	{"input", "i", "37", "the batch itself"},
	{"unknown", "u", "37", "purpose unknown"},
	{"rounding", "r", "90", "sizes rounded up to the allocator's blocks"},
	{"cache", "c", "90", "reserved by the allocator, free at the peak"},
	{"context", "x", "31", "CUDA context, kernels, libraries"},
}

// Plan prints a prediction for people.
func Plan(out io.Writer, p *plan.Prediction, color bool) error {
	t := NewText(out, color)
	t.planHead(p)
	t.planBar(p)
	t.heading("At the peak")
	var rows [][]string
	for _, c := range planCategories {
		if n := p.Categories[c.name]; n > 0 {
			rows = append(rows, []string{c.letter, c.name, n.String(),
				percent(float64(n), float64(p.DevicePeak)), c.what})
		}
	}
	t.table([]string{"", "", ">bytes", ">share", ""}, rows)
	t.heading("By phase")
	rows = nil
	for _, ph := range p.Phases {
		rows = append(rows, []string{ph.Phase, ph.Allocated.String(), ph.Reserved.String()})
	}
	t.table([]string{"phase", ">allocated", ">reserved"}, rows)
	t.planTimeline(p)
	t.planLines(p.Lines)
	t.planRanks(p.Ranks)
	for _, w := range p.Warnings {
		t.linef("%s %s", t.paint("33", "note:"), w)
	}
	return t.Err()
}

// planLines shows which lines of the program hold most at the peak.
func (t *Text) planLines(lines []plan.LineShare) {
	if len(lines) == 0 {
		return
	}
	t.heading("By line, at the peak")
	var rows [][]string
	for _, l := range lines[:min(len(lines), mostLines)] {
		rows = append(rows, []string{l.Line, l.Bytes.String(), mostOf(l.Category)})
	}
	t.table([]string{"line", ">bytes", "mostly"}, rows)
}

// mostLines is how many lines of a program an answer names.
const mostLines = 8

// mostOf returns the category that holds most, the first by name of equals.
func mostOf(categories map[string]event.Bytes) string {
	best := ""
	for _, name := range slices.Sorted(maps.Keys(categories)) {
		if best == "" || categories[name] > categories[best] {
			best = name
		}
	}
	return best
}

// planRanks is what each kind of rank needs.
func (t *Text) planRanks(ranks []plan.RankPeak) {
	if len(ranks) == 0 {
		return
	}
	t.heading("By rank")
	var rows [][]string
	for _, r := range ranks {
		name := fmt.Sprintf("rank %d", r.First)
		if r.Last > r.First {
			name = fmt.Sprintf("ranks %d to %d", r.First, r.Last)
		}
		rows = append(rows, []string{name, r.Allocated.String(), r.Reserved.String(),
			r.Device.String(), r.Kind})
	}
	t.table([]string{"", ">allocated", ">reserved", ">of the card", ""}, rows)
}

// planHead prints the verdict first: that is what was asked.
func (t *Text) planHead(p *plan.Prediction) {
	t.planVerdict(p)
	who := "PyTorch"
	if p.Allocator != "" {
		who = p.Allocator
	}
	t.linef("needs %s of GPU memory, between %s and %s (%s allocates %s and reserves %s)",
		t.paint("1", p.DevicePeak.String()), p.Low, p.High, who, p.AllocatedPeak, p.ReservedPeak)
	if p.Parameters > 0 {
		t.linef("%s; peak %s", planParameters(p), planPeak(p))
	}
	if p.Assumed != "" {
		t.linef("planned for %s", p.Assumed)
	}
	if h := p.Host; h != nil && h.PerRank > 0 {
		t.linef("%s", planHost(h))
	}
	if h := p.Host; h != nil && h.Loading.Mapped >= event.GiB {
		t.linef("%s", planLoading(h))
	}
}

func (t *Text) planVerdict(p *plan.Prediction) {
	if p.Fits == nil {
		return
	}
	colour := map[string]string{plan.Fits: "32;1", plan.ProbablyFits: "33;1",
		plan.ProbablyDoesNot: "33;1"}[p.Verdict]
	line := t.paint(cmp.Or(colour, "31;1"), p.Verdict) + " " + planWhere(p) + planBounds(p)
	if reach := planReach(p); reach != "" {
		line += "; " + reach
	}
	t.linef("%s", line)
}

// planBounds returns what leaves a verdict open.
func planBounds(p *plan.Prediction) string {
	switch p.Verdict {
	case plan.ProbablyFits:
		return fmt.Sprintf(": needs %s, at most %s", p.DevicePeak.Of(p.Room), p.High.Beside(p.Room))
	case plan.ProbablyDoesNot:
		return fmt.Sprintf(": needs %s, at least %s", p.DevicePeak.Of(p.Room), p.Low.Beside(p.Room))
	}
	return ""
}

// planParameters describes how many parameters there are and how many of them are trained.
func planParameters(p *plan.Prediction) string {
	if p.Trainable == p.Parameters {
		return grouped(int(p.Parameters)) + " parameters, all trained"
	}
	return fmt.Sprintf("%s parameters, %s of them trained", grouped(int(p.Parameters)),
		grouped(int(p.Trainable)))
}

// planPeak describes where memory is highest.
func planPeak(p *plan.Prediction) string {
	where := "in the " + p.Phase + " pass"
	switch p.Phase {
	case "load":
		where = "while the model is loaded"
	case "optimizer":
		where = "in the optimizer step"
	case "evaluation", "generation":
		where = "in the " + p.Phase
	case "reference":
		where = "in the reference's forward pass"
	}
	if p.PeakOp != "" {
		where += ", at " + p.PeakOp
		if p.PeakModule != "" && p.PeakModule != p.PeakOp {
			where += " of " + p.PeakModule
		}
	}
	return where
}

// planHost describes how much of the host's memory offloading takes.
func planHost(h *plan.HostNeed) string {
	var parts []string
	if h.Optimizer > 0 {
		parts = append(parts, fmt.Sprintf("%s of optimizer state", h.Optimizer))
	}
	if h.Activation > 0 {
		parts = append(parts, fmt.Sprintf("%s of activations", h.Activation))
	}
	if h.Parameters > 0 {
		parts = append(parts, fmt.Sprintf("%s of weights", h.Parameters))
	}
	if h.Gradients > 0 {
		parts = append(parts, fmt.Sprintf("%s of gradients", h.Gradients))
	}
	where := "offloaded to host memory"
	if h.Processes > 1 {
		where += fmt.Sprintf(" (%d processes on a machine)", h.Processes)
	}
	text := where + ": " + strings.Join(parts, " and ")
	if h.Processes > 1 {
		text += fmt.Sprintf("; %s page-locked on the machine, %s a process", h.Pinned, h.PerRank)
	}
	return text
}

// planLoading describes how much memory reading the model from its files takes.
func planLoading(h *plan.HostNeed) string {
	l := h.Loading
	card, host := "the card", fmt.Sprintf("no host memory but its files, mapped (%s)", l.Mapped)
	if h.Processes > 1 {
		card = "each card"
	}
	if l.Host > 0 {
		host = fmt.Sprintf("%s of host memory", l.Host)
		if h.Processes > 1 {
			host += fmt.Sprintf(" for %d processes on a machine", h.Processes)
		}
	}
	return fmt.Sprintf("loading the model takes %s of %s and %s: %s", l.Card, card, host, l.How)
}

// planReach describes how far batch and sequence could go.
func planReach(p *plan.Prediction) string {
	if p.MaxBatch == nil {
		return ""
	}
	if *p.MaxBatch == 0 {
		if n := p.LikelyBatch; n != nil && *n > 0 {
			return fmt.Sprintf("no batch is sure to fit, batch %d probably does", *n)
		}
		if p.MaxSeq != nil && *p.MaxSeq > 0 {
			return fmt.Sprintf("not even batch 1 fits; sequences of up to %d fit at this batch",
				*p.MaxSeq)
		}
		return "not even batch 1 fits"
	}
	text := fmt.Sprintf("largest batch %d", *p.MaxBatch)
	switch {
	case p.MaxSeq == nil:
	case *p.MaxSeq == 0:
		text += "; at this batch no sequence fits"
	default:
		text += fmt.Sprintf(", longest sequence %d at this batch", *p.MaxSeq)
	}
	return text
}

// planBar draws the peak by category against the card.
func (t *Text) planBar(p *plan.Prediction) {
	const width = 72
	whole := p.High
	if p.Card != nil {
		whole = max(whole, p.Card.Total)
	}
	var bar strings.Builder
	used := 0
	for i, n := range planCells(p, whole, width) {
		if n > 0 {
			bar.WriteString(t.paint(planCategories[i].color,
				strings.Repeat(planCategories[i].letter, n)))
			used += n
		}
	}
	bar.WriteString(strings.Repeat("·", max(width-used, 0)))
	t.linef("\n  %s %s", bar.String(), whole)
	if p.Card != nil && p.Card.Total < whole {
		at := int(int64(p.Card.Total) * width / int64(whole))
		t.linef("  %s^ %s of the card", strings.Repeat(" ", min(at, width-1)), p.Card.Total)
	}
}

// planCells shares the cells of a bar among the categories: each gets its whole cells, the largest
// rests get what is left, and what fills half a cell has one, at the cost of the longest.
func planCells(p *plan.Prediction, whole event.Bytes, width int) []int {
	cells, rests := make([]int, len(planCategories)), make([]float64, len(planCategories))
	var sum float64
	left := 0
	for i, c := range planCategories {
		exact := min(float64(max(p.Categories[c.name], 0))*float64(width)/float64(max(whole, 1)),
			float64(width))
		sum += exact
		cells[i] = int(exact)
		if rests[i] = exact - float64(cells[i]); cells[i] == 0 && exact >= 0.5 {
			cells[i], rests[i] = 1, 0
		}
		left -= cells[i]
	}
	for left += min(int(sum+0.5), width); left != 0; {
		if left > 0 {
			i := slices.Index(rests, slices.Max(rests))
			cells[i], rests[i] = cells[i]+1, 0
			left--
			continue
		}
		most := slices.Max(cells)
		if most <= 1 && int(sum) < width {
			break // the bar is a little too long, but nothing is missing
		}
		cells[slices.Index(cells, most)]--
		left++
	}
	return cells
}

// planTimeline draws allocated bytes over one step.
func (t *Text) planTimeline(p *plan.Prediction) {
	const width, height, fewest = 72, 8, 4 // in fewer points there is nothing to see
	if len(p.Series) < fewest {
		return
	}
	cols := make([]event.Bytes, width)
	phases := make([]string, width)
	var top event.Bytes
	for c := range cols {
		from := c * len(p.Series) / width
		for _, s := range p.Series[from:max(from+1, (c+1)*len(p.Series)/width)] {
			cols[c], phases[c] = max(cols[c], s.Allocated), s.Phase
		}
		top = max(top, cols[c])
	}
	t.heading("One step")
	levels := []rune(" ▁▂▃▄▅▆▇█")
	for row := height - 1; row >= 0; row-- {
		var line strings.Builder
		for _, v := range cols {
			eighths := int(int64(v) * height * 8 / max(int64(top), 1))
			line.WriteRune(levels[min(max(eighths-row*8, 0), 8)])
		}
		label := ""
		if row == height-1 {
			label = " " + top.String()
		}
		t.linef("  %s%s", line.String(), label)
	}
	var names strings.Builder
	for i := 0; i < width; {
		j := i
		for j < width && phases[j] == phases[i] {
			j++
		}
		name := phases[i]
		if len(name) > j-i-1 {
			name = name[:max(j-i-1, 0)]
		}
		names.WriteString(fmt.Sprintf("%-*s", j-i, name))
		i = j
	}
	t.linef("  %s", names.String())
}
