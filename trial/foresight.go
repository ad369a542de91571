package trial

import (
	"memroom/event"
)

// foresight is what rehearsals said of settings before any trial ran, by what of them may take
// memory. Where it is a plain function of the settings, the rest is predicted from it.
type foresight struct {
	said  map[string]event.Bytes
	seen  []Observation
	shape *fitted
	ratio float64 // the most that a trial held so far, by what was said of it
	over  float64 // the least that was said beyond what a trial held
}

const (
	// follows is the mean error below which rehearsals of some settings tell those of the others.
	follows = 0.03
	// surprise is what trials may take beyond a rehearsal until some have ended: buffers of
	// libraries, workers, fragmentation. On a card the upper end of the prediction has that.
	surprise = 1.2
	// enough trials that ended are believed more than rehearsals. A few of similar size would fit
	// any shape, and say nothing about the others.
	enough = 32
)

// Foresee takes what a rehearsal says of a setting.
func (m *Memory) Foresee(p Params, bytes event.Bytes) {
	if m.ahead.said == nil {
		m.ahead.said = map[string]event.Bytes{}
	}
	m.ahead.said[sizeKey(p)] = bytes
	m.ahead.seen = append(m.ahead.seen, Observation{Params: p, Bytes: bytes})
	m.ahead.shape = fitShapes(m.ahead.seen, nil)
	m.news++
}

// Exceeds takes what a trial holds: rehearsals that say less are corrected, all in the same way.
func (m *Memory) Exceeds(p Params, bytes event.Bytes) {
	said, known := m.ahead.bytes(p)
	if over := said - float64(bytes); known && (m.ahead.ratio == 0 || over < m.ahead.over) {
		m.ahead.over = over
	}
	if known && float64(bytes) > m.ahead.ratio*said {
		if m.ahead.ratio = float64(bytes) / said; m.ahead.ratio > 1 || len(m.seen) >= trusted {
			m.news++
		}
	}
}

// bytes is what rehearsals say of a setting, or of others so plainly that it follows.
func (f *foresight) bytes(p Params) (bytes float64, known bool) {
	if said, known := f.said[sizeKey(p)]; known {
		return float64(said), true
	}
	if len(f.seen) < trusted || f.shape.score > follows || f.shape.strange(p) {
		return 0, false
	}
	row := f.shape.row(p)
	for _, x := range row {
		if x < -0.1 || x > 1.1 { // far from all that were rehearsed
			return 0, false
		}
	}
	return f.shape.predicted(row), true
}

// upper returns the most that a trial may need, going by its rehearsal, and the likely amount. Once
// some have ended, the largest ratio of a peak to its rehearsal bounds the others.
func (f *foresight) upper(p Params, m *Memory) (upper, likely event.Bytes) {
	bytes, _ := f.bytes(p)
	ratio, beyond, beside := max(1, f.ratio), 1+slack, float64(pad)
	switch unsure := unsure(len(m.seen)); {
	case len(m.seen) >= trusted:
		beyond, beside = 1+slack*unsure, beside*unsure
		bytes -= max(0, f.over) // as of libraries: the same for large ones and small ones
	case m.Fixed: // a prediction's upper end has all that
		beyond, beside = 1, 0
	default:
		beyond = surprise
	}
	upper = event.Bytes(bytes*ratio*beyond + beside)
	if m.Fixed {
		return upper, upper
	}
	return upper, event.Bytes(bytes * ratio)
}

// column is what rehearsals say as something that peaks may grow with.
func (f *foresight) column() []column {
	if f.shape == nil {
		return nil
	}
	return []column{{name: "rehearsal", value: func(p Params) float64 {
		if bytes, known := f.bytes(p); known {
			return bytes
		}
		return f.shape.predicted(f.shape.row(p))
	}}}
}
