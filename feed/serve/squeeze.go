package serve

import (
	"context"
	"runtime/debug"
	"time"

	"memroom/event"
)

// Pressure describes how short of memory the host is.
type Pressure struct {
	High bool   // it is nearly used up
	Low  bool   // there is room again
	Why  string // such as "host memory of the cgroup at 118 MiB of 128 MiB"
}

// How the budget follows the pressure: down quickly, because a kill is near, and up slowly, because
// what frees memory for a moment often takes it again.
const (
	lookEvery   = 250 * time.Millisecond
	shrinkTo    = 0.75 // of what it was, at every look
	growBy      = 1.25
	calmEnough  = 5 * time.Second // of low pressure before it grows
	growPatient = time.Second     // between two steps up
)

// squeezed is how far the budget was lowered.
type squeezed struct {
	least event.Bytes // 0: never
	why   string
}

// follow lowers the budget while the host is short of memory, and raises it again.
func (s *Server) follow(ctx context.Context) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	var calm time.Time // since when there has been room; zero: there is none
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		now, p := time.Now(), s.config.Host()
		switch {
		case p.High:
			calm = time.Time{}
			s.shrink(p.Why)
		case !p.Low:
			calm = time.Time{}
		case calm.IsZero():
			calm = now
		case now.Sub(calm) >= calmEnough:
			calm = now.Add(growPatient - calmEnough)
			s.resize(min(int64(s.config.Budget), int64(growBy*float64(s.now.Load()))))
		}
	}
}

// shrink takes the next step down. It ends where one window of the orders that are read still fits:
// the order must not depend on the host.
func (s *Server) shrink(why string) {
	s.mu.Lock()
	floor := int64(float64(s.need)/rowsShare) + fixedReserve
	before := s.now.Load()
	to := max(int64(shrinkTo*float64(before)), floor)
	if to >= before {
		s.mu.Unlock()
		return
	}
	if s.squeezed.least == 0 || event.Bytes(to) < s.squeezed.least {
		s.squeezed = squeezed{event.Bytes(to), why}
	}
	s.mu.Unlock()
	s.resize(to)
	debug.FreeOSMemory() // others want the released memory now
}

// resize makes the budget so many bytes, at most what was asked for. Batches that are lent and a
// window that is being read go when they are given back.
func (s *Server) resize(to int64) {
	if s.now.Swap(to) == to {
		return
	}
	s.batches.resize(int64(float64(s.spare()) * batchesShare))
	s.opening.Lock()
	if s.open != nil {
		s.open.pool.Resize(int64(float64(s.spare()) * rowsShare))
	}
	s.opening.Unlock()
	s.setLimit()
}
