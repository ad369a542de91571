package trace

import (
	"fmt"
	"io"
	"os"

	"memroom/event"
)

// Snapshot is the content of a file written by torch.cuda.memory._dump_snapshot.
type Snapshot struct {
	Recordings  []event.Recording // one for each device that has a history or memory
	Stacks      *Stacks
	Settings    event.AllocatorSettings
	Annotations []Annotation
	Version     Version

	// Truncated is set if reading ended before the file did, or before its end should have come:
	// what was read up to Offset is here. Reason is one line.
	Truncated bool
	Offset    int64
	Reason    string

	Warnings []string // doubts about what was read, one line each
}

// Annotation is the beginning or the end of a user's record_function scope.
type Annotation struct {
	Name   string
	Stage  string // START or END
	Device int
	TimeUS int64
}

// Limits of this package's patience with a file.
const (
	maxStack     = 4 << 20  // values on the machine's stack
	maxMarks     = 64       // nesting
	maxText      = 16 << 20 // bytes of one string
	maxItems     = 8 << 20  // values kept in lists and dicts that are no events
	maxRecorders = 1024     // devices, and lists of events: one a device
)

// Open reads the snapshot in a file under the default limits.
func Open(path string) (*Snapshot, error) { return Limits{}.Open(path) }

// ReadSnapshot reads a snapshot under the default limits.
func ReadSnapshot(r io.Reader) (*Snapshot, error) { return Limits{}.ReadSnapshot(r) }

// Open reads the snapshot in a file. See [Limits.ReadSnapshot].
func (l Limits) Open(path string) (*Snapshot, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.IsDir() {
		return nil, fmt.Errorf("read %s: it is a folder: name the snapshot in it", path)
	}
	s, err := l.ReadSnapshot(f)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return s, nil
}

// ReadSnapshot reads a pickled snapshot, plain or packed with gzip, xz or zstd. If the file ends
// early or is damaged after events or segments were read, it returns what was read, marked as
// truncated. An error means that nothing useful was found.
func (l Limits) ReadSnapshot(r io.Reader) (*Snapshot, error) {
	plain, err := l.unpack(r)
	if err != nil {
		return nil, err
	}
	m := newMachine(newInput(plain))
	stopped := m.run()
	s := m.snapshot()
	switch {
	case stopped == nil && s == nil:
		return nil, fmt.Errorf("not a memory snapshot: %s", m.topLevel())
	case stopped == nil:
		return s, nil
	case s == nil:
		return nil, fmt.Errorf("nothing of it can be read: %w. Is it a memory snapshot, and whole?",
			stopped)
	}
	s.Truncated, s.Offset, s.Reason = true, m.in.offset(), stopped.Error()
	return s, nil
}
