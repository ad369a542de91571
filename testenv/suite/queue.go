package main

import "sync"

// job is something to do; it gives the jobs that became possible by it.
type job func() []job

// queue hands jobs to workers in order. It is empty for good when no job is waiting and none runs.
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

// next gives a job, or nil at the end.
func (q *queue) next() job {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.waiting) == 0 && q.running > 0 {
		q.changed.Wait()
	}
	if len(q.waiting) == 0 {
		return nil
	}
	j := q.waiting[0]
	q.waiting = q.waiting[1:]
	q.running++
	return j
}

func (q *queue) done(more []job) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.running--
	q.waiting = append(q.waiting, more...)
	q.changed.Broadcast()
}

// work runs everything, n jobs at a time.
func (q *queue) work(n int) {
	var workers sync.WaitGroup
	for range n {
		workers.Go(func() {
			for j := q.next(); j != nil; j = q.next() {
				q.done(j())
			}
		})
	}
	workers.Wait()
}
