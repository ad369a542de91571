package event

import (
	"fmt"
	"path"
)

// Feed is memory that feeding the model takes at one place of the program.
type Feed struct {
	// DataLoader, tf.data shuffle, tf.data cache, datasets map
	Source     string `json:"source"`
	Each       Bytes  `json:"each"`               // a batch, or an element or row; 0 unknown
	Count      int64  `json:"count,omitempty"`    // samples of a batch, elements of a buffer
	Workers    int    `json:"workers,omitempty"`  // processes
	Prefetch   int    `json:"prefetch,omitempty"` // batches that each of them prepares
	Pinned     bool   `json:"pinned,omitempty"`   // batches are copied to pinned memory
	Persistent bool   `json:"persistent,omitempty"`
	Total      Bytes  `json:"total"` // that may wait at once
	// what memory grew by while the buffer filled; elements of a size that nobody knows before
	Measured bool   `json:"measured,omitempty"`
	Batches  int64  `json:"batches,omitempty"` // that had passed then
	File     string `json:"file"`
	Line     int    `json:"line"`
}

// Shm is what of it goes through /dev/shm: workers of a DataLoader pass their batches there.
func (f Feed) Shm() Bytes {
	if f.Source != "DataLoader" {
		return 0
	}
	return f.Each * Bytes(f.Workers*f.Prefetch)
}

// Sum lists the parts of the total and their places.
func (f Feed) Sum() string {
	each := f.Each.String()
	if f.Each == 0 {
		each = "elements of unknown size"
	}
	text := fmt.Sprintf("%s: %d x %s", f.Source, f.Count, each)
	switch {
	case f.Measured && f.Count == 0:
		text = fmt.Sprintf("%s: memory rose by %s in %s while it fills", f.Source, f.Total,
			Count(f.Batches, "batch"))
	case f.Measured:
		text = fmt.Sprintf("%s: %d x about %s, as measured when it filled", f.Source, f.Count, each)
	case f.Source == "DataLoader" && f.Workers == 0:
		text = "DataLoader: one batch of " + each
	case f.Source == "DataLoader":
		text = fmt.Sprintf("DataLoader: %s x %s x %s", Count(f.Workers, "worker"),
			Count(f.Prefetch, "batch"), each)
		if f.Pinned {
			text += " x 2, for they are pinned"
		}
		if f.Persistent {
			text += ", also between epochs"
		}
	case f.Source == "datasets map":
		text = fmt.Sprintf("datasets map: %s x %s x %s", Count(f.Workers, "process"),
			Count(f.Count, "row"), each)
	}
	if f.File != "" {
		text += fmt.Sprintf(" (%s:%d)", path.Base(f.File), f.Line)
	}
	return text
}

// Change names the argument that makes it smaller.
func (f Feed) Change() string {
	switch f.Source {
	case "DataLoader":
		if f.Workers == 0 {
			return "a smaller batch_size"
		}
		return "a lower prefetch_factor or num_workers"
	case "tf.data shuffle":
		return "a lower buffer_size, or shuffle before decoding"
	case "tf.data cache":
		return "cache(filename), or no cache"
	}
	return "a lower writer_batch_size or num_proc"
}
