package event

import "time"

// Step is what the probe saw of one optimizer step in one process, on one device. Memory is read
// right after the step: over many steps that is the floor the program comes back to. Times are the
// host's: a GPU runs behind them.
type Step struct {
	Step int64 `json:"step"` // optimizer steps this process has made, from 1
	// index the process sees; HostDevice when no accelerator is in use
	Device       int           `json:"device"`
	End          time.Time     `json:"end"`
	Duration     time.Duration `json:"duration_ns"`
	Wait         time.Duration `json:"wait_ns"` // of it: waiting for the next batch
	Backward     time.Duration `json:"backward_ns"`
	Optimizer    time.Duration `json:"optimizer_ns"`
	MicroBatches int           `json:"micro_batches"` // backward passes in the step

	Allocated Bytes `json:"allocated"`
	Reserved  Bytes `json:"reserved"`
	// highest since the process started, or since the program last reset it
	PeakAllocated Bytes `json:"peak_allocated"`
	// allocated when the last backward pass began; on the host, the heap
	AtBackward Bytes `json:"at_backward"`
	// free parts of segments that are partly in use; on the host, what malloc has and nobody holds
	InactiveSplit Bytes `json:"inactive_split"`
	// times the allocator emptied its cache to go on, since the start
	Retries int64 `json:"retries"`
	OOMs    int64 `json:"ooms"` // times it gave up, since the start

	Resident  Bytes `json:"resident"`  // of the process, host
	Anonymous Bytes `json:"anonymous"` // of it: not backed by a file and not shared
	// held by malloc, host tensors among it, 0 unknown: exact where pages are noisy
	Heap Bytes `json:"heap"`
}

// HostDevice is the device of a step that used no accelerator.
const HostDevice = -1
