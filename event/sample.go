package event

// Sample is one reading of the meters over the whole process tree of a run. A part that is nil, and
// a number that is zero, was not measured: which source is absent is said once in the run's notes.
type Sample struct {
	AtMS      int64 `json:"at_ms"` // since the run began, by a clock that does not jump
	Attempt   int   `json:"attempt,omitempty"`
	Processes int   `json:"procs"`

	// What the program has printed so far, and apart from it what went to stderr.
	Output Bytes `json:"out,omitempty"`
	Errors Bytes `json:"err,omitempty"`

	// Host memory of the tree. Resident sums the resident pages of every process, so pages shared
	// by forked workers count once for each; Proportional counts each page once but is dear to read
	// and therefore seldom taken.
	Resident     Bytes `json:"rss"`
	Anonymous    Bytes `json:"anon"`
	Shared       Bytes `json:"shmem,omitempty"` // shared memory and tmpfs pages mapped
	File         Bytes `json:"file,omitempty"`  // file pages mapped; the kernel may drop them
	Proportional Bytes `json:"pss,omitempty"`
	Held         Bytes `json:"held,omitempty"` // see Unreclaimable
	Swapped      Bytes `json:"swap,omitempty"`

	Cgroup  *CgroupSample  `json:"cgroup,omitempty"`
	Machine *MachineSample `json:"machine,omitempty"`
	Devices []DeviceSample `json:"gpus,omitempty"`
	Ray     []RaySample    `json:"ray,omitempty"` // its workers, by what they work on
	// Ray's store of objects, where one runs
	RayStore *RayStore      `json:"ray_store,omitempty"`
	Workers  *WorkersSample `json:"workers,omitempty"`
}

// WorkersSample is what the worker processes hold that the program or its data loaders have forked,
// as the probe names them: what one of them holds, times their number. Processes that a compiler or
// another library starts for itself are none.
type WorkersSample struct {
	PID      int   `json:"pid"` // the one that was read; another one has a start of its own
	Count    int   `json:"n"`
	Resident Bytes `json:"rss"`
	Private  Bytes `json:"private"` // pages that no other process maps: copied, or their own
}

// RaySample is what Ray's processes with the same work hold: trials, actors, tasks.
type RaySample struct {
	Name    string `json:"name"`
	Count   int    `json:"n"`
	Actor   bool   `json:"actor,omitempty"` // its processes live on between calls
	Largest Bytes  `json:"largest"`         // anonymous bytes of the largest
	Sum     Bytes  `json:"sum"`
}

// RayStore is the shared memory in which Ray keeps objects.
type RayStore struct {
	Capacity Bytes `json:"capacity"`
	Filled   Bytes `json:"filled"` // pages that were written so far: the store frees none
}

// Unreclaimable is the host memory of the tree that the kernel cannot drop: what an OOM killer
// counts. Pages that forked workers share are in it once where that is known (Held), else once for
// each process.
func (s Sample) Unreclaimable() Bytes {
	if s.Held > 0 {
		return s.Held
	}
	return s.Anonymous + s.Shared
}

// CgroupSample is a reading of the cgroup that bounds the run: its own where we could make one,
// else the enclosing one.
type CgroupSample struct {
	Own     bool  `json:"own,omitempty"` // made for this run, so its counters are about this run alone
	Current Bytes `json:"current"`
	Peak    Bytes `json:"peak,omitempty"`
	Limit   Bytes `json:"limit,omitempty"` // 0: none
	// AtLimit is what the cgroup that sets the limit holds, where that is one further out, with
	// other processes in it.
	AtLimit Bytes `json:"at_limit,omitempty"`
	Anon    Bytes `json:"anon,omitempty"`
	File    Bytes `json:"file,omitempty"`
	Shmem   Bytes `json:"shmem,omitempty"`
	Swap    Bytes `json:"swap,omitempty"`
	Kernel  Bytes `json:"kernel,omitempty"`
	// times the limit was reached and nothing could be reclaimed
	OOM     int64 `json:"oom,omitempty"`
	OOMKill int64 `json:"oom_kill,omitempty"` // processes killed for it
	// PressureFull is the share of the last ten seconds in which every process waited for memory,
	// in percent.
	PressureSome float64 `json:"psi_some,omitempty"`
	PressureFull float64 `json:"psi_full,omitempty"`
}

// MachineSample is a reading of the whole host.
type MachineSample struct {
	Total        Bytes   `json:"total"`
	Available    Bytes   `json:"available"`
	SwapTotal    Bytes   `json:"swap_total,omitempty"`
	SwapFree     Bytes   `json:"swap_free,omitempty"`
	ShmTotal     Bytes   `json:"shm_total,omitempty"` // /dev/shm
	ShmUsed      Bytes   `json:"shm_used,omitempty"`
	OOMKill      int64   `json:"oom_kill,omitempty"` // /proc/vmstat, since boot
	PressureSome float64 `json:"psi_some,omitempty"`
	PressureFull float64 `json:"psi_full,omitempty"`
}

// DeviceSample is a reading of one accelerator. Cards are matched by UUID, never by index.
type DeviceSample struct {
	UUID  string `json:"uuid"`
	Name  string `json:"name,omitempty"`
	Total Bytes  `json:"total"`
	Used  Bytes  `json:"used"` // by everybody
	// by processes of the run
	Ours Bytes `json:"ours,omitempty"`
	// the driver names no processes: Ours is what came since the run began, others' included
	Guessed     bool  `json:"guessed,omitempty"`
	Others      Bytes `json:"other,omitempty"` // by processes that are not ours
	Utilisation int   `json:"util,omitempty"`  // percent
}
