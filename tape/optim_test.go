package tape

import (
	"math"
	"testing"

	"memroom/event"
)

// stepOf runs two steps of an optimizer on one parameter whose gradient exists. It returns the
// bytes that stay as state, and the highest sum of temporaries in the second step.
func stepOf(kind string, d DType, shape ...int64) (state, temps int64) {
	g := New(Options{SMs: 132, SMThreads: 2048})
	root := NewModule()
	p := root.Child("layer").Param("weight", shape...)
	g.Load(root, d)
	o := g.NewOptimizer(kind, root.Parameters())
	give := func() {
		p.Grad = g.New(p.Shape, d)
		p.Grad.floating = false
	}
	give()
	o.Step()
	o.ZeroGrad(false)
	give()
	from := len(g.tl.Ops)
	o.Step()
	live := map[int32]event.Op{}
	for _, op := range g.tl.Ops[:from] {
		if op.Kind == event.OpAlloc {
			live[op.ID] = op
		} else {
			delete(live, op.ID)
		}
	}
	for _, op := range live {
		if g.tl.Tags[op.Tag].Category == event.CategoryOptimizer {
			state += op.Size
		}
	}
	var now int64
	sizes := map[int32]int64{}
	for _, op := range g.tl.Ops[from:] {
		if op.Kind == event.OpAlloc {
			sizes[op.ID] = op.Size
			now += op.Size
		} else {
			now -= sizes[op.ID]
		}
		temps = max(temps, now)
	}
	return state, temps
}

// TestStateOfOptimizers: tensors of the parameter's size that torch.optim and bitsandbytes keep,
// and how many a step makes on top, as their sources do.
func TestStateOfOptimizers(t *testing.T) {
	const rows, cols = 1024, 512
	for kind, want := range map[string]struct{ state, temps float64 }{
		"adamw": {2, 1}, "adam": {2, 1}, "adamw_fused": {2, 0}, "adamw_loop": {2, 2},
		"adam_amsgrad": {3, 1}, "nadam": {2, 1}, "radam": {2, 1}, "adamax": {2, 1},
		"adagrad": {1, 2}, "adadelta": {2, 2}, "rmsprop": {1, 1}, "rmsprop_momentum": {2, 1},
		"sgd": {0, 0}, "sgd_wd": {0, 1}, "sgdm": {1, 0}, "sgdm_wd": {1, 1}, "sgdm_nesterov": {1, 0},
		"lion": {1, 1}, "adafactor": {0, 2}, "adamw8bit": {0.5, 0}, "lion8bit": {0.25, 0},
		"paged_adamw8bit": {0, 0}, "adam_wd": {2, 1},
	} {
		state, temps := stepOf(kind, F32, rows, cols)
		of := func(bytes int64) float64 { return float64(bytes) / (4 * rows * cols) }
		if math.Abs(of(state)-want.state) > 0.02 || math.Abs(of(temps)-want.temps) > 0.02 {
			t.Errorf("%s: %.3f of the parameter as state and %.3f as temporaries, want %g and %g",
				kind, of(state), of(temps), want.state, want.temps)
		}
	}
}

// TestStateBytesIsWhatIsMade: the formula that plans a host's memory agrees with what a step makes.
func TestStateBytesIsWhatIsMade(t *testing.T) {
	for _, kind := range OptimizerNames() {
		if optimKinds[kind].paged {
			continue // its state is in host memory
		}
		for _, shape := range [][]int64{{300}, {64, 63}, {64, 64}, {64, 65}, {777, 512}} {
			root := NewModule()
			root.Param("weight", shape...)
			made, _ := stepOf(kind, BF16, shape...)
			extra := int64(0) // counters and tables
			if k := optimKinds[kind]; k.step {
				extra = 4
			} else if k.bits8 {
				extra = int64(k.states) * 1024
			}
			if got := StateBytes(kind, root.Parameters(), BF16); got != made-extra {
				t.Errorf("%s on %v: %d bytes by the formula, %d made", kind, shape, got, made-extra)
			}
		}
	}
}

// TestSmallTensorsStayInFP32: bitsandbytes keeps the state of tensors below 4096 elements in fp32.
func TestSmallTensorsStayInFP32(t *testing.T) {
	const table = 2 * 1024
	if state, _ := stepOf("adamw8bit", F32, 4095); state-table != 2*4*4095 {
		t.Errorf("4095 elements: %d bytes", state-table)
	}
	if state, _ := stepOf("adamw8bit", F32, 4096); state-table != 2*(4096+4*16) {
		t.Errorf("4096 elements: %d bytes", state-table)
	}
	if state, _ := stepOf("paged_adamw8bit", F32, 99_999); state-table != 2*(99_999+4*391) {
		t.Errorf("99,999 elements are not paged: %d bytes", state-table)
	}
	if state, _ := stepOf("paged_adamw8bit", F32, 100_000); state-table != 2*4*391 {
		t.Errorf("100,000 elements are paged: %d bytes", state-table)
	}
}

// TestOptimizersOf32Bit: bitsandbytes keeps fp32 states for bf16 weights too, and pages large ones.
func TestOptimizersOf32Bit(t *testing.T) {
	const n = 512 * 1024
	for kind, want := range map[string]int64{"lion32bit": 4 * n, "adamw32bit": 8 * n,
		"rmsprop32bit": 4 * n, "paged_adamw32bit": 0, "paged_lion32bit": 0, "lion": 2 * n} {
		if state, _ := stepOf(kind, BF16, 512, 1024); state != want {
			t.Errorf("%s on bf16 weights: %d bytes of state, want %d", kind, state, want)
		}
	}
	if state, _ := stepOf("paged_adamw32bit", BF16, 99_999); state != 8*99_999 {
		t.Errorf("99,999 elements are not paged: %d bytes", state)
	}
}

func TestTrainersNamesOfOptimizers(t *testing.T) {
	for name, want := range map[string]string{"adamw_torch_fused": "adamw_fused",
		"lion_32bit": "lion32bit", "paged_adamw_32bit": "paged_adamw32bit",
		"paged_adamw_8bit": "paged_adamw8bit", "adamw_bnb_8bit": "adamw8bit", "sgd": "sgd"} {
		if got := OptimizerName(name); got != want || KnownOptimizer(got) != nil {
			t.Errorf("%s is %s", name, got)
		}
	}
}
