package tape

import (
	"bufio"
	"encoding/json"
	"os"
	"testing"
)

// TestEfficientAttentionAsInTheRehearsal: the workspace of the memory-efficient backward kernel is
// computed here and in the rehearsal's Python. The file was made by listing PyTorch's kernels in
// the order in which they are tried (its generate_kernels.py, kernel_backward.h and
// attention_backward.cu) and taking the first that fits. The rule that the rehearsal had before
// agrees with it where it was fitted: 128 per head in fp32, 256 in half precision, lengths that are
// multiples of 128.
func TestEfficientAttentionAsInTheRehearsal(t *testing.T) {
	file, err := os.Open("testdata/efficient_attention.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	checked := 0
	for lines := bufio.NewScanner(file); lines.Scan(); checked++ {
		var c struct {
			Half, Large bool
			Shape       [5]int64 // batch, heads, queries, keys, per head
			Bytes       int64
		}
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			t.Fatal(err)
		}
		if got := efficientWorkspace(c.Half, c.Large, c.Shape[0]*c.Shape[1], c.Shape[2], c.Shape[3],
			c.Shape[4]); got != c.Bytes {
			t.Errorf("%s: %d", lines.Text(), got)
		}
	}
	if checked < 200 {
		t.Errorf("only %d cases in the file", checked)
	}
}
