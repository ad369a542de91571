package store

import (
	"errors"
	"os"
	"slices"
	"time"
)

// Reported is what a central server knows of a run that another machine sends: reported.json in
// the copy of the run's folder, written anew whenever the sender was heard.
type Reported struct {
	Key  string `json:"key"`
	ID   string `json:"id"`   // on its own machine
	Host string `json:"host"` // that sends it
	// AheadMS is how far the sender's clock was ahead of the server's, at the first request.
	AheadMS int64     `json:"ahead_ms"`
	First   time.Time `json:"first"` // by the server's clock
	Heard   time.Time `json:"heard"`
}

const reportedFile = "reported.json"

// SaveReported writes down where a run's record comes from.
func (f *Folder) SaveReported(r Reported) error { return f.replace(reportedFile, r) }

// Reported reads where a run's record comes from; ok is false for a run of this store's own.
func (f *Folder) Reported() (r Reported, ok bool) {
	r, err := ReadRecord[Reported](f, reportedFile)
	return r, err == nil
}

// clockTolerance is how far clocks may be apart before it is reported: a request takes its time.
const clockTolerance = 2 * time.Second

// Ahead is how far the sender's clock is ahead, 0 where that is too little to matter.
func (r Reported) Ahead() time.Duration {
	ahead := time.Duration(r.AheadMS) * time.Millisecond
	if ahead.Abs() < clockTolerance {
		return 0
	}
	return ahead
}

// heardWithin bounds the silence of a sender whose run goes on; it sends something every 15 s.
const heardWithin = 90 * time.Second

// reportFile means that a run is being sent to a server, and whether all of it has arrived.
const reportFile = "report.json"

// unsent reports whether a run's record waits for a server that has not acknowledged it yet.
func (f *Folder) unsent() bool {
	if _, err := os.Stat(f.Path(reportFile)); errors.Is(err, os.ErrNotExist) {
		return false
	}
	state, err := ReadRecord[struct {
		Done bool `json:"done"`
	}](f, reportFile)
	return err != nil || !state.Done
}

// Unsent lists the runs whose record waits for a server, oldest first.
func (s *Store) Unsent() ([]*Folder, error) {
	ids, err := s.IDs()
	if err != nil {
		return nil, err
	}
	var list []*Folder
	for _, id := range ids {
		if folder := s.Folder(id); folder.unsent() {
			list = append(list, folder)
		}
	}
	return list, nil
}

// FreeID returns an ID close to the wanted one that is not taken. Two machines may have begun runs
// in the same instant.
func FreeID(wanted string, taken func(string) bool) (string, bool) {
	if !ValidID(wanted) {
		return "", false
	}
	if !taken(wanted) {
		return wanted, true
	}
	begin := wanted[:len(wanted)-3]
	letters := []byte(idLetters)
	slices.Sort(letters)
	for _, a := range letters {
		for _, b := range letters {
			for _, c := range letters {
				if id := begin + string([]byte{a, b, c}); !taken(id) {
					return id, true
				}
			}
		}
	}
	return "", false
}
