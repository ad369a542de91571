package testenv

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestAsk asks a program whose answer counts its runs.
func TestAsk(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		Needs(t, "python3", "not on PATH")
	}
	venv, runs := t.TempDir(), filepath.Join(t.TempDir(), "runs")
	mine := filepath.Join(venv, "bin", "python")
	script := filepath.Join(t.TempDir(), "count.py")
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Dir(mine), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(python, mine); err != nil {
		t.Fatal(err)
	}
	const count = "import os, sys\nopen(os.environ['RUNS'], 'a').write('x')\n" +
		"print(os.path.getsize(os.environ['RUNS']), *sys.argv[2:])\n"
	write(script, count)
	ask := func(env string, args ...string) string {
		t.Helper()
		p := Program{Python: mine, Args: append([]string{script, t.TempDir()}, args...),
			Env: []string{env}, Rest: []string{"RUNS=" + runs}}
		return string(p.MustAsk(t).Out)
	}
	expect := func(got, want, when string) {
		t.Helper()
		if got != want+"\n" {
			t.Errorf("%s: answered %q, want %q", when, got, want)
		}
	}
	expect(ask("A=1"), "1", "no environment of ours")
	expect(ask("A=1"), "2", "no environment of ours, again")
	write(filepath.Join(venv, "complete"), "today")
	expect(ask("A=1"), "3", "the first question")
	expect(ask("A=1"), "3", "the same again, with another folder")
	expect(ask("A=2"), "4", "another variable")
	expect(ask("A=1", "more"), "5 more", "another argument")
	expect(ask("A=1"), "3", "the first again")
	write(filepath.Join(filepath.Dir(script), "imported.py"), "")
	expect(ask("A=1"), "6", "a file beside the script")
	write(script, count+"# changed\n")
	expect(ask("A=1"), "7", "another script")
	write(filepath.Join(venv, "complete"), "tomorrow")
	expect(ask("A=1"), "8", "an environment made anew")
	code, place := t.TempDir(), ""
	write(filepath.Join(code, "module.py"), "")
	write(script, "import os, sys\nopen(os.environ['RUNS'], 'a').write('x')\n"+
		"open(sys.argv[1] + '/said', 'w').write('%d\\n' % os.path.getsize(os.environ['RUNS']))\n")
	folder := func() string {
		t.Helper()
		out := t.TempDir()
		p := Program{Python: mine, Args: []string{script, out}, Rest: []string{"RUNS=" + runs},
			File: out, Code: code, Apart: []string{"other"}}
		got, err := p.AskFolder()
		if err != nil {
			t.Fatal(err)
		}
		place = got
		text, _ := os.ReadFile(filepath.Join(got, "said"))
		return string(text)
	}
	expect(folder(), "9", "a folder")
	expect(folder(), "9", "a folder again")
	if filepath.Dir(place) != filepath.Join(venv, "answers") {
		t.Errorf("the second answer lies in %s", place)
	}
	write(filepath.Join(code, "module.py"), "changed = True\n")
	expect(folder(), "10", "a module that the program imports has changed")
	if err := os.Mkdir(filepath.Join(code, "other"), 0o755); err != nil {
		t.Fatal(err)
	}
	write(filepath.Join(code, "other", "module.py"), "changed = True\n")
	expect(folder(), "10", "one that it does not import has changed")
	linked := t.TempDir()
	write(filepath.Join(linked, "module.py"), "")
	if err := os.Symlink(linked, filepath.Join(code, "linked")); err != nil {
		t.Fatal(err)
	}
	expect(folder(), "11", "a folder was linked")
	write(filepath.Join(linked, "module.py"), "changed = True\n")
	expect(folder(), "12", "a module behind the link has changed")
	write(script, count)
	t.Setenv("MEMROOM_TEST_ASK", "always")
	expect(ask("A=1"), "13", "told to ask")
	write(script, "raise SystemExit(1)")
	if _, err := (Program{Python: mine, Args: []string{script}}).Ask(); err == nil {
		t.Error("a program that failed gave an answer")
	}
}
