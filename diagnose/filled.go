package diagnose

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	"memroom/event"
	"memroom/lazyregexp"
	"memroom/remedy"
)

// Grown is where the program stood while host memory grew.
type Grown struct {
	// Lines are those of the user's own code on the stack, outermost first.
	Lines  []Line      `json:"lines"`
	Called string      `json:"called,omitempty"` // the library's function below the last one
	Bytes  event.Bytes `json:"bytes"`            // by which memory grew while it stood there
	Held   event.Bytes `json:"held"`             // by the run, the last time
	Worker bool        `json:"worker,omitempty"` // in a child of the program
	// Later are those of its bytes that came after the first steps, in so many rises. Weights,
	// gradients and the optimizer's state are there by then.
	Later event.Bytes `json:"later,omitempty"`
	Rises int         `json:"rises,omitempty"`
	// weights: what grew there are gradients and the state of the optimizer
	weights bool
	runs    string // the method of a model that runs below the last line
}

// Line is a place in the user's code.
type Line struct {
	event.Frame
	Code string `json:"code,omitempty"` // empty: the source was not found
}

// Stood returns the frames of the user's own code in a stack, outermost first, and the function of
// a library that the innermost of them had called. The stack has its innermost frame first.
func Stood(stack []event.Frame) (own []event.Frame, called string) {
	for i, frame := range stack {
		if installed(frame.File) {
			continue
		}
		if len(own) == 0 && i > 0 {
			called = library(stack[i-1].File) + "." + stack[i-1].Name
		}
		own = append(own, frame)
	}
	slices.Reverse(own)
	return own, called
}

// Waits reports whether a line only waits, so that what grew before a program came to rest there
// grew above it.
func Waits(code string) bool { return waiting.MatchString(code) }

var waiting = lazyregexp.New(`^(?:\w+\.)*(?:sleep|pause|wait|join|input|barrier)\(`)

// installed reports whether a file belongs to Python or to a library, not to the user.
func installed(file string) bool {
	return strings.HasPrefix(file, "<frozen") || strings.Contains(file, "/site-packages/") ||
		strings.Contains(file, "/dist-packages/") || standardLibrary.MatchString(file) ||
		strings.Contains(file, "_memroom_probe")
}

var standardLibrary = lazyregexp.New(`/lib(64)?/python3\.\d+/`)

// library returns the package that a file belongs to.
func library(file string) string {
	for _, root := range []string{"/site-packages/", "/dist-packages/"} {
		if _, inside, found := strings.Cut(file, root); found {
			name, _, _ := strings.Cut(inside, "/")
			return strings.TrimSuffix(name, ".py")
		}
	}
	return strings.TrimSuffix(path.Base(file), ".py")
}

// Filled returns the finding about a run whose host memory ran out: the line at which it grew.
// limit is the wall it met, 0 where it is not known. It returns nil where too little was seen.
func Filled(grown []Grown, limit event.Bytes) *event.Finding {
	var seen, imported, held event.Bytes
	for _, g := range grown {
		held = max(held, g.Held)
		if g.imports() {
			imported += g.Bytes
		} else {
			seen += g.Bytes
		}
	}
	if seen == 0 || seen < max((held-imported)/4, held/8) {
		return nil // most of it was there before anybody looked, or is libraries
	}
	grown = slices.DeleteFunc(slices.Clone(grown), Grown.imports)
	if f := stepByStep(grown, held, limit); f != nil {
		return f
	}
	at := deepest(grown)
	if len(at.Lines) == 0 {
		return severalLines(grown, held, limit)
	}
	if at.Lines[0].Name == "<module>" && len(at.Lines) == 1 {
		// a call of the whole program, as main(), is no place
		if inside := below(grown, at.Lines[0]); len(inside) > 1 {
			return severalLines(inside, held, limit)
		}
	}
	at.weights = at.trains() && withWeights(grown)
	line := at.Lines[len(at.Lines)-1]
	f := &event.Finding{Kind: "filled", Detail: "filled", Severity: event.SeverityError,
		Bytes: at.Bytes, Frames: []event.Frame{line.Frame}, Confidence: 0.9,
		Title: fmt.Sprintf("%s filled host memory: it grew by %s there, to %s", at.what(line),
			at.Bytes, reached(held, limit)),
		Remedies: at.remedies()}
	if n := len(at.Lines) - 2; n >= 0 && at.Lines[n].Code != line.Code {
		f.Evidence = append(f.Evidence, "called from "+at.what(at.Lines[n]))
	}
	if name := at.Called[strings.LastIndexByte(at.Called, '.')+1:]; name != "" && name[0] != '_' {
		f.Evidence = append(f.Evidence, "it was in "+at.Called)
	}
	at.explain(f)
	return f
}

// below sums the growth up by the line that one line had called.
func below(grown []Grown, outermost Line) (inside []Grown) {
	for _, g := range grown {
		if len(g.Lines) < 2 || g.Lines[0].Frame != outermost.Frame {
			continue
		}
		g.runs, g.Lines = modelMethod(g.Lines[2:]), g.Lines[:2]
		same := slices.IndexFunc(inside, func(h Grown) bool {
			return h.Lines[1].Frame == g.Lines[1].Frame
		})
		if same < 0 {
			inside = append(inside, g)
			continue
		}
		inside[same].Bytes += g.Bytes
		inside[same].runs = cmp.Or(inside[same].runs, g.runs)
	}
	return inside
}

// modelMethod returns the method of a model that one of the lines stands in.
func modelMethod(lines []Line) string {
	for _, line := range lines {
		if line.Name == "forward" || line.Name == "training_step" {
			return line.Name
		}
	}
	return ""
}

// severalLines returns the finding where no single line has most of the growth: the two largest.
func severalLines(grown []Grown, held, limit event.Bytes) *event.Finding {
	grown = slices.Clone(grown)
	slices.SortStableFunc(grown, func(a, b Grown) int { return cmp.Compare(b.Bytes, a.Bytes) })
	var places []string
	f := &event.Finding{Kind: "filled", Detail: "filled", Severity: event.SeverityError,
		Bytes: grown[0].Bytes, Confidence: 0.8}
	grown[0].weights = grown[0].trains() && withWeights(grown)
	f.Remedies = grown[0].remedies()
	for _, g := range grown[:min(len(grown), 2)] {
		line := g.Lines[len(g.Lines)-1]
		f.Frames = append(f.Frames, line.Frame)
		places = append(places, fmt.Sprintf("by %s at %s", g.Bytes, g.what(line)))
	}
	f.Title = fmt.Sprintf("host memory grew to %s at several lines: %s", reached(held, limit),
		strings.Join(places, ", "))
	grown[0].explain(f)
	return f
}

// trains reports whether a line runs the backward pass or the optimizer.
func (g Grown) trains() bool {
	code := g.Lines[len(g.Lines)-1].Code
	return backward.MatchString(code) || stepping.MatchString(code)
}

// withWeights reports whether what training keeps grew with the model rather than with the batch:
// with gradients and the optimizer's state. The backward pass frees the activations of the forward
// passes while it makes gradients; it can only grow by more than these did by gradients.
func withWeights(grown []Grown) bool {
	var forwards, rest event.Bytes
	for _, g := range grown {
		switch code := g.Lines[len(g.Lines)-1].Code; {
		case g.trains():
			rest += g.Bytes
		case g.asks(code):
			forwards += g.Bytes
		}
	}
	return rest > forwards
}

// asks reports whether a line runs a forward pass.
func (g Grown) asks(code string) bool {
	return forward.MatchString(code + " " + g.Lines[len(g.Lines)-1].Name + "(self) " + g.Called)
}

// leastRises is how often memory must reach a new height after the first steps until each step is
// thought to leave something behind. A longer batch makes one or two.
const leastRises = 4

// stepByStep returns the finding where most of the growth came while step after step was made. What
// a training needs for itself is there after the first ones. It returns nil elsewhere.
func stepByStep(grown []Grown, held, limit event.Bytes) *event.Finding {
	var all, later event.Bytes
	var at Grown
	rises := 0
	for _, g := range grown {
		all += g.Bytes
		if !g.trains() && !g.asks(g.Lines[len(g.Lines)-1].Code) {
			continue
		}
		later, rises = later+g.Later, rises+g.Rises
		if g.Later > at.Later {
			at = g
		}
	}
	if rises < leastRises || later < all/2 {
		return nil
	}
	line := at.Lines[len(at.Lines)-1]
	return &event.Finding{Kind: "filled", Detail: "filled", Severity: event.SeverityError,
		Bytes: later, Frames: []event.Frame{line.Frame}, Confidence: 0.8,
		Title: fmt.Sprintf("host memory grew from step to step: by %s after the first steps, to %s",
			later, reached(held, limit)),
		Evidence: []string{"most of it came at " + at.what(line),
			"weights, gradients and the optimizer's state are there after the first steps: what came " +
				"later may be kept by the program, such as outputs or losses in a list"},
		Remedies: []string{string(remedy.Detach)}}
}

// explain returns why a smaller batch would help or not.
func (g Grown) explain(f *event.Finding) {
	code := g.Lines[len(g.Lines)-1].Code
	switch {
	case g.weights && !stepping.MatchString(code):
		f.Evidence = append(f.Evidence,
			"gradients were made there: they grow with the weights, not with the batch")
	case g.weights:
		f.Evidence = append(f.Evidence,
			"the optimizer's state was made there: it grows with the weights, not with the batch")
	case slices.Contains(f.Remedies, string(remedy.MicroBatch)) && !g.trains():
		f.Evidence = append(f.Evidence, "what a forward pass makes, such as activations kept for the "+
			"backward pass, grows with the batch")
	}
}

// What the lines of training do. forward is seen from within a module too.
var (
	backward = lazyregexp.New(`\bbackward\(`)
	stepping = lazyregexp.New(`(?i)\b(\w*optim\w*|\w*opt|scaler)\.step\(`)
	forward  = lazyregexp.New(`loss\b.*=|model\(|\.fit\(|trainer\.train|\bstep\(|` +
		`_call_impl\b|\b(forward|training_step)\(self\)`)
)

// imports reports whether a library was being loaded: that has an end, and fills no memory.
func (g Grown) imports() bool {
	return len(g.Lines) > 0 && importing.MatchString(g.Lines[len(g.Lines)-1].Code)
}

var importing = lazyregexp.New(`^(?:import\s+\w|from\s+[\w.]+\s+import\b)`)

func reached(held, limit event.Bytes) string {
	if limit > 0 {
		return min(held, limit).Of(limit)
	}
	return held.String()
}

// deepest descends from the outermost lines as long as one of them has most of the growth.
func deepest(grown []Grown) (at Grown) {
	const most = 0.6
	for depth := 0; ; depth++ {
		sums, best := map[event.Frame]event.Bytes{}, Line{}
		var all event.Bytes
		for _, g := range grown {
			all += g.Bytes
			if depth < len(g.Lines) {
				line := g.Lines[depth]
				if sums[line.Frame] += g.Bytes; sums[line.Frame] > sums[best.Frame] || best.Line == 0 {
					best = line
				}
			}
		}
		if best.Line == 0 || float64(sums[best.Frame]) < most*float64(all) {
			if kept := keeps(grown, depth); kept.Line != 0 {
				at.Lines, at.Bytes = append(at.Lines, kept), all
			}
			break
		}
		grown = slices.DeleteFunc(slices.Clone(grown), func(g Grown) bool {
			return depth >= len(g.Lines) || g.Lines[depth].Frame != best.Frame
		})
		at.Lines, at.Bytes = append(at.Lines, best), sums[best.Frame]
	}
	largest := Grown{}
	for _, g := range grown {
		if g.Bytes > largest.Bytes {
			largest = g
		}
	}
	at.Called, at.Worker = largest.Called, largest.Worker
	for _, g := range grown {
		at.runs = cmp.Or(at.runs, modelMethod(g.Lines[min(len(at.Lines), len(g.Lines)):]))
	}
	for n := len(at.Lines) - 1; n > 0 && !stores.MatchString(at.Lines[n].Code) &&
		gathers.MatchString(at.Lines[n-1].Code); n-- {
		at.Called, at.Lines = at.Lines[n].Name, at.Lines[:n]
	}
	return at
}

// keeps returns the line that puts what its neighbours make into a list, where all of memory grew
// in one function at a depth of the stacks. It is often too short to be where most of it grew.
func keeps(grown []Grown, depth int) (kept Line) {
	var most event.Bytes
	for _, g := range grown {
		if depth >= len(g.Lines) || g.Lines[depth].File != grown[0].Lines[depth].File ||
			g.Lines[depth].Name != grown[0].Lines[depth].Name {
			return Line{}
		}
		if g.Bytes > most && appends.MatchString(g.Lines[depth].Code) {
			most, kept = g.Bytes, g.Lines[depth]
		}
	}
	return kept
}

var appends = lazyregexp.New(`\.(append|extend)\(`)

// What one call makes goes with it, unless it stores it; what its caller gathers from many calls
// stays.
var (
	stores  = lazyregexp.New(`\.(append|extend|update|add)\(|\]\s*=[^=]|\bself\.\w+\s*\+?=[^=]`)
	gathers = lazyregexp.New(`\bfor\b.*\bin\b|\.(append|extend|update|add|concat\w*|stack)\(|` +
		`\b(list|tuple|dict|set|map|concat\w*|stack|[vh]stack)\(|\]\s*=[^=]`)
)

// what names a line by its code and its place.
func (g Grown) what(line Line) string {
	place := fmt.Sprintf("%s:%d", path.Base(line.File), line.Frame.Line)
	if g.Worker {
		place += " in a worker process"
	}
	if line.Code == "" {
		return place
	}
	return fmt.Sprintf("`%s` at %s", line.Code, place)
}

// remedies names what helps against data of the kind that the line reads or makes.
func (g Grown) remedies() []string {
	if g.weights {
		return []string{string(remedy.OptimizerAdafactor), string(remedy.RaiseLimit)}
	}
	line := g.Lines[len(g.Lines)-1]
	words := line.Code + " " + line.Name + "(self) " + g.Called + " " + g.runs + "(self)"
	for _, r := range readers {
		if r.pattern.MatchString(words) {
			return r.remedies
		}
	}
	return []string{string(remedy.StreamData)}
}

// readers maps the words of a line, or of the function below it, to what helps there. The first
// match counts.
var readers = []struct {
	pattern  *lazyregexp.Regexp
	remedies []string
}{
	{lazyregexp.New(`\btorch\.load\(`), []string{string(remedy.MapFile), string(remedy.HalfWeights),
		string(remedy.LoadOnce)}},
	{lazyregexp.New(`\btorch\.save\b|serialization\.(load|save)|load_state_dict|` +
		`from_pretrained`), []string{string(remedy.HalfWeights), string(remedy.LoadOnce)}},
	{lazyregexp.New(`\bnp\.(load|fromfile)\b|\bnumpy\.(load|fromfile)\b|\.npy\b`),
		[]string{string(remedy.MapFile), string(remedy.StreamData)}},
	{lazyregexp.New(`\.shuffle\(`), []string{string(remedy.ShuffleBuffer)}},
	{lazyregexp.New(`\.cache\(|from_tensor_slices`), []string{string(remedy.TFDataBudget),
		string(remedy.StreamData)}},
	{lazyregexp.New(`DataLoader|dataloader|_next_data|in loader|in \w*_loader`),
		[]string{string(remedy.DataLoaderWorkers), string(remedy.StreamData)}},
	{backward, []string{string(remedy.MicroBatch)}},
	{forward, []string{string(remedy.MicroBatch)}}, // what a model keeps of its batch
}
