package guard

import (
	"regexp"
	"strconv"
	"strings"
)

// Hunk is a stretch of lines that differs between two revisions.
type Hunk struct {
	File     string   `json:"file"`          // as it is called now; of a removed file its old name
	Was      string   `json:"was,omitempty"` // as it was called; empty for a new file
	OldFirst int      `json:"old_first"`     // where Removed began; where nothing was, the line after
	NewFirst int      `json:"first"`
	Removed  []string `json:"removed"`
	Added    []string `json:"added"`
}

var hunkHead = regexp.MustCompile(`^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@`)

// ParseDiff reads what git diff --unified=0 --no-prefix prints. Names that git quotes are unquoted.
func ParseDiff(text string) []Hunk {
	var hunks []Hunk
	was, file := "", ""
	left, right := 0, 0 // lines of the hunk that are still to come
	for line := range strings.SplitSeq(text, "\n") {
		m := hunkHead.FindStringSubmatch(line)
		switch {
		case left > 0 && strings.HasPrefix(line, "-"):
			h := &hunks[len(hunks)-1]
			h.Removed = append(h.Removed, strings.TrimSuffix(line[1:], "\r"))
			left--
		case right > 0 && strings.HasPrefix(line, "+"):
			h := &hunks[len(hunks)-1]
			h.Added = append(h.Added, strings.TrimSuffix(line[1:], "\r"))
			right--
		case strings.HasPrefix(line, "--- "):
			was = diffName(line[4:])
		case strings.HasPrefix(line, "+++ "):
			if file = diffName(line[4:]); file == "" {
				file = was
			}
		case m != nil:
			h := Hunk{File: file, Was: was, OldFirst: number(m[1]), NewFirst: number(m[3])}
			if left = count(m[2]); left == 0 {
				h.OldFirst++
			}
			if right = count(m[4]); right == 0 {
				h.NewFirst++
			}
			hunks = append(hunks, h)
		}
	}
	return hunks
}

// diffName is a file's name in a head line; empty for /dev/null.
func diffName(text string) string {
	text, _, _ = strings.Cut(text, "\t") // git adds one after names with spaces
	if text == "/dev/null" {
		return ""
	}
	if strings.HasPrefix(text, `"`) {
		if plain, err := strconv.Unquote(text); err == nil {
			return plain
		}
	}
	return text
}

func number(text string) int {
	n, _ := strconv.Atoi(text)
	return n
}

// count is a hunk's number of lines, which git leaves out where it is one.
func count(text string) int {
	if text == "" {
		return 1
	}
	return number(text)
}

// blank reports whether nothing but empty lines and comments of Python changed.
func (h *Hunk) blank() bool {
	for _, lines := range [][]string{h.Removed, h.Added} {
		for _, l := range lines {
			l = strings.TrimSpace(l)
			if l != "" && !(strings.HasPrefix(l, "#") && strings.HasSuffix(h.File, ".py")) {
				return false
			}
		}
	}
	return true
}

// distance is how many lines lie between the stretch and a line, and whether both are in one file.
func (h *Hunk) distance(m LineMove) (int, bool) {
	best, in := 0, false
	look := func(place, file string, first, size int) {
		name, n := apart(place)
		if place == "" || name != file {
			return
		}
		d := max(0, first-n, n-(first+max(size, 1)-1))
		if !in || d < best {
			best, in = d, true
		}
	}
	look(m.Line, h.File, h.NewFirst, len(h.Added))
	if m.Was != "" || m.Line == "" {
		look(m.Was, h.Was, h.OldFirst, len(h.Removed))
	}
	return best, in
}
