package supervise

import (
	"fmt"
	"time"

	"memroom/diagnose"
	"memroom/event"
	"memroom/probe"
)

// relief returns unused cache to a card that is full: only where that helps. A process alone on
// its card empties its cache by itself when it must; memory that it hoards is in the way of others:
// further ranks, libraries, neighbours.
type relief struct {
	record *record
	judge  *judge
	hearer *hearer

	given time.Time // when caches were last emptied
}

func (r *relief) check(now time.Time, s event.Sample) {
	const pause = time.Minute
	if len(s.Devices) == 0 || now.Sub(r.given) < pause || len(r.hearer.speaking) == 0 {
		return
	}
	accounts := r.judge.accounts()
	for _, d := range s.Devices {
		cache := unusedCache(accounts[d.UUID])
		if !worthEmptying(d, cache, len(r.hearer.speaking)) {
			continue
		}
		r.given = now
		r.hearer.askAll(probe.Command{Do: probe.DoCollect}, probe.Command{Do: probe.DoEmptyCache})
		r.record.happened(event.Happened{Kind: "action",
			Text: fmt.Sprintf("%s is full (%s) and the run holds %s of unused cache on it: caches are "+
				"emptied", d.Name, d.Used.Of(d.Total), cache)})
	}
}

func unusedCache(account diagnose.Account) (cache event.Bytes) {
	for _, line := range account.Lines {
		if line.Name == diagnose.LineCache {
			cache = line.Bytes
		}
	}
	return cache
}

// worthEmptying: the card is full, somebody else could use what is freed, and it is a noticeable
// part of the card.
func worthEmptying(d event.DeviceSample, cache event.Bytes, probes int) bool {
	const full, worth = 0.97, 0.05
	shared := probes > 1 || d.Others > 0
	return shared && float64(d.Used) >= full*float64(d.Total) &&
		float64(cache) >= worth*float64(d.Total)
}
