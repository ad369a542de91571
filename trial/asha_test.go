package trial

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"sort"
	"strings"
	"testing"

	"memroom/testenv"
)

// referenceASHA is the rule written down as plainly as possible: a list of values a rung.
type referenceASHA struct {
	milestones []int
	values     map[int][]float64
	seen       map[[2]int]bool
	factor     int
	maxT       int
}

func (r *referenceASHA) report(trial, t int, value float64) Decision {
	if t >= r.maxT {
		return StopDone
	}
	for i := len(r.milestones) - 1; i >= 0; i-- {
		m := r.milestones[i]
		if t < m || r.seen[[2]int{trial, m}] {
			continue
		}
		r.seen[[2]int{trial, m}] = true
		before := append([]float64{}, r.values[m]...)
		r.values[m] = append(r.values[m], value)
		if len(before) == 0 {
			return GoOn
		}
		sort.Float64s(before)
		at := (1 - 1/float64(r.factor)) * float64(len(before)-1)
		low := int(at)
		cut := before[low]
		if low+1 < len(before) {
			cut += (at - float64(low)) * (before[low+1] - before[low])
		}
		if value < cut {
			return StopEarly
		}
		return GoOn
	}
	return GoOn
}

type ashaCase struct {
	Grace, MaxT, Factor int
	Reports             [][3]float64 // trial, t, value
}

// ashaCases are random interleavings of trials that report.
func ashaCases(n int) []ashaCase {
	source := rand.New(rand.NewPCG(1, 2))
	var cases []ashaCase
	for range n {
		c := ashaCase{Grace: 1 + source.IntN(5), Factor: 2 + source.IntN(3)}
		c.MaxT = c.Grace + source.IntN(60)
		t := map[int]int{}
		for range 300 {
			id := source.IntN(20)
			t[id]++
			c.Reports = append(c.Reports, [3]float64{float64(id), float64(t[id]),
				source.Float64() + float64(id)/20})
		}
		cases = append(cases, c)
	}
	return cases
}

func TestASHAIsEqualToAPlainReference(t *testing.T) {
	for n, c := range ashaCases(200) {
		a := NewASHA(c.Grace, c.MaxT, c.Factor, false)
		r := &referenceASHA{values: map[int][]float64{}, seen: map[[2]int]bool{}, factor: c.Factor,
			maxT: c.MaxT}
		for m := c.Grace; m < c.MaxT; m *= c.Factor {
			r.milestones = append(r.milestones, m)
		}
		stopped := map[int]bool{}
		for i, x := range c.Reports {
			id, at := int(x[0]), int(x[1])
			if stopped[id] {
				continue
			}
			got, want := a.Report(id, at, x[2]), r.report(id, at, x[2])
			if got != want {
				t.Fatalf("case %d, report %d: %v, the reference says %v", n, i, got, want)
			}
			stopped[id] = got != GoOn
		}
	}
}

// TestASHAIsEqualToRays asks Ray's own scheduler for each decision.
func TestASHAIsEqualToRays(t *testing.T) {
	python := testenv.Python(t, "ray")
	cases := ashaCases(20)
	input, _ := json.Marshal(cases)
	script := `
import json, sys
try:
    from ray.tune.schedulers.async_hyperband import _Bracket
except ImportError:
    print("OTHER"); sys.exit()
class Trial:
    def __init__(self, i): self.trial_id = i
out = []
for c in json.load(sys.stdin):
    b = _Bracket(min_t=c["Grace"], max_t=c["MaxT"], reduction_factor=c["Factor"], s=0)
    row, stopped = [], set()
    for i, t, v in c["Reports"]:
        if i in stopped: continue
        d = "STOP" if t >= c["MaxT"] else b.on_result(Trial(i), t, v)
        row.append(d)
        if d == "STOP": stopped.add(i)
    out.append(row)
print("OUT" + json.dumps(out))
`
	out := testenv.Program{Python: python, Args: []string{"-c", script},
		Stdin: input}.MustAsk(t).Out
	if strings.TrimSpace(string(out)) == "OTHER" {
		testenv.Needs(t, "Ray's own bracket", "this Ray keeps it elsewhere")
	}
	var want [][]string
	text := string(out)
	if err := json.Unmarshal([]byte(text[len(text)-len(afterOUT(text)):]), &want); err != nil {
		t.Fatal(err)
	}
	for n, c := range cases {
		a := NewASHA(c.Grace, c.MaxT, c.Factor, false)
		stopped, at := map[int]bool{}, 0
		for _, x := range c.Reports {
			id := int(x[0])
			if stopped[id] {
				continue
			}
			got := a.Report(id, int(x[1]), x[2]) != GoOn
			if got != (want[n][at] == "STOP") {
				t.Fatalf("case %d, decision %d: stop is %v, Ray says %s", n, at, got, want[n][at])
			}
			stopped[id] = got
			at++
		}
	}
}

func afterOUT(text string) string {
	for i := range text {
		if len(text) > i+3 && text[i:i+3] == "OUT" {
			return text[i+3:]
		}
	}
	return fmt.Sprintf("no answer in %q", text)
}
