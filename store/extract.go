package store

import (
	"bytes"
	"strconv"
	"strings"
)

// extractorOf returns what reads the values out of a line of a file; nil where nothing is rolled
// up.
func extractorOf(name string) func([]byte, func(string, int64)) (int64, bool) {
	switch name {
	case samplesFile:
		return newSampleReader().read
	case stepsFile:
		return newStepReader().read
	}
	return nil
}

// scanner walks over one line of JSON without making anything of it: a day of readings is half a
// gigabyte, and a page must not wait for it.
type scanner struct {
	text []byte
	at   int
	bad  bool
}

func (s *scanner) space() {
	for s.at < len(s.text) && s.text[s.at] <= ' ' {
		s.at++
	}
}

// take steps over a character that must come next.
func (s *scanner) take(c byte) bool {
	s.space()
	if s.at < len(s.text) && s.text[s.at] == c {
		s.at++
		return true
	}
	return false
}

// word reads a string and returns it as it stands, escapes included.
func (s *scanner) word() []byte {
	if !s.take('"') {
		s.bad = true
		return nil
	}
	from := s.at
	for s.at < len(s.text) {
		end := bytes.IndexByte(s.text[s.at:], '"')
		if end < 0 {
			break
		}
		s.at += end + 1
		if slashes := trailing(s.text[from : s.at-1]); slashes%2 == 0 {
			return s.text[from : s.at-1]
		}
	}
	s.at = len(s.text) // whatever must follow is missing: that makes the line bad
	return nil
}

// trailing counts the backslashes a text ends with.
func trailing(text []byte) (n int) {
	for n < len(text) && text[len(text)-1-n] == '\\' {
		n++
	}
	return n
}

// number reads a number; fractions are cut off.
func (s *scanner) number() int64 {
	s.space()
	value, width := leadingNumber(s.text[min(s.at, len(s.text)):])
	if width == 0 {
		s.bad = s.at >= len(s.text) || s.text[s.at] != 'n' // null is none
		s.skip()
		return 0
	}
	s.at += width
	if s.at < len(s.text) && strings.IndexByte(".eE", s.text[s.at]) >= 0 {
		from := s.at - width
		for s.at < len(s.text) && strings.IndexByte("+-.eE0123456789", s.text[s.at]) >= 0 {
			s.at++
		}
		f, _ := strconv.ParseFloat(string(s.text[from:s.at]), 64)
		return int64(f)
	}
	return value
}

// leadingNumber reads a whole number that a text begins with.
func leadingNumber(text []byte) (value int64, width int) {
	negative := bytes.HasPrefix(text, []byte{'-'})
	if negative {
		width = 1
	}
	for width < len(text) && text[width] >= '0' && text[width] <= '9' && width < 20 {
		value = value*10 + int64(text[width]-'0')
		width++
	}
	if negative {
		value = -value
	}
	return value, width
}

// skip steps over any value.
func (s *scanner) skip() {
	s.space()
	depth := 0
	for s.at < len(s.text) {
		switch c := s.text[s.at]; {
		case c == '"':
			s.word()
			if depth == 0 {
				return
			}
			continue
		case c == '{' || c == '[':
			depth++
		case c == '}' || c == ']':
			if depth == 0 {
				return
			}
			if depth--; depth == 0 {
				s.at++
				return
			}
		case c == ',' && depth == 0:
			return
		}
		s.at++
	}
}

// object walks over the fields of an object. field must read or skip the value.
func (s *scanner) object(field func(name []byte)) {
	if !s.take('{') {
		s.bad = true
		return
	}
	for !s.take('}') {
		name := s.word()
		if s.bad || !s.take(':') {
			s.bad = true
			return
		}
		if field(name); s.bad {
			return
		}
		if !s.take(',') && (s.at >= len(s.text) || s.text[s.at] != '}') {
			s.bad = true
			return
		}
	}
}

// sampleReader reads the values of a reading. Devices are numbered in the order of the readings,
// which the monitor keeps.
type sampleReader struct{ device []map[string]string }

func newSampleReader() *sampleReader { return &sampleReader{} }

var sampleColumns = map[string]string{"procs": "processes", "rss": "resident", "anon": "anonymous",
	"shmem": "shared", "swap": "swap", "held": "held", "pss": "proportional", "file": "file",
	"attempt": "attempt", "out": "output", "err": "errors"}
var cgroupColumns = map[string]string{"current": "cgroup", "limit": "cgroup_limit",
	"at_limit": "cgroup_at_limit", "psi_full": "cgroup_pressure"}
var machineColumns = map[string]string{"total": "machine", "available": "machine_available",
	"shm_total": "shm_total", "shm_used": "shm"}
var deviceColumns = []string{"total", "used", "ours", "other", "util"}

func (r *sampleReader) read(line []byte, put func(string, int64)) (at int64, ok bool) {
	s := &scanner{text: line}
	timed := false
	var held, unheld int64
	s.object(func(name []byte) {
		switch string(name) {
		case "at_ms":
			at, timed = s.number(), true
		case "cgroup":
			s.nested(cgroupColumns, put)
		case "machine":
			s.nested(machineColumns, put)
		case "gpus":
			r.devices(s, put)
		default:
			column, known := sampleColumns[string(name)]
			if !known {
				s.skip()
				return
			}
			value := s.number()
			switch column {
			case "held":
				held = value
				return
			case "anonymous", "shared":
				unheld += value
			}
			put(column, value)
		}
	})
	if s.bad || !timed {
		return 0, false
	}
	if held == 0 { // see event.Sample.Unreclaimable
		held = unheld
	}
	put("host", held)
	return at, true
}

func (s *scanner) nested(columns map[string]string, put func(string, int64)) {
	s.space()
	if s.at >= len(s.text) || s.text[s.at] != '{' {
		s.skip()
		return
	}
	s.object(func(name []byte) {
		if column, known := columns[string(name)]; known {
			put(column, s.number())
			return
		}
		s.skip()
	})
}

func (r *sampleReader) devices(s *scanner, put func(string, int64)) {
	s.space()
	if s.at >= len(s.text) || s.text[s.at] != '[' {
		s.skip()
		return
	}
	s.at++
	for i := 0; !s.take(']'); i++ {
		if i == len(r.device) {
			names := map[string]string{}
			for _, c := range deviceColumns {
				names[c] = "gpu" + strconv.Itoa(i) + "." + c
			}
			r.device = append(r.device, names)
		}
		s.nested(r.device[i], put)
		if !s.take(',') && (s.at >= len(s.text) || s.text[s.at] != ']') {
			s.bad = true
		}
		if s.bad || i > 1024 {
			s.bad = true
			return
		}
	}
}

// stepReader reads the values of a step. They belong to a rank, or to a process where there are no
// ranks, and to a device.
type stepReader struct {
	names map[stepPlace]map[string]string
}

type stepPlace struct {
	ranked  bool
	who, on int64
}

func newStepReader() *stepReader { return &stepReader{map[stepPlace]map[string]string{}} }

var stepColumns = []string{"step", "allocated", "reserved", "peak_allocated", "at_backward",
	"inactive_split", "retries", "ooms", "resident", "heap", "duration_ns"}

func (r *stepReader) read(line []byte, put func(string, int64)) (at int64, ok bool) {
	s := &scanner{text: line}
	timed := false
	place := stepPlace{on: -1}
	pid := int64(0)
	var values [11]int64
	seen := 0
	s.object(func(name []byte) {
		switch text := string(name); text {
		case "at_ms":
			at, timed = s.number(), true
		case "pid":
			pid = s.number()
		case "rank":
			s.space()
			if s.at < len(s.text) && s.text[s.at] == 'n' {
				s.skip()
				return
			}
			place.ranked, place.who = true, s.number()
		case "device":
			place.on = s.number()
		default:
			for i, column := range stepColumns {
				if column == text {
					values[i] = s.number()
					seen |= 1 << i
					return
				}
			}
			s.skip()
		}
	})
	if s.bad || !timed {
		return 0, false
	}
	if !place.ranked {
		place.who = pid
	}
	names := r.names[place]
	if names == nil {
		prefix := "pid" + strconv.FormatInt(place.who, 10)
		if place.ranked {
			prefix = "rank" + strconv.FormatInt(place.who, 10)
		}
		if place.on >= 0 {
			prefix += "/gpu" + strconv.FormatInt(place.on, 10)
		}
		names = map[string]string{}
		for _, c := range stepColumns {
			names[c] = prefix + "." + c
		}
		if len(r.names) < 4096 { // processes come and go: a run of many short ones is cut off here
			r.names[place] = names
		}
	}
	for i, c := range stepColumns {
		if seen&(1<<i) != 0 {
			put(names[c], values[i])
		}
	}
	return at, true
}
