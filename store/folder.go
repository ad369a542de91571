package store

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"sync"

	"memroom/event"
)

// Folder is one run on disk. Files named *.jsonl are only ever appended to, a line a record; the
// others are replaced as a whole. Every reader accepts a last line that was cut off by a crash.
type Folder struct {
	ID  string
	Dir string

	mu    sync.Mutex
	files map[string]*os.File
	rolls map[string]*roller
	ends  map[string]int64 // how long the files appended to are
}

// Names of the files in a run's folder.
const (
	runFile      = "run.json"
	stateFile    = "keeper.json"
	exitFile     = "exit.json"
	verdictFile  = "verdict.json"
	summaryFile  = "summary.json"
	outputFile   = "output"
	errorsFile   = "output.err"
	samplesFile  = "samples.jsonl"
	stepsFile    = "steps.jsonl"
	eventsFile   = "events.jsonl"
	attemptsFile = "attempts.jsonl"
	dumpsFolder  = "dumps"
)

// Path of a file in the folder.
func (f *Folder) Path(name string) string { return filepath.Join(f.Dir, name) }

// Output and Errors are where the command's stdout and stderr are kept; with a terminal everything
// is in Output.
func (f *Folder) Output() string { return f.Path(outputFile) }

// Errors is the command's stderr where that is a stream of its own.
func (f *Folder) Errors() string { return f.Path(errorsFile) }

// ExitFile and StateFile are written by the keeper.
func (f *Folder) ExitFile() string { return f.Path(exitFile) }

// StateFile holds what the keeper knows.
func (f *Folder) StateFile() string { return f.Path(stateFile) }

// Dumps is the folder for allocator snapshots.
func (f *Folder) Dumps() string { return f.Path(dumpsFolder) }

// SaveRun writes the run's description.
func (f *Folder) SaveRun(run event.Run) error { return f.replace(runFile, run) }

// SaveVerdict writes how the last attempt ended.
func (f *Folder) SaveVerdict(v event.Verdict) error { return f.replaceMasked(verdictFile, v) }

// SaveSummary writes the final report.
func (f *Folder) SaveSummary(s event.Summary) error { return f.replaceMasked(summaryFile, s) }

// AppendSamples adds readings in one write, so that a crash cuts at most the last line.
func (f *Folder) AppendSamples(samples []event.Sample) error {
	return appendLines(f, samplesFile, samples)
}

// AppendSteps adds steps that the probe reported.
func (f *Folder) AppendSteps(steps []event.RankedStep) error {
	return appendLines(f, stepsFile,
		steps)
}

// AppendEvent adds something that happened.
func (f *Folder) AppendEvent(h event.Happened) error {
	return appendMasked(f, eventsFile, h)
}

// AppendAttempt adds an attempt that has ended.
func (f *Folder) AppendAttempt(a event.Attempt) error {
	a.Command = MaskArguments(a.Command)
	return appendMasked(f, attemptsFile, a)
}

// replaceMasked is replace for records that quote the command's output: secrets in it are masked.
func (f *Folder) replaceMasked(name string, v any) error {
	var data bytes.Buffer
	enc := json.NewEncoder(&data)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return err
	}
	return f.replace(name, json.RawMessage(maskJSON(data.Bytes())))
}

func appendMasked(f *Folder, name string, record any) error {
	line, err := json.Marshal(record)
	if err != nil {
		return err
	}
	return appendLines(f, name, []json.RawMessage{maskJSON(line)})
}

// replace writes a file so that a reader sees the old or the new one, whole.
func (f *Folder) replace(name string, v any) error {
	var data bytes.Buffer
	enc := json.NewEncoder(&data)
	enc.SetEscapeHTML(false) // people read these files, and commands are full of < and &
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		return err
	}
	path := f.Path(name)
	if err := os.WriteFile(path+".new", data.Bytes(), 0o600); err != nil {
		_ = os.Remove(path + ".new")
		return fmt.Errorf("write %s: %w", name, err)
	}
	return os.Rename(path+".new", path)
}

func appendLines[T any](f *Folder, name string, records []T) error {
	if len(records) == 0 {
		return nil
	}
	var lines bytes.Buffer
	for _, r := range records {
		line, err := json.Marshal(r)
		if err != nil {
			return err
		}
		lines.Write(append(line, '\n'))
	}
	file, err := f.open(name)
	if err != nil {
		return err
	}
	n, err := file.Write(lines.Bytes())
	f.mu.Lock()
	at := f.ends[name]
	f.ends[name] += int64(n)
	f.mu.Unlock()
	if err == nil {
		f.rollUp(name, lines.Bytes(), at)
	}
	return err
}

// open returns a file to append to, kept open. A line that a crash cut off is closed first, so that
// ours stands alone.
func (f *Folder) open(name string) (*os.File, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if file := f.files[name]; file != nil {
		return file, nil
	}
	file, err := os.OpenFile(f.Path(name), os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	if end, err := file.Seek(0, io.SeekEnd); err == nil && end > 0 {
		last := make([]byte, 1)
		if _, err := file.ReadAt(last, end-1); err == nil && last[0] != '\n' {
			_, _ = file.Write([]byte("\n"))
		}
	}
	if f.files == nil {
		f.files, f.ends = map[string]*os.File{}, map[string]int64{}
	}
	f.files[name] = file
	f.ends[name], _ = file.Seek(0, io.SeekEnd)
	return file, nil
}

// Close closes the files that were appended to.
func (f *Folder) Close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, file := range f.files {
		file.Close()
	}
	for _, r := range f.rolls {
		if r.out != nil {
			r.out.Close()
		}
	}
	f.files, f.rolls = nil, nil
}

// Run reads the run's description.
func (f *Folder) Run() (event.Run, error) { return ReadRecord[event.Run](f, runFile) }

// Exit reads how the command ended.
func (f *Folder) Exit() (event.Exit, error) { return ReadRecord[event.Exit](f, exitFile) }

// Verdict reads the judgement of the last attempt.
func (f *Folder) Verdict() (event.Verdict, error) {
	return ReadRecord[event.Verdict](f, verdictFile)
}

// Summary reads the final report. It is absent while the run lives and where memroom itself was
// killed.
func (f *Folder) Summary() (event.Summary, error) {
	return ReadRecord[event.Summary](f, summaryFile)
}

// ReadRecord reads a file of a run's folder that is replaced as a whole.
func ReadRecord[T any](f *Folder, name string) (v T, err error) {
	data, err := readWhole(f.Path(name))
	if err != nil {
		return v, err
	}
	if v, err = Decode[T](data); err != nil {
		return v, fmt.Errorf("%s of run %s is damaged: %w", name, f.ID, err)
	}
	return v, nil
}

// mostRecord bounds a file that is read as a whole. Ours stay below a mebibyte.
const mostRecord = 64 << 20

// readWhole reads a small file of ours. A pipe in its place would never end, a huge file would not
// fit.
func readWhole(path string) ([]byte, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is not a plain file", filepath.Base(path))
	case info.Size() > mostRecord:
		return nil, fmt.Errorf("%s has %s: too large for a record", filepath.Base(path),
			event.Bytes(info.Size()))
	}
	return os.ReadFile(path)
}

// Samples reads the readings in order. Lines that cannot be read, such as one cut off by a crash,
// are left out.
func (f *Folder) Samples() iter.Seq[event.Sample] { return lines[event.Sample](f, samplesFile) }

// Steps reads the steps that the probe reported.
func (f *Folder) Steps() iter.Seq[event.RankedStep] { return lines[event.RankedStep](f, stepsFile) }

// Events reads what happened.
func (f *Folder) Events() iter.Seq[event.Happened] { return lines[event.Happened](f, eventsFile) }

// Attempts reads the attempts that have ended.
func (f *Folder) Attempts() iter.Seq[event.Attempt] { return lines[event.Attempt](f, attemptsFile) }

func lines[T any](f *Folder, name string) iter.Seq[T] {
	return func(yield func(T) bool) {
		file, err := os.Open(f.Path(name))
		if err != nil {
			return
		}
		defer file.Close()
		r := bufio.NewReaderSize(file, 64<<10)
		for {
			line, err := readLine(r)
			if v, bad := Decode[T](line); bad == nil && !yield(v) {
				return
			}
			if err != nil {
				return
			}
		}
	}
}

// mostLine bounds a line that is read as a whole: a probe's largest message, four times.
const mostLine = 16 << 20

// readLine reads up to the next newline. Of a line that is too long nothing is kept.
func readLine(r *bufio.Reader) (line []byte, err error) {
	for long := false; ; {
		piece, err := r.ReadSlice('\n')
		if long = long || len(line)+len(piece) > mostLine; long {
			line = nil
		} else {
			line = append(line, piece...)
		}
		if err != bufio.ErrBufferFull {
			return line, err
		}
	}
}

// Remove deletes the run. Only what is provably ours goes: a folder with the name of a run that
// holds the record of that run.
func (f *Folder) Remove() error {
	if !ValidID(f.ID) || f.ID != filepath.Base(f.Dir) {
		return fmt.Errorf("%q is not the name of a run: `memroom runs` lists them", f.ID)
	}
	info, err := os.Lstat(f.Dir)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("there is no run %q: `memroom runs` lists those there are", f.ID)
	case err != nil:
		return err
	case !info.IsDir():
		return fmt.Errorf("%s is not a folder: memroom leaves it alone", f.Dir)
	}
	if _, err := f.ownRecord(); err != nil {
		return fmt.Errorf("run %s is kept, its record is damaged: %w. memroom deletes only what it can "+
			"prove is its own; to delete it yourself: rm -r %q",
			f.ID, err, f.Dir)
	}
	return os.RemoveAll(f.Dir)
}

// ownRecord reads the run's description and checks that it is the folder's own.
func (f *Folder) ownRecord() (event.Run, error) {
	run, err := f.Run()
	switch {
	case errors.Is(err, os.ErrNotExist):
		return run, fmt.Errorf("%s is missing", runFile)
	case err != nil:
		return run, err
	case run.ID != f.ID:
		return run, fmt.Errorf("%s in it is that of another run, %q", runFile, run.ID)
	}
	return run, nil
}

// watchFile holds the monitor's knowledge, so that another one can go on where it was
// killed.
const watchFile = "watch.json"

// SaveProgress writes the monitor's knowledge so far.
func (f *Folder) SaveProgress(v any) error { return f.replace(watchFile, v) }

// Progress reads what SaveProgress kept.
func (f *Folder) Progress(v any) error {
	data, err := readWhole(f.Path(watchFile))
	if err != nil {
		return err
	}
	return json.Unmarshal(data, v)
}

// size is how much disk the run takes.
func (f *Folder) size() event.Bytes {
	total := event.Bytes(0)
	_ = filepath.WalkDir(f.Dir, func(_ string, entry os.DirEntry, err error) error {
		if err == nil {
			if info, err := entry.Info(); err == nil && info.Mode().IsRegular() {
				total += event.Bytes(info.Size())
			}
		}
		return nil
	})
	return total
}
