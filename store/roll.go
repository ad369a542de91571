package store

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"strconv"
)

// rollSpan is how much time one roll sums up, in milliseconds, and rollMost how many lines. A day
// is 5400 rolls: enough for the width of a screen, and read in a blink.
const (
	rollSpan = 16_000
	rollMost = 4096
)

// roll is what a piece of samples.jsonl or steps.jsonl holds: the lowest and highest value of each
// column, and where the piece lies in the file.
type roll struct {
	offset, end int64
	from, to    int64 // at_ms of the first and the last line
	count       int
	low, high   []int64 // by column; absent where low > high
}

func (r *roll) put(column int, value int64) {
	for len(r.low) <= column {
		r.low, r.high = append(r.low, math.MaxInt64), append(r.high, math.MinInt64)
	}
	r.low[column], r.high[column] = min(r.low[column], value), max(r.high[column], value)
}

// columns numbers the names of values in the order in which they first came.
type columns struct {
	names  []string
	number map[string]int
}

func (c *columns) of(name string) int {
	if n, ok := c.number[name]; ok {
		return n
	}
	if c.number == nil {
		c.number = map[string]int{}
	}
	n := len(c.names)
	c.names, c.number[name] = append(c.names, name), n
	return n
}

// roller sums up the lines that are appended to a file, and appends each full roll to another: so
// that a run of days opens at once. A roll that was being filled when its writer died is missing;
// whoever reads fills such gaps from the lines themselves.
type roller struct {
	extract func(line []byte, put func(name string, value int64)) (at int64, ok bool)
	columns columns
	told    int // columns that the file names already
	current roll
	found   []found // in the line at hand
	out     *os.File
}

type found struct {
	column int
	value  int64
}

func rollFile(name string) string {
	return name[:len(name)-len(".jsonl")] + ".roll"
}

// add takes a line that lies at offset. It returns a roll when one is full.
func (r *roller) add(line []byte, offset int64) (full *roll) {
	if n := &r.current; n.count > 0 && (n.count >= rollMost || n.offset+4<<20 < offset) {
		full = r.cut()
	}
	r.found = r.found[:0]
	at, ok := r.extract(line, func(name string, value int64) {
		r.found = append(r.found, found{r.columns.of(name), value})
	})
	n := &r.current
	if !ok { // cut off by a crash: it may hold half a number
		n.end = offset + int64(len(line))
		return full
	}
	for _, v := range r.found {
		n.put(v.column, v.value)
	}
	if n.count == 0 {
		n.offset, n.from = offset, at
	}
	n.to, n.end, n.count = at, offset+int64(len(line)), n.count+1
	if n.to-n.from >= rollSpan-250 && full == nil {
		full = r.cut()
	}
	return full
}

func (r *roller) cut() *roll {
	full := r.current
	r.current = roll{}
	return &full
}

// text is a roll as a line: the names of columns first, where there are new ones.
func (r *roller) text(n *roll) []byte {
	var b []byte
	if r.told < len(r.columns.names) {
		names, _ := json.Marshal(r.columns.names[r.told:]) // strings do not fail
		b = append(append(b, names...), '\n')
		r.told = len(r.columns.names)
	}
	b = append(b, "{\"at\":["...)
	for i, v := range []int64{n.offset, n.end, n.from, n.to, int64(n.count)} {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, v, 10)
	}
	b = append(b, "],\"values\":["...)
	for i := range n.low {
		if i > 0 {
			b = append(b, ',')
		}
		low, high := n.low[i], n.high[i]
		if low > high {
			b = append(b, "1,0"...) // absent
			continue
		}
		b = strconv.AppendInt(b, low, 10)
		b = append(b, ',')
		b = strconv.AppendInt(b, high, 10)
	}
	return append(b, "]}\n"...)
}

// readRolls reads what a roller wrote. It stops at the first line that makes no sense: the file is
// only there to save time.
func readRolls(path string, size int64) (names []string, rolls []roll) {
	data, err := readWhole(path)
	if err != nil {
		return nil, nil
	}
	var numbers []int64
	end := int64(0)
	for len(data) > 0 {
		line, rest, whole := bytes.Cut(data, []byte{'\n'})
		if data = rest; !whole {
			break
		}
		if bytes.HasPrefix(line, []byte{'['}) {
			var more []string
			if json.Unmarshal(line, &more) != nil {
				break
			}
			names = append(names, more...)
			continue
		}
		numbers = appendNumbers(numbers[:0], line)
		if len(numbers) < 5 || len(numbers)%2 == 0 || (len(numbers)-5)/2 > len(names) {
			break
		}
		n := roll{offset: numbers[0], end: numbers[1], from: numbers[2], to: numbers[3],
			count: int(numbers[4])}
		if n.offset < end || n.end <= n.offset || n.end > size {
			break
		}
		end = n.end
		values := numbers[5:]
		both := make([]int64, len(values))
		n.low, n.high = both[:len(values)/2], both[len(values)/2:]
		for i := range n.low {
			n.low[i], n.high[i] = values[2*i], values[2*i+1]
		}
		rolls = append(rolls, n)
	}
	return names, rolls
}

// appendNumbers finds the whole numbers of a line.
func appendNumbers(numbers []int64, line []byte) []int64 {
	for i := 0; i < len(line); i++ {
		if c := line[i]; c != '-' && (c < '0' || c > '9') {
			continue
		}
		value, width := leadingNumber(line[i:])
		numbers = append(numbers, value)
		i += width
	}
	return numbers
}

// rollOf returns the roller of a file that this folder appends to; nil for files without one.
func (f *Folder) rollOf(name string, size int64) *roller {
	extract := extractorOf(name)
	if extract == nil {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if r := f.rolls[name]; r != nil {
		return r
	}
	r := &roller{extract: extract}
	if f.rolls == nil {
		f.rolls = map[string]*roller{}
	}
	f.rolls[name] = r
	path := f.Path(rollFile(name))
	// One that took over goes on with the columns that are named already.
	r.columns.names, _ = readRolls(path, size)
	r.told = len(r.columns.names)
	r.columns.number = map[string]int{}
	for i, n := range r.columns.names {
		r.columns.number[n] = i
	}
	out, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err == nil {
		r.out = out
	}
	return r
}

// rollUp sums up lines that were appended at an offset. A disk that is full costs the roll, not
// the record.
func (f *Folder) rollUp(name string, text []byte, offset int64) {
	r := f.rollOf(name, offset)
	if r == nil || r.out == nil {
		return
	}
	for line := range bytes.Lines(text) {
		if full := r.add(line, offset); full != nil {
			if _, err := r.out.Write(r.text(full)); err != nil {
				r.out.Close()
				r.out = nil // the rest is read from the lines
				return
			}
		}
		offset += int64(len(line))
	}
}

// merge puts n's values into r.
func (r *roll) merge(n *roll) {
	if r.count == 0 {
		r.from = n.from
	}
	r.to, r.count = n.to, r.count+n.count
	for i := range n.low {
		if n.low[i] <= n.high[i] {
			r.put(i, n.low[i])
			r.put(i, n.high[i])
		}
	}
}
