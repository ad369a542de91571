package cli

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"memroom/event"
	"memroom/lint"
	"memroom/probe"
	"memroom/report"
)

type lintCmd struct {
	Paths    []string `arg:"" optional:"" name:"path" help:"Scripts, notebooks or folders."`
	JSON     bool     `name:"json" help:"Print JSON."`
	SARIF    string   `name:"sarif" placeholder:"FILE" help:"Write SARIF for code review to FILE."`
	Fix      bool     `help:"Apply the fixes that are proven to change no result; show the rest as diffs."`
	Diff     bool     `help:"Print the fixes as one patch (patch -p0) and change nothing. Read it first: not every fix is proven."`
	Severity string   `enum:"error,warning,info" default:"info" help:"Report findings at least this severe: ${enum}."`
	Hints    bool     `help:"Print hints too: what may be a mistake, if something the file does not show is so."`
	Python   string   `placeholder:"PATH" help:"Interpreter whose grammar is used; python3 on PATH otherwise."`
	List     bool     `name:"rules" help:"List the rules and exit."`
}

func (lintCmd) Help() string {
	return `Finds the known memory mistakes in training code before it runs: graphs kept alive through
lists, meters, helpers and hooks; evaluation without no_grad; accumulation done wrong; datasets put
on the card whole; caches in loader workers; models built in a loop; and more ("--rules" lists them).
Errors and warnings hold whatever the sizes are. An "info" depends on sizes that are not in the code:
"memroom run" measures them. A hint is no finding: whether the code has that cost is decided elsewhere,
or the file is a test. "--hints" prints hints, JSON lists them apart ("hints"), and they change no exit
code. Values are followed through the functions and classes of one file, not
into other files; those that import it, or that it imports, can take a finding back: they empty the
list, call the function under no_grad, or never call it. "--fix" applies only what is proven to
change no result. Silence a finding with a comment "# memroom: ignore[rule]" on its line or the line
above.`
}

func (lintCmd) examples() []example {
	return []example{{line: "memroom lint examples/leaking_loop.py", code: exitFindings},
		{line: "memroom lint --json --severity=error examples/batch_too_large.py"},
		{line: "memroom lint --rules"}}
}

// lintResult is the JSON answer.
type lintResult struct {
	Findings []lint.Finding `json:"findings"`
	Hints    []lint.Finding `json:"hints"` // no findings: see lint.Hint
	Files    int            `json:"files"`
	Skipped  []skippedFile  `json:"skipped"`
	Notes    []skippedFile  `json:"notes,omitempty"` // analysed, with something to know
	Fixed    int            `json:"fixed"`
	Patch    string         `json:"patch,omitempty"` // with --diff: every fix that is an edit

	analysed int // files; of a notebook perhaps not all cells
}

type skippedFile struct {
	File string `json:"file"`
	Why  string `json:"why"`
}

func (c *lintCmd) Run(s *session) error {
	defer s.putAway()()
	if c.List {
		return c.listRules(s)
	}
	if c.Fix && c.Diff {
		return exitWith(exitUsage, "lint: --fix changes files and --diff does not: use one")
	}
	if len(c.Paths) == 0 {
		return exitWith(exitUsage, "lint: name a script, a notebook or a folder")
	}
	files, others, err := pythonFiles(c.Paths)
	switch {
	case err != nil:
		return exitWith(exitUsage, "lint: %w", err)
	case len(files) == 0 && len(others) > 0:
		return exitWith(exitUsage, "lint: %s: %s", others[0].File, others[0].Why)
	case len(files) == 0:
		return exitWith(exitUsage, "lint: no .py or .ipynb file in %s", strings.Join(c.Paths, ", "))
	}
	result, err := c.look(s, files)
	if err != nil {
		return exitWith(exitUsage, "lint: %w", err)
	}
	named := len(files) + len(others)
	result.Skipped = append(append([]skippedFile{}, others...), result.Skipped...)
	if c.SARIF != "" {
		if err := writeFile(c.SARIF, func(w io.Writer) error {
			return report.SARIF(w,
				result.Findings, readVersion().Version)
		}); err != nil {
			return exitWith(exitUsage, "lint: %w", err)
		}
	}
	switch {
	case c.JSON:
		err = s.printJSON(result)
	case c.Diff:
		err = s.printPatch(result, named)
	default:
		err = s.printFindings(result, named, c.Hints)
	}
	if err != nil {
		return err
	}
	switch {
	case len(result.Findings) > 0:
		return exitQuietly(exitFindings)
	case result.analysed == 0:
		// nothing could be analysed: silence would look like a clean bill
		return exitQuietly(exitUsage)
	}
	return nil
}

// look analyses the files, applies fixes if asked to, and returns the remaining findings.
func (c *lintCmd) look(s *session, files []string) (lintResult, error) {
	result := lintResult{Findings: []lint.Finding{}, Hints: []lint.Finding{},
		Skipped: []skippedFile{}, Files: len(files)}
	pythons := findPythons(c.Python)
	if len(pythons) == 0 {
		return result,
			fmt.Errorf("no python3 on PATH: the analysis uses Python's own parser. Install Python 3.8 or " +
				"newer, or name one with --python")
	}
	dir, remove, err := temporaryFolder("lint")
	if err != nil {
		return result, err
	}
	defer remove()
	installed, err := probe.Install(dir)
	if err != nil {
		return result, err
	}
	err = probe.Lint(s.ctx, pythons[0], installed, files, func(line []byte) error {
		answer, err := lint.Decode(line)
		if err != nil {
			return err
		}
		return c.take(&result, answer)
	})
	return result, err
}

// take adds one file's answer to the result.
func (c *lintCmd) take(result *lintResult, answer lint.Answer) error {
	if answer.Error != "" {
		result.Skipped = append(result.Skipped, skippedFile{answer.File, answer.Error})
		return nil
	}
	result.analysed++
	if answer.CellsSkipped > 0 {
		result.Skipped = append(result.Skipped, skippedFile{answer.File,
			fmt.Sprintf("%d of its cells are not Python", answer.CellsSkipped)})
	}
	if answer.Note != "" {
		result.Notes = append(result.Notes, skippedFile{answer.File, answer.Note})
	}
	left := severe(answer.Findings, event.Severity(c.Severity))
	if c.Fix {
		fixed, err := fixFile(answer.File, &left)
		if err != nil {
			return err
		}
		result.Fixed += fixed
	}
	if err := c.showDiffs(result, answer.File, left); err != nil {
		return err
	}
	result.Findings = append(result.Findings, left...)
	result.Hints = append(result.Hints, answer.Hints...)
	return nil
}

func severe(findings []lint.Finding, least event.Severity) []lint.Finding {
	rank := map[event.Severity]int{event.SeverityError: 2, event.SeverityWarning: 1,
		event.SeverityInfo: 0}
	var kept []lint.Finding
	for _, f := range findings {
		if rank[f.Severity] >= rank[least] {
			kept = append(kept, f)
		}
	}
	return kept
}

// fixFile applies the safe fixes of one file, in place and atomically, and takes the mended
// findings out.
func fixFile(path string, findings *[]lint.Finding) (int, error) {
	var edits []lint.Edit
	var left []lint.Finding
	for _, f := range *findings {
		if f.Safe {
			edits = append(edits, f.Edits...)
		} else {
			left = append(left, f)
		}
	}
	if len(edits) == 0 {
		return 0, nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	mended, err := lint.Mend(string(text), edits)
	if err != nil {
		return 0, fmt.Errorf("fix %s: %w", path, err)
	}
	if err := replaceFile(path, []byte(mended)); err != nil {
		return 0, fmt.Errorf("fix %s: %w", path, err)
	}
	fixed := len(*findings) - len(left)
	*findings = left
	return fixed, nil
}

// replaceFile writes a new file and renames it, so that a full disk never costs the user's
// source.
func replaceFile(path string, data []byte) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if path, err = filepath.EvalSymlinks(path); err != nil { // replace the file, not the link to it
		return err
	}
	fresh, err := os.CreateTemp(filepath.Dir(path), ".memroom-*")
	if err != nil {
		return err
	}
	defer os.Remove(fresh.Name())
	_, err = fresh.Write(data)
	if closeErr := fresh.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return err
	}
	if err := os.Chmod(fresh.Name(), info.Mode().Perm()); err != nil {
		return err
	}
	return os.Rename(fresh.Name(), path)
}

// showDiffs replaces the advice by a diff where the fix is an edit, and adds the file's edits to
// the patch where one is asked for.
func (c *lintCmd) showDiffs(result *lintResult, path string, findings []lint.Finding) error {
	var edits []lint.Edit
	for _, f := range findings {
		edits = append(edits, f.Edits...)
	}
	if len(edits) == 0 {
		return nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	for i := range findings {
		f := &findings[i]
		if diff := lint.Diff(path, string(text), f.Edits, 1); diff != "" {
			f.Fix += "\n" + diff
		}
	}
	if c.Diff {
		result.Patch += lint.Diff(path, string(text), edits, 3)
	}
	return nil
}

// printPatch writes the patch alone, so that it can be piped into patch.
func (s *session) printPatch(result lintResult, named int) error {
	for _, skipped := range result.Skipped {
		s.note("%s: not analysed: %s", skipped.File, plain(skipped.Why))
	}
	edits := 0
	for _, f := range result.Findings {
		if len(f.Edits) > 0 {
			edits++
		}
	}
	s.note("%s, %d with an edit", result.summary(named), edits)
	_, err := fmt.Fprint(s.Out, result.Patch)
	return err
}

func (s *session) printFindings(result lintResult, named int, hints bool) error {
	var text strings.Builder
	colors := map[event.Severity]string{event.SeverityError: red, event.SeverityWarning: yellow,
		event.SeverityInfo: dim, lint.Hint: dim}
	shown := result.Findings
	if hints {
		shown = append(slices.Clone(shown), result.Hints...)
	}
	for _, f := range shown {
		where := fmt.Sprintf("%s:%d", f.File, f.Line)
		if f.Cell > 0 {
			where = fmt.Sprintf("%s: cell %d, line %d", f.File, f.Cell, f.Line)
		}
		fmt.Fprintf(&text, "%s: %s: %s [%s]\n", where, s.paint(colors[f.Severity],
			string(f.Severity)), plain(f.Message), f.Rule)
		for _, line := range strings.Split(strings.TrimRight(f.Why+"\n"+f.Fix, "\n"), "\n") {
			fmt.Fprintf(&text, "    %s\n", s.paint(dim, plain(line)))
		}
	}
	for _, skipped := range result.Skipped {
		s.note("%s: not analysed: %s", skipped.File, plain(skipped.Why))
	}
	for _, note := range result.Notes {
		s.note("%s: %s", note.File, plain(note.Why))
	}
	fixed := ""
	if result.Fixed > 0 {
		fixed = fmt.Sprintf(", %d fixed", result.Fixed)
	}
	may := ""
	if n := len(result.Hints); n > 0 && result.analysed > 0 {
		may = "; " + event.Count(n, "hint")
		if !hints {
			may += " (--hints prints them)"
		}
	}
	fmt.Fprintf(&text, "%s%s%s\n", result.summary(named), fixed, may)
	_, err := fmt.Fprint(s.Out, text.String())
	return err
}

// summary counts what was found in the files that could be read, of so many that were named: one
// that could not is neither clean nor faulty.
func (r lintResult) summary(named int) string {
	if r.analysed == 0 {
		return "nothing was analysed"
	}
	text := event.Count(len(r.Findings), "finding") + " in " + event.Count(r.analysed, "file")
	if unread := named - r.analysed; unread > 0 {
		text += fmt.Sprintf("; %s not analysed", event.Count(unread, "file"))
	}
	return text
}

// plain drops control characters: source code of strangers goes to a terminal here.
func plain(text string) string {
	return strings.Map(func(r rune) rune {
		if r != '\t' && (r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0) {
			return -1
		}
		return r
	}, text)
}

func (c *lintCmd) listRules(s *session) error {
	if c.JSON {
		return s.printJSON(lint.Rules())
	}
	for _, r := range lint.Rules() {
		if _, err := fmt.Fprintf(s.Out, "%-28s %-8s %s\n", r.ID, r.Severity, r.Title); err != nil {
			return err
		}
	}
	return nil
}

// pythonFiles expands folders, leaving out hidden ones, environments and caches. Of the files that
// are named, those that are something else than Python are given apart: a JSON file is a Python
// expression too, and would come out clean.
func pythonFiles(paths []string) (files []string, others []skippedFile, err error) {
	for _, path := range paths {
		info, err := os.Stat(path)
		switch {
		case err != nil:
			return nil, nil, err
		case !info.IsDir() && !info.Mode().IsRegular():
			others = append(others, skippedFile{path,
				"not a regular file: name a script (.py), a notebook (.ipynb) or a folder"})
			continue
		case !info.IsDir() && !mayBePython(path):
			others = append(others, skippedFile{path,
				"not a Python file: name a script (.py), a notebook (.ipynb) or a folder"})
			continue
		case !info.IsDir():
			files = append(files, path)
			continue
		}
		err = filepath.WalkDir(path, func(p string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return nil // a folder we may not read is not the user's question
			case d.IsDir() && p != path && leaveOut(p, d.Name()):
				return filepath.SkipDir
			case d.Type().IsRegular() && (strings.HasSuffix(p, ".py") ||
				strings.HasSuffix(p, ".ipynb")):
				files = append(files, p)
			}
			return nil
		})
		if err != nil {
			return nil, nil, err
		}
	}
	return files, others, nil
}

// mayBePython reports whether a file may be Python code. It goes by the file's extension, and by
// the first line if the extension is missing or another one.
func mayBePython(path string) bool {
	switch filepath.Ext(path) {
	case ".py", ".pyw", ".pyi", ".ipynb":
		return true
	}
	file, err := os.Open(path)
	if err != nil {
		return true // the reader reports why
	}
	defer file.Close()
	var head [128]byte
	n, _ := io.ReadFull(file, head[:])
	first, _, _ := bytes.Cut(head[:n], []byte("\n"))
	return bytes.HasPrefix(first, []byte("#!")) && bytes.Contains(first, []byte("python"))
}

func leaveOut(path, name string) bool {
	if strings.HasPrefix(name, ".") || name == "node_modules" || name == "site-packages" ||
		name == "__pycache__" {
		return true
	}
	_, err := os.Stat(filepath.Join(path, "pyvenv.cfg"))
	return err == nil
}

// writeFile creates path and lets write fill it; "-" would be stdout and is not offered, because
// stdout has the answer.
func writeFile(path string, write func(io.Writer) error) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	err = write(f)
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	return err
}
