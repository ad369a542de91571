package remedy

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"memroom/event"
)

// TestEveryRemedyHasACondition: remedies without a row are never printed, and the table names
// nothing that is no remedy.
func TestEveryRemedyHasACondition(t *testing.T) {
	for _, r := range Catalogue() {
		if c, ok := conditions[r.ID]; !ok || len(c.work) == 0 {
			t.Errorf("%s has no condition", r.ID)
		}
	}
	for id := range conditions {
		if _, ok := Find(id); !ok {
			t.Errorf("%q is no remedy", id)
		}
	}
}

// context is a situation in which remedies are asked for, with the words that have no place in it.
type context struct {
	name   string
	job    Job
	forbid string
}

// Words of one kind of work, device or framework.
const (
	wordsOfTraining = `(?i:gradient|optimizer|backward|\bloss\b|learning rate|\btrain)`
	wordsOfCards    = `(?i:\bcuda\b|nvidia|\bcards?\b|empty_cache|PYTORCH_)`
	wordsOfTorch    = `(?i:torch|DataLoader\(|AutoModel|\bpeft\b)`
	wordsOfTF       = `(?i:\btf\.|tensorflow|keras)`
	wordsOfJAX      = `(?i:\bjax\b|optax|XLA_)`
	wordsOfRanks    = `(?i:\branks?\b|FSDP)|\bZeRO\b`
	wordsOfText     = `(?i:token|vocabulary|AutoModelForCausalLM)`
	wordsOfImages   = `(?i:\bimages?\b|VAE)`
	wordsOfWindows  = `(?i:page file|WSL|wslconfig)`
	wordsOfRay      = `(?i:\bray\b)`
)

// everyFact shows all of them but those that are named.
func everyFact(but ...Fact) map[Fact]bool {
	facts := map[Fact]bool{}
	for _, c := range conditions {
		for _, list := range [][]Fact{c.all, c.any} {
			for _, f := range list {
				facts[f] = true
			}
		}
	}
	for _, d := range dialects {
		for _, f := range d.needs {
			facts[f] = true
		}
	}
	for _, f := range but {
		delete(facts, f)
	}
	return facts
}

// contexts crosses the works with devices and frameworks. All facts are shown but those that the
// context denies, so that a remedy has every chance to say what it must not.
func contexts() []context {
	var list []context
	add := func(name string, job Job, forbid ...string) {
		job.Inference = job.Work == Generating || job.Work == Serving
		list = append(list, context{name, job, strings.Join(forbid, "|")})
	}
	frameworks := map[Framework][]string{PyTorch: {wordsOfTF, wordsOfJAX},
		TensorFlow: {wordsOfTorch, wordsOfJAX}, JAX: {wordsOfTorch, wordsOfTF}}
	for framework, others := range frameworks {
		for _, work := range []Work{Evaluating, Generating, Serving, Loading, Undecided} {
			for _, where := range anywhere {
				forbid := append([]string{wordsOfTraining, wordsOfRanks, wordsOfRay, wordsOfWindows}, others...)
				if where == event.WhereHost || where == event.WhereCgroup {
					forbid = append(forbid, wordsOfCards)
				}
				if where == event.WhereMPS && framework != PyTorch {
					continue // there PyTorch only
				}
				if where == event.WhereMPS {
					forbid = append(forbid, `(?i:cuda|nvidia)`)
				}
				facts := everyFact(Ranks, Split, Cards, Rays, Windows, WSL, Refused, OnCard, MayTrain,
					Offloaded, Optuna, Engine)
				add(fmt.Sprintf("%s of %s on %s", work, framework, where),
					Job{Where: where, Framework: framework, Work: work, Facts: facts}, forbid...)
			}
		}
		add("training with "+string(framework), Job{Where: event.WhereGPU, Framework: framework,
			Work: Training, Facts: everyFact(Ranks, Split, Cards, Rays, Windows, WSL, Refused, OnCard,
				Text, Pictures, Pretrained, Engine, Offloaded)},
			append(others, wordsOfRanks, wordsOfText, wordsOfImages, wordsOfWindows, wordsOfRay)...)
	}
	for _, where := range onHost {
		add("tables on "+string(where), Job{Where: where, Framework: Python, Work: Tables,
			Facts: map[Fact]bool{}}, wordsOfTraining, wordsOfCards, wordsOfTorch, wordsOfTF, wordsOfJAX,
			wordsOfRanks, wordsOfRay, `(?i:\bbatch)`)
	}
	add("a C++ library", Job{Where: event.WhereGPU, Foreign: true, Facts: map[Fact]bool{OnCard: true}},
		wordsOfTraining, wordsOfTorch, wordsOfTF, wordsOfJAX, wordsOfRay, `(?i:\bbatch)`)
	for _, framework := range []Framework{PyTorch, TensorFlow, JAX} {
		for _, work := range []Work{Training, Evaluating, Loading, Saving, Preparing} {
			for _, where := range []event.Where{event.WhereGPU, event.WhereHost} {
				facts := everyFact(Rays, Engine, Windowed)
				facts[Toolkit] = true
				add(fmt.Sprintf("%s by settings, %s on %s", work, framework, where), Job{Where: where,
					Framework: framework, Work: work, Facts: facts}, `\w\(.*=|\btorch\.\w+\(|DataLoader\(|for \w+ in |`+
					`--per_device|--gradient|\bkeras\.|\boptax\.`)
			}
		}
	}
	for program := range serverFlags {
		others := `--gpu-memory-utilization|AutoModel|BitsAndBytes|model\.generate`
		add("the server "+program, Job{Where: event.WhereGPU, Framework: PyTorch, Work: Serving,
			Program: program, Facts: everyFact(Ranks, Split, Cards, Rays, Windows, WSL, Refused, OnCard,
				Pictures, Offloaded, Optuna)}, wordsOfTraining, others, wordsOfRay, wordsOfWindows)
	}
	return list
}

// generalWords are titles and code that name a work or device only to say where it ends.
var generalWords = regexp.MustCompile(`training=False|max-batch-prefill-tokens|max_batch\w*|--max-total-tokens`)

// situational are remedies that an explanation names in one situation only, which shows what their
// words take for granted: a neighbour on the card, an adapter, a metric, a study.
var situational = map[ID]bool{FreeNeighbour: true, MergeOnHost: true, MetricReset: true,
	NotebookState: true, FreshProcess: true, ReleaseModels: true, AutocastCache: true,
	CUDAGraphSizes: true, LoadToHost: true, SaveAsItIs: true, WorkerCache: true,
	SteadyTraces: true, MapFile: true, SaveParts: true, ServingShare: true, StreamData: true}

// TestNoWordOutOfPlace crosses contexts with remedies: whatever is printed there mentions no other
// work, device or framework.
func TestNoWordOutOfPlace(t *testing.T) {
	printed := 0
	for _, c := range contexts() {
		forbidden := regexp.MustCompile(c.forbid)
		for _, r := range Catalogue() {
			if situational[r.ID] && c.job.Program == "" || r.Fits(c.job) != "" {
				continue
			}
			printed++
			how := r.HowTo(c.job)
			text := strings.Join([]string{r.TitleFor(c.job), r.WhyFor(c.job), how.Env, how.Args, how.Code,
				how.Fit}, "\n")
			text = generalWords.ReplaceAllString(strings.ReplaceAll(text, string(r.ID), ""), "")
			if word := forbidden.FindString(text); word != "" {
				t.Errorf("%s: %s says %q in\n%s", c.name, r.ID, word, text)
			}
		}
	}
	if printed < 100 {
		t.Errorf("only %d answers were read", printed)
	}
}

// TestNothingIsPrintedUnasked: a job of which nothing is shown gets only what is true of every job.
func TestNothingIsPrintedUnasked(t *testing.T) {
	for _, where := range anywhere {
		for _, r := range Catalogue() {
			job := Job{Where: where, Facts: map[Fact]bool{}}
			if r.Fits(job) == "" && (r.Training || len(r.Frameworks) > 0) {
				t.Errorf("%s is printed on %s, where nothing shows a framework", r.ID, where)
			}
		}
	}
}

// TestFiguresRuleOut: a remedy that frees less than was missing is not printed.
func TestFiguresRuleOut(t *testing.T) {
	size := func(b event.Bytes) *event.Bytes { return &b }
	job := func(held, idle *event.Bytes) Job {
		return Job{Where: event.WhereGPU, Framework: PyTorch, Work: Training, Missing: event.GiB,
			Held: held, Idle: idle, Facts: map[Fact]bool{Networks: true, TorchSeen: true,
				IdlePool: true, Batches: true, Text: true}}
	}
	for name, c := range map[string]struct {
		id   ID
		job  Job
		fits bool
	}{
		"little is held":            {Checkpointing, job(size(100*event.MiB), size(0)), false},
		"much is held":              {Checkpointing, job(size(9*event.GiB), size(0)), true},
		"nothing says what is held": {Checkpointing, job(nil, nil), true},
		"little is idle": {ExpandableSegments, job(size(9*event.GiB),
			size(100*event.MiB)), false},
		"much is idle": {ExpandableSegments, job(size(9*event.GiB), size(2*event.GiB)), true},
		"it shrinks the request": {MicroBatch, job(size(100*event.MiB),
			size(0)), true},
		"as much is held as was missing":    {Checkpointing, job(size(event.GiB), nil), true},
		"a byte less":                       {Checkpointing, job(size(event.GiB-1), nil), false},
		"held and idle together are enough": {Checkpointing, job(size(event.GiB-5), size(5)), true},
		"together a byte less":              {Checkpointing, job(size(event.GiB-5), size(4)), false},
		"as much is idle as was missing":    {ExpandableSegments, job(nil, size(event.GiB)), true},
		"a byte less is idle":               {ExpandableSegments, job(nil, size(event.GiB-1)), false},
		"nothing says what is idle":         {ExpandableSegments, job(size(0), nil), true},
	} {
		r, _ := Find(c.id)
		if why := r.Fits(c.job); (why == "") != c.fits {
			t.Errorf("%s: %s: %q", name, c.id, why)
		}
	}
	nothing := event.Bytes(0)
	for _, missing := range []event.Bytes{0, -1, 1} {
		why := Job{Missing: missing, Held: &nothing}.outOfReach(Checkpointing)
		if (why == "") != (missing <= 0) {
			t.Errorf("%d bytes missing: %q", missing, why)
		}
	}
	if r, ok := Find("not_a_remedy"); r != nil || ok {
		t.Errorf("%v %v", r, ok)
	}
}

// TestDialectsNeedTheirLibrary: nothing is written in the words of a library that no fact shows,
// and the words of every library are written somewhere.
func TestDialectsNeedTheirLibrary(t *testing.T) {
	spoken := map[int]bool{}
	for _, trainer := range []Trainer{Plain, Transformers, Kohya, MLX, Keras} {
		for _, framework := range []Framework{PyTorch, TensorFlow, JAX, Python} {
			for _, r := range Catalogue() {
				for i, d := range dialects {
					whole := Job{Where: r.Walls[0], Framework: framework, Trainer: trainer, Work: Training,
						Facts: everyFact(d.never...), Images: true}
					how := r.HowTo(whole)
					spoken[i] = spoken[i] || d.is.MatchString(how.Env+how.Args+how.Code)
					job := whole
					job.Facts = everyFact(d.needs...)
					for _, f := range d.never {
						job.Facts[f] = true
					}
					if len(d.needs)+len(d.never) == 0 {
						t.Fatalf("dialect %d asks for nothing", i)
					}
					how = r.HowTo(job)
					if text := how.Env + how.Args + how.Code; d.is.MatchString(text) {
						t.Errorf("%s with %s: %q without its library", r.ID, trainer, text)
					}
				}
			}
		}
	}
	for i := range dialects {
		if !spoken[i] {
			t.Errorf("no remedy is written in %s", dialects[i].is)
		}
	}
}
