// Package memroom_test guards the shape of the house: which part may import which, and that each
// has a package comment.
package memroom_test

import (
	"encoding/json"
	"go/parser"
	"go/scanner"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const module = "memroom"

// part is one folder's place in the layout. A part may import the parts named in uses, and nothing
// else of memroom.
type part struct {
	uses   []string
	reason string // why it may not import more, said when it does
}

const (
	pure     = "it is pure thought: values in, values out; whoever needs more hands it in as a value"
	edge     = "it knows one technology; package cli connects it with the others"
	python   = "it only embeds Python; the probe installs it"
	assembly = "assembly points one way: report, api <- cli <- cmd/memroom"
)

// layout is the picture of docs/architecture.md as data. Sub-packages belong to their top folder
// unless listed. A part that does not exist yet has no entry.
var layout = map[string]part{
	"event":      {nil, "it is the vocabulary and imports only the standard library"},
	"lazyregexp": {nil, pure},
	"trace":      {[]string{"event", "lazyregexp"}, pure},
	"allocsim":   {[]string{"event"}, pure},
	"tape":       {[]string{"event", "tape/kernels"}, pure},
	"models":     {[]string{"event", "tape"}, pure},
	"remedy":     {[]string{"event", "lazyregexp"}, pure},
	"diagnose":   {[]string{"event", "lazyregexp", "trace", "allocsim", "remedy"}, pure},
	"explain":    {[]string{"event", "lazyregexp", "trace", "allocsim", "remedy", "diagnose"}, pure},
	"plan":       {[]string{"event", "allocsim", "tape", "models", "remedy"}, pure},
	"lint":       {[]string{"event", "lint/py"}, pure},
	"fit":        {[]string{"event", "remedy"}, pure},
	"trial":      {[]string{"event"}, pure},
	"guard":      {[]string{"event", "plan"}, pure},

	"meter": {[]string{"event"}, edge},
	"probe": {[]string{"event", "fit/py", "lint/py", "plan/calibrate", "plan/rehearse",
		"plan/standard", "python", "tape/kernels"},
		edge + ". It installs the Python that other rooms embed"},
	"store": {[]string{"event"}, edge},
	"feed":  {[]string{"event"}, edge},
	"relay": {[]string{"lazyregexp"}, edge + ". It reads a run's folder as files, whoever wrote them"},
	"central": {[]string{"relay", "store"},
		edge + ". It keeps what relay sends, as folders that store reads"},
	"supervise": {[]string{"event", "trace", "diagnose", "meter", "probe"},
		edge + ". The exceptions are meter and probe: the supervisor reads the one and hears the other; " +
			"the store and the policy come in through interfaces it declares"},
	"fit/driver": {[]string{"event", "remedy", "fit", "probe", "supervise"},
		edge + ". It is the policy that supervise declares, in supervise's words"},
	"trial/studyfile": {[]string{"event", "trial"}, pure},
	"trial/engine": {[]string{"event", "lazyregexp", "trial"},
		"it carries out what trial decides; which backend runs the trials comes in from cli"},
	"trial/optuna": {[]string{"trial"}, edge + ". It is the searcher that trial/engine declares"},
	"trial/relay":  {[]string{"event", "trial"}, pure},
	"trial/remote": {[]string{"event", "trial", "trial/relay"},
		"what every cluster has in common; which one it is comes in as an interface"},
	"trial/ray": {[]string{"event", "trial", "trial/remote"},
		edge + ". It is a cluster of trial/remote"},
	"trial/slurm": {[]string{"event", "trial", "trial/remote"},
		edge + ". It is a cluster of trial/remote"},
	"trial/local": {[]string{"event", "lazyregexp", "trial", "meter", "supervise"},
		edge + ". A trial on this machine is a supervised run; the store comes in from cli"},

	"trial/conformance": {nil,
		"it holds the tests that every engine passes, through the built binary"},

	"docs": {[]string{"event", "lint", "remedy"}, assembly + ". It prints catalogues as pages"},

	"web":            {nil, "it only embeds the page's files"},
	"fit/py":         {nil, python},
	"lint/py":        {nil, python},
	"plan/calibrate": {nil, python},
	"plan/rehearse":  {nil, python},
	"plan/standard":  {nil, python},
	"python":         {nil, python},
	"tape/kernels":   {nil, "it holds data that Go and Python read"},
	"report": {[]string{"event", "allocsim", "remedy", "fit", "diagnose", "explain", "plan", "lint",
		"trial", "guard", "web"}, assembly},
	"api": {[]string{"event", "trace", "allocsim", "remedy", "fit", "diagnose", "models", "plan",
		"store", "relay", "central", "trial", "trial/engine", "web", "report"},
		assembly + ". It reads the store itself; what it needs of supervise comes in as functions"},
	"cli": {[]string{"event", "trace", "allocsim", "remedy", "fit", "diagnose", "explain", "tape",
		"models",
		"plan", "lint", "meter", "probe", "store", "relay", "central", "feed", "supervise",
		"fit/driver", "trial",
		"trial/studyfile", "trial/engine", "trial/local", "trial/relay", "trial/remote",
		"trial/ray", "trial/slurm", "trial/optuna", "guard",
		"report", "api"}, assembly},
	"cmd":     {[]string{"cli"}, assembly},
	"testenv": {nil, "tests of every part use it"},
	"testenv/recorded": {[]string{"event", "tape", "models", "testenv"},
		"tests of tape, models and plan use it"},
	"attack": {nil, "it attacks the built binary from outside and knows none of its parts"},
	"bench": {[]string{"event", "trace", "allocsim", "remedy", "diagnose", "explain", "models", "plan",
		"trial", "trial/engine", "report"}, "benchmarks measure the parts, they do not assemble them"},
}

type goPackage struct {
	ImportPath, Dir string
	GoFiles         []string
	IgnoredGoFiles  []string // of other systems, or behind a build tag
	Imports         []string
}

func listPackages(t *testing.T) []goPackage {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Dir,GoFiles,IgnoredGoFiles,Imports",
		"./...")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var packages []goPackage
	for dec := json.NewDecoder(strings.NewReader(string(out))); dec.More(); {
		var p goPackage
		if err := dec.Decode(&p); err != nil {
			t.Fatal(err)
		}
		packages = append(packages, p)
	}
	return packages
}

// placeOf returns the layout entry a package belongs to: itself if listed, else its top folder.
func placeOf(importPath string) string {
	path := strings.TrimPrefix(strings.TrimPrefix(importPath, module), "/")
	if _, listed := layout[path]; listed {
		return path
	}
	top, _, _ := strings.Cut(path, "/")
	return top
}

// violations returns a sentence for each import that points the wrong way.
func violations(packages []goPackage) []string {
	var wrong []string
	for _, p := range packages {
		from := placeOf(p.ImportPath)
		if from == "" {
			continue // the root holds only this test
		}
		place, known := layout[from]
		if !known {
			wrong = append(wrong,
				p.ImportPath+" is a new part: give it a place in layout_test.go and in docs/architecture.md")
			continue
		}
		for _, imported := range p.Imports {
			if !strings.HasPrefix(imported, module+"/") {
				continue
			}
			if to := placeOf(imported); to != from && !contains(place.uses, to) {
				wrong = append(wrong,
					p.ImportPath+" imports "+imported+", but "+from+" may not use "+to+": "+place.reason)
			}
		}
	}
	return wrong
}

func contains(list []string, s string) bool {
	for _, v := range list {
		if v == s {
			return true
		}
	}
	return false
}

func TestImportsPointOneWay(t *testing.T) {
	for _, sentence := range violations(listPackages(t)) {
		t.Error(sentence)
	}
}

// unused returns a sentence for each grant that no package makes use of, and for each part without
// a package.
func unused(layout map[string]part, packages []goPackage) []string {
	exists, used := map[string]bool{}, map[string]bool{}
	for _, p := range packages {
		from := placeOf(p.ImportPath)
		exists[from] = true
		for _, imported := range p.Imports {
			used[from+" "+placeOf(imported)] = true
		}
	}
	var idle []string
	for from, place := range layout {
		if !exists[from] {
			idle = append(idle, from+" has a place in layout_test.go and no package")
			continue
		}
		for _, to := range place.uses {
			if !used[from+" "+to] {
				idle = append(idle, from+" may use "+to+" and does not: take the grant back")
			}
		}
	}
	return idle
}

// TestNothingIsGrantedInAdvance: the layout grants only imports that exist, so that a new one is a
// decision.
func TestNothingIsGrantedInAdvance(t *testing.T) {
	packages := listPackages(t)
	for i, p := range packages { // imports of the other systems count too
		for _, name := range p.IgnoredGoFiles {
			file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, name), nil,
				parser.ImportsOnly)
			if err != nil {
				t.Fatal(err)
			}
			for _, spec := range file.Imports {
				packages[i].Imports = append(packages[i].Imports,
					strings.Trim(spec.Path.Value, "\""))
			}
		}
	}
	for _, sentence := range unused(layout, packages) {
		t.Error(sentence)
	}
	one := map[string]part{"event": {[]string{"trace"}, pure}, "gone": {}}
	if idle := unused(one, []goPackage{{ImportPath: module + "/event"}}); len(idle) != 2 {
		t.Errorf("an idle grant and an empty place give %q", idle)
	}
}

// TestTurnedImportIsCaught shows that the guard can fail: each of these imports is turned round.
func TestTurnedImportIsCaught(t *testing.T) {
	for from, to := range map[string]string{"event": "allocsim", "allocsim": "plan",
		"meter": "store", "store": "supervise", "report": "cli", "supervise": "fit/driver",
		"fit": "supervise"} {
		wrong := violations([]goPackage{{ImportPath: module + "/" + from,
			Imports: []string{module + "/" + to}}})
		if len(wrong) != 1 || !strings.Contains(wrong[0], layout[from].reason) {
			t.Errorf("%s importing %s: got %q, want one violation that gives the reason", from, to,
				wrong)
		}
	}
	if wrong := violations([]goPackage{{ImportPath: module + "/utils"}}); len(wrong) != 1 {
		t.Errorf("a folder without a place was accepted")
	}
}

func TestEveryPackageSaysWhatItIsFor(t *testing.T) {
	for _, p := range listPackages(t) {
		documented := 0
		for _, name := range p.GoFiles {
			file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, name), nil,
				parser.PackageClauseOnly|parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			if file.Doc != nil && strings.TrimSpace(file.Doc.Text()) != "" {
				documented++
			}
		}
		if len(p.GoFiles) > 0 && documented != 1 {
			t.Errorf("%s has %d package comments, want exactly one", p.ImportPath, documented)
		}
	}
}

// mostColumns is how wide a line of code may be, the tabs it begins with left out.
const mostColumns = 100

// longText is a text from which on it may stand on a line of its own that is too wide: messages and
// expressions are searched for whole. Texts in backquotes and tables in comments are what they are.
var longText = regexp.MustCompile(`"[^"]{50,}"|^// {2,}|//go:|^//\s*\S+ {3,}`)

// TestLinesFitBesideEachOther: two files side by side on one screen.
func TestLinesFitBesideEachOther(t *testing.T) {
	out, err := exec.Command("git", "ls-files", "*.go").Output()
	if err != nil {
		t.Skipf("needs git: %v", err)
	}
	for _, path := range strings.Fields(string(out)) {
		if strings.Contains(path, "testdata/") {
			continue
		}
		text, err := os.ReadFile(path)
		if err != nil {
			continue // moved away, not yet committed
		}
		raw := rawLines(text)
		for i, line := range strings.Split(string(text), "\n") {
			line = strings.TrimLeft(line, "\t")
			n := len([]rune(line))
			if n > mostColumns && !raw[i+1] && !strings.HasPrefix(line, "//\t") &&
				!longText.MatchString(line) {
				t.Errorf("%s:%d has %d columns, at most %d fit", path, i+1, n, mostColumns)
			}
		}
	}
}

// longScriptText is a text of a page that is longer than a line, whole so that it can be found.
var longScriptText = regexp.MustCompile("`[^`]{50,}|\"[^\"]{50,}\"")

// TestScriptsFitTheScreen: the same for the modules and styles of the page.
func TestScriptsFitTheScreen(t *testing.T) {
	out, err := exec.Command("git", "ls-files", "web/*.js", "web/*.css").Output()
	if err != nil {
		t.Skipf("needs git: %v", err)
	}
	for _, path := range strings.Fields(string(out)) {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // moved away, not yet committed
		}
		for i, line := range strings.Split(string(text), "\n") {
			if n := len([]rune(line)); n > mostColumns && !longScriptText.MatchString(line) {
				t.Errorf("%s:%d has %d columns, at most %d fit", path, i+1, n, mostColumns)
			}
		}
	}
}

// TestDocumentsFitTheScreen: the same for prose. A row of a table cannot be broken, and what stands
// in a fence is what a program prints.
func TestDocumentsFitTheScreen(t *testing.T) {
	out, err := exec.Command("git", "ls-files", "*.md").Output()
	if err != nil {
		t.Skipf("needs git: %v", err)
	}
	for _, path := range strings.Fields(string(out)) {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // moved away, not yet committed
		}
		for _, line := range wideLines(string(text)) {
			t.Errorf("%s:%d has more than %d columns", path, line, mostColumns)
		}
	}
	long := strings.Repeat("word ", 21)
	if got := wideLines("# Title\n" + long + "\n| " + long + "|\n```\n" + long + "\n```\n- " + long +
		"\nhttps://" + strings.Repeat("x", 120)); !slices.Equal(got, []int{2, 7}) {
		t.Errorf("too wide are lines 2 and 7, found %v", got)
	}
}

// wideLines returns the lines of a document that are too wide and could be broken.
func wideLines(text string) (wide []int) {
	fenced := false
	for i, line := range strings.Split(text, "\n") {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			fenced = !fenced
		}
		whole := len(strings.Fields(line)) == 1 // an address
		if len([]rune(strings.TrimRight(line, " "))) > mostColumns && !fenced && !whole &&
			!strings.HasPrefix(line, "|") {
			wide = append(wide, i+1)
		}
	}
	return wide
}

// rawLines returns the lines that texts in backquotes reach over.
func rawLines(source []byte) map[int]bool {
	var s scanner.Scanner
	files := token.NewFileSet()
	file := files.AddFile("", files.Base(), len(source))
	s.Init(file, source, func(token.Position, string) {}, 0)
	lines := map[int]bool{}
	for {
		at, kind, text := s.Scan()
		if kind == token.EOF {
			return lines
		}
		if kind == token.STRING && strings.HasPrefix(text, "`") {
			for line := file.Line(at); line <= file.Line(at)+strings.Count(text, "\n"); line++ {
				lines[line] = true
			}
		}
	}
}

// TestContributingNamesWhatExists: a recipe that names a file or a folder which is gone is wrong.
func TestContributingNamesWhatExists(t *testing.T) {
	text, err := os.ReadFile("CONTRIBUTING.md")
	if err != nil {
		t.Fatal(err)
	}
	listed, err := exec.Command("git", "ls-files").Output()
	if err != nil {
		t.Skipf("needs git: %v", err)
	}
	exists := map[string]bool{}
	for path := range strings.Lines(string(listed)) {
		path = strings.TrimSpace(path)
		exists[filepath.Base(path)] = true
		for ; path != "."; path = filepath.Dir(path) {
			exists[path] = true
		}
	}
	// A path, or the name of a file; words in capitals and stars stand for others.
	named := regexp.MustCompile("`((?:[a-z0-9_.-]+/)+[a-z0-9_.-]*|[a-z0-9_-]+\\.(?:go|py|txt|jsonl))`")
	for _, m := range named.FindAllStringSubmatch(string(text), -1) {
		if path := strings.TrimSuffix(m[1], "/"); !exists[path] && path != "dist/site" {
			t.Errorf("CONTRIBUTING.md names %s, which does not exist", path)
		}
	}
}
