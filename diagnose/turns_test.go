package diagnose

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
	"memroom/trace"
)

// changed is one of the ends whose figures are changed.
type changed struct {
	name  string
	crash trace.Crash
	hints trace.Hints
}

// ends are ends of many kinds, each with the figures that such a message has.
func ends() []changed {
	size := func(n event.Bytes) *event.Bytes { return &n }
	user := event.Frame{File: "train.py", Line: 7, Name: "main"}
	forward := event.Frame{File: "/x/site-packages/torch/nn/modules/module.py", Line: 9,
		Name: "forward"}
	inside := func(file, name string) []event.Frame {
		return []event.Frame{{File: "/x/site-packages/torch/" + file, Line: 3, Name: name}, user}
	}
	card := func(name string, frames ...event.Frame) changed {
		return changed{name: name, crash: trace.Crash{Kind: "torch_device", Class: trace.Exhausted,
			Sure:  0.98,
			Where: event.WhereGPU, Framework: "pytorch", Rank: -1, Frames: frames,
			Requested: size(600 * event.MiB), Capacity: size(24 * event.GiB),
			Allocated: size(20 * event.GiB), Idle: size(event.GiB), Free: size(300 * event.MiB)}}
	}
	with := func(b changed, change func(b *changed)) changed {
		change(&b)
		return b
	}
	host := func(name, kind string, where event.Where) changed {
		return changed{name: name, crash: trace.Crash{Kind: kind, Class: trace.Exhausted, Sure: 0.95,
			Where: where, Framework: "pytorch", Rank: -1, Requested: size(3 * event.GiB),
			Capacity: size(64 * event.GiB), Allocated: size(60 * event.GiB),
			Available: size(event.GiB)}}
	}
	return []changed{
		card("a message alone"),
		card("a forward pass", forward, user),
		card("a backward pass", inside("_tensor.py", "backward")...),
		card("an optimizer's step", inside("optim/adamw.py", "step")...),
		card("a model that is moved", inside("nn/modules/module.py", "_apply")...),
		card("logits", inside("nn/functional.py", "cross_entropy")...),
		card("attention", inside("nn/functional.py", "scaled_dot_product_attention")...),
		card("an evaluation", forward, event.Frame{File: "train.py", Line: 9, Name: "evaluate"}, user),
		card("an evaluation's own line", event.Frame{File: "train.py", Line: 9, Name: "evaluate"}, user),
		with(card("neighbours", forward, user), func(b *changed) {
			b.crash.Neighbours = []trace.Holder{{PID: 7, Bytes: 3 * event.GiB}, {PID: 8, Bytes: event.GiB}}
			b.crash.InProcess = size(21 * event.GiB)
		}),
		with(card("little of its own", forward, user), func(b *changed) {
			b.crash.Allocated, b.crash.Idle = size(2*event.GiB), nil
		}),
		with(card("a batch of 64", forward, user), func(b *changed) { b.hints.Batch = 64 }),
		with(card("JAX"), func(b *changed) { b.crash.Kind, b.crash.Framework = "jax_exhausted", "jax" }),
		with(card("TensorFlow"), func(b *changed) {
			b.crash.Kind, b.crash.Framework = "tf_tensor", "tensorflow"
			b.hints.LargestChunk = 8 * event.GiB
		}),
		with(card("a server's cache"), func(b *changed) { b.crash.Kind = "serving_cache" }),
		host("an array", "array_memory", event.WhereHost),
		host("a tensor in host memory", "torch_cpu", event.WhereHost),
		with(host("a tensor of a pass", "torch_cpu", event.WhereHost), func(b *changed) {
			b.crash.Frames = []event.Frame{forward, user}
		}),
		host("a kill", "kernel_kill", event.WhereCgroup),
		host("shared memory", "torch_shm", event.WhereShm),
		with(host("Ray", "ray_oom", event.WhereHost), func(b *changed) {
			b.crash.Framework = "ray"
			b.crash.Neighbours = []trace.Holder{{Name: "ray::Trainer", Bytes: 20 * event.GiB},
				{Name: "ray::Trainer", Bytes: 20 * event.GiB}, {Name: "python", Bytes: 2 * event.GiB}}
		}),
		with(host("a stranger", "kernel_kill", event.WhereHost), func(b *changed) {
			b.crash.Neighbours = []trace.Holder{{Name: "java", Bytes: 20 * event.GiB}}
		}),
	}
}

// changes are what is changed: one figure at a time, the others stay.
var changes = []struct {
	name string
	set  func(c *trace.Crash, h *trace.Hints, n int64) bool // false: this end has none
}{
	{"requested", func(c *trace.Crash, _ *trace.Hints, n int64) bool { return put(&c.Requested, n) }},
	{"capacity", func(c *trace.Crash, _ *trace.Hints, n int64) bool { return put(&c.Capacity, n) }},
	{"allocated", func(c *trace.Crash, _ *trace.Hints, n int64) bool { return put(&c.Allocated, n) }},
	{"idle", func(c *trace.Crash, _ *trace.Hints, n int64) bool { return put(&c.Idle, n) }},
	{"free", func(c *trace.Crash, _ *trace.Hints, n int64) bool { return put(&c.Free, n) }},
	{"available", func(c *trace.Crash, _ *trace.Hints, n int64) bool { return put(&c.Available, n) }},
	{"own process", func(c *trace.Crash, _ *trace.Hints, n int64) bool { return put(&c.InProcess, n) }},
	{"neighbour", func(c *trace.Crash, _ *trace.Hints, n int64) bool {
		if len(c.Neighbours) == 0 {
			return false
		}
		c.Neighbours = slices.Clone(c.Neighbours)
		c.Neighbours[0].Bytes = event.Bytes(n)
		return true
	}},
	{"largest piece", func(_ *trace.Crash, h *trace.Hints, n int64) bool {
		if h.LargestChunk == 0 {
			return false
		}
		h.LargestChunk = event.Bytes(n)
		return true
	}},
	{"steps", func(c *trace.Crash, _ *trace.Hints, n int64) bool { c.Steps = n; return true }},
	{"batch", func(_ *trace.Crash, h *trace.Hints, n int64) bool {
		h.Batch = int(min(n, 1<<30))
		return true
	}},
}

func put(into **event.Bytes, n int64) bool {
	if *into == nil {
		return false
	}
	size := event.Bytes(n)
	*into = &size
	return true
}

// decided is what is decided about an end, without its words.
func decided(c trace.Crash, h trace.Hints) string {
	x := &Explanation{}
	x.fill(&c, &h)
	return fmt.Sprintf("%s/%s %.2f (%d reasons, %d cures ruled out)", x.Cause, x.Detail, x.Confidence,
		len(x.Evidence), len(x.job.On))
}

// TestWhereDecisionsTurn: the exact figure at which what is decided about an end changes, for every
// figure that it has. Each is found by halving. After a change that is meant:
//
//	go test ./diagnose -run TestWhereDecisionsTurn -update
func TestWhereDecisionsTurn(t *testing.T) {
	got := map[string]string{}
	for _, b := range ends() {
		for _, f := range changes {
			at := func(n int64) string {
				c, h := b.crash, b.hints
				f.set(&c, &h, n)
				return decided(c, h)
			}
			c, h := b.crash, b.hints
			if f.set(&c, &h, 1) {
				got[b.name+", "+f.name] = turns(at)
			}
		}
	}
	path := filepath.Join("testdata", "turns.txt")
	if flag.Lookup("update").Value.String() == "true" {
		var all strings.Builder
		for _, name := range slices.Sorted(maps.Keys(got)) {
			fmt.Fprintf(&all, "%s:%s\n", name, got[name])
		}
		if err := os.WriteFile(path, []byte(all.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		name, want, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
		if got[name] != want {
			t.Errorf("%s:\n%s, was\n%s", name, got[name], want)
		}
		delete(got, name)
	}
	for name := range got {
		t.Errorf("%s is not in %s: run with -update", name, path)
	}
}

// turns lists the figures at which an answer changes, each with the answer from there on.
func turns(at func(n int64) string) string {
	list := []int64{0, 1, 2, 3, 5, 10, 30, 100, 300, 1000, 10_000, int64(event.MiB)}
	for n := int64(2 * event.MiB); n <= int64(64*event.TiB); n *= 4 {
		list = append(list, n)
	}
	var b strings.Builder
	before := at(list[0])
	fmt.Fprintf(&b, " %s", before)
	for i := 1; i < len(list); i++ {
		now := at(list[i])
		if now == before {
			continue
		}
		low, high := list[i-1], list[i]
		for high-low > 1 {
			if middle := low + (high-low)/2; at(middle) == before {
				low = middle
			} else {
				high = middle
			}
		}
		before = now
		fmt.Fprintf(&b, "; from %d %s", high, at(high))
	}
	return b.String()
}
