package trace

import (
	"slices"
	"strings"
	"testing"

	"memroom/event"
)

func seen(names ...string) *Log {
	log := &Log{Hints: Hints{Frameworks: map[string]bool{}}}
	for _, name := range names {
		log.Hints.Frameworks[name] = true
	}
	return log
}

// TestWhoseEndItIs: the framework of a bare message by what else the log shows.
func TestWhoseEndItIs(t *testing.T) {
	const pt, tf, jax = "pytorch", "tensorflow", "jax"
	for _, c := range []struct {
		crash Crash
		seen  []string
		want  string
	}{
		{Crash{}, []string{jax, tf, pt}, pt}, {Crash{}, []string{jax, tf}, tf},
		{Crash{}, []string{jax}, jax}, {Crash{}, nil, "other"},
		{Crash{Framework: "ray"}, []string{pt}, "ray"},
		// the driver's words, which PyTorch's reader has claimed
		{Crash{Class: Other, Framework: pt}, []string{tf, jax}, tf},
		{Crash{Class: Other, Framework: pt}, []string{jax}, jax},
		{Crash{Class: Other, Framework: pt}, []string{pt, tf}, pt},
		{Crash{Class: Other, Framework: pt}, nil, pt},
		{Crash{Class: Other, Framework: "ray"}, []string{tf}, "ray"},
		{Crash{Class: Exhausted, Framework: pt}, []string{tf}, pt},
		// an allocator that two frameworks share
		{Crash{Kind: "tf_allocator", Framework: tf}, []string{jax}, jax},
		{Crash{Kind: "device_code", Framework: tf}, []string{tf}, tf},
		// the driver's bare words
		{Crash{Kind: "torch_raw", Framework: pt}, nil, "other"},
		{Crash{Kind: "torch_raw", Framework: pt}, []string{pt}, pt},
		{Crash{Kind: "torch_raw", Framework: pt, Text: "RuntimeError: x"}, nil, pt},
		{Crash{Kind: "torch_raw", Framework: pt, Frames: []event.Frame{{File: "a.py"}}}, nil, pt},
		{Crash{Kind: "torch_raw", Framework: "ray"}, nil, "ray"},
		// XLA, which three frameworks run
		{Crash{Kind: "jax_exhausted", Framework: jax}, []string{pt}, pt},
		{Crash{Kind: "jax_exhausted", Framework: jax}, []string{pt, jax}, jax},
		{Crash{Kind: "jax_exhausted", Framework: jax}, nil, jax},
		{Crash{Kind: "jax_exhausted", Framework: jax, Text: "tensorflow/x.cc"}, nil, tf},
		{Crash{Kind: "jax_exhausted", Framework: jax, Text: "tensorflow/x.cc"}, []string{jax}, jax},
		{Crash{Kind: "jax_exhausted", Framework: jax}, []string{tf}, tf},
		{Crash{Kind: "jax_exhausted", Framework: jax, Text: "XlaRuntimeError"}, []string{tf}, jax},
		{Crash{Kind: "jax_exhausted", Framework: jax}, []string{tf, jax}, jax},
		// ends without words of a framework
		{Crash{Kind: "other_segmentation_fault", Framework: "other"}, []string{pt}, pt},
		{Crash{Kind: "other_segmentation_fault", Framework: "other"}, []string{tf}, "other"},
		{Crash{Kind: "bare_kill", Framework: "other"}, []string{pt, tf}, pt},
		{Crash{Kind: "bare_kill", Framework: "python"}, []string{pt, tf}, pt},
		{Crash{Kind: "exit_137", Framework: "other"}, []string{tf}, tf},
		{Crash{Kind: "exit_137", Framework: "python"}, []string{tf}, tf},
		{Crash{Kind: "exit_137", Framework: "kubernetes"}, []string{tf, pt}, "kubernetes"},
		{Crash{Kind: "exit_137", Framework: "python"}, nil, "python"},
	} {
		got := c.crash
		settleFramework(&got, seen(c.seen...))
		if got.Framework != c.want {
			t.Errorf("%s of %q, class %v, in a log of %v: %s, want %s", c.crash.Kind,
				c.crash.Framework, c.crash.Class, c.seen, got.Framework, c.want)
		}
	}
	for _, name := range []string{pt, tf, jax, "ray"} {
		c := Crash{Kind: "any_generic"}
		settleFramework(&c, seen(name))
		if (c.Where == event.WhereGPU) != (name != "ray") || name == "ray" &&
			c.Where != event.WhereHost {
			t.Errorf("last words in a log of %s: %s", name, c.Where)
		}
	}
}

// TestWhatBelongsTogether: messages of one end are joined, and those of others are not.
func TestWhatBelongsTogether(t *testing.T) {
	asked, held := event.Bytes(5), event.Bytes(7)
	wall := Crash{Kind: "slurm_oom", Class: Exhausted, Where: event.WhereCgroup, Sure: 0.8,
		Capacity: &asked, Allocated: &held}
	unsure, host := wall, wall
	unsure.Sure, host.Where = 0.79, event.WhereHost
	for i, by := range []Crash{wall, unsure, host} {
		log := &Log{Crashes: []Crash{by, {Kind: "torch_worker", Where: event.WhereHost},
			{Kind: "torch_worker", Where: event.WhereShm}, {Kind: "bare_kill",
				Where: event.WhereHost}}}
		settleWorkers(log)
		worker := log.Crashes[1]
		if got := worker.Where == event.WhereCgroup && worker.Capacity == &asked &&
			worker.Allocated == &held; got != (i == 0) {
			t.Errorf("wall %d: %+v", i, worker)
		}
		if log.Crashes[2].Where != event.WhereShm || log.Crashes[3].Where != event.WhereHost {
			t.Errorf("wall %d: %+v", i, log.Crashes)
		}
	}

	last := Crash{Kind: "torch_device", Class: Exhausted, Requested: &asked, Capacity: &held}
	log := &Log{Crashes: []Crash{last, {Kind: "no_batch_left", Class: Exhausted}, last}}
	settleRetries(log)
	if end := log.Crashes[1]; end.Requested != &asked || end.Capacity != &held ||
		log.Crashes[0].Class != Survived || log.Crashes[2].Class != Exhausted {
		t.Errorf("%+v", log.Crashes)
	}
	without := last
	without.Requested = nil
	log = &Log{Crashes: []Crash{without, {Kind: "no_batch_left", Class: Exhausted}}}
	if settleRetries(log); log.Crashes[0].Class != Exhausted {
		t.Errorf("a refusal of no size: %+v", log.Crashes[0])
	}

	for _, c := range []struct {
		rows []Crash
		want *event.Bytes
	}{{[]Crash{{Kind: "slurm_state"}, {Kind: "slurm_state", Allocated: &held}}, &held},
		{[]Crash{{Kind: "slurm_oom"}, {Kind: "slurm_state", Allocated: &held}}, &held},
		{[]Crash{{Kind: "slurm_state", Allocated: &asked}, {Kind: "slurm_state",
			Allocated: &held}}, &asked},
		{[]Crash{{Kind: "slurm_oom"}, {Kind: "bare_kill", Allocated: &held}}, nil}} {
		log := &Log{Crashes: c.rows}
		if mergeAccounting(log); log.Crashes[0].Allocated != c.want {
			t.Errorf("%+v: %v", c.rows, sized(log.Crashes[0].Allocated))
		}
	}
}

// TestTensorAndAllocator: TensorFlow's and JAX's two messages about one refusal are one.
func TestTensorAndAllocator(t *testing.T) {
	asked := event.Bytes(5)
	allocator := Crash{Kind: "tf_allocator", Class: Exhausted, Requested: &asked}
	warned := Crash{Kind: "tf_allocator", Class: Survived}
	for name, c := range map[string]struct {
		tensor Crash
		seen   []string
		joined bool
		size   *event.Bytes
	}{
		"TensorFlow's":         {Crash{Kind: "tf_tensor", Class: Exhausted}, nil, true, nil},
		"one that it survived": {Crash{Kind: "tf_tensor", Class: Survived}, nil, false, nil},
		"JAX's": {Crash{Kind: "jax_exhausted", Class: Exhausted}, []string{"jax"},
			true, nil},
		"JAX's words without it": {Crash{Kind: "jax_exhausted", Class: Exhausted},
			[]string{"tensorflow"},
			false, nil},
		"another end in a log of JAX": {Crash{Kind: "torch_raw", Class: Exhausted}, []string{"jax"},
			false,
			nil},
		"a copy": {Crash{Kind: "tf_library", Text: "Dst tensor is not initialized"},
			nil, true, &asked},
		"another library's end": {Crash{Kind: "tf_library", Text: "ALLOC_FAILED"}, nil, false, nil},
	} {
		log := seen(c.seen...)
		log.Crashes = []Crash{allocator, warned, c.tensor}
		mergeTensorAndAllocator(log)
		left := slices.ContainsFunc(log.Crashes, func(got Crash) bool {
			return got.Requested == &asked &&
				got.Kind == "tf_allocator"
		})
		end := log.Crashes[len(log.Crashes)-1]
		if left == c.joined || end.Kind != c.tensor.Kind || end.Requested != c.size ||
			!slices.ContainsFunc(log.Crashes,
				func(got Crash) bool { return got.Class == Survived }) {
			t.Errorf("%s: %+v", name, log.Crashes)
		}
	}
}

// TestAfterABrokenContext: what fails without figures behind a kernel that failed follows from it.
func TestAfterABrokenContext(t *testing.T) {
	asked := event.Bytes(5)
	const encoder, index = "other_openencodesessionex_failed", "other_device-side_assert"
	for name, c := range map[string]struct {
		first string
		then  Crash
		stays bool
	}{
		"a library":         {index, Crash{Kind: "library_status", offset: 11}, false},
		"before it":         {index, Crash{Kind: "library_status", offset: 9}, true},
		"at the same place": {index, Crash{Kind: "library_status", offset: 10}, true},
		"with a size": {index, Crash{Kind: "torch_raw", offset: 11, Requested: &asked},
			true},
		"of another kind":   {index, Crash{Kind: "torch_device", offset: 11}, true},
		"after another end": {"other_python", Crash{Kind: "library_status", offset: 11}, true},
		"an encoder's words": {encoder, Crash{Kind: "errno_memory", Class: Exhausted, offset: 11},
			false},
		"a device's words": {encoder, Crash{Kind: "device_generic", Class: Exhausted, offset: 11},
			false},
		"last words": {encoder, Crash{Kind: "any_generic", Class: Exhausted, offset: 11},
			false},
		"before the encoder": {encoder, Crash{Kind: "errno_memory", Class: Exhausted, offset: 10},
			true},
		"of no shortage": {encoder, Crash{Kind: "errno_memory", Class: Other, offset: 11},
			true},
		"a message of size": {encoder, Crash{Kind: "errno_memory", Class: Exhausted, offset: 11,
			Requested: &asked}, true},
		"a message of kernel": {encoder, Crash{Kind: "kernel_kill", Class: Exhausted, offset: 11},
			true},
	} {
		log := &Log{Crashes: []Crash{{Kind: c.first, Class: Other, offset: 10}, c.then}}
		if dropAftermath(log); (len(log.Crashes) == 2) != c.stays {
			t.Errorf("%s: %+v", name, log.Crashes)
		}
	}
}

// TestVictimsOfTheKernel: in a log with the program's own exception, the kernel's victim is taken
// for another program, unless it is a Python process or is not named.
func TestVictimsOfTheKernel(t *testing.T) {
	for name, c := range map[string]struct {
		raised, victim string
		kill, invoked  Class
	}{
		"another program":  {"ValueError", "chrome", Survived, Survived},
		"Python":           {"ValueError", "python3", Exhausted, Exhausted},
		"nobody is named":  {"ValueError", "", Exhausted, Exhausted},
		"a lost partner":   {"ConnectionResetError", "chrome", Exhausted, Exhausted},
		"a pipe that ends": {"BrokenPipeError", "chrome", Exhausted, Exhausted},
	} {
		log := &Log{Crashes: []Crash{{Kind: "other_python", What: c.raised},
			{Kind: "kernel_invoked", Class: Exhausted},
			{Kind: "kernel_kill", Class: Exhausted, Process: c.victim}}}
		settleStrangers(log)
		if log.Crashes[2].Class != c.kill || log.Crashes[1].Class != c.invoked {
			t.Errorf("%s: %v", name, log.Crashes)
		}
	}
	both := &Log{Crashes: []Crash{{Kind: "other_python", What: "ValueError"},
		{Kind: "kernel_invoked", Class: Exhausted}, {Kind: "kernel_kill", Class: Exhausted,
			Process: "chrome"}, {Kind: "kernel_kill", Class: Exhausted, Process: "python"}}}
	if settleStrangers(both); both.Crashes[1].Class != Exhausted ||
		both.Crashes[2].Class != Survived || both.Crashes[3].Class != Exhausted {
		t.Errorf("%v", both.Crashes)
	}
}

// TestRoomOnTheCard: a library that could not start although the card is said to have room.
func TestRoomOnTheCard(t *testing.T) {
	for _, c := range []struct {
		kind string
		sure float64
		want Class
	}{{"library_status", 0.79, Other}, {"library_status", 0.8, Exhausted}, {"torch_raw", 0.5,
		Exhausted}} {
		log := &Log{Crashes: []Crash{{Kind: c.kind, Class: Exhausted, Sure: c.sure,
			Signs: Signs{SignRoom: "memory is fine"}}}}
		settleHandles(log)
		if got := log.Crashes[0]; got.Class != c.want || c.want == Other && got.Sure != 0.6 {
			t.Errorf("%s sure to %g: %+v", c.kind, c.sure, got)
		}
	}
}

// TestBatchesLeftOut: one rank leaves a batch out, and all end within 40 lines because of it.
func TestBatchesLeftOut(t *testing.T) {
	for name, c := range map[string]struct {
		end  Crash
		what string
		want Class
	}{
		"at once": {Crash{Class: Other, Line: 11, Text: "all_reduce"}, wentOnWithLess,
			Exhausted},
		"40 lines": {Crash{Class: Other, Line: 50, What: "NCCL timeout"}, wentOnWithLess,
			Exhausted},
		"41 lines": {Crash{Class: Other, Line: 51, Text: "all_reduce"}, wentOnWithLess,
			Survived},
		"the same line": {Crash{Class: Other, Line: 10, Text: "all_reduce"}, wentOnWithLess,
			Survived},
		"another end": {Crash{Class: Other, Line: 11, Text: "KeyError"}, wentOnWithLess,
			Survived},
		"a shortage": {Crash{Class: Exhausted, Line: 11, Text: "all_reduce"}, wentOnWithLess,
			Survived},
		"otherwise": {Crash{Class: Other, Line: 11, Text: "all_reduce"}, "a warning", Survived},
	} {
		log := &Log{Crashes: []Crash{{Class: Survived, What: c.what, Line: 10}, c.end}}
		if settleSkipped(log); log.Crashes[0].Class != c.want {
			t.Errorf("%s: %v", name, log.Crashes[0].Class)
		}
	}
}

// TestRefusalsOfTheDriver: the smallest size counts, and one that no card has.
func TestRefusalsOfTheDriver(t *testing.T) {
	for requested, class := range map[event.Bytes]Class{64 * event.TiB: Survived,
		64*event.TiB + 1: Exhausted} {
		log := &Log{Crashes: []Crash{{Kind: "tf_backpedal", Class: Survived,
			Requested: &requested}}}
		if settleBackpedal(log); log.Crashes[0].Class != class ||
			class == Exhausted && log.Crashes[0].Sure != 0.9 {
			t.Errorf("%d: %+v", requested, log.Crashes[0])
		}
	}
	sizes := []event.Bytes{9 * event.MiB, 8 * event.MiB, 8 * event.MiB}
	log := &Log{Crashes: []Crash{{Kind: "tf_backpedal"}}} // without its size
	for i := range sizes {
		log.Crashes = append(log.Crashes, Crash{Kind: "tf_backpedal", Class: Survived,
			Requested: &sizes[i]})
	}
	settleBackpedal(log)
	for i, want := range []Class{"", Survived, Exhausted, Survived} {
		if log.Crashes[i].Class != want {
			t.Errorf("refusal %d: %v", i, log.Crashes[i].Class)
		}
	}
}

// TestEchoes: only messages that another one repeats in more detail are left out.
func TestEchoes(t *testing.T) {
	asked := event.Bytes(5)
	full := Crash{Kind: "torch_device", Class: Exhausted, Where: event.WhereGPU,
		Requested: &asked, Rank: -1}
	bare := full
	bare.Requested = nil
	ranked, elsewhere := bare, bare
	ranked.Rank, elsewhere.Where = 0, event.WhereHost
	survived := full
	survived.Class = Survived
	for name, c := range map[string]struct {
		log  []Crash
		left string
	}{
		"a title":            {[]Crash{bare, full}, "torch_device"},
		"of another rank":    {[]Crash{ranked, full}, "torch_device torch_device"},
		"of another memory":  {[]Crash{elsewhere, full}, "torch_device torch_device"},
		"of one that passed": {[]Crash{bare, survived}, "torch_device torch_device"},
		"a kill told twice": {[]Crash{{Kind: "bare_kill", Class: Exhausted},
			{Kind: "kernel_kill", Class: Exhausted}}, "kernel_kill"},
		"a kill and a warning": {[]Crash{{Kind: "bare_kill", Class: Exhausted},
			{Kind: "kernel_kill", Class: Survived}}, "bare_kill kernel_kill"},
		"an exception": {[]Crash{{Kind: "other_python", Class: Other}}, "other_python"},
		"an exception and more": {[]Crash{{Kind: "other_python", Class: Other},
			{Kind: "bare_kill", Class: Exhausted}}, "bare_kill"},
		"an exception, survived": {[]Crash{{Kind: "other_python", Class: Other},
			{Kind: "ray_low", Class: Survived}}, "other_python ray_low"},
		"an empty tensor": {[]Crash{{Kind: "tf_class", Class: Exhausted},
			{Kind: "jax_exhausted", Class: Other, What: emptyTensor}}, "jax_exhausted"},
		"another of JAX's": {[]Crash{{Kind: "tf_class", Class: Exhausted},
			{Kind: "jax_exhausted", Class: Other, What: "a quota"}}, "tf_class jax_exhausted"},
	} {
		log := &Log{Crashes: c.log}
		dropEchoes(log)
		var kinds []string
		for _, got := range log.Crashes {
			kinds = append(kinds, got.Kind)
		}
		if got := strings.Join(kinds, " "); got != c.left {
			t.Errorf("%s: %s is left, want %s", name, got, c.left)
		}
	}
}

// TestWordsOfReleases: the newest release that writes a message so.
func TestWordsOfReleases(t *testing.T) {
	for text, want := range map[string]string{
		"THCudaCheck FAIL file=a.cu":                                          "1.3",
		"cuda runtime error (2) : out of memory":                              "1.3",
		"(GPU 0; 1.00 GiB already allocated; 2.00 GiB cached)":                "1.3",
		"(1.00 GiB already allocated; 2.00 GiB reserved in total by PyTorch)": "2.0",
		"1.00 GiB already allocated":                                          "",
		"2.00 GiB reserved in total by PyTorch":                               "",
	} {
		if got := (&Crash{Framework: "pytorch", Text: text}).Wording(); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
		other := &Crash{Framework: "other", Text: text}
		if got := other.Wording(); got != "" && !strings.Contains(strings.ToLower(text), "cuda") {
			t.Errorf("%q of another program: %q", text, got)
		}
	}
	for name, c := range map[string]struct {
		frames []event.Frame
		want   string
	}{
		"none": {nil, ""},
		"libraries alone": {[]event.Frame{{File: "/x/site-packages/torch/a.py"},
			{File: "threading.py"}}, ""},
		"a file that was cut": {[]event.Frame{{File: "?"}, {File: "train.py"}}, "train.py"},
		"the innermost one":   {[]event.Frame{{File: "model.py"}, {File: "train.py"}}, "model.py"},
	} {
		f, ok := (&Crash{Frames: c.frames}).UserFrame()
		if f.File != c.want || ok != (c.want != "") {
			t.Errorf("%s: %q %v", name, f.File, ok)
		}
	}
}
