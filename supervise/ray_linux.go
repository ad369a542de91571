package supervise

import (
	"cmp"
	"path"
	"regexp"
	"slices"
	"strconv"
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
	var store event.RayStore
	for _, pid := range r.tree.Processes() {
		words, err := r.proc.CommandLine(pid)
		if err != nil || len(words) == 0 {
			continue
		}
		if path.Base(words[0]) == "raylet" {
			r.ray.running = true
			store.Capacity += rayCapacity(words)
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
		g.Actor = g.Actor || rayMethod.MatchString(words[0])
		g.Largest = max(g.Largest, status.Anonymous)
		g.Sum += status.Anonymous
	}
	for _, g := range groups {
		if r.ray.actors == nil {
			r.ray.actors = map[string]bool{}
		}
		// between two calls the title has no method
		r.ray.actors[g.Name] = r.ray.actors[g.Name] || g.Actor
		g.Actor = r.ray.actors[g.Name]
		s.Ray = append(s.Ray, *g)
	}
	// every process that reads or writes an object maps its pages: only a cgroup counts them once
	if c := s.Cgroup; store.Capacity > 0 && c != nil && c.Own {
		store.Filled = c.Shmem
		s.RayStore = &store
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

// rayMethod is the title of an actor at work. A function inside another is called outer.<locals>.f.
var rayMethod = regexp.MustCompile(`^ray::\w+\.\w`)

// rayCapacity is the size of the object store that a raylet was started with, 0 unknown.
func rayCapacity(words []string) event.Bytes {
	for _, word := range words {
		if text, found := strings.CutPrefix(word, "--object_store_memory="); found {
			bytes, _ := strconv.ParseInt(text, 10, 64)
			return event.Bytes(max(0, bytes))
		}
	}
	return 0
}

// rayWatch is what is known of Ray in the run.
type rayWatch struct {
	running bool
	looked  time.Time
	actors  map[string]bool // groups that were seen to be actors
}
