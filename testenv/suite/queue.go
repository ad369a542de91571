package main

import (
	"sync"
	"time"
)

// job is something to do; it gives the jobs that became possible by it.
type job struct {
	do     func() []job
	weight float64 // seconds it is known to take; the longest waits least
}

// queue hands out jobs, the longest first, and those of equal length in their order. It is empty
// for good when no job is waiting and none runs.
type queue struct {
	mu      sync.Mutex
	changed *sync.Cond
	waiting []job
	running int
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

// next gives a job once fewer than `most` run, or false at the end.
func (q *queue) next(most int) (job, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.running >= most || len(q.waiting) == 0 && q.running > 0 {
		q.changed.Wait()
	}
	if len(q.waiting) == 0 {
		return job{}, false
	}
	first := 0
	for i, j := range q.waiting {
		if j.weight > q.waiting[first].weight {
			first = i
		}
	}
	j := q.waiting[first]
	q.waiting = append(q.waiting[:first], q.waiting[first+1:]...)
	q.running++
	return j, true
}

func (q *queue) done(more []job) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.running--
	q.waiting = append(q.waiting, more...)
	q.changed.Broadcast()
}

// fewer says whether fewer than n jobs run.
func (q *queue) fewer(n int) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.running < n
}

// work runs everything: `least` jobs at a time, and up to `most` while there is room for another.
// Many of our tests wait for the processes they watch, so a fixed number of jobs leaves processors
// idle at one time and fights for them at another.
func (q *queue) work(least, most int, room func() bool) {
	for {
		for !q.fewer(least) && q.fewer(most) && !room() {
			time.Sleep(settle / 3)
		}
		j, ok := q.next(most)
		if !ok {
			return
		}
		go func() { q.done(j.do()) }()
	}
}
