package lint

import (
	"io/fs"
	"path"
	"strings"
	"sync"

	"memroom/event"
	"memroom/lint/py"
)

// Rule is one known mistake. Its file in lint/py/rules holds these words and the check.
type Rule struct {
	ID       string
	Severity event.Severity
	Title    string // what it is, in a few words
	Why      string // why it costs memory, or what the belief gets wrong
	Fix      string // what to write instead
	Remedy   string // id in package remedy, "" if none
}

// Hint is the severity of a possible mistake: whether the code has this cost is decided by
// something the file does not show. A rule may be one as a whole, or a check marks a case.
const Hint event.Severity = "hint"

// Rules returns every rule, sorted by id.
func Rules() []Rule { return rules() }

// Find returns the rule with this id.
func Find(id string) (Rule, bool) {
	for _, r := range rules() {
		if r.ID == id {
			return r, true
		}
	}
	return Rule{}, false
}

var rules = sync.OnceValue(func() []Rule {
	paths, _ := fs.Glob(py.Python, "rules/[a-z]*.py")
	all := make([]Rule, 0, len(paths))
	for _, p := range paths {
		text, _ := fs.ReadFile(py.Python, p) // embedded: it cannot fail
		id := strings.ReplaceAll(strings.TrimSuffix(path.Base(p), ".py"), "_", "-")
		all = append(all, parseRule(id, string(text)))
	}
	return all
})

// parseRule reads the docstring of a rule's file: the title, lines `severity:` and `remedy:`, the
// reason, and a paragraph that begins with `Instead:`. TestRulesAreWhole finds what is missing.
func parseRule(id, text string) Rule {
	_, text, _ = strings.Cut(text, `"""`)
	text, _, _ = strings.Cut(text, `"""`)
	r := Rule{ID: id}
	for i, paragraph := range strings.Split(strings.TrimSpace(text), "\n\n") {
		joined := strings.Join(strings.Fields(paragraph), " ")
		fix, isFix := strings.CutPrefix(joined, "Instead: ")
		switch {
		case i == 0:
			r.Title = strings.TrimSuffix(joined, ".")
		case strings.HasPrefix(joined, "severity: "):
			for _, line := range strings.Split(paragraph, "\n") {
				switch name, value, _ := strings.Cut(line, ": "); name {
				case "severity":
					r.Severity = event.Severity(value)
				case "remedy":
					r.Remedy = value
				}
			}
		case isFix:
			r.Fix = fix
		default:
			r.Why = strings.TrimSpace(r.Why + " " + joined)
		}
	}
	return r
}
