package diagnose

import "memroom/event"

// Thresholds are the limits of every detector over a run's series. The zero value is useless: start
// from DefaultThresholds.
type Thresholds struct {
	// Growth.
	// the floor must have risen for so long: caches that fill and warm-ups are shorter
	LeakSteps int64
	// and at the least so long where the next reading would come later than that
	EarlySteps int64
	// where readings are not further apart than that: blocks that come as seldom could be a shorter
	// rise
	EarlyStride   int64
	ForecastSteps int64   // a rise that lasts longer may be extrapolated
	Horizon       float64 // and for as many times as long as it has lasted
	SuspectSteps  int64   // a rise that lasts longer is worth a look at stacks, unsaid
	// rate at the end of a rise, as a share of its mean, below which it is a cache that fills
	Slackening      float64
	SlackDeviations float64 // and by so many standard errors
	// what lasts for fewer steps is a spike, under which the floor is looked for
	SpikeSteps     int64
	Overdue        float64 // a rise that has not come for so many usual gaps is over
	MinRises       int     // rises that make a trend
	ClockRises     int     // rises that make a leak where they are alike and come like a clock
	EvenRises      int     // and where they do not
	Significance   float64 // slope of a trend under noise, in its standard errors
	WalkDeviations float64 // growth over the window, in what a random walk of such steps would cover
	LineOverJump   float64 // log likelihood by which a line must fit a rise better than two levels
	// and by which a rise that begins or ends within the window may tell it better than a line
	PartOverLine float64
	// what a step needs above the floor grows so many times as fast as the floor: the work grows,
	// it is no leak
	Workload  float64
	Reserving float64 // the same for reserved bytes, which a leak lifts as well
	// what is taken grows so many times as fast as what is kept: freed memory lies in between
	Holes float64

	// Urgent forecasts: a floor that was level for so long, then rises towards a near limit.
	LevelSteps  int64
	UrgentRises int
	UrgentShare float64 // of the way from the level to the limit

	// the heap must grow so much before it is called a leak: programs keep lists of numbers
	HeapGrowth event.Bytes
	HostGrowth event.Bytes // pages must grow so much: allocators and interpreters creep
	HostShare  float64     // and by this share of what the process holds

	// Fragmentation and thrash.
	// of reserved bytes lying in partly used segments, free but unusable for large requests
	FragmentShare float64
	FragmentBytes event.Bytes // and at least so many
	FragmentSteps int         // for so many steps
	ThrashRetries int64       // cache flushes forced by failed requests
	ThrashSteps   int64       // within so many steps

	SpikeFactor float64 // memory at the start of backward against the median of the last steps
	SpikeShare  float64 // and at least this share of the limit

	PressureFull   float64 // percent of time all processes wait for memory
	PressureSome   float64
	AvailableShare float64 // of the host's memory, below which it is nearly out
	SwapGrowth     event.Bytes
	ShmShare       float64 // of /dev/shm in use
	NeighbourShare float64 // of the card held by processes that are not ours
	NeighbourBytes event.Bytes
	NeighbourFree  float64 // of the card that is free, above which neighbours do no harm
	IdleGPU        int     // percent of utilisation at or below which a card is unused
	WorkerGrowth   event.Bytes
	WorkerWindowMS int64
}

// DefaultThresholds are the limits memroom ships with. Those of growth come from the leaks and
// healthy twins in docs/measurements.md: caches that fill for 30 steps must pass, leaks must be
// named within 40.
func DefaultThresholds() Thresholds {
	return Thresholds{
		LeakSteps: 39, EarlySteps: 35, EarlyStride: 5, ForecastSteps: 31, Horizon: 20,
		SuspectSteps: 10,
		Slackening:   0.85, SlackDeviations: 2.4, SpikeSteps: 10, Overdue: 1.5, MinRises: 3,
		ClockRises: 4, EvenRises: 8, Significance: 7, WalkDeviations: 3.5, LineOverJump: 4,
		PartOverLine: 8, Workload: 0.6, Reserving: 2.5, Holes: 1.15,
		LevelSteps: 20, UrgentRises: 4, UrgentShare: 0.5,
		HeapGrowth: 128 * event.KiB, HostGrowth: 4 * event.MiB, HostShare: 0.02,
		FragmentShare: 0.25, FragmentBytes: 512 * event.MiB, FragmentSteps: 5,
		ThrashRetries: 3, ThrashSteps: 50,
		SpikeFactor: 1.5, SpikeShare: 0.1,
		PressureFull: 10, PressureSome: 30, AvailableShare: 0.05, SwapGrowth: 256 * event.MiB,
		ShmShare:       0.9,
		NeighbourShare: 0.1, NeighbourBytes: event.GiB, NeighbourFree: 0.1, IdleGPU: 1,
		WorkerGrowth: 512 * event.MiB, WorkerWindowMS: 60_000,
	}
}
