package tape

import (
	"bufio"
	"encoding/json"
	"os"
	"slices"
	"testing"

	"memroom/event"
)

// readCases reads a file of testdata that has a case a line.
func readCases[T any](t *testing.T, name string) (list []T) {
	t.Helper()
	file, err := os.Open("testdata/" + name + ".jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		var c T
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			t.Fatal(err)
		}
		list = append(list, c)
	}
	return list
}

// TestReductionsAsInTheRehearsal: the rules for the scratch of reductions exist twice, here and in
// the rehearsal's Python (rehearse/reduction.py, which was checked against recordings). Both must
// match the file, which plan/pytests/test_reductions.py reads too.
func TestReductionsAsInTheRehearsal(t *testing.T) {
	type reduction struct {
		Shape, Strides []int64
		Dims           []int
		Scratch        [2]int64
	}
	checked := 0
	for _, c := range readCases[reduction](t, "reductions") {
		checked++
		g := New(Options{SMs: 132, SMThreads: 2048})
		tensor := g.newStrided(c.Shape, c.Strides, F32)
		reduced := make([]bool, len(c.Shape))
		for _, d := range c.Dims {
			reduced[d] = true
		}
		before := len(g.tl.Ops)
		g.reduceScratch(tensor, reduced)
		var got [2]int64
		sizes := requested(g.tl.Ops[before:])
		copy(got[:], sizes)
		if len(sizes) > 2 || got != c.Scratch {
			t.Errorf("%v, strides %v, over %v: %v, want %v", c.Shape, c.Strides, c.Dims, sizes,
				c.Scratch)
		}
	}
	if checked < 200 {
		t.Errorf("only %d reductions in the file", checked)
	}
}

// requested returns the sizes that were asked for, in order.
func requested(ops []event.Op) []int64 {
	var sizes []int64
	for _, op := range ops {
		if op.Kind == event.OpAlloc {
			sizes = append(sizes, int64(op.Size))
		}
	}
	return slices.Clip(sizes)
}

// TestSizesOfPools: known answers of PyTorch for nn.MaxPool2d with ceil_mode.
func TestSizesOfPools(t *testing.T) {
	for _, c := range []struct{ n, kernel, stride, want int64 }{
		{7, 3, 2, 3}, {8, 3, 2, 4}, {9, 3, 2, 4}, {5, 2, 2, 3}, {4, 2, 2, 2}, {3, 3, 3, 1}, {4, 3, 3, 2},
		{3, 2, 3, 1}, {2, 3, 2, 1},
	} {
		g := New(Options{})
		x := g.Fresh("x", F32, 1, 1, c.n, c.n)
		if got := g.MaxPoolCeil(x, c.kernel, c.stride).Shape[2]; got != c.want {
			t.Errorf("%d pixels, windows of %d every %d: %d, want %d", c.n, c.kernel, c.stride, got,
				c.want)
		}
	}
}
