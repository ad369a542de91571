package explain

import (
	"strconv"

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
		size := thousands(dims[1])
		for _, d := range dims[2:] {
			size += " x " + thousands(d)
		}
		j := because(CauseHostData, "", 0.7,
			"its first dimension is %s, and each element has %s values: a whole data set rather than a batch",
			thousands(dims[0]), size).
			saying("that is one array of %s samples of %s", thousands(dims[0]), size)
		j.cures = []remedy.ID{remedy.StreamData, remedy.RaiseLimit}
		j.typed = map[remedy.ID]string{remedy.StreamData: "read each sample when it is used (a Dataset with __getitem__, a generator), or np.memmap the array; keep the " +
			"stored type, uint8 is a quarter of float32"}
		return j, true
	}
	return judged{}, false
}
