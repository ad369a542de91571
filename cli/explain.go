package cli

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"memroom/explain"
	"memroom/fit/driver"
	"memroom/report"
	"memroom/store"
	"memroom/trace"
)

type explainCmd struct {
	What []string `arg:"" optional:"" name:"log" help:"Log files, snapshots, run ids, or - for standard input, in any combination. Without any: the last run that failed or had findings."`
	JSON bool     `name:"json" help:"Print JSON."`
	Long bool     `name:"verbose" short:"v" help:"The sums, all evidence and all cures, not only the first."`

	Model     string `help:"The model that was trained, as for plan (config.json, its folder, or a preset): the bytes that each remedy saves are then predicted." placeholder:"MODEL"`
	Batch     int    `help:"Micro-batch. Default: what the log shows."`
	Seq       int    `help:"Tokens per sample. Default: what the log shows."`
	Image     int    `help:"Side of the image in pixels."`
	Precision string `help:"fp32, amp_bf16, amp_fp16, bf16 or fp16. Default: what the log shows, else fp32."`
	Optimizer string `help:"adamw, adamw_fused, sgd, adafactor, ..." default:"adamw"`

	readFlags `embed:""`
}

func (explainCmd) examples() []example {
	return []example{
		{line: "memroom explain examples/files/train.log"},
		{line: "memroom explain examples/files/train.log examples/files/oom.pickle.gz --json"},
		{line: "memroom explain examples/files/train.log --model examples/files/config.json --seq 512"},
		{line: "memroom explain examples/files/hello.log", code: exitNotRecognised},
	}
}

func (c *explainCmd) Run(s *session) error {
	material := explain.Material{}
	what := c.What
	if len(what) == 0 {
		folder, err := lastToExplain()
		if err != nil {
			return err
		}
		what = []string{folder.ID}
		if run, err := folder.Run(); err == nil && !c.JSON {
			s.note("memroom: run %s of %s: %s", folder.ID, run.Started.Local().Format("15:04"),
				strings.Join(run.Command, " "))
		}
	}
	for _, name := range what {
		if err := c.add(s, &material, name); err != nil {
			return err
		}
	}
	if err := c.plan(&material); err != nil {
		return err
	}
	x := explain.Explain(material)
	if x == nil {
		if c.JSON {
			if err := s.printJSON(explain.NothingIn(material)); err != nil {
				return err
			}
		}
		for _, w := range material.Warnings {
			s.note("memroom: %s", w)
		}
		if v := material.Verdict; v != nil && v.ExitCode == 0 {
			s.note("memroom: nothing to explain: %s ended well, and nothing about memory was found while it "+
				"ran", listed(what))
			return exitQuietly(exitNotRecognised)
		}
		if script, ok := firstScript(what); ok {
			s.note("memroom: nothing recognised: %s is a script; explain reads what a program printed. "+
				"`memroom lint %s` looks for memory mistakes in code", script, script)
			return exitQuietly(exitNotRecognised)
		}
		s.note("memroom: nothing recognised: no message about memory that memroom knows, nor one that is "+
			"mistaken for it, in %s; if the program was killed, the kernel's log may say more (`dmesg | tail`)",
			listed(what))
		return exitQuietly(exitNotRecognised)
	}
	if c.JSON {
		return s.printJSON(x)
	}
	text := report.NewText(s.Out, s.color)
	report.ExplainText(text, x, c.Long)
	return text.Err()
}

// firstScript returns the first name that is Python code rather than a log.
func firstScript(names []string) (string, bool) {
	for _, name := range names {
		if strings.HasSuffix(name, ".py") || strings.HasSuffix(name, ".ipynb") {
			return name, true
		}
	}
	return "", false
}

func listed(names []string) string {
	if len(names) == 1 {
		if names[0] == "-" {
			return "standard input"
		}
		return names[0]
	}
	return fmt.Sprintf("these %d sources", len(names))
}

// add reads one argument: standard input, a file that exists, or the id of a run.
func (c *explainCmd) add(s *session, m *explain.Material, name string) error {
	if name == "-" {
		return c.addReader(m, "standard input", s.In)
	}
	file, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		folder, missing := findRun(name)
		if missing != nil {
			return fmt.Errorf("%s is neither a file nor a run: %w", name, missing)
		}
		return c.addRun(m, folder)
	}
	if err != nil {
		return err
	}
	defer file.Close()
	if info, err := file.Stat(); err == nil && info.IsDir() {
		return fmt.Errorf("read %s: it is a folder; name a log, a snapshot or a run id", name)
	}
	return c.addReader(m, name, file)
}

func (c *explainCmd) addReader(m *explain.Material, name string, r io.Reader) error {
	content, isSnapshot, err := c.limits().Sniff(r)
	if err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	if isSnapshot {
		snapshot, err := trace.ReadSnapshot(content)
		if err != nil {
			return fmt.Errorf("read %s: %w", name, err)
		}
		m.Snapshots = append(m.Snapshots, snapshot)
		return nil
	}
	log, err := trace.ReadLog(content)
	if err != nil && log.Bytes == 0 {
		return fmt.Errorf("%s: %w", name, err)
	}
	if err != nil {
		m.Warnings = append(m.Warnings, fmt.Sprintf("%s: %v; what came before was read", name, err))
	}
	m.Logs = append(m.Logs, log)
	return nil
}

// addRun reads what a run left behind: its output, its verdict, what was found while it ran and the
// snapshots taken when memory ran out.
func (c *explainCmd) addRun(m *explain.Material, folder *store.Folder) error {
	if run, err := folder.Run(); err == nil {
		m.Run, m.HostLimit = run, run.HostMem
	}
	if s, err := folder.Summary(); err == nil {
		m.HostWall, m.Alone, m.NoCard = s.Peaks.HostLimit, s.Peaks.Processes == 1,
			len(s.Peaks.Devices) == 0
		m.Seen.Steps, m.Seen.Held = s.Steps, s.Peaks.Unreclaimable
	}
	if record, err := driver.ReadRecord(folder.Dir); err == nil {
		m.Seen.Tried = record.Impossible
	}
	if v, err := folder.Verdict(); err == nil {
		m.Verdict = &v
	}
	for e := range folder.Events() {
		switch {
		case e.Finding != nil:
			m.Findings = append(slices.DeleteFunc(m.Findings, e.Finding.Restates), *e.Finding)
		case e.Kind == "process":
			m.Seen.Python = true
		case e.Kind == "framework":
			name, _, _ := strings.Cut(e.Text, " ")
			m.Seen.Frameworks = append(m.Seen.Frameworks, frameworkNames[name])
		}
	}
	for _, path := range []string{folder.Errors(), folder.Output()} {
		if err := c.addIfThere(m, path); err != nil {
			return err
		}
	}
	dumps, _ := os.ReadDir(folder.Dumps())
	for _, d := range dumps {
		if d.IsDir() {
			continue
		}
		if err := c.addIfThere(m, filepath.Join(folder.Dumps(), d.Name())); err != nil {
			m.Warnings = append(m.Warnings, err.Error())
		}
	}
	return nil
}

// reasonOf explains a run for its page; nil where there is nothing to explain.
func reasonOf(folder *store.Folder) (*report.ExplainPage, error) {
	c, m := explainCmd{Optimizer: "adamw"}, explain.Material{}
	if err := c.addRun(&m, folder); err != nil {
		return nil, err
	}
	x := explain.Explain(m)
	if x == nil {
		return nil, nil
	}
	page := report.PageOf(x)
	return &page, nil
}

// frameworkNames are ours for the modules that the probe names.
var frameworkNames = map[string]string{"torch": "pytorch", "tensorflow": "tensorflow", "jax": "jax"}

func (c *explainCmd) addIfThere(m *explain.Material, path string) error {
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer file.Close()
	return c.addReader(m, path, file)
}

func findRun(text string) (*store.Folder, error) {
	runs, err := openStore()
	if err != nil {
		return nil, err
	}
	return runs.Find(text)
}

// lastToExplain returns the newest run that failed or has findings.
func lastToExplain() (*store.Folder, error) {
	runs, err := openStore()
	if err != nil {
		return nil, err
	}
	ids, err := runs.IDs()
	if err != nil {
		return nil, err
	}
	for _, id := range slices.Backward(ids) {
		folder := runs.Folder(id)
		exit, err := folder.Exit()
		if err == nil && (exit.Code != 0 || exit.StartError != "") {
			return folder, nil
		}
		if s, err := folder.Summary(); err == nil && (explain.Explainable(s.Findings) ||
			s.Verdict != nil && s.Verdict.IsOOM) {
			return folder, nil
		}
	}
	return nil, usageError(errors.New("nothing to explain: no recorded run has failed or has " +
		"a finding; name a log file, a snapshot, a run id, or - for standard input"))
}
