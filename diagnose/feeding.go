package diagnose

import (
	"fmt"

	"memroom/event"
)

// feedWatch holds the memory of feeding the model, at each place of the program.
type feedWatch struct {
	feeds map[string]event.Feed
	said  map[string]bool
	shm   event.Bytes // size of /dev/shm
}

const (
	feedShare event.Bytes = 5 // of host memory: a fifth is worth changing
	shmShare  event.Bytes = 2 // of /dev/shm: workers pass their batches through it
)

// Feeding takes what feeding takes at one place.
func (w *Watch) Feeding(pid int, f event.Feed) []event.Finding {
	feeds := &w.feeding
	if feeds.feeds == nil {
		feeds.feeds, feeds.said = map[string]event.Feed{}, map[string]bool{}
	}
	key := fmt.Sprint(f.Source, f.File, f.Line)
	var found []event.Finding
	if f.Measured && f.Count == 0 { // until it is full it grows like a leak
		found = w.explained(pid, "a cache of tf.data that fills")
	}
	if f.Total < feeds.feeds[key].Total {
		return found
	}
	feeds.feeds[key] = f
	return append(found, w.fed(key)...)
}

// fed judges one place against the walls that are known.
func (w *Watch) fed(key string) []event.Finding {
	feeds := &w.feeding
	f := feeds.feeds[key]
	shm := f.Shm()
	ofHost := w.wall > 0 && f.Total >= w.wall/feedShare
	ofShm := feeds.shm > 0 && shm >= feeds.shm/shmShare
	if feeds.said[key] || !ofHost && !ofShm {
		return nil
	}
	feeds.said[key] = true
	wall := f.Total.Of(w.wall) + " of host memory"
	if !ofHost {
		wall = f.Total.Of(feeds.shm) + " of /dev/shm"
	}
	finding := event.Finding{Kind: "feeding", Severity: event.SeverityWarning, Bytes: f.Total,
		Confidence: 0.85,
		Title: fmt.Sprintf("feeding the model %s %s: %s; use %s", takes(f), wall,
			f.Sum(), f.Change()),
	}
	finding.Detail, finding.Remedies = feedCures(f, ofShm)
	return []event.Finding{finding}
}

func takes(f event.Feed) string {
	if f.Measured {
		return "takes"
	}
	return "may take"
}

// feedCures returns the situation and what helps in it.
func feedCures(f event.Feed, ofShm bool) (detail string, cures []string) {
	switch {
	case f.Source == "DataLoader" && ofShm:
		return "workers", []string{"dataloader_workers", "shm_size", "pin_memory"}
	case f.Source == "DataLoader" && f.Workers == 0:
		return "workers", []string{"micro_batch", "stream_data"}
	case f.Source == "DataLoader" && f.Pinned:
		return "workers", []string{"dataloader_workers", "pin_memory", "stream_data"}
	case f.Source == "DataLoader":
		return "workers", []string{"dataloader_workers", "stream_data"}
	case f.Source == "datasets map":
		return "map_writer", []string{"map_processes", "stream_data"}
	}
	return "shuffle_buffer", []string{"shuffle_buffer", "tf_data_budget", "stream_data"}
}

// WorkerKeeps takes that the dataset in a worker of a DataLoader holds more and more: how much more
// is in held.Host, after so many batches, and now what there is in one worker. It is said once for
// each variable: the other workers do the same.
func (w *Watch) WorkerKeeps(held Holder, workers int, batches int64,
	now event.Bytes) []event.Finding {
	feeds := &w.feeding
	if feeds.said == nil {
		feeds.feeds, feeds.said = map[string]event.Feed{}, map[string]bool{}
	}
	if key := "worker " + held.Name; !feeds.said[key] {
		feeds.said[key] = true
		who := "the DataLoader worker keeps"
		if workers > 1 {
			who = fmt.Sprintf("each of %d DataLoader workers keeps its own", workers)
		}
		return []event.Finding{{Kind: "worker_growth", Detail: "worker_cache",
			Severity: event.SeverityWarning, Bytes: event.Bytes(workers) * now, Confidence: 0.9,
			Title: fmt.Sprintf("%s %s: it grew by %s in %d batches, to %s in one worker", who, held,
				held.Host, batches, now),
			Evidence: []string{"workers share nothing that they make themselves: the same sample is kept " +
				"in every worker that has read it"},
			Remedies: []string{"worker_cache", "dataloader_workers"}}}
	}
	return nil
}

// sized judges the places again when the walls become known: a loader begins before the first
// reading.
func (w *Watch) sized(s event.Sample) []event.Finding {
	if s.Machine != nil {
		w.feeding.shm = s.Machine.ShmTotal
	}
	if w.wall == 0 {
		w.wall = w.hostWall(s)
	}
	var found []event.Finding
	for key := range w.feeding.feeds {
		found = append(found, w.fed(key)...)
	}
	return found
}
