// Package serve hands the batches of a data set to other processes: one server for all workers and
// ranks of a machine, over a Unix socket, with batches in shared memory. docs/format/feed.md
// describes the protocol.
package serve

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"memroom/event"
	"memroom/feed"
	"memroom/feed/format"
	"memroom/feed/source"
	"memroom/feed/table"
)

// Config describes what is served, and in how much memory.
type Config struct {
	Sources  []string
	Columns  []string
	Options  format.Options
	Budget   event.Bytes
	ExitIdle bool // end when the last consumer has gone
	Log      func(format string, args ...any)

	// Host returns how short of memory the host is; the budget is lowered while it is. nil: the
	// host is not watched.
	Host func() Pressure
}

// The budget's parts. The rest, without rows and batches, is for reading, decoding, the collector.
const (
	fixedReserve = 24 << 20 // bytes: the runtime, and the pages of the program itself
	rowsShare    = 0.5
	batchesShare = 0.25
)

// leastWindow is the shuffle window of the smallest budgets.
const leastWindow = event.Bytes(16 << 20)

// WindowFor returns the shuffle window where the user names none: what the budget holds twice, one
// that is read and one that is decoded ahead. Only powers of two, so that budgets of about the same
// size have the same order.
func WindowFor(budget event.Bytes) int64 {
	window := leastWindow
	for 4*window <= event.Bytes(float64(budget-fixedReserve)*rowsShare) {
		window *= 2
	}
	return int64(window)
}

// How long a server that nobody uses stays: at the start, and after its last consumer.
const (
	firstPatience = 60 * time.Second
	idlePatience  = 1500 * time.Millisecond // 2 s together with ending
	leavePatience = time.Second             // for readers of files that have changed
	endPatience   = 10 * time.Second        // for consumers, once the server was asked to end
)

// Server serves one data set.
type Server struct {
	config  Config
	batches *account
	peak    *peakMeter
	now     atomic.Int64 // the budget at the moment, see squeeze.go

	opening sync.Mutex // held while files are indexed
	open    *opened    // nil before the first consumer, and after the files have changed
	readers int        // consumers that read from it

	mu        sync.Mutex
	consumers int
	served    int64
	idle      *time.Timer
	end       func() // nobody uses the server any more
	need      int64  // bytes: the largest window or block of the orders that were asked for
	squeezed  squeezed
}

// opened is the data as it was when it was indexed.
type opened struct {
	data        *feed.Dataset
	pool        *feed.Pool
	fingerprint string
}

// Serve serves until ctx ends, or until nobody uses the server any more.
func Serve(ctx context.Context, config Config, listener net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s := &Server{config: config, peak: newPeakMeter(ctx)}
	s.now.Store(int64(config.Budget))
	s.batches = newAccount(int64(float64(s.spare()) * batchesShare))
	s.setLimit()
	s.batches.changed = s.setLimit
	idle := make(chan struct{})
	s.end = sync.OnceFunc(func() { close(idle); cancel() })
	if config.ExitIdle {
		s.idle = time.AfterFunc(firstPatience, s.end)
	}
	if config.Host != nil {
		go s.follow(ctx)
	}
	go func() {
		<-ctx.Done()
		listener.Close()
	}()
	var all sync.WaitGroup
	defer waitFor(&all, idle, endPatience)
	for {
		conn, err := listener.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		unix := conn.(*net.UnixConn)
		if err := samePerson(unix); err != nil { // counts as nobody: it neither keeps nor ends us
			s.config.Log("refused a connection: %v", err)
			conn.Close()
			continue
		}
		all.Add(1)
		s.arrived()
		go func() {
			defer all.Done()
			left := sync.OnceFunc(s.left)
			defer left()
			defer conn.Close()
			s.consumer(ctx, unix, left)
		}()
	}
}

// waitFor waits for the work of all consumers, but not for one that is stuck in a file: a disk of
// the network that is gone must not keep the server from ending. Where idle is closed nobody is
// left to work for.
func waitFor(all *sync.WaitGroup, idle <-chan struct{}, most time.Duration) {
	done := make(chan struct{})
	go func() {
		all.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-idle:
	case <-time.After(most):
	}
}

// spare is the budget of the moment without the program's own memory.
func (s *Server) spare() int64 { return s.now.Load() - fixedReserve }

// wholeSpare is the same of the budget that was asked for.
func (s *Server) wholeSpare() int64 { return int64(s.config.Budget) - fixedReserve }

// take returns the data for a consumer: as it was indexed, or indexed anew where files have changed
// since and nobody reads the old ones. It waits for readers that are just leaving.
func (s *Server) take() (*opened, error) {
	var err error
	for end := time.Now().Add(leavePatience); ; time.Sleep(20 * time.Millisecond) {
		var from *opened
		if from, err = s.tryTake(); !errors.Is(err, errStillRead) || time.Now().After(end) {
			return from, err
		}
	}
}

// errStillRead means that the data has changed and others read it as it was.
var errStillRead = errors.New("other readers still use the data as it was before: wait for them, " +
	"or start another server")

func (s *Server) tryTake() (*opened, error) {
	s.opening.Lock()
	defer s.opening.Unlock()
	if s.open != nil {
		changed := s.open.data.Changed()
		if changed == nil {
			s.readers++
			s.open.pool.Join()
			return s.open, nil
		}
		if s.readers > 0 {
			return nil, fmt.Errorf("%w; %w", changed, errStillRead)
		}
		s.open.data.Close()
		s.open = nil
	}
	data, err := feed.Open(s.config.Sources, s.config.Columns, s.config.Options, nil)
	if err != nil {
		return nil, err
	}
	pool := feed.NewPool(data, int64(float64(s.wholeSpare())*rowsShare), runtime.GOMAXPROCS(0))
	pool.Resize(int64(float64(s.spare()) * rowsShare))
	s.open = &opened{data, pool, data.Fingerprint()}
	s.readers++
	pool.Join()
	return s.open, nil
}

func (s *Server) giveBack() {
	s.opening.Lock()
	defer s.opening.Unlock()
	s.readers--
	s.open.pool.Leave()
}

// setLimit sets the garbage collector's memory limit: the budget without what batches take.
func (s *Server) setLimit() {
	debug.SetMemoryLimit(s.spare() - s.batches.held() - (4 << 20))
}

func (s *Server) arrived() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.consumers++
	if s.idle != nil {
		s.idle.Stop()
	}
}

func (s *Server) left() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.consumers--
	if s.idle != nil && s.consumers == 0 {
		s.idle = time.AfterFunc(idlePatience, s.end)
	}
}

// request is the first line of a consumer.
type request struct {
	Version   int       `json:"version"`
	Spec      feed.Spec `json:"spec"`
	Epoch     uint64    `json:"epoch"`
	Start     int64     `json:"start"`  // first batch
	Stride    int64     `json:"stride"` // to the next
	From      int64     `json:"from"`   // the batch at which the pass began
	World     int64     `json:"world"`  // ranks that make the same number of steps; 0 or 1: any
	Depth     int       `json:"depth"`  // batches ahead; 0: as many as it takes
	Transport string    `json:"transport"`
	Pick      bool      `json:"pick"` // rows by their numbers, which the consumer sends
}

// answer is the server's first line.
type answer struct {
	Error   string         `json:"error,omitempty"`
	Columns []table.Column `json:"columns,omitempty"`
	Rows    int64          `json:"rows"`
	Batches int64          `json:"batches"`
	End     int64          `json:"end"` // of the pass; beyond batches, the first ones come again
	Windows int            `json:"windows"`
	Window  int64          `json:"window"`  // bytes
	Classes float64        `json:"classes"` // see feed.Classes; 0 where nothing is shuffled
	Data    string         `json:"data"`    // the fingerprint
	Skipped int64          `json:"skipped"`

	BadFiles []string `json:"bad_files,omitempty"`
}

// Report is what the server reports at the end of an epoch.
type Report struct {
	Budget  event.Bytes `json:"budget"`
	Peak    event.Bytes `json:"peak"`     // anonymous and shared memory
	PeakRSS event.Bytes `json:"peak_rss"` // with the pages of the program's own file
	Rows    event.Bytes `json:"rows_peak"`
	Windows int64       `json:"windows_decoded"`
	Batches int64       `json:"batches"`

	// ShrunkTo is how far the budget was lowered because the host was short of memory, 0 for never,
	// and ShrunkBy is what was short.
	ShrunkTo event.Bytes `json:"shrunk_to,omitempty"`
	ShrunkBy string      `json:"shrunk_by,omitempty"`

	Prefetch int `json:"prefetch,omitempty"` // batches that were ahead of this consumer at the end
}

// consumer serves one connection. It calls left once the other end is closed, whatever is being
// done for it at that moment: nobody waits for the result.
func (s *Server) consumer(ctx context.Context, conn *net.UnixConn, left func()) {
	in := bufio.NewReaderSize(conn, 64<<10)
	line, err := in.ReadBytes('\n')
	if err != nil {
		return
	}
	var r request
	if err := json.Unmarshal(line, &r); err != nil {
		refuse(conn, fmt.Errorf("the request is not JSON: %w", err))
		return
	}
	if err := r.check(); err != nil {
		refuse(conn, err)
		return
	}
	if r.Spec.Window <= 0 {
		r.Spec.Window = WindowFor(s.config.Budget)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	turn, asked := newTurns(r.Depth), make(chan []int64)
	var reading sync.WaitGroup
	defer reading.Wait()
	defer conn.Close()
	reading.Go(func() {
		defer left()
		defer cancel()
		if r.Pick {
			readNumbers(ctx, in, asked)
			return
		}
		turn.read(in)
	})
	settled := keepWaiting(conn)
	from, err := s.take()
	settled()
	if err != nil {
		refuse(conn, err)
		return
	}
	defer s.giveBack()
	if r.Pick {
		if err := s.pick(ctx, conn, asked, r, from); !errors.Is(err, errGone) {
			s.config.Log("%s", source.ShownText(err.Error()))
		}
		return
	}
	if err := s.fits(from.data, r.Spec); err != nil {
		refuse(conn, err)
		return
	}
	if err := s.stream(ctx, conn, turn, r, from); err != nil && !errors.Is(err, errGone) {
		s.config.Log("%s", source.ShownText(err.Error()))
	}
}

// stillHere is how often a consumer that waits for the index hears that the server works on it.
const stillHere = time.Second

// keepWaiting sends empty lines until settled is called, from the very beginning: a consumer that
// hears nothing takes the server for stuck.
func keepWaiting(conn net.Conn) (settled func()) {
	done := make(chan struct{})
	var writing sync.WaitGroup
	writing.Go(func() {
		tick := time.NewTicker(stillHere)
		defer tick.Stop()
		for {
			if _, err := conn.Write([]byte{'\n'}); err != nil {
				return // it has gone
			}
			select {
			case <-tick.C:
			case <-done:
				return
			}
		}
	})
	return func() { close(done); writing.Wait() }
}

func refuse(conn net.Conn, err error) {
	line, _ := json.Marshal(answer{Error: source.ShownText(err.Error())})
	_, _ = conn.Write(append(line, '\n')) // it may have gone
}

// check reports what is wrong with it.
func (r *request) check() error {
	if r.Spec.Batch <= 0 || r.Stride <= 0 || r.Start < 0 || r.From < 0 || r.World < 0 {
		return fmt.Errorf("batch and stride must be positive, start at least 0")
	}
	if r.Spec.Part != nil {
		if err := r.Spec.Part.Check(); err != nil {
			return err
		}
	}
	if r.Depth < 0 || r.Depth > deepest {
		return fmt.Errorf("prefetch must be 1 to %d, or 0 for as many as it takes", deepest)
	}
	return nil
}

// end is where the pass ends for all ranks: at a whole number of steps, which leaves out the last
// batches, or repeats the first ones, as the last batch of all is left out or not.
func (r *request) end(batches int64) int64 {
	left := max(0, batches-r.From)
	if r.World <= 1 || left == 0 {
		return batches
	}
	if !r.Spec.Drop {
		left += r.World - 1
	}
	return r.From + left/r.World*r.World
}

// fits returns an error if the budget cannot hold what the order needs at once.
func (s *Server) fits(data *feed.Dataset, spec feed.Spec) error {
	largest, where := data.LargestBlock()
	need := max(largest, min(spec.Window, data.DecodedBytes()))
	if need <= int64(float64(s.wholeSpare())*rowsShare) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.need = max(s.need, need)
		return nil
	}
	least := wholeMiB(event.Bytes(float64(need)/rowsShare) + fixedReserve)
	if largest > spec.Window {
		return fmt.Errorf("%s: a block of rows takes %s decoded, which is more than a budget of %s can "+
			"hold: give at least %s, or choose fewer columns", where, event.Bytes(largest), s.config.Budget,
			least)
	}
	return fmt.Errorf("a shuffle window of %s does not fit into a budget of %s: give at least %s, or a "+
		"smaller window (window= changes the order)", event.Bytes(spec.Window), s.config.Budget, least)
}

// wholeMiB rounds up.
func wholeMiB(n event.Bytes) event.Bytes { return (n + 1<<20) >> 20 << 20 }

func (s *Server) report(pool *feed.Pool) Report {
	s.mu.Lock()
	defer s.mu.Unlock()
	peak, rss := s.peak.read()
	return Report{Budget: s.config.Budget, Peak: peak, PeakRSS: rss,
		Rows: event.Bytes(pool.HighWater()), Windows: pool.Loads(), Batches: s.served,
		ShrunkTo: s.squeezed.least, ShrunkBy: s.squeezed.why}
}
