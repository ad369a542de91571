package cli

import (
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/term"

	"memroom/event"
	"memroom/trial"
	"memroom/trial/engine"
)

// tuneView shows a study while it runs: a table on a terminal, lines elsewhere.
type tuneView struct {
	*session
	engine   *engine.Engine
	quiet    bool
	terminal bool
	drawn    int // lines of the table on the screen
	at       time.Time
	began    time.Time
}

func newTuneView(s *session, e *engine.Engine, quiet bool) *tuneView {
	f, ok := fileOf(s.Err)
	return &tuneView{session: s, engine: e, quiet: quiet, began: time.Now(),
		terminal: ok && isTerminal(f) && os.Getenv("TERM") != "dumb" && !quiet}
}

func (v *tuneView) begin() {
	if v.quiet {
		return
	}
	capacity, _ := v.engine.Backend.Capacity()
	cards := ""
	if n := len(capacity.Cards); n > 0 {
		cards = ", " + event.Count(n, "card")
	}
	v.note("memroom: study %s: %s, %s of host memory, %v processors%s", v.engine.Spec.Name,
		event.Count(v.engine.Wanted(), "trial"), capacity.Host, capacity.CPUs, cards)
}

// line prints something that happened, above the table.
func (v *tuneView) line(text string) {
	if v.quiet {
		return
	}
	v.clear()
	v.note("memroom: %s", text)
	v.at = time.Time{}
}

// clear takes the table off the screen.
func (v *tuneView) clear() {
	if v.drawn > 0 {
		fmt.Fprintf(v.Err, "\x1b[%dA\x1b[J", v.drawn)
		v.drawn = 0
	}
}

func (v *tuneView) end() { v.clear() }

// refresh draws the table, twice a second.
func (v *tuneView) refresh() {
	if !v.terminal || time.Since(v.at) < 500*time.Millisecond {
		return
	}
	v.at = time.Now()
	width := 80
	if f, ok := fileOf(v.Err); ok {
		if w, _, err := term.GetSize(int(f.Fd())); err == nil && w > 20 {
			width = w
		}
	}
	lines := v.table(width)
	v.clear()
	fmt.Fprint(v.Err, strings.Join(lines, "\n")+"\n")
	v.drawn = len(lines)
}

func (v *tuneView) table(width int) []string {
	e := v.engine
	count := e.Study.Count()
	over := count[trial.Finished] + count[trial.Failed] + count[trial.Infeasible] +
		count[trial.Stopped]
	var reserved, used event.Bytes
	lives := e.Live()
	for _, l := range lives {
		reserved, used = reserved+l.Reserved, used+l.Usage.Host
	}
	capacity := e.Capacity()
	best := "none yet"
	if b := e.Study.Best(); b != nil {
		best = fmt.Sprintf("%s=%.5g (%s)", e.Spec.Options.Metric, *b.Value, b.Params.Short())
	}
	lines := []string{
		fmt.Sprintf("%s %d of %d over, %d running, %d failed, %d infeasible, %d stopped, %s",
			progressBar(over, e.Wanted(), 20), over, e.Wanted(), count[trial.Running], count[trial.Failed],
			count[trial.Infeasible], count[trial.Stopped],
			time.Since(v.began).Round(time.Second)),
		fmt.Sprintf("host memory: %s reserved, %s used, of %s", reserved, used, capacity.Host)}
	for i, card := range capacity.Cards {
		var dr, du event.Bytes
		for _, l := range lives {
			a := l.Trial.Attempts[len(l.Trial.Attempts)-1]
			for _, c := range a.Cards {
				if c == i {
					dr, du = dr+l.OnCard, du+l.Usage.Device
				}
			}
		}
		lines = append(lines, fmt.Sprintf("card %d: %s reserved, %s used, of %s", i, dr, du,
			card.Budget))
	}
	lines = append(lines, "best: "+best)
	for i, l := range lives {
		if i == 12 {
			lines = append(lines, fmt.Sprintf("... and %d more", len(lives)-i))
			break
		}
		value := "-"
		if h := l.Trial.History(); len(h) > 0 {
			value = fmt.Sprintf("%.5g", h[len(h)-1].Value)
		}
		state := ""
		if l.Usage.Held {
			state = " waits for memory"
		}
		lines = append(lines, fmt.Sprintf("%5d  %9s of %-9s %8s  %s%s", l.Trial.ID, l.Usage.Host,
			l.Reserved, value, l.Trial.Params.Short(), state))
	}
	for i, line := range lines {
		if r := []rune(line); len(r) >= width {
			lines[i] = string(r[:width-1])
		}
	}
	return lines
}

func progressBar(done, of, width int) string {
	full := 0
	if of > 0 {
		full = min(width, done*width/of)
	}
	return "[" + strings.Repeat("#", full) + strings.Repeat(".", width-full) + "]"
}

// printStudy is the final report.
func printStudy(s *session, e *engine.Engine, quiet bool) {
	count := e.Study.Count()
	fmt.Fprintf(s.Out, "study %s: %s: %d finished, %d stopped early, %d failed, "+
		"%d do not fit\n", e.Spec.Name, event.Count(len(e.Study.Trials), "trial"),
		count[trial.Finished], count[trial.Stopped], count[trial.Failed], count[trial.Infeasible])
	if !quiet {
		printTrials(s, e)
	}
	printLedger(s, e)
	if e.Spec.Options.Metric == engine.NoMetric {
		return // no trial is better than another
	}
	if best := e.Study.Best(); best != nil {
		fmt.Fprintf(s.Out, "best: trial %d, %s=%.5g with %s\n", best.ID, e.Spec.Options.Metric,
			*best.Value, best.Params.Short())
	} else if ahead, last := e.Study.Leading(); ahead != nil {
		fmt.Fprintf(s.Out, "best so far: trial %d, %s=%.5g at step %d with %s; no trial has finished\n",
			ahead.ID, e.Spec.Options.Metric, last.Value, last.Step, ahead.Params.Short())
	} else {
		fmt.Fprintf(s.Out, "best: none, because no trial finished with a value\n")
	}
}

func printTrials(s *session, e *engine.Engine) {
	const most = 50
	metric := e.Spec.Options.Metric
	if metric == engine.NoMetric {
		metric = ""
	}
	onCard, cards := false, ""
	for _, t := range e.Study.Trials {
		_, card := peaksOf(t)
		onCard = onCard || card > 0
	}
	if onCard {
		cards = fmt.Sprintf("%10s  ", "on card")
	}
	fmt.Fprintf(s.Out, "%5s  %-10s %12s  %8s  %10s  %s%s\n", "trial", "state", metric, "attempts",
		"peak", cards, "settings")
	for i, t := range e.Study.Trials {
		if i == most {
			fmt.Fprintf(s.Out, "... and %d more: memroom tune show --json %s\n",
				len(e.Study.Trials)-most, e.Spec.Name)
			break
		}
		value := "-"
		if t.Value != nil && metric != "" {
			value = fmt.Sprintf("%.5g", *t.Value)
		}
		peak, card := peaksOf(t)
		if onCard {
			cards = fmt.Sprintf("%10s  ", card)
		}
		fmt.Fprintf(s.Out, "%5d  %-10s %12s  %8d  %10s  %s%s\n", t.ID, t.State, value,
			len(t.Attempts), peak, cards, t.Params.Short())
	}
}

// peaksOf are those of the trial's last attempt.
func peaksOf(t *trial.Trial) (host, card event.Bytes) {
	for _, a := range t.Attempts {
		if a.Outcome != nil {
			host, card = a.Outcome.Peak(), a.Outcome.PeakDevice
		}
	}
	return host, card
}

// printLedger prints the outcome of each trial that ran out of memory or failed.
func printLedger(s *session, e *engine.Engine) {
	const most = 20
	shown := 0
	for _, t := range e.Study.Trials {
		text := ""
		for _, a := range t.Attempts {
			if a.Outcome != nil && a.Outcome.OOM {
				text += fmt.Sprintf("ran out with %s; ", a.Reserved)
			}
		}
		if text == "" && t.State != trial.Failed && t.State != trial.Infeasible {
			continue
		}
		if shown++; shown > most {
			continue
		}
		end := string(t.State)
		if t.Why != "" && t.State != trial.Finished {
			end += ": " + t.Why
		}
		if t.State == trial.Infeasible {
			if near := e.Study.Nearest(t); near != nil {
				end += fmt.Sprintf("; nearest that fits: %s (trial %d)", near.Params.Short(), near.ID)
			}
		}
		fmt.Fprintf(s.Out, "trial %d %s%s\n", t.ID, text, end)
	}
	if shown > most {
		fmt.Fprintf(s.Out, "... and %d more such trials\n", shown-most)
	}
}
