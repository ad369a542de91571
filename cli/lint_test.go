package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"memroom/lint"
	"memroom/testenv"
)

// lintJSON runs the command on paths and returns its answer and exit code.
func lintJSON(t *testing.T, args ...string) (lintResult, int) {
	t.Helper()
	testenv.Python(t)
	var out, problems bytes.Buffer
	code := Main(context.Background(), append([]string{"lint", "--json"}, args...),
		Streams{Out: &out, Err: &problems})
	var result lintResult
	if err := json.Unmarshal(out.Bytes(), &result); err != nil {
		t.Fatalf("exit %d, %v: %s%s", code, err, &out, &problems)
	}
	return result, code
}

var expectation = regexp.MustCompile(`# (expect|hint): ([\w\-]+)`)

// TestLintFindsWhatIsMarked holds every sample against its own marks: each marked line is found for
// the reason given, and no other line is. One process reads them all: starting Python once a sample
// would take ten times as long.
func TestLintFindsWhatIsMarked(t *testing.T) {
	all, err := filepath.Glob("testdata/lint/*/*.py")
	samples := slices.DeleteFunc(append(all, "testdata/lint/leaky.py"), func(path string) bool {
		return strings.Contains(path, "/fix/") || strings.HasSuffix(path, "python2.py") ||
			strings.Contains(path, largeFileSamples)
	})
	if err != nil || len(samples) < 6 {
		t.Fatalf("samples: %d, %v", len(samples), err)
	}
	result, code := lintJSON(t, samples...)
	if code != exitFindings {
		t.Errorf("exit %d, want %d", code, exitFindings)
	}
	found := map[string]map[int]string{}
	for _, sample := range samples {
		found[sample] = map[int]string{}
	}
	for _, f := range append(slices.Clone(result.Hints), result.Findings...) {
		if found[f.File] == nil {
			t.Fatalf("a finding in %q, which is no sample", f.File)
		}
		kind := "expect: "
		if f.Severity == lint.Hint {
			kind = "hint: "
		}
		found[f.File][f.Line] = kind + f.Rule
	}
	codes := map[bool]int{false: exitOK, true: exitFindings}
	for _, sample := range samples {
		t.Run(strings.TrimPrefix(sample, "testdata/lint/"), func(t *testing.T) {
			text := testenv.Read(t, sample)
			want, findings := marks(string(text))
			if diff := cmp.Diff(want, found[sample]); diff != "" {
				t.Errorf("line -> rule (-marked +found):\n%s", diff)
			}
			wantCode, first := codes[findings > 0]
			if !first {
				return
			}
			// The first sample of each kind is read alone too: the same answer, and its exit code.
			delete(codes, findings > 0)
			alone, code := lintJSON(t, sample)
			if code != wantCode || len(alone.Findings) != findings {
				t.Errorf("alone: exit %d, %d findings, want %d, %d", code, len(alone.Findings),
					wantCode, findings)
			}
		})
	}
}

// marks returns the marked lines of a sample, and how many of them are not hints.
func marks(text string) (lines map[int]string, findings int) {
	lines = map[int]string{}
	for i, line := range strings.Split(text, "\n") {
		if m := expectation.FindStringSubmatch(line); m != nil {
			lines[i+1] = m[1] + ": " + m[2]
			if m[1] == "expect" {
				findings++
			}
		}
	}
	return lines, findings
}

// largeFileSamples are read by a test of their own: the files they open have to lie beside them.
const largeFileSamples = "/large-file-read-whole/"

// TestLintLargeFiles holds the samples of large files against their marks, beside sparse files of
// two gigabytes that take no space.
func TestLintLargeFiles(t *testing.T) {
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("testdata/lint"+largeFileSamples)); err != nil {
		t.Fatal(err)
	}
	samples, err := filepath.Glob(filepath.Join(dir, "*.py"))
	if err != nil || len(samples) < 2 {
		t.Fatalf("samples: %d, %v", len(samples), err)
	}
	for _, name := range []string{"large.npy", "large.csv", "large.pt"} {
		path := filepath.Join(dir, name)
		testenv.Write(t, path, nil)
		if err := os.Truncate(path, 2<<30); err != nil {
			t.Skipf("no sparse files here: %v", err)
		}
	}
	want, found := map[string]map[int]string{}, map[string]map[int]string{}
	for _, sample := range samples {
		text := testenv.Read(t, sample)
		want[sample], _ = marks(string(text))
		found[sample] = map[int]string{}
	}
	result, _ := lintJSON(t, samples...)
	for _, f := range result.Findings {
		found[f.File][f.Line] = "expect: " + f.Rule
	}
	for _, f := range result.Hints {
		found[f.File][f.Line] = "hint: " + f.Rule
	}
	if diff := cmp.Diff(want, found); diff != "" {
		t.Errorf("line -> rule (-marked +found):\n%s", diff)
	}
}

// TestLintSamplesOfEveryRule counts what holds each rule, in its own folder: lines marked with it,
// as a finding or a hint, and silent twins. A twin is a function or class at the left margin of
// three lines or more, without a mark of any rule; a file without marks that has none is one twin.
func TestLintSamplesOfEveryRule(t *testing.T) {
	const fewest = 3
	for _, rule := range lint.Rules() {
		samples, err := filepath.Glob(filepath.Join("testdata/lint", rule.ID, "*.py"))
		if err != nil {
			t.Fatal(err)
		}
		marked, twins := 0, 0
		for _, sample := range samples {
			text := testenv.Read(t, sample)
			for _, m := range expectation.FindAllStringSubmatch(string(text), -1) {
				if m[2] == rule.ID {
					marked++
				}
			}
			twins += silentTwins(string(text))
		}
		if marked < fewest || twins < fewest {
			t.Errorf("testdata/lint/%s: %d marked lines and %d silent twins, want %d of each",
				rule.ID, marked, twins, fewest)
		}
	}
}

// silentTwins counts the blocks at the left margin that begin with def or class, take three lines
// or more and have no mark.
func silentTwins(text string) int {
	twins, length, silent := 0, 0, false
	end := func() {
		if silent && length >= 3 {
			twins++
		}
		length, silent = 0, false
	}
	for _, line := range strings.Split(text, "\n") {
		if strings.TrimSpace(line) == "" {
			continue
		}
		if !strings.ContainsAny(line[:1], " \t)]}") {
			end()
			silent = blockStart.MatchString(line)
		}
		length++
		if expectation.MatchString(line) {
			silent = false
		}
	}
	end()
	if twins == 0 && !expectation.MatchString(text) {
		return 1
	}
	return twins
}

var blockStart = regexp.MustCompile(`^(async def|def|class) `)

func TestSilentTwins(t *testing.T) {
	for text, want := range map[string]int{
		"x = 1\n":                      1,
		"x = 1  # expect: some-rule\n": 0,
		"def f():\n    x = 1\n    return x\n\n\nf()\n":                            1,
		"def f(\n    x,\n):\n    return x  # hint: some-rule\n":                   0,
		"class C:\n    def f(self):\n        return 1\n\ny = 2  # expect: rule\n": 1,
		"def f():\n    return 1\n\ny = 2  # expect: rule\n":                       0,
	} {
		if got := silentTwins(text); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
}

func TestLintFixMendsWhatIsSafe(t *testing.T) {
	path := filepath.Join(t.TempDir(), "leaky.py")
	original := testenv.Read(t, "testdata/lint/fix/sums.py")
	if err := os.WriteFile(path, original, 0o640); err != nil {
		t.Fatal(err)
	}
	before, _ := lintJSON(t, path)
	after, _ := lintJSON(t, "--fix", path)
	if after.Fixed == 0 || after.Fixed+len(after.Findings) != len(before.Findings) {
		t.Errorf("%d findings, %d fixed, %d left", len(before.Findings), after.Fixed,
			len(after.Findings))
	}
	again, _ := lintJSON(t, path)
	if diff := cmp.Diff(after.Findings, again.Findings); diff != "" {
		t.Errorf("the mended file has other findings than those left:\n%s", diff)
	}
	for _, f := range again.Findings {
		if f.Safe {
			t.Errorf("still there although safe to mend: %s line %d", f.Rule, f.Line)
		}
	}
	if info, _ := os.Stat(path); info.Mode().Perm() != 0o640 {
		t.Errorf("the file's mode became %v", info.Mode())
	}
}

func TestLintNotebook(t *testing.T) {
	result, code := lintJSON(t, "testdata/lint/notebook.ipynb")
	if code != exitFindings || len(result.Findings) != 1 || result.Findings[0].Cell != 3 ||
		result.Findings[0].Line != 5 ||
		result.Findings[0].Rule != "loss-graph-accumulated" {
		t.Errorf("exit %d, findings %+v", code, result.Findings)
	}
	if len(result.Skipped) != 1 || !strings.Contains(result.Skipped[0].Why, "1 of its cells") {
		t.Errorf("the cell in another language was not named: %+v", result.Skipped)
	}
}

// TestLintBadInput: each file is answered with a reason, none stops the others.
func TestLintBadInput(t *testing.T) {
	dir := t.TempDir()
	deep := strings.Repeat("(", 5000) + strings.Repeat(")", 5000)
	for name, content := range map[string]string{
		"binary.py": "\x00\x01torch", "deep.py": "import torch\nx = " + deep,
		"latin.py": "# -*- coding: latin-1 -*-\nimport torch\nname = '\xe9'\n",
		"empty.py": "", "utf8.py": "\ufeffimport torch\n", "crlf.py": "import torch\r\nx = 1\r\n",
		"unknown.py": "# coding: no-such\nimport torch\n",
		"list.ipynb": "[]", "junk.ipynb": "{", "cells.ipynb": `{"cells": [1, {"cell_type": "code", "source": 7}]}`,
		"chain.py": "import torch\nx = " + strings.Repeat("a+", 20000) + "a\n",
		"old.py":   "import torch\nprint 'a'\nf = lambda (a, b): a\n",
		"newer.py": "import torch\nx = t\"{a}\"\n",
		"huge.py":  "import torch\n" + strings.Repeat("x = 1\n", 1<<20),
	} {
		testenv.Write(t, filepath.Join(dir, name), []byte(content))
	}
	result, code := lintJSON(t, dir, "testdata/lint/python2.py", "testdata/lint/broken.py")
	why := map[string]string{}
	for _, s := range result.Skipped {
		why[filepath.Base(s.File)] = s.Why
		if strings.Contains(s.Why, "internal error") {
			t.Errorf("%s: %s", s.File, s.Why)
		}
	}
	for name, say := range map[string]string{"binary.py": "binary", "old.py": "Python 2",
		"newer.py": "Python 3.14", "huge.py": "larger than 4 MiB",
		"broken.py": "syntax error at line 2", "list.ipynb": "not a notebook",
		"junk.ipynb": "not a notebook"} {
		if !strings.Contains(why[name], say) {
			t.Errorf("%s: said %q, want %q", name, why[name], say)
		}
	}
	for _, name := range []string{"latin.py", "empty.py", "utf8.py", "crlf.py"} {
		if why[name] != "" {
			t.Errorf("%s is fine, but: %s", name, why[name])
		}
	}
	if code != exitOK || len(result.Findings) != 0 {
		t.Errorf("exit %d with %d findings", code, len(result.Findings))
	}
	if _, code := lintJSON(t, "testdata/lint/broken.py"); code != exitUsage {
		t.Errorf("nothing could be analysed, yet exit %d", code)
	}
}

var fixCount = regexp.MustCompile(`fixes: (\d+)`)

// runAll runs scripts in one interpreter, each as a program of its own, and prints what each wrote
// as JSON: torch is imported once.
const runAll = `
import contextlib, io, json, runpy, sys
said = []
for path in sys.argv[1:]:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        runpy.run_path(path, run_name="__main__")
    said.append(out.getvalue())
print(json.dumps(said))
`

// TestLintFixChangesNoResult runs each sample before and after --fix and holds what they print
// against each other. The samples hold what a careless fix would break.
func TestLintFixChangesNoResult(t *testing.T) {
	python := testenv.Python(t, "torch")
	samples, err := filepath.Glob("testdata/lint/fix/*.py")
	if err != nil || len(samples) < 6 {
		t.Fatalf("samples: %d, %v", len(samples), err)
	}
	dir := t.TempDir()
	args := []string{"-W", "ignore", "-c", runAll}
	for _, sample := range samples {
		text := testenv.Read(t, sample)
		path := filepath.Join(dir, filepath.Base(sample))
		testenv.Write(t, path, text)
		result, _ := lintJSON(t, "--fix", path)
		if want := fixCount.FindSubmatch(text); strconv.Itoa(result.Fixed) != string(want[1]) {
			t.Errorf("%s: %d fixed, want %s", sample, result.Fixed, want[1])
		}
		args = append(args, sample, path)
	}
	cmd := exec.Command(python, args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var said []string
	if err := json.Unmarshal(out, &said); err != nil || len(said) != 2*len(samples) {
		t.Fatalf("%v: %s", err, out)
	}
	for i, sample := range samples {
		if said[2*i] == "" || said[2*i] != said[2*i+1] {
			t.Errorf("%s: the fixed script prints\n%s\nwhere the original printed\n%s", sample,
				said[2*i+1], said[2*i])
		}
	}
}

// TestLintDiffIsAPatch: --diff changes nothing and prints what patch(1) takes, proven fixes and
// others.
func TestLintDiffIsAPatch(t *testing.T) {
	patch, err := exec.LookPath("patch")
	if err != nil {
		testenv.Needs(t, "patch", "the patch is applied with it")
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "leaky.py")
	text := testenv.Read(t, "testdata/lint/leaky.py")
	testenv.Write(t, path, text)
	before, _ := lintJSON(t, path)
	var out, problems bytes.Buffer
	code := Main(context.Background(), []string{"lint", "--diff", path},
		Streams{Out: &out, Err: &problems})
	if now, _ := os.ReadFile(path); code != exitFindings || !bytes.Equal(now, text) {
		t.Fatalf("exit %d; file unchanged: %v", code, bytes.Equal(now, text))
	}
	cmd := exec.Command(patch, "-p0", "-d", "/")
	cmd.Stdin = &out
	if said, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("patch: %v: %s", err, said)
	}
	after, _ := lintJSON(t, path)
	edits := 0
	for _, f := range before.Findings {
		if strings.Contains(f.Fix, "@@") {
			edits++
		}
	}
	if edits == 0 || len(after.Findings) != len(before.Findings)-edits {
		t.Errorf("%d findings, %d with an edit, %d after the patch", len(before.Findings), edits,
			len(after.Findings))
	}
}

// TestLintReadsPython2: Python 2 statements are read in their Python 3 form, and the note mentions
// it.
func TestLintReadsPython2(t *testing.T) {
	path := filepath.Join(t.TempDir(), "old.py")
	text := "import torch\n" +
		"def train(model, loader, opt):\n" +
		"\ttotal = 0\n" +
		"\tfor i, x in enumerate(loader):\n" +
		"\t\tloss = model(x).mean()\n" +
		"\t\topt.zero_grad()\n" +
		"\t\tloss.backward()\n" +
		"\t\topt.step()\n" +
		"\t\ttotal += loss\n" +
		"\t\tif i % 10 == 0: print \"step\", i\n" +
		"\t\ttry:\n\t\t\tpass\n\t\texcept ValueError, e:\n\t\t\traise RuntimeError, 'stop'\n" +
		"\tprint >>log, total\n\tprint\n"
	testenv.Write(t, path, []byte(text))
	result, code := lintJSON(t, "--fix", path)
	if code != exitFindings || len(result.Findings) != 1 || result.Findings[0].Line != 9 ||
		result.Fixed != 0 {
		t.Errorf("exit %d, %+v", code, result)
	}
	if len(result.Notes) != 1 || !strings.Contains(result.Notes[0].Why, "Python 2") {
		t.Errorf("notes: %+v", result.Notes)
	}
	if now, _ := os.ReadFile(path); string(now) != text {
		t.Errorf("the file was changed:\n%s", now)
	}
}

// TestLintLargeNotebook: pictures in the outputs do not count as code.
func TestLintLargeNotebook(t *testing.T) {
	picture := strings.Repeat("A", 6<<20)
	cells := []map[string]any{
		{"cell_type": "markdown", "source": "text"},
		{"cell_type": "code", "source": "import torch", "outputs": []any{picture}},
		{"cell_type": "code", "source": "%time\nawait start()\n" +
			"for x in loader:\n    loss = model(x).mean()\n    opt.zero_grad()\n" +
			"    loss.backward()\n    opt.step()\n    losses.append(loss)\n"},
	}
	data, err := json.Marshal(map[string]any{"cells": cells})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "large.ipynb")
	testenv.Write(t, path, data)
	result, _ := lintJSON(t, path)
	if len(result.Findings) != 1 || result.Findings[0].Cell != 2 || result.Findings[0].Line != 8 {
		t.Errorf("%+v", result)
	}
}

// TestLintLongChain: a chain of elifs is a block in a block for each of them. The file is read to
// its end, and within the time that a file has.
func TestLintLongChain(t *testing.T) {
	text := strings.Builder{}
	text.WriteString("import torch\n\ndef pick(x, model):\n    if x == 0:\n        y = model(x)\n")
	for i := range 3000 {
		n := strconv.Itoa(i + 1)
		text.WriteString("    elif x == " + n + ":\n        y = model(x) + " + n + "\n")
	}
	text.WriteString("    return y\n\ndef train(model, loader, optimizer):\n    total = 0\n" +
		"    for x in loader:\n        loss = pick(x, model).mean()\n" +
		"        optimizer.zero_grad()\n        loss.backward()\n        optimizer.step()\n" +
		"        total += loss\n    return total\n")
	path := filepath.Join(t.TempDir(), "chain.py")
	testenv.Write(t, path, []byte(text.String()))
	result, code := lintJSON(t, path)
	if code != exitFindings || len(result.Skipped) != 0 || len(result.Findings) != 1 ||
		result.Findings[0].Rule != "loss-graph-accumulated" {
		t.Errorf("exit %d, %+v", code, result)
	}
}

// TestLintRefusesDevices: a pipe or a device is not read, because reading it may never end.
func TestLintRefusesDevices(t *testing.T) {
	var out, problems bytes.Buffer
	code := Main(context.Background(), []string{"lint", os.DevNull},
		Streams{Out: &out, Err: &problems})
	if code != exitUsage || !strings.Contains(problems.String(), "not a regular file") {
		t.Errorf("exit %d: %s%s", code, &out, &problems)
	}
}
