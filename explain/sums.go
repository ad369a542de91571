package explain

import (
	"slices"

	"memroom/event"
	"memroom/trace"
)

// Sums is the account of a full memory, and what follows from it. A size is 0 where the text does
// not say it.
type Sums struct {
	Asked, Capacity, Mine, Idle, Others, Free event.Bytes

	Beyond   float64        // the request as a multiple of the capacity, 0 unknown
	Alone    bool           // the request alone is more than the memory has
	HadRoom  bool           // more was free than was asked for
	Full     bool           // little but this process's live memory fills it
	Strange  event.Bytes    // held by nobody that the text lists
	Equal    []trace.Holder // others that hold about as much as each other
	OwnRanks bool           // these are ranks of the same job
	Launched []trace.Holder // others that were started one right after another
	OneSmall bool           // the request is small compared with what is held
	Named    *Card          // the card that the person means, where it is not this one
}

// sumsOf adds up the figures in the text.
func sumsOf(f *Facts) Sums {
	c := f.Crash
	s := Sums{Asked: value(c.Requested), Capacity: value(c.Capacity), Mine: value(c.Allocated),
		Idle: value(c.Idle), Others: neighbourBytes(c), Free: value(c.Free)}
	if c.Framework == "ray" {
		s.Others = 0
	}
	s.Beyond = timesCard(c)
	s.Alone = s.Beyond > 1
	s.HadRoom = c.Free != nil && s.Asked > 0 && s.Free > s.Asked+s.Asked/8 && !c.Capped
	s.Full = s.Capacity > 0 && float64(s.Mine) > 0.75*float64(s.Capacity)
	s.OneSmall = s.Asked > 0 && s.Capacity > 0 && 20*s.Asked < s.Capacity
	if s.Strange = unlisted(c) - ownElsewhere(c); s.Strange < 0 {
		s.Strange = 0
	}
	s.Equal = equalHolders(c.Neighbours)
	s.OwnRanks = len(s.Equal) >= 2 && onCard(c) && (f.World > 1 && len(s.Equal) <= f.World-1+2 ||
		c.Rank >= 0 || joinsRanks(c)) || len(s.Equal) == 1 && f.World == 2
	s.Launched = launchedTogether(c.Neighbours)
	s.Named = otherCard(f, s.Capacity)
	return s
}

func value(b *event.Bytes) event.Bytes {
	if b == nil {
		return 0
	}
	return *b
}

// alike is how far apart the sizes of two ranks of one job may be.
const alike = 0.15

// equalHolders returns the largest group of processes that hold about the same.
func equalHolders(all []trace.Holder) []trace.Holder {
	var best []trace.Holder
	for _, one := range all {
		var group []trace.Holder
		for _, other := range all {
			if d := float64(other.Bytes - one.Bytes); one.Bytes > 0 && max(d, -d) <= alike*float64(one.Bytes) {
				group = append(group, other)
			}
		}
		if len(group) > len(best) {
			best = group
		}
	}
	return best
}

// launchedTogether returns the others where their process numbers follow each other, as those of
// the ranks that one launcher starts.
func launchedTogether(all []trace.Holder) []trace.Holder {
	var pids []int64
	for _, h := range all {
		if h.PID < 1000 { // inside a container all numbers are small and near
			return nil
		}
		pids = append(pids, h.PID)
	}
	slices.Sort(pids)
	if len(pids) < 2 || pids[len(pids)-1]-pids[0] > int64(len(pids)) || pids[0] == pids[1] {
		return nil
	}
	return all
}

// otherCard returns the card that the person means, where every card that they name is far larger
// than the one that is full. Parts of a card (MIG, fractions) and caps are smaller on purpose.
func otherCard(f *Facts, capacity event.Bytes) *Card {
	c := f.Crash
	if capacity == 0 || c.Capped || c.Pooled || c.Where != event.WhereGPU || len(f.Cards) == 0 ||
		f.says("mig", "per_process_memory_fraction", "memory_limit") {
		return nil
	}
	least := slices.MinFunc(f.Cards, func(a, b Card) int { return int(a.Size>>20) - int(b.Size>>20) })
	if float64(capacity) > 0.6*float64(least.Size) {
		return nil
	}
	return &least
}
