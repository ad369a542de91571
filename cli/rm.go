package cli

import (
	"fmt"
	"os"
	"strings"
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

func (rmCmd) Help() string {
	return `Once a day "memroom run" deletes ended runs that are older than 90 days, and the oldest beyond 10GiB in all; the newest 50, and
those with a name or a tag, stay. MEMROOM_KEEP changes that: all, an age (30d), a size (5GiB) or both (30d,5GiB).`
}

func (rmCmd) examples() []example {
	return []example{{line: "memroom run --name old -- true && memroom rm old"},
		{line: "memroom rm --older 30d --dry-run"}}
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

// keepVariable says how much of the record is kept: all, an age, a size, or both (30d,5GiB).
const keepVariable = "MEMROOM_KEEP"

// tidy drops old records before a run begins, and says so. That it cannot is no reason not to run.
func tidy(s *session, kept *store.Store) {
	keep, err := readRetention(os.Getenv(keepVariable))
	if err != nil {
		s.note("memroom: %s: %v; nothing is deleted", keepVariable, err)
		return
	}
	if keep == (store.Retention{}) {
		return
	}
	gone, err := kept.Tidy(keep, time.Now())
	if err == nil && len(gone) > 0 {
		s.note("memroom: deleted the records of %d old runs; %s=all, a name or a tag keeps them (memroom rm --help)", len(gone), keepVariable)
	}
}

// readRetention reads all, 30d, 5GiB or 30d,5GiB; nothing is the default.
func readRetention(text string) (store.Retention, error) {
	keep := store.DefaultRetention()
	switch text {
	case "":
		return keep, nil
	case "all":
		return store.Retention{}, nil
	}
	keep.Age, keep.Size = 0, 0
	for _, part := range strings.Split(text, ",") {
		part = strings.TrimSpace(part)
		var size event.Bytes
		if age, err := parseAge(part); err == nil {
			keep.Age = age
		} else if err := size.UnmarshalText([]byte(part)); err == nil && size > 0 {
			keep.Size = size
		} else {
			return keep, fmt.Errorf("%q is neither all, an age (30d) nor a size (5GiB)", part)
		}
	}
	return keep, nil
}
