package engine

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"memroom/event"
	"memroom/trial"
)

// carded is a card on the simulated clock. A program imports, then holds its peak from the first
// steps on; where its allocator may not take that, it ends.
type carded struct {
	*scripted
	budget event.Bytes
	peak   func(trial.Params) event.Bytes
	lasts  func(trial.Params) time.Duration
	now    map[string]*onCard
	ranOut int
}

type onCard struct {
	peak, limit, used event.Bytes
	lasts             time.Duration
	began             time.Time
}

const (
	cardImports = 8 * time.Second
	stepsPerS   = 8
)

func (c *carded) Capacity() (trial.Capacity, error) {
	return trial.Capacity{CPUs: 16, Host: c.host, HostFree: c.host, GPU: c.budget,
		Cards: []trial.Card{{Budget: c.budget, Free: 100 * event.GiB}}}, nil
}

func (c *carded) Prepare(l trial.Launch) (string, error) {
	run, err := c.scripted.Prepare(l)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now[run] = &onCard{peak: c.peak(l.Params), limit: max(l.Device, l.Cap),
		lasts: c.lasts(l.Params)}
	return run, err
}

func (c *carded) Start(run string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	j := c.now[run]
	j.began = time.Now()
	c.jobs[run].began = j.began
	go func() {
		time.Sleep(cardImports)
		c.mu.Lock()
		out := trial.Outcome{PeakHost: event.GiB, CPUs: 0.1}
		if j.used = min(j.peak, j.limit); j.peak > j.limit {
			out.OOM, out.Where, out.ExitCode = true, event.WhereGPU, 1
			c.ranOut++
		}
		c.mu.Unlock()
		if !out.OOM {
			time.Sleep(j.lasts - cardImports)
			c.events <- trial.Happening{Run: run, Output: []byte("loss=1\n"), Step: -1}
		}
		c.mu.Lock()
		delete(c.jobs, run)
		c.mu.Unlock()
		out.PeakDevice, out.Seconds = j.used, time.Since(j.began).Seconds()
		c.events <- trial.Happening{Run: run, End: &out, Step: -1}
	}()
	return nil
}

func (c *carded) ResizeDevice(run string, device event.Bytes) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now[run].limit = device
	return nil
}

func (c *carded) Usage(run string) (u trial.Usage, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.jobs[run] == nil {
		return u, false
	}
	u = trial.Usage{Host: event.GiB, Peak: event.GiB, CPUs: 0.1}
	u.Age = time.Since(c.now[run].began)
	u.Still = max(0, u.Age-cardImports)
	if u.Still > time.Second {
		u.Device, u.CardSteps, u.CardRose = c.now[run].used, int64(u.Still.Seconds()*stepsPerS), 2
	}
	return u, true
}

// TestPackingOnACard: twelve trainings of 1 to 12 GiB on 24, against one who knows all sizes; their
// memory grows with the square of a width.
func TestPackingOnACard(t *testing.T) {
	for name, c := range map[string]struct {
		rehearse time.Duration
		bar      float64
	}{"learnt": {0, 1.65}, "rehearsed": {2 * time.Minute, 1.25}} {
		t.Run(name, func(t *testing.T) {
			sum, ranOut := 0.0, 0
			const seeds = 8
			for seed := range uint64(seeds) {
				ratio, ends := onOneCard(t, c.rehearse, seed)
				sum, ranOut = sum+ratio, ranOut+ends
			}
			t.Logf("mean %.2f x, %d ran out", sum/seeds, ranOut)
			if sum/seeds > c.bar || ranOut > 0 {
				t.Errorf("%.2f x the oracle's time, at most %.2f x; %d ran out", sum/seeds, c.bar, ranOut)
			}
		})
	}
}

func onOneCard(t *testing.T, rehearse time.Duration, seed uint64) (ratio float64, ranOut int) {
	const budget = 24 * event.GiB
	source := rand.New(rand.NewPCG(5, seed))
	sizeOf := func(p trial.Params) event.Bytes {
		w := knob(p, "width")
		return 820*event.MiB + event.Bytes(64*w*w)
	}
	widths := []int{2752, 4928, 6400, 7616, 8640, 9568, 10400, 11168, 11904, 12576, 13248, 13856}
	source.Shuffle(12, func(i, j int) { widths[i], widths[j] = widths[j], widths[i] })
	lasts, takes := map[float64]time.Duration{}, map[float64]time.Duration{}
	for _, w := range widths {
		lasts[float64(w)] = time.Duration(16500+3000*source.Float64()) * time.Millisecond
		takes[float64(w)] = time.Duration(10000+2000*source.Float64()) * time.Millisecond
	}
	card := &carded{budget: budget, peak: sizeOf, now: map[string]*onCard{},
		lasts: func(p trial.Params) time.Duration { return lasts[knob(p, "width")] }}
	says := saying(func(p trial.Params) (trial.Rehearsed, time.Duration, error) {
		size := float64(sizeOf(p))
		return trial.Rehearsed{Tensors: sizeOf(p), Resident: event.GiB / 2, Low: event.Bytes(0.98 * size),
			High: event.Bytes(1.003*size) + 64*event.MiB}, takes[knob(p, "width")], nil
	})
	domain := strings.ReplaceAll(strings.Trim(fmt.Sprint(widths), "[]"), " ", ",")
	spec := Spec{Space: spaceOf(t, "width", "choice("+domain+")"), Method: trial.Grid, Samples: 12,
		Rehearse: rehearse, Options: trial.Options{GPUs: 1}}
	got := packOn(t, spec, says, func() (trial.Backend, *scripted) {
		card.scripted = newScripted(64*event.GiB, func(trial.Launch) curve { return curve{} })
		return card, card.scripted
	})
	if got.finished != 12 {
		t.Errorf("%d finished", got.finished)
	}
	var jobs []curve
	for w, seconds := range lasts {
		size := sizeOf(trial.Params{{Name: "width", Value: trial.Number(w)}})
		jobs = append(jobs, curve{seconds.Seconds(), func(float64) event.Bytes { return size }})
	}
	slices.SortFunc(jobs, func(a, b curve) int { return cmp.Compare(a.peak(), b.peak()) })
	best, _ := oracle(jobs, budget)
	t.Logf("%.1f s, oracle %.1f s (%.2f x), %d ran out", got.seconds, best, got.seconds/best,
		card.ranOut)
	return got.seconds / best, card.ranOut
}
