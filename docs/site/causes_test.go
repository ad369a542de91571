package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"memroom/lint"
	"memroom/remedy"
)

// TestCausesNameWhatExists: each row of the table of causes names rules and remedies that there
// are, and each rule has a sample in which it must be found.
func TestCausesNameWhatExists(t *testing.T) {
	root := "../.."
	text, err := os.ReadFile(filepath.Join(root, "docs", "causes.md"))
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{} // true: a rule of lint
	for _, r := range remedy.Catalogue() {
		known[string(r.ID)] = false
	}
	for _, r := range lint.Rules() {
		known[r.ID] = true
	}
	marks, rows := marked(t, root), 0
	for row := range strings.Lines(string(text)) {
		if !strings.HasPrefix(row, "| ") || !strings.Contains(row, "memroom") {
			continue
		}
		rows++
		for _, list := range regexp.MustCompile("\\(`[^)]*\\)").FindAllString(row, -1) {
			for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(list, -1) {
				isRule, exists := known[m[1]]
				if !exists {
					t.Errorf("%s is neither a rule nor a remedy: %s", m[1], row)
				}
				if isRule && !slices.Contains(marks, m[1]) {
					t.Errorf("no sample has %s", m[1])
				}
			}
		}
	}
	if rows < 20 {
		t.Errorf("%d rows", rows)
	}
}

// marked returns the rules that the samples of lint are marked with.
func marked(t *testing.T, root string) (rules []string) {
	t.Helper()
	samples, err := filepath.Glob(filepath.Join(root, "cli", "testdata", "lint", "*", "*.py"))
	if err != nil {
		t.Fatal(err)
	}
	for _, sample := range samples {
		text, err := os.ReadFile(sample)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range mark.FindAllStringSubmatch(string(text), -1) {
			rules = append(rules, m[1])
		}
	}
	return rules
}

var mark = regexp.MustCompile(`# (?:expect|hint): ([\w\-]+)`)
