package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"memroom/api"
	"memroom/event"
	"memroom/fit"
	"memroom/fit/driver"
	"memroom/report"
	"memroom/store"
	"memroom/supervise"
)

type showCmd struct {
	Record string `arg:"" optional:"" name:"run" help:"ID, its first or last characters, or name; without it, the last run."`
	Output bool   `help:"Print the command's stdout (on a terminal: all output)."`
	Errors bool   `help:"Print the command's stderr."`
	Events bool   `help:"Print the events of the run, one per line."`
	HTML   string `name:"html" help:"Write the run as one page that needs no server: timeline, account, findings, log." placeholder:"PATH"`
	Board  string `name:"tensorboard" help:"Write memory, steps and findings as an event file into this folder, for TensorBoard." placeholder:"DIR"`
	Share  bool   `help:"Leave out secrets, paths, host and user names, to show the record to others. Look it through before you publish it: memroom knows secrets by their form."`
	JSON   bool   `name:"json" help:"Print JSON."`
}

func (showCmd) examples() []example {
	return []example{{line: "memroom run -- true && memroom show --share"},
		{line: "memroom run --name tiny -- echo hello && memroom show tiny --output"},
		{line: "memroom run -- true && memroom show --html run.html --share"}}
}

// shown is the record of a run as --json prints it.
type shown struct {
	store.Row
	Run      event.Run       `json:"run"`
	Summary  *event.Summary  `json:"summary,omitempty"`
	Verdict  *event.Verdict  `json:"verdict,omitempty"`
	Attempts []event.Attempt `json:"attempts,omitempty"`
	Folder   string          `json:"folder,omitempty"`
	Left     string          `json:"left,omitempty"` // what became of a run whose keeper was killed
	Account  supervise.Now   `json:"account"`        // what memory was made of at the last reading
	Fit      *fit.Record     `json:"fit,omitempty"`
}

func (c *showCmd) Run(s *session) error {
	kept, err := openStore()
	if err != nil {
		return err
	}
	folder, err := kept.Find(c.Record)
	if err != nil {
		return err
	}
	if c.Board != "" {
		return writeTensorBoard(s, folder, c.Board)
	}
	if c.HTML != "" {
		return c.writePage(s, folder)
	}
	switch {
	case c.Output && c.Share:
		return shareOutput(s.Out, folder, folder.Output())
	case c.Errors && c.Share:
		return shareOutput(s.Out, folder, folder.Errors())
	case c.Output:
		return copyFile(raw(s.Out), folder.Output())
	case c.Errors:
		return copyFile(raw(s.Out), folder.Errors())
	case c.Events:
		return c.printEvents(s, folder)
	}
	v := readShown(folder)
	if c.Share {
		v = share(v)
	}
	if c.JSON {
		return s.printJSON(v)
	}
	return printShown(s.Out, v)
}

// writePage writes the run as one page; with --share, without what others should not see.
func (c *showCmd) writePage(s *session, folder *store.Folder) error {
	options := api.Options{Version: readVersion().Version, End: endOf, Explain: reasonOf, Left: leftOf}
	kept, err := openStore()
	if err != nil {
		return err
	}
	options.Store = kept
	var clean func(any) any
	var line func(string) string
	if c.Share {
		clean, line = sharer(folder)
	}
	err = writeWhole(c.HTML, func(w io.Writer) error {
		return api.RunFile(w, options, folder, clean, line)
	})
	if err != nil {
		return err
	}
	s.note("wrote %s", c.HTML)
	if c.Share {
		s.note("look it through before you publish it: memroom knows secrets by their form")
	}
	return nil
}

func copyFile(w io.Writer, path string) error {
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // nothing was written
	}
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = io.Copy(w, file)
	return err
}

func (c *showCmd) printEvents(s *session, folder *store.Folder) error {
	hide := func(text string) string { return text }
	if c.Share {
		run, _ := folder.Run()
		hide = hider(run)
	}
	for h := range folder.Events() {
		h.Text, h.Data = hide(h.Text), json.RawMessage(hide(string(h.Data)))
		if len(h.Data) == 0 {
			h.Data = nil
		}
		if c.JSON {
			line, err := json.Marshal(h)
			if err != nil {
				return err
			}
			fmt.Fprintf(s.Out, "%s\n", line)
			continue
		}
		who := ""
		if h.Rank != nil {
			who = fmt.Sprintf(" rank %d", *h.Rank)
		}
		fmt.Fprintf(s.Out, "%9.2f s  %-10s%s %s\n", float64(h.AtMS)/1000, clip(h.Kind, 40), who,
			clip(h.Text, anyLength))
	}
	return nil
}

func readShown(f *store.Folder) shown {
	v := shown{Row: f.Row(), Folder: f.Dir}
	v.Run, _ = f.Run()
	v.Left, v.Unwatched, _ = orphanOf(f)
	if s, err := f.Summary(); err == nil {
		v.Summary = &s
	}
	if verdict, err := f.Verdict(); err == nil {
		v.Verdict = &verdict
	}
	v.Attempts = slices.Collect(f.Attempts())
	_ = f.Progress(&v.Account)
	if story, err := driver.ReadRecord(f.Dir); err == nil {
		v.Fit = &story
	}
	return v
}

func printShown(w io.Writer, v shown) error {
	fmt.Fprintf(w, "run      %s", v.ID)
	if v.Name != "" {
		fmt.Fprintf(w, "  %s", clip(v.Name, anyLength))
	}
	fmt.Fprintf(w, "\ncommand  %s\nstarted  %s", clip(strings.Join(v.Run.Command, " "), anyLength),
		v.Started.Format("2006-01-02 15:04:05"))
	if v.Host != "" {
		fmt.Fprintf(w, " on %s", clip(v.Host, 255))
	}
	fmt.Fprintln(w)
	if v.Group != "" {
		fmt.Fprintf(w, "group    %s (memroom runs --group %s)\n",
			groupOf(v.Group, v.NodeRank, v.Host), clip(v.Group, anyLength))
	}
	if len(v.Tags) > 0 {
		fmt.Fprintf(w, "tags     %s\n", clip(strings.Join(v.Tags, ", "), anyLength))
	}
	if v.Folder != "" {
		fmt.Fprintf(w, "folder   %s\n", v.Folder)
	}
	switch {
	case v.Summary != nil:
		report.RunSummary(w, *v.Summary)
	case v.Status == store.Running:
		fmt.Fprintf(w, "running  follow it with memroom attach %s or memroom top %s\n", v.ID, v.ID)
	case v.Left != "":
		fmt.Fprintf(w, "%s: %s\n", v.Status, v.Left)
	default:
		fmt.Fprintf(w,
			"%-8s there is no final report: memroom was killed before it could write one\n",
			v.Status)
	}
	if v.Verdict != nil {
		for _, line := range v.Verdict.Evidence {
			fmt.Fprintf(w, "evidence %s\n", clip(line, anyLength))
		}
	}
	for _, line := range accountLines(v.Account, 1000) {
		if v.Verdict != nil && v.Verdict.IsOOM {
			line += " (the last reading before the end)"
		}
		fmt.Fprintln(w, line)
	}
	if v.Summary != nil {
		for _, f := range v.Summary.Findings {
			printFinding(w, f)
		}
		for _, n := range v.Summary.Notes {
			fmt.Fprintf(w, "note     %s\n", clip(n, anyLength))
		}
	}
	if v.Fit != nil && v.Fit.Tells() {
		report.Fit(w, *v.Fit, jobOf(v.Run), v.Run.Command)
	}
	return nil
}

// anyLength leaves a text its length where clip is to make it safe to print.
const anyLength = 1 << 20

func printFinding(w io.Writer, f event.Finding) {
	fmt.Fprintf(w, "%-8s %s: %s\n", f.Severity, f.Kind, clip(f.Title, anyLength))
	for _, frame := range f.Frames {
		fmt.Fprintf(w, "         at %s:%d in %s\n", clip(frame.File, anyLength), frame.Line,
			clip(frame.Name, anyLength))
	}
}
