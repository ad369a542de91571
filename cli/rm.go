package cli

import (
	"fmt"
	"time"

	"memroom/event"
	"memroom/store"
)

type rmCmd struct {
	Records []string    `arg:"" optional:"" name:"run" help:"Runs to delete."`
	Older   string      `help:"Delete ended runs older than this (30d, 12h); named, tagged and the newest runs stay." placeholder:"AGE"`
	Over    event.Bytes `help:"Delete the oldest ended runs until the rest takes less than this." placeholder:"SIZE"`
	Keep    int         `help:"With --older and --over: newest runs that stay." default:"10"`
	DryRun  bool        `help:"Only say what would be deleted."`
	JSON    bool        `name:"json" help:"Print JSON."`
}

func (rmCmd) examples() []example {
	return []example{{line: "memroom run --name old -- true && memroom rm old"}, {line: "memroom rm --older 30d --dry-run"}}
}

func (c *rmCmd) Run(s *session) error {
	kept, err := openStore()
	if err != nil {
		return err
	}
	retention := store.Retention{Size: c.Over, Newest: c.Keep}
	if c.Older != "" {
		if retention.Age, err = parseAge(c.Older); err != nil {
			return err
		}
	}
	prune := c.Older != "" || c.Over > 0
	if len(c.Records) == 0 && !prune {
		return exitWith(exitUsage, "say which runs: memroom rm RUN, or --older AGE, or --over SIZE")
	}
	gone := []string{}
	for _, text := range c.Records {
		id, err := c.remove(kept, text)
		if err != nil {
			return err
		}
		gone = append(gone, id)
	}
	if prune {
		rows, err := kept.Prune(retention, time.Now(), c.DryRun)
		if err != nil {
			return err
		}
		for _, r := range rows {
			gone = append(gone, r.ID)
		}
	}
	if c.JSON {
		return s.printJSON(map[string]any{"removed": gone, "dry_run": c.DryRun})
	}
	for _, id := range gone {
		fmt.Fprintln(s.Out, id)
	}
	return nil
}

func (c *rmCmd) remove(kept *store.Store, text string) (string, error) {
	folder, err := kept.Find(text)
	if err != nil {
		return "", err
	}
	if folder.Running() {
		return "", fmt.Errorf("run %s is still going: end it first", folder.ID)
	}
	if c.DryRun {
		return folder.ID, nil
	}
	return folder.ID, folder.Remove()
}

// parseAge reads 30d, 2w or anything time.ParseDuration knows.
func parseAge(text string) (time.Duration, error) {
	var n float64
	var unit string
	if _, err := fmt.Sscanf(text, "%f%s", &n, &unit); err == nil && n >= 0 {
		switch unit {
		case "d":
			return time.Duration(n * 24 * float64(time.Hour)), nil
		case "w":
			return time.Duration(n * 7 * 24 * float64(time.Hour)), nil
		}
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		return 0, exitWith(exitUsage, "age %q: write it like 30d, 2w or 12h", text)
	}
	return d, nil
}
