package plan

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"memroom/allocsim"
	"memroom/event"
)

const (
	goodHead = `{"format": "memroom-rehearsal", "version": 1, "torch": "2.11.0+cu130"}`
	goodEnd  = `{"end": {"reason": "steps", "error": null, "steps": 3, "facts": {"cudnn": true}, "warnings": [{"text": "odd", "count": 2}, {"text": "once", "count": 1}]}}`
)

func record(lines ...string) string { return strings.Join(lines, "\n") + "\n" }

func TestReadRehearsal(t *testing.T) {
	r, err := ReadRehearsal(strings.NewReader(record(goodHead,
		`["t",1,"weights","_to_copy","layers.0"]`, `["a",7,1000,1]`, `["m",0,"forward"]`, `["t",2,"temporary","mm",""]`, `["a",8,512,2,3]`,
		`["f",8]`, `["e"]`, goodEnd)))
	if err != nil {
		t.Fatal(err)
	}
	want := &Rehearsal{Torch: "2.11.0+cu130", Reason: "steps", Steps: 3,
		Warnings: []string{"odd (2 times)", "once"}, UsesDNN: true,
		Timeline: event.Timeline{
			Tags: []event.Tag{{}, {Category: event.CategoryWeights, Op: "_to_copy",
				Module: "layers.0"}, {Category: event.CategoryTemporary, Op: "mm"}},
			Ops: []event.Op{{Kind: event.OpAlloc, Size: 1000, ID: 0, Tag: 1},
				{Kind: event.OpAlloc, Size: 512, ID: 1, Tag: 2, Stream: 3},
				{Kind: event.OpFree, ID: 1}, {Kind: event.OpEmptyCache}},
			Marks: []event.Mark{{At: 1, Phase: "forward"}},
		}}
	if diff := cmp.Diff(want, r); diff != "" {
		t.Error(diff)
	}
}

// TestPictureHoldsThePeak: what is drawn is the step with the highest peak, and not what the script
// did after its last one.
func TestPictureHoldsThePeak(t *testing.T) {
	r, err := ReadRehearsal(strings.NewReader(record(goodHead, `["a",1,1000,0]`, `["m",0,"forward"]`, `["a",2,1000,0]`, `["f",2]`, `["m",1,"optimizer"]`,
		`["m",1,"forward"]`, `["a",3,9000,0]`, `["m",1,"backward"]`, `["f",3]`, `["m",2,"optimizer"]`, `["m",2,"forward"]`, `["a",4,9000,0]`, `["f",4]`,
		`["m",3,"optimizer"]`, `["a",5,10,0]`, goodEnd)))
	if err != nil {
		t.Fatal(err)
	}
	p, err := r.Predict(Target{Card: DefaultCard(), Alloc: allocsim.DefaultConfig(), Torch: "2.11"})
	if err != nil {
		t.Fatal(err)
	}
	want := []SeriesPoint{{5, 10000, "forward"}, {6, 1000, "forward"}}
	if diff := cmp.Diff(want, p.Series); diff != "" {
		t.Error(diff)
	}
}

func TestReadRehearsalRefuses(t *testing.T) {
	for name, c := range map[string]struct{ text, says string }{
		"empty":         {"", "breaks off"},
		"another file":  {"hello\n", "not a record"},
		"odd allocator": {`{"format": "memroom-rehearsal", "version": 1, "allocator": "x"}` + "\n", "unknown allocator"},
		"later version": {`{"format": "memroom-rehearsal", "version": 9}` + "\n", "version 9"},
		"cut off":       {record(goodHead, `["a",1,100,0]`), "breaks off after 2 lines"},
		"half a line":   {record(goodHead, `["a",1,`), "line 2: not an event"},
		"made twice":    {record(goodHead, `["a",1,100,0]`, `["a",1,100,0]`, goodEnd), "line 3: allocation 1 is made twice"},
		"never made": {record(goodHead, `["f",4]`, goodEnd), "allocation 4 is freed without being " +
			"live"},
		"freed twice":    {record(goodHead, `["a",1,100,0]`, `["f",1]`, `["f",1]`, goodEnd), "line 4"},
		"negative":       {record(goodHead, `["a",1,-100,0]`, goodEnd), "impossible size -100"},
		"gigantic":       {record(goodHead, `["a",1,9223372036854775807,0]`, goodEnd), "impossible size"},
		"not a number":   {record(goodHead, `["a","x",1,0]`, goodEnd), "field 2 is not a whole number"},
		"too short":      {record(goodHead, `["a",1]`, goodEnd), "number 3 is missing"},
		"larger, gone":   {record(goodHead, `["a",1,100,0]`, `["f",1]`, `["w",1,5]`, goodEnd), "line 4"},
		"larger, hollow": {record(goodHead, `["a",1,100,0]`, `["w",1,0]`, goodEnd), "cannot be 0 bytes"},
		"odd kind":       {record(goodHead, `["z",1]`, goodEnd), "unknown kind"},
		"odd stream":     {record(goodHead, `["a",1,100,0,-2]`, goodEnd), "no stream number"},
		"after the end":  {record(goodHead, goodEnd, `["e"]`), "something follows the end"},
		"tag of numbers": {record(goodHead, `["t",1,2,3,4]`, goodEnd), "a tag needs"},
	} {
		_, err := ReadRehearsal(strings.NewReader(c.text))
		if err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: error %v, want it to say %q", name, err, c.says)
		}
	}
}

// rehearsal makes one with two tensors of a gibibyte and a convolution's workspace between them.
func rehearsalOf(estimated bool) *Rehearsal {
	return &Rehearsal{Torch: "2.11.0", Reason: "steps", Steps: 3, Estimated: estimated,
		Conv: estimated, Timeline: event.Timeline{
			Tags: []event.Tag{{}, {Category: event.CategoryWorkspace, Op: "convolution"}},
			Ops: []event.Op{{Kind: event.OpAlloc, Size: 1 << 30, ID: 0},
				{Kind: event.OpAlloc, Size: 1 << 30, ID: 1, Tag: 1}, {Kind: event.OpFree, ID: 1},
				{Kind: event.OpAlloc, Size: 1 << 30, ID: 2}},
			Marks: []event.Mark{{Phase: "forward"}},
		}}
}

func TestRehearsalPredicts(t *testing.T) {
	target := Target{Card: DefaultCard(), Alloc: allocsim.DefaultConfig(), Torch: "2.11"}
	p, err := rehearsalOf(false).Predict(target)
	if err != nil {
		t.Fatal(err)
	}
	if p.ReservedPeak != 2*event.GiB || p.DevicePeak != p.ReservedPeak+target.Card.Context ||
		p.Method != "rehearsal" || p.Phase != "forward" || p.Fits != nil {
		t.Errorf("prediction %+v", p)
	}
	spread, err := rehearsalOf(true).Predict(target)
	if err != nil {
		t.Fatal(err)
	}
	if spread.Low >= p.Low || spread.High <= p.High || len(spread.Warnings) == 0 {
		t.Errorf("estimated workspaces do not widen %s..%s: %s..%s, warnings %q", p.Low, p.High,
			spread.Low, spread.High, spread.Warnings)
	}
}

// TestWorkspacesThatMayBeLarger: they move the upper end of the interval and nothing else, as far
// as there is room.
func TestWorkspacesThatMayBeLarger(t *testing.T) {
	target := Target{Card: DefaultCard(), Alloc: allocsim.DefaultConfig(), Torch: "2.11"}
	capped := target
	capped.AllocLimit = 4 * event.GiB
	for _, c := range []struct {
		target Target
		high   event.Bytes
	}{{target, 6 * event.GiB}, {capped, 4 * event.GiB}} {
		p, err := rehearsalOf(true).Predict(c.target)
		if err != nil {
			t.Fatal(err)
		}
		r := rehearsalOf(true)
		r.Larger = map[int32]int64{1: 5 << 30}
		more, err := r.Predict(c.target)
		if err != nil {
			t.Fatal(err)
		}
		high := c.high + c.target.Card.Context
		if more.High < high || float64(more.High) > 1.02*float64(high) ||
			!strings.Contains(more.Warnings[len(more.Warnings)-1], "workspaces of up to 5GiB") {
			t.Errorf("upper end %s, want %s; %q", more.High, high, more.Warnings)
		}
		more.High, more.Warnings = p.High, p.Warnings
		if diff := cmp.Diff(p, more); diff != "" {
			t.Error(diff)
		}
	}
}

// TestGrowthAfterThePeak: what finds no place after the first step of the largest size is in the
// figure, and not in the lower end.
func TestGrowthAfterThePeak(t *testing.T) {
	r := rehearsalOf(false)
	alloc := func(id int32, mib int64) event.Op {
		return event.Op{Kind: event.OpAlloc, ID: id, Size: mib << 20}
	}
	free := func(id int32) event.Op { return event.Op{Kind: event.OpFree, ID: id} }
	r.Timeline.Ops = []event.Op{alloc(0, 1024), free(0), alloc(1, 600), alloc(2, 300), free(1),
		alloc(3, 700)}
	r.Timeline.Marks = []event.Mark{{Phase: "forward"}, {At: 2, Phase: "eval"}}
	card := DefaultCard()
	p, err := r.Predict(Target{Card: card, Alloc: allocsim.DefaultConfig(), Torch: "2.11"})
	if err != nil {
		t.Fatal(err)
	}
	low := scaleBytes(1024*event.MiB+card.Context, 1-rehearsalMargins.below)
	if p.ReservedPeak != 1724*event.MiB || p.Low != low || p.High < p.DevicePeak {
		t.Errorf("reserved %s, from %s to %s; want it from %s", p.ReservedPeak, p.Low, p.High, low)
	}
}

func TestRehearsalFits(t *testing.T) {
	for size, want := range map[string]bool{"2GiB": false, "3.5GiB": true, "80GiB": true} {
		card, err := FindCard(size)
		if err != nil {
			t.Fatal(err)
		}
		p, err := rehearsalOf(false).Predict(Target{Card: card, Given: true,
			Alloc: allocsim.DefaultConfig(), Torch: "2.11"})
		if err != nil {
			t.Fatal(err)
		}
		if p.Fits == nil || *p.Fits != want {
			t.Errorf("on %s: fits %v, want %v", size, p.Fits, want)
		}
	}
	p, err := rehearsalOf(false).Predict(Target{Card: DefaultCard(), AllocLimit: 2 * event.GiB,
		Alloc: allocsim.DefaultConfig(), Torch: "2.11"})
	if err != nil || p.Fits == nil || !*p.Fits {
		t.Errorf("under a cap of exactly what is reserved: %v, %v", p.Fits, err)
	}
}

func TestRehearsalSaysWhyItCannot(t *testing.T) {
	for says, r := range map[string]*Rehearsal{
		"never imported torch": {},
		"put nothing":          {Torch: "2.11"},
		"trains with JAX":      {Torch: "2.11", Other: "JAX"},
		"4 ranks":              {Torch: "2.11", Error: "the command starts 4 ranks"},
		"before its first": {Torch: "2.11",
			Timeline: event.Timeline{Ops: []event.Op{{Kind: event.OpAlloc, Size: 1}}}},
	} {
		if _, err := r.Predict(Target{Card: DefaultCard()}); err == nil ||
			!strings.Contains(err.Error(), says) {
			t.Errorf("error %v, want it to say %q", err, says)
		}
	}
}

// batchOf is a rehearsal whose activations take 100 MiB a sample.
func batchOf(n int64) *Rehearsal {
	r := rehearsalOf(false)
	r.Timeline.Ops[1].Size = 64 << 20
	r.Timeline.Ops[3].Size = n * 100 << 20
	return r
}

func TestRehearsalFindsTheLargestBatch(t *testing.T) {
	for _, c := range []struct{ from, want int64 }{{1, 20}, {8, 20}, {20, 20}, {64, 20}} {
		tried := 0
		target := Target{Card: DefaultCard(), AllocLimit: 3 * event.GiB,
			Alloc: allocsim.DefaultConfig(), Torch: "2.11"}
		n, err := batchOf(c.from).Largest(target, c.from, 1000, func(n int64) (*Rehearsal, error) {
			tried++
			return batchOf(n), nil
		})
		if err != nil || n != c.want || tried > 6 {
			t.Errorf("from %d: %d after %d rehearsals (%v), want %d", c.from, n, tried, err, c.want)
		}
	}
}

func TestRehearsalDoesNotInventALargestBatch(t *testing.T) {
	target := Target{Card: DefaultCard(), AllocLimit: 3 * event.GiB,
		Alloc: allocsim.DefaultConfig(), Torch: "2.11"}
	_, err := batchOf(4).Largest(target, 4, 1000, func(int64) (*Rehearsal,
		error) {
		return batchOf(4), nil
	})
	if err == nil || !strings.Contains(err.Error(), "needs no more than at 4") {
		t.Errorf("error %v for a script that ignores its argument", err)
	}
	_, err = batchOf(4).Largest(target, 4, 1000, func(int64) (*Rehearsal,
		error) {
		return &Rehearsal{Torch: "2.11", Error: "it broke"}, nil
	})
	if err == nil || !strings.Contains(err.Error(), "it broke") {
		t.Errorf("error %v for a script that breaks", err)
	}
}

func TestRehearsalOfTensorFlowGoesThroughItsOwnAllocator(t *testing.T) {
	r := rehearsalOf(false)
	r.Allocator, r.Torch = allocatorBFC, ""
	for size, want := range map[string]bool{"2GiB": false, "80GiB": true} {
		card, err := FindCard(size)
		if err != nil {
			t.Fatal(err)
		}
		p, err := r.Predict(Target{Card: card, Given: true})
		if err != nil {
			t.Fatal(err)
		}
		if p.AllocatedPeak != 2*event.GiB || p.Validated || p.Fits == nil || *p.Fits != want ||
			p.Low >= p.DevicePeak || p.High <= p.DevicePeak && want {
			t.Errorf("on %s: %+v", size, p)
		}
	}
}
