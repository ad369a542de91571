package explain

import (
	"cmp"
	"slices"

	"memroom/event"
	"memroom/remedy"
	"memroom/trace"
)

// ownCard is how a rank of PyTorch keeps to its card.
const ownCard = "torch.cuda.set_device(int(os.environ['LOCAL_RANK']))   # before anything touches CUDA; leave the other ranks running"

// ranksOnCard: the other processes on the card are about equal, and as many as the job's other
// ranks. They are the job's own, and must not be ended.
func ranksOnCard(f *Facts, s Sums) (judged, bool) {
	c := f.Crash
	n := len(s.Equal)
	if c.Where != event.WhereGPU || !s.OwnRanks || c.Framework == "ray" || n == 0 ||
		float64(s.Equal[0].Bytes)*float64(n) < 0.05*float64(s.Capacity) || f.says("mps-server",
		"cuda mps") {
		return judged{}, false
	}
	if n < 2 && s.Equal[0].Bytes > 4*event.GiB && f.World != 2 {
		return judged{}, false
	}
	ranks := "of this job"
	if f.World > 1 {
		ranks = "of the " + thousands(int64(f.World)) + " of this job"
	}
	j := because(CauseNeighbour, "ranks_on_card", 0.85,
		"%d other processes hold about %s each on this card: the other ranks %s, which also opened it", n,
		s.Equal[0].Bytes, ranks).
		saying("%d other ranks of the same job sit on this card too", n)
	j.cures = []remedy.ID{remedy.SelectCard}
	if c.Framework == "pytorch" {
		j.typed = map[remedy.ID]string{remedy.SelectCard: ownCard}
	}
	return j, true
}

// launchedOnCard: the others were started one right after another and hold unlike amounts, as
// ranks that reach their first large tensors at different times.
func launchedOnCard(f *Facts, s Sums) (judged, bool) {
	c, n := f.Crash, len(s.Launched)
	if c.Where != event.WhereGPU || n == 0 || c.Framework == "ray" || 5*s.Others < s.Capacity ||
		f.says("mps-server", "trial", "ray.tune") {
		return judged{}, false
	}
	first := slices.MinFunc(s.Launched, func(a, b trace.Holder) int {
		return cmp.Compare(a.PID, b.PID)
	})
	j := because(CauseNeighbour, "ranks_on_card", 0.7,
		"%d other processes hold %s here, and their numbers follow each other (%d, ...): one launcher started them", n,
		s.Others, first.PID).
		saying("%d processes that were started together, ranks of one job, sit on this one card", n)
	j.cures = []remedy.ID{remedy.SelectCard}
	if c.Framework == "pytorch" {
		j.typed = map[remedy.ID]string{remedy.SelectCard: ownCard}
	}
	return j, true
}
