package store

import (
	"os"
	"path/filepath"
	"time"

	"memroom/event"
)

// Retention says which ended runs are worth keeping. Named and tagged runs are always kept, and the
// newest ones.
type Retention struct {
	Age    time.Duration // older ones go; 0: age does not matter
	Size   event.Bytes   // beyond it in all, the oldest go; 0: size does not matter
	Newest int           // so many are always kept
}

// DefaultRetention is what [Store.Tidy] keeps unless told otherwise: a season of runs, and no more
// than a laptop can spare.
func DefaultRetention() Retention {
	return Retention{Age: 90 * 24 * time.Hour, Size: 10 * event.GiB, Newest: 50}
}

// Prune gives the runs that a retention drops, and deletes them unless it is only asked.
func (s *Store) Prune(r Retention, now time.Time, onlyAsk bool) ([]Row, error) {
	rows, err := s.List(Filter{})
	if err != nil {
		return nil, err
	}
	var dropped []Row
	total := event.Bytes(0)
	for i, row := range rows {
		size := event.Bytes(0)
		if r.Size > 0 {
			size = s.Folder(row.ID).size()
		}
		total += size
		if i < r.Newest || row.Status == Running || row.Name != "" || len(row.Tags) > 0 ||
			row.Status != Ended && s.Folder(row.ID).fresh(now) {
			continue
		}
		if r.Age > 0 && now.Sub(row.Started) > r.Age || r.Size > 0 && total > r.Size {
			dropped = append(dropped, row)
			total -= size
		}
	}
	for _, row := range dropped {
		// it may have come to life again since it was listed
		if onlyAsk || s.Folder(row.ID).Running() {
			continue
		}
		if err := s.Folder(row.ID).Remove(); err != nil {
			return dropped, err
		}
	}
	return dropped, nil
}

// fresh says that a folder was made or written to in the last hour: a run that is about to start
// has no keeper yet, and one on another machine has none that can be seen from here.
func (f *Folder) fresh(now time.Time) bool { return f.writtenWithin(now, time.Hour) }

func (f *Folder) writtenWithin(now time.Time, age time.Duration) bool {
	newest := time.Time{}
	for _, path := range []string{f.Dir, f.Path(runFile), f.Path(stateFile), f.Path(samplesFile),
		f.Path(eventsFile)} {
		if info, err := os.Stat(path); err == nil && info.ModTime().After(newest) {
			newest = info.ModTime()
		}
	}
	return now.Sub(newest) < age
}

// tidyEvery is how often runs are looked through: their sizes are read from the disk.
const tidyEvery = 24 * time.Hour

// Tidy prunes the store, at most once a day.
func (s *Store) Tidy(r Retention, now time.Time) ([]Row, error) {
	stamp := filepath.Join(s.Home, "tidied")
	if info, err := os.Stat(stamp); err == nil && now.Sub(info.ModTime()).Abs() < tidyEvery {
		return nil, nil
	}
	if err := os.WriteFile(stamp, nil, 0o600); err != nil {
		return nil, err
	}
	_ = os.Chtimes(stamp, now, now)
	return s.Prune(r, now, false)
}
