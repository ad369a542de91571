package explain

import (
	"strconv"
	"strings"

	"memroom/event"
	"memroom/lazyregexp"
	"memroom/remedy"
)

// nodes are operations of TensorFlow's graphs whose tensor has a size of its own kind. The last
// parts of the node's name tell them.
var nodes = []struct {
	is     *lazyregexp.Regexp
	name   string
	detail string
	dims   []string // of the printed shape, from the first
	cures  []remedy.ID
	typed  string // for the first cure
}{
	{lazyregexp.New(`(?i)one_?hot(?:_\d+)?$`), "a one-hot encoding", "one_tensor", []string{"elements", "classes"},
		[]remedy.ID{remedy.InParts, remedy.EvalBatch, remedy.MicroBatch},
		"look the rows up instead (tf.gather; BERT: use_one_hot_embeddings=False)"},
	{lazyregexp.New(`(?i)atten\w*/.*(?:softmax|matmul|dropout|add)(?:_\d+)?$`), "the scores of attention", "attention",
		nil, []remedy.ID{remedy.MicroBatch, remedy.ShorterSequence}, ""},
}

// largeNode: TensorFlow names the operation and the shape, and the two say what the tensor is.
func largeNode(f *Facts, s Sums) (judged, bool) {
	c := f.Crash
	m := leadingShape.FindStringSubmatch(c.Text)
	if c.Framework != "tensorflow" || m == nil || s.Asked < 512*event.MiB {
		return judged{}, false
	}
	sizes := digitsOf.FindAllString(m[0], -1)
	rows, _ := strconv.Atoi(sizes[0])
	last, _ := strconv.Atoi(sizes[len(sizes)-1])
	switch {
	case c.Node != "":
	case len(sizes) == 3 && last >= 30_000:
		j := because(CauseBatch, "logits", 0.65, "the last of its dimensions [%s] is as wide as a vocabulary, the others are "+
			"samples and their length", strings.Join(sizes, ", ")).
			saying("that is one score for each of %s words at every place", thousands(int64(last)))
		j.words = []ownCure{{remedy.ChunkedLoss, "a smaller vocabulary",
			"subwords (BPE, sentencepiece) of 32,000 or less, or a sampled softmax"},
			{remedy.LessAtOnce, "fewer or shorter samples at once",
				"the tensor shrinks with each of its dimensions"}}
		return j, true
	case len(sizes) == 2 && f.batchOfOne() && rows >= 1000:
		j := because(CauseBatch, "eval_batch", 0.6, "its first dimension is %s, where the batch is 1: so many rows are computed at "+
			"once, as where a whole test set is fed for its accuracy", thousands(int64(rows))).
			saying("%s rows are computed at once, which is not the batch of 1", thousands(int64(rows)))
		j.words = []ownCure{{remedy.LessAtOnce, "evaluate in batches", "some hundred rows at a time, and the mean of their results"}}
		return j, true
	}
	for _, n := range nodes {
		if !n.is.MatchString(c.Node) {
			continue
		}
		size := "[" + strings.Join(sizes, ", ") + "]"
		if len(n.dims) == len(sizes) {
			var parts []string
			for i, of := range n.dims {
				d, _ := strconv.ParseInt(sizes[i], 10, 64)
				parts = append(parts, thousands(d)+" "+of)
			}
			size = strings.Join(parts, " x ")
		}
		last := c.Node[strings.LastIndexByte(c.Node, '/')+1:]
		j := because(CauseBatch, n.detail, 0.7, "the operation is %s of shape [%s]", last,
			strings.Join(sizes, ", ")).
			saying("that is one tensor, %s (%s)", n.name, size)
		j.cures = n.cures
		if c.Steps >= 10*lateSteps {
			j = j.also("it ran for %s steps before that: a batch with longer samples than before", thousands(c.Steps))
			j.cures = []remedy.ID{remedy.LongestBatch, remedy.MicroBatch}
		}
		if n.typed != "" {
			j.typed = map[remedy.ID]string{n.cures[0]: n.typed}
		}
		return j, true
	}
	return judged{}, false
}
