package probe

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"memroom/event"
	"memroom/testenv"
)

func script(t *testing.T, name string) string {
	t.Helper()
	return filepath.Join(testenv.Root(t), "probe", "testdata", "scripts", name)
}

// bare runs a script without the probe and returns its output.
func bare(t *testing.T, python string, args ...string) string {
	t.Helper()
	out, _ := bareBoth(t, python, args...)
	return out
}

// bareBoth is bare with what the script wrote on stderr.
func bareBoth(t *testing.T, python string, args ...string) (out, errs string) {
	t.Helper()
	a := testenv.Program{Python: python, Args: args,
		Env: []string{"OMP_NUM_THREADS=1", "TF_CPP_MIN_LOG_LEVEL=3"}}.MustAsk(t)
	return string(a.Out), string(a.Err)
}

// allRows returns the steps of a job and checks that they are in order.
func allRows(t *testing.T, j job) []event.Step {
	t.Helper()
	var rows []event.Step
	for _, m := range messages[*Steps](t, j) {
		rows = append(rows, m.Rows...)
	}
	for i := 1; i < len(rows); i++ {
		if rows[i].Step <= rows[i-1].Step {
			t.Errorf("step %d after step %d", rows[i].Step, rows[i-1].Step)
		}
	}
	return rows
}

func TestTorchLoop(t *testing.T) {
	t.Parallel()
	python := testenv.Python(t, "torch")
	j := runJob(t, python, Setup{}, nil, script(t, "torch_loop.py"), "30")
	if j.failed != nil {
		t.Fatalf("%v\n%s", j.failed, j.err)
	}
	if want := bare(t, python, script(t, "torch_loop.py"), "30"); j.out != want {
		t.Errorf("the losses differ with the probe:\n%s\nwithout:\n%s", j.out, want)
	}
	rows := allRows(t, j)
	if len(rows) == 0 || rows[len(rows)-1].Step > 30 {
		t.Fatalf("%d rows: %+v", len(rows), rows)
	}
	for i, r := range rows {
		if i == len(rows)-1 && r.MicroBatches == 0 {
			// hooks were resting when the program ended: the last row has the memory, not the times
			continue
		}
		if r.Device != event.HostDevice || r.MicroBatches != 2 || r.Resident < 50*event.MiB ||
			r.Anonymous > r.Resident {
			t.Errorf("row %+v", r)
		}
		if r.Duration <= 0 || r.Backward <= 0 || r.Optimizer <= 0 || r.Wait <= 0 ||
			r.Backward+r.Optimizer+r.Wait > r.Duration {
			t.Errorf("times of %+v", r)
		}
	}
	var phases []string
	for _, p := range messages[*Phase](t, j) {
		phases = append(phases, p.Phase+map[bool]string{true: "+", false: "-"}[p.Begin])
	}
	if got := strings.Join(phases, " "); got != "eval+ save+ save- eval-" {
		t.Errorf("phases %q", got)
	}
	accounts := messages[*Account](t, j)
	// weights: 32*64+64 + 64*4+4 and the frozen 16*16+16, in float32; gradients are zeroed or not;
	// two moments and a counter each
	if len(accounts) == 0 || accounts[0].Weights != 4*(32*64+64+64*4+4+16*16+16) ||
		accounts[0].Optimizer != 4*2*(32*64+64+64*4+4)+4*4 ||
		accounts[0].Device != event.HostDevice {
		t.Errorf("accounts %+v", accounts)
	}
}

// TestTorchSteps: what counts as a step when there are several optimizers, and in a loop compiled
// by dynamo.
func TestTorchSteps(t *testing.T) {
	python := testenv.Python(t, "torch")
	warm := testenv.Warm(t, python, "torch", "torch._dynamo")
	const gan = `import torch
a, b = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
oa, ob = torch.optim.SGD(a.parameters(), 0.1), torch.optim.Adam(b.parameters())
for i in range(12):
    for m, o in ((a, oa), (b, ob)):
        o.zero_grad(); m(torch.ones(2, 4)).sum().backward(); o.step()
`
	const each = `import torch
m = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(20)])
os = [torch.optim.SGD([p], 0.1) for p in m.parameters()]
for i in range(12):
    m(torch.ones(2, 4)).sum().backward()
    for o in os: o.step(); o.zero_grad()
`
	const scaler = `import torch
m = torch.nn.Linear(4, 4)
o = torch.optim.SGD(m.parameters(), 0.1)
s = torch.amp.GradScaler("cpu", init_scale=2.0**30)
for i in range(14):
    loss = m(torch.ones(2, 4)).sum() * (float("inf") if i in (3, 8) else 1)
    o.zero_grad(); s.scale(loss).backward(); s.step(o); s.update()
`
	const stages = `import torch
for stage in range(2):
    m = torch.nn.Linear(4, 4)
    o = torch.optim.SGD(m.parameters(), 0.1)
    for i in range(8):
        o.zero_grad(); m(torch.ones(2, 4)).sum().backward(); o.step()
`
	const compiled = `import torch
torch.manual_seed(1)
m = torch.nn.Linear(4, 4)
o = torch.optim.SGD(m.parameters(), 0.1)
f = torch.compile(m, backend="eager", fullgraph=True)
for i in range(12):
    o.zero_grad(); f(torch.ones(2, 4)).sum().backward(); o.step()
step = torch.compile(lambda: o.step(), backend="eager")
f(torch.ones(2, 4)).sum().backward(); step()
print(m.weight.sum().item().hex())
`
	for name, c := range map[string]struct {
		code      string
		min, max  int64
		sameWords bool
	}{"gan": {gan, 12, 12, false}, "one each": {each, 12, 12, false},
		"skipped": {scaler, 12, 12, false}, "stages": {stages, 14, 16, false},
		"compiled": {compiled, 12, 13, true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "steps.py")
			if err := os.WriteFile(path, []byte(c.code), 0o600); err != nil {
				t.Fatal(err)
			}
			j := runJob(t, warm, Setup{}, nil, path)
			if j.failed != nil {
				t.Fatalf("%v\n%s", j.failed, j.err)
			}
			rows := allRows(t, j)
			if len(rows) == 0 || rows[len(rows)-1].Step < c.min || rows[len(rows)-1].Step > c.max {
				t.Errorf("%d rows, the last %+v; want %d to %d steps", len(rows),
					rows[max(0, len(rows)-1):], c.min, c.max)
			}
			if c.sameWords && j.out != bare(t, python, "-c", c.code) {
				t.Errorf("printed %q", j.out)
			}
		})
	}
}

// TestStepsByHand: a program that updates its parameters without an optimizer trains, and its steps
// are seen, the last one apart. One that only asks for gradients makes none.
func TestStepsByHand(t *testing.T) {
	t.Parallel()
	python := testenv.Python(t, "torch")
	for way, least := range map[string]int64{"zero first": 27, "old style, accumulated": 20,
		"functional": 27, "gradients only": 0, "inputs only": 0} {
		j := runJob(t, python, Setup{}, nil, script(t, "by_hand.py"), way)
		if j.failed != nil {
			t.Fatalf("%s: %v\n%s", way, j.failed, j.err)
		}
		if want := bare(t, python, script(t, "by_hand.py"), way); j.out != want {
			t.Errorf("%s: the losses differ with the probe:\n%s\nwithout:\n%s", way, j.out, want)
		}
		for _, f := range messages[*Fault](t, j) {
			t.Errorf("%s: %+v", way, f)
		}
		last := int64(0)
		if rows := allRows(t, j); len(rows) > 0 {
			last = rows[len(rows)-1].Step
		}
		if last < least || last > 30 || least == 0 && last > 0 {
			t.Errorf("%s: %d steps were seen, want %d to 30", way, last, least)
		}
	}
}

// TestGovernor: a part that costs 2 ms a step is given up after 50 ms and named, the rest goes on,
// and all of it is in the account.
func TestGovernor(t *testing.T) {
	t.Parallel()
	python := testenv.Python(t, "torch")
	j := runJob(t, python, Setup{}, nil, script(t, "dear.py"))
	if j.failed != nil {
		t.Fatalf("%v\n%s", j.failed, j.err)
	}
	var times, took, counted int64
	if _, err := fmt.Sscan(j.out, &times, &took, &counted); err != nil {
		t.Fatalf("%q: %v", j.out, err)
	}
	if times < 40 || times > 60 {
		t.Errorf("it was done %d times at 2 ms each, want 50 ms in two windows", times)
	}
	if counted < took {
		t.Errorf("%d ns in the account, of which the part alone took %d", counted, took)
	}
	up := messages[*GivenUp](t, j)
	if len(up) != 1 || up[0].Part != "made up" || up[0].Share < 0.005 {
		t.Errorf("told %+v", up)
	}
	if rows := allRows(t, j); len(rows) == 0 || rows[len(rows)-1].Step != 120 {
		t.Errorf("the steps go on: %v", rows)
	}
}
