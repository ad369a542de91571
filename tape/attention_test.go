package tape

import (
	"testing"

	"memroom/event"
)

// TestFlashAttentionRoundsRowsTo128: the backward of FlashAttention-2 sums over blocks of 128
// queries, so that its scratch has a multiple of 128 rows, however short the sequence.
func TestFlashAttentionRoundsRowsTo128(t *testing.T) {
	for _, c := range []struct{ seq, rows int64 }{{64, 128}, {128, 128}, {129, 256}, {192, 256}} {
		g := New(Options{SMs: 108, SMThreads: 2048, Training: true})
		root := NewModule()
		w := root.Param("weight", 1, 4, c.seq, 32)
		g.Load(root, BF16)
		loss := g.Sum(g.SDPA(w.Tensor, w.Tensor, w.Tensor, nil, 0, true), false, 0, 1, 2, 3)
		g.Backward(loss)
		found := map[int64]bool{}
		for _, op := range g.Timeline().Ops {
			if op.Kind == event.OpAlloc {
				found[op.Size] = true
			}
		}
		if sums, acc := 4*4*c.rows, 4*c.rows*4*32; !found[sums] || !found[acc] {
			t.Errorf("%d tokens: no scratch of %d and %d bytes in %v", c.seq, sums, acc, found)
		}
	}
}
