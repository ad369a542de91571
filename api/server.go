// Package api serves memroom's page and what it shows: runs, live and past, snapshots and plans, as
// JSON over HTTP and as server-sent events, and Prometheus' metrics. openapi.json describes every
// address.
//
// It reads the store and changes nothing in it. Everything that comes from a run or from a file is
// data: it leaves as JSON and is shown as text. guard.go holds who may ask.
//
// Start at [New]; the addresses are the table in routes.
package api

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"memroom/central"
	"memroom/event"
	"memroom/report"
	"memroom/store"
)

// Options of a server. Store is needed, the rest has defaults.
type Options struct {
	Store   *store.Store
	Version string
	// Reported holds copies of the runs that other machines send; nil: there are none.
	Reported *store.Store
	// Receive opens what keeps their records; nil: none are taken.
	Receive func() (*central.Central, error)
	// End gives how a run ended and what to do next; it needs what only the caller knows.
	End func(*store.Folder) (report.End, error)
	// Left says what is left of a run whose keeper was killed.
	Left func(*store.Folder) (words string, process int)
	// Token that every request must carry; empty: none is needed.
	Token string
	// Local says that only this machine can reach the server.
	Local bool
	// Hosts are names by which the server may be called, beside addresses and localhost.
	Hosts []string
	// UploadLimit bounds one uploaded file.
	UploadLimit event.Bytes
	// Temporary is a private folder for uploads, which the caller removes.
	Temporary string
	// Poll is how often files of live runs are looked at.
	Poll time.Duration
	Log  *log.Logger
}

// DefaultUploadLimit is above what PyTorch writes for days of recording.
const DefaultUploadLimit = 8 * event.GiB

// Server answers requests. It is an http.Handler; Close ends what it follows.
type Server struct {
	options   Options
	guard     guard
	routes    []route
	mux       *http.ServeMux
	started   time.Time
	series    seriesCache
	snapshots *snapshots
	studies   studyCache
	plans     chan struct{} // how many plans are computed at once
	assets    map[string]asset
	closed    chan struct{}
	closing   sync.Once

	requests atomic.Int64
	refused  atomic.Int64
	viewers  atomic.Int64
	reported atomic.Int64 // requests of senders that were kept

	listed   sync.Mutex
	listedAt time.Time
	listing  []byte

	feeding sync.Mutex
	feeds   map[string]*feed // of the runs that somebody watches, by folder
}

// route is one address. Its pattern is in the words of http.ServeMux and, with {name} for
// parameters, in openapi.json.
type route struct {
	method, path string
	handle       func(w http.ResponseWriter, r *http.Request) error
}

// New makes a server.
func New(o Options) *Server {
	if o.Poll <= 0 {
		o.Poll = 250 * time.Millisecond
	}
	if o.UploadLimit <= 0 {
		o.UploadLimit = DefaultUploadLimit
	}
	if o.Log == nil {
		o.Log = log.New(io.Discard, "", 0)
	}
	s := &Server{options: o, guard: newGuard(o.Token, o.Local, o.Hosts), started: time.Now(),
		mux: http.NewServeMux(), plans: make(chan struct{}, 2), closed: make(chan struct{})}
	s.snapshots = newSnapshots(o.Temporary, o.UploadLimit, s.closed)
	s.assets = pageAssets()
	s.routes = []route{
		{"GET", "/api/runs", s.listRuns},
		{"GET", "/api/runs/{id}", s.showRun},
		{"GET", "/api/runs/{id}/series", s.showSeries},
		{"GET", "/api/runs/{id}/account", s.showAccount},
		{"GET", "/api/runs/{id}/events", s.showEvents},
		{"GET", "/api/runs/{id}/log", s.showLog},
		{"GET", "/api/runs/{id}/live", s.followRun},
		{"GET", "/api/live", s.followRuns},
		{"GET", "/api/compare", s.compareRuns},
		{"POST", "/api/snapshots", s.uploadSnapshot},
		{"GET", "/api/snapshots", s.listSnapshots},
		{"GET", "/api/snapshots/{id}", s.showSnapshot},
		{"GET", "/api/snapshots/{id}/data", s.snapshotData},
		{"GET", "/api/snapshots/{id}/whatif", s.snapshotWhatIf},
		{"DELETE", "/api/snapshots/{id}", s.dropSnapshot},
		{"GET", "/api/plan", s.showPlan},
		{"POST", "/api/plan", s.showPlan},
		{"GET", "/api/presets", s.listPresets},
		{"GET", "/api/studies", s.listStudies},
		{"GET", "/api/studies/{name}", s.showStudy},
		{"GET", "/api/studies/{name}/live", s.followStudy},
		{"POST", "/api/reports", s.takeHello},
		{"POST", "/api/reports/{key}", s.takeFrames},
		{"GET", "/metrics", s.showMetrics},
		{"GET", "/openapi.json", s.showOpenAPI},
		{"GET", "/healthz", s.showHealth},
	}
	for _, r := range s.routes {
		s.mux.Handle(r.method+" "+r.path, s.answering(r.handle))
	}
	for name, a := range s.assets {
		s.mux.Handle("GET /"+name, s.answering(a.serve))
	}
	for _, path := range []string{"/{$}", "/runs", "/runs/{id}", "/compare", "/snapshots",
		"/snapshots/{id}", "/plan", "/studies", "/studies/{name}"} {
		s.mux.Handle("GET "+path, s.answering(s.assets["index.html"].serve))
	}
	s.mux.Handle("/", s.answering(s.nothingHere))
	return s
}

// Close ends the streams of viewers and drops uploads.
func (s *Server) Close() {
	s.closing.Do(func() { close(s.closed) })
	s.snapshots.close()
}

// ServeHTTP lets in whom the guard lets in.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.requests.Add(1)
	setHeaders(w.Header())
	if redirect, err := s.guard.check(w, r); err != nil {
		s.refused.Add(1)
		s.fail(w, r, err)
		return
	} else if redirect {
		return
	}
	s.mux.ServeHTTP(w, r)
}

// failure is an error with the status it is answered with.
type failure struct {
	status int
	text   string
}

func (f failure) Error() string { return f.text }

func failed(status int, format string, args ...any) error {
	return failure{status, fmt.Sprintf(format, args...)}
}

// answering turns a handler's error into an answer.
func (s *Server) answering(handle func(http.ResponseWriter, *http.Request) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := handle(w, r); err != nil {
			s.fail(w, r, err)
		}
	})
}

func (s *Server) fail(w http.ResponseWriter, r *http.Request, err error) {
	var f failure
	if !errors.As(err, &f) {
		f = failure{http.StatusInternalServerError, err.Error()}
	}
	if r.Context().Err() != nil {
		return // nobody waits for the answer
	}
	if f.status >= 500 {
		s.options.Log.Printf("%s %q: %s", r.Method, r.URL.Path, f.text)
	}
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(f.status)
	_ = json.NewEncoder(w).Encode(map[string]any{"error": f.text, "status": f.status})
}

func (s *Server) nothingHere(_ http.ResponseWriter, r *http.Request) error {
	for _, known := range s.routes {
		if known.path == r.URL.Path && known.method != r.Method {
			return failed(http.StatusMethodNotAllowed, "%s takes %s", known.path, known.method)
		}
	}
	return failed(http.StatusNotFound, "there is nothing at this address: /openapi.json lists "+
		"what there is")
}

func (s *Server) showHealth(w http.ResponseWriter, _ *http.Request) error {
	return answer(w, map[string]any{"ok": true, "version": s.options.Version})
}

// answer writes a value as JSON.
func answer(w http.ResponseWriter, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return answerBytes(w, data)
}

func answerBytes(w http.ResponseWriter, data []byte) error {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Content-Length", strconv.Itoa(len(data)))
	_, _ = w.Write(data) // the viewer may have left
	return nil
}

// stores are where runs lie: this home's own, and copies of those that others send.
func (s *Server) stores() []*store.Store {
	if s.options.Reported == nil {
		return []*store.Store{s.options.Store}
	}
	return []*store.Store{s.options.Store, s.options.Reported}
}

// list gives the runs of all stores, newest first.
func (s *Server) list(filter store.Filter) ([]store.Row, error) {
	var all []store.Row
	for _, kept := range s.stores() {
		rows, err := kept.List(filter)
		if err != nil {
			return nil, err
		}
		all = append(all, rows...)
	}
	slices.SortStableFunc(all, newestFirst)
	if filter.Limit > 0 && len(all) > filter.Limit {
		all = all[:filter.Limit]
	}
	return all, nil
}

// newestFirst is the order of lists of runs.
func newestFirst(a, b store.Row) int {
	return cmp.Or(b.Started.Compare(a.Started), cmp.Compare(b.ID, a.ID))
}

// lookup finds a run in any store by its whole ID.
func (s *Server) lookup(id string) (*store.Folder, bool) {
	for _, kept := range s.stores() {
		if folder, ok := kept.Lookup(id); ok {
			return folder, true
		}
	}
	return nil, false
}

func (s *Server) folderOf(row store.Row) *store.Folder {
	if row.Reported && s.options.Reported != nil {
		return s.options.Reported.Folder(row.ID)
	}
	return s.options.Store.Folder(row.ID)
}

// run finds the run an address names. Only the whole ID counts, so that an address stays true.
func (s *Server) run(r *http.Request) (*store.Folder, error) {
	return s.runByID(r.PathValue("id"))
}

func (s *Server) runByID(id string) (*store.Folder, error) {
	folder, ok := s.lookup(id)
	if !ok {
		return nil, failed(http.StatusNotFound, "there is no run %q here: it may have been deleted "+
			"(memroom runs lists them)", clip(id, 60))
	}
	return folder, nil
}

// number reads a whole number from the query.
func number(r *http.Request, name string, otherwise, low, high int64) (int64, error) {
	text := r.URL.Query().Get(name)
	if text == "" {
		return otherwise, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < low || n > high {
		return 0, failed(http.StatusBadRequest, "%s=%s: a whole number from %d to %d", name,
			clip(text, 40), low, high)
	}
	return n, nil
}

// clip shortens what a request brought before it is said back.
func clip(text string, most int) string {
	if len(text) > most {
		return strings.ToValidUTF8(text[:most], "") + "..."
	}
	return text
}

// readable turns the error of a file into an answer.
func readable(err error) error {
	switch {
	case errors.Is(err, os.ErrNotExist):
		return failed(http.StatusNotFound, "the file is gone")
	case errors.Is(err, os.ErrPermission):
		return failed(http.StatusForbidden, "the file may not be read")
	}
	return err
}

// Loopback says whether an address to listen on can be reached from this machine only.
func Loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		host = address
	}
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip := net.ParseIP(strings.Trim(host, "[]"))
	return ip != nil && ip.IsLoopback()
}
