package guard

import (
	"fmt"
	"math"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/BurntSushi/toml"

	"memroom/event"
)

// File is a memroom.toml.
type File struct {
	Defaults Check    `toml:"defaults"` // for settings that a check leaves out
	Link     []string `toml:"link"`     // ignored paths that another revision needs too, such as data
	Checks   []Check  `toml:"check"`
}

// Check is one thing to hold: a training command to rehearse, or a setup to plan.
type Check struct {
	Name    string            `toml:"name"`
	Command Words             `toml:"command"`
	Plan    Words             `toml:"plan"`   // arguments of memroom plan
	GPU     string            `toml:"gpu"`    // as memroom plan --gpu
	Budget  event.Bytes       `toml:"budget"` // most bytes of the card; 0: it must fit the card
	Growth  Growth            `toml:"growth"` // most that a change may add
	Steps   int               `toml:"steps"`
	Folder  string            `toml:"folder"` // where the command starts, below memroom.toml
	Env     map[string]string `toml:"env"`
	Line    int               `toml:"-"` // of memroom.toml where it begins
}

// Words are the words of a command, written as a list or as one line.
type Words []string

// UnmarshalTOML reads either way.
func (w *Words) UnmarshalTOML(value any) error {
	switch v := value.(type) {
	case string:
		words, err := split(v)
		*w = words
		return err
	case []any:
		for _, one := range v {
			word, ok := one.(string)
			if !ok {
				return fmt.Errorf("%v is not a string: write each word of the command in quotes", one)
			}
			*w = append(*w, word)
		}
		return nil
	}
	return fmt.Errorf("%v is neither a line nor a list of words", value)
}

// split takes a line apart as a shell does, without expanding anything.
func split(line string) ([]string, error) {
	var words []string
	var word strings.Builder
	open, begun := rune(0), false
	escaped := false
	for _, r := range line {
		switch {
		case escaped:
			word.WriteRune(r)
			escaped = false
		case r == '\\' && open != '\'':
			escaped, begun = true, true
		case open != 0 && r == open:
			open = 0
		case open != 0:
			word.WriteRune(r)
		case r == '"' || r == '\'':
			open, begun = r, true
		case strings.ContainsRune(" \t\n", r):
			if begun {
				words = append(words, word.String())
			}
			word.Reset()
			begun = false
		case strings.ContainsRune("|&;<>$`", r):
			return nil, fmt.Errorf("%q: %c is a shell's word, and no shell runs the command: put the "+
				"line into a script, or write [\"bash\", \"-c\", ...]", line, r)
		default:
			word.WriteRune(r)
			begun = true
		}
	}
	if open != 0 || escaped {
		return nil, fmt.Errorf("%q: a quote is not closed", line)
	}
	if begun {
		words = append(words, word.String())
	}
	return words, nil
}

// Growth is a bound on what a change adds: bytes, or a share of what there was.
type Growth struct {
	Given bool
	Bytes event.Bytes
	Share float64
}

// UnmarshalText reads "512MiB" or "2%".
func (g *Growth) UnmarshalText(text []byte) error {
	g.Given = true
	if share, ok := strings.CutSuffix(strings.TrimSpace(string(text)), "%"); ok {
		v, err := strconv.ParseFloat(strings.TrimSpace(share), 64)
		if err != nil || !(v >= 0 && v <= 10000) {
			return fmt.Errorf("growth %q: write a size such as \"512MiB\", or a share such as \"2%%\"", text)
		}
		g.Share = v / 100
		return nil
	}
	return g.Bytes.UnmarshalText(text)
}

// Allows is how many bytes may be added to so many.
func (g Growth) Allows(before event.Bytes) event.Bytes {
	return g.Bytes + event.Bytes(math.Round(g.Share*float64(before)))
}

// tableHead matches the line where a check begins.
var tableHead = regexp.MustCompile(`(?m)^[ \t]*\[\[[ \t]*check[ \t]*\]\]`)

// MostChecks bounds a file: each is a rehearsal.
const MostChecks = 500

// Parse reads a memroom.toml and refuses what nothing would come of.
func Parse(text []byte) (*File, error) {
	f := &File{}
	meta, err := toml.Decode(string(text), f)
	if err != nil {
		return nil, err
	}
	if left := meta.Undecoded(); len(left) > 0 {
		key := left[0]
		return nil, fmt.Errorf("%s is not known%s: a [[check]] has name, command or plan, gpu, budget, "+
			"growth, steps, folder and env; link stands above them", key,
			event.DidYouMean(key[len(key)-1], keys))
	}
	if len(f.Checks) == 0 {
		return nil, fmt.Errorf("it has no [[check]]: add one with a name and a command, such as " +
			"command = \"python train.py\"")
	}
	if len(f.Checks) > MostChecks {
		return nil, fmt.Errorf("it has %d checks: %d are the most", len(f.Checks), MostChecks)
	}
	for i, at := range tableHead.FindAllIndex(text, -1) {
		if i < len(f.Checks) {
			f.Checks[i].Line = 1 + strings.Count(string(text[:at[0]]), "\n")
		}
	}
	for _, path := range f.Link {
		if !filepath.IsLocal(path) {
			return nil, fmt.Errorf("link %q: name a path below memroom.toml", path)
		}
	}
	seen := map[string]bool{}
	for i := range f.Checks {
		c := &f.Checks[i]
		c.inherit(f.Defaults, fmt.Sprintf("check %d", i+1))
		if err := c.check(); err != nil {
			return nil, fmt.Errorf("%s: %w", c.Name, err)
		}
		if seen[c.Name] {
			return nil, fmt.Errorf("two checks have the name %q", c.Name)
		}
		seen[c.Name] = true
	}
	return f, nil
}

var keys = []string{"name", "command", "plan", "gpu", "budget", "growth", "steps", "folder", "env",
	"link", "check", "defaults"}

// inherit fills in what the check leaves open.
func (c *Check) inherit(d Check, name string) {
	if c.Name == "" {
		c.Name = name
	}
	if c.GPU == "" {
		c.GPU = d.GPU
	}
	if c.Budget == 0 {
		c.Budget = d.Budget
	}
	if !c.Growth.Given {
		c.Growth = d.Growth
	}
	if c.Steps == 0 {
		c.Steps = d.Steps
	}
	if c.Folder == "" {
		c.Folder = d.Folder
	}
	for key, value := range d.Env {
		if _, own := c.Env[key]; !own {
			if c.Env == nil {
				c.Env = map[string]string{}
			}
			c.Env[key] = value
		}
	}
}

func (c *Check) check() error {
	switch {
	case len(c.Command) == 0 && len(c.Plan) == 0:
		return fmt.Errorf("it has neither command (training that is rehearsed) nor plan (arguments of " +
			"memroom plan): add one")
	case len(c.Command) > 0 && len(c.Plan) > 0:
		return fmt.Errorf("it has a command and a plan: make two checks of it")
	case c.GPU == "" && c.Budget == 0 && !c.Growth.Given && !c.bounded():
		return fmt.Errorf("nothing can fail: add a card (gpu = \"RTX4090\"), a budget (budget = " +
			"\"20GiB\"), or a bound on what a change adds (growth = \"2%%\")")
	case c.Steps < 0 || c.Steps > 1000:
		return fmt.Errorf("steps = %d: rehearse between 1 and 1000 steps", c.Steps)
	case c.Budget < 0:
		return fmt.Errorf("the budget is below 0")
	case c.Folder != "" && !filepath.IsLocal(c.Folder):
		return fmt.Errorf("folder = %q: name a folder below memroom.toml", c.Folder)
	}
	return nil
}

// bounded reports whether a plan's own arguments name a card or a limit.
func (c *Check) bounded() bool {
	return slices.ContainsFunc(c.Plan, func(w string) bool {
		return strings.HasPrefix(w, "--gpu") || strings.HasPrefix(w, "--alloc-limit")
	})
}
