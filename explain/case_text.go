package explain

import (
	"cmp"
	"strconv"

	"memroom/event"
	"memroom/lazyregexp"
	"memroom/remedy"
)

// keptAsLoaded are lines that keep everything that a loader makes.
var keptAsLoaded = lazyregexp.New(`(?i)\w+\.append\((?:\w+\.)*load\w*\(`)

// howMany is a number of things that a data set has.
var howMany = re(`\b(\d{3,7}|\d{1,3}(?:,\d{3})+) (cameras|images|photos|frames|scenes|samples|files)\b`)

// loadedToCard: the innermost lines load one thing after the other and keep each on the card.
func loadedToCard(f *Facts, _ Sums) (judged, bool) {
	c := f.Crash
	if !onCard(c) || c.Steps > 0 {
		return judged{}, false
	}
	for i, line := range c.Code[:min(len(c.Code), len(c.Frames), innermost)] {
		if !keptAsLoaded.MatchString(line) {
			continue
		}
		what := "everything that is loaded"
		if m := howMany.FindStringSubmatch(f.text); m != nil {
			what = "each of the " + m[1] + " " + m[2]
		}
		j := because(CauseHostData, "data_on_card", 0.75, "%s:%d keeps %s: %s", base(c.Frames[i].File),
			c.Frames[i].Line, what, line).saying("%s is put on the card before the first step", what)
		j.frame = i
		text, _ := f.Tool.setting(remedy.StreamData)
		j.words = []ownCure{{remedy.StreamData, "keep them in host memory, and move each to the card when it is used",
			cmp.Or(text, "load them on the CPU at that line; x.to('cuda') in the step; or fewer or smaller ones")}}
		return j, true
	}
	return judged{}, false
}

var ( // a table as texts write its shape, and calls that compare all rows
	rowsSaid = re(`\(\s?(\d{4,8}) ?, ?\d{1,5}\s?\)`)
	paired   = re(`(?:_|\b)(?:pairwise_(?:distances|kernels)|silhouette_s\w+|cosine_similarity|euclidean_distances|squareform|linkage)\b`)
)

// pairsOfRows: all rows of a table whose shape stands in the text are compared with all others, in
// 64 bits, and that was refused without a size.
func pairsOfRows(f *Facts, s Sums) (judged, bool) {
	rows, call := rowsSaid.FindStringSubmatch(f.text), paired.FindString(f.text)
	if rows == nil || call == "" || !onHost(f.Crash) || s.Asked > 0 {
		return judged{}, false
	}
	n, _ := strconv.ParseInt(rows[1], 10, 64)
	size := event.Bytes(8 * n * n)
	if size < nobodysBuffer/32 {
		return judged{}, false
	}
	rowsOf := thousands(n)
	j := because(CauseHostData, "one_tensor", 0.8, "%s over %s rows: %s x %s x 8 bytes",
		call, rowsOf, rowsOf, rowsOf).saying("the distances of all pairs of %s rows are %s", rowsOf, size)
	how := "pairwise_distances_chunked, keeping the nearest of each row; or a sample of the rows"
	if f.says("silhouette_score") {
		how = "silhouette_score(X, labels, sample_size=10_000)   # releases from 0.20 on compute it in pieces; davies_bouldin_score needs no pairs"
	}
	j.words = []ownCure{{remedy.InParts, "a sample of the rows, or a piece at a time", how}}
	return j, true
}

// freeSaid is how much of the machine's memory a report prints as free, in GB.
var freeSaid = re(`\bram\b[^\n]{0,12}\bfree[: =]{1,3}(\d+(?:\.\d+)?)\b`)

// commitLimit: Windows refused little while much of the memory was free: its limit on what may be
// promised was reached.
func commitLimit(f *Facts, s Sums) (judged, bool) {
	m := freeSaid.FindStringSubmatch(f.text)
	if m == nil || f.Crash.Where != event.WhereHost || s.Asked == 0 || !f.says("windows") {
		return judged{}, false
	}
	n, _ := strconv.ParseFloat(m[1], 64)
	if free := event.Bytes(n * float64(event.GiB)); free > 8*s.Asked {
		return because(CauseSetting, "page_file", 0.7,
			"%s of main memory were free and %s were refused: what Windows has promised to all programs counts (RAM and page file together)",
			free, s.Asked), true
	}
	return judged{}, false
}
