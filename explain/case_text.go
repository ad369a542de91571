package explain

import (
	"cmp"
	"strconv"
	"strings"

	"memroom/event"
	"memroom/lazyregexp"
	"memroom/remedy"
)

// cachedWhole is a step of tf.data that keeps every element in memory: one with a file does not.
var cachedWhole = re(`[^\n=]*=[^\n]*\.cache\(\)[^\n]*`)

// cachedData: a line of the text caches a data set, and host memory fills up.
func cachedData(f *Facts, _ Sums) (judged, bool) {
	line := strings.TrimSpace(cachedWhole.FindString(f.text))
	if line == "" || !onHost(f.Crash) || !f.says("tf.data", "tensorflow", "keras", "prefetch(") {
		return judged{}, false
	}
	j := because(CauseHostData, "", 0.75, "your text has %q: .cache() without a file keeps every element that has passed",
		short(line)).saying(".cache() holds the whole data set in host memory once an epoch has passed")
	j.words = []ownCure{{remedy.StreamData, "cache to a file, or not at all",
		`.cache("/path/on/disk") instead of .cache()   # or leave it out, or put it before the decoding`}}
	return j, true
}

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

// loadingSaid are words of weights that are being loaded.
var loadingSaid = re(`\bload\w*[^.\n]{0,80}\b(?:checkpoint|weights|model|pretrained)|(?:checkpoint|weights|model)[^.\n]{0,40}\b(?:is|are|being) loaded`)

// ranksLoad: several ranks of one machine load, and its memory ran out.
func ranksLoad(f *Facts, _ Sums) (judged, bool) {
	c := f.Crash
	if !onHost(c) || f.World < 2 || len(c.Frames) > 0 || c.Steps > 0 || f.Hints.Phase == "load" ||
		!loadingSaid.MatchString(f.Said.Of) && !loadingSaid.MatchString(f.Said.Near) {
		return judged{}, false
	}
	j := because(CauseModel, "ranks_load", 0.65, "%d ranks were started, and each reads the whole checkpoint", f.World).
		saying("%d ranks each load the whole model into the memory of one machine", f.World)
	j.words = []ownCure{{remedy.LoadOnce, "one copy in host memory, not one for each rank",
		"torch.load(path, mmap=True, map_location='cpu'); or load on rank 0 only and broadcast (FSDP: sync_module_states=True)"}}
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

var (
	ofSpeech  = re(`\basr\b|\bspeech|\baudio|utterance|\bespnet|\bkaldi\b|\btts\b`)
	manyBoxes = re(`\b(?:many|number of|lots of|hundreds of|thousands of|\d{3,}) (?:gt |ground[- ]truth |instance |annotated )*(?:box(?:es)?|bbox(?:es)?|objects|instances|gts?)\b`)
)

// sampleSets: by the person's words what one sample holds counts, not how many a batch has.
func sampleSets(f *Facts, s Sums) (judged, bool) {
	c := f.Crash
	if !onCard(c) || !f.Ran.Trained && !learns(c, f.Hints) || s.Others > 0 {
		return judged{}, false
	}
	if said := manyBoxes.FindString(f.text); said != "" && c.Requested == nil &&
		f.says("detect", "rcnn", "yolo", "anchor", "bbox", "gt box", "gt_box") {
		return because(CauseBatch, "pairs", 0.65, "your text says %q: every box is compared with every anchor of its image", said), true
	}
	if f.inVain(attempts[0].is) != "" && ofSpeech.MatchString(f.text) && len(c.Frames) == 0 {
		j := because(CauseBatch, "longest_batch", 0.65,
			"your text says that a smaller batch did not help: one long recording fills the card by itself").
			saying("the longest samples set the peak, not their number")
		j.words = longSamples(f)[:1]
		return j, true
	}
	return judged{}, false
}
