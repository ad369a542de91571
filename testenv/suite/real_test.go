package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestRealTestsAreListed: every name of real.txt is a test, and a test that asks for what only
// `make test-real` installs is listed.
func TestRealTestsAreListed(t *testing.T) {
	const root = "../.."
	tests, asking := map[string]bool{}, map[string]bool{}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			return nil // testdata may hold anything
		}
		folder, _ := filepath.Rel(root, filepath.Dir(path))
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || !strings.HasPrefix(f.Name.Name, "Test") {
				continue
			}
			name := "memroom/" + filepath.ToSlash(folder) + " " + f.Name.Name
			tests[name] = true
			if asksForReal(f) {
				asking[name] = true
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]bool{}
	for _, r := range realTests() {
		listed[r.pkg+" "+r.name] = true
		if !tests[r.pkg+" "+r.name] {
			t.Errorf("real.txt lists %s %s, which is no test", r.pkg, r.name)
		}
	}
	for name := range asking {
		if !listed[name] {
			t.Errorf("%s needs what only `make test-real` installs: list it in real.txt", name)
		}
	}
	if len(asking) < 10 {
		t.Errorf("only %d tests were found to ask", len(asking))
	}
}

// asksForReal reports whether a test calls what testenv installs for `make test-real` alone.
func asksForReal(f *ast.FuncDecl) (found bool) {
	ast.Inspect(f, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok {
			x, isName := s.X.(*ast.Ident)
			found = found || isName && x.Name == "testenv" && slices.Contains(
				[]string{"Environment", "Torch", "Postgres"}, s.Sel.Name)
		}
		return !found
	})
	return found
}

// TestChoice: each test runs in exactly one of the two.
func TestChoice(t *testing.T) {
	const pkg = "memroom/central"
	if c := choose(false, pkg, "memroom/event"); c.run != "" ||
		!strings.Contains(c.skip, "^TestTidy$/^postgres$") {
		t.Errorf("make test: %+v", c)
	}
	if c := choose(true, pkg); c.skip != "" || !strings.Contains(c.run, "^TestPostgresGoesAway$|") {
		t.Errorf("make test-real: %+v", c)
	}
	if c := choose(true, "memroom/event"); c.run != "^$" {
		t.Errorf("a package without such tests: %+v", c)
	}
	for name, want := range map[string][2]bool{"TestPostgresGoesAway": {false, true},
		"TestTidy": {true, true}, "TestFullDisk": {true, false}} {
		if got := [2]bool{runs(false, pkg, name), runs(true, pkg, name)}; got != want {
			t.Errorf("%s runs in test, test-real: %v, want %v", name, got, want)
		}
	}
	s := &split{path: pkg, real: true}
	if got := s.pattern("TestTidy"); got != "^TestTidy$/^postgres$" {
		t.Error(got)
	}
}

// TestLeft: a file in the checkout or in the root fails the check, another program's is named.
func TestLeft(t *testing.T) {
	before := map[string]bool{"/tmp/old": true}
	after := map[string]bool{"/tmp/old": true, "/tmp/other": true, "/nonexistent": true,
		"/tmp/memroom-x": true, "checkout: ?? cli/x": true}
	ours, others := left(before, after)
	if len(ours) != 2 || !slices.Equal(others, []string{"/tmp/memroom-x", "/tmp/other"}) {
		t.Errorf("ours %v, others %v", ours, others)
	}
	name := filepath.Join(os.TempDir(), "memroom-left-by-a-test")
	seen := entries()
	if err := os.WriteFile(name, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(name)
	if _, others := left(seen, entries()); !slices.Contains(others, name) {
		t.Errorf("%s was not named: %v", name, others)
	}
}
