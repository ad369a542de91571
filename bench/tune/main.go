// Command tune measures `memroom tune` against what people do today: packing by processors, by a
// declared maximum and by an oracle; recovery from running out; kills of the scheduler; the cost of
// a trial. Every figure comes from real processes in real cgroups, unless the output notes
// otherwise.
//
//	go run ./bench/tune [-binary bin/memroom] founding|packing|recovery|crash|scale
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"memroom/trial"
)

type bench struct {
	binary string
	python string
	dir    string
	trials int
	budget int // MiB
	quick  bool
}

func main() {
	if len(os.Args) >= 5 && os.Args[1] == "work" {
		work(os.Args[2], os.Args[3], os.Args[4])
		return
	}
	if len(os.Args) == 5 && os.Args[1] == "trial" {
		trialOf(os.Args[2:])
		return
	}
	b := &bench{}
	flag.StringVar(&b.binary, "binary", "bin/memroom", "the binary under test")
	flag.StringVar(&b.python, "python", os.Getenv("MEMROOM_TEST_PYTHON"),
		"a Python with ray and optuna")
	flag.IntVar(&b.trials, "trials", 200, "trials of packing")
	flag.IntVar(&b.budget, "budget", 4096, "MiB of packing; peaks are scaled to it")
	flag.BoolVar(&b.quick, "quick", false, "packing: only the oracle and memroom")
	longer := flag.String("longer", "1", "packing: trials of 1.5 to 3.5 s take so many times as long")
	flag.Parse()
	os.Setenv(longerEnv, *longer)
	if err := b.run(flag.Arg(0)); err != nil {
		fmt.Fprintln(os.Stderr, "bench/tune:", err)
		os.Exit(1)
	}
}

func (b *bench) run(what string) (err error) {
	if b.binary, err = filepath.Abs(b.binary); err != nil {
		return err
	}
	if b.dir, err = os.MkdirTemp("", "memroom-bench-"); err != nil {
		return err
	}
	defer os.RemoveAll(b.dir)
	switch what {
	case "founding":
		return b.founding()
	case "packing":
		return b.packing()
	case "recovery":
		return b.recovery()
	case "crash":
		return b.crash()
	case "scale":
		return b.scale()
	}
	return fmt.Errorf("say which: founding, packing, recovery, crash or scale")
}

// trialOf is a trial of the packing study: its settings and number say what it does.
func trialOf(args []string) {
	var numbers [3]int
	for i := range numbers {
		numbers[i], _ = strconv.Atoi(args[i])
	}
	number, _ := strconv.Atoi(os.Getenv("MEMROOM_TRIAL"))
	j := jobOf(numbers[1], numbers[2], number, numbers[0])
	work(j.curve, fmt.Sprint(j.peak), fmt.Sprint(j.seconds))
}

// work is a trial: it rises to a peak of so many MiB, as trainings do, and holds it.
func work(curve, mib, seconds string) {
	peak, _ := strconv.Atoi(mib)
	took, _ := strconv.ParseFloat(seconds, 64)
	const steps = 20
	var kept [][]byte
	for i := range steps {
		target := peak * (i + 1) / steps
		switch curve {
		case "flat": // most of it at once
			target = peak * min(steps, 14+3*i) / steps
		case "late": // the peak comes in the last third
			target = peak * 6 / 10
			if i > steps*2/3 {
				target = peak
			}
		}
		for len(kept) < target {
			block := make([]byte, 1<<20)
			for at := 0; at < len(block); at += 4096 {
				block[at] = 1
			}
			kept = append(kept, block)
		}
		time.Sleep(time.Duration(took / steps * float64(time.Second)))
	}
	fmt.Printf("loss=%d\n", len(kept))
}

// cgroup makes a memory cgroup (version 1) for a process tree, with a limit in MiB.
func (b *bench) cgroup(mib int) (dir string, remove func(), err error) {
	data, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", nil, err
	}
	at := "/"
	for line := range strings.Lines(string(data)) {
		if parts := strings.SplitN(strings.TrimSpace(line), ":", 3); len(parts) == 3 &&
			parts[1] == "memory" {
			at = parts[2]
		}
	}
	dir = filepath.Join("/sys/fs/cgroup/memory", at, fmt.Sprintf("bench-%d", os.Getpid()))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", nil, fmt.Errorf("needs root and cgroup v1: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "memory.limit_in_bytes"),
		[]byte(strconv.Itoa(mib<<20)), 0); err != nil {
		return "", nil, err
	}
	return dir, func() {
		for range 50 {
			if os.Remove(dir) == nil {
				return
			}
			time.Sleep(100 * time.Millisecond)
		}
	}, nil
}

// in runs a command inside of a cgroup, with a home of its own.
func (b *bench) in(cgroup string, args ...string) (string, time.Duration, error) {
	script := `exec "$@"`
	if cgroup != "" {
		script = "echo $$ > " + cgroup + "/cgroup.procs; " + script
	}
	cmd := exec.Command("sh", append([]string{"-c", script, "sh"}, args...)...)
	cmd.Dir = b.dir
	cmd.Env = append(os.Environ(), "MEMROOM_HOME="+filepath.Join(b.dir, "home"))
	began := time.Now()
	out, err := cmd.CombinedOutput()
	return string(out), time.Since(began), err
}

type outcome struct {
	Trials []struct {
		ID       int    `json:"id"`
		State    string `json:"state"`
		Attempts int    `json:"attempts"`
		Peak     int64  `json:"peak_host_bytes"`
	} `json:"trials"`
}

func (b *bench) read(path string) (o outcome, states map[string]int, err error) {
	data, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(data, &o)
	}
	states = map[string]int{}
	for _, t := range o.Trials {
		states[t.State]++
	}
	return o, states, err
}

// founding: four trials that together exceed a 4 GiB cgroup; two fit at once.
func (b *bench) founding() error {
	const peak, seconds = 1400, "20"
	self, err := os.Executable()
	if err != nil {
		return err
	}
	dir, remove, err := b.cgroup(4096)
	if err != nil {
		return err
	}
	defer remove()
	began := time.Now()
	for range 2 { // the best packing: two at once, twice
		one := exec.Command(self, "work", "flat", fmt.Sprint(peak), seconds)
		two := exec.Command(self, "work", "flat", fmt.Sprint(peak), seconds)
		_, _ = one.Start(), two.Start()
		_, _ = one.Wait(), two.Wait()
	}
	best := time.Since(began)
	out := filepath.Join(b.dir, "out.json")
	text, took, _ := b.in(dir, b.binary, "tune", "--samples", "4", "--quiet", "--json", out, "--",
		self, "work", "flat", fmt.Sprint(peak), seconds, "uniform(0,1)")
	_ = text
	_, states, err := b.read(out)
	if err != nil {
		return fmt.Errorf("%w\n%s", err, text)
	}
	fmt.Printf("founding study, 4 trials of %d MiB in a cgroup of 4 GiB\n", peak)
	fmt.Printf("  best packing by hand   %5.1f s\n", best.Seconds())
	fmt.Printf("  memroom tune           %5.1f s (%.2f x), %v\n", took.Seconds(),
		took.Seconds()/best.Seconds(), states)
	if b.python == "" {
		fmt.Println("  Ray: SKIPPED, no Python with it (-python)")
		return nil
	}
	text, took, _ = b.in(dir, b.python, "-c", raySource, self, fmt.Sprint(peak), seconds)
	fmt.Printf("  Ray Tune, its default  %5.1f s, %s\n", took.Seconds(), lastLine(text))
	return nil
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}

const raySource = `
import os, subprocess, sys
os.environ["RAY_DEDUP_LOGS"] = "0"
import ray
from ray import tune
def train(config):
    code = subprocess.run([config["work"], "work", "flat", config["peak"],
        config["seconds"]]).returncode
    if code != 0: raise RuntimeError("the training was killed: %d" % code)
    tune.report({"loss": 0.0})
try:
    ray.init("local", num_cpus=4, include_dashboard=False, object_store_memory=80 << 20, log_to_driver=False)
    grid = tune.Tuner(train, param_space={"work": sys.argv[1], "peak": sys.argv[2],
        "seconds": sys.argv[3], "lr": tune.uniform(0, 1)},
        tune_config=tune.TuneConfig(num_samples=4)).fit()
    print("\n%d of 4 trials died" % grid.num_errors)
except BaseException as error:
    print("\nthe study died: %s" % type(error).__name__)
`

// job of packing: peaks grow with batch times width, as activations do.
type job struct {
	peak    int // MiB
	seconds float64
	curve   string
}

// longerEnv passes the factor of -longer to the trials, which are processes of their own.
const longerEnv = "MEMROOM_BENCH_LONGER"

// jobOf returns what a trial with these settings does. Its number seeds the part that does not
// depend on the settings.
func jobOf(bs, width, number, budget int) job {
	source := rand.New(rand.NewPCG(11, uint64(number)))
	share := 0.03 + 0.25*float64(bs*width)/(64*512)
	longer, err := strconv.ParseFloat(os.Getenv(longerEnv), 64)
	if err != nil {
		longer = 1
	}
	return job{seconds: longer * (1.5 + 2*source.Float64()),
		curve: []string{"flat", "rise", "late"}[source.IntN(3)],
		peak:  int(share * float64(budget) * (0.97 + 0.06*source.Float64()))}
}

// settings of the study: the oracle takes the same points.
var settings = []string{"choice(8,16,32,64)", "qrandint(64,512,64)"}

func (b *bench) jobs() ([]job, error) {
	var space trial.Space
	for i, text := range settings {
		d, err := trial.ParseDomain(text)
		if err != nil {
			return nil, err
		}
		if err := space.Add(fmt.Sprintf("arg%d", i+1), d); err != nil {
			return nil, err
		}
	}
	sampler, err := trial.NewSampler(space, trial.Random, 1)
	if err != nil {
		return nil, err
	}
	var jobs []job
	for n := range b.trials {
		p := sampler.Point(n)
		bs, _ := p[0].Value.Float()
		width, _ := p[1].Value.Float()
		jobs = append(jobs, jobOf(int(bs), int(width), n, b.budget))
	}
	return jobs, nil
}

// pack runs jobs with known needs inside of a cgroup, largest that fits first.
func (b *bench) pack(jobs []job, cgroup string, need func(job) int, slots int) (time.Duration,
	int) {
	self, _ := os.Executable()
	type end struct {
		job  int
		died bool
	}
	ends := make(chan end)
	waiting := map[int]bool{}
	for i := range jobs {
		waiting[i] = true
	}
	used, running, died := 0, 0, 0
	began := time.Now()
	for len(waiting) > 0 || running > 0 {
		best := -1
		for i := range jobs {
			if waiting[i] && running < slots && used+need(jobs[i]) <= b.budget &&
				(best < 0 || need(jobs[i]) > need(jobs[best])) {
				best = i
			}
		}
		if best >= 0 {
			j := jobs[best]
			delete(waiting, best)
			used, running = used+need(j), running+1
			go func() {
				_, _, err := b.in(cgroup, self, "work", j.curve, fmt.Sprint(j.peak),
					fmt.Sprint(j.seconds))
				ends <- end{best, err != nil}
			}()
			continue
		}
		e := <-ends
		used, running = used-need(jobs[e.job]), running-1
		if e.died {
			died++
		}
	}
	return time.Since(began), died
}

func (b *bench) packing() error {
	jobs, err := b.jobs()
	if err != nil {
		return err
	}
	most := 0
	for _, j := range jobs {
		most = max(most, j.peak)
	}
	dir, remove, err := b.cgroup(b.budget + 256) // 256 MiB for the programs themselves
	if err != nil {
		return err
	}
	defer remove()
	fmt.Printf("packing %d trials into %d MiB, peaks up to %d MiB (16 GiB scaled by %.3g)\n",
		len(jobs), b.budget, most, 16384/float64(b.budget))
	oracle, died := b.pack(jobs, dir, func(j job) int { return j.peak + 12 }, 1000)
	fmt.Printf("  oracle that knows every peak  %6.1f s, %d died\n", oracle.Seconds(), died)
	if err := b.packOurs(jobs, oracle); err != nil {
		return err
	}
	if b.quick {
		return nil
	}
	took, died := b.pack(jobs, dir, func(job) int { return 0 }, 16)
	fmt.Printf("  16 processors, by count       %6.1f s (%.2f x), %d died\n", took.Seconds(),
		took.Seconds()/oracle.Seconds(), died)
	took, died = b.pack(jobs, dir, func(job) int { return most + 12 }, 1000)
	fmt.Printf("  declared maximum              %6.1f s (%.2f x), %d died\n", took.Seconds(),
		took.Seconds()/oracle.Seconds(), died)
	return nil
}

// packOurs runs the jobs as a study, which sees batch and width only.
func (b *bench) packOurs(jobs []job, oracle time.Duration) error {
	self, _ := os.Executable()
	out := filepath.Join(b.dir, "out.json")
	args := []string{b.binary, "tune", "--samples", fmt.Sprint(len(jobs)), "--seed", "1", "--host-mem",
		fmt.Sprintf("%dMiB", b.budget), "--cpus-per-trial", "0.01", "--no-probe", "--json", out, "--",
		self, "trial", fmt.Sprint(b.budget)}
	text, took, _ := b.in("", append(args, settings...)...)
	o, states, err := b.read(out)
	if err != nil {
		return fmt.Errorf("%w\n%s", err, text)
	}
	early, late := 0, 0
	for _, t := range o.Trials {
		if t.Attempts > 1 && t.ID < 20 {
			early++
		} else if t.Attempts > 1 {
			late++
		}
	}
	fmt.Printf("  memroom tune                  %6.1f s (%.2f x), %v; ran out: %d of the first 20, "+
		"%d of the other %d\n", took.Seconds(), took.Seconds()/oracle.Seconds(), states, early, late,
		len(jobs)-20)
	return nil
}

// recovery: 50 trials ask for 128 MiB, 20 of them need more.
func (b *bench) recovery() error {
	self, _ := os.Executable()
	const trials, asked = 50, 128
	script := `n=$MEMROOM_TRIAL; m=80; [ $((n % 5)) -lt 2 ] && m=$((180 + n)); exec ` + self +
		` work rise $m 1`
	out := filepath.Join(b.dir, "out.json")
	text, took, _ := b.in("", b.binary, "tune", "--samples", fmt.Sprint(trials), "--host-mem",
		"1GiB", "--trial-mem", fmt.Sprintf("%dMiB", asked), "--cpus-per-trial", "0.1", "--quiet",
		"--json", out, "--", "sh", "-c", script, "uniform(0,1)")
	_, states, err := b.read(out)
	if err != nil {
		return fmt.Errorf("%w\n%s", err, text)
	}
	fmt.Printf("recovery, %d trials that ask for %d MiB, 20 of which need more\n", trials, asked)
	fmt.Printf("  memroom tune            %5.1f s, %v\n", took.Seconds(), states)
	finished := 0
	for n := range trials {
		mib := 80
		if n%5 < 2 {
			mib = 180 + n
		}
		for range 4 { // the first and three retries
			if _, _, err := b.in("", b.binary, "run", "--quiet", "--no-probe", "--host-mem",
				fmt.Sprintf("%dMiB", asked), "--", self, "work", "flat", fmt.Sprint(mib),
				"0.05"); err == nil {
				finished++
				break
			}
		}
	}
	fmt.Printf("  three plain retries: %d of %d finished\n", finished, trials)
	return nil
}

// crash: the scheduler is killed a hundred times at random moments.
func (b *bench) crash() error {
	source := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 1))
	const kills, trials = 100, 400
	script := `echo $MEMROOM_TRIAL >> ran; sleep 0.1; echo loss=1`
	args := []string{"tune", "--name", "crash", "--samples", fmt.Sprint(trials), "--quiet",
		"--host-mem", "1GiB", "--cpus-per-trial", "0.5", "--", "sh", "-c", script, "uniform(0,1)"}
	done, killed := 0, 0
	for killed < kills {
		cmd := exec.Command(b.binary, args...)
		cmd.Dir = b.dir
		cmd.Env = append(os.Environ(), "MEMROOM_HOME="+filepath.Join(b.dir, "home"))
		if err := cmd.Start(); err != nil {
			return err
		}
		over := make(chan error, 1)
		go func() { over <- cmd.Wait() }()
		select {
		case <-time.After(time.Duration(20+source.IntN(500)) * time.Millisecond):
			_ = cmd.Process.Signal(syscall.SIGKILL)
			<-over
			killed++
		case <-over:
			args = []string{"tune", "resume", "--quiet", "--samples", "100", "crash"}
			continue
		}
		if _, err := os.Stat(filepath.Join(b.dir, "home/studies/crash/study.json")); err == nil {
			args = []string{"tune", "resume", "--quiet", "crash"}
		}
		now, _, _ := b.in("", b.binary, "tune", "list")
		var finished int
		if at := strings.Index(now, "trials, "); at > 0 {
			_, _ = fmt.Sscan(now[at+8:], &finished)
		}
		if finished < done {
			return fmt.Errorf("%d trials were finished, after kill %d only %d", done, killed,
				finished)
		}
		done = finished
	}
	out := filepath.Join(b.dir, "out.json")
	text, _, err := b.in("", b.binary, "tune", "resume", "--quiet", "--json", out, "crash")
	if err != nil {
		return fmt.Errorf("%w\n%s", err, text)
	}
	o, states, err := b.read(out)
	if err != nil {
		return err
	}
	ran, _ := os.ReadFile(filepath.Join(b.dir, "ran"))
	count := map[string]int{}
	for _, id := range strings.Fields(string(ran)) {
		count[id]++
	}
	twice := 0
	for _, n := range count {
		if n > 1 {
			twice++
		}
	}
	fmt.Printf("crash, %d kills of the scheduler at random moments\n", kills)
	fmt.Printf("  %d trials: %v; finished ones lost 0, run twice %d, never run %d\n", len(o.Trials),
		states, twice, len(o.Trials)-len(count))
	return nil
}
