package lint

import (
	"strings"
	"testing"
)

// FuzzDecode reads answers of a walk that went wrong, and applies the edits in them to a text they
// do not belong to.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"file":"a.py","findings":[{"rule":"missing-zero-grad","line":1,"column":0,"edits":[[1,0,1,3,"x"]]}]}`),
		"abc\ndef\n")
	f.Add([]byte(`{"file":"a.py","findings":[{"edits":[[9,9,1,1,"x"],[-1,-1,2,2,""]]}]}`), "a")
	f.Add([]byte(`{"error":"x"}`), "")
	f.Fuzz(func(t *testing.T, line []byte, text string) {
		answer, err := Decode(line)
		if err != nil {
			return
		}
		for _, finding := range answer.Findings {
			if mended, err := Mend(text, finding.Edits); err == nil && len(finding.Edits) == 0 &&
				mended != text {
				t.Error("no edits changed the text")
			}
			if strings.Count(text, "\n") < 1000 {
				Diff("a.py", text, finding.Edits, 3)
			}
		}
	})
}
