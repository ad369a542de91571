package main

import (
	"math"
	"sync"
	"time"
)

// job is something to do; it returns the jobs that became possible by it.
type job struct {
	do     func() []job
	weight float64 // seconds it is known to take; the longest waits least
	share  float64 // of one processor, while it runs; 0 is not known and counts as a whole one
}

func (j job) wants() float64 {
	if j.share == 0 {
		return 1
	}
	return j.share
}

// queue hands out jobs, the longest first, and those of equal length in their order. It is empty
// for good when no job is waiting and none runs.
type queue struct {
	mu      sync.Mutex
	changed *sync.Cond
	waiting []job
	running int
	asked   float64 // processors that running jobs are known to use together
}

func newQueue() *queue {
	q := &queue{}
	q.changed = sync.NewCond(&q.mu)
	return q
}

func (q *queue) add(jobs ...job) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting = append(q.waiting, jobs...)
	q.changed.Broadcast()
}

// start takes the longest job that wants no more than `spare` processors. Without a running job
// any will do.
func (q *queue) start(spare float64) (first job, ok bool) {
	const rounding = 1e-9 // shares come from a file of decimals
	at := -1
	for i, j := range q.waiting {
		fits := q.running == 0 || j.wants() <= spare+rounding
		if fits && (at < 0 || j.weight > q.waiting[at].weight) {
			at = i
		}
	}
	if at < 0 {
		return job{}, false
	}
	first = q.waiting[at]
	q.waiting = append(q.waiting[:at], q.waiting[at+1:]...)
	q.running++
	q.asked += first.wants()
	return first, true
}

func (q *queue) done(j job, more []job) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.running--
	q.asked -= j.wants()
	q.waiting = append(q.waiting, more...)
	q.changed.Broadcast()
}

// work runs everything: jobs that together want `processors`, and up to `most` while there is room
// for another. Many of our tests wait for the processes they watch. A fixed number of jobs would
// leave processors idle at one time and fight for them at another, and what only waits would be
// left for the end.
func (q *queue) work(processors float64, most int, room func() bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.waiting) > 0 || q.running > 0 {
		var j job
		ok := false
		if q.running < most {
			if j, ok = q.start(processors - q.asked); !ok && len(q.waiting) > 0 {
				q.mu.Unlock()
				found := room()
				q.mu.Lock()
				if found {
					j, ok = q.start(math.Inf(1))
				} else if len(q.waiting) > 0 {
					q.pause()
					continue
				}
			}
		}
		if !ok {
			if len(q.waiting) > 0 || q.running > 0 {
				q.changed.Wait()
			}
			continue
		}
		go func() { q.done(j, j.do()) }()
	}
}

// pause lets go of the queue for a moment.
func (q *queue) pause() {
	q.mu.Unlock()
	time.Sleep(settle / 3)
	q.mu.Lock()
}
