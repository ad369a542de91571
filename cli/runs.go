package cli

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"memroom/event"
	"memroom/report"
	"memroom/store"
)

type runsCmd struct {
	Name    string `help:"Only runs of this name." placeholder:"TEXT"`
	Tag     string `help:"Only runs with this tag." placeholder:"TEXT"`
	Group   string `help:"Only runs of this group (run --group)." placeholder:"ID"`
	OOM     bool   `name:"oom" help:"Only runs that ran out of memory."`
	Failed  bool   `help:"Only runs that failed or whose end is unknown."`
	Active  bool   `help:"Only runs that are still running."`
	Limit   int    `short:"n" help:"Print at most this many, the newest first; 0 prints all." default:"20"`
	Reindex bool   `help:"Rebuild the index from the runs' folders first."`
	JSON    bool   `name:"json" help:"Print JSON."`
}

func (runsCmd) examples() []example {
	return []example{{line: "memroom runs --oom"}, {line: "memroom runs --reindex --json"}}
}

func (c *runsCmd) Run(s *session) error {
	open := openStore
	if c.Reindex {
		open = changeStore
	}
	kept, err := open()
	if err != nil {
		return err
	}
	if c.Reindex && kept.Exists() {
		n, err := kept.Reindex()
		if err != nil {
			return fmt.Errorf("the list of runs cannot be built again: %w", err)
		}
		s.note("%s indexed", event.Count(n, "run"))
	}
	rows, err := kept.List(store.Filter{Name: c.Name, Tag: c.Tag, Group: c.Group, OOM: c.OOM,
		Failed: c.Failed, Active: c.Active, Limit: max(0, c.Limit)})
	if err != nil {
		return err
	}
	for i := range rows {
		if rows[i].Status == store.Lost {
			_, rows[i].Unwatched, _ = orphanOf(kept.Folder(rows[i].ID))
		}
	}
	if c.JSON {
		if rows == nil {
			rows = []store.Row{}
		}
		return s.printJSON(rows)
	}
	if len(rows) == 0 {
		if all, err := kept.List(store.Filter{Limit: 1}); err == nil && len(all) > 0 {
			s.note("no such runs in %s: `memroom runs -n 0` lists all", kept.Home)
			return nil
		}
		s.note("no runs in %s: start one with memroom run -- COMMAND", kept.Home)
		return nil
	}
	if err := printRows(s.Out, rows, time.Now()); err != nil {
		return err
	}
	for _, r := range rows {
		if r.Damaged != "" {
			s.note("%s: the record is damaged (%s). memroom keeps it; to delete it: rm -r %q", r.ID,
				r.Damaged, kept.Folder(r.ID).Dir)
		}
	}
	return nil
}

func printRows(w io.Writer, rows []store.Row, now time.Time) error {
	table := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	grouped := slices.ContainsFunc(rows, func(r store.Row) bool { return r.Group != "" })
	group := ""
	if grouped {
		group = "GROUP\t"
	}
	fmt.Fprintln(table, "RUN\tNAME\t"+group+"ENDED\tTOOK\tHOST PEAK\tGPU PEAK\tSTEPS\tCOMMAND")
	for _, r := range rows {
		took := report.Span(r.Seconds)
		if r.Status == store.Running {
			took = report.Span(now.Sub(r.Started).Seconds())
		}
		if grouped {
			group = groupOf(r.Group, r.NodeRank, r.Host) + "\t"
		}
		fmt.Fprintf(table, "%s\t%s\t%s%s\t%s\t%s\t%s\t%s\t%s\n", r.ID, clip(r.Name, 40), group,
			r.State(), took, sizeOrNothing(r.PeakHost), sizeOrNothing(r.PeakGPU),
			countOrNothing(r.Steps), clip(r.Command, 60))
	}
	return table.Flush()
}

// groupOf returns the node of a group that a run is.
func groupOf(group string, node int, host string) string {
	if group == "" {
		return "-"
	}
	return clip(fmt.Sprintf("%s, node %d on %s", group, node, host), 60)
}

func sizeOrNothing(b event.Bytes) string {
	if b == 0 {
		return "-"
	}
	return b.String()
}

func countOrNothing(n int64) string {
	if n == 0 {
		return "-"
	}
	return fmt.Sprint(n)
}
