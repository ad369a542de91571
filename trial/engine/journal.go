package engine

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"memroom/event"
	"memroom/trial"
)

// Names in a study's folder.
const (
	specFile    = "study.json"
	journalFile = "journal.log"
	lockFile    = "lock"
)

// entry is one line of the journal: a checksum, a space and this as JSON.
type entry struct {
	Kind  string         `json:"t"`            // study, start, undo, resize, end, more, skip
	ID    string         `json:"id,omitempty"` // of the study, in its first line
	Trial int            `json:"trial"`
	Start *trial.Attempt `json:"start,omitempty"`
	// Params are with the first start: a later version of memroom may sample otherwise.
	Params  trial.Params    `json:"params,omitempty"`
	Texts   []string        `json:"texts,omitempty"`  // of Params, as they go into a command line
	Host    event.Bytes     `json:"host,omitempty"`   // new reservation
	Device  event.Bytes     `json:"device,omitempty"` // the same on each card
	End     *trial.Ending   `json:"end,omitempty"`
	Samples int             `json:"samples,omitempty"` // in all, from now on
	At      time.Time       `json:"at,omitzero"`
	Why     string          `json:"why,omitempty"`   // it was skipped
	Extra   json.RawMessage `json:"extra,omitempty"` // of a searcher
}

func (e *entry) setParams(p trial.Params) {
	e.Params = p
	for _, one := range p {
		e.Texts = append(e.Texts, one.Value.String())
	}
}

// journal appends. Lines are never changed.
type journal struct {
	file *os.File
	lock *os.File
}

// ErrBusy means that another process works on the study.
var ErrBusy = errors.New("another memroom is working on it")

// openJournal takes the study's lock, which dies with its holder, and goes to the end of what can
// be read.
func openJournal(dir string, apply func(entry) error) (*journal, error) {
	lock, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		holder, _ := io.ReadAll(io.LimitReader(lock, 64))
		lock.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("%w (process %s): wait for it, or end it first", ErrBusy,
				strings.TrimSpace(string(holder)))
		}
		return nil, err
	}
	_ = lock.Truncate(0)
	_, _ = lock.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	file, err := os.OpenFile(filepath.Join(dir, journalFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		lock.Close()
		return nil, err
	}
	good, err := readJournal(file, apply)
	if err == nil {
		err = file.Truncate(good) // a line that a crash cut was never acknowledged
	}
	if err == nil {
		_, err = file.Seek(good, io.SeekStart)
	}
	if err != nil {
		file.Close()
		lock.Close()
		return nil, err
	}
	return &journal{file, lock}, nil
}

// readJournal applies every whole line and returns the offset after the last one. A damaged line in
// the middle is an error: what follows it was acknowledged, and is applied too.
func readJournal(r io.Reader, apply func(entry) error) (good int64, err error) {
	lines := bufio.NewReaderSize(r, 1<<16)
	for number := 1; ; number++ {
		line, failed := lines.ReadString('\n')
		if failed == io.EOF {
			return good, err
		}
		if failed != nil {
			return good, failed
		}
		is := "is damaged"
		e, failed := readEntry(line)
		if failed == nil {
			is, failed = "contradicts those before it", apply(e)
		} else if _, more := lines.Peek(1); more == io.EOF && number > 1 {
			return good, err
		}
		if failed != nil && err == nil {
			err = fmt.Errorf("line %d of %s %s (%w): take the file back from a backup, or begin a new "+
				"study", number, journalFile, is, failed)
		}
		good += int64(len(line))
	}
}

func readEntry(line string) (e entry, err error) {
	sum, text, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
	want, err := strconv.ParseUint(sum, 16, 32)
	if !ok || err != nil || crc32.ChecksumIEEE([]byte(text)) != uint32(want) {
		return e, errors.New("its checksum is wrong")
	}
	return e, json.Unmarshal([]byte(text), &e)
}

func (e entry) line() ([]byte, error) {
	text, err := json.Marshal(e)
	return fmt.Appendf(nil, "%08x %s\n", crc32.ChecksumIEEE(text), text), err
}

// add appends entries in one write. With sync they are on the disk when it returns.
func (j *journal) add(sync bool, entries ...entry) error {
	var lines []byte
	for _, e := range entries {
		line, err := e.line()
		if err != nil {
			return err
		}
		lines = append(lines, line...)
	}
	at, err := j.file.Seek(0, io.SeekCurrent)
	if err != nil {
		return err
	}
	if _, err := j.file.Write(lines); err != nil {
		_ = j.file.Truncate(at) // half a line must not stand before a whole one
		_, _ = j.file.Seek(at, io.SeekStart)
		return fmt.Errorf("the study's record cannot be written: %w", err)
	}
	if sync {
		return flush(j.file)
	}
	return nil
}

func flush(file *os.File) error {
	if err := file.Sync(); err != nil {
		return fmt.Errorf("the study's record cannot be written: %w", err)
	}
	return nil
}

func (j *journal) close() {
	j.file.Close()
	j.lock.Close()
}
