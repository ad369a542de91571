package report

import (
	"bufio"
	"fmt"
	"html"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"memroom/event"
	"memroom/trial"
)

// StudyHTML writes a study as one page: no script, no network, no other file.
func StudyHTML(out io.Writer, p trial.Picture, s trial.Shape) error {
	w := &studyPage{Writer: bufio.NewWriterSize(out, 1<<16), p: p, s: s}
	w.head()
	w.summary()
	w.history()
	w.weights()
	w.memory()
	w.packing()
	w.ledger()
	w.trials()
	w.put("</main>\n</body>\n</html>\n")
	return w.Flush()
}

type studyPage struct {
	*bufio.Writer
	p trial.Picture
	s trial.Shape
}

func (w *studyPage) put(format string, args ...any) { fmt.Fprintf(w, format, args...) }

// text is safe inside of an element and of an attribute.
func text(s string) string { return html.EscapeString(cleanText(s)) }

const studyStyle = `
:root { color-scheme: light dark; --ink: #22252a; --soft: #5c626b; --line: #d9dbde; --ground: #fff;
  --panel: #f6f7f8; --good: #1f6b43; --bad: #a33029; --blue: #1f5aa6; --tight: #8a5200; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e6e9; --soft: #9aa1ab; --line: #3a3f46;
  --ground: #16181b; --panel: #1f2226; --good: #74c79a; --bad: #f08a80; --blue: #8ab4ea;
  --tight: #e0a24f; } }
body { margin: 0; background: var(--ground); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 62rem; margin: 0 auto; padding: 1rem 1.25rem 3rem; }
h1 { font-size: 1.4rem; margin: 0.5rem 0 0; } h2 { font-size: 1.1rem; margin: 2rem 0 0.25rem; }
p { margin: 0.25rem 0; } .soft { color: var(--soft); } code { overflow-wrap: anywhere; }
.figures { display: flex; flex-wrap: wrap; gap: 0.75rem; margin: 1rem 0; }
.figures div { background: var(--panel); border: 1px solid var(--line); border-radius: 6px;
  padding: 0.5rem 0.9rem; } .figures b { display: block; font-size: 1.2rem; }
svg { display: block; width: 100%; height: auto; background: var(--panel);
  border: 1px solid var(--line); border-radius: 6px; margin: 0.5rem 0; }
svg text { fill: var(--ink); font: 12px system-ui, sans-serif; } svg .soft { fill: var(--soft); }
.grid { stroke: var(--line); } .wall { stroke: var(--bad); stroke-dasharray: 6 4; fill: none; }
.cliff { fill: var(--bad); opacity: 0.13; }
.line { stroke: var(--blue); fill: none; stroke-width: 2; }
.area { fill: var(--blue); opacity: 0.18; } .finished { fill: var(--good); }
.stopped { fill: var(--soft); }
.failed { fill: var(--tight); } .infeasible, .oom { fill: var(--bad); }
.running, .waiting { fill: var(--blue); }
.cross { stroke: var(--bad); stroke-width: 2; fill: none; } .second { fill: var(--blue); }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-size: 13px; }
th, td { text-align: left; padding: 0.25rem 0.6rem; border-bottom: 1px solid var(--line);
  vertical-align: top; } .num { text-align: right; font-variant-numeric: tabular-nums; }
tr.best td { font-weight: 600; }
`

func (w *studyPage) head() {
	w.put("<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n" +
		"<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; " +
		"style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'\">\n" +
		"<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n")
	w.put("<title>%s · memroom study</title>\n<style>%s</style>\n</head>\n<body>\n<main>\n",
		text(w.p.Name), studyStyle)
}

func (w *studyPage) summary() {
	p := w.p
	w.put("<h1>Study %s</h1>\n<p class=\"soft\">%s · search: %s · <code>%s</code></p>\n",
		text(p.Name), p.Created.Format("2006-01-02 15:04"), text(p.Search),
		text(strings.Join(p.Command, " ")))
	if best := w.best(); best != nil {
		w.put("<p>Best %s: <b>%s</b> in trial %d, with %s.</p>\n", text(p.Metric),
			number(*best.Value), best.ID, text(w.settings(*best)))
	} else {
		w.put("<p>No trial finished with a value of %s.</p>\n", text(p.Metric))
	}
	most := event.Bytes(0)
	together := 0
	for _, h := range p.Held {
		most, together = max(most, h.Host), max(together, h.Running)
	}
	w.put("<div class=\"figures\">\n")
	for _, f := range [][3]string{
		{"finished", fmt.Sprintf("%d of %d", p.States[trial.Finished], p.Wanted),
			fmt.Sprintf("%d stopped early, %d failed", p.States[trial.Stopped],
				p.States[trial.Failed])},
		{"do not fit", strconv.Itoa(p.States[trial.Infeasible]), "trials"},
		{"ran out of memory", fmt.Sprintf("%d of %d", p.OOMs, p.Attempts), "attempts"},
		{"reserved at most", most.String(), budgetWords(p.Host)},
		{"at once at most", strconv.Itoa(together), "trials"},
		{"took", seconds(p.Seconds), "from the first start to the last end"},
	} {
		w.put("<div>%s<b>%s</b><span class=\"soft\">%s</span></div>\n", f[0], text(f[1]), text(f[2]))
	}
	w.put("</div>\n")
}

func budgetWords(budget event.Bytes) string {
	if budget == 0 {
		return "of host memory"
	}
	return "of the " + budget.String() + " given"
}

func (w *studyPage) best() *trial.Pictured {
	for i, t := range w.p.Trials {
		if w.p.Best != nil && t.ID == *w.p.Best && t.Value != nil {
			return &w.p.Trials[i]
		}
	}
	return nil
}

func (w *studyPage) settings(t trial.Pictured) string {
	var words []string
	for i, a := range w.p.Axes {
		if i < len(t.Params) {
			words = append(words, a.Name+"="+t.Params[i])
		}
	}
	return strings.Join(words, ", ")
}

func number(f float64) string { return strconv.FormatFloat(f, 'g', 6, 64) }

func seconds(s float64) string {
	switch {
	case s < 60:
		return strconv.FormatFloat(s, 'f', 1, 64) + " s"
	case s < 3600:
		return fmt.Sprintf("%d min %d s", int(s)/60, int(s)%60)
	}
	return fmt.Sprintf("%d h %d min", int(s)/3600, int(s)/60%60)
}

// plot is a drawing with a frame; x and y go from 0 to 1, y upwards.
type plot struct {
	*studyPage
	height float64
}

const plotWidth, plotLeft, plotRight, plotTop, plotFoot = 960.0, 92.0, 20.0, 14.0, 34.0

func (w *studyPage) plot(height float64, label string) plot {
	w.put("<svg viewBox=\"0 0 %g %g\" role=\"img\" aria-label=\"%s\">\n", plotWidth, height,
		text(label))
	return plot{w, height}
}

func (g plot) x(share float64) float64 {
	return math.Round((plotLeft+share*(plotWidth-plotLeft-plotRight))*10) / 10
}

func (g plot) y(share float64) float64 {
	return math.Round((g.height-plotFoot-share*(g.height-plotFoot-plotTop))*10) / 10
}

// scale writes the marks of the vertical axis.
func (g plot) scale(words func(share float64) string) {
	for _, share := range []float64{0, 0.5, 1} {
		g.put("<line class=\"grid\" x1=\"%g\" x2=\"%g\" y1=\"%g\" y2=\"%g\"/>\n", g.x(0), g.x(1),
			g.y(share), g.y(share))
		g.put("<text x=\"%g\" y=\"%g\" text-anchor=\"end\">%s</text>\n", plotLeft-8, g.y(share)+4,
			text(words(share)))
	}
}

func (g plot) below(share float64, anchor, words string) {
	g.put("<text class=\"soft\" x=\"%g\" y=\"%g\" text-anchor=\"%s\">%s</text>\n", g.x(share),
		g.height-12, anchor, text(words))
}

func (g plot) end() { g.put("</svg>\n") }

// history draws every value in the order of the trials' ends, and the best so far.
func (w *studyPage) history() {
	w.put("<h2>History</h2>\n")
	type value struct {
		at, v float64
		t     trial.Pictured
	}
	var values []value
	low, high := math.Inf(1), math.Inf(-1)
	for _, t := range w.p.Trials {
		if t.Value == nil || len(t.Attempts) == 0 {
			continue
		}
		values = append(values, value{t.Attempts[len(t.Attempts)-1].To, *t.Value, t})
		low, high = min(low, *t.Value), max(high, *t.Value)
	}
	if len(values) == 0 {
		w.put("<p class=\"soft\">No trial has a value.</p>\n")
		return
	}
	w.put("<p class=\"soft\">Each dot is a trial at its end; the line is the best so far.</p>\n")
	span := max(high-low, 1e-300)
	end := max(w.p.Seconds, 1e-9)
	g := w.plot(280, w.p.Metric+" over time")
	g.scale(func(share float64) string { return number(low + share*(high-low)) })
	for _, v := range values {
		g.put("<circle class=\"%s\" cx=\"%g\" cy=\"%g\" r=\"4\"><title>trial %d: %s (%s)</title>"+
			"</circle>\n", v.t.State, g.x(v.at/end), g.y((v.v-low)/span), v.t.ID, number(v.v),
			text(w.settings(v.t)))
	}
	path := ""
	for i, r := range w.p.Records {
		x, y := g.x(r.At/end), g.y((r.Value-low)/span)
		if i == 0 {
			path = fmt.Sprintf("M%g %g", x, y)
			continue
		}
		path += fmt.Sprintf(" H%g V%g", x, y)
	}
	if path != "" {
		g.put("<path class=\"line\" d=\"%s H%g\"/>\n", path, g.x(1))
	}
	g.below(0, "start", "0 s")
	g.below(1, "end", seconds(w.p.Seconds))
	g.end()
}

// weights draws how much each knob matters to the value and to the memory.
func (w *studyPage) weights() {
	w.put("<h2>What matters</h2>\n<p class=\"soft\">Share of the differences between trials that " +
		"goes with one setting (variance between bins, corrected for chance): green for the " +
		"value, blue for the peak memory.</p>\n")
	if len(w.s.Weights) == 0 {
		return
	}
	const row = 38.0
	g := w.plot(row*float64(len(w.s.Weights))+10, "Importance of each setting")
	for i, one := range w.s.Weights {
		y := 8 + row*float64(i)
		name := one.Axis
		if r := []rune(name); len(r) > 14 {
			name = string(r[:13]) + "…"
		}
		g.put("<text x=\"%g\" y=\"%g\" text-anchor=\"end\">%s</text>\n", plotLeft-8, y+18, text(name))
		for j, share := range []float64{one.Metric, one.Memory} {
			class := []string{"finished", "second"}[j]
			length := (plotWidth - plotLeft - plotRight - 60) * share
			top := y + 15*float64(j)
			g.put("<rect class=\"%s\" x=\"%g\" y=\"%g\" width=\"%.1f\" height=\"12\"/>\n", class,
				plotLeft, top, max(length, 1))
			g.put("<text class=\"soft\" x=\"%.1f\" y=\"%g\">%.0f %%</text>\n", plotLeft+length+6,
				top+10, 100*share)
		}
	}
	g.end()
}

// memory draws the peaks against the settings that matter most to them.
func (w *studyPage) memory() {
	where, budget := "host memory", w.p.Host
	if w.s.OnCard {
		where, budget = "a card's memory", w.p.Device
	}
	w.put("<h2>Peak memory against the settings</h2>\n<p class=\"soft\">Peaks of %s. A cross ran "+
		"out with that much and needs more; the dashed line is the budget; red ground is where "+
		"nothing fitted.</p>\n", where)
	if len(w.s.Peaks) == 0 {
		w.put("<p class=\"soft\">No peak was measured.</p>\n")
		return
	}
	order := make([]int, len(w.p.Axes))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		if w.s.Weights[a].Memory > w.s.Weights[b].Memory {
			return -1
		}
		return 1
	})
	const most = 4
	for i, axis := range order {
		if i < most && (i == 0 || w.s.Weights[axis].Memory > 0.02 || w.hasCliff(axis)) {
			w.memoryAgainst(axis, budget)
		}
	}
}

func (w *studyPage) hasCliff(axis int) bool {
	return slices.ContainsFunc(w.s.Cliffs, func(c trial.Cliff) bool {
		return c.Axis == w.p.Axes[axis].Name
	})
}

func (w *studyPage) memoryAgainst(axis int, budget event.Bytes) {
	a := w.p.Axes[axis]
	top := budget
	for _, p := range w.s.Peaks {
		top = max(top, p.Bytes)
	}
	g := w.plot(280, "Peak memory against "+a.Name)
	g.scale(func(share float64) string { return event.Bytes(share * 1.05 * float64(top)).String() })
	height := func(b event.Bytes) float64 { return g.y(float64(b) / (1.05 * float64(top))) }
	const inset = 0.03 // dots at the ends stay inside
	across := func(at float64) float64 { return g.x(inset + at*(1-2*inset)) }
	for _, c := range w.s.Cliffs {
		if c.Axis == a.Name {
			from := (across(a.Place(c.Fits)) + across(a.Place(c.Fails))) / 2
			g.put("<rect class=\"cliff\" x=\"%.1f\" y=\"%g\" width=\"%.1f\" height=\"%g\"><title>"+
				"%s up to %s fits, from %s on it does not</title></rect>\n", from, g.y(1),
				g.x(1)-from, g.y(0)-g.y(1), text(a.Name), number(c.Fits), number(c.Fails))
		}
	}
	if budget > 0 {
		g.put("<line class=\"wall\" x1=\"%g\" x2=\"%g\" y1=\"%g\" y2=\"%g\"/>\n", g.x(0), g.x(1),
			height(budget), height(budget))
	}
	byID := map[int]trial.Pictured{}
	for _, t := range w.p.Trials {
		byID[t.ID] = t
	}
	for _, p := range w.s.Peaks {
		t := byID[p.Trial]
		if axis >= len(t.At) || t.At[axis] == nil {
			continue
		}
		x, y := across(*t.At[axis]), height(p.Bytes)
		title := fmt.Sprintf("trial %d: %s (%s)", t.ID, p.Bytes, w.settings(t))
		if p.More {
			g.put("<path class=\"cross\" d=\"M%g %gl8 8m0 -8l-8 8\"><title>%s</title></path>\n", x-4,
				y-4, text("more than "+title))
			continue
		}
		g.put("<circle class=\"%s\" cx=\"%g\" cy=\"%g\" r=\"4\"><title>%s</title></circle>\n", t.State,
			x, y, text(title))
	}
	w.axisWords(g, a, across)
	g.end()
}

func (w *studyPage) axisWords(g plot, a trial.Axis, across func(float64) float64) {
	if n := len(a.Choices); n > 0 {
		for i, c := range a.Choices[:min(n, 10)] {
			at := 0.5
			if n > 1 {
				at = float64(i) / float64(n-1)
			}
			g.put("<text class=\"soft\" x=\"%g\" y=\"%g\" text-anchor=\"middle\">%s</text>\n",
				across(at), g.height-16, text(c))
		}
	} else {
		g.put("<text class=\"soft\" x=\"%g\" y=\"%g\" text-anchor=\"middle\">%s</text>\n", across(0),
			g.height-16, number(a.Low))
		g.put("<text class=\"soft\" x=\"%g\" y=\"%g\" text-anchor=\"middle\">%s</text>\n", across(1),
			g.height-16, number(a.High))
	}
	scale := ""
	if a.Log {
		scale = " (logarithmic)"
	}
	g.put("<text x=\"%g\" y=\"%g\" text-anchor=\"middle\">%s</text>\n", g.x(0.5), g.height-3,
		text(a.Name+scale))
}

// packing draws which attempts ran at once and what was reserved.
func (w *studyPage) packing() {
	w.put("<h2>Packing over time</h2>\n")
	if len(w.p.Held) == 0 {
		w.put("<p class=\"soft\">Nothing was started.</p>\n")
		return
	}
	w.put("<p class=\"soft\">Reserved host memory, and below it each attempt as a bar: green " +
		"finished, red ran out of memory, brown failed, grey stopped.</p>\n")
	end := max(w.p.Seconds, 1e-9)
	top := max(w.p.Host, 1)
	for _, h := range w.p.Held {
		top = max(top, h.Host)
	}
	g := w.plot(180, "Reserved host memory over time")
	g.scale(func(share float64) string { return event.Bytes(share * float64(top)).String() })
	path := fmt.Sprintf("M%g %g", g.x(0), g.y(0))
	for _, h := range w.p.Held {
		path += fmt.Sprintf(" H%g V%g", g.x(h.At/end), g.y(float64(h.Host)/float64(top)))
	}
	path += fmt.Sprintf(" H%g", g.x(1))
	g.put("<path class=\"area\" d=\"%s V%g Z\"/>\n<path class=\"line\" d=\"%s\"/>\n", path, g.y(0),
		path)
	if w.p.Host > 0 {
		y := g.y(float64(w.p.Host) / float64(top))
		g.put("<line class=\"wall\" x1=\"%g\" x2=\"%g\" y1=\"%g\" y2=\"%g\"/>\n", g.x(0), g.x(1), y, y)
	}
	g.below(0, "start", "0 s")
	g.below(1, "end", seconds(w.p.Seconds))
	g.end()
	w.lanes(end)
}

func (w *studyPage) lanes(end float64) {
	lanes := 1
	for _, t := range w.p.Trials {
		for _, b := range t.Attempts {
			lanes = max(lanes, b.Lane+1)
		}
	}
	row := min(16, max(3, 320/float64(lanes)))
	g := w.plot(row*float64(lanes)+16, "Attempts over time")
	for _, t := range w.p.Trials {
		for i, b := range t.Attempts {
			class := string(t.State)
			switch {
			case b.OOM:
				class = "oom"
			case i < len(t.Attempts)-1:
				class = "stopped"
			}
			g.put("<rect class=\"%s\" x=\"%g\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"><title>%s"+
				"</title></rect>\n", class, g.x(b.From/end), 8+row*float64(b.Lane),
				max(1, g.x(b.To/end)-g.x(b.From/end)-0.5), row-1,
				text(fmt.Sprintf("trial %d, attempt %d: %s; %s reserved, %s used", t.ID, i+1, b.How,
					b.Reserved, b.Peak)))
		}
	}
	g.end()
}

// ledger lists the trials that ran out of memory and what became of each.
func (w *studyPage) ledger() {
	w.put("<h2>Trials that ran out of memory</h2>\n")
	if len(w.s.Ledger) == 0 {
		w.put("<p class=\"soft\">None.</p>\n")
		return
	}
	w.put("<div class=\"scroll\"><table>\n<thead><tr><th class=\"num\">trial</th><th>settings</th>" +
		"<th>attempts</th><th>what became of it</th></tr></thead>\n<tbody>\n")
	byID := map[int]trial.Pictured{}
	for _, t := range w.p.Trials {
		byID[t.ID] = t
	}
	for _, r := range w.s.Ledger {
		became := string(r.Became)
		if r.Why != "" && r.Became != trial.Finished {
			became += ": " + r.Why
		}
		if r.Nearest != nil {
			became += fmt.Sprintf("; nearest that fits: %s (trial %d)", w.settings(byID[*r.Nearest]),
				*r.Nearest)
		}
		w.put("<tr><td class=\"num\">%d</td><td>%s</td><td>%s</td><td>%s</td></tr>\n", r.Trial,
			text(w.settings(byID[r.Trial])), text(strings.Join(r.Steps, "; ")), text(became))
	}
	w.put("</tbody>\n</table></div>\n")
}

// mostRows of the table of trials; the JSON has all of them.
const mostRows = 2000

func (w *studyPage) trials() {
	p := w.p
	w.put("<h2>Trials</h2>\n<div class=\"scroll\"><table>\n<thead><tr><th class=\"num\">trial</th>"+
		"<th>state</th><th class=\"num\">%s</th>", text(p.Metric))
	for _, a := range p.Axes {
		w.put("<th>%s</th>", text(a.Name))
	}
	w.put("<th class=\"num\">attempts</th><th class=\"num\">peak, host</th><th class=\"num\">" +
		"peak, card</th><th class=\"num\">reserved</th></tr></thead>\n<tbody>\n")
	for _, t := range p.Trials[:min(len(p.Trials), mostRows)] {
		class, value := "", "-"
		if p.Best != nil && t.ID == *p.Best {
			class = " class=\"best\""
		}
		if t.Value != nil {
			value = number(*t.Value)
		}
		w.put("<tr%s><td class=\"num\">%d</td><td>%s</td><td class=\"num\">%s</td>", class, t.ID,
			text(stateWords(t)), value)
		for i := range p.Axes {
			cell := ""
			if i < len(t.Params) {
				cell = t.Params[i]
			}
			w.put("<td>%s</td>", text(cell))
		}
		reserved := event.Bytes(0)
		if n := len(t.Attempts); n > 0 {
			reserved = t.Attempts[n-1].Reserved
		}
		w.put("<td class=\"num\">%d</td><td class=\"num\">%s</td><td class=\"num\">%s</td>"+
			"<td class=\"num\">%s</td></tr>\n", len(t.Attempts), orDash(t.Peak), orDash(t.PeakCard),
			orDash(reserved))
	}
	w.put("</tbody>\n</table></div>\n")
	if more := len(p.Trials) - mostRows; more > 0 {
		w.put("<p class=\"soft\">%d more: memroom tune show --json %s</p>\n", more, text(p.Name))
	}
}

func stateWords(t trial.Pictured) string {
	if t.Why != "" && t.State != trial.Finished {
		return string(t.State) + ": " + t.Why
	}
	return string(t.State)
}

func orDash(b event.Bytes) string {
	if b == 0 {
		return "-"
	}
	return b.String()
}
