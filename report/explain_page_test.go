package report

import (
	"testing"

	"memroom/explain"
	"memroom/remedy"
)

// TestOnlyWhatCanBeTypedIsTyped: a page offers to copy code and arguments; words for a person are
// text.
func TestOnlyWhatCanBeTypedIsTyped(t *testing.T) {
	keep, _ := remedy.Find(remedy.KeepLess)
	code := keep.HowTo(remedy.Job{Framework: remedy.PyTorch})
	words := keep.HowTo(remedy.Job{Facts: map[remedy.Fact]bool{}})
	p := PageOf(&explain.Explanation{Remedies: []explain.Advice{{How: code}, {How: words}}})
	if c := p.Cures[0]; c.Typed != code.Code || c.Words != "" {
		t.Errorf("code: %+v", c)
	}
	if c := p.Cures[1]; c.Words != words.Args || c.Words == "" || c.Typed != "" {
		t.Errorf("words: %+v", c)
	}
}
