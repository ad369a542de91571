package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"memroom/fit"
	"memroom/fit/driver"
)

type forgetCmd struct {
	Script string `arg:"" optional:"" help:"Forget what was learnt from runs of this script."`
	All    bool   `help:"Forget everything that run --fit has learnt."`
	JSON   bool   `name:"json" help:"Print JSON."`
}

func (forgetCmd) examples() []example {
	return []example{{line: "memroom forget examples/batch_too_large.py"},
		{line: "memroom forget --all --json"}}
}

// Run drops what `run --fit` remembers. Without a script and without --all it lists that.
func (c *forgetCmd) Run(s *session) error {
	open := openStore
	if c.All || c.Script != "" {
		open = changeStore
	}
	kept, err := open()
	if err != nil {
		return err
	}
	home := kept.Home
	files, err := os.ReadDir(driver.Memories(home))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("what was learnt from earlier runs cannot be read: %w", err)
	}
	found := []remembered{}
	for _, f := range files {
		m, err := driver.ReadMemory(filepath.Join(driver.Memories(home), f.Name()))
		if err != nil || c.Script != "" && !sameScript(m.Command, c.Script) {
			continue
		}
		entry := remembered{Command: m.Command, Remedies: m.Remedies}
		if c.All || c.Script != "" {
			if err := os.Remove(filepath.Join(driver.Memories(home), f.Name())); err != nil {
				return fmt.Errorf("what was learnt cannot be deleted: %w", err)
			}
			entry.Forgotten = true
		}
		found = append(found, entry)
	}
	if c.JSON {
		return s.printJSON(found)
	}
	for _, e := range found {
		fmt.Fprintln(s.Out, e.line())
	}
	if len(found) == 0 {
		fmt.Fprintln(s.Out, "run --fit has learnt nothing"+forScript(c.Script)+" yet")
	}
	return nil
}

// remembered is one line of the answer.
type remembered struct {
	Command   []string     `json:"command"`
	Remedies  []fit.Remedy `json:"remedies"`
	Forgotten bool         `json:"forgotten"`
}

func (r remembered) line() string {
	var words []string
	for _, remedy := range r.Remedies {
		words = append(words, remedy.Words())
	}
	verb := "remembered"
	if r.Forgotten {
		verb = "forgotten "
	}
	return verb + "  " + strings.Join(r.Command, " ") + ": " + strings.Join(words, "; ")
}

func forScript(script string) string {
	if script == "" {
		return ""
	}
	return " about " + script
}

// sameScript compares by path as written and by name.
func sameScript(command []string, script string) bool {
	name := fit.Script(command)
	return slices.Contains(command, script) || filepath.Base(name) == filepath.Base(script)
}
