package api

import (
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"memroom/store"
	"memroom/trial"
	"memroom/trial/engine"
)

// StudyRow is one study in a list.
type StudyRow struct {
	Name    string              `json:"name"`
	Created time.Time           `json:"created"`
	Metric  string              `json:"metric"`
	Mode    string              `json:"mode"`
	Wanted  int                 `json:"wanted"`
	States  map[trial.State]int `json:"states"`
	Working bool                `json:"working"`
	Best    *float64            `json:"best"`
	Problem string              `json:"problem,omitempty"` // it cannot be read, and why
}

// studyCache keeps the studies that were read, as long as their journal does not grow.
type studyCache struct {
	mu   sync.Mutex
	read map[string]readStudy
}

type readStudy struct {
	stamp  string
	engine *engine.Engine
}

const cachedStudies = 20

func (s *Server) studiesDir() string { return filepath.Join(s.options.Store.Home, "studies") }

// study reads a study. Only names that a study can have are looked for.
func (s *Server) study(name string) (*engine.Engine, string, error) {
	dir := filepath.Join(s.studiesDir(), name)
	info, err := os.Lstat(dir)
	if !engine.ValidName(name) || err != nil || !info.IsDir() {
		return nil, "", failed(http.StatusNotFound, "there is no study %q here (memroom tune list)",
			clip(name, 60))
	}
	stamp := engine.Stamp(dir)
	c := &s.studies
	c.mu.Lock()
	defer c.mu.Unlock()
	if known, ok := c.read[name]; ok && known.stamp == stamp {
		return known.engine, stamp, nil
	}
	e, err := engine.View(dir)
	if err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return nil, "", failed(http.StatusNotFound, "study %s has no study.json", name)
		}
		return nil, "", failed(http.StatusConflict, "study %s cannot be read: %v", name, err)
	}
	if c.read == nil || len(c.read) >= cachedStudies {
		c.read = map[string]readStudy{}
	}
	c.read[name] = readStudy{stamp, e}
	return e, stamp, nil
}

// picture is a study as the page shows it, without the secrets of its command.
func (s *Server) picture(e *engine.Engine) trial.Picture {
	p := e.Picture(time.Now())
	p.Command = store.MaskArguments(p.Command)
	return p
}

func (s *Server) listStudies(w http.ResponseWriter, _ *http.Request) error {
	names, err := engine.Names(s.studiesDir())
	if err != nil {
		return readable(err)
	}
	list := []StudyRow{}
	for _, name := range names {
		e, _, err := s.study(name)
		if err != nil {
			list = append(list, StudyRow{Name: name, Problem: err.Error()})
			continue
		}
		row := StudyRow{Name: name, Created: e.Spec.Created, Metric: e.Spec.Options.Metric,
			Mode: e.Spec.Options.Mode, Wanted: e.Wanted(), States: e.Study.Count(),
			Working: e.Working()}
		if best := e.Study.Best(); best != nil {
			row.Best = best.Value
		}
		list = append(list, row)
	}
	slices.SortStableFunc(list, func(a, b StudyRow) int { return b.Created.Compare(a.Created) })
	return answer(w, map[string]any{"studies": list})
}

func (s *Server) showStudy(w http.ResponseWriter, r *http.Request) error {
	e, _, err := s.study(r.PathValue("name"))
	if err != nil {
		return err
	}
	return answer(w, s.picture(e))
}

// followStudy sends an event when a study has changed. A picture of thousands of trials is large,
// so the page asks for it when it is ready for the next one.
func (s *Server) followStudy(w http.ResponseWriter, r *http.Request) error {
	name := r.PathValue("name")
	if _, _, err := s.study(name); err != nil {
		return err
	}
	return s.follow(w, r, "changed", func() ([]byte, error) {
		e, stamp, err := s.study(name)
		if err != nil {
			return nil, err
		}
		return json.Marshal(map[string]any{"stamp": stamp, "states": e.Study.Count(),
			"working": e.Working()})
	})
}
