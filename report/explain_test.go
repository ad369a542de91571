package report

import (
	"bufio"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"memroom/explain"
	"memroom/trace"
)

// tracked is one line of explain/testdata/tracker/labels.jsonl: what the short answer must say and
// must not, as expressions.
type tracked struct {
	File  string   `json:"file"`
	IsOOM bool     `json:"is_oom"`
	Says  []string `json:"says"`
	Never []string `json:"never"`
}

// TestShortAnswers: reports in the shapes of trackers are answered in at most twelve lines, with
// the cause and a cure that can be typed, and half of the answers have no more than 90 words.
func TestShortAnswers(t *testing.T) {
	folder := filepath.Join("..", "explain", "testdata", "tracker")
	file, err := os.Open(filepath.Join(folder, "labels.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var words []int
	for lines := bufio.NewScanner(file); lines.Scan(); {
		var want tracked
		if err := json.Unmarshal(lines.Bytes(), &want); err != nil {
			t.Fatal(err)
		}
		x, answer := shortAnswer(t, filepath.Join(folder, want.File))
		if x.IsOOM != want.IsOOM {
			t.Errorf("%s: is_oom %v", want.File, x.IsOOM)
		}
		for _, part := range want.Says {
			if !regexp.MustCompile(part).MatchString(answer) {
				t.Errorf("%s does not say %q:\n%s", want.File, part, answer)
			}
		}
		for _, part := range want.Never {
			if m := regexp.MustCompile(part).FindString(answer); m != "" {
				t.Errorf("%s says %q:\n%s", want.File, m, answer)
			}
		}
		if n := strings.Count(answer, "\n"); n > 12 {
			t.Errorf("%s: %d lines:\n%s", want.File, n, answer)
		}
		words = append(words, len(strings.Fields(answer)))
	}
	slices.Sort(words)
	if len(words) < 30 || words[len(words)/2] > 90 {
		t.Errorf("%d answers, %v words", len(words), words)
	}
}

func shortAnswer(t *testing.T, path string) (*explain.Explanation, string) {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	log, err := trace.ReadLog(file)
	if err != nil {
		t.Fatal(err)
	}
	x := explain.Explain(explain.Material{Logs: []*trace.Log{log}})
	if x == nil {
		x = explain.NothingFound()
	}
	var answer strings.Builder
	ExplainText(NewText(&answer, false), x, false)
	return x, answer.String()
}
