package explain

import (
	"strconv"
	"strings"

	"memroom/event"
	"memroom/lazyregexp"
	"memroom/remedy"
	"memroom/trace"
)

// printedShape is the shape of an array that NumPy names.
var printedShape = lazyregexp.New(`(?i)array with shape \(([\d, ]+)\)(?: and data type (\w+))?`)

// manyRows is a number of rows from which a table of all pairs is large.
const manyRows = 5000

// nobodysSide is the side of a picture that no camera makes.
const nobodysSide = 30_000

// ofPicture are words of work on pictures.
var ofPicture = lazyregexp.New(`(?:pad|crop|resize|warp|zoom|rescale|rotate)\w*\(|\b(?:crop|resize|rescale)\w*\b`)

// absurdPicture reports whether both of the first sides are about as long as each other and longer
// than those of any picture.
func absurdPicture(dims []int64) bool {
	a, b := dims[0], dims[1]
	return a >= nobodysSide && b >= nobodysSide && a != b && max(a, b) < 3*min(a, b) &&
		(len(dims) == 2 || len(dims) == 3 && dims[2] <= 4)
}

// arrayByShape: the message prints the shape, which shows what the array holds: all pairs of
// something, or all samples of a data set at once.
func arrayByShape(f *Facts, s Sums) (judged, bool) {
	c := f.Crash
	m := printedShape.FindStringSubmatch(c.Text)
	if m == nil || !onHost(c) || s.Asked < largeRequest || has(c, "replay") {
		return judged{}, false
	}
	var dims []int64
	for _, d := range digitsOf.FindAllString(m[1], -1) {
		n, _ := strconv.ParseInt(d, 10, 64)
		dims = append(dims, n)
	}
	if _, ok := frameOf(c, buffering); ok || len(dims) < 2 {
		return judged{}, false
	}
	switch {
	case absurdPicture(dims) && ofPicture.MatchString(f.text):
		j := because(CauseBug, "bad_size", 0.8,
			"%s x %s are no sides of a picture: the corners or the factor that it is cut or resized by are wrong for "+
				"this sample", thousands(dims[0]), thousands(dims[1])).
			saying("that is a picture of %s x %s, which nobody meant", thousands(dims[0]), thousands(dims[1]))
		j.cures = []remedy.ID{remedy.CheckShapes}
		j.typed = map[remedy.ID]string{remedy.CheckShapes: "print the corners, the padding and the scale before that line; leave samples out whose box is " +
			"empty or outside of the picture"}
		return j, true
	case len(dims) == 2 && dims[0] == dims[1] && dims[0] >= manyRows:
		j := because(CauseHostData, "one_tensor", 0.75,
			"its shape is %s x %s: one value for each pair of rows, which grows with their square", thousands(dims[0]),
			thousands(dims[1])).
			saying("that is one table of all pairs of %s rows", thousands(dims[0]))
		j.cures = []remedy.ID{remedy.InParts, remedy.RaiseLimit}
		j.typed = map[remedy.ID]string{remedy.InParts: "keep it sparse (scipy.sparse) where most of it is zero; or a block of rows at a time, keeping " +
			"only the nearest of each"}
		return j, true
	case len(dims) == 2 && min(dims[0], dims[1]) >= manyRows && m[2] != "object" &&
		len(c.Neighbours) == 0 && !seen(c, f.Hints, trace.SignReads):
		j := because(CauseHostData, "one_tensor", 0.6,
			"its shape is %s x %s: as from one-hot encoding of columns with many distinct values, or a sparse matrix made dense",
			thousands(dims[0]), thousands(dims[1])).
			saying("that is one dense table of %s x %s", thousands(dims[0]), thousands(dims[1]))
		j.cures = []remedy.ID{remedy.InParts, remedy.RaiseLimit}
		j.typed = map[remedy.ID]string{remedy.InParts: "keep it sparse (scipy.sparse, sparse output of the encoder), or leave out or hash columns " +
			"that have a value of their own in nearly each row"}
		return j, true
	case len(dims) >= 3 && dims[0] >= 1000 && len(c.Frames) == 0:
		size := thousands(dims[0])
		for _, d := range dims[1:] {
			size += " x " + thousands(d)
		}
		j := because(CauseHostData, "one_tensor", 0.65,
			"its shape is %s: all of it is asked for at once", size).
			saying("that is one array of %s", size)
		parts := "a block along its first axis at a time, or np.memmap; keep the stored type, uint8 is a quarter of float32"
		if dims[0] == dims[1] && dims[1] == dims[2] {
			j = because(CauseHostData, "bad_size", 0.65,
				"three axes of the same length: it grows with the cube of %s, as a grid of all combinations, or as what "+
					"broadcasting makes of a wrong shape", thousands(dims[0])).saying("that is one array of %s", size)
			parts = "print the shapes of what is combined before that line: one axis of " + thousands(dims[0]) + " is too many"
		}
		if f.says("meshgrid") {
			parts = "np.meshgrid(..., sparse=True) or np.ogrid: one axis of each, which broadcast; or blocks of the grid"
		}
		j.words = []ownCure{{remedy.StreamData, "another shape, or less of it at a time", parts}}
		return j, true
	}
	return judged{}, false
}

// arrayMade is a line that makes an array whose sides it writes.
var arrayMade = re(`\b(np|numpy|torch|jnp|cp|cupy|cuda|tf)\.(?:random\.)?(?:zeros|ones|empty|full|randn?|normal|(?:pinned|device)_array)\([(\[]?(\d+(?: ?, ?\d+)+)([^\n]{0,60})`)

// arrayWritten: a line of the text makes an array that is larger than the card.
func arrayWritten(f *Facts, s Sums) (judged, bool) {
	size, name := f.card(s)
	m := arrayMade.FindStringSubmatch(f.text)
	if m == nil || size == 0 || !onCard(f.Crash) {
		return judged{}, false
	}
	bytes := 4.0
	switch {
	case strings.Contains(m[3], "int8"), strings.Contains(m[3], "bool"):
		bytes = 1
	case strings.Contains(m[3], "float16"):
		bytes = 2
	case strings.Contains(m[3], "32"):
	case strings.Contains(m[3], "64"), m[1] == "np", m[1] == "numpy", m[1] == "cuda":
		bytes = 8
	}
	for _, d := range digitsOf.FindAllString(m[2], -1) {
		n, _ := strconv.ParseFloat(d, 64)
		bytes *= n
	}
	if bytes < 0.9*float64(size) {
		return judged{}, false
	}
	j := because(CauseBatch, "oversized", 0.75, "the text makes an array of %s, which is %s, and %s has %s", m[2],
		event.Bytes(bytes), name, size).
		saying("one array of the text is %s, more than the card", event.Bytes(bytes))
	j.words = []ownCure{{remedy.InParts, "a block of it at a time", "copy some rows to the card, work on them, let go of them"}}
	if m[1] == "cuda" {
		j.words[0].args += "; numba: cuda.managed_array() may be larger than the card"
	}
	return j, true
}
