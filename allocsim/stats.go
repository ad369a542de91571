package allocsim

// Stat is one figure of torch.cuda.memory_stats.
type Stat struct {
	Current, Peak    int64
	Allocated, Freed int64 // sums of all increases and of all decreases
}

func (s *Stat) add(n int64) {
	s.Current += n
	s.Allocated += n
	if s.Current > s.Peak {
		s.Peak = s.Current
	}
}

func (s *Stat) sub(n int64) {
	s.Current -= n
	s.Freed += n
}

// change adds a positive n and subtracts a negative one.
func (s *Stat) change(n int64) {
	if n > 0 {
		s.add(n)
	} else if n < 0 {
		s.sub(-n)
	}
}

// PoolStats are the figures that memory_stats has once for all memory and once for each pool.
type PoolStats struct {
	Allocation         Stat // live allocations, until the call of free
	Segment            Stat // cudaMalloc'ed segments; expandable ones are not counted
	Active             Stat // blocks in use, until their free completed
	InactiveSplit      Stat // free blocks of split segments, expandable ones not counted
	AllocatedBytes     Stat // rounded bytes, until the call of free
	ReservedBytes      Stat
	ActiveBytes        Stat
	InactiveSplitBytes Stat
	RequestedBytes     Stat // as asked for, until the free completed
}

// Stats are the figures of torch.cuda.memory_stats.
type Stats struct {
	All, Small, Large   PoolStats
	OversizeAllocations Stat // blocks of max_split_size and above
	OversizeSegments    Stat
	AllocRetries        int64 // full flushes of the cache followed by another attempt
	OOMs                int64
	OOMRejections       int64
	SyncAllStreams      int64
	DeviceAllocs        int64 // cudaMalloc or map calls that succeeded
	DeviceFrees         int64
}
