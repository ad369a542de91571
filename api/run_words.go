package api

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"memroom/event"
	"memroom/fit"
	"memroom/remedy"
	"memroom/report"
	"memroom/store"
)

// kept holds values that cost something to make, by a run's folder: those made last.
type kept[V any] struct {
	mu    sync.Mutex
	order []string
	of    map[string]V
}

const mostKept = 1000

func (k *kept[V]) get(folder *store.Folder) (V, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	v, ok := k.of[folder.Dir]
	return v, ok
}

func (k *kept[V]) put(folder *store.Folder, v V) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.of == nil {
		k.of = map[string]V{}
	}
	if _, known := k.of[folder.Dir]; !known {
		k.order = append(k.order, folder.Dir)
	}
	k.of[folder.Dir] = v
	if len(k.order) > mostKept {
		delete(k.of, k.order[0])
		k.order = k.order[1:]
	}
}

// name fills in what people know the run by.
func (o *Overview) name() {
	words := strings.Fields(o.Command)
	o.Script, o.Model = scriptOf(words), modelOf(words)
	for _, tag := range o.Tags {
		if study, ok := strings.CutPrefix(tag, "study:"); ok {
			o.Study = study
		}
	}
}

// scriptOf returns the program's file without its folder; of python -m the module.
func scriptOf(words []string) string {
	script := fit.Script(words)
	if filepath.Ext(script) != ".py" {
		for i, w := range words[:max(0, len(words)-1)] {
			if w == "-m" && strings.HasPrefix(filepath.Base(words[0]), "python") {
				return words[i+1]
			}
		}
	}
	return filepath.Base(script)
}

// modelFlags are the arguments by which training programs take their model.
var modelFlags = []string{"model", "model_name", "model_name_or_path", "base_model", "arch",
	"pretrained_model_name_or_path"}

// modelOf returns what the command names as its model: --model NAME, --model=NAME or model=NAME.
func modelOf(words []string) string {
	for i, w := range words {
		name, value, given := strings.Cut(strings.TrimLeft(w, "-"), "=")
		name = strings.ReplaceAll(strings.ToLower(name), "-", "_")
		for _, flag := range modelFlags {
			switch {
			case name != flag:
			case given:
				return value
			case w[0] == '-' && i+1 < len(words) && !strings.HasPrefix(words[i+1], "-"):
				return words[i+1]
			}
		}
	}
	return ""
}

// curesOf returns the titles of the remedies that findings name.
func curesOf(findings []event.Finding) map[string]string {
	titles := map[string]string{}
	for _, f := range findings {
		for _, id := range f.Remedies {
			if r, ok := remedy.Find(remedy.ID(id)); ok {
				titles[id] = r.TitleFor(remedy.Job{})
			}
		}
	}
	return titles
}

// shortWords say by a finding's kind what was found.
var shortWords = map[string]string{"leak": "memory leak", "filled": "memory filled",
	"host_pressure": "host memory nearly full", "fragmentation": "memory in fragments",
	"thrash": "cache emptied again and again", "spike": "one large peak",
	"worker_growth": "data loader workers grow", "neighbour": "another process on the card",
	"unused_gpu": "card hardly used", "swap": "swapping", "shm": "shared memory full",
	"forecast": "will run out", "checkpoint": "checkpoint held twice",
	"evaluation": "peak in evaluation", "models": "models kept in a loop",
	"retraced": "traced again and again", "generation": "long generation",
	"trials": "too many trials at once", "object_store": "object store full",
	"actor": "an actor grows", "feeding": "feeding holds much"}

// shortly describes a finding in about five words, with its line of code if there is one.
func shortly(f event.Finding) string {
	words := cmp.Or(shortWords[f.Kind], strings.ReplaceAll(f.Kind, "_", " "))
	if len(f.Frames) > 0 {
		words += fmt.Sprintf(", %s:%d", filepath.Base(f.Frames[0].File), f.Frames[0].Line)
	}
	return words
}

// sparkPoints is the width of the small picture in a list.
const sparkPoints = 40

// spark returns the memory of a run that is over. It takes the kind of memory with the least left,
// which shows how the run came to its end. It is computed once per run.
func (s *Server) spark(folder *store.Folder, o Overview) []float64 {
	if o.Status == store.Running || len(o.Room) == 0 {
		return nil
	}
	if known, ok := s.sparks.get(folder); ok {
		return known
	}
	column, limit := fullest(o.Room)
	piece, err := folder.SampleSeries().Between(0, math.MaxInt64, sparkPoints,
		func(name string) bool { return name == column })
	if err != nil {
		return nil
	}
	list := sharesOf(piece, float64(limit))
	s.sparks.put(folder, list)
	return list
}

// fullest returns the column of the readings that shows the memory with the least left, and its
// limit: 0 where there is none.
func fullest(rooms []Room) (column string, limit event.Bytes) {
	column, most, card := "host", -1.0, 0
	for _, r := range rooms {
		name := "host"
		switch r.Kind {
		case "gpu":
			name = fmt.Sprintf("gpu%d.used", card)
			card++
		case "shm":
			continue
		}
		if full := share(r); full > most {
			column, limit, most = name, r.Limit, full
		}
	}
	return column, limit
}

// sharesOf returns the highest values of a piece as shares of a limit, or of their own peak.
func sharesOf(piece store.Piece, limit float64) []float64 {
	list := []float64{}
	for _, c := range piece.Columns {
		for i, v := range c.High {
			if c.Low[i] > v { // absent
				continue
			}
			list = append(list, float64(v))
		}
	}
	top := max(limit, 1)
	if limit <= 0 && len(list) > 0 {
		top = max(slices.Max(list), 1)
	}
	for i := range list {
		list[i] = math.Round(1000*list[i]/top) / 1000
	}
	return list
}

func share(r Room) float64 {
	if r.Limit <= 0 {
		return 0
	}
	return float64(r.Peak) / float64(r.Limit)
}

// explainRun answers why memory ran out and what helps. What is explained once is kept.
func (s *Server) explainRun(w http.ResponseWriter, r *http.Request) error {
	folder, err := s.run(r)
	if err != nil {
		return err
	}
	page, err := s.reason(r.Context(), folder)
	if err != nil {
		return err
	}
	return answer(w, map[string]any{"explanation": page})
}

// reason returns the explanation of a run that is over; nil where there is nothing to explain. The
// logs and snapshots that it reads may be long: the work goes on when nobody waits any more, and
// takes the place of a plan.
func (s *Server) reason(ctx context.Context, folder *store.Folder) (*report.ExplainPage, error) {
	if row := folder.Row(); s.options.Explain == nil || row.Status == store.Running {
		return nil, nil
	}
	if page, ok := s.reasons.get(folder); ok {
		return page, nil
	}
	type answered struct {
		page *report.ExplainPage
		err  error
	}
	done := make(chan answered, 1)
	select {
	case s.plans <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	go func() {
		defer func() {
			<-s.plans
			if p := recover(); p != nil { // of a record that is not as it should be
				s.options.Log.Printf("%s: a bug in memroom: %v", folder.ID, p)
				done <- answered{nil, failed(http.StatusInternalServerError,
					"this run cannot be explained: a bug in memroom")}
			}
		}()
		page, err := s.options.Explain(folder)
		if err == nil {
			s.reasons.put(folder, page)
		}
		done <- answered{page, err}
	}()
	select {
	case a := <-done:
		return a.page, a.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
