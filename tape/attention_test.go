package tape

import (
	"slices"
	"testing"

	"memroom/event"
)

// TestEfficientAttentionAsInTheRehearsal: the workspace of the memory-efficient backward kernel is
// computed here and in the rehearsal's Python. The file was made by listing PyTorch's kernels in
// the order in which they are tried (its generate_kernels.py, kernel_backward.h and
// attention_backward.cu) and taking the first that fits. The rule that the rehearsal had before
// agrees with it where it was fitted: 128 per head in fp32, 256 in half precision, lengths that are
// multiples of 128.
func TestEfficientAttentionAsInTheRehearsal(t *testing.T) {
	type kernel struct {
		Half, Large bool
		Shape       [5]int64 // batch, heads, queries, keys, per head
		Bytes       int64
	}
	checked := 0
	for _, c := range readCases[kernel](t, "efficient_attention") {
		checked++
		if got := efficientWorkspace(c.Half, c.Large, c.Shape[0]*c.Shape[1], c.Shape[2], c.Shape[3],
			c.Shape[4]); got != c.Bytes {
			t.Errorf("%+v: %d", c, got)
		}
	}
	if checked < 200 {
		t.Errorf("only %d cases in the file", checked)
	}
}

// TestFusedAttentionAsInTheRehearsal: what the backward passes of FlashAttention-2 and cuDNN take.
// The file was made from a list of the sizes that they round up to, not by the formula here.
func TestFusedAttentionAsInTheRehearsal(t *testing.T) {
	type kernel struct {
		Kernel  string
		Shape   [5]int64 // batch, heads, queries, keys, per head
		Grouped bool
		Bytes   []int64
	}
	checked := map[string]int{}
	for _, c := range readCases[kernel](t, "fused_attention") {
		heads, s, kv, d := c.Shape[0]*c.Shape[1], c.Shape[2], c.Shape[3], c.Shape[4]
		got := []int64{cudnnWorkspace(heads, s, kv, d, c.Grouped)}
		if c.Kernel == "flash" {
			sums, gradient := flashWorkspace(heads, s, d)
			got = []int64{sums, gradient}
		}
		if !slices.Equal(got, c.Bytes) {
			t.Errorf("%+v: %d", c, got)
		}
		checked[c.Kernel]++
	}
	if checked["flash"] < 200 || checked["cudnn"] < 100 {
		t.Errorf("only %v cases in the file", checked)
	}
}

// TestFlashAttentionRoundsLengthsTo128: cards before Hopper run FlashAttention-2, whose backward
// pass keeps a sum for every query and head and a gradient of the queries in fp32, both with the
// number of queries rounded up to 128 (mha_bwd in PyTorch's flash_api.cpp).
func TestFlashAttentionRoundsLengthsTo128(t *testing.T) {
	for queries, rounded := range map[int64]int64{1: 128, 100: 128, 128: 128, 129: 256, 330: 384} {
		const batch, heads, each = 2, 3, 64
		g := New(Options{Training: true})
		f := g.Enter()
		root := NewModule()
		var in [3]*Tensor
		for i, name := range []string{"q", "k", "v"} {
			in[i] = root.Param(name, batch, heads, queries, each).Tensor
		}
		g.Load(root, BF16)
		out := f.Keep(g.SDPA(in[0], in[1], in[2], nil, 0, true))
		before := len(g.Timeline().Ops)
		g.Backward(f.Keep(g.Mean(out, false, 0, 1, 2, 3)))
		asked := map[int64]bool{}
		for _, op := range g.Timeline().Ops[before:] {
			if op.Kind == event.OpAlloc {
				asked[op.Size] = true
			}
		}
		sums, gradient := 4*batch*heads*rounded, 4*batch*rounded*heads*each
		if !asked[sums] || !asked[gradient] {
			t.Errorf("%d queries: asked for %v, want %d and %d among it", queries, asked, sums,
				gradient)
		}
		f.Leave()
	}
}
