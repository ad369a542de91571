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
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"runtime/debug"
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
	// End returns how a run ended and what to do next. It needs what only the caller knows.
	End func(*store.Folder) (report.End, error)
	// Explain returns why memory ran out and what helps; nil for a run with nothing to explain.
	Explain func(*store.Folder) (*report.ExplainPage, error)
	// Left describes what remains of a run whose keeper was killed.
	Left func(*store.Folder) (words string, process int)
	// Token that requests must carry. Without one nobody gets in but, with Peers, to look.
	Token string
	// Peers lets this user's own connections and root's look without a token. [KnowsPeers] reports
	// whether the system can distinguish them from others.
	Peers bool
	// Local means that only this machine can reach the server.
	Local bool
	// Hosts are names that the server answers to, in addition to addresses and localhost.
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
	reasons   kept[*report.ExplainPage]
	sparks    kept[[]float64]
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
	endless      bool // it goes on as long as something moves
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
	s := &Server{options: o, guard: newGuard(o), started: time.Now(),
		mux: http.NewServeMux(), plans: make(chan struct{}, 2), closed: make(chan struct{})}
	s.snapshots = newSnapshots(o.Temporary, o.UploadLimit, s.closed)
	s.assets = pageAssets()
	s.routes = []route{
		{"GET", "/api/runs", s.listRuns, false},
		{"GET", "/api/runs/{id}", s.showRun, false},
		{"GET", "/api/runs/{id}/series", s.showSeries, false},
		{"GET", "/api/runs/{id}/reports", s.showReports, false},
		{"GET", "/api/runs/{id}/account", s.showAccount, false},
		{"GET", "/api/runs/{id}/events", s.showEvents, false},
		{"GET", "/api/runs/{id}/explanation", s.explainRun, false},
		{"GET", "/api/runs/{id}/log", s.showLog, false},
		{"GET", "/api/runs/{id}/live", s.followRun, true},
		{"GET", "/api/live", s.followRuns, true},
		{"GET", "/api/compare", s.compareRuns, false},
		{"POST", "/api/snapshots", s.uploadSnapshot, true},
		{"GET", "/api/snapshots", s.listSnapshots, false},
		{"GET", "/api/snapshots/{id}", s.showSnapshot, false},
		{"GET", "/api/snapshots/{id}/data", s.snapshotData, true},
		{"GET", "/api/snapshots/{id}/whatif", s.snapshotWhatIf, true},
		{"DELETE", "/api/snapshots/{id}", s.dropSnapshot, false},
		{"GET", "/api/plan", s.showPlan, false},
		{"POST", "/api/plan", s.showPlan, false},
		{"GET", "/api/presets", s.listPresets, false},
		{"GET", "/api/studies", s.listStudies, false},
		{"GET", "/api/studies/{name}", s.showStudy, false},
		{"GET", "/api/studies/{name}/live", s.followStudy, true},
		{"POST", "/api/reports", s.takeHello, false},
		{"POST", "/api/reports/{key}", s.takeFrames, false},
		{"GET", "/metrics", s.showMetrics, false},
		{"GET", "/openapi.json", s.showOpenAPI, false},
		{"GET", "/healthz", s.showHealth, false},
	}
	for _, r := range s.routes {
		within := answerWithin
		if r.endless {
			within = 0
		}
		s.mux.Handle(r.method+" "+r.path, s.answering(r.handle, within))
	}
	for name, a := range s.assets {
		s.mux.Handle("GET /"+name, s.answering(a.serve, answerWithin))
	}
	for _, path := range []string{"/{$}", "/runs", "/runs/{id}", "/compare", "/snapshots",
		"/snapshots/{id}", "/plan", "/studies", "/studies/{name}"} {
		s.mux.Handle("GET "+path, s.answering(s.assets["index.html"].serve, answerWithin))
	}
	s.mux.Handle("/", s.answering(s.nothingHere, answerWithin))
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

// answerWithin bounds the work on one answer. Streams, and uploads of snapshots, have bounds of
// their own: they go on as long as something moves.
const answerWithin = time.Minute

// answering turns a handler's error into an answer. A handler looks at its request's context, which
// ends when the client has gone or the time is over. One that panics costs its own client an
// answer, and nobody else anything.
func (s *Server) answering(handle func(http.ResponseWriter, *http.Request) error,
	within time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			if p := recover(); p != nil {
				s.options.Log.Printf("%s %q: a bug in memroom: %v\n%s", r.Method, r.URL.Path, p,
					debug.Stack())
				s.fail(w, r, failed(http.StatusInternalServerError, "a bug in memroom: its server "+
					"has printed what it is, please report it"))
			}
		}()
		if within == 0 {
			if err := handle(w, r); err != nil {
				s.fail(w, r, err)
			}
			return
		}
		ctx, stop := context.WithTimeout(r.Context(), within)
		defer stop()
		if r.Method == http.MethodPost {
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(patience))
		}
		out := &reply{ResponseWriter: w, ctx: ctx}
		err := handle(out, r.WithContext(ctx))
		switch {
		case r.Context().Err() != nil || out.begun: // nobody waits, or all is said
		case ctx.Err() != nil:
			s.fail(w, r, failed(http.StatusServiceUnavailable, "this took longer than %v: try again "+
				"when the server has less to do", within))
		case err != nil:
			s.fail(w, r, err)
		}
	})
}

// reply is an answer that does not begin once the time for it is over: what was read by then is not
// all.
type reply struct {
	http.ResponseWriter
	ctx   context.Context
	begun bool
}

func (r *reply) Unwrap() http.ResponseWriter { return r.ResponseWriter }

func (r *reply) WriteHeader(status int) {
	if r.begun = r.begun || r.ctx.Err() == nil; r.begun {
		r.ResponseWriter.WriteHeader(status)
	}
}

func (r *reply) Write(data []byte) (int, error) {
	if r.begun = r.begun || r.ctx.Err() == nil; !r.begun {
		return 0, r.ctx.Err()
	}
	return r.ResponseWriter.Write(data)
}

// readBody reads what a request brings, up to a size. Who sends it slowly waits alone: nothing is
// taken for the request before it is whole.
func readBody(w http.ResponseWriter, r *http.Request, most int64) ([]byte, error) {
	data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, most))
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return nil, failed(http.StatusRequestEntityTooLarge, "a request here has at most %s",
			event.Bytes(most))
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, failed(http.StatusRequestTimeout, "the request was not there after %v", patience)
	case err != nil:
		return nil, failed(http.StatusBadRequest, "the request broke off")
	}
	// The server notices by reading that a client has gone: that has no deadline.
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	return data, nil
}

func (s *Server) fail(w http.ResponseWriter, r *http.Request, err error) {
	var f failure
	if !errors.As(err, &f) {
		f = failure{http.StatusInternalServerError, err.Error()}
	}
	if f.status >= 500 {
		s.options.Log.Printf("%s %q: %s", r.Method, r.URL.Path, f.text)
	}
	w.Header().Del("Content-Length") // of an answer that did not begin in time
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(f.status)
	_ = json.NewEncoder(w).Encode(map[string]any{"error": f.text, "status": f.status})
}

func (s *Server) nothingHere(w http.ResponseWriter, r *http.Request) error {
	for _, known := range s.routes {
		if known.path == r.URL.Path && known.method != r.Method {
			return failed(http.StatusMethodNotAllowed, "%s takes %s", known.path, known.method)
		}
	}
	if strings.Contains(r.Header.Get("Accept"), "text/html") { // a person: answer with a page
		r.Header.Del("If-None-Match")
		return s.assets["index.html"].serve(missing{w}, r)
	}
	return failed(http.StatusNotFound, "there is nothing at this address: /openapi.json lists "+
		"what there is")
}

// missing sends a body with the status 404 (Not Found).
type missing struct{ http.ResponseWriter }

func (m missing) Write(data []byte) (int, error) {
	m.WriteHeader(http.StatusNotFound)
	return m.ResponseWriter.Write(data)
}

func (s *Server) showHealth(w http.ResponseWriter, _ *http.Request) error {
	return answer(w, map[string]any{"ok": true, "version": s.options.Version})
}

// answer writes a value as JSON.
func answer(w http.ResponseWriter, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return failed(http.StatusUnprocessableEntity, "this record is damaged: %v", err)
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

// list returns the runs of all stores, newest first.
func (s *Server) list(ctx context.Context, filter store.Filter) ([]store.Row, error) {
	var all []store.Row
	for _, kept := range s.stores() {
		rows, err := kept.ListWhile(ctx, filter)
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

// Loopback reports whether an address to listen on can be reached from this machine only.
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
