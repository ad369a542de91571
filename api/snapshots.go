package api

import (
	"cmp"
	"compress/gzip"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"memroom/allocsim"
	"memroom/diagnose"
	"memroom/event"
	"memroom/report"
	"memroom/trace"
)

// dumpMark stands between a run's ID and the name of one of its snapshots in an ID.
const dumpMark = "~"

// snapshots are the files that were opened last: uploaded ones, and those of runs.
type snapshots struct {
	dir    string      // private
	most   event.Bytes // that may be uploaded
	closed chan struct{}
	one    chan struct{} // one file is read at a time: a large one takes its size in memory
	other  chan struct{} // and one is compared at a time

	mu    sync.Mutex
	byID  map[string]*opened
	order []string
}

// compareLater is how long the comparison of settings waits for somebody to ask for it.
const compareLater = 2 * time.Second

// keptSnapshots is how many stay open; the oldest goes first.
const keptSnapshots = 6

// opened is one snapshot: read in the background, then drawn from a file of ours.
type opened struct {
	ID    string      `json:"id"`
	Name  string      `json:"name"`
	Size  event.Bytes `json:"size"`
	State string      `json:"state"` // waiting, reading, ready, failed
	Error string      `json:"error,omitempty"`
	// how long reading it took
	Seconds float64 `json:"seconds,omitempty"`
	Entries int     `json:"entries,omitempty"`
	Run     string  `json:"run,omitempty"`

	path     string // what was uploaded, or the run's file
	uploaded bool
	upload   *os.File      // until it was read
	data     *os.File      // what the page is drawn from
	ready    chan struct{} // closed once data is there, or Error
	asked    chan struct{} // closed once somebody wants the table
	asking   *sync.Once
	compared chan struct{} // closed once the table is there
	tables   []compared
}

// compared is the what-if table of one device.
type compared struct {
	Device  int             `json:"device"`
	Table   *allocsim.Table `json:"table"`
	Warning string          `json:"warning,omitempty"`
}

func newSnapshots(dir string, most event.Bytes, closed chan struct{}) *snapshots {
	return &snapshots{dir: dir, most: most, closed: closed, one: make(chan struct{}, 1),
		other: make(chan struct{}, 1), byID: map[string]*opened{}}
}

func (m *snapshots) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, o := range m.byID {
		o.remove()
	}
	m.byID, m.order = map[string]*opened{}, nil
}

func (o *opened) remove() {
	if o.data != nil {
		discard(o.data)
	}
}

// newFile makes a file in a private folder. Where the system can still open it then, it has no
// name: a server that is killed leaves nothing. path is how to open it.
func newFile(dir, kind string) (file *os.File, path string, err error) {
	file, err = os.OpenFile(filepath.Join(dir, kind+randomID()), os.O_RDWR|os.O_CREATE|os.O_EXCL,
		0o600)
	if err != nil {
		return nil, "", err
	}
	path = fmt.Sprintf("/proc/self/fd/%d", file.Fd())
	if _, err := os.Stat(path); err != nil {
		return file, file.Name(), nil
	}
	_ = os.Remove(file.Name())
	return file, path, nil
}

// discard closes a file of newFile. Whoever opens it by its path must have done so.
func discard(file *os.File) {
	_ = file.Close()
	_ = os.Remove(file.Name()) // where it has a name
}

// add begins to read a snapshot.
func (m *snapshots) add(o *opened) {
	o.State, o.ready, o.compared = "waiting", make(chan struct{}), make(chan struct{})
	o.asked, o.asking = make(chan struct{}), &sync.Once{}
	m.mu.Lock()
	m.byID[o.ID] = o
	m.order = append(m.order, o.ID)
	var old []*opened
	for len(m.order) > keptSnapshots {
		old = append(old, m.byID[m.order[0]])
		delete(m.byID, m.order[0])
		m.order = m.order[1:]
	}
	m.mu.Unlock()
	for _, o := range old {
		o.remove()
	}
	go m.read(o)
}

func (m *snapshots) find(id string) *opened {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.byID[id]
}

func (m *snapshots) drop(id string) {
	m.mu.Lock()
	o := m.byID[id]
	delete(m.byID, id)
	m.order = slices.DeleteFunc(m.order, func(x string) bool { return x == id })
	m.mu.Unlock()
	if o != nil {
		o.remove()
	}
}

// read turns the file into what the page is drawn from, and then compares settings.
func (m *snapshots) read(o *opened) {
	defer close(o.compared)
	if o.upload != nil {
		defer discard(o.upload)
	}
	select {
	case m.one <- struct{}{}:
	case <-m.closed:
		m.finish(o, errors.New("the server is ending"))
		return
	}
	release := sync.OnceFunc(func() { <-m.one })
	defer func() {
		release()
		debug.FreeOSMemory() // a large file's memory goes back at once
	}()
	m.set(o, "reading")
	start := time.Now()
	read, devices, replayed, err := analyse(o.path, m.limits(o))
	if err == nil {
		err = m.write(o, read, devices)
	}
	m.mu.Lock()
	o.Seconds = time.Since(start).Seconds()
	for _, d := range devices {
		o.Entries += d.Snapshot.Entries
	}
	m.mu.Unlock()
	if m.finish(o, err); err != nil {
		return
	}
	if o.Size < largeFile {
		release() // the next file need not wait for this one's table
	}
	select { // the viewer draws first: comparing takes a processor for seconds
	case <-o.asked:
	case <-time.After(compareLater):
	case <-m.closed:
		return
	}
	select {
	case m.other <- struct{}{}:
	case <-m.closed:
		return
	}
	defer func() { <-m.other }()
	var tables []compared
	for i, d := range devices {
		tables = append(tables, tryOthers(&read.Recordings[i], d.Snapshot, replayed[i]))
	}
	m.mu.Lock()
	o.tables = tables
	m.mu.Unlock()
}

// tryOthers tries other settings on one device. A recording that makes us panic has no table.
func tryOthers(rec *event.Recording, s *diagnose.Snapshot,
	replayed *allocsim.Replayed) (c compared) {
	c.Device = s.Device
	defer func() {
		if r := recover(); r != nil {
			c.Warning = fmt.Sprintf("settings could not be compared: %v", r)
		}
	}()
	known := len(s.Warnings)
	c.Table = diagnose.CompareSettings(rec, s, replayed, allocsim.Options{})
	if len(s.Warnings) > known {
		c.Warning = s.Warnings[known]
	}
	return c
}

// largeFile is from which size on memory matters more than time.
const largeFile = 256 << 20

// analyse reads a file; one that makes us panic is a broken one, and the server goes on.
func analyse(path string, limits trace.Limits) (read *trace.Snapshot, devices []report.Device,
	replayed []*allocsim.Replayed, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("this file cannot be read: %v", r)
		}
	}()
	if info, err := os.Stat(path); err == nil && info.Size() > largeFile {
		defer debug.SetGCPercent(debug.SetGCPercent(25))
	}
	if read, err = limits.Open(path); err != nil {
		return nil, nil, nil, withoutPath(err, path)
	}
	for i := range read.Recordings {
		analysis, r := diagnose.ReplaySnapshot(read, &read.Recordings[i])
		devices = append(devices, report.Device{Snapshot: analysis})
		replayed = append(replayed, r)
	}
	if len(devices) == 0 {
		return nil, nil, nil, errors.New("the snapshot is empty, without memory or history: " +
			"was it taken before the first CUDA tensor?")
	}
	return read, devices, replayed, nil
}

// limits bounds what is unpacked: of a packed upload no more than may come plain.
func (m *snapshots) limits(o *opened) (limits trace.Limits) {
	most := max(m.most, trace.UnpackedAtLeast)
	if o.uploaded && o.Size > most/trace.UnpackedRatio {
		limits.Unpacked = most
	}
	return limits
}

// withoutPath takes our own names out of an error that is shown.
func withoutPath(err error, path string) error {
	text := strings.ReplaceAll(err.Error(), path+": ", "")
	return errors.New(strings.ReplaceAll(text, path, "the file"))
}

func (m *snapshots) write(o *opened, read *trace.Snapshot, devices []report.Device) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("this file cannot be drawn: %v", r)
		}
	}()
	file, _, err := newFile(m.dir, "data-")
	if err != nil {
		return err
	}
	m.mu.Lock()
	o.data = file
	m.mu.Unlock()
	notes := read.Warnings
	if read.Truncated {
		notes = append([]string{fmt.Sprintf("the file breaks off at byte %d (%s); what follows is "+
			"about the part before", read.Offset, read.Reason)}, notes...)
	}
	return report.SnapshotData(file, o.Name, notes, devices)
}

func (m *snapshots) set(o *opened, state string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	o.State = state
}

func (m *snapshots) finish(o *opened, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	o.State = "ready"
	if err != nil {
		o.State, o.Error = "failed", err.Error()
	}
	close(o.ready)
	if m.byID[o.ID] != o { // dropped meanwhile
		o.remove()
	}
}

// copyOf is what may be shown of a snapshot, safe to read.
func (m *snapshots) copyOf(o *opened) opened {
	m.mu.Lock()
	defer m.mu.Unlock()
	return *o
}

func randomID() string {
	var b [12]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// uploadSnapshot takes the body as a file. It is written to disk as it comes, so its size costs no
// memory.
func (s *Server) uploadSnapshot(w http.ResponseWriter, r *http.Request) error {
	if kind := r.Header.Get("Content-Type"); !strings.HasPrefix(kind, "application/octet-stream") {
		// what a form of another page can send is none of these
		return failed(http.StatusUnsupportedMediaType,
			"send the file itself as application/octet-stream")
	}
	limit := int64(s.options.UploadLimit)
	if r.ContentLength > limit {
		return tooLarge(limit)
	}
	if s.options.Temporary == "" {
		return failed(http.StatusServiceUnavailable, "this server takes no files")
	}
	file, path, err := newFile(s.options.Temporary, "upload-")
	if err != nil {
		return fmt.Errorf("the upload cannot be kept: %w", err)
	}
	size, err := receive(w, r, file, limit)
	if err != nil {
		discard(file)
		return err
	}
	o := &opened{ID: "u-" + randomID(), Name: fileName(r.URL.Query().Get("name")), path: path,
		Size: event.Bytes(size), uploaded: true, upload: file}
	s.snapshots.add(o)
	w.Header().Set("Location", "/api/snapshots/"+o.ID)
	return answer(w, s.snapshots.copyOf(o))
}

func tooLarge(limit int64) error {
	return failed(http.StatusRequestEntityTooLarge, "the file is larger than %s, which this server "+
		"takes at most (--upload-limit); `memroom snapshot FILE --html page.html` has no limit",
		event.Bytes(limit))
}

// receive writes the body to a file. A sender may be slow, but not silent.
func receive(w http.ResponseWriter, r *http.Request, file *os.File, limit int64) (int64, error) {
	control := http.NewResponseController(w)
	body := http.MaxBytesReader(w, r.Body, limit)
	total := int64(0)
	for buffer := make([]byte, 256<<10); ; {
		_ = control.SetReadDeadline(time.Now().Add(patience))
		n, err := body.Read(buffer)
		if n > 0 {
			if _, err := file.Write(buffer[:n]); err != nil {
				if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
					return 0, failed(http.StatusInsufficientStorage, "there is no room for this "+
						"file in the temporary folder of the server: set TMPDIR to a larger disk")
				}
				return 0, fmt.Errorf("the upload cannot be kept: %w", err)
			}
			total += int64(n)
		}
		var most *http.MaxBytesError
		var slow net.Error
		switch {
		case err == io.EOF && total == 0:
			return 0, failed(http.StatusBadRequest, "the file is empty")
		case err == io.EOF:
			_ = control.SetReadDeadline(time.Time{})
			return total, nil
		case errors.As(err, &most):
			return 0, tooLarge(limit)
		case errors.As(err, &slow) && slow.Timeout():
			return 0, failed(http.StatusRequestTimeout, "nothing came for %v", patience)
		case err != nil:
			return 0, failed(http.StatusBadRequest, "the upload broke off after %s",
				event.Bytes(total))
		}
	}
}

// fileName is the last part of what the sender calls the file: it is shown, never opened.
func fileName(text string) string {
	text = strings.ToValidUTF8(text[strings.LastIndexAny(text, `/\`)+1:], "")
	return cmp.Or(clip(text, 120), "upload")
}

// snapshot finds the snapshot that an address names, and opens one of a run.
func (s *Server) snapshot(r *http.Request) (*opened, error) {
	id := r.PathValue("id")
	if o := s.snapshots.find(id); o != nil {
		return o, nil
	}
	run, name, ok := strings.Cut(id, dumpMark)
	if !ok {
		return nil, failed(http.StatusNotFound, "this snapshot is not open any more: drop the file "+
			"again")
	}
	folder, err := s.runByID(run)
	if err != nil {
		return nil, err
	}
	for _, d := range dumpsOf(folder) { // the name is compared with what is there, never joined
		if d.Name == name {
			o := &opened{ID: id, Name: d.Name, Size: d.Size, Run: folder.ID,
				path: filepath.Join(folder.Dumps(), d.Name)}
			s.snapshots.add(o)
			return o, nil
		}
	}
	return nil, failed(http.StatusNotFound, "run %s has no snapshot of that name", run)
}

func (s *Server) listSnapshots(w http.ResponseWriter, _ *http.Request) error {
	s.snapshots.mu.Lock()
	list := []opened{}
	for _, id := range slices.Backward(s.snapshots.order) {
		list = append(list, *s.snapshots.byID[id])
	}
	s.snapshots.mu.Unlock()
	ofRuns := []any{}
	for _, kept := range s.stores() {
		ids, err := kept.IDs()
		if err != nil {
			return err
		}
		found := 0
		for _, id := range slices.Backward(ids) {
			for _, d := range dumpsOf(kept.Folder(id)) {
				ofRuns = append(ofRuns, map[string]any{"run": id, "dump": d})
				found++
			}
			if found >= 50 {
				break
			}
		}
	}
	return answer(w, map[string]any{"open": list, "runs": ofRuns,
		"upload_limit": s.options.UploadLimit})
}

func (s *Server) showSnapshot(w http.ResponseWriter, r *http.Request) error {
	o, err := s.snapshot(r)
	if err != nil {
		return err
	}
	return answer(w, s.snapshots.copyOf(o))
}

func (s *Server) dropSnapshot(w http.ResponseWriter, r *http.Request) error {
	s.snapshots.drop(r.PathValue("id"))
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// wait waits until something is done.
func (s *Server) wait(ctx context.Context, done <-chan struct{}) error {
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-s.closed:
		return failed(http.StatusServiceUnavailable, "the server is ending")
	}
}

// snapshotData returns what the page is drawn from, once it is there.
func (s *Server) snapshotData(w http.ResponseWriter, r *http.Request) error {
	o, err := s.snapshot(r)
	if err != nil {
		return err
	}
	if err := s.wait(r.Context(), o.ready); err != nil {
		return err
	}
	now := s.snapshots.copyOf(o)
	if now.Error != "" {
		return failed(http.StatusUnprocessableEntity, "%s", now.Error)
	}
	info, err := now.data.Stat()
	if err != nil {
		return failed(http.StatusNotFound, "this snapshot is not open any more: drop the file again")
	}
	file := io.NewSectionReader(now.data, 0, info.Size())
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Cache-Control", "no-store")
	// packing costs more than sending on the same machine
	if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") && !fromHere(r) {
		w.Header().Set("Content-Encoding", "gzip")
		packed, _ := gzip.NewWriterLevel(w, gzip.BestSpeed)
		if _, err := io.Copy(packed, file); err == nil {
			_ = packed.Close()
		}
		return nil
	}
	w.Header().Set("Content-Length", strconv.FormatInt(info.Size(), 10))
	_, _ = io.Copy(w, file)
	return nil
}

func fromHere(r *http.Request) bool {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	ip := net.ParseIP(host)
	return err == nil && ip != nil && ip.IsLoopback()
}

func (s *Server) snapshotWhatIf(w http.ResponseWriter, r *http.Request) error {
	o, err := s.snapshot(r)
	if err != nil {
		return err
	}
	o.asking.Do(func() { close(o.asked) })
	if err := s.wait(r.Context(), o.compared); err != nil {
		return err
	}
	now := s.snapshots.copyOf(o)
	if now.Error != "" {
		return failed(http.StatusUnprocessableEntity, "%s", now.Error)
	}
	return answer(w, map[string]any{"devices": now.tables})
}
