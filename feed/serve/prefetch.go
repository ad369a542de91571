package serve

import (
	"math"
	"sync"
	"time"
)

// How many batches are prepared ahead where the consumer did not choose: shallow at first, and up
// to deepest as far as the budget allows.
const (
	shallow = 2
	deepest = 64
	// looked is how many of the last batches are looked at for the longest time to make one.
	looked = 64
)

// prefetch chooses how many batches are ahead of a consumer, by Little's law: as many as it takes
// away while the slowest of the last ones is made, and one more. It only grows: slots that are not
// needed any more cost nothing but their memory, which others may take.
type prefetch struct {
	depth int
	fixed bool

	mu    sync.Mutex
	last  time.Time // when the consumer last gave a batch back
	every float64   // seconds between batches given back, the mean of the last ones

	times [looked]time.Duration
	next  int
}

// newPrefetch begins with what the consumer asked for; 0 leaves the choice to the server.
func newPrefetch(asked int) *prefetch {
	if asked > 0 {
		return &prefetch{depth: asked, fixed: true}
	}
	return &prefetch{depth: shallow}
}

// given notes that the consumer has given a batch back.
func (p *prefetch) given() {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if !p.last.IsZero() {
		const weight = 1.0 / 16
		passed := now.Sub(p.last).Seconds()
		if p.every == 0 {
			p.every = passed
		}
		p.every += (passed - p.every) * weight
	}
	p.last = now
}

// deeper notes how long a batch took to make, and reports whether one more should be ahead.
func (p *prefetch) deeper(took time.Duration) bool {
	if p.fixed || p.depth >= deepest {
		return false
	}
	p.times[p.next%looked] = took
	p.next++
	longest := time.Duration(0)
	for _, t := range p.times {
		longest = max(longest, t)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.every == 0 {
		return false
	}
	return float64(p.depth) < math.Ceil(longest.Seconds()/p.every)+1
}
