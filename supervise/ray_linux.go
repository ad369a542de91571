package supervise

import (
	"cmp"
	"path"
	"slices"
	"strings"
	"time"

	"memroom/event"
)

// rayCrowd is how many processes there are at the least where Ray runs: driver, raylet and others.
const rayCrowd = 4

// readRay groups Ray's processes by what they work on, which they write into their titles. Where
// there is no raylet the titles are looked at now and then only.
func (r *sampler) readRay(s *event.Sample, now time.Time) {
	const every = 5 * time.Second
	if s.Processes < rayCrowd || !r.ray.running && now.Sub(r.ray.looked) < every {
		return
	}
	r.ray.looked, r.ray.running = now, false
	groups := map[string]*event.RaySample{}
	for _, pid := range r.tree.Processes() {
		words, err := r.proc.CommandLine(pid)
		if err != nil || len(words) == 0 {
			continue
		}
		if path.Base(words[0]) == "raylet" {
			r.ray.running = true
		}
		name, worker := rayName(words[0])
		if !worker {
			continue
		}
		status, err := r.proc.Status(pid)
		if err != nil {
			continue
		}
		g := groups[name]
		if g == nil {
			g = &event.RaySample{Name: name}
			groups[name] = g
		}
		g.Count++
		g.Largest = max(g.Largest, status.Anonymous)
		g.Sum += status.Anonymous
	}
	for _, g := range groups {
		s.Ray = append(s.Ray, *g)
	}
	slices.SortFunc(s.Ray, func(a, b event.RaySample) int { return cmp.Compare(a.Name, b.Name) })
}

// rayName reads a title such as "ray::ImplicitFunc.train()" or "ray::train_fn". A worker that waits
// for work is called IDLE.
func rayName(title string) (name string, worker bool) {
	name, worker = strings.CutPrefix(title, "ray::")
	name, _, _ = strings.Cut(name, "(")
	name, _, _ = strings.Cut(strings.TrimSpace(name), ".")
	if name == "ImplicitFunc" {
		name = "Tune's trials" // a function that Ray Tune runs
	}
	own := name == "IDLE" || name == "DashboardAgent" || name == "RuntimeEnvAgent"
	return name, worker && name != "" && !own
}

// rayWatch is what is known of Ray in the run.
type rayWatch struct {
	running bool
	looked  time.Time
}
