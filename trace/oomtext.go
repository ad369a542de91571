package trace

import (
	"fmt"
	"io"
	"slices"

	"memroom/event"
)

// Class is the meaning of a passage of a log for the program that wrote it.
type Class string

// Exhausted ran out of memory; Survived met a shortage and went on; Other ended for a reason that
// only looks like memory.
const (
	Exhausted Class = "exhausted"
	Survived  Class = "survived"
	Other     Class = "other"
)

// Crash is one passage of a log that ended a program, or could have. Sizes are nil where the text
// does not say.
type Crash struct {
	Kind      string      // which shape of text it is, such as "torch_cuda" or "kernel_kill"
	Class     Class       //
	Sure      float64     // 0 to 1: how far this text alone settles Class
	Where     event.Where // where memory ran out
	Framework string      // pytorch, tensorflow, jax, ray, slurm, kubernetes, python or other
	// for Other: the error in a few words; for the rest an addition to the text, or empty
	What string

	Requested  *event.Bytes // the allocation that failed
	Capacity   *event.Bytes // the wall: card, pool, cgroup limit, node
	Allocated  *event.Bytes // in use: by live blocks, by the killed process, or on the node
	Idle       *event.Bytes // held by the allocator's pool and not in use
	Free       *event.Bytes // free on the device
	Available  *event.Bytes // host memory that the machine could still give, as `free` prints it
	Alike      int          // processes of the victim's name that hold about as much as it
	InProcess  *event.Bytes // this process in all, as the driver sees it
	Private    *event.Bytes // in private pools, such as those of CUDA graphs
	Over       *event.Bytes // said to be allocated, and more than the card has
	Elsewhere  *event.Bytes // Apple's GPU: held by the process outside of PyTorch's pool
	Capped     bool         // Capacity is a cap that the program set for itself
	Pooled     bool         // Capacity is what TensorFlow's pool may take of the card
	Total      *event.Bytes // the card itself, where Capacity is such a cap
	Fits       int          // what would fit, by the message: tokens of context
	Neighbours []Holder     // other processes on the card
	Named      []Figure     // further sizes that stand under a name around it
	Card       *int         // the full card, as the program numbers its cards; nil when not said

	Line    int64         // 1-based
	Text    string        // the message, cleaned and cut
	Rank    int           // -1 when not said
	Process string        // the process that was killed
	Frames  []event.Frame // the traceback before it, innermost first
	Code    []string      // the source line of each frame, empty where the traceback has none
	Node    string        // TensorFlow: the operation that asked
	Steps   int64         // training steps that had been made, 0 if not said
	Signs   Signs         // what stands around it
	Ranks   int           // ranks on this machine, 0 if not said
	Repeats int           // how often the same shape came again

	offset int64 // of the telling word in the log
}

// Holder is somebody who holds memory.
type Holder struct {
	PID   int64       `json:"pid,omitempty"`
	Name  string      `json:"name,omitempty"`
	Bytes event.Bytes `json:"bytes"`
}

// Log is what was found in a log, whatever its size.
type Log struct {
	Crashes []Crash // in order of appearance
	Hints   Hints
	Kept    []Line // its text, as far as it is kept: the beginning and the end
	Said    Said   // what a person wrote in it about the end
	Bytes   int64
	Lines   int64
}

// Bounds of what is kept of a log, so that memory does not depend on its size.
const (
	maxCrashes     = 256
	maxPerKind     = 24 // further ones of a kind are counted
	maxCrashText   = 2000
	maxFramesAbove = 64
)

// ReadLog finds every crash in a log, and hints about the job. It reads the log once, keeps a
// window of constant size and understands logs as they occur in practice: other encodings, colours,
// progress bars, prefixes, quotes, JSON strings.
func ReadLog(r io.Reader) (*Log, error) {
	text := &keeper{r: r}
	reader := &logReader{log: &Log{}, window: newWindow(text), kinds: map[string]int{},
		templates: map[uint64]string{}, hinted: make([]int, vocabulary().count)}
	err := reader.run()
	log := reader.log
	log.Bytes, log.Lines = reader.window.consumed(), reader.window.lines()
	log.Kept = text.lines()
	reader.hints.finish(log)
	settle(log)
	tell(log)
	if err != nil {
		return log, fmt.Errorf("read log: %w", err)
	}
	return log, nil
}

type logReader struct {
	log    *Log
	window *window
	hints  hintCollector
	kinds  map[string]int
	skipTo int64 // offset up to which the text belongs to a passage already understood

	// Logs repeat themselves. A place that differs only in its digits from an earlier one is
	// skipped if the earlier one held no crash, or if enough crashes of its kind are stored.
	templates map[uint64]string // hash of a place without its digits -> kind of crash, empty for none
	hinted    []int             // how often each word has been asked for a hint
}

func (l *logReader) run() error {
	for {
		more, err := l.window.fill()
		for {
			at, word, ok := l.window.next()
			if !ok {
				break
			}
			l.meet(at, word)
		}
		if err != nil || !more {
			return err
		}
	}
}

// Bounds of the work that a repetitive log may cause.
const (
	maxTemplates = 1 << 14
	maxHintsEach = 400
)

// meet looks at one place where a telling word stands.
func (l *logReader) meet(at int, word *telling) {
	offset := l.window.offset(at)
	p := passage{window: l.window, at: at, word: word.text}
	if word.hint != nil && l.hinted[word.number] < maxHintsEach {
		l.hinted[word.number]++
		word.hint(&l.hints, &p)
	}
	if word.follow != nil {
		word.follow(&l.hints, &p)
	}
	if len(word.endings) == 0 || offset < l.skipTo {
		return
	}
	template := templateOf(l.window.near(at), word.number)
	if kind, seen := l.templates[template]; seen && (kind == "" || l.kinds[kind] > maxPerKind) {
		return
	}
	if p.isSource() {
		return
	}
	found := ""
	for _, s := range word.endings {
		crash := s.read(&p)
		if crash != nil && crash.Class == Exhausted && !crash.hasFigures() &&
			(p.advises() || p.isRemark()) {
			continue
		}
		if crash != nil {
			// what else stands on the line belongs to the same message; a line without end may hold
			// more than one
			l.skipTo = offset + int64(min(l.window.lineEnd(at)-at, 600))
			l.keep(s, crash, &p, offset)
			found = s.kind
			break
		}
	}
	if len(l.templates) < maxTemplates {
		l.templates[template] = found
	}
}

// templateOf hashes a text without its digits (FNV-1a), together with the word it was looked at
// for.
func templateOf(text []byte, word int) uint64 {
	const offset, prime = 14695981039346656037, 1099511628211
	h := uint64(offset) ^ uint64(word)
	for _, c := range text {
		if c < '0' || c > '9' {
			h = (h ^ uint64(c)) * prime
		}
	}
	return h
}

// keep stores a crash, or counts it where enough of its kind are stored.
func (l *logReader) keep(s *ending, c *Crash, p *passage, offset int64) {
	l.kinds[s.kind]++
	c.Kind = s.kind
	if last := l.lastOf(c); last != nil && sameStory(last, c) {
		last.Repeats++
		last.Sure = max(last.Sure, c.Sure)
		if last.Node == "" {
			last.Node = c.Node
		}
		if s.frames && len(last.Frames) == 0 {
			last.Frames, last.Code = p.frames()
		}
		return
	}
	if l.kinds[s.kind] > maxPerKind || len(l.log.Crashes) >= maxCrashes {
		return
	}
	c.Line = l.window.lineNumber(p.at)
	c.Rank = rankIn(p.line())
	if c.Text == "" {
		c.Text = cut(p.text(), maxCrashText)
	}
	if s.frames {
		c.Frames, c.Code = p.frames()
	}
	if c.Class == Exhausted && s.mayPass {
		p.judgeSurvival(c)
	}
	if c.Class == Exhausted && len(l.log.Crashes) < signsMost {
		text := p.around()
		c.Signs.add(text)
		c.Steps, c.Ranks, c.Named = p.steps(), ranksIn(text), namedSizes(text)
		if statesMade.MatchString(text) {
			delete(c.Signs, SignStates)
		}
		if done := p.evalLast(); done != "" {
			c.Signs.put(SignEvalLast, done)
		}
		if c.Signs[SignEvalLast] == "" && len(c.Frames) > 0 && p.evalNext() {
			c.Signs.put(SignEvalLast, "0")
		}
		if number := trialNumber(text); number != "" {
			c.Signs.put(SignTrialNo, number)
		}
		if reached := p.epochs(); reached != "" && (c.Steps > 0 || reached != "epoch 1") {
			c.Signs.put(SignEpochs, reached)
		}
		if file := dataLoad(text); file != "" {
			c.Signs.put(SignDataLoad, file)
		}
		var killed *event.Bytes
		if c.Kind == "kernel_kill" {
			killed = c.Allocated
		}
		if grown := p.growth(killed); grown != "" {
			c.Signs.put(SignGrowth, grown)
		}
	}
	c.offset = offset
	l.log.Crashes = append(l.log.Crashes, *c)
}

// hasFigures reports whether a message has sizes, which sentences about one rarely have.
func (c *Crash) hasFigures() bool {
	return c.Requested != nil || c.Capacity != nil || c.Allocated != nil || c.Free != nil
}

func (l *logReader) lastOf(c *Crash) *Crash {
	for i := range slices.Backward(l.log.Crashes) {
		if l.log.Crashes[i].Kind == c.Kind {
			return &l.log.Crashes[i]
		}
	}
	return nil
}

// sameStory reports whether b repeats a: the same figures of the same kind, or none, as when every
// layer of a program prints the exception it passes on.
func sameStory(a, b *Crash) bool {
	if b.Requested == nil && b.Capacity == nil && b.Allocated == nil && b.Idle == nil {
		return a.Class == b.Class && a.Process == b.Process && a.What == b.What
	}
	return a.Class == b.Class && a.Process == b.Process && equalBytes(a.Requested, b.Requested) &&
		equalBytes(a.Allocated, b.Allocated) &&
		equalBytes(a.Capacity, b.Capacity) && equalBytes(a.Idle, b.Idle) && a.What == b.What
}

func equalBytes(a, b *event.Bytes) bool {
	return a == nil && b == nil || a != nil && b != nil && *a == *b
}

func cut(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	for limit > 0 && s[limit]&0xC0 == 0x80 { // not inside a rune
		limit--
	}
	return s[:limit] + " ..."
}
