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
	if c.Framework != "tensorflow" || c.Node == "" || m == nil || s.Asked < 512*event.MiB {
		return judged{}, false
	}
	sizes := digitsOf.FindAllString(m[0], -1)
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

// manyAtOnce is a number of large samples in one pass that no setting of a batch has.
const manyAtOnce = 1000

// allSamples: the first dimension of an activation is larger than any batch of such samples, and no
// batch is shown: all the data goes through in one call.
func allSamples(f *Facts, s Sums) (judged, bool) {
	c := f.Crash
	m := leadingShape.FindStringSubmatch(c.Text)
	if c.Framework != "tensorflow" || m == nil || s.Asked < event.GiB || f.Hints.Batch > 0 ||
		optimizerNode.MatchString(c.Node) || weightNode.MatchString(c.Node) ||
		recurrent.MatchString(c.Node) || ofBoxes.MatchString(c.Node+" "+c.Text) || wholeArray.MatchString(c.Text) || framesOf(c, "data_adapter") {
		return judged{}, false
	}
	n, _ := strconv.ParseInt(m[1], 10, 64)
	if n < manyAtOnce || strings.Count(m[2], ",") < 3 || n%64 == 0 {
		return judged{}, false
	}
	j := because(CauseBatch, "", 0.65, "the first dimension of the tensor is %s, and no setting of a batch is shown", thousands(n)).
		saying("%s samples go through in one call", thousands(n))
	j.cures = []remedy.ID{remedy.MicroBatch}
	j.typed = map[remedy.ID]string{remedy.MicroBatch: "32 at a time instead of " + thousands(n) +
		": a loop over pieces of the data, or batch_size=32 where the call has it"}
	return j, true
}
