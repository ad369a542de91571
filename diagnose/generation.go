package diagnose

import (
	"fmt"
	"path"

	"memroom/event"
)

// Caches is what generation keeps in a process: caches of keys and values that are alive.
type Caches struct {
	Count     int64
	Bytes     event.Bytes // of all
	Card      event.Bytes // of it on cards
	Largest   event.Bytes // of one
	Sequences int64       // in that one, 0 unknown
	Tokens    int64       // of each sequence
	Pages     event.Bytes // that the process held in host memory then
	File      string      // where the model is called
	Line      int
	Holder    Holder // the variable that holds most of those that nobody works with
}

// cacheWatch knows what one process's caches were before.
type cacheWatch struct {
	first    Caches // of the run of rises, of one cache
	counts   []int64
	oneSaid  bool
	keptSaid bool
}

const (
	cachesLeast = 4               // alive at once: a batch of beams or a draft model has fewer
	cachesRises = 3               // reports at which there were more
	cacheBytes  = 64 * event.MiB  // of one, before its growth matters
	cacheShare  = event.Bytes(10) // or this part of what the process holds
	cacheGrown  = event.Bytes(2)  // the part of it that must have come while it was watched
)

// Caches takes what generation keeps. One cache that grows and caches that stay are said once each.
func (w *Watch) Caches(pid int, c Caches) []event.Finding {
	if w.caches == nil {
		w.caches = map[int]*cacheWatch{}
	}
	known := w.caches[pid]
	if known == nil {
		known = &cacheWatch{}
		w.caches[pid] = known
	}
	known.counts = append(known.counts, c.Count)
	if w.stay(known, c) {
		known.keptSaid = true
		return []event.Finding{c.kept()}
	}
	if known.first.Count == 0 || c.Largest < known.first.Largest || c.Tokens < known.first.Tokens ||
		c.Sequences != known.first.Sequences {
		known.first = c
	}
	if !known.oneSaid && c.grows(known.first) {
		known.oneSaid = true
		return []event.Finding{c.long(known.first)}
	}
	return nil
}

// stay reports whether there were more caches at each of several reports.
func (w *Watch) stay(known *cacheWatch, c Caches) bool {
	n := len(known.counts)
	if known.keptSaid || n < cachesRises || c.Count < cachesLeast || c.Bytes < w.worth() {
		return false
	}
	for i := n - cachesRises + 1; i < n; i++ {
		if known.counts[i] <= known.counts[i-1] {
			return false
		}
	}
	return true
}

// kept words caches that stay after their generation.
func (c Caches) kept() event.Finding {
	f := event.Finding{Kind: "generation", Detail: "generation", Severity: event.SeverityWarning,
		Bytes: c.Bytes, Confidence: 0.8,
		Title: fmt.Sprintf("the caches of keys and values of %d generations stay in %s: %s, %s each",
			c.Count, c.memory(), c.Bytes, c.Bytes/event.Bytes(c.Count)),
		Evidence: []string{fmt.Sprintf("the model is called at %s:%d", path.Base(c.File), c.Line)},
		Remedies: []string{"keep_less", "generation_cache"}}
	if c.Holder.Name != "" {
		f.Title += fmt.Sprintf(", held by %s", c.Holder)
		f.Confidence = 0.9
	}
	return f
}

// grows reports whether one cache has become a real part of memory while it was watched.
func (c Caches) grows(first Caches) bool {
	return c.Largest >= cacheBytes && c.Tokens > first.Tokens &&
		c.Largest-first.Largest >= c.Largest/cacheGrown && (c.Card > 0 ||
		c.Pages == 0 || c.Largest >= c.Pages/cacheShare)
}

// long words one cache that grows with every token.
func (c Caches) long(first Caches) event.Finding {
	each := (c.Largest - first.Largest) / event.Bytes(c.Tokens-first.Tokens)
	return event.Finding{Kind: "generation", Detail: "generation", Severity: event.SeverityWarning,
		Bytes: c.Largest, Confidence: 0.85,
		Title: fmt.Sprintf("each token adds %s to the cache of keys and values, which takes %s of %s "+
			"for %d sequences of %d tokens (%s:%d)", each, c.Largest, c.memory(), c.Sequences, c.Tokens,
			path.Base(c.File), c.Line),
		Evidence: []string{fmt.Sprintf("%d tokens of as many sequences will take %s", 2*c.Tokens,
			c.Largest+each*event.Bytes(c.Tokens))},
		Remedies: []string{"generation_cache"}}
}

func (c Caches) memory() string {
	if 2*c.Card > c.Bytes {
		return "the card's memory"
	}
	return hostMemory
}
