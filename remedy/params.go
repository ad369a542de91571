package remedy

import "memroom/event"

// Params say how far a remedy goes where it is put into effect. They travel as JSON: to the probe,
// into the record of a run and into the memory of what worked. Each remedy reads its own fields
// (docs/format/fit.md); the zero value leaves the amount to the probe, which measures it.
type Params struct {
	// MicroBatch, fixed: one of the two.
	Size   int `json:"size,omitempty"`   // samples of a micro-batch
	Pieces int `json:"pieces,omitempty"` // micro-batches that a batch is split into

	// MicroBatch and Checkpointing, as far as needed.
	Failed bool        `json:"failed,omitempty"` // the whole batch is known not to fit
	Later  bool        `json:"later,omitempty"`  // and steps had been done before it did not
	Worst  bool        `json:"worst,omitempty"`  // measure the longest batch before the first step
	Limit  event.Bytes `json:"limit,omitempty"`  // host memory that the job may use
	// Factor is the share of the free memory to plan with; 0 means all of it. At LevelArgs it is by
	// how much the command's own arguments divide the micro-batch.
	Factor float64 `json:"factor,omitempty"`

	// ActivationOffload and OptimizerOffload.
	Measured bool        `json:"measured,omitempty"` // only as far as needed
	Untried  bool        `json:"untried,omitempty"`  // without trying the model on parts of a batch
	Above    event.Bytes `json:"above,omitempty"`    // size from which a tensor is offloaded

	// ActivationBudget: the share that is kept; 0 means as much as there is room for.
	Budget float64 `json:"budget,omitempty"`

	Slices    bool    `json:"slices,omitempty"`    // OptimizerFused: the step in slices instead
	DType     string  `json:"dtype,omitempty"`     // MixedPrecision: bf16 or fp16
	Workers   *int    `json:"workers,omitempty"`   // DataLoaderWorkers: at most; 0 is one of the values
	SplitMB   int     `json:"mb,omitempty"`        // MaxSplitSize, in MiB
	Divisions int     `json:"divisions,omitempty"` // Roundup: of each power of two
	Threshold float64 `json:"threshold,omitempty"` // GCThreshold: share of the limit
}
