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
