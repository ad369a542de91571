package api

import (
	"context"
	"encoding/json"
	"os"
	"strings"
	"sync"
	"time"

	"memroom/store"
)

// feed is what all viewers of one run share: its files are read and turned into events once for
// all of them, however many there are. It lives as long as it has a viewer.
type feed struct {
	server  *Server
	folder  *store.Folder
	viewers int // under server.feeding
	left    chan struct{}

	mu      sync.Mutex
	seen    moment
	sizes   [3]int64
	stateAt time.Time
	packets map[place]packet // of this moment, by where they begin
}

// moment is what a viewer must know to go on.
type moment struct {
	changed chan struct{} // closed once there is more
	over    bool
	state   []byte // how the run stands, as JSON
	stated  int    // counts states
}

// packet is a piece of the stream, ready to send, and where the next begins.
type packet struct {
	body []byte
	to   place
}

// viewersPerPoll is how many viewers are sent to at the full pace. With more of them each gets
// larger packets less often, so that a crowd costs the machine, which may be the one that trains,
// little more than a few.
const viewersPerPoll = 25

// keptPackets bounds what is kept for others who read on from the same place.
const keptPackets = 64

// join adds a viewer to the feed of a run. It returns the feed and a function that removes the
// viewer.
func (s *Server) join(folder *store.Folder) (f *feed, leave func()) {
	s.feeding.Lock()
	defer s.feeding.Unlock()
	key := folder.Dir
	f = s.feeds[key]
	if f == nil {
		f = &feed{server: s, folder: folder, left: make(chan struct{}),
			seen: moment{changed: make(chan struct{})}, packets: map[place]packet{}}
		f.look()
		if s.feeds == nil {
			s.feeds = map[string]*feed{}
		}
		s.feeds[key] = f
		go f.watch()
	}
	f.viewers++
	return f, func() {
		s.feeding.Lock()
		defer s.feeding.Unlock()
		if f.viewers--; f.viewers == 0 {
			close(f.left)
			delete(s.feeds, key)
		}
	}
}

// watch looks at the run until nobody does.
func (f *feed) watch() {
	for {
		f.server.feeding.Lock()
		pause := f.server.options.Poll * time.Duration(1+f.viewers/viewersPerPoll)
		f.server.feeding.Unlock()
		select {
		case <-f.left:
			return
		case <-f.server.closed:
			return
		case <-time.After(pause):
			f.look()
		}
	}
}

var liveFiles = [3]string{"samples.jsonl", "steps.jsonl", "events.jsonl"}

// look wakes the viewers if the run has written something, once a second if it stands otherwise,
// and when it is over.
func (f *feed) look() {
	over := !f.folder.Running() // before the sizes: what comes after the end is read too
	var sizes [3]int64
	for i, name := range liveFiles {
		if info, err := os.Stat(f.folder.Path(name)); err == nil {
			sizes[i] = info.Size()
		}
	}
	var state []byte
	if over || time.Since(f.stateAt) >= time.Second {
		f.stateAt = time.Now()
		state, _ = json.Marshal(f.server.overview(context.Background(), f.folder.Row()))
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	stands := state != nil && string(state) != string(f.seen.state)
	if sizes == f.sizes && over == f.seen.over && !stands {
		return
	}
	f.sizes, f.packets = sizes, map[place]packet{}
	next := moment{changed: make(chan struct{}), over: over, state: f.seen.state,
		stated: f.seen.stated}
	if stands {
		next.state = state
		next.stated++
	}
	close(f.seen.changed)
	f.seen = next
}

func (f *feed) now() moment {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.seen
}

// next returns what was written from a place on, and reports whether there is more.
func (f *feed) next(from place) (p packet, more bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if p, known := f.packets[from]; known {
		return p, false
	}
	var out stream
	at := from
	for i, to := range []*int64{&at.samples, &at.steps, &at.events} {
		extract := plainLine
		if liveFiles[i] == "events.jsonl" {
			extract = eventLine
		}
		list := []byte{'['}
		left := false
		*to = store.LinesFrom(f.folder.Path(liveFiles[i]), *to, func(line []byte) bool {
			if text := extract(line); text != nil {
				if len(list) > 1 {
					list = append(list, ',')
				}
				list = append(list, text...)
			}
			left = len(list) > packetBytes
			return !left
		})
		more = more || left
		if len(list) > 1 {
			kind, _, _ := strings.Cut(liveFiles[i], ".")
			out.add(kind, at.String(), append(list, ']'))
		}
	}
	p = packet{out.body.Bytes(), at}
	if !more && len(f.packets) < keptPackets {
		f.packets[from] = p
	}
	return p, more
}
