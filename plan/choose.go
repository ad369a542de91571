package plan

import (
	"cmp"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"

	"memroom/event"
)

// CardChoice is a setup's outcome on one card.
type CardChoice struct {
	Card     string      `json:"card"`
	Total    event.Bytes `json:"total"`
	Device   event.Bytes `json:"device_peak"`
	High     event.Bytes `json:"high"`
	Share    float64     `json:"share"` // of the card that device_peak is
	Fits     bool        `json:"fits"`
	Verdict  string      `json:"verdict"`
	MaxBatch int64       `json:"max_batch"`       // 0 where not even one sample fits
	Count    int         `json:"cards,omitempty"` // that share the batch and are enough, sharded by FSDP; 0 is unknown
	Price    float64     `json:"price,omitempty"` // of all of them, in the unit of the list
}

// cardCounts are the numbers of cards of a kind that are tried where one is not enough.
var cardCounts = []int{2, 4, 8}

// OnCards tries a setup on each card. The order is that of the cards.
func OnCards(s Setup, t Target, cards []Card) ([]CardChoice, error) {
	out := make([]CardChoice, len(cards))
	err := eachOf(len(cards), func(i int) (err error) {
		out[i], err = onCard(s, t, cards[i])
		return err
	})
	return out, err
}

func onCard(s Setup, t Target, card Card) (CardChoice, error) {
	t.Card, t.Given = card, true
	one := CardChoice{Card: card.Name, Total: card.Total}
	p, here, err := foresee(&s, &t)
	if err != nil {
		return one, err
	}
	one.Device, one.High, one.Verdict, one.Fits = p.DevicePeak, p.High, p.Verdict, here.fits
	one.Share = float64(p.DevicePeak) / float64(card.Total)
	one.MaxBatch = t.furthest(int64(s.Batch), here, maxBatchSize, func(n int64) *Setup {
		try := s
		try.Batch = int(n)
		return &try
	})
	if one.Fits {
		one.Count = max(1, s.Ranks)
		return one, nil
	}
	if s.Ranks > 1 || s.Shard != "" {
		return one, nil
	}
	for _, n := range cardCounts {
		try := s
		try.Ranks, try.Shard, try.Batch = n, "fsdp", (s.Batch+n-1)/n // the batch of all stays
		if p, err := predictOnly(try, t); err == nil && p.Fits != nil && *p.Fits {
			one.Count = n
			break
		}
	}
	return one, nil
}

// ByPrice puts the cheapest choices first: those with a price and enough cards, then the others as
// they were. Prices are for one card.
func ByPrice(list []CardChoice, prices map[string]float64) {
	for i := range list {
		list[i].Price = prices[list[i].Card] * float64(list[i].Count)
	}
	slices.SortStableFunc(list, func(a, b CardChoice) int {
		if (a.Price > 0) != (b.Price > 0) {
			return cmp.Compare(b.Price, a.Price)
		}
		return cmp.Compare(a.Price, b.Price)
	})
}

// SweepPoint is one setup of a sweep.
type SweepPoint struct {
	Batch  int         `json:"batch"`
	Seq    int         `json:"seq,omitempty"`
	Device event.Bytes `json:"device_peak"`
	Low    event.Bytes `json:"low"`
	High   event.Bytes `json:"high"`
	Fits   *bool       `json:"fits,omitempty"` // null without a card or a limit
}

// MostPoints bounds a sweep.
const MostPoints = 2000

// Sweep predicts every pair of a batch and a sequence, sequences outermost. A sequence of 0 leaves
// the setup's own.
func Sweep(s Setup, t Target, batches, seqs []int) ([]SweepPoint, error) {
	out := make([]SweepPoint, len(batches)*len(seqs))
	err := eachOf(len(out), func(i int) error {
		one := s
		one.Batch = batches[i%len(batches)]
		if seq := seqs[i/len(batches)]; seq > 0 {
			one.Seq = seq
		}
		p, err := predictOnly(one, t)
		if err != nil {
			return err
		}
		out[i] = SweepPoint{one.Batch, p.Setup.Seq, p.DevicePeak, p.Low, p.High, p.Fits}
		return nil
	})
	return out, err
}

// eachOf calls f with 0 to n-1 on all processors, and returns the first error. Timelines are
// short-lived and large: collecting them less often saves a third of the time.
func eachOf(n int, f func(i int) error) error {
	defer debug.SetGCPercent(debug.SetGCPercent(400))
	errs := make([]error, n)
	var work sync.WaitGroup
	next := make(chan int)
	for range min(n, runtime.GOMAXPROCS(0)) {
		work.Go(func() {
			for i := range next {
				errs[i] = f(i)
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	work.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
