package cli

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"memroom/event"
	"memroom/report"
	"memroom/store"
)

type runsCmd struct {
	Name    string `help:"Only runs of this name." placeholder:"TEXT"`
	Tag     string `help:"Only runs with this tag." placeholder:"TEXT"`
	OOM     bool   `name:"oom" help:"Only runs that ran out of memory."`
	Failed  bool   `help:"Only runs that failed or were lost."`
	Active  bool   `help:"Only runs that are still going."`
	Limit   int    `short:"n" help:"Newest so many; 0 for all." default:"20"`
	Reindex bool   `help:"Build the index again from the runs' folders first."`
	JSON    bool   `name:"json" help:"Print JSON."`
}

func (runsCmd) examples() []example {
	return []example{{line: "memroom runs --oom"}, {line: "memroom runs --reindex --json"}}
}

func (c *runsCmd) Run(s *session) error {
	kept, err := openStore()
	if err != nil {
		return err
	}
	if c.Reindex {
		n, err := kept.Reindex()
		if err != nil {
			return fmt.Errorf("build the index again: %w", err)
		}
		s.note("%d runs indexed", n)
	}
	rows, err := kept.List(store.Filter{Name: c.Name, Tag: c.Tag, OOM: c.OOM, Failed: c.Failed, Active: c.Active, Limit: max(0, c.Limit)})
	if err != nil {
		return err
	}
	if c.JSON {
		if rows == nil {
			rows = []store.Row{}
		}
		return s.printJSON(rows)
	}
	if len(rows) == 0 {
		s.note("no runs in %s", kept.Home)
		return nil
	}
	return printRows(s.Out, rows, time.Now())
}

func printRows(w io.Writer, rows []store.Row, now time.Time) error {
	table := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(table, "RUN\tNAME\tENDED\tTOOK\tHOST PEAK\tGPU PEAK\tSTEPS\tCOMMAND")
	for _, r := range rows {
		took := report.Span(r.Seconds)
		if r.Status == store.Running {
			took = report.Span(now.Sub(r.Started).Seconds())
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", r.ID, r.Name, outcome(r), took, sizeOrNothing(r.PeakHost), sizeOrNothing(r.PeakGPU),
			countOrNothing(r.Steps), clip(r.Command, 60))
	}
	return table.Flush()
}

// outcome says in a word or two how a run ended.
func outcome(r store.Row) string {
	switch {
	case r.Status == store.Running:
		return "running"
	case r.Status == store.Lost || r.ExitCode == nil:
		return "lost"
	case r.IsOOM:
		return "OOM " + string(r.Where)
	case *r.ExitCode == 0:
		return "well"
	}
	return fmt.Sprintf("code %d", *r.ExitCode)
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

// clip shortens a text to so many characters.
func clip(text string, n int) string {
	runes := []rune(text)
	for i, r := range runes {
		if r < ' ' {
			runes[i] = ' '
		}
	}
	if len(runes) <= n {
		return string(runes)
	}
	return string(runes[:n-3]) + "..."
}
