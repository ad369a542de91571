package explain

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"memroom/lazyregexp"
	"memroom/remedy"
	"memroom/trace"
)

// quantities are what a remedy makes smaller, so that a setting of the person's own can be named.
var quantities = map[remedy.ID][]Quantity{
	remedy.MicroBatch: {Tokens, Samples}, remedy.ShorterSequence: {Length}, remedy.SmallerImage: {Side,
		Count},
	remedy.EvalBatch: {EvalSize}, remedy.DataLoaderWorkers: {Workers}, remedy.SmallerBuffer: {Buffered},
	remedy.GenerationCache: {Answers}, remedy.FewerPairs: {Boxes},
	remedy.MapProcesses: {Processes}, remedy.LongestBatch: {Tokens, Length},
	remedy.ServingShare: {Share},
}

// remedyOf is the remedy that makes a quantity smaller.
var remedyOf = map[Quantity]remedy.ID{Samples: remedy.MicroBatch, Tokens: remedy.MicroBatch,
	Length: remedy.ShorterSequence,
	Side:   remedy.SmallerImage, Count: remedy.SmallerImage, EvalSize: remedy.EvalBatch,
	Boxes:   remedy.FewerPairs,
	Answers: remedy.GenerationCache, Buffered: remedy.SmallerBuffer, Workers: remedy.DataLoaderWorkers,
	Neighbours: remedy.LessAtOnce, Processes: remedy.MapProcesses, Share: remedy.ServingShare}

// reach words a cure in terms that the user can apply. A setting that the user already has comes
// first, then the tool's name for it, then the remedy's text for the framework. reach returns false
// if the tool has no such setting and its users write no code.
func (f *Facts) reach(a Advice, s Sums) (Advice, bool) {
	setting, known := "", false
	if f.Tool != nil {
		setting, known = f.Tool.set[a.ID]
	}
	key, own := f.ownKey(a.ID)
	if known && setting == "" { // it has none, for certain
		return a, false
	}
	switch a.ID {
	case remedy.MicroBatch:
		if k, ok := f.key(Samples); ok && rankOfKey(k) == 3 && k.Number() == 1 && !own {
			return a, false // it is one already
		}
	case remedy.InParts:
		return a, true // which its tensor has settled
	case remedy.LoadToHost:
		if at := f.loads(); at != "" && !strings.Contains(a.How.Code, "load_state(") {
			a.How = remedy.How{Code: "map_location='cpu' where " + at + " calls torch.load"}
			return a, true
		}
	}
	switch {
	case known && a.ID == remedy.MapProcesses: // what a progress bar prints is no setting
		a.How = remedy.How{Args: setting}
	case own && strings.Contains(a.How.Args, strings.TrimLeft(key.Name, "-")) &&
		(a.ID != remedy.MicroBatch || key.Said || float64(f.Hints.Batch) == key.Number()):
		a.How.Code = "" // the remedy knows the setting, and what goes with it
	case own && key.Said && known:
		a.How = remedy.How{Args: f.filled(setting)}
	case own && key.Said:
		a.How.Args = fmt.Sprintf("%s %s instead of %s   # line %d of your text", strings.ToLower(key.Name),
			f.smaller(key, s), key.Value, key.Line)
		a.How.Code = ""
		if a.ID == remedy.MicroBatch {
			a.Title = "take a smaller batch"
		}
	case own:
		if a.ID == remedy.MapProcesses {
			a.Title = "fewer processes that prepare the data"
		}
		a.How.Args = fmt.Sprintf("%s instead of %s   # line %d of your text", key.with(f.smaller(key, s)),
			key.Text, key.Line)
		a.How.Code = ""
		if a.ID == remedy.MicroBatch {
			a.Title = "less at once: a smaller " + strings.TrimLeft(key.Name, "-")
		}
	case known:
		a.How = remedy.How{Args: f.filled(setting)}
		if a.ID == remedy.MicroBatch {
			a.Title = "a smaller batch, in " + f.Tool.Name + "'s settings"
		}
	case f.Tool != nil && f.Tool.closed && a.How.Code != "" && !ofSystem[a.ID]:
		if a.How.Env == "" && a.How.Args == "" {
			return a, false
		}
		a.How.Code = ""
	}
	if f.Tool != nil && (own || known) {
		a.How.Fit = ""
	}
	return a, true
}

// loadsFile is a call that restores tensors to where they were.
var loadsFile = lazyregexp.New(`\bt(?:orch|h)\.load\(`)

// loads names the line that reads a checkpoint.
func (f *Facts) loads() string {
	for i, fr := range f.Crash.Frames {
		if i < len(f.Crash.Code) && loadsFile.MatchString(f.Crash.Code[i]) && !strings.Contains(fr.File,
			"torch/") {
			return fmt.Sprintf("%s:%d", fr.File, fr.Line)
		}
	}
	return ""
}

// ofSystem are remedies that are no matter of a tool's settings.
var ofSystem = map[remedy.ID]bool{remedy.InParts: true, remedy.SelectCard: true,
	remedy.FreeNeighbour: true,
	remedy.NotebookState: true, remedy.CheckShapes: true, remedy.WindowOnHost: true,
	remedy.RightDevice: true, remedy.LoadToHost: true}

// ownKey returns the setting in the text that a remedy would change. The batch of one, and a batch
// that the tool counts in tokens, are not made smaller by their samples.
func (f *Facts) ownKey(id remedy.ID) (Key, bool) {
	of, ok := quantities[id]
	if !ok {
		return Key{}, false
	}
	k, ok := f.key(of...)
	if ok && k.Of == Samples && rankOfKey(k) == 0 {
		return Key{}, false // of all cards or steps together: the batch of one pass is another setting
	}
	if ok && k.Said && f.Crash.Signs[trace.SignOtherBatch] != "" {
		return Key{}, false // sentences name several, and one that works is known
	}
	if !ok || strings.HasPrefix(k.Name, "writer") || k.Number() < 2 && k.Of != Share ||
		k.Of == Side && k.Number() < 64 || k.Of == Length &&
		k.Number() < 64 ||
		k.Of == Samples && k.Number() > 1<<20 || k.Name == "size" || k.Name == "sizes" {
		return Key{}, false
	}
	return k, true
}

// smaller is the value that a setting needs: enough for what is missing where the sums tell, else
// half of it.
func (f *Facts) smaller(k Key, s Sums) string {
	n := k.Number()
	switch {
	case k.Of == Share:
		return strconv.FormatFloat(max(0.3, n-0.1), 'g', 2, 64)
	case k.Of == Workers || k.Of == Processes:
		return strconv.Itoa(max(0, min(2, int(n)/2)))
	}
	least := 2.0
	if s.Alone && s.Capacity > 0 {
		least = math.Pow(2, math.Ceil(math.Log2(2*s.Beyond)))
	}
	return strconv.Itoa(max(1, int(n/least)))
}

// with writes the setting with another value, in its own form.
func (k Key) with(value string) string {
	at := strings.LastIndex(k.Text, k.Value)
	if at < 0 {
		return k.Name + "=" + value
	}
	return k.Text[:at] + value
}

// halvesBatch are settings whose value is a number of samples.
var halvesBatch = lazyregexp.New(`(?i)^\W*[\w.]*batch[\w-]*["']?\s?[=: ]\s?HALF`)

// filled puts figures into a tool's setting where the text has them.
func (f *Facts) filled(setting string) string {
	half, twice := "HALF_OF_NOW", "2"
	if b := f.Hints.Batch; b > 1 && halvesBatch.MatchString(setting) {
		half = strconv.Itoa(b / 2)
	}
	if a := f.Hints.Accumulate; a > 0 {
		twice = strconv.Itoa(2 * a)
	}
	return strings.NewReplacer("HALF", half, "TWICE", twice).Replace(setting)
}

// levers are the cures of one tensor: what makes it smaller by the person's own settings, how to
// make it in parts, the tool's settings, and last general words.
func (f *Facts) levers(t *Tensor) []remedy.ID {
	of := t.op.levers
	if generating(f.Crash.Frames) {
		of = append([]Quantity{Answers}, of...)
	}
	var own, tool, general []remedy.ID
	for _, q := range of {
		id := remedyOf[q]
		_, shown := f.ownKey(id)
		_, set := f.Tool.setting(id)
		if f.evaluates() || t.op.detail == "eval_tensor" {
			set = set && (q == EvalSize || q == Answers) // the others are settings of training
		}
		if generating(f.Crash.Frames) {
			set = set && q == Answers
		}
		switch {
		case slices.Contains(slices.Concat(own, tool, general), id):
		case shown:
			own = append(own, id)
		case set:
			tool = append(tool, id)
		case q == Samples || q == Length || q == Side:
			general = append(general, id)
		}
	}
	list := slices.Concat(own, tool)
	if f.partsOf(t) != "" {
		list = slices.Insert(list, min(1, len(own)), remedy.InParts)
	}
	if onHost(f.Crash) {
		list = append(list, remedy.RaiseLimit)
	}
	return append(list, general...)
}

// partsOf is how the tensor is made in parts: by a setting of the tool where it has one for it.
func (f *Facts) partsOf(t *Tensor) string {
	if text, ok := f.Tool.setting(remedy.InParts); ok && t.op.detail != "pairs" {
		return text
	}
	if strings.Contains(t.op.parts, "torch.") && f.Crash.Framework != "pytorch" {
		return "in pieces: a part of the rows at a time, keeping only the result of each"
	}
	return t.op.parts
}

func (t *Tool) setting(id remedy.ID) (string, bool) {
	if t == nil {
		return "", false
	}
	text := t.set[id]
	return text, text != ""
}
