package store

import (
	"fmt"
	"os"
	"slices"
	"strings"
)

// Find returns the run a user means: an ID, the beginning or the end of one, a name (its newest
// run), or "last"; nothing means last too.
func (s *Store) Find(text string) (*Folder, error) {
	ids, err := s.IDs()
	if err != nil {
		return nil, err
	}
	if len(ids) == 0 {
		return nil, fmt.Errorf("there are no runs yet in %s: start one with memroom run -- COMMAND",
			s.Home)
	}
	if text == "" || text == "last" {
		return s.Folder(ids[len(ids)-1]), nil
	}
	if slices.Contains(ids, text) {
		return s.Folder(text), nil
	}
	matching := slices.DeleteFunc(slices.Clone(ids),
		func(id string) bool {
			return !strings.HasPrefix(id, text) &&
				!strings.HasSuffix(id, "-"+text)
		})
	if len(matching) == 1 {
		return s.Folder(matching[0]), nil
	}
	if rows, err := s.List(Filter{Name: text, Limit: 1}); err == nil && len(rows) == 1 {
		return s.Folder(rows[0].ID), nil
	}
	if len(matching) > 1 {
		return nil,
			fmt.Errorf("%q matches %d runs, the newest is %s: give more characters of the ID", text,
				len(matching), matching[len(matching)-1])
	}
	return nil, fmt.Errorf("there is no run %q: `memroom runs` lists those there are", text)
}

// Lookup returns the run with exactly this ID, if there is one. Whatever else the text is, such as
// a path, it is no run.
func (s *Store) Lookup(id string) (*Folder, bool) {
	if !ValidID(id) {
		return nil, false
	}
	folder := s.Folder(id)
	info, err := os.Stat(folder.Dir)
	return folder, err == nil && info.IsDir()
}
