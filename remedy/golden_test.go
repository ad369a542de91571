package remedy

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"memroom/event"
)

var update = flag.Bool("update", false, "write what remedies say and do to testdata/said")

// TestWhatRemediesSayAndDo keeps a remedy's words for some jobs, and its effect on some setups, a
// recorded timeline and allocator strings, as files that people read when they change it. A new
// remedy gets its file with -update.
func TestWhatRemediesSayAndDo(t *testing.T) {
	var without []ID
	for _, r := range Catalogue() {
		path := filepath.Join("testdata", "said", string(r.ID)+".txt")
		got := story(r)
		if *update {
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		want, err := os.ReadFile(path)
		if err != nil {
			without = append(without, r.ID)
			continue
		}
		if got != string(want) {
			t.Errorf("%s: go test ./remedy -run SayAndDo -update writes it anew; read what changed:\n%s",
				r.ID, firstDifference(string(want), got))
		}
	}
	if len(without) > 0 {
		t.Errorf("without a file in testdata/said: %v; -update writes it", without)
	}
}

func firstDifference(want, got string) string {
	a, b := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return fmt.Sprintf("line %d was %q, is %q", i+1, a[i], b[i])
		}
	}
	return fmt.Sprintf("%d lines were %d", len(b), len(a))
}

func story(r *Remedy) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s\n%s\n%s, consent %q, walls %v, frameworks %v, training %v, levels %v\n",
		r.ID, r.Title, r.Why, r.Equivalence, r.Consent, r.Walls, r.Frameworks, r.Training, r.Levels)
	if r.Unvalidated != "" {
		fmt.Fprintf(&b, "unvalidated: %s\n", r.Unvalidated)
	}
	told := answers{}
	for _, j := range jobs() {
		told.add(j.name, said(r, j.job))
	}
	told.write(&b)
	printed(&b, r)
	did := answers{}
	for _, s := range setups() {
		did.add(s.name, done(r, s.setup))
	}
	did.write(&b)
	if after, ok := r.RewriteTimeline(recordedTimeline()); ok {
		fmt.Fprintf(&b, "\nthe recorded timeline becomes\n  %v, marks %v\n", ops(after), after.Marks)
	}
	for _, conf := range []string{"", "max_split_size_mb:64",
		"expandable_segments:False,backend:native"} {
		if after, ok := r.RewriteConf(conf); ok {
			fmt.Fprintf(&b, "\n%q becomes %q\n", conf, after)
		}
	}
	return b.String()
}

// answers groups who gets the same answer.
type answers struct {
	texts []string
	names map[string][]string
}

func (a *answers) add(name, text string) {
	if a.names == nil {
		a.names = map[string][]string{}
	}
	if len(a.names[text]) == 0 {
		a.texts = append(a.texts, text)
	}
	a.names[text] = append(a.names[text], name)
}

func (a *answers) write(b *strings.Builder) {
	for _, text := range a.texts {
		fmt.Fprintf(b, "\n%s\n%s", strings.Join(a.names[text], ", "), text)
	}
}

func said(r *Remedy, job Job) string {
	if why := r.Applies(job); why != "" {
		return "  no: " + why + "\n"
	}
	how := r.HowTo(job)
	var b strings.Builder
	fmt.Fprintf(&b, "  %s\n", r.TitleFor(job))
	if why := r.WhyFor(job); why != r.Why {
		fmt.Fprintf(&b, "  why  %s\n", why)
	}
	for _, way := range [][2]string{{"env", how.Env}, {"args", how.Args}, {"code", how.Code},
		{"fit", how.Fit}} {
		if way[1] != "" {
			fmt.Fprintf(&b, "  %-5s%s\n", way[0], strings.ReplaceAll(way[1], "\n", "\n       "))
		}
	}
	return b.String()
}

// printed adds what an explanation prints for logs: for those that show only a little, and then one
// fact more; for those that show everything but one fact; and for every work. Only answers that
// differ from the first of each are written.
func printed(b *strings.Builder, r *Remedy) {
	little := map[Fact]bool{Networks: true, TorchSeen: true, Batches: true}
	all := facts()
	for _, where := range []event.Where{event.WhereGPU, event.WhereHost} {
		job := Job{Where: where, Framework: PyTorch, Work: Training, Facts: little}
		told := answers{}
		told.add("a log of training on "+string(where), fitting(r, job))
		for _, f := range all {
			job.Facts = maps.Clone(little)
			job.Facts[f] = true
			told.differs("and "+string(f), fitting(r, job))
		}
		told.write(b)
		job.Facts = map[Fact]bool{}
		for _, f := range all {
			job.Facts[f] = true
		}
		told = answers{}
		told.add("a log of everything on "+string(where), fitting(r, job))
		for _, f := range all {
			job.Facts[f] = false
			told.differs("not that "+string(f), fitting(r, job))
			job.Facts[f] = true
		}
		for _, job.Work = range []Work{Evaluating, Generating, Serving, Loading, Saving, Preparing,
			Tables, Undecided} {
			job.Inference = job.Work == Generating || job.Work == Serving
			told.differs(fmt.Sprintf("but %q", job.Work), fitting(r, job))
		}
		told.write(b)
	}
}

// differs adds an answer that the first one is not.
func (a *answers) differs(name, text string) {
	if text != a.texts[0] {
		a.add(name, text)
	}
}

func fitting(r *Remedy, job Job) string {
	if why := r.Fits(job); why != "" {
		return "  no: " + why + "\n"
	}
	return said(r, job)
}

// facts are all that conditions and dialects ask for, and those that only words do.
func facts() []Fact {
	all := everyFact()
	for _, c := range conditions {
		for _, f := range c.never {
			all[f] = true
		}
	}
	for _, d := range dialects {
		for _, f := range d.never {
			all[f] = true
		}
	}
	for _, f := range []Fact{Optuna, Detection, Table, MayTrain, Arrays, Tune, LightGBM, CatBoost,
		FramesOnly, Caching, DiskFull, LinesSeen, CSVSeen, NPYSeen, OneArray, Rollouts} {
		all[f] = true
	}
	return slices.Sorted(maps.Keys(all))
}

func done(r *Remedy, s Setup) string {
	text := fmt.Sprintf("  on %v, %.4g times as long", r.IsOn(s), r.Slowdown(s))
	after, ok := r.Rewrite(s)
	if !ok {
		return text + ", does nothing\n"
	}
	return text + ": " + difference(s, after) + "\n"
}

// difference names the fields that a rewrite changed.
func difference(before, after Setup) string {
	was, is := fields(before), fields(after)
	var changed []string
	for _, name := range slices.Sorted(maps.Keys(is)) {
		if was[name] != is[name] {
			changed = append(changed, fmt.Sprintf("%s %s -> %s", name, was[name], is[name]))
		}
	}
	if len(changed) == 0 {
		return "says that it changed something and did not"
	}
	return strings.Join(changed, ", ")
}

func fields(s Setup) map[string]string {
	text := fmt.Sprintf("%+v", s)
	values := map[string]string{}
	for part := range strings.SplitSeq(strings.Trim(text, "{}"), " ") {
		if name, value, ok := strings.Cut(part, ":"); ok {
			values[name] = value
		}
	}
	return values
}

type namedJob struct {
	name string
	job  Job
}

// jobs are of every framework, trainer and surroundings that remedies distinguish.
func jobs() []namedJob {
	list := []namedJob{{"nothing known", Job{}}}
	add := func(name string, job Job) { list = append(list, namedJob{name, job}) }
	for _, where := range []event.Where{event.WhereGPU, event.WhereHost, event.WhereCgroup,
		event.WhereShm, event.WhereMPS} {
		for _, f := range []Framework{PyTorch, TensorFlow, JAX, Python} {
			add(fmt.Sprintf("%s on %s", f, where), Job{Framework: f, Where: where})
		}
	}
	for _, trainer := range []Trainer{Transformers, Accelerate, Lightning, DeepSpeed, Torchtune,
		Axolotl, Keras, RayTune, VLLM} {
		framework := PyTorch
		if trainer == Keras {
			framework = TensorFlow
		}
		add(string(trainer), Job{Framework: framework, Trainer: trainer})
		add(string(trainer)+", batch 12", Job{Framework: framework, Trainer: trainer, Batch: 12,
			Accumulate: 2, Where: event.WhereGPU})
		add(string(trainer)+", serving", Job{Framework: framework, Trainer: trainer, Inference: true,
			Where: event.WhereGPU, Share: 0.45, Fits: 3000})
	}
	card := 1
	large := &Setup{Batch: 16, Seq: 2048, Precision: "fp32", Optimizer: "adamw", Ranks: 4, Workers: 8,
		PinMemory: true, Image: 224}
	for name, job := range map[string]Job{
		"slurm":            {Where: event.WhereCgroup, Slurm: true, Limit: 8 * event.GiB},
		"slurm, small":     {Where: event.WhereCgroup, Slurm: true, Limit: event.GiB},
		"slurm, unknown":   {Where: event.WhereCgroup, Slurm: true},
		"kubernetes":       {Where: event.WhereCgroup, Kube: true, Limit: 3 * event.GiB},
		"kubernetes, node": {Where: event.WhereHost, Kube: true},
		"kubernetes, shm":  {Where: event.WhereShm, Kube: true, Framework: PyTorch},
		"a container":      {Where: event.WhereShm, Container: true, Framework: PyTorch},
		"no container":     {Where: event.WhereShm, Bare: true, Framework: PyTorch},
		"--host-mem":       {Where: event.WhereCgroup, HostLimit: true, Limit: 700 * event.MiB},
		"--host-mem, run": {Where: event.WhereCgroup, HostLimit: true,
			Limit: 700 * event.MiB, Run: event.Run{Command: []string{"python", "a.py"},
				HostMem: 700 * event.MiB}},
		"a full card": {Where: event.WhereGPU, Framework: PyTorch, Card: &card,
			Limit: 24 * event.GiB, Asked: 3 * event.GiB},
		"a notebook":      {Where: event.WhereGPU, Framework: PyTorch, Notebook: true},
		"spawned workers": {Where: event.WhereHost, Framework: PyTorch, Spawned: true},
		"serving":         {Where: event.WhereGPU, Framework: PyTorch, Inference: true},
		"trials": {Where: event.WhereHost, Trainer: RayTune, Fits: 3,
			Limit: 64 * event.GiB},
		"trials, store": {Where: event.WhereShm, Trainer: RayTune, Asked: 5 * event.GiB},
		"split in 3":    {Where: event.WhereGPU, Framework: PyTorch, Batch: 10, Pieces: 3},
		"split in 3, Keras": {Where: event.WhereGPU, Framework: TensorFlow,
			Trainer: Keras, Batch: 12, Pieces: 3},
		"batch of one":    {Where: event.WhereGPU, Framework: PyTorch, Batch: 1},
		"torch 1.13":      {Where: event.WhereGPU, Framework: PyTorch, Torch: "1.13"},
		"torch 2.11":      {Where: event.WhereGPU, Framework: PyTorch, Torch: "2.11"},
		"a known setup":   {Where: event.WhereGPU, Framework: PyTorch, Setup: large},
		"it, on the host": {Where: event.WhereHost, Framework: PyTorch, Setup: large},
		"it, by Trainer": {Where: event.WhereGPU, Framework: PyTorch,
			Trainer: Transformers, Setup: large},
		"a bare setup":    {Where: event.WhereGPU, Framework: PyTorch, Setup: &Setup{}},
		"AMD":             {Where: event.WhereGPU, Framework: PyTorch, Maker: AMD},
		"Intel":           {Where: event.WhereGPU, Framework: PyTorch, Maker: Intel, OwnCap: true},
		"Ascend":          {Where: event.WhereGPU, Framework: PyTorch, Maker: Ascend, OwnCap: true},
		"a TPU":           {Where: event.WhereGPU, Framework: PyTorch, Maker: Google},
		"a TPU, JAX":      {Where: event.WhereGPU, Framework: JAX, Maker: Google},
		"TensorFlow, AMD": {Where: event.WhereGPU, Framework: TensorFlow, Maker: AMD},
		"another maker":   {Where: event.WhereGPU, Framework: PyTorch, Maker: Others, Batch: 9},
		"its own cap":     {Where: event.WhereGPU, Framework: PyTorch, OwnCap: true},
		"Trainer on mps":  {Where: event.WhereMPS, Framework: PyTorch, Trainer: Transformers},
		"dask":            {Where: event.WhereHost, Dask: true, Limit: 4 * event.GiB},
		"yarn":            {Where: event.WhereCgroup, Yarn: true},
		"a fork":          {Where: event.WhereHost, Forked: true},
		"joblib":          {Where: event.WhereHost, Pool: "joblib"},
		"nnunet":          {Where: event.WhereHost, Pool: "nnunet"},
		"datasets":        {Where: event.WhereHost, Pool: "datasets"},
		"monai":           {Where: event.WhereGPU, Framework: PyTorch, Windows: "monai"},
		"nnunet, windows": {Where: event.WhereGPU, Framework: PyTorch, Windows: "nnunet"},
		"mmseg":           {Where: event.WhereGPU, Framework: PyTorch, Windows: "mmseg"},
		"kohya":           {Where: event.WhereGPU, Framework: PyTorch, Trainer: Kohya, Batch: 7},
		"mlx":             {Where: event.WhereMPS, Trainer: MLX},
		"images":          {Where: event.WhereGPU, Framework: PyTorch, Images: true},
		"images on mps":   {Where: event.WhereMPS, Framework: PyTorch, Images: true},
		"comfyui": {Where: event.WhereGPU, Framework: PyTorch, Images: true,
			Program: "comfyui", Inference: true},
		"webui": {Where: event.WhereGPU, Framework: PyTorch, Images: true, Program: "webui"},
		"invokeai": {Where: event.WhereGPU, Framework: PyTorch, Images: true,
			Program: "invokeai"},
		"another program of images": {Where: event.WhereGPU, Framework: PyTorch, Images: true,
			Program: "x"},
		"vllm's program": {Where: event.WhereGPU, Framework: PyTorch, Inference: true,
			Program: "vllm", Share: LessShare},
		"two at once":   {Where: event.WhereGPU, Framework: PyTorch, Batch: 2},
		"three at once": {Where: event.WhereGPU, Framework: PyTorch, Batch: 3},
		"four at once":  {Where: event.WhereGPU, Framework: PyTorch, Batch: 4},
		"trials, one object": {Where: event.WhereShm, Trainer: RayTune, Asked: 5 * event.GiB,
			Limit: 4 * event.GiB},
		"trials, a fitting object": {Where: event.WhereShm, Trainer: RayTune,
			Asked: 4 * event.GiB, Limit: 4 * event.GiB},
		"read with torch 1.8": {Where: event.WhereGPU, Framework: PyTorch, Torch: "1.8",
			Work: Training, Facts: everyFact()},
		"read with torch 1.10": {Where: event.WhereGPU, Framework: PyTorch, Torch: "1.10",
			Work: Training, Facts: everyFact()},
		"read with torch 1.11": {Where: event.WhereGPU, Framework: PyTorch, Torch: "1.11",
			Work: Training, Facts: everyFact()},
		"read of Keras": {Where: event.WhereGPU, Framework: TensorFlow, Trainer: Keras,
			Work: Training, Facts: everyFact()},
		"read of Lightning": {Where: event.WhereGPU, Framework: PyTorch, Trainer: Lightning,
			Work: Training, Facts: everyFact()},
		"read of one image": {Where: event.WhereGPU, Framework: PyTorch, Images: true,
			Facts: map[Fact]bool{Networks: true}},
		"read of MLX": {Where: event.WhereMPS, Framework: JAX, Work: Training,
			Facts: everyFact()},
		"read of a container": {Where: event.WhereCgroup, Limit: 2 * event.GiB,
			Facts: map[Fact]bool{}},
		"read of Docker": {Where: event.WhereCgroup, Docker: true, Limit: 2 * event.GiB,
			Facts: map[Fact]bool{}},
		"read of no batches": {Where: event.WhereGPU, Framework: PyTorch, Work: Training,
			Facts: map[Fact]bool{Networks: true, TorchSeen: true}},
		"read of evaluation": {Where: event.WhereGPU, Framework: PyTorch, Work: Evaluating,
			Facts: map[Fact]bool{Networks: true, TorchSeen: true, Batches: true}},
		"read of serving": {Where: event.WhereGPU, Framework: PyTorch, Work: Serving,
			Inference: true, Facts: map[Fact]bool{Networks: true, Batches: true}},
		"read of generation in JAX": {Where: event.WhereGPU, Framework: JAX, Work: Generating,
			Inference: true, Facts: map[Fact]bool{Networks: true, Batches: true}},
		"read of Trainer's host": {Where: event.WhereHost, Framework: PyTorch, Work: Evaluating,
			Trainer: Transformers, Facts: map[Fact]bool{Networks: true, Pretrained: true}},
		"read of Lightning without Trainer": {Where: event.WhereGPU, Framework: PyTorch,
			Trainer: Lightning, Work: Training, Facts: map[Fact]bool{Networks: true,
				TorchSeen: true}},
		"read of CatBoost": {Where: event.WhereGPU, Work: Tables,
			Facts: map[Fact]bool{TreesSeen: true, CatBoost: true}},
		"read of frames": {Where: event.WhereGPU, Work: Tables,
			Facts: map[Fact]bool{TreesSeen: true, FramesOnly: true}},
		"read of Ray's tasks": {Where: event.WhereHost, Trainer: RayTune, Fits: 2,
			Facts: map[Fact]bool{Rays: true, DiskFull: true}},
		"workers seen to be": {Where: event.WhereHost, Framework: PyTorch,
			On: map[ID]string{DataLoaderWorkers: "no workers"}},
	} {
		list = append(list, namedJob{name, job})
	}
	for name, shown := range map[string][]Fact{"arrays": {OneArray}, "files": {Reads},
		"tables": {Reads, CSVSeen}, "mapped arrays": {Reads, NPYSeen}, "lines": {Reads, LinesSeen},
		"tables and arrays": {Reads, CSVSeen, NPYSeen}} {
		for _, framework := range []Framework{Python, PyTorch} {
			job := Job{Where: event.WhereHost, Framework: framework, Work: Tables,
				Facts: map[Fact]bool{DataSeen: true, Arrays: true}}
			for _, f := range shown {
				job.Facts[f] = true
			}
			add(fmt.Sprintf("read of %s in %s", name, framework), job)
			for _, job.Type = range []string{"float32", "uint8"} {
				if name == "arrays" {
					add(fmt.Sprintf("read of %s of %s in %s", name, job.Type, framework), job)
				}
			}
		}
	}
	for _, program := range []string{"llama.cpp", "ollama", "triton", "sglang", "tgi"} {
		add("the server "+program, Job{Where: event.WhereGPU, Framework: PyTorch, Inference: true,
			Program: program, Share: 0.5})
	}
	slices.SortStableFunc(list[1:], func(a, b namedJob) int {
		return strings.Compare(a.name, b.name)
	})
	return list
}

type namedSetup struct {
	name  string
	setup Setup
}

func setups() []namedSetup {
	base := Setup{Batch: 16, Seq: 512, Precision: "fp32", Optimizer: "adamw"}
	with := func(name string, change func(*Setup)) namedSetup {
		s := base
		change(&s)
		return namedSetup{name, s}
	}
	return []namedSetup{{"nothing", Setup{}}, {"plain", base},
		with("batch 1", func(s *Setup) { s.Batch = 1 }),
		with("batch 2", func(s *Setup) { s.Batch, s.Accumulate = 2, 3 }),
		with("short", func(s *Setup) { s.Seq = 31 }),
		with("at 32 tokens", func(s *Setup) { s.Seq = 32 }),
		with("images", func(s *Setup) { s.Seq, s.Image = 0, 224 }),
		with("small images", func(s *Setup) { s.Seq, s.Image = 0, 42 }),
		with("at 43 pixels", func(s *Setup) { s.Seq, s.Image = 0, 43 }),
		with("amp", func(s *Setup) { s.Precision = "amp_bf16" }),
		with("amp fp16", func(s *Setup) { s.Precision = "amp_fp16" }),
		with("bf16", func(s *Setup) { s.Precision = "bf16" }),
		with("sgd", func(s *Setup) { s.Optimizer = "sgd" }),
		with("fused", func(s *Setup) { s.Optimizer = "adamw_fused" }),
		with("8-bit", func(s *Setup) { s.Optimizer = "adam8bit" }),
		with("paged", func(s *Setup) { s.Optimizer = "paged_adamw8bit" }),
		with("adafactor", func(s *Setup) { s.Optimizer = "adafactor" }),
		with("checkpointed", func(s *Setup) { s.Checkpointing = true }),
		with("eager attention", func(s *Setup) { s.Attention = "eager" }),
		with("sdpa", func(s *Setup) { s.Attention = "sdpa" }),
		with("kept gradients", func(s *Setup) { s.KeepGrads = true }),
		with("LoRA", func(s *Setup) { s.LoRARank = 8 }),
		with("LoRA in 8 bit", func(s *Setup) { s.LoRARank, s.LoadIn = 8, "8bit" }),
		with("LoRA in 4 bit", func(s *Setup) { s.LoRARank, s.LoadIn = 8, "4bit" }),
		with("chunked loss", func(s *Setup) { s.ChunkedLoss = true }),
		with("one rank", func(s *Setup) { s.Ranks = 1 }),
		with("two ranks", func(s *Setup) { s.Ranks = 2 }),
		with("zero2", func(s *Setup) { s.Ranks, s.Shard = 2, "zero2" }),
		with("zero3", func(s *Setup) { s.Ranks, s.Shard = 2, "zero3" }),
		with("fsdp", func(s *Setup) { s.Ranks, s.Shard = 2, "fsdp" }),
		with("bucket view", func(s *Setup) { s.Ranks, s.BucketView = 2, true }),
		with("activations offloaded", func(s *Setup) { s.Offload = []string{"activations"} }),
		with("optimizer offloaded", func(s *Setup) { s.Offload = []string{"optimizer"} }),
		with("expandable", func(s *Setup) { s.AllocConf = "expandable_segments:True" }),
		with("workers", func(s *Setup) { s.Workers, s.PinMemory = 8, true }),
		with("a worker", func(s *Setup) { s.Workers = 1 }),
		with("two workers", func(s *Setup) { s.Workers = 2 }),
		with("evaluates and saves", func(s *Setup) { s.Eval, s.Save = true, true }),
		with("torch 1.13", func(s *Setup) { s.Torch = "1.13" })}
}

// recordedTimeline has a block of every category, two steps, and sizes that do not divide evenly.
func recordedTimeline() *event.Timeline {
	t := &event.Timeline{Tags: []event.Tag{{}}, Marks: []event.Mark{{Step: 1}}}
	categories := []event.Category{event.CategoryWeights, event.CategoryGradients,
		event.CategoryOptimizer, event.CategoryActivations, event.CategoryLoss, event.CategoryInput,
		event.CategoryTemporary, event.CategoryWorkspace}
	for i, c := range categories {
		t.Tags = append(t.Tags, event.Tag{Category: c})
		t.Ops = append(t.Ops, event.Op{Kind: event.OpAlloc, ID: int32(i + 1), Tag: int32(i + 1),
			Size: int64(10007 * (i + 1))})
	}
	t.Marks = append(t.Marks, event.Mark{At: 4, Step: 2})
	for i := range categories {
		t.Ops = append(t.Ops, event.Op{Kind: event.OpFree, ID: int32(i + 1)})
	}
	t.Marks = append(t.Marks, event.Mark{At: len(t.Ops), Step: 2})
	return t
}

func ops(t *event.Timeline) []string {
	var list []string
	for _, op := range t.Ops {
		switch op.Kind {
		case event.OpAlloc:
			list = append(list, fmt.Sprintf("+%d:%d", op.ID, op.Size))
		case event.OpFree:
			list = append(list, fmt.Sprintf("-%d", op.ID))
		default:
			list = append(list, fmt.Sprint("op", op.Kind))
		}
	}
	return list
}
