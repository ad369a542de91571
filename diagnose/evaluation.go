package diagnose

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"path"
	"slices"
	"strings"

	"memroom/event"
	"memroom/lazyregexp"
)

// Evaluated is what a probe saw of the first batches of an evaluation.
type Evaluated struct {
	Grad   bool        // new results have a graph: gradients are on
	Kept   event.Bytes // of each batch, by Holder
	Held   event.Bytes // by Holder in all, 0 unknown
	Holder string      // variable and line, such as "logits in /home/me/eval.py:12"
}

// evalWatch judges evaluation as a phase of its own, by the readings of the meters: memory that
// rises all through it, and a peak above that of training.
type evalWatch struct {
	running map[int]bool           // processes that evaluate now
	saving  map[int]bool           // processes that write a checkpoint now
	known   map[int]Evaluated      // what their probes saw
	said    map[string]event.Bytes // memory whose rise was said -> by how much
	once    map[string]bool        // other things that were said
	rising  map[string][]event.Bytes
	trained map[string]event.Bytes   // highest reading outside of evaluation
	reads   int                      // readings outside, since the first step
	before  event.Bytes              // host peak of this evaluation before it wrote a checkpoint
	ended   event.Bytes              // host peak of an evaluation that has just ended
	carried map[string][]event.Bytes // variable -> what it held at the same batch of each evaluation
	crowd   int                      // processes of the run at the last reading
	// peakSaid is the host peak that was said to be in evaluation, 0 none
	peakSaid event.Bytes
}

func newEvalWatch() evalWatch {
	return evalWatch{running: map[int]bool{}, saving: map[int]bool{}, known: map[int]Evaluated{},
		said: map[string]event.Bytes{}, once: map[string]bool{}, trained: map[string]event.Bytes{},
		carried: map[string][]event.Bytes{}}
}

const (
	evalReadings = 16   // at least, before a rise is judged: four seconds
	evalParts    = 8    // of an evaluation, whose floors are compared
	evalShare    = 0.05 // of the level that a rise must have
	evalJump     = 0.5  // of a rise in one part: that is no rise batch by batch
	peakShare    = 0.1  // of training's peak, above which the peak is in evaluation
	peakReadings = 8    // of training that make its peak known: two seconds
)

const (
	evalGrowth event.Bytes = 64 * event.MiB
	evalKept   event.Bytes = 64 * event.KiB // of a batch: classes and losses are less
	peakGrowth event.Bytes = 256 * event.MiB
)

// Phase notes that a phase other than a plain step began or ended: eval, save.
func (w *Watch) Phase(pid int, phase string, begin bool) {
	for at, p := range w.processes {
		if at.pid == pid {
			p.spike.phase = phase
		}
	}
	e := &w.eval
	switch {
	case phase == "save":
		e.save(pid, begin)
	case phase != "eval":
	case begin:
		e.begin(pid)
	default:
		e.end(pid)
	}
}

// PhasePeak takes the peak of a device's allocator when a phase began or ended, 0 unknown.
func (w *Watch) PhasePeak(pid, device int, begin bool, peak event.Bytes) {
	p := w.processes[place{pid, device}]
	switch {
	case p == nil:
	case begin:
		p.spike.began = cmp.Or(p.spike.began, peak)
	default:
		p.spike.ended = peak
	}
}

// Evaluation takes what a probe saw of an evaluation.
func (w *Watch) Evaluation(pid int, seen Evaluated) []event.Finding {
	e := &w.eval
	e.known[pid] = seen
	for at, p := range w.processes {
		if at.pid == pid {
			p.spike.seen = seen
		}
	}
	return w.carriedOver(pid, seen)
}

// Evaluated takes that an evaluation is over, after so many batches. What was kept of each adds up,
// also where the evaluation was too short for its readings to show a rise. They must have seen half
// of it, or what the variable holds takes the place of something else.
func (w *Watch) Evaluated(pid int, seen Evaluated, batches int64) []event.Finding {
	e := &w.eval
	kept := seen.Kept * event.Bytes(batches)
	if !e.running[pid] || seen.Kept < evalKept || e.carries() {
		return nil
	}
	for _, memory := range slices.Sorted(maps.Keys(e.rising)) {
		held := e.rising[memory]
		if len(held) > 0 && kept > e.said[memory]*11/10 && kept >= enough(held[0]) &&
			highest(held)-held[0] >= kept/2 {
			e.said[memory] = kept
			return []event.Finding{e.growing(memory, kept, highest(held), "in all")}
		}
	}
	return nil
}

// enough is the least rise in evaluation that is worth a word, from a level.
func enough(level event.Bytes) event.Bytes {
	return max(evalGrowth, event.Bytes(evalShare*float64(level)))
}

// carriedLeast is the number of evaluations in which a variable holds more than in the one before.
const carriedLeast = 3

// carriedOver sees outputs of evaluations that are over: a variable that is emptied in between
// holds the same at the same batch of each.
func (w *Watch) carriedOver(pid int, seen Evaluated) []event.Finding {
	if seen.Kept < evalKept || seen.Held == 0 {
		return nil
	}
	e := &w.eval
	key := carriedKey(pid, seen)
	held := append(e.carried[key], seen.Held)
	e.carried[key] = held
	if n := len(held); n > 1 && held[n-1] < held[n-2]+seen.Kept {
		e.carried[key] = held[n-1:] // emptied: it begins anew
		return nil
	}
	more := seen.Held - held[0]
	if len(held) < carriedLeast || more < w.worth() || e.once["carried "+key] {
		return nil
	}
	e.once["carried "+key] = true
	for at, p := range w.processes {
		if at.pid == pid {
			p.said, _, _ = strings.Cut(seen.Holder, " in ")
		}
	}
	return append(w.explained(pid, "outputs that evaluations keep"), event.Finding{
		Kind: "evaluation", Detail: "eval_outputs", Severity: event.SeverityWarning,
		Bytes: seen.Held, Confidence: 0.9,
		Title: fmt.Sprintf("outputs of earlier evaluations are kept: %s holds %s, %s more at each "+
			"evaluation; empty it when one ends", shortHolder(seen.Holder), seen.Held,
			more/event.Bytes(len(held)-1)),
		Evidence: append([]string{fmt.Sprintf("seen at the same batch of %d evaluations", len(held))},
			seen.evidence()...),
		Remedies: append([]string{"keep_less"}, seen.remedies()...)})
}

func carriedKey(pid int, seen Evaluated) string { return fmt.Sprint(pid, " ", seen.Holder) }

// carries reports whether the variable that keeps most held more than in the evaluation before.
// That differs from the outputs of one evaluation, and carriedOver reports it.
func (e *evalWatch) carries() bool {
	pid, seen := e.keepsMost()
	return len(e.carried[carriedKey(pid, seen)]) > 1
}

// save notes that a checkpoint is written. Trainers do that before their evaluation is over, and
// what it takes is no output of a batch: a rise begins anew behind it.
func (e *evalWatch) save(pid int, begin bool) {
	if !begin {
		delete(e.saving, pid)
		return
	}
	e.saving[pid] = true
	e.before, e.rising = e.peak(), map[string][]event.Bytes{}
}

// peak is the highest reading of host memory in the evaluation that runs.
func (e *evalWatch) peak() event.Bytes { return max(e.before, highest(e.rising[hostMemory])) }

func highest(readings []event.Bytes) event.Bytes {
	if len(readings) == 0 {
		return 0
	}
	return slices.Max(readings)
}

func (e *evalWatch) begin(pid int) {
	if len(e.running) == 0 {
		e.rising, e.before, e.ended = map[string][]event.Bytes{}, 0, 0
	}
	e.running[pid] = true
}

func (e *evalWatch) end(pid int) {
	if !e.running[pid] {
		return
	}
	delete(e.running, pid)
	if len(e.running) > 0 {
		return
	}
	e.ended = e.peak()
}

const hostMemory = "host memory"

// peakOf returns the key of a finding about a memory's peak in evaluation. A rise that is explained
// replaces a peak that is not.
func peakOf(memory string) string { return "peak of " + memory + " in evaluation" }

// sample takes a reading. Steps is set once steps were seen, onHost where no card is trained on.
func (e *evalWatch) sample(s event.Sample, steps, onHost bool) []event.Finding {
	held := map[string]event.Bytes{hostMemory: s.Unreclaimable()}
	for i, d := range s.Devices {
		if d.Ours > 0 {
			held[fmt.Sprintf("GPU %d memory", i)] = d.Ours
		}
	}
	if len(e.running) == 0 {
		found := e.fellBack(held[hostMemory], onHost)
		if steps {
			found = append(found, e.outside(held)...)
		}
		return found
	}
	if len(e.saving) > 0 {
		return nil
	}
	if s.Processes != e.crowd { // workers of its data loader come and go
		e.crowd, e.rising = s.Processes, map[string][]event.Bytes{}
	}
	var found []event.Finding
	for memory, bytes := range held {
		e.rising[memory] = append(e.rising[memory], bytes)
		grown, rises := risesThrough(e.rising[memory])
		if rises && e.said[memory] == 0 && e.told(memory) {
			e.said[memory] = grown
			found = append(found, e.growing(memory, grown, bytes, "so far"))
		}
	}
	return found
}

// told reports whether a rise is to be named. Pages of the host also rise through
// fragmentation (glibc's malloc and aligned blocks). So on the host a variable that keeps outputs
// must have been seen.
func (e *evalWatch) told(memory string) bool {
	return !e.carries() && (memory != hostMemory || e.seen().Kept >= evalKept)
}

// outside notes a reading of training. It withdraws that the peak is in evaluation once training
// holds as much.
func (e *evalWatch) outside(held map[string]event.Bytes) []event.Finding {
	e.reads++
	for memory, bytes := range held {
		e.trained[memory] = max(e.trained[memory], bytes)
	}
	now, peak := held[hostMemory], e.peakSaid
	if peak == 0 || now <= peak {
		return nil
	}
	e.peakSaid = 0
	return []event.Finding{{
		Kind: "evaluation", Key: peakOf(hostMemory), Severity: event.SeverityInfo,
		Bytes: now, Confidence: 0.8,
		Title: fmt.Sprintf("the peak of %s is in training, not in evaluation: %s, %s in evaluation",
			hostMemory, now, peak)}}
}

// risesThrough reports whether readings rise all through, and by how much: the lowest of each part
// is above that of the part before, nearly always, and no single part has most of the rise. The
// first part is left out: workspaces are made in it.
func risesThrough(held []event.Bytes) (event.Bytes, bool) {
	if len(held) < evalReadings {
		return 0, false
	}
	var floors [evalParts]event.Bytes
	for i := range floors {
		part := held[i*len(held)/evalParts : (i+1)*len(held)/evalParts]
		floors[i] = part[0]
		for _, b := range part {
			floors[i] = min(floors[i], b)
		}
	}
	rises, largest := 0, event.Bytes(0)
	for i := 2; i < evalParts; i++ {
		if up := floors[i] - floors[i-1]; up > 0 {
			rises++
			largest = max(largest, up)
		}
	}
	grown := floors[evalParts-1] - floors[1]
	return grown, grown >= enough(floors[1]) && rises >= evalParts-3 &&
		float64(largest) <= evalJump*float64(grown)
}

// growing words memory that rises all through an evaluation, until now.
func (e *evalWatch) growing(memory string, grown, now event.Bytes, until string) event.Finding {
	if memory == hostMemory {
		e.peakSaid = 0 // this takes its place
	}
	seen, f := e.seen(), event.Finding{
		Kind: "evaluation", Key: peakOf(memory), Severity: event.SeverityWarning, Bytes: grown,
		Confidence: 0.9,
		Evidence:   []string{fmt.Sprintf("it rose by %s through the evaluation, to %s", grown, now)},
	}
	begin := memory + " rises in evaluation"
	if peak := e.trained[memory]; peak > 0 && now > peak {
		begin = "the peak of " + memory + " is in evaluation"
		f.Evidence = append(f.Evidence, fmt.Sprintf("training held at most %s", peak))
	}
	f.Title = fmt.Sprintf("%s: it rose by %s and still rises, as when the outputs of all batches "+
		"are kept", begin, grown)
	if seen.Kept >= evalKept {
		f.Title = fmt.Sprintf("%s: the outputs of all batches are kept in %s, %s %s", begin,
			shortHolder(seen.Holder), grown, until)
		f.Evidence = append(f.Evidence, fmt.Sprintf("%s gets %s longer with every batch",
			seen.Holder, seen.Kept))
	} else {
		f.Confidence = 0.6
	}
	f.Remedies, f.Detail = seen.remedies(), "eval_batch"
	if seen.Kept >= evalKept {
		f.Detail = "eval_outputs"
	}
	f.Evidence = append(f.Evidence, seen.evidence()...)
	return f
}

// seen is what is known of the evaluation that runs: of the process that keeps most.
func (e *evalWatch) seen() Evaluated {
	_, most := e.keepsMost()
	return most
}

func (e *evalWatch) keepsMost() (process int, most Evaluated) {
	for pid := range e.running {
		if k := e.known[pid]; k.Kept > most.Kept || most == (Evaluated{}) {
			process, most = pid, k
		}
	}
	return process, most
}

// fellBack sees, once memory has fallen after an evaluation, that the peak was in it. A larger
// batch shows so, or gradients that are on; what stays after it (a data set that was loaded) does
// not count.
func (e *evalWatch) fellBack(now event.Bytes, onHost bool) []event.Finding {
	peak, trained := e.ended, e.trained[hostMemory]
	e.ended = 0
	more := peak - trained
	enough := max(peakGrowth, event.Bytes(math.Round(peakShare*float64(trained))))
	if !onHost || e.said[hostMemory] > 0 || e.once[hostMemory] || e.reads < peakReadings ||
		more < enough || now > peak-more/2 {
		return nil
	}
	e.once[hostMemory], e.peakSaid = true, peak
	var seen Evaluated
	for _, k := range e.known {
		seen = k
	}
	seen.Holder, seen.Kept = "", 0
	return []event.Finding{{
		Kind: "evaluation", Key: peakOf(hostMemory), Detail: "eval_batch", Severity: event.SeverityWarning,
		Bytes:      peak,
		Confidence: 0.8,
		Title: fmt.Sprintf("the peak of %s is in evaluation: %s; training held at most %s",
			hostMemory, peak, trained),
		Evidence: append([]string{fmt.Sprintf("after the evaluation it was %s", now)},
			seen.evidence()...),
		Remedies: seen.remedies(),
	}}
}

// remedies are the cures for what was seen. Switching gradients off is one only if they are on.
func (s Evaluated) remedies() []string {
	var ids []string
	if s.Grad {
		ids = append(ids, "no_grad")
	}
	if s.Kept >= evalKept {
		ids = append(ids, "eval_outputs")
	}
	ids = append(ids, "eval_batch")
	if len(ids) == 1 {
		ids = append(ids, "eval_outputs") // nothing was seen: either may help
	}
	return ids
}

func (s Evaluated) evidence() []string {
	if s.Grad {
		return []string{"gradients are on in evaluation: its results have a graph"}
	}
	return nil
}

var holderPlace = lazyregexp.New(`^(.+) in (.+):(\d+)$`)

// shortHolder shortens "logits in /home/me/eval.py:12" to `logits` (eval.py:12).
func shortHolder(holder string) string {
	m := holderPlace.FindStringSubmatch(holder)
	if m == nil {
		return holder
	}
	return fmt.Sprintf("`%s` (%s:%s)", m[1], path.Base(m[2]), m[3])
}
