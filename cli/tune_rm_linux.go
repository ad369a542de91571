package cli

import (
	"errors"
	"fmt"
	"os"

	"memroom/event"
	"memroom/store"
	"memroom/trial/engine"
)

// Run deletes studies. A study that somebody works on, or whose trials still run, stays.
func (c *tuneRmCmd) Run(s *session) error {
	kept, err := changeStore()
	if err != nil {
		return err
	}
	type gone struct {
		Study string   `json:"study"`
		Runs  []string `json:"runs"`
	}
	removed := []gone{}
	for _, name := range c.Studies {
		dir, spec, err := findStudy(kept.Home, name)
		if err != nil {
			return err
		}
		e, err := engine.Load(dir) // with its lock
		if err != nil {
			code := exitUsage
			if errors.Is(err, engine.ErrBusy) {
				code = exitNotStarted
			}
			return exitWith(code, "%w", err)
		}
		runs, err := c.removeRuns(kept, e)
		if err == nil && !c.DryRun {
			err = os.RemoveAll(dir)
		}
		e.Close()
		if err != nil {
			return err
		}
		removed = append(removed, gone{spec.Name, runs})
	}
	if c.JSON {
		return s.printJSON(map[string]any{"removed": removed, "dry_run": c.DryRun})
	}
	for _, one := range removed {
		fmt.Fprintf(s.Out, "%s and %s\n", one.Study, event.Count(len(one.Runs), "run"))
	}
	return nil
}

// removeRuns deletes the runs that the study's journal names. One that was deleted before is no
// error.
func (c *tuneRmCmd) removeRuns(kept *store.Store, e *engine.Engine) (runs []string, err error) {
	runs = []string{}
	for _, t := range e.Study.Trials {
		for _, a := range t.Attempts {
			if _, err := os.Stat(kept.Folder(a.Run).Dir); err != nil {
				continue
			}
			id, err := (&rmCmd{DryRun: c.DryRun}).remove(kept, a.Run)
			if err != nil {
				return runs, fmt.Errorf("trial %d: %w", t.ID, err)
			}
			runs = append(runs, id)
		}
	}
	return runs, nil
}
