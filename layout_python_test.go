package memroom_test

import (
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"sort"
	"strings"
	"testing"
)

// packages are the folders of the Python that ships, by the name under which it is imported.
var packages = map[string]string{
	"_memroom_probe": base, "_memroom_probe.fit": "fit/py", "_memroom_probe.lint": "lint/py",
	"_memroom_probe.rehearse": "plan/rehearse", "_memroom_probe.standard": "plan/standard",
	"_memroom_probe.calibrate": "plan/calibrate", "_memroom_probe.kernels": "tape/kernels",
	"memroom": "python/memroom",
}

const (
	base  = "probe/py/_memroom_probe"
	start = base + "/__init__.py"
	apart = "it runs where nothing else of the probe is loaded"
	batch = "parts of fit stand in the order in which a batch passes through them"
)

// pythonLayout is the same picture for Python: a folder or a file, and what it may import when it
// is loaded or later. Folders and files that are not listed belong to the nearest above them.
var pythonLayout = map[string]part{
	base:                 {nil, "watch, fit and rehearse stand on it"},
	start:                {[]string{base, base + "/entries.py", base + "/watch"}, "it starts all"},
	base + "/entries.py": {[]string{base, "fit/py", "plan/rehearse"}, "it starts what a run asks for"},
	base + "/aside.py":   {[]string{start}, "it finds the probe where it was installed"},
	base + "/watch":      {[]string{base}, "it looks and changes nothing"},

	"fit/py": {[]string{base, "fit/py/calls", "fit/py/memory", "fit/py/remedies", "fit/py/measure",
		"fit/py/choose"}, batch},
	"fit/py/calls":    {[]string{base}, batch},
	"fit/py/memory":   {[]string{base}, batch},
	"fit/py/batch":    {[]string{base, "fit/py/calls", "fit/py/memory"}, batch},
	"fit/py/remedies": {[]string{base, "fit/py/calls", "fit/py/memory", "fit/py/batch"}, batch},
	"fit/py/measure": {[]string{"fit/py/calls", "fit/py/memory", "fit/py/batch",
		"fit/py/remedies"}, batch},
	"fit/py/choose": {[]string{base, "fit/py/calls", "fit/py/memory", "fit/py/batch",
		"fit/py/remedies", "fit/py/measure"}, batch},

	"lint/py":        {nil, apart},
	"plan/calibrate": {nil, apart},
	"plan/rehearse":  {[]string{base, "tape/kernels"}, "tests keep what it answered while other parts change"},
	"plan/standard":  {[]string{"plan/rehearse"}, "it is a rehearsal of models that memroom writes"},
	"tape/kernels":   {nil, "it is data"},
	"python/memroom": {[]string{base, start, base + "/entries.py", base + "/watch", "fit/py",
		"fit/py/calls", "plan/rehearse"},
		"it is what users import, and nothing of ours imports it"},
}

// mutual are the imports that close a circle, and why they may.
var mutual = map[[2]string]string{
	{"lint/py/flow.py", "lint/py/calls.py"}: "the analysis of a function asks for that of those it calls",
	{"python/memroom/sharing.py", "python/memroom/shared_types.py"}: "a handle that is unpickled " +
		"may hold any type, and every type is pickled as a handle",
	{"python/memroom/tune/detached.py", "python/memroom/tune/study.py"}: "a trial of a notebook's " +
		"study builds that study again",
}

// pythonFiles returns the Python files that ship and what each imports of them.
func pythonFiles(t *testing.T) map[string][]string {
	t.Helper()
	names := map[string]string{} // dotted name -> file
	for name, folder := range packages {
		err := filepath.WalkDir(folder, func(file string, entry fs.DirEntry, err error) error {
			if err == nil && !entry.IsDir() && strings.HasSuffix(file, ".py") {
				rest := strings.TrimSuffix(strings.TrimPrefix(file, folder+"/"), ".py")
				dotted := name + "." + strings.ReplaceAll(rest, "/", ".")
				names[strings.TrimSuffix(dotted, ".__init__")] = file
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	edges := map[string][]string{}
	for name, file := range names {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		edges[file] = nil
		for _, target := range pythonImports(name, path.Base(file) == "__init__.py", string(text)) {
			for target != "" && names[target] == "" {
				target = target[:max(0, strings.LastIndexByte(target, '.'))]
			}
			if to := names[target]; to != "" && to != file && !slices.Contains(edges[file], to) {
				edges[file] = append(edges[file], to)
			}
		}
	}
	return edges
}

var (
	pythonImport = regexp.MustCompile(
		`(?m)^ *(?:from (\.*)([\w.]*) import (\([^)]*\)|[^\n]*)|import ([^\n]*))`)
	forCheckers   = regexp.MustCompile(`(?m)^if TYPE_CHECKING:[^\n]*\n(?: +[^\n]*\n|\n)*`)
	pythonComment = regexp.MustCompile(`#[^\n]*`)
)

// pythonImports returns the dotted names that a module imports, at any time. What only type
// checkers read is left out.
func pythonImports(name string, isPackage bool, text string) (found []string) {
	text = pythonComment.ReplaceAllString(forCheckers.ReplaceAllString(text, ""), "")
	for _, at := range pythonImport.FindAllStringSubmatch(text, -1) {
		from, names := at[2], strings.Trim(at[3], "()")+at[4]
		if dots := len(at[1]); dots > 0 {
			parts := strings.Split(name, ".")
			if !isPackage {
				dots++
			}
			from = strings.Trim(strings.Join(parts[:len(parts)-dots+1], ".")+"."+from, ".")
		}
		for _, one := range strings.Split(names, ",") {
			if words := strings.Fields(one); len(words) > 0 {
				found = append(found, strings.Trim(from+"."+words[0], "."))
			}
		}
	}
	return found
}

// pythonPlace returns the entry of pythonLayout that a file belongs to.
func pythonPlace(file string) string {
	for ; file != "."; file = path.Dir(file) {
		if _, listed := pythonLayout[file]; listed {
			return file
		}
	}
	return ""
}

func pythonViolations(edges map[string][]string) (wrong []string) {
	for file, targets := range edges {
		from := pythonPlace(file)
		for _, target := range targets {
			to := pythonPlace(target)
			if to != from && !slices.Contains(pythonLayout[from].uses, to) {
				wrong = append(wrong, file+" imports "+target+", but "+from+" may not use "+to+": "+
					pythonLayout[from].reason)
			}
		}
	}
	sort.Strings(wrong)
	return wrong
}

func TestPythonImportsPointOneWay(t *testing.T) {
	edges := pythonFiles(t)
	if len(edges) < 250 {
		t.Fatalf("found %d Python files", len(edges))
	}
	for _, sentence := range pythonViolations(edges) {
		t.Error(sentence)
	}
	used := map[string]bool{}
	for file, targets := range edges {
		for _, target := range targets {
			used[pythonPlace(file)+" "+pythonPlace(target)] = true
		}
	}
	for from, place := range pythonLayout {
		for _, to := range place.uses {
			if !used[from+" "+to] {
				t.Errorf("%s may use %s and does not: take the grant back", from, to)
			}
		}
	}
	turned := map[string][]string{base + "/link.py": {base + "/watch/steps.py"}}
	if wrong := pythonViolations(turned); len(wrong) != 1 {
		t.Errorf("a turned import was accepted: %q", wrong)
	}
}

// TestPythonImportsHaveNoCircle holds imports within functions too: they hide a circle from Python,
// not from a reader.
func TestPythonImportsHaveNoCircle(t *testing.T) {
	edges := pythonFiles(t)
	for arrow := range mutual {
		from, to := arrow[0], arrow[1]
		if !slices.Contains(edges[from], to) {
			t.Errorf("%s does not import %s any more: take them out of mutual", from, to)
		}
		edges[from] = slices.DeleteFunc(edges[from], func(name string) bool { return name == to })
	}
	for from := range edges { // Python itself imports the packages around a module
		edges[from] = slices.DeleteFunc(edges[from], func(to string) bool {
			return path.Base(to) == "__init__.py" && strings.HasPrefix(from, path.Dir(to)+"/")
		})
	}
	if circle := circleIn(edges); circle != nil {
		t.Errorf("a circle: %s", strings.Join(circle, " -> "))
	}
	one := map[string][]string{"a": {"b"}, "b": {"c"}, "c": {"b"}}
	if circle := circleIn(one); !slices.Equal(circle, []string{"b", "c", "b"}) {
		t.Errorf("the circle b, c was found as %q", circle)
	}
}

// circleIn returns one circle of a graph, or nil.
func circleIn(edges map[string][]string) []string {
	var trail []string
	done := map[string]bool{}
	var visit func(string) []string
	visit = func(name string) []string {
		if i := slices.Index(trail, name); i >= 0 {
			return append(slices.Clone(trail[i:]), name)
		}
		if done[name] {
			return nil
		}
		trail = append(trail, name)
		for _, to := range edges[name] {
			if found := visit(to); found != nil {
				return found
			}
		}
		trail = trail[:len(trail)-1]
		done[name] = true
		return nil
	}
	for _, name := range sortedKeys(edges) {
		if found := visit(name); found != nil {
			return found
		}
	}
	return nil
}

func sortedKeys(edges map[string][]string) []string {
	var names []string
	for name := range edges {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}

// TestPythonImportsAreRead shows what counts as an import.
func TestPythonImportsAreRead(t *testing.T) {
	const text = "import os, a.b as c\nif TYPE_CHECKING:\n    from . import x\nfrom . import (\n    one,  # why, so\n" +
		"    two,\n)\ndef f():\n    from ..other import three as four\n"
	want := []string{"os", "a.b", "m.p.one", "m.p.two", "m.other.three"}
	if got := pythonImports("m.p.q", false, text); !slices.Equal(got, want) {
		t.Errorf("imports are %q, want %q", got, want)
	}
}
