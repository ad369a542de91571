package report

import (
	"fmt"
	"html/template"
	"io"
	"strings"

	"memroom/event"
	"memroom/plan"
)

// PlanPage writes a prediction as one HTML file without outside references.
func PlanPage(out io.Writer, p *plan.Prediction) error {
	return planPage.Execute(out, struct {
		*plan.Prediction
		Parts []planPart
		Line  string
		Top   event.Bytes
		Where string
		Reach string
		Peak  string
		Class string  // of the verdict
		Card  float64 // where the card ends, in percent of the bar
	}{p, planParts(p), planLine(p), planTop(p), planWhere(p), planReach(p),
		planPeak(p), map[string]string{plan.Fits: "yes", plan.ProbablyFits: "yes"}[p.Verdict],
		planCardEnd(p)})
}

type planPart struct {
	Name, What, Color string
	Bytes             event.Bytes
	Width             float64 // percent of the bar
}

var planColors = map[string]string{"weights": "#4c78a8", "gradients": "#b279a2",
	"optimizer": "#72b7b2", "activations": "#54a24b", "loss": "#eeca3b",
	"temporary": "#9d755d", "workspace": "#bab0ac", "input": "#d8b5a5", "unknown": "#8c8c8c",
	"rounding": "#cccccc", "cache": "#dddddd", "context": "#e45756"}

func planWhole(p *plan.Prediction) event.Bytes {
	if p.Card != nil {
		return max(p.High, p.Card.Total)
	}
	return p.High
}

func planCardEnd(p *plan.Prediction) float64 {
	if p.Card == nil {
		return 0
	}
	return 100 * float64(p.Card.Total) / float64(planWhole(p))
}

func planParts(p *plan.Prediction) []planPart {
	var parts []planPart
	for _, c := range planCategories {
		if n := p.Categories[c.name]; n > 0 {
			parts = append(parts, planPart{c.name, c.what, planColors[c.name], n,
				100 * float64(n) / float64(planWhole(p))})
		}
	}
	return parts
}

func planTop(p *plan.Prediction) event.Bytes {
	var top event.Bytes
	for _, s := range p.Series {
		top = max(top, s.Allocated)
	}
	return top
}

// planLine is the timeline as points of an SVG polyline, at most a few thousand of them: the
// highest of each column.
func planLine(p *plan.Prediction) string {
	const width, height = 900, 220
	top := float64(max(planTop(p), 1))
	var b strings.Builder
	cols := min(width*2, len(p.Series))
	for c := range cols {
		from, to := c*len(p.Series)/cols, (c+1)*len(p.Series)/cols
		var high event.Bytes
		for _, s := range p.Series[from:to] {
			high = max(high, s.Allocated)
		}
		fmt.Fprintf(&b, "%.1f,%.1f ", float64(c)*width/float64(cols),
			height-float64(high)/top*height)
	}
	return b.String()
}

func planWhere(p *plan.Prediction) string {
	switch {
	case p.Card != nil && p.Card.Name == p.Card.Total.String(): // a card given by its size
		return p.Card.Name
	case p.Card != nil:
		return fmt.Sprintf("%s (%s)", p.Card.Name, p.Card.Total)
	case p.AllocLimit > 0:
		return fmt.Sprintf("a limit of %s on reserved bytes", p.AllocLimit)
	}
	return ""
}

var planPage = template.Must(template.New("plan").Parse(`<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>memroom plan</title>
<style>
body{font:15px/1.5 system-ui,sans-serif;max-width:960px;margin:2rem auto;padding:0 1rem;color:#222;background:#fff}
@media (prefers-color-scheme: dark){body{color:#ddd;background:#16181c}table{border-color:#444}}
h1{font-size:1.6rem;margin:0}h2{font-size:1.1rem;margin-top:2rem}
.bar{display:flex;height:34px;background:#8883;position:relative;border-radius:4px;overflow:hidden}
.bar div{height:100%}.end{position:absolute;top:0;bottom:0;border-left:2px dashed #e45756}
table{border-collapse:collapse}td,th{padding:.15rem .8rem .15rem 0;text-align:left}td.n{text-align:right;font-variant-numeric:tabular-nums}
.dot{display:inline-block;width:.8em;height:.8em;border-radius:2px}.yes{color:#3a8f3a}.no{color:#e45756}
svg{width:100%;height:auto;background:#8881}polyline{fill:none;stroke:#4c78a8;stroke-width:1.2}
</style></head><body>
<h1>{{.DevicePeak}} on the card</h1>
<p>between {{.Low}} and {{.High}} · allocated {{.AllocatedPeak}} · reserved {{.ReservedPeak}} · peak {{.Peak}}</p>
{{with .Assumed}}<p>for {{.}}</p>{{end}}
{{if .Where}}<p>{{.Where}}: <b class="{{or .Class "no"}}">{{.Verdict}}</b>{{with .Reach}} · {{.}}{{end}}</p>{{end}}
<div class="bar">{{range .Parts}}<div title="{{.Name}} {{.Bytes}}" style="width:{{printf "%.3f" .Width}}%;background:{{.Color}}"></div>{{end}}{{if .Card}}<span class="end" style="left:{{printf "%.3f" .Card}}%"></span>{{end}}</div>
<h2>At the peak</h2>
<table>{{range .Parts}}<tr><td><span class="dot" style="background:{{.Color}}"></span> {{.Name}}</td><td class="n">{{.Bytes}}</td><td>{{.What}}</td></tr>{{end}}</table>
<h2>One step</h2>
<svg viewBox="0 0 900 220" role="img" aria-label="allocated bytes over one step"><polyline points="{{.Line}}"/></svg><p>highest {{.Top}}</p>
<h2>By phase</h2>
<table><tr><th>phase</th><th>allocated</th><th>reserved</th></tr>{{range .Phases}}<tr><td>{{.Phase}}</td><td class="n">{{.Allocated}}</td><td class="n">{{.Reserved}}</td></tr>{{end}}</table>
{{range .Warnings}}<p>note: {{.}}</p>{{end}}
</body></html>
`))
