package api

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"memroom/store"
)

// stream is one viewer's connection for server-sent events.
type stream struct {
	w       http.ResponseWriter
	control *http.ResponseController
	body    bytes.Buffer
}

// A viewer that takes nothing for so long has gone.
const patience = 30 * time.Second

// newStream answers with the head of a stream.
func newStream(w http.ResponseWriter) *stream {
	s := &stream{w: w, control: http.NewResponseController(w)}
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Accel-Buffering", "no") // proxies hold answers back otherwise
	w.WriteHeader(http.StatusOK)
	s.body.WriteString("retry: 1000\n\n")
	return s
}

// add puts an event into the next packet. data must have no line breaks, which JSON has not.
func (s *stream) add(kind, id string, data []byte) {
	fmt.Fprintf(&s.body, "event: %s\n", kind)
	if id != "" {
		fmt.Fprintf(&s.body, "id: %s\n", id)
	}
	s.body.WriteString("data: ")
	s.body.Write(data)
	s.body.WriteString("\n\n")
}

// send writes what was added. It fails when the viewer has gone.
func (s *stream) send() error {
	if s.body.Len() == 0 {
		return nil
	}
	_ = s.control.SetWriteDeadline(time.Now().Add(patience))
	_, err := s.w.Write(s.body.Bytes())
	s.body.Reset()
	if s.body.Cap() > 1<<20 {
		s.body = bytes.Buffer{}
	}
	if err != nil {
		return err
	}
	return s.control.Flush()
}

// place is how far a viewer has read each file. It is the ID of every event sent, so that a viewer
// who comes back goes on with the next line: nothing is lost and nothing comes twice.
type place struct{ samples, steps, events int64 }

func (p place) String() string { return fmt.Sprintf("%d.%d.%d", p.samples, p.steps, p.events) }

func parsePlace(text string) (p place, err error) {
	parts := strings.Split(text, ".")
	at := []*int64{&p.samples, &p.steps, &p.events}
	good := len(parts) == len(at)
	for i := 0; good && i < len(at); i++ {
		*at[i], err = strconv.ParseInt(parts[i], 10, 64)
		good = err == nil && *at[i] >= 0
	}
	if !good {
		return p, failed(http.StatusBadRequest, "Last-Event-ID %q: three numbers with dots, as the "+
			"stream gave it", clip(text, 60))
	}
	return p, nil
}

// quietFor is how long a stream may be silent: then a comment keeps proxies from closing it.
const quietFor = 15 * time.Second

const stillHere = ": still here\n\n" // a comment

// packetBytes bounds what is read of a file for one packet. What is left comes in the next.
const packetBytes = 256 << 10

// followRun sends what a run writes: readings and steps as the monitor wrote them, what happened,
// and once a second what it has learnt. It begins at the place that Last-Event-ID or ?from= names,
// else at the end.
func (s *Server) followRun(w http.ResponseWriter, r *http.Request) error {
	folder, err := s.run(r)
	if err != nil {
		return err
	}
	from := r.Header.Get("Last-Event-ID")
	if from == "" {
		from = r.URL.Query().Get("from")
	}
	var at place
	if from != "" {
		if at, err = parsePlace(from); err != nil {
			return err
		}
	} else {
		at = place{wholeLines(folder.Path("samples.jsonl")), wholeLines(folder.Path("steps.jsonl")),
			wholeLines(folder.Path("events.jsonl"))}
	}
	s.viewers.Add(1)
	defer s.viewers.Add(-1)
	f, leave := s.join(folder)
	defer leave()
	out := newStream(w)
	quiet := time.NewTimer(quietFor)
	defer quiet.Stop()
	said := 0
	for {
		now := f.now()
		for more := true; more; {
			var p packet
			p, more = f.next(at)
			at = p.to
			out.body.Write(p.body)
			if out.send() != nil {
				return nil
			}
		}
		if now.stated != said {
			said = now.stated
			out.add("state", "", now.state)
		}
		if now.over { // everything was read after the end
			out.add("over", at.String(), []byte("{}"))
			_ = out.send()
			return nil
		}
		if out.send() != nil {
			return nil
		}
		quiet.Reset(quietFor)
		select {
		case <-r.Context().Done():
			return nil
		case <-s.closed:
			return nil
		case <-now.changed:
		case <-quiet.C:
			out.body.WriteString(stillHere)
		}
	}
}

// plainLine returns a line that is JSON, without its end.
func plainLine(line []byte) []byte {
	line = bytes.TrimSpace(line)
	if len(line) == 0 || !json.Valid(line) {
		return nil
	}
	return line
}

func eventLine(line []byte) []byte {
	if line = plainLine(line); line == nil {
		return nil
	}
	var h struct {
		Kind string `json:"kind"`
	}
	if json.Unmarshal(line, &h) != nil || !wanted("")(h.Kind) {
		return nil
	}
	return line
}

// followRuns sends the newest runs whenever one of them has changed.
func (s *Server) followRuns(w http.ResponseWriter, r *http.Request) error {
	return s.follow(w, r, "runs", s.newest)
}

// follow keeps a stream open until the viewer or the server leaves. It sends the result of latest
// whenever that has changed. A result that cannot be read at the moment is left out.
func (s *Server) follow(w http.ResponseWriter, r *http.Request, kind string,
	latest func() ([]byte, error)) error {
	s.viewers.Add(1)
	defer s.viewers.Add(-1)
	out := newStream(w)
	tick := time.NewTicker(max(time.Second, s.options.Poll))
	defer tick.Stop()
	var said []byte
	last := time.Now()
	for {
		if data, err := latest(); err == nil && !bytes.Equal(data, said) {
			said = data
			out.add(kind, "", data)
		} else if time.Since(last) > quietFor {
			out.body.WriteString(stillHere)
		}
		if out.body.Len() > 0 {
			last = time.Now()
		}
		if out.send() != nil {
			return nil
		}
		select {
		case <-r.Context().Done():
			return nil
		case <-s.closed:
			return nil
		case <-tick.C:
		}
	}
}

// newest is the list of the newest runs as JSON, made at most once a second for all viewers.
func (s *Server) newest() ([]byte, error) {
	s.listed.Lock()
	defer s.listed.Unlock()
	if time.Since(s.listedAt) < 900*time.Millisecond && s.listing != nil {
		return s.listing, nil
	}
	ctx, stop := context.WithTimeout(context.Background(), answerWithin) // for all viewers
	defer stop()
	rows, err := s.list(ctx, store.Filter{Limit: runsDefault})
	if err != nil {
		return nil, err
	}
	list, err := s.overviews(ctx, rows)
	if err != nil {
		return nil, err
	}
	s.listing, err = json.Marshal(list)
	s.listedAt = time.Now()
	return s.listing, err
}
