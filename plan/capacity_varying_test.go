package plan

import (
	"testing"

	"memroom/event"
	"memroom/models"
	"memroom/remedy"
)

// TestLargestOfVaryingLengthsFitsInEveryOrder: the search asks one order of samples at a time; what
// it finds must fit in all of them, and a little more must not.
func TestLargestOfVaryingLengthsFitsInEveryOrder(t *testing.T) {
	c, err := models.Preset("gpt2")
	if err != nil {
		t.Fatal(err)
	}
	target := testTarget()
	target.AllocLimit = 16 * event.GiB
	for _, shortest := range []int{32, 700} {
		s := Setup{Model: c, Shortest: shortest, Setup: remedy.Setup{Batch: 4, Seq: 800}}
		p, err := Predict(s, target)
		if err != nil {
			t.Fatal(err)
		}
		full := s.WithDefaults()
		fits := func(batch int64) bool {
			full.Batch = int(batch)
			r, err := simulateAll(&full, &target)
			if err != nil || len(r.all) != lengthOrders {
				t.Fatal(err, len(r.all))
			}
			return target.judge(&full, r).fits
		}
		if n := *p.MaxBatch; n < 2 || !fits(n) || fits(n+2) {
			t.Errorf("from %d tokens: batch %d fits: %v, batch %d: %v", shortest, n, fits(n), n+2,
				fits(n+2))
		}
		if n := *p.MaxSeq; n < 800 || n > 1024 {
			t.Errorf("longest sequence %d", n)
		}
	}
}

// TestKeptLogitsGrowByOneBatchEach: every evaluation batch that is kept adds its logits, in an
// evaluation of two batches as in one of two hundred.
func TestKeptLogitsGrowByOneBatchEach(t *testing.T) {
	c, err := models.Preset("gpt2")
	if err != nil {
		t.Fatal(err)
	}
	peak := func(keep int) event.Bytes {
		p, err := Predict(Setup{Model: c, EvalBatch: 2, EvalKeep: keep,
			Setup: remedy.Setup{Batch: 1, Seq: 256}}, testTarget())
		if err != nil {
			t.Fatal(err)
		}
		return p.AllocatedPeak
	}
	const logits = 2 * 256 * 50257 * 2 // bf16, as autocast makes them
	at := peak(100)
	if got := peak(101) - at; got < logits || got > logits+event.MiB {
		t.Errorf("one batch more adds %s, its logits are %s", got, event.Bytes(logits))
	}
	if got := peak(200) - at; got < 100*logits || got > 100*logits+100*event.MiB {
		t.Errorf("a hundred batches more add %s", got)
	}
}
