package store

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"memroom/event"
)

// Find gives the run a user means: an ID, the beginning or the end of one, a name (its newest run), or "last"; nothing
// means last too.
func (s *Store) Find(text string) (*Folder, error) {
	ids, err := s.IDs()
	if err != nil {
		return nil, err
	}
	if len(ids) == 0 {
		return nil, fmt.Errorf("there are no runs yet in %s: start one with memroom run -- COMMAND", s.Home)
	}
	if text == "" || text == "last" {
		return s.Folder(ids[len(ids)-1]), nil
	}
	if slices.Contains(ids, text) {
		return s.Folder(text), nil
	}
	matching := slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return !strings.HasPrefix(id, text) && !strings.HasSuffix(id, "-"+text) })
	if len(matching) == 1 {
		return s.Folder(matching[0]), nil
	}
	if rows, err := s.List(Filter{Name: text, Limit: 1}); err == nil && len(rows) == 1 {
		return s.Folder(rows[0].ID), nil
	}
	if len(matching) > 1 {
		return nil, fmt.Errorf("%q fits %d runs, the newest is %s: give more of the ID", text, len(matching), matching[len(matching)-1])
	}
	return nil, fmt.Errorf("no run %q: `memroom runs` lists them", text)
}

// Retention says which ended runs are worth keeping. Named and tagged runs are always kept, and the newest ones.
type Retention struct {
	Age    time.Duration // older ones go; 0: age does not matter
	Size   event.Bytes   // beyond it in all, the oldest go; 0: size does not matter
	Newest int           // so many are always kept
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
		if i < r.Newest || row.Status == Running || row.Name != "" || len(row.Tags) > 0 {
			continue
		}
		if r.Age > 0 && now.Sub(row.Started) > r.Age || r.Size > 0 && total > r.Size {
			dropped = append(dropped, row)
			total -= size
		}
	}
	for _, row := range dropped {
		if onlyAsk {
			continue
		}
		if err := s.Folder(row.ID).Remove(); err != nil {
			return dropped, err
		}
	}
	return dropped, nil
}
