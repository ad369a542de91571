package engine

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"memroom/event"
	"memroom/trial"
)

// clustered is a cluster of nodes on the simulated clock: a job waits until one node has the memory
// it asks for, keeps that to its end, and is killed beyond it.
type clustered struct {
	*scripted
	nodes []event.Bytes // free on each
	queue []string
	asks  map[string]event.Bytes
	needs map[string]event.Bytes
	on    map[string]int
	to    int // trials of the study
	since time.Time
	spent spent
}

// spent is where the memory of all nodes goes, in bytes times seconds.
type spent struct {
	work, whole, margins       float64 // of jobs: what they need, a whole node beyond that, or margins
	unknown, fragments, nobody float64 // free: before any end, while trials wait, while none does
}

func (s spent) String() string {
	all := s.work + s.whole + s.margins + s.unknown + s.fragments + s.nobody
	return fmt.Sprintf("%.1f %% needed; lost: %.1f %% whole nodes of trials of which nothing was known, "+
		"%.1f %% margins, %.1f %% free before the first start or end, %.1f %% free while trials wait, "+
		"%.1f %% free at the end", 100*s.work/all, 100*s.whole/all, 100*s.margins/all,
		100*s.unknown/all, 100*s.fragments/all, 100*s.nobody/all)
}

// account adds the time since the last change. The caller holds the lock.
func (c *clustered) account() {
	seconds := time.Since(c.since).Seconds()
	c.since = time.Now()
	for run := range c.on {
		c.spent.work += seconds * float64(c.needs[run])
		beyond := &c.spent.margins
		if c.asks[run] == c.host/event.Bytes(len(c.nodes)) {
			beyond = &c.spent.whole
		}
		*beyond += seconds * float64(c.asks[run]-c.needs[run])
	}
	into := &c.spent.fragments
	switch {
	case len(c.needs) == len(c.on) && c.made == len(c.on):
		into = &c.spent.unknown
	case c.made >= c.to && len(c.queue) == 0:
		into = &c.spent.nobody
	}
	for _, room := range c.nodes {
		*into += seconds * float64(room)
	}
}

const (
	jobOverhead = 128 * event.MiB // what a job asks for beside the trial's memory
	clusterAsks = time.Second     // between two looks of ours at the cluster
)

func newClustered(count int, node event.Bytes, job func(trial.Launch) curve) *clustered {
	c := &clustered{scripted: newScripted(event.Bytes(count)*node, job), asks: map[string]event.Bytes{},
		needs: map[string]event.Bytes{}, on: map[string]int{}, since: time.Now()}
	c.startS, c.endS = clusterAsks, clusterAsks/2
	for range count {
		c.nodes = append(c.nodes, node)
	}
	return c
}

func (c *clustered) Capacity() (trial.Capacity, error) {
	return trial.Capacity{CPUs: 16 * float64(len(c.nodes)), NodeCPUs: 16, Host: c.host,
		HostFree: c.host, NodeHost: c.host/event.Bytes(len(c.nodes)) - jobOverhead}, nil
}

func (c *clustered) Start(run string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.account()
	c.asks[run] = c.jobs[run].limit + jobOverhead
	c.needs[run] = c.jobs[run].curve.peak() + jobOverhead
	c.jobs[run].released = true // nothing stands still there
	c.queue = append(c.queue, run)
	c.place()
	return nil
}

// place starts what fits, the longest waiting first, each on the fullest node that has room. The
// caller holds the lock.
func (c *clustered) place() {
	var rest []string
	for _, run := range c.queue {
		best := fullest(c.nodes, c.asks[run])
		if best < 0 {
			rest = append(rest, run)
			continue
		}
		c.nodes[best] -= c.asks[run]
		c.on[run] = best
		j := c.jobs[run]
		j.began, j.rose = time.Now(), time.Now()
		go func() {
			c.act(run, j)
			c.mu.Lock()
			defer c.mu.Unlock()
			c.account()
			c.nodes[c.on[run]] += c.asks[run]
			delete(c.on, run)
			c.place()
		}()
	}
	c.queue = rest
}

func (c *clustered) Usage(run string) (u trial.Usage, ok bool) {
	u, ok = c.scripted.Usage(run)
	u.Held, u.Holds, u.Still = false, false, 0
	if _, begun := c.on[run]; !begun {
		u = trial.Usage{}
	}
	return u, ok
}

// TestManyTrialsOverNodes: forty trials a node, against one who knows every peak and packs nodes as
// the cluster does, the largest first. The clock is simulated, but which of two trials that end at
// once is heard first is not decided: over fifty nodes three
// runs gave 1.146, 1.151 and 1.156.
func TestManyTrialsOverNodes(t *testing.T) {
	for name, c := range map[string]struct {
		nodes    int
		rehearse time.Duration
		bar      float64
	}{"6 nodes, learnt": {6, 0, 1.32}, "6 nodes, rehearsed": {6, time.Hour, 1.22},
		"50 nodes, rehearsed": {50, time.Hour, 1.17}} {
		t.Run(name, func(t *testing.T) { overNodes(t, c.nodes, 40*c.nodes, c.rehearse, c.bar) })
	}
}

func overNodes(t *testing.T, count, trials int, rehearse time.Duration, bar float64) {
	const node, mib = 16 * event.GiB, float64(event.MiB)
	space := spaceOf(t, "bs", "choice(8,16,32,64)", "width", "qrandint(64,512,64)")
	shareOf := func(p trial.Params) float64 {
		return 0.03 + 0.25*knob(p, "bs")*knob(p, "width")/(64*512)
	}
	of := func(id int, p trial.Params) curve {
		source := rand.New(rand.NewPCG(11, uint64(id)))
		seconds := 30 + 60*source.Float64()
		share := shareOf(p)
		share *= 0.97 + 0.06*source.Float64()
		peak := event.Bytes(share*float64(node)/mib) * event.MiB
		return curve{seconds, shapeOf(source.IntN(3), peak)}
	}
	sampler, err := trial.NewSampler(space, trial.Random, 1)
	if err != nil {
		t.Fatal(err)
	}
	var jobs []curve
	for n := range trials {
		jobs = append(jobs, of(n, sampler.Point(n)))
	}
	best := oracleOfNodes(jobs, count, node)
	var c *clustered
	spec := Spec{Space: space, Seed: 1, Samples: trials, Rehearse: rehearse}
	// a rehearsal takes a while, and leaves out a twentieth
	rehearser := saying(func(p trial.Params) (trial.Rehearsed, time.Duration, error) {
		return trial.Rehearsed{Resident: 200 * event.MiB,
			Tensors: event.Bytes(0.95*shareOf(p)*float64(node)) - 200*event.MiB}, 5 * time.Second, nil
	})
	got := packOn(t, spec, rehearser, func() (trial.Backend, *scripted) {
		c = newClustered(count, node, func(l trial.Launch) curve { return of(l.Trial, l.Params) })
		c.to = trials
		return c, c.scripted
	})
	t.Logf("%d trials: %.0f s, oracle %.0f s (%.3f x); ran out: %d of the first 20, %d later", trials,
		got.seconds, best, got.seconds/best, got.early, got.late)
	t.Log(c.spent)
	if got.finished != trials || got.late*50 > trials || got.seconds > bar*best {
		t.Errorf("%d finished, %d ran out, %.3f x the oracle's makespan, at most %.2f x",
			got.finished, got.late, got.seconds/best, bar)
	}
}

// oracleOfNodes knows every peak: the largest that fits begins first, on the fullest node.
func oracleOfNodes(jobs []curve, count int, node event.Bytes) (makespan float64) {
	type job struct {
		seconds float64
		bytes   event.Bytes
		on      int
	}
	var waiting, active []job
	for _, j := range jobs {
		waiting = append(waiting, job{j.seconds + (clusterAsks + clusterAsks/2).Seconds(),
			j.peak() + jobOverhead, 0})
	}
	slices.SortFunc(waiting, func(a, b job) int { return cmp.Compare(b.bytes, a.bytes) })
	free := slices.Repeat([]event.Bytes{node}, count)
	for len(waiting) > 0 || len(active) > 0 {
		rest := waiting[:0:0]
		for _, j := range waiting {
			if on := fullest(free, j.bytes); on >= 0 {
				free[on] -= j.bytes
				active = append(active, job{makespan + j.seconds, j.bytes, on})
			} else {
				rest = append(rest, j)
			}
		}
		waiting = rest
		slices.SortFunc(active, func(a, b job) int { return cmp.Compare(a.seconds, b.seconds) })
		makespan = active[0].seconds
		free[active[0].on] += active[0].bytes
		active = active[1:]
	}
	return makespan
}

// fullest is the node with the least room that is enough; -1: there is none.
func fullest(free []event.Bytes, asked event.Bytes) int {
	best := -1
	for i, room := range free {
		if room >= asked && (best < 0 || room < free[best]) {
			best = i
		}
	}
	return best
}
