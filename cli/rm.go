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
	Older   string      `help:"Delete ended runs older than this (30d, 12h). Runs with a name or a tag stay." placeholder:"AGE"`
	Over    event.Bytes `help:"Delete the oldest ended runs until all runs together take less than this." placeholder:"SIZE"`
	Keep    int         `help:"With --older and --over: always keep this many of the newest runs." default:"10"`
	DryRun  bool        `help:"Only print what would be deleted."`
	JSON    bool        `name:"json" help:"Print JSON."`
}

func (rmCmd) Help() string {
	return `"memroom run" deletes old runs by itself, once a day, after its command has ended:
runs older than 90 days, and the oldest ones beyond 10GiB in all. It keeps the newest 50 runs and
all runs with a name or a tag. MEMROOM_KEEP changes the limits: all (delete nothing), an age (30d),
a size (5GiB), or both (30d,5GiB).

memroom deletes a folder only if it has the name of a run and holds that run's own record. A run
whose record is damaged is kept and named.`
}

func (rmCmd) examples() []example {
	return []example{{line: "memroom run --name old -- true && memroom rm old"},
		{line: "memroom rm --older 30d --dry-run"}}
}

func (c *rmCmd) Run(s *session) error {
	kept, err := changeStore()
	if err != nil {
		return err
	}
	retention := store.Retention{Size: c.Over, Newest: c.Keep}
	if c.Older != "" {
		if retention.Age, err = parseAge(c.Older); err != nil {
			return err
		}
		retention.Age = max(retention.Age, 1) // 0 would mean that age does not matter
	}
	prune := c.Older != "" || c.Over > 0
	if len(c.Records) == 0 && !prune {
		return exitWith(exitUsage,
			"say which runs to delete: memroom rm RUN, or --older AGE, or --over SIZE")
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
		pruned, err := kept.Prune(retention, time.Now(), c.DryRun)
		for _, r := range pruned.Dropped {
			gone = append(gone, r.ID)
		}
		for _, r := range pruned.Damaged {
			s.note("kept %s: its record is damaged (%s). To delete it yourself: rm -r %q", r.ID,
				r.Damaged, kept.Folder(r.ID).Dir)
		}
		if err != nil {
			return fmt.Errorf("%s deleted, then: %w", event.Count(len(gone), "run"), err)
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
		return "",
			fmt.Errorf("run %s is still running: stop it first (memroom attach %s, then Ctrl-C)",
				folder.ID, folder.ID)
	}
	if words, command, _ := orphanOf(folder); command > 0 {
		return "", fmt.Errorf("run %s: %s; then delete it", folder.ID, words)
	}
	if c.DryRun {
		return folder.ID, nil
	}
	cleanUp(folder)
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

// keepVariable sets how much of the record is kept: all, an age, a size, or both (30d,5GiB).
const keepVariable = "MEMROOM_KEEP"

// indexedRuns bounds the rows that a run adds to the index when it has ended: its own, and those of
// runs that were detached or killed.
const indexedRuns = 200

// tidy drops old records and brings the index up to date when a run has ended, a bounded portion at
// a time, and prints what it deleted. That it cannot is no reason to trouble the user.
func tidy(s *session, kept *store.Store) {
	sweep(kept)
	keep, err := readRetention(os.Getenv(keepVariable))
	if err != nil {
		s.note("memroom: %s: %v; nothing is deleted", keepVariable, err)
		return
	}
	if keep != (store.Retention{}) {
		if pruned, _ := kept.Tidy(keep, time.Now()); len(pruned.Dropped) > 0 {
			s.note("memroom: deleted %d old runs; %s=all, a name or a tag keeps them (memroom rm --help)",
				len(pruned.Dropped), keepVariable)
		}
	}
	_, _ = kept.Refresh(indexedRuns)
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
