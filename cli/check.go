package cli

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/alecthomas/kong"

	"memroom/event"
	"memroom/guard"
	"memroom/plan"
	"memroom/report"
)

type checkCmd struct {
	Names   []string `arg:"" optional:"" name:"name" help:"Checks of the file to run. Default: all."`
	Config  string   `help:"The file with the checks. Default: memroom.toml here or in a folder above." placeholder:"FILE"`
	Against string   `help:"Do the same at this git revision, in a worktree of its own, and explain the difference by category, phase, source line and change." placeholder:"REF"`
	Format  []string `help:"text, markdown, json, sarif, junit or github (annotations); NAME=FILE writes it to a file. Several may be given." placeholder:"NAME"`
	Cache   string   `help:"Folder with answers of checks on which nothing has changed. Default: one in memroom's home." placeholder:"DIR"`
	NoCache bool     `help:"Rehearse what has not changed too."`
	JSON    bool     `name:"json" help:"Print JSON, as --format json."`
}

func (checkCmd) examples() []example {
	return []example{
		{line: "memroom check --config examples/files/memroom.toml"},
		{line: "memroom check --config examples/files/memroom.toml --format markdown fine-tuning"},
	}
}

// configName is the file that a repository keeps its checks in.
const configName = "memroom.toml"

func (c *checkCmd) Run(s *session) error {
	defer s.putAway()()
	formats, err := c.formats()
	if err != nil {
		return usageError(err)
	}
	run, err := c.begin(s)
	if err != nil {
		return err
	}
	defer run.end()
	r, err := run.all()
	if err != nil {
		return err
	}
	if err := s.ctx.Err(); err != nil {
		return err
	}
	for _, f := range formats {
		if err := f.write(s, r); err != nil {
			return err
		}
	}
	return verdict(r)
}

// verdict is the exit code of a report.
func verdict(r *guard.Report) error {
	for _, one := range r.Results {
		if one.Failed() {
			return exitQuietly(exitDoesNotFit)
		}
	}
	for _, one := range r.Results {
		if one.Error != "" {
			return exitQuietly(exitUsage)
		}
	}
	return nil
}

// wantedFormat is a format, and the file it goes to; empty is standard output.
type wantedFormat struct{ name, file string }

func (c *checkCmd) formats() ([]wantedFormat, error) {
	asked := c.Format
	if c.JSON {
		asked = append(asked, "json")
	}
	if len(asked) == 0 {
		asked = []string{"text"}
	}
	var list []wantedFormat
	printed := 0
	for _, text := range asked {
		name, file, _ := strings.Cut(text, "=")
		if !slices.Contains(report.CheckFormats, name) {
			return nil, fmt.Errorf("--format %s: not known%s: it is one of %s", text,
				event.DidYouMean(name, report.CheckFormats), strings.Join(report.CheckFormats, ", "))
		}
		if file == "" {
			printed++
		}
		list = append(list, wantedFormat{name, file})
	}
	if printed > 1 {
		return nil, fmt.Errorf("--format: only one goes to standard output: write the others to files, "+
			"as in --format %s=FILE", list[len(list)-1].name)
	}
	return list, nil
}

func (f wantedFormat) write(s *session, r *guard.Report) error {
	var text bytes.Buffer
	if err := report.Check(&text, r, f.name, readVersion().Version,
		s.color && f.file == ""); err != nil {
		return err
	}
	if f.file != "" {
		return os.WriteFile(f.file, text.Bytes(), 0o644)
	}
	_, err := s.Out.Write(text.Bytes())
	return err
}

// checking is one run of `memroom check`.
type checking struct {
	s       *session
	cmd     *checkCmd
	file    *guard.File
	here    tree   // the working tree
	there   tree   // the other revision; its root is empty without --against
	remove  func() // removes the folder that there lies in; nil without one
	config  string // memroom.toml, below the root
	commit  string
	hunks   []guard.Hunk
	cache   *answerCache
	started string // the folder in which memroom was started
}

// tree is the files of one revision.
type tree struct {
	root   string // the repository, or the folder of memroom.toml
	folder string // of memroom.toml, below the root
}

// begin reads the file and prepares the other revision.
func (c *checkCmd) begin(s *session) (*checking, error) {
	path, err := c.findConfig()
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	file, err := guard.Parse(text)
	if err != nil {
		return nil, usageError(fmt.Errorf("%s: %w", path, err))
	}
	if file.Checks, err = c.chosen(file.Checks); err != nil {
		return nil, usageError(err)
	}
	started, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	run := &checking{s: s, cmd: c, file: file, started: started}
	if run.cache, err = c.openCache(); err != nil {
		return nil, err
	}
	if err := run.locate(path); err != nil {
		return nil, err
	}
	if c.Against == "" {
		return run, nil
	}
	if err := run.checkOut(); err != nil {
		run.end()
		return nil, err
	}
	return run, nil
}

// findConfig looks for memroom.toml here and above.
func (c *checkCmd) findConfig() (string, error) {
	if c.Config != "" {
		return filepath.Abs(c.Config)
	}
	here, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for dir := here; ; dir = filepath.Dir(dir) {
		path := filepath.Join(dir, configName)
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
		if dir == filepath.Dir(dir) {
			return "", usageError(fmt.Errorf("there is no %s here or above: write one with a [[check]], "+
				"its command and its gpu, or name it with --config", configName))
		}
	}
}

// chosen are the checks that the command line names.
func (c *checkCmd) chosen(all []guard.Check) ([]guard.Check, error) {
	if len(c.Names) == 0 {
		return all, nil
	}
	var known []string
	for _, one := range all {
		known = append(known, one.Name)
	}
	for _, name := range c.Names {
		if !slices.Contains(known, name) {
			return nil, fmt.Errorf("no check is called %q%s: there are %s", name,
				event.DidYouMean(name, known), strings.Join(known, ", "))
		}
	}
	return slices.DeleteFunc(slices.Clone(all), func(one guard.Check) bool {
		return !slices.Contains(c.Names, one.Name)
	}), nil
}

// all runs the checks, one after another: a rehearsal uses what there is of the machine.
func (r *checking) all() (*guard.Report, error) {
	out := &guard.Report{Against: r.cmd.Against, Commit: r.commit, Config: r.config}
	for i := range r.file.Checks {
		c := &r.file.Checks[i]
		one := r.one(c)
		if err := r.s.ctx.Err(); err != nil {
			return nil, fmt.Errorf("interrupted")
		}
		one.Judge(c)
		out.Results = append(out.Results, one)
	}
	return out, nil
}

// one runs a check here, and there where another revision was asked for.
func (r *checking) one(c *guard.Check) guard.Result {
	one := guard.Result{Name: c.Name, Line: c.Line, GPU: c.GPU, Budget: c.Budget}
	now, cached, err := r.answer(c, r.here)
	if err != nil {
		one.Error = plainWords(err)
		return one
	}
	one.Now, one.Cached = now, cached
	if r.there.root == "" {
		return one
	}
	before, _, err := r.answerThere(c)
	if err != nil {
		one.NotCompared = plainWords(err)
		return one
	}
	one.Before = before
	one.Difference = guard.Compare(before, now, r.changed(now))
	if effects := r.effects(c, &one); len(effects) > 0 {
		one.Difference.ByEffect(effects)
	}
	return one
}

// answer rehearses or plans a check in one tree, or finds that it has done so before. Files and
// lines are named from the tree's root.
func (r *checking) answer(c *guard.Check, at tree, more ...string) (*plan.Prediction, bool, error) {
	folder := filepath.Join(at.root, at.folder, c.Folder)
	if info, err := os.Stat(folder); err != nil || !info.IsDir() {
		return nil, false, fmt.Errorf("there is no folder %s to start in",
			filepath.Join(at.folder, c.Folder))
	}
	args, err := r.arguments(c, at)
	if err != nil {
		return nil, false, err
	}
	environ := append(environOf(c, os.Environ()), more...)
	key := r.cache.key(at, c, args, environ)
	if p := r.cache.find(key, at.root); p != nil {
		return p, true, nil
	}
	r.s.note("%s: %s%s", c.Name, strings.Join(append(c.Command, c.Plan...), " "), r.revision(at))
	p, err := r.predict(args, folder, environ)
	if err != nil {
		return nil, false, err
	}
	for _, word := range c.Plan {
		if info, err := os.Stat(filepath.Join(folder, word)); err == nil && info.Mode().IsRegular() {
			p.Files = append(p.Files, word)
		}
	}
	fromRoot(p, at.root, filepath.Join(at.folder, c.Folder))
	if len(c.Command) > 0 {
		r.cache.keep(key, at.root, p)
	}
	return p, false, nil
}

// revision returns a note for a tree other than the one that memroom was started in.
func (r *checking) revision(at tree) string {
	if at == r.here {
		return ""
	}
	return " (at " + r.cmd.Against + ")"
}

// predict answers as memroom plan does with these arguments in that folder.
func (r *checking) predict(args []string, folder string,
	environ []string) (*plan.Prediction, error) {
	c, given, err := parsePlan(args)
	if err != nil {
		return nil, err
	}
	c.environ = append(environ, "PWD="+folder)
	quiet := *r.s
	quiet.Err, quiet.given = io.Discard, given
	// relative names of a plan's files and of a command's program are seen from there
	if err := os.Chdir(folder); err != nil {
		return nil, err
	}
	p, err := c.predict(&quiet)
	if back := os.Chdir(r.started); back != nil {
		return nil, back
	}
	if err == nil && p == nil {
		return nil, fmt.Errorf("plan = ... with --fit or --devices searches, and has no one answer to " +
			"check: leave them out")
	}
	return p, err
}

// parsePlan reads arguments as memroom plan does.
func parsePlan(args []string) (*planCmd, []givenFlag, error) {
	var c planCmd
	parser, err := kong.New(&c, kong.Name("memroom plan"), kong.Exit(func(int) {}),
		kong.KindMapper(0x18, kong.MapperFunc(keepBytes)))
	if err != nil {
		return nil, nil, err
	}
	parsed, err := parser.Parse(args)
	if err != nil {
		return nil, nil, fmt.Errorf("memroom plan %s: %w", strings.Join(args, " "), err)
	}
	return &c, givenFlags(parsed), nil
}

// arguments are those of memroom plan for a check.
func (r *checking) arguments(c *guard.Check, at tree) ([]string, error) {
	var args []string
	if c.GPU != "" {
		args = append(args, "--gpu", c.GPU)
	}
	if len(c.Plan) > 0 {
		return append(slices.Clone(c.Plan), args...), nil
	}
	args = append(args, "--rehearse", "--steps", strconv.Itoa(cmp.Or(c.Steps, usualSteps)), "--")
	for i, word := range c.Command {
		args = append(args, r.translated(word, at, i == 0))
	}
	return args, nil
}

// environOf is an environment with what a check adds.
func environOf(c *guard.Check, environ []string) []string {
	environ = slices.DeleteFunc(slices.Clone(environ), func(one string) bool {
		name, _, _ := strings.Cut(one, "=")
		_, own := c.Env[name]
		return own || name == "PWD"
	})
	for _, name := range slices.Sorted(maps.Keys(c.Env)) {
		environ = append(environ, name+"="+c.Env[name])
	}
	return environ
}

// fromRoot names the files and lines of an answer from the root; others keep their whole path.
func fromRoot(p *plan.Prediction, root, folder string) {
	for i, line := range p.Lines {
		file, n := line.Line, ""
		if at := strings.LastIndexByte(file, ':'); at >= 0 {
			file, n = file[:at], file[at:]
		}
		p.Lines[i].Line = below(file, root, folder) + n
	}
	for i, file := range p.Files {
		p.Files[i] = below(file, root, folder)
	}
	p.Setup = nil // its model is of no use to who reads a check
}

// below is a path seen from the root, if it is in it.
func below(path, root, folder string) string {
	if !filepath.IsAbs(path) {
		path = filepath.Join(root, folder, path)
	}
	if rel, err := filepath.Rel(root, path); err == nil && filepath.IsLocal(rel) {
		return filepath.ToSlash(rel)
	}
	return path
}

// interrupted reports whether the user ended the command.
func interrupted(ctx context.Context) bool { return errors.Is(ctx.Err(), context.Canceled) }
