package explain

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"memroom/event"
	"memroom/lazyregexp"
	"memroom/remedy"
	"memroom/trace"
)

// topic is one thing that fills a memory, as the field knows it: what speaks for it, what speaks
// against it, what a verdict may say, and what helps. All of them stand in one table and are
// weighed against each other.
type topic struct {
	where   []event.Where      // whose memory; nil: any
	needs   *lazyregexp.Regexp // in the text, else the topic is out of question; nil: nothing
	clues   []clue
	against *lazyregexp.Regexp // in the text: takes it back
	fits    func(*Facts) bool  // nil: always

	cause  Cause
	detail string
	vague  bool   // it repeats what is said, and gives way to any other
	says   string // the clause of the verdict
	shows  string // what it means, after the person's words
	cures  []topicCure
}

// clue is a kind of words, lines or settings that speaks for a topic. One that says it outright
// weighs as much as a verdict needs.
type clue struct {
	weighs float64
	stands place
	is     *lazyregexp.Regexp // lower case
}

// place is where a clue counts.
type place int

const (
	said place = iota // in what a person wrote: near the end most, elsewhere half
	code              // anywhere: lines, settings, commands, paths
)

// topicCure is what helps against a topic.
type topicCure struct {
	id    remedy.ID
	of    *lazyregexp.Regexp // what the text shows of the library or tool that it is of; nil: any
	title string
	args  string              // general words; empty: only where a setting is known
	own   bool                // a setting of the person's own comes first, then one of the tool
	make  func(*Facts) string // writes it with the names of the text
}

// ownCure is a cure in the words of a case, which the catalogue has for another circumstance only.
type ownCure struct {
	id    remedy.ID
	title string
	args  string
}

// What the clues of a topic weigh together before it is said, and how far it has to lead.
const (
	outright = 3.0
	perhaps  = 2.0
	lead     = 0.5
	nearby   = 0.9  // of the weight, next to sentences about the end
	anywhere = 0.5  // of the weight, far from them
	fewWords = 1500 // bytes of a text that is about nothing else
)

// weighed is a topic with what speaks for it in a text.
type weighed struct {
	*topic
	weight float64
	words  string // the most telling
}

// weigh adds up the clues of a topic.
func (t *topic) weigh(f *Facts) weighed {
	w, most, far := weighed{topic: t}, 0.0, anywhere
	if len(f.text) < fewWords {
		far = nearby
	}
	if t.where != nil && !slices.Contains(t.where, f.Crash.Where) ||
		t.needs != nil && !t.needs.MatchString(f.text) ||
		t.against != nil && t.against.MatchString(f.text) || t.fits != nil && !t.fits(f) {
		return w
	}
	for _, c := range t.clues {
		for i, in := range []string{f.Said.Of, f.Said.Near, f.text} {
			found := c.is.FindString(in)
			if found == "" {
				continue
			}
			counts := c.weighs
			if c.stands == said {
				counts *= []float64{1, nearby, far}[i]
			}
			if w.weight += counts; counts > most {
				most, w.words = counts, strings.TrimSpace(found)
			}
			break
		}
	}
	return w
}

// bestTopic returns what most speaks for, if it leads.
func bestTopic(f *Facts) (weighed, bool) {
	all := topicTable()
	var best, second, vague weighed
	for i := range all {
		w := all[i].weigh(f)
		switch {
		case w.vague && w.weight > vague.weight:
			vague = w
		case w.vague:
		case w.weight > best.weight:
			best, second = w, best
		case w.weight > second.weight:
			second = w
		}
	}
	if best.weight >= perhaps && (best.weight >= second.weight+lead || best.detail != "" &&
		best.detail == second.detail ||
		best.weight >= outright && second.weight < outright) {
		return best, true
	}
	return vague, vague.weight >= perhaps
}

// judge words a topic as surely as its clues are.
func (w weighed) judge(f *Facts) judged {
	sure, says := 0.65, w.says
	if w.weight < outright {
		sure = 0.5
		if w.cause != CauseUnknown && !w.vague {
			says = "it may be that " + says
		}
	}
	if w.cause == CauseUnknown {
		sure = 0
	}
	j := because(w.cause, w.detail, sure, "the text says %q: %s", short(w.words), w.shows)
	j.reason, j.cased = says, true
	j.words, j.settled = f.written(w.cures), w.weight >= outright && !w.vague
	j.reason = strings.ReplaceAll(j.reason, "RANKS", strconv.Itoa(f.World))
	return j
}

// written are the cures of which something can be typed here, each id once.
func (f *Facts) written(cures []topicCure) (list []ownCure) {
	for _, c := range cures {
		args := f.write(c)
		if args != "" && !strings.Contains(args, "HALF_") && !slices.ContainsFunc(list,
			func(o ownCure) bool { return o.id == c.id }) {
			list = append(list, ownCure{c.id, c.title, args})
		}
	}
	return list
}

// write returns what to type for a cure: the person's own setting, the tool's, the framework's.
func (f *Facts) write(c topicCure) string {
	if c.own {
		if k, ok := f.ownKey(c.id); ok && !k.Said {
			return fmt.Sprintf("%s instead of %s   # line %d of your text", k.with(f.smaller(k, Sums{})),
				k.Text, k.Line)
		}
		if text, ok := f.Tool.setting(c.id); ok {
			return f.filled(text)
		}
	}
	if c.of != nil && !c.of.MatchString(f.text) {
		return ""
	}
	if c.make != nil {
		return c.make(f)
	}
	return c.args
}

// openEnds are situations of which stages and figures say too little, so that what a person tells
// of the end counts for more.
var openEnds = slices.Concat(indefinite, bySettings, []string{"told", "rises", "late", "limit",
	"full"})

// byTopic lets the table speak where stages and figures leave the cause open. A traceback is
// answered by a topic only if that is said outright.
func byTopic(f *Facts, j judged) (judged, bool) {
	c := f.Crash
	told := onlyTold(f)
	if f.Ran.Runtime == Browser || c.Kind == "paddle" || c.Where == event.WhereShm ||
		c.Kind == trace.KindTold && has(c, trace.SignPredicts) {
		return j, false
	}
	open := told || slices.Contains(openEnds, j.detail) && (j.confidence < 0.6 ||
		j.cause == CauseUnknown)
	w, ok := bestTopic(f)
	if !ok {
		return j, false
	}
	evaluated := strings.HasPrefix(j.detail, "eval_") && !strings.HasPrefix(w.detail, "eval_")
	pieces := j.cause == CauseFragmentation && aFifth(c)
	switch {
	case w.vague && c.Requested != nil && j.cause != CauseUnknown:
		return j, false
	case !open && !evaluated && !pieces, w.weight < outright && (!open || len(c.Frames) > 0 ||
		evaluated):
		return j, false
	}
	return w.judge(f), true
}

// aFifth reports whether the request is a fifth of the card: no size that pieces explain.
func aFifth(c *trace.Crash) bool {
	return c.Requested != nil && c.Capacity != nil && 5**c.Requested >= *c.Capacity
}
