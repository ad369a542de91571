// Package central keeps the records of runs that other machines send (package relay). A database,
// SQLite or PostgreSQL, is what is acknowledged; a folder of runs next to it is a copy in the form
// in which everything else reads runs, and can be made again from the database at any time.
//
// Start at [Open]. Package api answers the requests; cli chooses the database.
package central

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"memroom/relay"
	"memroom/store"
)

// Central keeps records. Its methods may be called at once.
type Central struct {
	// Copy is the folder of runs that is made from the database.
	Copy *store.Store
	// Taken reports whether an ID belongs to a run that was not sent; nil: none does.
	Taken func(id string) bool
	// Aside names the records that [Open] found damaged, and what is wrong with each. They stay in
	// the database as they are; the readable part of them is shown.
	Aside []string

	mu   sync.Mutex
	db   database
	runs map[string]*run // by key
	ids  map[string]bool
	// keys of rows that no run can have
	broken map[string]bool
}

// run is what is known of one record without asking the database.
type run struct {
	row
	files map[string]int64 // sizes
	wrote time.Time        // reported.json, last
	stale map[string]bool  // files whose copy could not be written
}

// row is a run in the database.
type row struct {
	Key, ID, Sent, Host string // Sent is the ID on its own machine
	Ahead               int64  // milliseconds
	First               time.Time
}

// database is what PostgreSQL and SQLite have in common.
type database interface {
	// load returns all runs, and the size of each of their files.
	load() (rows []row, files map[string]map[string]int64, err error)
	create(row) error
	// add keeps frames in one transaction: all or nothing. sizes are the new ones of their files.
	add(key string, frames []relay.Frame, sizes map[string]int64) error
	// pieces returns a file's content, as it was added, in order.
	pieces(key, file string, yield func([]byte) error) error
	// remove forgets a run and its files.
	remove(key string) error
	close() error
}

// What an error of the database means to a sender: it tries again later in both cases.
var (
	ErrFull = errors.New("the disk of the central server is full")
	ErrAway = errors.New("the database does not answer")
	// ErrUnknown reports a key that belongs to no run: the sender must name it again.
	ErrUnknown = errors.New("no run has this key")
	// ErrBad reports content that cannot be accepted, now or later.
	ErrBad = errors.New("this is not a report of a run")
)

// PlaceError reports a piece that does not begin where the file ends.
type PlaceError struct{ Files map[string]int64 }

func (*PlaceError) Error() string { return "a piece does not begin where the file ends" }

// LargeError reports a file of a record that exceeds the size limit.
type LargeError struct{ File string }

func (e *LargeError) Error() string { return e.File + " is larger than the server takes" }

// FileError means that a file of a record does not fit its name. The rest can be sent.
type FileError struct {
	File string
	Err  error
}

func (e *FileError) Error() string { return "it is not taken: " + e.Err.Error() }

const (
	// mostFile bounds one file of a record, mostFiles their number.
	mostFile  = 16 << 30
	mostFiles = 5000
)

// Open opens the database that address names, and brings the copy below home up to date. An empty
// address is SQLite in home. Only one process at a time can have a database open.
func Open(home, address string) (*Central, error) {
	c := &Central{runs: map[string]*run{}, ids: map[string]bool{}, broken: map[string]bool{}}
	var err error
	name := "central"
	switch {
	case address == "":
		c.db, err = openSQLite(filepath.Join(home, "central.sqlite"))
	case strings.HasPrefix(address, "postgres://"), strings.HasPrefix(address, "postgresql://"):
		var p *postgres
		if p, err = openPostgres(address); err == nil {
			c.db, name = p, "central-"+p.name()
		}
	default:
		err = fmt.Errorf("%q is not a database: write postgres://USER@HOST/NAME, or leave it "+
			"out for SQLite",
			address)
	}
	if err != nil {
		return nil, err
	}
	if c.Copy, err = store.Open(filepath.Join(home, name)); err == nil {
		err = c.restore()
	}
	if err != nil {
		_ = c.db.close()
		return nil, err
	}
	return c, nil
}

// CopyOf is where the copies of runs lie that a server over SQLite in home has received.
func CopyOf(home string) string { return filepath.Join(home, "central") }

// Exists reports whether there is a database of SQLite in home.
func Exists(home string) bool {
	_, err := os.Stat(filepath.Join(home, "central.sqlite"))
	return err == nil
}

// Close closes the database.
func (c *Central) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.db.close()
}

// restore fills the copy in memory from the database.
func (c *Central) restore() error {
	rows, files, err := c.db.load()
	if err != nil {
		return err
	}
	known := map[string]bool{}
	for _, r := range rows {
		if err := c.check(r); err != nil {
			c.broken[r.Key] = true
			c.Aside = append(c.Aside, fmt.Sprintf("%.40q of %.80q: %v", r.ID, r.Host, err))
			continue
		}
		one := &run{row: r, files: files[r.Key], stale: map[string]bool{}}
		if one.files == nil {
			one.files = map[string]int64{}
		}
		c.runs[r.Key], c.ids[r.ID], known[r.ID] = one, true, true
		folder := c.Copy.Folder(r.ID)
		for name, size := range one.files {
			info, err := os.Stat(folder.Path(filepath.FromSlash(name)))
			if err != nil || info.Size() != size && name != "run.json" {
				one.stale[name] = true
			}
		}
		if from, ok := folder.Reported(); ok {
			one.wrote = from.Heard
		}
		err := c.mend(one)
		if errors.Is(err, errDamaged) {
			c.Aside = append(c.Aside, fmt.Sprintf("%s of %.80q: %v", one.ID, one.Host, err))
		} else if err != nil {
			return err
		}
	}
	ids, err := c.Copy.IDs()
	if err != nil {
		return err
	}
	for _, id := range ids { // of another database
		if !known[id] {
			if err := os.RemoveAll(c.Copy.Folder(id).Dir); err != nil {
				return err
			}
		}
	}
	return nil
}

// check reports what is wrong with a row of the database: its ID becomes the name of a folder.
func (c *Central) check(r row) error {
	switch {
	case !relay.ValidKey(r.Key):
		return fmt.Errorf("%.40q is not the key of a run", r.Key)
	case !store.ValidID(r.ID):
		return errors.New("this is not the ID of a run")
	case c.ids[r.ID]:
		return errors.New("another record has this ID")
	case !store.ValidTime(r.First) || !store.ValidTime(r.First.Add(r.ahead())):
		return errors.New("its time makes no sense")
	}
	return nil
}

func (r row) ahead() time.Duration {
	const most = int64(math.MaxInt64 / time.Millisecond)
	return time.Duration(min(max(r.Ahead, -most), most)) * time.Millisecond
}

// Hello assigns a run its place: its own ID, or one close to it where another machine has the same.
func (c *Central) Hello(h relay.Hello, now time.Time) (relay.Welcome, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !relay.ValidKey(h.Key) {
		return relay.Welcome{}, fmt.Errorf("%w: a key is 32 hexadecimal digits", ErrBad)
	}
	if c.broken[h.Key] {
		return relay.Welcome{}, fmt.Errorf("%w: what this server has kept of it is damaged", ErrBad)
	}
	if !store.ValidTime(time.UnixMilli(h.Now)) {
		return relay.Welcome{}, fmt.Errorf("%w: now_ms=%d is no time: set the clock", ErrBad, h.Now)
	}
	one := c.runs[h.Key]
	if one == nil {
		id, ok := store.FreeID(h.ID, c.taken)
		if !ok {
			return relay.Welcome{}, fmt.Errorf("%w: %.40q is not a run ID", ErrBad, h.ID)
		}
		r := row{Key: h.Key, ID: id, Sent: h.ID, Host: clip(h.Host), First: now,
			Ahead: h.Now - now.UnixMilli()}
		if err := c.db.create(r); err != nil {
			return relay.Welcome{}, err
		}
		one = &run{row: r, files: map[string]int64{}, stale: map[string]bool{}}
		c.runs[h.Key], c.ids[id] = one, true
	}
	sizes := map[string]int64{}
	for name, size := range one.files {
		if relay.Kept(name) == relay.Grows {
			sizes[name] = size
		}
	}
	c.heard(one, now)
	return relay.Welcome{ID: one.ID, Files: sizes}, nil
}

func (c *Central) taken(id string) bool {
	return c.ids[id] || c.Taken != nil && c.Taken(id)
}

func clip(text string) string { return strings.ToValidUTF8(text[:min(len(text), 200)], "") }

// Add stores frames of a run and returns the new sizes of their files. It skips what was stored
// before. A piece beyond a file's end is a [PlaceError].
func (c *Central) Add(key string, frames []relay.Frame, now time.Time) (map[string]int64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	one := c.runs[key]
	if one == nil {
		return nil, ErrUnknown
	}
	fresh, sizes, err := one.fresh(frames)
	if err != nil {
		return nil, err
	}
	for _, f := range fresh { // before anything is kept
		if _, err := one.content(f); err != nil {
			return nil, &FileError{f.File, err}
		}
	}
	if len(fresh) > 0 {
		if err := c.db.add(key, fresh, sizes); err != nil {
			return nil, err
		}
	}
	answer := map[string]int64{}
	for _, f := range frames {
		answer[f.File] = one.files[f.File]
	}
	for name, size := range sizes {
		one.files[name], answer[name] = size, size
	}
	// From here on the record is safe: a copy that cannot be written is made again later.
	c.copyFrames(one, fresh)
	c.heard(one, now)
	if sizes["summary.json"] > 0 { // it is over: lists need not read its folder again
		_, _ = c.Copy.Refresh(indexedAtOnce)
	}
	return answer, nil
}

// fresh leaves out what is kept already, and checks that the rest follows on.
func (r *run) fresh(frames []relay.Frame) (fresh []relay.Frame, sizes map[string]int64,
	err error) {
	sizes = map[string]int64{}
	wrong := map[string]int64{}
	for _, f := range frames {
		if f.Whole {
			fresh = append(fresh, f)
			sizes[f.File] = int64(len(f.Data))
			continue
		}
		end, known := sizes[f.File]
		if !known {
			end = r.files[f.File]
		}
		switch {
		case f.At > end:
			wrong[f.File] = end
			continue
		case f.At+int64(len(f.Data)) <= end:
			continue
		}
		f.Data = f.Data[end-f.At:]
		f.At = end
		if end+int64(len(f.Data)) > mostFile {
			return nil, nil, &LargeError{f.File}
		}
		fresh = append(fresh, f)
		sizes[f.File] = end + int64(len(f.Data))
	}
	if len(wrong) > 0 {
		return nil, nil, &PlaceError{wrong}
	}
	if len(r.files)+len(sizes) > mostFiles {
		return nil, nil, &LargeError{"the record's number of files"}
	}
	return fresh, sizes, nil
}

// indexedAtOnce bounds how many copies are read for the index of lists at a time.
const indexedAtOnce = 200

// heardEvery is how often it is written down that a sender was heard.
const heardEvery = 5 * time.Second

func (c *Central) heard(one *run, now time.Time) {
	if now.Sub(one.wrote).Abs() < heardEvery {
		return
	}
	folder := c.Copy.Folder(one.ID)
	if os.MkdirAll(folder.Dir, 0o700) == nil && folder.SaveReported(store.Reported{Key: one.Key,
		ID: one.Sent, Host: one.Host, AheadMS: one.Ahead, First: one.First, Heard: now}) == nil {
		one.wrote = now
	}
}

// copyFrames writes frames into the copy, and what could not be written before.
func (c *Central) copyFrames(one *run, frames []relay.Frame) {
	if len(one.stale) > 0 {
		_ = c.mend(one)
	}
	for _, f := range frames {
		if one.stale[f.File] {
			continue // it holds this frame too, once it is mended
		}
		if err := c.write(one, f); err != nil {
			one.stale[f.File] = true
		}
	}
}

// errDamaged is returned where the database holds what cannot be a part of a record.
var errDamaged = errors.New("damaged")

// mend writes stale copies anew from the database. What is damaged has no copy, and the rest has.
func (c *Central) mend(one *run) error {
	var damaged error
	for name := range one.stale {
		path := c.Copy.Folder(one.ID).Path(filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return err
		}
		if err := os.RemoveAll(path); err != nil {
			return err
		}
		at := int64(0)
		err := c.db.pieces(one.Key, name, func(data []byte) error {
			f := relay.Frame{File: name, At: at, Data: data,
				Whole: relay.Kept(name) == relay.Replaced}
			at += int64(len(data))
			return c.write(one, f)
		})
		switch {
		case errors.Is(err, errDamaged):
			damaged = errors.Join(damaged, err)
		case err != nil:
			return err
		default:
			delete(one.stale, name)
		}
	}
	return damaged
}

// content is what a frame puts into the copy: a description of the run has the ID that it has here.
// It fails on what readers would find damaged.
func (r *run) content(f relay.Frame) ([]byte, error) {
	if !f.Whole {
		return f.Data, nil
	}
	if err := store.Check(f.File, f.Data); err != nil {
		return nil, fmt.Errorf("%s is %w: %w", f.File, errDamaged, err)
	}
	if f.File != "run.json" {
		return f.Data, nil
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(f.Data, &fields); err != nil {
		return nil, err
	}
	fields["id"], _ = json.Marshal(r.ID) // a string does not fail
	out, err := json.MarshalIndent(fields, "", "  ")
	return append(out, '\n'), err
}

// write puts one frame into the copy. The names of files were checked when they came.
func (c *Central) write(one *run, f relay.Frame) error {
	path := c.Copy.Folder(one.ID).Path(filepath.FromSlash(f.File))
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	data, err := one.content(f)
	if err != nil {
		return err
	}
	if f.Whole {
		if err := os.WriteFile(path+".new", data, 0o600); err != nil {
			_ = os.Remove(path + ".new")
			return err
		}
		return os.Rename(path+".new", path)
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	_, err = file.WriteAt(data, f.At)
	if closed := file.Close(); err == nil {
		err = closed
	}
	return err
}

// pack and unpack are the form of a piece in the database: records shrink to a tenth.
func pack(data []byte) ([]byte, error) {
	var out bytes.Buffer
	z, err := gzip.NewWriterLevel(&out, gzip.BestSpeed)
	if err != nil {
		return nil, err
	}
	if _, err := z.Write(data); err != nil {
		return nil, err
	}
	err = z.Close()
	return out.Bytes(), err
}

func unpack(data []byte) ([]byte, error) {
	z, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errDamaged, err)
	}
	plain, err := io.ReadAll(io.LimitReader(z, relay.MostUnpacked+1))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errDamaged, err)
	}
	return plain, nil
}

// fullDisk recognises a disk without room.
func fullDisk(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}
