package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"memroom/event"
)

// Retention decides which ended runs are worth keeping. Named and tagged runs are always kept, and
// the newest ones, and what waits for a central server.
type Retention struct {
	Age    time.Duration // older ones go; 0: age does not matter
	Size   event.Bytes   // beyond it in all, the oldest go; 0: size does not matter
	Newest int           // so many are always kept
}

// DefaultRetention is what [Store.Tidy] keeps by default: a season of runs, and no more than a
// laptop can spare.
func DefaultRetention() Retention {
	return Retention{Age: 90 * 24 * time.Hour, Size: 10 * event.GiB, Newest: 50}
}

// Pruned is what came of deleting old runs.
type Pruned struct {
	Dropped []Row // deleted, or to be deleted where it was only asked
	Damaged []Row // kept, because their record cannot be read
	Looked  int   // runs that were looked at
}

// Prune returns the runs that a retention drops, and deletes them unless it is only asked.
func (s *Store) Prune(r Retention, now time.Time, onlyAsk bool) (Pruned, error) {
	if s.readOnly && !onlyAsk {
		return Pruned{}, fmt.Errorf("%s was opened to look at it, nothing in it is changed", s.Home)
	}
	rows, err := s.List(Filter{})
	if err != nil {
		return Pruned{}, err
	}
	var p Pruned
	walk := walked{}
	for _, row := range rows {
		if err := s.judge(row, r, now, &walk, &p, onlyAsk); err != nil {
			return p, err
		}
	}
	return p, nil
}

// walked is how far a walk from the newest run to the oldest has come.
type walked struct {
	Seen int         `json:"seen"`
	Kept event.Bytes `json:"kept"` // disk that the kept ones take
}

// judge looks at one run, newer ones having been looked at, and deletes it if it is to go.
func (s *Store) judge(row Row, r Retention, now time.Time, walk *walked, p *Pruned,
	onlyAsk bool) error {
	folder := s.Folder(row.ID)
	size := event.Bytes(0)
	if r.Size > 0 {
		size = folder.size()
	}
	p.Looked++
	walk.Seen++
	walk.Kept += size
	if row.Damaged != "" {
		p.Damaged = append(p.Damaged, row)
		return nil
	}
	if walk.Seen <= r.Newest || !row.expendable() || row.Status != Ended && folder.fresh(now) ||
		folder.unsent() {
		return nil
	}
	old := r.Age > 0 && now.Sub(row.Started) > r.Age
	if !old && (r.Size == 0 || walk.Kept <= r.Size) {
		return nil
	}
	// it may have come to life again since it was listed
	if !onlyAsk {
		if folder.Running() {
			return nil
		}
		if err := folder.Remove(); err != nil {
			return err
		}
	}
	walk.Kept -= size
	p.Dropped = append(p.Dropped, row)
	return nil
}

// expendable: over, and nobody asked to keep it. A run of unknown age is kept.
func (r Row) expendable() bool {
	return r.Status != Running && r.Name == "" && len(r.Tags) == 0 && r.Damaged == "" &&
		!r.Started.IsZero()
}

// fresh reports whether a folder was made or written to in the last hour: a run that is about to
// start has no keeper yet, and one on another machine has none that can be seen from here.
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

const (
	tidyEvery = 24 * time.Hour // between two walks through all runs
	// tidyRuns bounds one call of Tidy: their sizes are read from the disk. A season of runs is
	// walked through in less than a day's worth of calls, one a run.
	tidyRuns = 500
)

// tidied is the file that remembers how far the last walk came.
const tidiedFile = "tidied"

type tidied struct {
	Began time.Time `json:"began"`          // of the walk
	Next  string    `json:"next,omitempty"` // runs older than this are still to be looked at
	walked
}

// Tidy prunes the store in small portions: a walk through all runs begins at most once a day, and
// each call goes on where the last one stopped.
func (s *Store) Tidy(r Retention, now time.Time) (Pruned, error) {
	return s.tidy(r, now, tidyRuns)
}

func (s *Store) tidy(r Retention, now time.Time, most int) (p Pruned, err error) {
	if s.readOnly {
		return p, fmt.Errorf("%s was opened to look at it, nothing in it is changed", s.Home)
	}
	at := s.readTidied()
	if at.Next == "" {
		if now.Sub(at.Began).Abs() < tidyEvery {
			return p, nil
		}
		at = tidied{Began: now}
	}
	ids, err := s.IDs()
	if err != nil {
		return p, err
	}
	if at.Next != "" {
		n, _ := slices.BinarySearch(ids, at.Next)
		ids = ids[:n]
	}
	todo := ids[max(0, len(ids)-most):]
	at.Next = ""
	if len(todo) < len(ids) {
		at.Next = todo[0]
	}
	for _, id := range slices.Backward(todo) {
		if _, gone := os.Lstat(s.Folder(id).Dir); gone != nil {
			continue // another memroom tidies too
		}
		// one that cannot be deleted must not keep the others from it
		err = errors.Join(err, s.judge(s.Folder(id).Row(), r, now, &at.walked, &p, false))
	}
	return p, errors.Join(err, s.saveTidied(at))
}

func (s *Store) readTidied() tidied {
	path := filepath.Join(s.Home, tidiedFile)
	var at tidied
	if data, err := readWhole(path); err == nil && json.Unmarshal(data, &at) == nil {
		return at
	}
	// earlier versions left an empty file: its time is that of the walk
	if info, err := os.Stat(path); err == nil {
		return tidied{Began: info.ModTime()}
	}
	return tidied{}
}

func (s *Store) saveTidied(at tidied) error {
	data, _ := json.Marshal(at) // figures and a name do not fail
	return os.WriteFile(filepath.Join(s.Home, tidiedFile), data, 0o600)
}
