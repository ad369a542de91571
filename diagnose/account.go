package diagnose

import (
	"cmp"

	"memroom/event"
)

// Account shows where every byte of a limit is. Its lines add up to Limit exactly: what cannot be
// attributed is a line of its own, and what two sources both claim is counted once. No line is
// negative.
type Account struct {
	Limit event.Bytes    `json:"limit"`
	Lines []AccountEntry `json:"lines"`
	// claimed twice, by sources that were read at different moments, and taken out
	Overlap event.Bytes `json:"overlap,omitempty"`
	// held beyond a limit that the monitor holds, which is not in the lines
	Over event.Bytes `json:"over,omitempty"`
}

// AccountEntry is one holder of memory.
type AccountEntry struct {
	Name  string      `json:"name"`
	Bytes event.Bytes `json:"bytes"`
	Note  string      `json:"note,omitempty"` // how it was got, where that is not plain
}

// The names of lines, in the order in which they are shown.
const (
	LineWeights       = "weights"
	LineGradients     = "gradients"
	LineOptimizer     = "optimizer"
	LineActivations   = "activations"
	LineCache         = "cache"
	LineFragmentation = "fragmentation"
	LineContext       = "context and libraries"
	LineNeighbours    = "neighbours"
	LineUnattributed  = "unattributed"
	LineFree          = "free"
	LineAnonymous     = "anonymous"
	LineShared        = "shared"
	LineFile          = "file pages of the run"
	LineKernel        = "kernel memory for the run"
	LineOthers        = "other processes and the kernel"
)

// Holding is what one process has on a card, as reported by its probe.
type Holding struct {
	Weights, Gradients, Optimizer event.Bytes
	Allocated, Reserved, Split    event.Bytes
}

// Card makes the account of a card from the driver's reading and the probes' reports on the run's
// processes. A process without a probe shows up under context and libraries, with a note.
func Card(d event.DeviceSample, holdings []Holding) Account {
	var sum Holding
	for _, h := range holdings {
		sum.Weights = plausible(sum.Weights + plausible(h.Weights))
		sum.Gradients = plausible(sum.Gradients + plausible(h.Gradients))
		sum.Optimizer = plausible(sum.Optimizer + plausible(h.Optimizer))
		sum.Allocated = plausible(sum.Allocated + plausible(h.Allocated))
		sum.Reserved = plausible(sum.Reserved + plausible(h.Reserved))
		sum.Split = plausible(sum.Split + plausible(h.Split))
	}
	d.Total, d.Used = plausible(d.Total), plausible(d.Used)
	d.Ours, d.Others = plausible(d.Ours), plausible(d.Others)
	a := Account{Limit: d.Total}
	a.add(LineWeights, sum.Weights, "")
	a.add(LineGradients, sum.Gradients, "")
	a.add(LineOptimizer, sum.Optimizer, "")
	a.add(LineActivations, max(0, sum.Allocated-sum.Weights-sum.Gradients-sum.Optimizer),
		"allocated bytes that are none of the above")
	split := min(sum.Split, max(0, sum.Reserved-sum.Allocated))
	a.add(LineCache, max(0, sum.Reserved-sum.Allocated-split), "reserved, whole segments free")
	a.add(LineFragmentation, split, "free parts of segments in use")
	ours := d.Ours
	note := ""
	if ours == 0 && len(holdings) > 0 {
		ours, note = d.Used-d.Others,
			"by difference: the driver does not say what each process holds"
	}
	if len(holdings) == 0 && ours > 0 {
		note = "nothing is known from inside the processes, so all of the run's memory is here"
	}
	a.add(LineContext, max(0, ours-sum.Reserved), note)
	a.add(LineNeighbours, d.Others, "")
	free := max(0, d.Total-d.Used)
	a.close(free)
	return a
}

// Host makes the account of host memory against a limit, which is a cgroup's or the machine's.
func Host(s event.Sample, limit event.Bytes) Account {
	s, limit = plausibleSample(s), plausible(limit)
	a := Account{Limit: limit}
	anonymous, shared := s.Anonymous, s.Shared
	note := "processes that share pages after a fork count them once each"
	switch c := s.Cgroup; {
	// the kernel counts each page once
	case c != nil && c.Anon > 0 && (c.Own || c.Limit > 0 && c.Limit <= limit):
		anonymous, shared, note = c.Anon, c.Shmem, "of the cgroup"
	case s.Held > 0: // pages are probably shared alike in both
		part := float64(s.Held) / float64(max(1, anonymous+shared))
		anonymous = event.Bytes(part * float64(anonymous))
		shared, note = s.Held-anonymous,
			"pages that forked processes share are counted once, as far as known"
	}
	a.add(LineAnonymous, anonymous, note)
	a.add(LineShared, shared, "")
	free := event.Bytes(0)
	switch {
	case s.Cgroup != nil && s.Cgroup.Limit > 0 && s.Cgroup.Limit <= limit:
		c := s.Cgroup
		a.add(LineFile, max(0, c.File-c.Shmem), "the kernel may drop them")
		// The parts are read a moment after the sum, and the kernel adds them up late. So what is
		// missing between them is the kernel's only if the kernel does not count its own.
		a.add(LineKernel, cmp.Or(c.Kernel, max(0, c.Current-c.Anon-c.File)),
			"page tables, sockets and the like")
		used := max(c.Current, c.AtLimit)
		a.add(LineOthers, used-c.Current, "in the cgroup that sets the limit")
		free = max(0, limit-used)
	case s.Machine != nil && s.Machine.Total <= limit:
		// What is available to programs is free, or pages of files that can be dropped: the run's
		// own among them.
		file := min(s.File, s.Machine.Available)
		a.add(LineFile, file, "the kernel may drop them")
		free = max(0, s.Machine.Available-file)
		a.add(LineOthers, max(0, s.Machine.Total-s.Machine.Available-anonymous-shared), "")
	default: // a limit that the monitor holds, on what cannot be dropped
		free = max(0, limit-anonymous-shared)
		a.Over = max(0, anonymous+shared-limit)
	}
	a.close(free)
	return a
}

// plausible is a figure that can be in an account. Records come from anywhere: a negative one is
// none, and one beyond any machine would make sums overflow.
func plausible(bytes event.Bytes) event.Bytes {
	const most = 1 << 56 // a hundred of them can be added up
	return min(max(0, bytes), most)
}

// plausibleSample is a sample all of whose figures can be in an account.
func plausibleSample(s event.Sample) event.Sample {
	s.Anonymous, s.Shared = plausible(s.Anonymous), plausible(s.Shared)
	s.Held, s.File = plausible(s.Held), plausible(s.File)
	if s.Cgroup != nil {
		c := *s.Cgroup
		c.Anon, c.Shmem, c.File = plausible(c.Anon), plausible(c.Shmem), plausible(c.File)
		c.Current, c.Limit, c.AtLimit = plausible(c.Current), plausible(c.Limit), plausible(c.AtLimit)
		s.Cgroup = &c
	}
	if s.Machine != nil {
		m := *s.Machine
		m.Total, m.Available = plausible(m.Total), plausible(m.Available)
		s.Machine = &m
	}
	return s
}

func (a *Account) add(name string, bytes event.Bytes, note string) {
	a.Lines = append(a.Lines, AccountEntry{Name: name, Bytes: max(0, bytes), Note: note})
}

// close adds what is missing to the limit as unattributed, and what is free. Where there is too
// much instead, the largest lines hold what others hold as well.
func (a *Account) close(free event.Bytes) {
	rest := a.Limit - free
	for _, line := range a.Lines {
		rest -= line.Bytes
	}
	a.add(LineUnattributed, rest, "")
	a.add(LineFree, free, "")
	a.Overlap = max(0, -rest-a.Over)
	for range a.Lines { // each round empties a line or is the last
		if rest >= 0 {
			return
		}
		largest := 0
		for i := range a.Lines[:len(a.Lines)-1] {
			if a.Lines[i].Bytes > a.Lines[largest].Bytes {
				largest = i
			}
		}
		if a.Lines[largest].Bytes == 0 {
			largest = len(a.Lines) - 1 // only what is free is left
		}
		line := &a.Lines[largest]
		taken := min(-rest, line.Bytes)
		line.Bytes, rest = line.Bytes-taken, rest+taken
		if line.Note = "without " + taken.String() +
			" that another source claims too: they were not read at the same moment"; a.Over > 0 {
			line.Note = "without what is over the limit"
		}
	}
}

// Sum adds the lines up; it is Limit.
func (a Account) Sum() event.Bytes {
	var sum event.Bytes
	for _, line := range a.Lines {
		sum += line.Bytes
	}
	return sum
}
