package explain

import (
	"math"
	"strconv"
	"strings"

	"memroom/event"
	"memroom/lazyregexp"
	"memroom/remedy"
)

// madeByShape is a call that makes a tensor or an array of a shape that stands in the line.
var madeByShape = lazyregexp.New(`\b(?:torch|np|numpy|jnp|tf|paddle|cp)\.(zeros|ones|empty|full|rand|randn)\(\s*(?:size=|shape=)?[\[(]?([^)\]=]*)`)

// namedSize is one factor of a shape: a number, or a name with a small number added.
var namedSize = lazyregexp.New(`^(?:(\d+)|((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*)\s*(?:([+-])\s*(\d+))?)$`)

// widths are the bytes of an element, by the word for its type in a call.
var widths = []struct {
	word  string
	bytes float64
}{{"64", 8}, {"double", 8}, {"16", 2}, {"half", 2}, {"int8", 1}, {"uint8", 1}, {"bool", 1}}

// shapeByNames: the line makes a tensor of sizes that have names, the text prints what the names
// stand for, and their product is what was asked for.
func shapeByNames(f *Facts, s Sums) (judged, bool) {
	c := f.Crash
	if s.Asked < 256*event.MiB {
		return judged{}, false
	}
	for i := 0; i < min(2, len(c.Code)); i++ {
		m := madeByShape.FindStringSubmatch(c.Code[i])
		if m == nil {
			continue
		}
		names, sizes, ok := f.shapeOf(m[2])
		if !ok || !about(product(sizes)*widthIn(c.Code[i], m[0]), s.Asked) {
			continue
		}
		cause := CauseBatch
		if onHost(c) {
			cause = CauseHostData
		}
		j := because(cause, "one_tensor", 0.7, "the line makes one tensor of (%s), and the text prints these sizes",
			strings.Join(names, ", ")).
			saying("that is %s of %s", m[1], strings.Join(sizes, " x "))
		j.cures = []remedy.ID{remedy.CheckShapes, remedy.InParts}
		meant := "look whether each is meant: " + pairs(names, sizes)
		j.typed = map[remedy.ID]string{remedy.CheckShapes: meant,
			remedy.InParts: "make it for a part of the largest of them at a time; or keep it in host memory (device='cpu') " +
				"and move what a step needs"}
		if onHost(c) {
			j.typed[remedy.InParts] = "make it for a part of the largest of them at a time, or np.memmap it"
		}
		return j, true
	}
	return judged{}, false
}

// shapeOf returns the factors of a shape and what they stand for; ok is false where one is unknown.
func (f *Facts) shapeOf(text string) (names, sizes []string, ok bool) {
	for _, part := range strings.Split(strings.TrimRight(strings.TrimSpace(text), ","), ",") {
		m := namedSize.FindStringSubmatch(strings.TrimSpace(part))
		if m == nil {
			return nil, nil, false
		}
		n, known := f.printedAs(m[2])
		if m[1] != "" {
			n, _ = strconv.ParseInt(m[1], 10, 64)
			known = true
		}
		if !known {
			return nil, nil, false
		}
		if add, _ := strconv.ParseInt(m[4], 10, 64); m[3] == "-" {
			n -= add
		} else {
			n += add
		}
		names, sizes = append(names, strings.TrimSpace(part)), append(sizes, thousands(n))
	}
	return names, sizes, len(names) >= 2
}

// printedAs returns the number that the text prints for a name, with "self." or without.
func (f *Facts) printedAs(name string) (int64, bool) {
	last := name[strings.LastIndexByte(name, '.')+1:]
	if last == "" {
		return 0, false
	}
	is := lazyregexp.New(`(?i)(?:^|[^\w])` + last + `["']?\s{0,2}[:=]\s{0,2}(\d{1,12})\b`)
	for _, l := range f.lines {
		if m := is.FindStringSubmatch(l.Text); m != nil {
			n, err := strconv.ParseInt(m[1], 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}

// widthIn returns the bytes of an element, from the dtype in a line or else the default of its
// call. NumPy makes doubles.
func widthIn(line, call string) float64 {
	at := strings.Index(line, "dtype")
	if at >= 0 {
		for _, w := range widths {
			if strings.Contains(line[at:], w.word) {
				return w.bytes
			}
		}
		return 4
	}
	if strings.HasPrefix(call, "np.") || strings.HasPrefix(call, "numpy.") {
		return 8
	}
	return 4
}

func product(sizes []string) float64 {
	all := 1.0
	for _, s := range sizes {
		n, _ := strconv.ParseFloat(strings.ReplaceAll(s, ",", ""), 64)
		all *= n
	}
	return all
}

// about reports whether a size is what was printed, within the digits of a printed size.
func about(n float64, asked event.Bytes) bool {
	return n > 0 && math.Abs(n-float64(asked)) < 0.01*float64(asked)
}

// pairs writes what the names stand for, numbers left out.
func pairs(names, sizes []string) string {
	var all []string
	for i, name := range names {
		if name != strings.ReplaceAll(sizes[i], ",", "") {
			all = append(all, name+" = "+sizes[i])
		}
	}
	return strings.Join(all, ", ")
}
