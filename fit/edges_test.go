package fit

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"memroom/event"
	"memroom/remedy"
)

// TestLeaksThatEndAttempts: without remedies a leak of half of what libraries leave, with them a
// fifth of the limit.
func TestLeaksThatEndAttempts(t *testing.T) {
	inside := []Remedy{inProcess(remedy.MicroBatch, remedy.Params{})}
	settings := []Remedy{{ID: remedy.ExpandableSegments, Level: remedy.LevelEnv}}
	for name, c := range map[string]struct {
		limit, libraries, leaked event.Bytes
		on                       []Remedy
		want                     bool
	}{
		"half":                      {100, 0, 50, nil, true},
		"less":                      {100, 0, 49, nil, false},
		"half beside libraries":     {100, 40, 30, nil, true},
		"less beside libraries":     {100, 40, 29, nil, false},
		"libraries count up to":     {100, 90, 25, nil, true},
		"half of it":                {100, 90, 24, nil, false},
		"a fifth, with remedies":    {100, 0, 20, inside, true},
		"less, with remedies":       {100, 0, 19, inside, false},
		"a fifth, with settings":    {100, 0, 20, settings, false},
		"half, with settings":       {100, 0, 50, settings, true},
		"no leak":                   {100, 100, 0, inside, false},
		"no leak and a tiny limit":  {1, 0, 0, inside, false},
		"no limit":                  {0, 0, 50, inside, false},
		"the least leak and limit":  {1, 0, 1, nil, true},
		"all of it, with libraries": {100, 50, 100, nil, true},
	} {
		f := Facts{Where: event.WhereGPU, Limit: c.limit, Libraries: c.libraries, Leaked: c.leaked,
			On: c.on}
		plan := Choose(f, Options{})
		if got := plan.Impossible == OfLeak; got != c.want {
			t.Errorf("%s: %v, %q", name, got, plan.Impossible)
		}
		why, needs := f.GivenUp(3)
		if got := why == OfLeak; got != c.want || c.want && needs != 0 {
			t.Errorf("%s, given up: %q, %d", name, why, needs)
		}
		if c.want && plan.Factor != 1 {
			t.Errorf("%s: a division by %d", name, plan.Factor)
		}
	}
}

// TestEndsDivideNothing: a plan of which nothing comes leaves the command's arguments alone.
func TestEndsDivideNothing(t *testing.T) {
	for name, f := range map[string]Facts{
		"hopeless": {Where: event.WhereGPU, Hopeless: "x", Needs: 3},
		"stuck":    {Where: event.WhereGPU, Stuck: true},
		"foreign":  {Where: event.WhereGPU, Foreign: "x"},
		"idle":     {Where: event.WhereGPU, Idle: true},
	} {
		if plan := Choose(f, Options{}); plan.Impossible == "" || plan.Factor != 1 {
			t.Errorf("%s: %+v", name, plan)
		}
	}
	// A loader's shared memory is within reach, whatever the framework.
	if plan := Choose(Facts{Where: event.WhereShm, Foreign: "x"}, Options{}); plan.Impossible != "" {
		t.Errorf("%q", plan.Impossible)
	}
}

// TestLastMoments: the last moment is described only if both figures are known.
func TestLastMoments(t *testing.T) {
	for _, c := range []struct {
		requested, allocated event.Bytes
		tells                bool
	}{{0, 0, false}, {1, 0, false}, {0, 1, false}, {1, 1, true}} {
		got := Facts{Requested: c.requested, Allocated: c.allocated}.lastMoment()
		if (got != "") != c.tells {
			t.Errorf("%+v: %q", c, got)
		}
	}
	for _, c := range []struct {
		requested, limit event.Bytes
		want             bool
	}{{25, 100, true}, {24, 100, false}, {0, 3, false}, {5, 0, false}, {1, 1, true}, {1, 4, true}} {
		if got := (Facts{Requested: c.requested, Limit: c.limit}).oneTensor(); got != c.want {
			t.Errorf("one tensor of %d in %d: %v", c.requested, c.limit, got)
		}
	}
}

// TestStuckOnlyAtTheSameWall: each part of it changed alone.
func TestStuckOnlyAtTheSameWall(t *testing.T) {
	wall := Tried{OutOf: event.WhereGPU, Requested: 900, Held: 1000,
		Remedies: []Remedy{inProcess(remedy.MicroBatch, remedy.Params{})}}
	for name, c := range map[string]struct {
		change func(before, last *Tried)
		want   bool
	}{
		"the same":            {func(_, _ *Tried) {}, true},
		"another memory":      {func(b, _ *Tried) { b.OutOf = event.WhereHost }, false},
		"no memory":           {func(b, l *Tried) { b.OutOf, l.OutOf = "", "" }, false},
		"only the last":       {func(b, _ *Tried) { b.OutOf = "" }, false},
		"another request":     {func(b, _ *Tried) { b.Requested++ }, false},
		"request unknown":     {func(b, l *Tried) { b.Requested, l.Requested = 0, 0 }, false},
		"a byte":              {func(b, l *Tried) { b.Requested, l.Requested = 1, 1 }, true},
		"held unknown":        {func(b, l *Tried) { b.Held, l.Held = 0, 0 }, false},
		"a byte held":         {func(b, l *Tried) { b.Held, l.Held = 1, 1 }, true},
		"no remedies before":  {func(b, _ *Tried) { b.Remedies = nil }, false},
		"other bytes held":    {func(b, _ *Tried) { b.Held-- }, false},
		"none in the last":    {func(_, l *Tried) { l.Remedies = nil }, true},
		"the last fared well": {func(_, l *Tried) { l.OutOf = "" }, false},
	} {
		before, last := wall, wall
		c.change(&before, &last)
		if got := (Record{Attempts: []Tried{{}, before, last}}).Stuck(); got != c.want {
			t.Errorf("%s: stuck %v", name, got)
		}
	}
	for n := range 2 {
		if (Record{Attempts: make([]Tried, n)}).Stuck() {
			t.Errorf("%d attempts are stuck", n)
		}
	}
}

// TestRecordsOfAttempts: failures, the largest limit, steps and divisions.
func TestRecordsOfAttempts(t *testing.T) {
	if (Record{Attempts: []Tried{{}, {OutOf: event.WhereGPU}}}).Failed() ||
		!(Record{Attempts: []Tried{{}, {Failed: "x"}}}).Failed() || (Record{}).Failed() {
		t.Error("failures are those with an error that is none of memory")
	}
	tried := Tried{Said: []Sentence{{Limit: 5}, {Limit: 9}, {Limit: 7}, {}}}
	if got := tried.Limit(); got != 9 {
		t.Errorf("a limit of %d", got)
	}
	one := Record{Attempts: []Tried{{Number: 1, Steps: 1}, {Number: 2, Steps: 0}}}
	if got := one.NoTraining(); !strings.Contains(got, "attempt 2 made no training step; attempt 1 "+
		"made 1.") {
		t.Errorf("%q", got)
	}
	if got := (Record{Attempts: []Tried{{Steps: 3}, {Steps: 1}}}).NoTraining(); got != "" {
		t.Errorf("one step is a step: %q", got)
	}
	if (Record{}).RanOut() != 0 || (Record{Attempts: []Tried{{}}}).RanOut() != 0 {
		t.Error("none ran out")
	}
	if (Record{Attempts: []Tried{{OutOf: event.WhereGPU}}}).RanOut() != 1 {
		t.Error("the undivided batch ran out")
	}
	declined := Tried{Said: []Sentence{{ID: remedy.MicroBatch, Kind: "note", Text: "n"},
		{ID: remedy.MicroBatch, Kind: "declined", Text: "first"},
		{ID: remedy.MicroBatch, Kind: "declined", Text: "second"}}}
	if got := declined.Whole(); got != "first" {
		t.Errorf("%q", got)
	}
	if got := (Tried{Said: declined.Said[:1]}).Whole(); got != "" {
		t.Errorf("a note is no refusal: %q", got)
	}
}

// TestTrainersAreRecognised: by their command or their flag, and only for their own keys.
func TestTrainersAreRecognised(t *testing.T) {
	for line, want := range map[string]string{
		"tune run x":                         "torchtune",
		"/usr/bin/tune run x":                "torchtune",
		"python -m torchtune._cli.tune":      "torchtune",
		"tuned run x":                        "",
		"axolotl train x":                    "axolotl",
		"/opt/axolotl train x":               "axolotl",
		"python -m axolotl.cli.train x":      "axolotl",
		"python my.axolotl.cli":              "",
		"python t.py --deepspeed x.json":     "deepspeed",
		"python t.py --deepspeed_config=a":   "deepspeed",
		"deepspeed train.py":                 "",
		"python train.py --batch_size 4 x.y": "",
	} {
		for _, c := range trainers {
			if got := usesTrainer(c.trainer, strings.Fields(line)); got !=
				(want == string(c.trainer)) {
				t.Errorf("%s uses %s: %v", line, c.trainer, got)
			}
		}
	}
	for line, want := range map[string]string{
		"a.json b.yaml c.yml d.py e.txt": "a.json b.yaml c.yml",
		"--config=a.yaml b=c.yml":        "a.yaml b=c.yml",
		"-c=a.json --x=b.py":             "a.json",
		"--flag yaml json":               "",
	} {
		if got := strings.Join(ConfigFiles(strings.Fields(line)), " "); got != want {
			t.Errorf("%s: files %q, want %q", line, got, want)
		}
	}
	files := map[string][]byte{"empty.yaml": []byte("seed: 1\n"),
		"first.yaml": []byte("batch_size: 8\n"), "second.yaml": []byte("batch_size: 6\n")}
	for range 20 { // the order of a map is another each time
		m := FindMapping(strings.Fields("tune run empty.yaml first.yaml second.yaml"), files)
		if m.Config != "first.yaml" || m.value != 8 || m.accumulated != 1 {
			t.Fatalf("%+v", m)
		}
	}
	if m := FindMapping(strings.Fields("python train.py first.yaml"), files); m != (Mapping{}) {
		t.Errorf("no trainer: %+v", m)
	}
}

// TestFlagsAtTheEnd: one without a value has none, and is not written behind the command.
func TestFlagsAtTheEnd(t *testing.T) {
	for _, c := range []struct{ line, value, set string }{
		{"x --bs", "", "x --bs --bs 9"},
		{"x --bs 4", "4", "x --bs 9"},
		{"x --bs 4 --bs 5", "5", "x --bs 9 --bs 9"},
		{"--bs 4", "4", "--bs 9"},
		{"x --bs=4", "4", "x --bs=9"},
		{"x y", "", "x y --bs 9"},
	} {
		args := strings.Fields(c.line)
		if got := Argument(args, "--bs"); got != c.value {
			t.Errorf("%s: %q", c.line, got)
		}
		if got := strings.Join(SetArgument(args, "--bs", "9"), " "); got != c.set {
			t.Errorf("%s: became %s, want %s", c.line, got, c.set)
		}
	}
	if got := Argument([]string{"bs", "4"}, "bs"); got != "" {
		t.Errorf("a key is no flag: %q", got)
	}
	if got := strings.Join(SetArgument([]string{"bs", "4"}, "bs", "9"), " "); got != "bs 4 bs=9" {
		t.Errorf("%s", got)
	}
}

// TestDivisorsOfABatch: the smallest from the factor on that leaves no remainder.
func TestDivisorsOfABatch(t *testing.T) {
	for _, c := range []struct{ value, factor, batch, steps int }{
		{32, 4, 8, 4}, {12, 5, 2, 6}, {7, 2, 1, 7}, {8, 8, 1, 8}, {8, 9, 1, 8}, {9, 2, 3, 3},
		{2, 2, 1, 2}, {6, 1, 6, 1}} {
		m := Mapping{MicroBatch: "--b", Accumulate: "--a", value: c.value, accumulated: 1}
		got, err := m.Rewrite([]string{"x"}, nil, c.factor)
		want := SetArgument(SetArgument([]string{"x"}, "--b", strconv.Itoa(c.batch)), "--a",
			strconv.Itoa(c.steps))
		if err != nil || !slices.Equal(got.Args, want) {
			t.Errorf("%d by %d: %v, want %v (%v)", c.value, c.factor, got.Args, want, err)
		}
	}
	for value, want := range map[int]bool{0: false, 1: false, 2: true} {
		m := Mapping{value: value}
		if _, err := m.Rewrite(nil, nil, 2); (err == nil) != want || m.Possible() != want {
			t.Errorf("a batch of %d: %v", value, err)
		}
	}
}

// TestShortNames: which remedies are named in a title, and which the probe decides about.
func TestShortNames(t *testing.T) {
	args := func(id remedy.ID) Remedy {
		return Remedy{ID: id, Level: remedy.LevelArgs, Params: remedy.Params{Factor: 2}}
	}
	for _, c := range []struct {
		r    Remedy
		name string
	}{
		{inProcess(remedy.MicroBatch, remedy.Params{}), "smaller micro-batches"},
		{inProcess(remedy.MicroBatch, remedy.Params{Size: 3}), "micro-batches of 3 samples"},
		{inProcess(remedy.MicroBatch, remedy.Params{Pieces: 3}),
			"the batch split into 3 micro-batches"},
		{args(remedy.MicroBatch),
			"a 2 times smaller micro-batch, by the command's own arguments"},
		{inProcess(remedy.Checkpointing, remedy.Params{}), "activation checkpointing"},
		{inProcess(remedy.ActivationOffload, remedy.Params{}), "offload of activations"},
		{inProcess(remedy.ActivationOffload, remedy.Params{Measured: true}),
			"offload of activations"},
		{inProcess(remedy.OptimizerOffload, remedy.Params{Measured: true}),
			"offload of optimizer state"},
		{inProcess(remedy.OptimizerFused, remedy.Params{Slices: true}), ""},
		{inProcess(remedy.OptimizerFused, remedy.Params{}), "a fused optimizer"},
		{inProcess(remedy.SetToNone, remedy.Params{}), ""},
		{inProcess(remedy.DataLoaderWorkers, remedy.Params{}), "no data loader workers"},
		{atMostWorkers(1), "at most one data loader worker"},
	} {
		if name := c.r.name(); name != c.name {
			t.Errorf("%+v: %q", c.r, name)
		}
	}
	if workers(remedy.Params{}) != 0 || workers(*new(remedy.Params)) != 0 {
		t.Error("without a number there are none")
	}
}

// TestRanks: what saves more ranks higher.
func TestRanks(t *testing.T) {
	less := func(name string, list ...Remedy) {
		t.Helper()
		for i := 1; i < len(list); i++ {
			if list[i-1].rank() >= list[i].rank() {
				t.Errorf("%s: %v before %v", name, list[i-1].rank(), list[i].rank())
			}
		}
	}
	batch := func(p remedy.Params) Remedy { return inProcess(remedy.MicroBatch, p) }
	less("measured", batch(remedy.Params{}), batch(remedy.Params{Factor: 0.75}),
		batch(remedy.Params{Factor: 0.5}), batch(remedy.Params{Pieces: 1}),
		batch(remedy.Params{Pieces: 16}))
	if batch(remedy.Params{}).rank() != batch(remedy.Params{Factor: 1}).rank() ||
		inProcess(remedy.SetToNone, remedy.Params{}).rank() != 0 {
		t.Error("the whole room is what is planned with unless said otherwise")
	}
	less("workers", atMostWorkers(2), atMostWorkers(1), atMostWorkers(0))
	for by, want := range map[float64]int{0: 1, 1: 1, 2: 2, 8: 8} {
		if got := Factor([]Remedy{batch(remedy.Params{Factor: 0.5}), {ID: remedy.MicroBatch,
			Level: remedy.LevelArgs, Params: remedy.Params{Factor: by}}}); got != want {
			t.Errorf("a factor of %v divides by %d", by, got)
		}
	}
	all := []Remedy{batch(remedy.Params{}), inProcess(remedy.Checkpointing, remedy.Params{}),
		{ID: remedy.MicroBatch, Level: remedy.LevelArgs}}
	if got := Inside(all); len(got) != 2 || got[1].ID != remedy.Checkpointing {
		t.Errorf("measured: %v", ids(got))
	}
	all[0].Params.Pieces = 1
	if got := Inside(all); len(got) != 1 || got[0].ID != remedy.MicroBatch {
		t.Errorf("a fixed number stands alone: %v", ids(got))
	}
}

// TestPreventionIsIdle: everything in it waits for what is measured.
func TestPreventionIsIdle(t *testing.T) {
	for _, r := range Prevention() {
		p := r.Params
		ok := map[remedy.ID]bool{remedy.ExpandableSegments: r.Level == remedy.LevelEnv,
			remedy.MicroBatch: p.Worst && !p.Failed, remedy.Checkpointing: !p.Failed,
			remedy.ActivationOffload: p.Measured, remedy.OptimizerFused: p.Slices}
		if !ok[r.ID] {
			t.Errorf("%+v", r)
		}
	}
	if len(Prevention()) != 5 {
		t.Error(ids(Prevention()))
	}
	for steps, later := range map[int64]bool{2: false, 3: true, 4: true} {
		if got := (Facts{Steps: steps, Phase: "forward"}).ranOutLater(); got != later {
			t.Errorf("after %d steps: %v", steps, got)
		}
	}
	if (Facts{Reserved: 10, Allocated: 0, Requested: 1}).fragmented() {
		t.Error("without a limit nothing is known of room")
	}
	first := Ladder(Facts{Where: event.WhereHost}, Options{})[0].Remedies
	if got := of(t, first, remedy.MicroBatch).Params.Factor; got != 1 {
		t.Errorf("the first stage plans with %v of the room", got)
	}
}

// TestWhoIsLightning: the word fit is a command only behind the program.
func TestWhoIsLightning(t *testing.T) {
	for line, want := range map[string]string{
		"main.py fit --trainer.x 1":             "--ckpt_path {latest}",
		"python main.py fit --trainer.x 1":      "--ckpt_path {latest}",
		"fit --trainer.x 1":                     "",
		"main.py fit --lr 1":                    "",
		"main.py train --trainer.x 1":           "",
		"main.py fit --trainer=t --ckpt_path a": "",
		"x --output_dir o --lr 1":               "",
		"x --per_device_train_batch_size 8":     "",
		"x --output_dir=o --per-device-train-batch-size=8 --resume_from_checkpoint=c": "",
	} {
		if got := FindResume(strings.Fields(line), "", "").Template; got != want {
			t.Errorf("%s: %q, want %q", line, got, want)
		}
	}
	if got := FindResume(nil, "--r {latest}", "ck/*"); !slices.Equal(got.Patterns, []string{"ck/*"}) {
		t.Errorf("%v", got.Patterns)
	}
	if got := FindResume(nil, "--r {latest}", "").Patterns; len(got) != 18 || got[0] != "*.pt" ||
		!slices.Contains(got, "*/*/checkpoint-*") {
		t.Errorf("%v", got)
	}
	if CheckTemplate("") != nil || CheckTemplate("x {latest}") != nil || CheckTemplate("x") == nil {
		t.Error("a template names the checkpoint")
	}
}

// TestKeysOfCommands: every word counts, also the first; what does not matter goes with its value,
// and no further.
func TestKeysOfCommands(t *testing.T) {
	key := func(line string) string { return Key(strings.Fields(line), nil, "", 0) }
	base := key("python t.py --bs 4")
	for line, same := range map[string]bool{
		"python3 t.py --bs 4":               false,
		"python t.py --bs":                  false,
		"python t.py --bs 4 x":              false,
		"python t.py --seed 1 --bs 4":       true,
		"python t.py --seed=1 --bs 4":       true,
		"python --lr=3 t.py --bs 4 --out o": true,
		"python t.py --seed 1 2 --bs 4":     false,
		"python t.py --seeds 1 --bs 4":      false,
	} {
		if got := key(line) == base; got != same {
			t.Errorf("%s is the same job: %v", line, got)
		}
	}
	if len(base) != 20 {
		t.Errorf("%q", base)
	}
}
