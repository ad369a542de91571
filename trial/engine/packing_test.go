package engine

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"memroom/event"
	"memroom/trial"
)

// scripted is a backend on a simulated clock. A trial follows its curve; where that is above its
// limit it stands still, as in a cgroup that waits. Nothing here depends on how fast the test runs.
type scripted struct {
	host   event.Bytes
	job    func(trial.Launch) curve
	startS time.Duration // from the launch until the program runs
	endS   time.Duration // from its end until we hear of it

	mu     sync.Mutex
	events chan trial.Happening
	jobs   map[string]*acting
	made   int
	most   event.Bytes // used at once
	atOnce int
}

// curve is a training: how long it takes when nothing is in its way, and what it holds at a share
// of that.
type curve struct {
	seconds float64
	at      func(share float64) event.Bytes
}

func (c curve) peak() (most event.Bytes) {
	for i := range 200 {
		most = max(most, c.at(float64(i)/200))
	}
	return most
}

type acting struct {
	curve
	run      string
	limit    event.Bytes
	done     float64 // seconds of it
	used     event.Bytes
	peak     event.Bytes
	began    time.Time
	rose     time.Time
	held     bool
	released bool
}

func newScripted(host event.Bytes, job func(trial.Launch) curve) *scripted {
	return &scripted{host: host, job: job, startS: startCost, endS: endCost,
		events: make(chan trial.Happening, 64),
		jobs:   map[string]*acting{}}
}

func (s *scripted) Capacity() (trial.Capacity, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	free := s.host + 512*event.MiB
	for _, j := range s.jobs {
		free -= j.used
	}
	return trial.Capacity{CPUs: 16, Host: s.host, HostFree: free, Elastic: true}, nil
}

func (s *scripted) Prepare(l trial.Launch) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.made++
	run := fmt.Sprintf("run-%d", s.made)
	s.jobs[run] = &acting{curve: s.job(l), run: run, limit: l.Host}
	return run, nil
}

// What starting a process and hearing of its end take, here and for the oracle.
const (
	startCost = 30 * time.Millisecond
	endCost   = 60 * time.Millisecond
)

// instants of a training are looked at: the clock of a long one need not tick as often.
const instants = 200

func (s *scripted) Start(run string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	j := s.jobs[run]
	j.began, j.rose = time.Now(), time.Now()
	s.atOnce = max(s.atOnce, len(s.jobs))
	go s.act(run, j)
	return nil
}

func (s *scripted) act(run string, j *acting) {
	time.Sleep(s.startS)
	out := trial.Outcome{}
	instant := time.Duration(j.seconds / instants * float64(time.Second))
	for s.step(j, &out, instant) {
		time.Sleep(s.pause(j, instant))
	}
	time.Sleep(s.endS)
	s.mu.Lock()
	delete(s.jobs, run)
	out.PeakHost, out.Seconds, out.CPUs = j.peak, time.Since(j.began).Seconds(), 0.01
	s.mu.Unlock()
	if !out.OOM {
		s.events <- trial.Happening{Run: run, Output: []byte("loss=1\n"), Step: -1}
	}
	s.events <- trial.Happening{Run: run, End: &out, Step: -1}
}

func (s *scripted) tell(h trial.Happening) {
	select {
	case s.events <- h:
	case <-time.After(time.Second): // the study is over
	}
}

// pause until the next instant: one that stands still goes on as soon as it is given more.
func (s *scripted) pause(j *acting, instant time.Duration) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if j.held {
		return min(instant, 10*time.Millisecond)
	}
	return instant
}

func (s *scripted) step(j *acting, out *trial.Outcome, instant time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if j.done >= j.seconds {
		return false
	}
	want := j.at(j.done / j.seconds)
	if !j.held && want > j.limit {
		defer func() { go s.tell(trial.Happening{Run: j.run, Tight: true, Step: -1}) }()
	}
	j.held = want > j.limit
	if j.held && j.released {
		*out = trial.Outcome{ExitCode: 137, Signal: "SIGKILL", OOM: true, Where: event.WhereHost}
		return false
	}
	j.used = min(want, j.limit)
	if float64(j.used) > 1.01*float64(j.peak) {
		j.rose = time.Now()
	}
	j.peak = max(j.peak, j.used)
	var sum event.Bytes
	for _, other := range s.jobs {
		sum += other.used
	}
	s.most = max(s.most, sum)
	if !j.held {
		j.done += instant.Seconds()
	}
	return true
}

func (s *scripted) Rejoin(string, trial.Launch) (bool, error) { return false, nil }

func (s *scripted) Usage(run string) (u trial.Usage, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	j := s.jobs[run]
	if j == nil {
		return u, false
	}
	return trial.Usage{Host: j.used, Peak: j.peak, CPUs: 0.01, Held: j.held, Holds: true,
		Still: time.Since(j.rose), Age: time.Since(j.began)}, true
}

func (s *scripted) Resize(run string, host event.Bytes) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if j := s.jobs[run]; j != nil {
		j.limit = host
	}
	return nil
}

func (s *scripted) Release(run string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if j := s.jobs[run]; j != nil {
		j.released = true
	}
}

func (s *scripted) Stop(run string)                { s.Release(run) }
func (s *scripted) Events() <-chan trial.Happening { return s.events }
func (s *scripted) Close()                         {}

// oracle packs jobs whose needs it knows, the largest that fits first. Starts and ends
// cost it what they cost us.
func oracle(jobs []curve, host event.Bytes) (makespan, volume float64) {
	type running struct {
		until float64
		bytes event.Bytes
	}
	waiting := map[int]bool{}
	for i, j := range jobs {
		waiting[i] = true
		volume += j.seconds * float64(j.peak()) / float64(host)
		jobs[i].seconds += (startCost + endCost).Seconds()
	}
	var active []running
	free, now := host, 0.0
	for len(waiting) > 0 || len(active) > 0 {
		best := -1
		for i := range jobs {
			if waiting[i] && jobs[i].peak() <= free &&
				(best < 0 || jobs[i].peak() > jobs[best].peak()) {
				best = i
			}
		}
		if best >= 0 {
			delete(waiting, best)
			free -= jobs[best].peak()
			active = append(active, running{now + jobs[best].seconds, jobs[best].peak()})
			continue
		}
		first := 0
		for i := range active {
			if active[i].until < active[first].until {
				first = i
			}
		}
		now = active[first].until
		free += active[first].bytes
		active = append(active[:first], active[first+1:]...)
	}
	return now, volume
}

// shapeOf returns the three ways in which trainings reach their peak.
func shapeOf(kind int, peak event.Bytes) func(float64) event.Bytes {
	return func(share float64) event.Bytes {
		step := int(share*20) + 1
		switch kind {
		case 0: // most of it at once
			step = min(20, 14+3*(step-1))
		case 1: // evenly
		default: // late
			if step <= 14 {
				step = 12
			} else {
				step = 20
			}
		}
		return 8*event.MiB + peak*event.Bytes(step)/20
	}
}

type packed struct {
	seconds     float64
	late, early int // trials after and of the first 20 that took more than one attempt
	finished    int
	most        event.Bytes
}

// inMemory is a folder that waits for no disk, where there is one: a study writes its journal
// through to the disk at every start and end, which takes longer than all the rest here.
func inMemory(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "memroom-study-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// pack runs a whole study of the real engine on the simulated clock.
func pack(t *testing.T, space trial.Space, n int, host event.Bytes, seed uint64,
	job func(trial.Launch) curve) packed {
	t.Helper()
	spec := Spec{Space: space, Samples: n, Seed: seed}
	return packOn(t, spec, nil, func() (trial.Backend, *scripted) {
		backend := newScripted(host, job)
		return backend, backend
	})
}

// packOn is pack on a backend that is made under the simulated clock.
func packOn(t *testing.T, spec Spec, rehearser Rehearser,
	made func() (trial.Backend, *scripted)) (result packed) {
	t.Helper()
	spec.Name, spec.Command = "packing", []string{"true"}
	spec.Method = cmp.Or(spec.Method, trial.Random)
	spec.Options = trial.Options{Metric: "loss", Mode: "min", CPUs: 0.01, GPUs: spec.Options.GPUs}
	dir, err := Create(inMemory(t), spec)
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		e, err := Load(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		backend, script := made()
		e.Backend, e.Rehearser = backend, rehearser
		began := time.Now()
		if err := e.Run(context.Background()); err != nil {
			t.Fatal(err)
		}
		result.seconds, result.most = time.Since(began).Seconds(), script.most
		for _, one := range e.Study.Trials {
			if one.State == trial.Finished {
				result.finished++
			}
			if len(one.Attempts) > 1 && one.ID < 20 {
				result.early++
			} else if len(one.Attempts) > 1 {
				result.late++
			}
		}
		synctest.Wait()
	})
	return result
}

func spaceOf(t *testing.T, domains ...string) (space trial.Space) {
	t.Helper()
	for i := 0; i < len(domains); i += 2 {
		d, err := trial.ParseDomain(domains[i+1])
		if err != nil {
			t.Fatal(err)
		}
		if err := space.Add(domains[i], d); err != nil {
			t.Fatal(err)
		}
	}
	return space
}

func knob(p trial.Params, name string) float64 {
	v, _ := p.Get(name)
	f, _ := v.Float()
	return f
}

// packingCase is a kind of study.
type packingCase struct {
	name    string
	trials  int
	domains []string
	share   func(trial.Params) float64 // of the host
	noise   float64
	shortS  float64
	longS   float64
	bar     float64 // of the makespan against the oracle's
	shape   func(kind int, peak event.Bytes) func(float64) event.Bytes
}

// run packs a case with three seeds, and the oracle with it.
func (c packingCase) run(t *testing.T, host event.Bytes) {
	const mib = float64(event.MiB)
	space := spaceOf(t, c.domains...)
	if c.shape == nil {
		c.shape = shapeOf
	}
	total, late := 0.0, 0
	const seeds = 3
	for seed := range uint64(seeds) {
		of := func(id int, p trial.Params) curve {
			source := rand.New(rand.NewPCG(11+seed, uint64(id)))
			seconds := c.shortS + (c.longS-c.shortS)*source.Float64()
			kind := source.IntN(3)
			share := c.share(p) * (1 - c.noise + 2*c.noise*source.Float64())
			return curve{seconds, c.shape(kind, event.Bytes(share*float64(host)/mib)*event.MiB)}
		}
		sampler, err := trial.NewSampler(space, trial.Random, seed+1)
		if err != nil {
			t.Fatal(err)
		}
		var jobs []curve
		for n := range c.trials {
			jobs = append(jobs, of(n, sampler.Point(n)))
		}
		best, volume := oracle(jobs, host)
		got := pack(t, space, c.trials, host, seed+1, func(l trial.Launch) curve {
			return of(l.Trial, l.Params)
		})
		t.Logf("%.1f s, oracle %.1f s (%.3f x), volume %.1f s; ran out: %d of the first 20, "+
			"%d later; at most %v", got.seconds, best, got.seconds/best, volume, got.early,
			got.late, got.most)
		if got.finished != c.trials {
			t.Errorf("%d of %d finished", got.finished, c.trials)
		}
		if got.most > host {
			t.Errorf("%v in use at once, the budget is %v", got.most, host)
		}
		total, late = total+got.seconds/best, late+got.late
	}
	t.Logf("mean %.3f x", total/seeds)
	if total/seeds > c.bar {
		t.Errorf("%.2f x the oracle's makespan, at most %.2f x", total/seeds, c.bar)
	}
	if late*50 > (c.trials-20)*seeds {
		t.Errorf("%d of %d ran out after the first 20, at most 2 %%", late, (c.trials-20)*seeds)
	}
}

// TestPackingAgainstAnOracle: makespan within a tenth of one who knows every peak.
func TestPackingAgainstAnOracle(t *testing.T) {
	const host = 4 * event.GiB
	for _, c := range []packingCase{
		{"a product", 200, []string{"bs", "choice(8,16,32,64)", "width", "qrandint(64,512,64)"},
			func(p trial.Params) float64 {
				return 0.03 + 0.25*knob(p, "bs")*knob(p, "width")/(64*512)
			}, 0.03, 1.5, 3.5, 1.12, nil}, // the first trial, alone, is a twentieth of it all
		{"a product, long trials", 200,
			[]string{"bs", "choice(8,16,32,64)", "width", "qrandint(64,512,64)"},
			func(p trial.Params) float64 {
				return 0.03 + 0.25*knob(p, "bs")*knob(p, "width")/(64*512)
			}, 0.03, 30, 90, 1.1, nil},
		{"all alike", 100, []string{"lr", "loguniform(1e-5,1e-1)"},
			func(trial.Params) float64 { return 0.19 }, 0.03, 5, 15, 1.1, nil},
		{"a name decides", 120, []string{"lr", "uniform(0,1)", "model", "choice(a,b,c)"},
			func(p trial.Params) float64 {
				v, _ := p.Get("model")
				return map[string]float64{"a": 0.04, "b": 0.11, "c": 0.3}[v.String()]
			}, 0.02, 5, 15, 1.12, nil},
		{"a line and a square", 150, []string{"len", "randint(64,1024)", "lr", "uniform(0,1)"},
			func(p trial.Params) float64 {
				n := knob(p, "len") / 1024
				return 0.05 + 0.05*n + 0.2*n*n
			}, 0.03, 5, 15, 1.1, nil},
		{"half of it is chance", 150, []string{"lr", "uniform(0,1)"},
			func(trial.Params) float64 { return 0.1 }, 0.4, 5, 15, 1.3, nil}, // no setting counts
	} {
		t.Run(c.name, func(t *testing.T) { c.run(t, host) })
	}
}

// imported is a training as Python shows it: libraries first, then the model, then what the first
// steps add; the last tenth writes a checkpoint.
func imported(kind int, peak event.Bytes) func(float64) event.Bytes {
	return func(share float64) event.Bytes {
		libraries := min(peak, 90*event.MiB)
		switch {
		case share < 0.08+0.04*float64(kind):
			return libraries * event.Bytes(1+share*100) / 20
		case share < 0.2:
			return max(libraries, peak*6/10)
		case share < 0.9:
			return max(libraries, peak*9/10)
		}
		return peak
	}
}

// sawtooth rises and falls with each epoch; every epoch's evaluation is the same peak.
func sawtooth(kind int, peak event.Bytes) func(float64) event.Bytes {
	return func(share float64) event.Bytes {
		epochs := 4 + 3*float64(kind)
		at := share*epochs - float64(int(share*epochs))
		if at > 0.75 {
			return peak
		}
		return peak * 7 / 10
	}
}

// creeping goes on rising a little to the end.
func creeping(_ int, peak event.Bytes) func(float64) event.Bytes {
	return func(share float64) event.Bytes {
		return peak*8/10 + event.Bytes(float64(peak)*0.2*share)
	}
}

// TestPackingOfFurtherStudies: kinds that the parameters of the scheduler were not chosen on.
func TestPackingOfFurtherStudies(t *testing.T) {
	const host = 4 * event.GiB
	for _, c := range []packingCase{
		{name: "libraries first", trials: 120, domains: []string{"bs", "choice(16,32,64,128)", "lr",
			"loguniform(1e-5,1e-1)"},
			share: func(p trial.Params) float64 { return 0.06 + 0.12*knob(p, "bs")/128 },
			noise: 0.02, shortS: 10, longS: 30, bar: 1.1, shape: imported},
		{name: "evaluation in every epoch", trials: 100, domains: []string{"width",
			"choice(128,256,512)", "depth", "randint(2,13)"},
			share: func(p trial.Params) float64 {
				w := knob(p, "width") / 512
				return 0.04 + 0.2*w*w*knob(p, "depth")/12
			}, noise: 0.03, shortS: 8, longS: 40, bar: 1.12, shape: sawtooth},
		{name: "creeping", trials: 100, domains: []string{"seq", "choice(128,256,512,1024)", "bs",
			"choice(1,2,4,8)"},
			share: func(p trial.Params) float64 {
				return 0.05 + 0.2*knob(p, "seq")/1024*knob(p, "bs")/8
			}, noise: 0.03, shortS: 10, longS: 20, bar: 1.1, shape: creeping},
		{name: "few large among many small", trials: 150, domains: []string{"model",
			"choice(tiny,tiny2,small,small2,base,huge)", "lr", "uniform(0,1)"},
			share: func(p trial.Params) float64 {
				v, _ := p.Get("model")
				return map[string]float64{"tiny": 0.02, "tiny2": 0.025, "small": 0.05, "small2": 0.06,
					"base": 0.12, "huge": 0.45}[v.String()]
			}, noise: 0.02, shortS: 5, longS: 15, bar: 1.25},
		{name: "three fit", trials: 40, domains: []string{"lr", "uniform(0,1)", "drop", "uniform(0,1)"},
			share: func(trial.Params) float64 { return 0.3 }, noise: 0.02, shortS: 10, longS: 20,
			bar: 1.1},
		{name: "names and a number", trials: 160, domains: []string{"opt", "choice(sgd,adam)", "bs",
			"choice(8,16,32,64)", "act", "choice(relu,gelu,silu)", "wd", "uniform(0,1)"},
			share: func(p trial.Params) float64 {
				v, _ := p.Get("opt")
				state := map[string]float64{"sgd": 0.03, "adam": 0.09}[v.String()]
				return state + 0.1*knob(p, "bs")/64
			}, noise: 0.03, shortS: 2, longS: 6, bar: 1.1},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(t, host) })
	}
}

// TestFewLargeTrials: where two fit at once, or one, nothing is killed and little time is lost.
func TestFewLargeTrials(t *testing.T) {
	const host = 4 * event.GiB
	for _, c := range []struct {
		name   string
		peak   event.Bytes
		trials int
		kind   int
		bar    float64
	}{
		{"two at once", 1400 * event.MiB, 4, 0, 1.1},
		{"two at once, rising evenly", 1900 * event.MiB, 8, 1, 1.3},
		{"one at once", 2500 * event.MiB, 4, 0, 1.1},
		{"all there is", 4000 * event.MiB, 3, 0, 1.1},
	} {
		t.Run(c.name, func(t *testing.T) {
			one := curve{20, shapeOf(c.kind, c.peak)}
			best, _ := oracle(slices.Repeat([]curve{one}, c.trials), host)
			got := pack(t, spaceOf(t, "lr", "uniform(0,1)"), c.trials, host, 1,
				func(trial.Launch) curve { return one })
			t.Logf("%.1f s, oracle %.1f s (%.2f x)", got.seconds, best, got.seconds/best)
			if got.finished != c.trials || got.early > 0 || got.seconds > c.bar*best {
				t.Errorf("%d of %d finished, %d ran out, %.2f x the oracle's makespan, at most %.2f x",
					got.finished, c.trials, got.early, got.seconds/best, c.bar)
			}
		})
	}
}
