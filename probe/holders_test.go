package probe

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"memroom/testenv"
)

// keepers is a program that keeps tensors in many ways, one after the other. It asks the probe as
// the monitor would, before and after each, so that the moment is fixed.
const keepers = `import collections, functools, torch, weakref
from types import SimpleNamespace
from _memroom_probe.watch.watched import watched

class Meter:
    seen = []
    def __init__(self):
        self.values = []

class Slots:
    __slots__ = ("kept",)

model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
weight = torch.ones(3, requires_grad=True)
kept, cache = [], {}

def block():
    return torch.ones(100, 100)

def global_list():
    watched.heap.tell({})
    for _ in range(20):
        kept.append(block())
    watched.heap.tell({})

def local_list():
    history = []
    watched.heap.tell({})
    for i in range(20):
        history.append((i, block()))
    watched.heap.tell({})

def attribute():
    trainer = SimpleNamespace(meters={"loss": Meter()})
    watched.heap.tell({})
    for _ in range(20):
        trainer.meters["loss"].values.append(block())
    watched.heap.tell({})

def class_attribute():
    watched.heap.tell({})
    for _ in range(20):
        Meter.seen.append(block())
    watched.heap.tell({})

def dictionary():
    watched.heap.tell({})
    for i in range(20):
        cache[i] = block()
    watched.heap.tell({})

def ring():
    window = collections.deque()
    watched.heap.tell({})
    for _ in range(20):
        window.appendleft({"x": block()})
    watched.heap.tell({})

def closure():
    def make():
        acts = []
        def keep(module, args, output):
            acts.append(block())
        return keep
    handle = model[0].register_forward_hook(make())
    watched.heap.tell({})
    for _ in range(20):
        model(torch.ones(2, 4))
    watched.heap.tell({})
    handle.remove()

def grows():
    buffer = torch.zeros(0, 100)
    watched.heap.tell({})
    for _ in range(20):
        buffer = torch.cat([buffer, block()])
    watched.heap.tell({})

def views():
    rows = []
    watched.heap.tell({})
    for _ in range(20):
        rows.append(block()[0])
    watched.heap.tell({})

def slots():
    thing = Slots()
    thing.kept = []
    watched.heap.tell({})
    for _ in range(20):
        thing.kept.append(block())
    watched.heap.tell({})

@functools.lru_cache(maxsize=None)
def loaded(i):
    return block()

def memo():
    watched.heap.tell({})
    for i in range(20):
        loaded(i)
    watched.heap.tell({})

def graph():
    total = (weight * 1).sum()
    watched.heap.tell({})
    for i in range(20):
        fresh = (weight * i).sum()
        total = total + fresh
    watched.heap.tell({})

def sawtooth():
    loss_sum = (weight * 1).sum()
    watched.heap.tell({})
    for i in range(20):
        loss_sum += (weight * i).sum()
        if i > 0 and i % 100 == 0:
            print(loss_sum.item())
            loss_sum = 0
    watched.heap.tell({})

def once_an_epoch():
    loss_sum = (weight * 1).sum()
    watched.heap.tell({})
    for epoch in range(1):
        for i in range(20):
            loss_sum = loss_sum + (weight * i).sum()
            if i < 0:
                loss_sum = loss_sum + 0
        if epoch % 2:
            loss_sum = 0
    watched.heap.tell({})

def two():
    total, history = (weight * 1).sum(), []
    watched.heap.tell({})
    for i in range(20):
        loss = (weight * i).sum()
        total = total + loss
        history.append(block())
    watched.heap.tell({})

def filled():
    full = collections.deque(maxlen=20)
    watched.heap.tell({})
    for _ in range(20):
        full.append(block())
    watched.heap.tell({})

def half_filled():
    half = collections.deque(maxlen=40)
    watched.heap.tell({})
    for _ in range(20):
        half.append(block())
    watched.heap.tell({})

@functools.lru_cache(maxsize=20)
def remembered(i):
    return block()

def bounded_memo():
    watched.heap.tell({})
    for i in range(20):
        remembered(i)
    watched.heap.tell({})

def nothing():
    latest = block()
    watched.heap.tell({})
    for _ in range(20):
        latest = block()
    watched.heap.tell({})

def under_keys():
    history = {"loss": [], "outputs": []}
    watched.heap.tell({})
    for i in range(20):
        history["loss"].append(i)
        history["outputs"].append(block())
    watched.heap.tell({})

SHAPES = [global_list, local_list, attribute, class_attribute, dictionary, ring, closure, grows,
          views, slots, memo, graph, sawtooth, once_an_epoch, two, filled, half_filled,
          bounded_memo, under_keys, nothing]
for shape in SHAPES:
    shape()

def lets_go():
    here, element = block(), [block()]
    refs = [weakref.ref(here), weakref.ref(element[0])]
    watched.heap.tell({})
    del here, element
    assert [r() for r in refs] == [None, None], "the look keeps what it saw"
    watched.heap.tell({})

def ours():
    optimizer = torch.optim.SGD([weight], lr=0.1)
    def asks(*args):
        if i in (0, 20):
            watched.heap.tell({})
    optimizer.register_step_pre_hook(asks)
    for i in range(21):
        optimizer.step()
        watched.torch._depth = [block() for _ in range(20)]

lets_go()
ours()
`

// TestHeapHolders: what grew is found with the variable that holds it and the line where it grows,
// wherever the program keeps it; what is made anew at each step is not. Looking keeps nothing
// alive.
func TestHeapHolders(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "keeps.py")
	if err := os.WriteFile(path, []byte(keepers), 0o600); err != nil {
		t.Fatal(err)
	}
	j := runJob(t, testenv.Python(t, "torch"), Setup{}, nil, path)
	if j.failed != nil {
		t.Fatalf("%v\n%s", j.failed, j.err)
	}
	told := messages[*Heap](t, j)
	for i, want := range []struct {
		names []string
		line  string // has it
		fills bool
	}{
		{[]string{"kept list of 20"}, "kept.append(", false},
		{[]string{"history list of 20"}, "history.append(", false},
		{[]string{`trainer.meters["loss"].values list of 20`}, ".values.append(", false},
		{[]string{"Meter.seen list of 20"}, "Meter.seen.append(", false},
		{[]string{"cache dict of 20"}, "cache[i] =", false},
		{[]string{"window deque of 20"}, "window.appendleft(", false},
		{[]string{"acts list of 20"}, "acts.append(", false},
		{[]string{"buffer tensor"}, "buffer = torch.cat(", false},
		{[]string{"rows list of 20"}, "rows.append(", false},
		{[]string{"thing.kept list of 20"}, "thing.kept.append(", false},
		{[]string{"loaded "}, "def loaded", false},
		{[]string{"total tensor"}, "total = total + fresh", false},
		{[]string{"loss_sum tensor, emptied at line 119"}, "loss_sum += (weight", true},
		{[]string{"loss_sum tensor"}, "loss_sum = loss_sum + (weight", false},
		{[]string{"history list of 20", "total tensor"}, "history.append(block())", false},
		{[]string{"full deque of 20"}, "full.append(", true},
		{[]string{"half deque of 20"}, "half.append(", true},
		{[]string{"remembered "}, "def remembered", true},
		{[]string{`history["outputs"] list of 20`}, `history["outputs"].append(`, false},
		{nil, "", false},
		{nil, "", false},
		{nil, "", false}, // what the probe itself keeps
	} {
		if 2*i+1 >= len(told) {
			t.Fatalf("%d messages\n%s", len(told), j.err)
		}
		held := told[2*i+1].Holders // the first count shows no growth yet
		var names []string
		for _, h := range held {
			names = append(names, h.Name+" "+h.Kind)
		}
		if fmt.Sprint(names) != fmt.Sprint(want.names) {
			t.Errorf("%q, want %q", names, want.names)
			continue
		}
		if len(held) > 0 {
			if held[0].Fills != want.fills {
				t.Errorf("%s: has an end: %v", names, held[0].Fills)
			}
			text := strings.Split(keepers, "\n")[max(0, held[0].Line-1)]
			if !strings.Contains(text, want.line) || !strings.Contains(held[0].Code, want.line) {
				t.Errorf("%s: line %d is %q, want %q", names, held[0].Line, text, want.line)
			}
		}
	}
}
