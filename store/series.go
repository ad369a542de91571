package store

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
)

// Series is the course of a run's readings, or of its steps, at any resolution. It holds only
// rolls: a day of eight cards takes some megabytes. It follows a file that grows. Its methods may
// be called from several goroutines.
type Series struct {
	mu     sync.Mutex
	path   string
	rolled string // where the run's own rolls are
	name   string
	roller *roller
	rolls  []roll
	read   int64 // how far the file has been summed up
	loaded bool
	ahead  bool // a long file is summed up in the background; until then answers are sketches
}

// Series follows the readings of a run.
func (f *Folder) SampleSeries() *Series { return newSeries(f, samplesFile) }

// StepSeries follows the steps of a run.
func (f *Folder) StepSeries() *Series { return newSeries(f, stepsFile) }

func newSeries(f *Folder, name string) *Series {
	return &Series{path: f.Path(name), rolled: f.Path(rollFile(name)), name: name,
		roller: &roller{extract: extractorOf(name)}}
}

// Update takes what was written since the last time. A file that is not there has no lines.
func (s *Series) Update() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.update()
}

func (s *Series) update() error {
	file, size, err := openPlain(s.path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer file.Close()
	if s.ahead {
		return nil
	}
	if size < s.read { // another run's, or somebody cut it
		s.rolls, s.read, s.loaded = nil, 0, false
		s.roller = &roller{extract: extractorOf(s.name)}
	}
	if !s.loaded {
		s.load(file, size)
		s.loaded = true
	}
	if size-s.read >= longFile {
		s.readAhead(size)
		return nil
	}
	return s.follow(file, size)
}

// openPlain opens a file that may be long and returns its size.
func openPlain(path string) (*os.File, int64, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, 0, err
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New(filepath.Base(path) +
			" is not a plain file: something else was put in its place")
	}
	if err != nil {
		file.Close()
		return nil, 0, err
	}
	return file, info.Size(), nil
}

// longFile is how much nobody should have to wait for.
const longFile = 96 << 20

// readAhead sums up a long file in the background. Whoever asks in the meantime gets a sketch.
func (s *Series) readAhead(size int64) {
	s.ahead = true
	beside := &Series{path: s.path, name: s.name, roller: s.roller, rolls: s.rolls, read: s.read}
	s.roller = &roller{extract: extractorOf(s.name)}
	go func() {
		if file, err := os.Open(s.path); err == nil {
			_ = beside.follow(file, size)
			file.Close()
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.ahead, s.rolls, s.read, s.roller = false, beside.rolls, beside.read, beside.roller
	}()
}

// sketch reads single lines at even distances: a picture of a long file at once. It may miss a
// peak, so its piece is marked as a sketch.
func (s *Series) sketch(from, to int64, points int, want func(string) bool) (Piece, error) {
	file, size, err := openPlain(s.path)
	if err != nil {
		return Piece{}, err
	}
	defer file.Close()
	begin, end := int64(0), size
	if from > 0 {
		begin = s.offsetOf(file, size, from)
	}
	if to < math.MaxInt64/2 {
		end = s.offsetOf(file, size, to)
	}
	piece := Piece{Sketch: true}
	r := &roller{extract: extractorOf(s.name)}
	var rows []roll
	count := int64(min(points, 600))
	read := int64(0)
	for i := range count {
		at := begin + (end-begin)*i/count
		line := wholeLine(file, at, at > 0)
		row := roll{count: 1}
		when, ok := r.extract(line, func(name string, value int64) {
			row.put(r.columns.of(name), value)
		})
		if row.from, row.to = when, when; ok {
			rows = append(rows, row)
			read += int64(len(line))
		}
	}
	if len(rows) > 0 {
		piece.From, piece.To = s.timeAt(file, 0), rows[len(rows)-1].to
		piece.Count = size * int64(len(rows)) / max(1, read) // about so many
	}
	piece.fill(rows, r.columns.names, want)
	return piece, nil
}

// wholeLine reads the line that begins at an offset, or the next one after it; nil at the end.
func wholeLine(file *os.File, offset int64, next bool) []byte {
	for size := 8 << 10; size <= longestRecord; size *= 8 {
		buffer := make([]byte, size)
		n, err := file.ReadAt(buffer, offset)
		line := buffer[:n]
		if next {
			_, line, _ = bytes.Cut(line, []byte{'\n'})
		}
		if end := bytes.IndexByte(line, '\n'); end >= 0 {
			return line[:end+1]
		}
		if err != nil {
			return nil
		}
	}
	return nil
}

// timeAt is when the line at an offset was written, -1 where there is none.
func (s *Series) timeAt(file *os.File, offset int64) int64 {
	extract := extractorOf(s.name)
	for range 16 { // lines that are cut off are stepped over
		line := wholeLine(file, offset, false)
		if line == nil {
			return -1
		}
		if when, ok := extract(line, func(string, int64) {}); ok {
			return when
		}
		offset += int64(len(line))
	}
	return -1
}

// offsetOf is where the lines of a moment begin, by halving: lines are in order of time.
func (s *Series) offsetOf(file *os.File, size, at int64) int64 {
	low, high := int64(0), size
	for high-low > 4096 {
		mid := lineAfter(file, low+(high-low)/2)
		if mid >= high {
			break
		}
		if when := s.timeAt(file, mid); when < 0 || when >= at {
			high = mid
		} else {
			low = mid
		}
	}
	return low
}

// load takes the rolls that the run wrote itself, and fills their gaps from the lines.
func (s *Series) load(file *os.File, size int64) {
	names, rolls := readRolls(s.rolled, size)
	for _, n := range names {
		s.roller.columns.of(n)
	}
	if len(s.roller.columns.names) != len(names) { // a name twice: not what we wrote
		s.roller.columns, rolls = columns{}, nil
	}
	gaps, end := int64(0), int64(0)
	for _, n := range rolls {
		gaps, end = gaps+n.offset-end, n.end
	}
	if gaps >= longFile { // not what we wrote: the whole file is read in the background
		s.roller.columns, rolls = columns{}, nil
	}
	for _, n := range rolls {
		if n.offset > s.read {
			s.scan(file, s.read, n.offset)
			s.flush()
		}
		s.rolls = append(s.rolls, n)
		s.read = n.end
	}
}

// parallel is how much of a file is worth several processors.
const parallel = 16 << 20

// follow sums up the lines from where it was to the end of the last whole one.
func (s *Series) follow(file *os.File, size int64) error {
	if size-s.read >= parallel {
		s.split(file, size)
	}
	s.scan(file, s.read, size)
	return nil
}

// split sums up a long file in pieces, each on a processor.
func (s *Series) split(file *os.File, size int64) {
	s.flush()
	n := int64(runtime.GOMAXPROCS(0))
	bounds := []int64{s.read}
	for i := int64(1); i < n; i++ {
		at := lineAfter(file, s.read+(size-s.read)*i/n)
		if at > bounds[len(bounds)-1] && at < size {
			bounds = append(bounds, at)
		}
	}
	bounds = append(bounds, size)
	parts := make([]*Series, len(bounds)-1)
	var wait sync.WaitGroup
	for i := range parts {
		parts[i] = &Series{name: s.name, read: bounds[i],
			roller: &roller{extract: extractorOf(s.name)}}
		wait.Go(func() {
			parts[i].scan(file, bounds[i], bounds[i+1])
			if i < len(parts)-1 {
				parts[i].flush()
			}
		})
	}
	wait.Wait()
	for i, p := range parts {
		order := make([]int, len(p.roller.columns.names))
		for k, name := range p.roller.columns.names {
			order[k] = s.roller.columns.of(name)
		}
		for _, r := range p.rolls {
			s.rolls = append(s.rolls, r.reordered(order))
		}
		if i == len(parts)-1 {
			s.roller.current = p.roller.current.reordered(order)
		}
		s.read = p.read
	}
}

// reordered returns the roll with its columns at other places.
func (r roll) reordered(order []int) roll {
	n := r
	n.low, n.high = nil, nil
	for i := range r.low {
		if r.low[i] <= r.high[i] {
			n.put(order[i], r.low[i])
			n.put(order[i], r.high[i])
		}
	}
	return n
}

// lineAfter is where the next line begins.
func lineAfter(file io.ReaderAt, at int64) int64 {
	buffer := make([]byte, 4<<10)
	for {
		n, err := file.ReadAt(buffer, at)
		if i := bytes.IndexByte(buffer[:n], '\n'); i >= 0 {
			return at + int64(i) + 1
		}
		if at += int64(n); err != nil {
			return at
		}
	}
}

// scan sums up the whole lines of a part of the file.
func (s *Series) scan(file io.ReaderAt, from, to int64) {
	eachLineOf(file, from, to, func(line []byte, offset int64) bool {
		if full := s.roller.add(line, offset); full != nil {
			s.rolls = append(s.rolls, *full)
		}
		s.read = offset + int64(len(line))
		return true
	})
}

// flush ends the roll that is being filled.
func (s *Series) flush() {
	if s.roller.current.count > 0 {
		s.rolls = append(s.rolls, *s.roller.cut())
	}
}

// longestRecord bounds a line; longer ones are stepped over.
const longestRecord = 1 << 20

// eachLineOf calls back with the whole lines of a part of a file, with the newline.
func eachLineOf(file io.ReaderAt, from, to int64, do func(line []byte, offset int64) bool) {
	r := bufio.NewReaderSize(io.NewSectionReader(file, from, to-from), longestRecord)
	for at := from; ; {
		line, err := r.ReadSlice('\n')
		if err == nil && !do(line, at) {
			return
		}
		at += int64(len(line))
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if err != nil {
			return
		}
	}
}

// Piece is a part of a series: for each point its time, and the lowest and highest value of each
// column since the point before.
type Piece struct {
	From, To int64 // at_ms of everything there is
	Count    int64 // lines of everything there is
	Offset   int64 // of the file, up to which it is about: where a reader can go on
	At       []int64
	Columns  []Column
	Exact    bool // every line is a point
	Sketch   bool // a long file is still being read: peaks may be missing, ask again
}

// Column is one value over time. Absent values have Low > High.
type Column struct {
	Name      string
	Low, High []int64
}

// Between returns at most so many points between two moments (at_ms). want chooses columns; nil:
// all.
func (s *Series) Between(from, to int64, points int, want func(name string) bool) (Piece, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.update(); err != nil {
		return Piece{}, err
	}
	points = min(max(points, 1), 20_000)
	if s.ahead {
		return s.sketch(from, to, points, want)
	}
	all := s.rolls
	if s.roller.current.count > 0 {
		all = append(slices.Clip(all), s.roller.current)
	}
	piece := Piece{Offset: s.read}
	for i := range all {
		piece.Count += int64(all[i].count)
	}
	if len(all) > 0 {
		piece.From, piece.To = all[0].from, all[len(all)-1].to
	}
	chosen := slices.DeleteFunc(slices.Clone(all),
		func(r roll) bool { return r.to < from || r.from > to })
	lines := 0
	for _, r := range chosen {
		lines += r.count
	}
	var rows []roll
	if len(chosen) >= points/2 || lines > mostLines {
		rows = chosen
	} else {
		rows = s.lines(chosen, from, to)
	}
	rows, piece.Exact = thin(rows, points)
	piece.fill(rows, s.roller.columns.names, want)
	return piece, nil
}

// mostLines is how many lines are read for one answer.
const mostLines = 15_000

// lines reads the lines that rolls are about, each as a roll of its own.
func (s *Series) lines(rolls []roll, from, to int64) []roll {
	file, err := os.Open(s.path)
	if err != nil {
		return rolls
	}
	defer file.Close()
	var rows []roll
	for _, r := range rolls {
		eachLineOf(file, r.offset, r.end, func(line []byte, offset int64) bool {
			row := roll{count: 1, offset: offset, end: offset + int64(len(line))}
			at, ok := s.roller.extract(line, func(name string, value int64) {
				row.put(s.roller.columns.of(name), value)
			})
			if ok && at >= from && at <= to {
				row.from, row.to = at, at
				rows = append(rows, row)
			}
			return true
		})
	}
	return rows
}

// thin merges neighbours until at most so many are left.
func thin(rows []roll, points int) (thinned []roll, exact bool) {
	if len(rows) <= points {
		for _, r := range rows {
			if r.count > 1 {
				return rows, false
			}
		}
		return rows, true
	}
	for i := range points {
		var sum roll
		for _, r := range rows[i*len(rows)/points : (i+1)*len(rows)/points] {
			sum.merge(&r)
		}
		thinned = append(thinned, sum)
	}
	return thinned, false
}

func (p *Piece) fill(rows []roll, names []string, want func(string) bool) {
	p.At = make([]int64, len(rows))
	for i, r := range rows {
		p.At[i] = r.to
	}
	for k, name := range names {
		if want != nil && !want(name) {
			continue
		}
		c := Column{Name: name, Low: make([]int64, len(rows)), High: make([]int64, len(rows))}
		any := false
		for i, r := range rows {
			c.Low[i], c.High[i] = math.MaxInt64, math.MinInt64
			if k < len(r.low) {
				c.Low[i], c.High[i] = r.low[k], r.high[k]
			}
			any = any || c.Low[i] <= c.High[i]
		}
		if any {
			p.Columns = append(p.Columns, c)
		}
	}
}

// Before returns the lines shortly before a moment in order, the last one being the newest then:
// those of 16 s.
func (s *Series) Before(ctx context.Context, at int64, do func(line []byte)) {
	file, size, err := openPlain(s.path)
	if err != nil {
		return
	}
	defer file.Close()
	begin := s.offsetOf(file, size, max(0, at-rollSpan))
	extract := extractorOf(s.name)
	eachLineOf(file, begin, size, func(line []byte, _ int64) bool {
		when, ok := extract(line, func(string, int64) {})
		if ok && when <= at {
			do(line)
		}
		return (!ok || when <= at) && ctx.Err() == nil
	})
}

// LinesFrom calls do with the whole lines of a file from an offset on, until do returns false. It
// returns where the next line begins. A file that is not there has none.
func LinesFrom(path string, from int64, do func(line []byte) bool) (next int64) {
	file, size, err := openPlain(path)
	if err != nil {
		return from
	}
	defer file.Close()
	next = from
	eachLineOf(file, from, size, func(line []byte, offset int64) bool {
		next = offset + int64(len(line))
		return do(line)
	})
	return next
}
