package cli

import (
	"fmt"
	"strings"

	"github.com/alecthomas/kong"
)

// commandFlags gives the flags of a command, with their dashes.
func commandFlags(model *kong.Application, command string) []string {
	var names []string
	for _, node := range model.Leaves(true) {
		if node.Name != command {
			continue
		}
		for _, flag := range node.Flags {
			names = append(names, "--"+flag.Name)
		}
	}
	return names
}

// suggestion names the word that was probably meant, empty where none is close: a third of the
// letters may differ, and dashes inside the word do not count.
func suggestion(typed string, known []string) string {
	typed, _, _ = strings.Cut(typed, "=")
	letters := func(s string) string {
		return strings.ReplaceAll(strings.TrimLeft(s, "-"), "-", "")
	}
	best, least := "", 1+len(letters(typed))/3
	for _, word := range known {
		if d := distance(letters(typed), letters(word)); d < least {
			best, least = word, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf(", did you mean %q?", best)
}

// distance is how many letters must be changed, added or dropped to make b of a.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		corner := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := corner
			if a[i] != b[j] {
				change++
			}
			corner = row[j+1]
			row[j+1] = min(change, corner+1, row[j]+1)
		}
	}
	return row[len(b)]
}

// usageProblem words a wrong command line: kong calls an unknown command an unexpected argument.
func usageProblem(parse *kong.ParseError) string {
	message := parse.Error()
	if word, ok := strings.CutPrefix(message, "unexpected argument "); ok &&
		parse.Context.Selected() == nil {
		return "there is no command " + word
	}
	return message
}

// helpFor is the command that shows the help that a wrong command line needs.
func helpFor(parse *kong.ParseError) string {
	path := "--help"
	for node := parse.Context.Selected(); node != nil && node.Parent != nil; node = node.Parent {
		path = node.Name + " " + path
	}
	return "memroom " + path
}
