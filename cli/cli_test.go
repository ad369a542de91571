package cli

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/rogpeppe/go-internal/testscript"

	"memroom/testenv"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"memroom": func() {
			os.Exit(Main(context.Background(), os.Args[1:], Streams{In: os.Stdin, Out: os.Stdout,
				Err: os.Stderr}))
		},
	})
}

// TestScripts runs testdata/script/*.txtar: command lines with what they print and how they exit.
// Files of testdata are at hand as $DATA.
func TestScripts(t *testing.T) {
	data, err := filepath.Abs("testdata")
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		Setup: func(env *testscript.Env) error {
			env.Setenv("DATA", data)
			env.Setenv("MEMROOM_HOME", filepath.Join(env.WorkDir, "home"))
			env.Setenv("XDG_CACHE_HOME", filepath.Join(env.WorkDir, "cache"))
			if python := os.Getenv("MEMROOM_TEST_PYTHON"); python != "" {
				env.Setenv("PATH",
					filepath.Dir(python)+string(os.PathListSeparator)+env.Getenv("PATH"))
			}
			return nil
		},
	})
}

// TestHelpExamples executes what --help shows. An example may name files of examples/, as they are
// found from the root of a clone.
func TestHelpExamples(t *testing.T) {
	binary := testenv.Binary(t)
	eachCommand(t, func(name string, target any) {
		shown, ok := target.(exampler)
		if !ok {
			t.Errorf("memroom %s --help shows no example", name)
			return
		}
		for _, e := range shown.examples() {
			t.Run(e.line, func(t *testing.T) { runExample(t, binary, e) })
		}
	})
}

// eachCommand calls f with every visible leaf command, such as "plan" or "tune resume".
func eachCommand(t *testing.T, f func(name string, target any)) {
	t.Helper()
	parser, err := kong.New(&root{})
	if err != nil {
		t.Fatal(err)
	}
	for _, node := range parser.Model.Leaves(true) {
		_, name, _ := strings.Cut(node.FullPath(), " ") // without the program's own
		f(name, node.Target.Addr().Interface())
	}
}

func runExample(t *testing.T, binary string, e example) {
	t.Helper()
	dir := t.TempDir()
	if err := os.Symlink(filepath.Join(testenv.Root(t), "examples"),
		filepath.Join(dir, "examples")); err != nil {
		t.Fatal(err)
	}
	path := filepath.Dir(binary) + string(os.PathListSeparator) + os.Getenv("PATH")
	if python := os.Getenv("MEMROOM_TEST_PYTHON"); python != "" {
		path = filepath.Dir(python) + string(os.PathListSeparator) + path
	}
	cmd := exec.Command("bash", "-c", e.line)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "MEMROOM_HOME="+filepath.Join(dir, "home"), "PATH="+path)
	out, err := cmd.CombinedOutput()
	if code := cmd.ProcessState.ExitCode(); code != e.code {
		t.Errorf("exit %d (%v), want %d\n%s", code, err, e.code, out)
	}
}

func TestEveryCommandHasJSON(t *testing.T) {
	// These print something that is not a report: a script for a shell, a child's own output, a
	// live picture.
	without := map[string]bool{"completion": true, "attach": true, "top": true}
	eachCommand(t, func(name string, target any) {
		if _, ok := reflect.Indirect(reflect.ValueOf(target)).Type().FieldByName("JSON"); !ok &&
			!without[name] {
			t.Errorf("memroom %s has no --json", name)
		}
	})
}

func TestCompletionScriptsAreValid(t *testing.T) {
	for _, shell := range []string{"bash", "zsh"} {
		var out, problems bytes.Buffer
		if code := Main(context.Background(), []string{"completion", shell},
			Streams{Out: &out, Err: &problems}); code != 0 {
			t.Fatalf("%s: exit %d: %s", shell, code, &problems)
		}
		check := exec.Command("bash", "-c",
			out.String()+"\nCOMP_WORDS=(memroom doc) COMP_CWORD=1; _memroom; echo \"${COMPREPLY[*]}\"\n"+
				"COMP_WORDS=(memroom doctor --js) COMP_CWORD=2; _memroom; echo \"${COMPREPLY[*]}\"")
		if shell == "zsh" {
			check = exec.Command("bash", "-n", "-c", out.String())
		}
		got, err := check.CombinedOutput()
		if err != nil {
			t.Errorf("%s does not accept its script: %v\n%s", shell, err, got)
		}
		if shell == "bash" && strings.TrimSpace(string(got)) != "doctor\n--json" {
			t.Errorf("completes to %q", got)
		}
	}
}
