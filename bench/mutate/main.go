// Command mutate makes small wrong changes to a package, one at a time, and runs its tests on each:
// a comparison turned or loosened, a number changed, a condition or a sum dropped, min and max or
// true and false exchanged, an order reversed. It prints how many the tests noticed, and which
// they did not. The changes are chosen by a seed, so a run can be repeated. Tests run with -short:
// what needs frameworks or minutes is left out. The tree is not touched; keep it still while this
// runs.
//
//	go run ./bench/mutate -n 20 ./remedy ./store
package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// change is one wrong edit: applied to the parsed file and taken back afterwards.
type change struct {
	file, was, became string
	line              int
	apply, undo       func()
}

func main() {
	n := flag.Int("n", 20, "changes tried in each package")
	seed := flag.Uint64("seed", 1, "which changes: the same seed, the same changes")
	limit := flag.Duration("limit", 10*time.Minute, "a test run that takes longer has noticed")
	burn := flag.Int("cpu", 60, "so has one whose process takes more `seconds` of processor time")
	extra := flag.String("tests", "", "further packages whose tests count, separated by spaces")
	flag.Parse()
	total, noticed := 0, 0
	for _, dir := range flag.Args() {
		t, c, err := mutatePackage(dir, *n, *seed, limits{*limit, *burn}, strings.Fields(*extra))
		if err != nil {
			fmt.Fprintln(os.Stderr, "mutate:", err)
			os.Exit(1)
		}
		fmt.Printf("%-16s %d of %d noticed\n", dir, c, t)
		total, noticed = total+t, noticed+c
	}
	fmt.Printf("all: %d of %d small wrong changes noticed\n", noticed, total)
}

// limits end a test run that a change made endless. A loop takes processor time, also on a machine
// that is busy with other work; the clock ends what waits for ever.
type limits struct {
	clock time.Duration
	cpu   int // seconds
}

func mutatePackage(dir string, n int, seed uint64, limit limits,
	extra []string) (tried, noticed int, err error) {
	fset := token.NewFileSet()
	files, err := sources(fset, dir)
	if err != nil {
		return 0, 0, err
	}
	var all []change
	for path, file := range files {
		all = append(all, changesOf(fset, path, file)...)
	}
	sortChanges(all)
	random := rand.New(rand.NewPCG(seed, 0))
	random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	for _, c := range all {
		if tried == n {
			break
		}
		builds, caught, err := try(fset, files[c.file], c, dir, limit, extra)
		if err != nil {
			return tried, noticed, err
		}
		if !builds {
			continue // the compiler is no test of ours
		}
		tried++
		if caught {
			noticed++
			continue
		}
		fmt.Printf("  not noticed: %s:%d  %s -> %s\n", c.file, c.line, c.was, c.became)
	}
	return tried, noticed, nil
}

// sources parses the files of a package that are built here, tests left out.
func sources(fset *token.FileSet, dir string) (map[string]*ast.File, error) {
	out, err := exec.Command("go", "list", "-f", `{{range .GoFiles}}{{.}} {{end}}`, dir).Output()
	if err != nil {
		return nil, fmt.Errorf("go list %s: %w", dir, err)
	}
	files := map[string]*ast.File{}
	for _, name := range strings.Fields(string(out)) {
		path := filepath.Join(dir, name)
		file, err := parser.ParseFile(fset, path, nil, parser.ParseComments)
		if err != nil {
			return nil, err
		}
		files[path] = file
	}
	return files, nil
}

// try builds the package with the changed file laid over the original and runs the tests. The tree
// itself is not touched.
func try(fset *token.FileSet, file *ast.File, c change, dir string, limit limits,
	extra []string) (builds, caught bool, err error) {
	c.apply()
	var text bytes.Buffer
	err = format.Node(&text, fset, file)
	c.undo()
	if err != nil {
		return false, false, nil
	}
	overlay, done, err := lay(c.file, text.Bytes())
	if err != nil {
		return false, false, err
	}
	defer done()
	ctx, cancel := context.WithTimeout(context.Background(), limit.clock)
	defer cancel()
	args := append([]string{"test", overlay, "-short", "-vet=off", "-failfast", "-count=1",
		fmt.Sprintf(`-exec=sh -c 'ulimit -t %d; exec "$@"' sh`, limit.cpu), dir}, extra...)
	run := exec.CommandContext(ctx, "go", args...)
	// Tests that build the command themselves must get it with the change too.
	run.Env = append(os.Environ(), "GOFLAGS="+strings.TrimSpace(os.Getenv("GOFLAGS")+" "+overlay))
	// Tests that wait for ever must go with the go command, which leaves them behind.
	run.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	run.Cancel = func() error { return syscall.Kill(-run.Process.Pid, syscall.SIGKILL) }
	said, err := run.CombinedOutput()
	return !bytes.Contains(said, []byte("[build failed]")), err != nil, nil
}

// lay returns the flag that makes go read other text in place of a file.
func lay(path string, text []byte) (flag string, done func(), err error) {
	dir, err := os.MkdirTemp("", "memroom-mutate-")
	if err != nil {
		return "", nil, err
	}
	done = func() { _ = os.RemoveAll(dir) }
	full, err := filepath.Abs(path)
	if err != nil {
		return "", done, err
	}
	changed, list := filepath.Join(dir, "changed.go"), filepath.Join(dir, "overlay.json")
	data, err := json.Marshal(map[string]any{"Replace": map[string]string{full: changed}})
	if err == nil {
		err = os.WriteFile(changed, text, 0o600)
	}
	if err == nil {
		err = os.WriteFile(list, data, 0o600)
	}
	return "-overlay=" + list, done, err
}

// turned are the operators and what they are changed into.
var turned = map[token.Token]token.Token{
	token.LSS: token.LEQ, token.LEQ: token.LSS, token.GTR: token.GEQ, token.GEQ: token.GTR,
	token.EQL: token.NEQ, token.NEQ: token.EQL, token.LAND: token.LOR, token.LOR: token.LAND,
	token.ADD: token.SUB, token.SUB: token.ADD, token.MUL: token.QUO, token.QUO: token.MUL,
}

// changesOf lists every change that can be made to a file.
func changesOf(fset *token.FileSet, path string, file *ast.File) []change {
	var found []change
	add := func(at token.Pos, was, became string, apply, undo func()) {
		found = append(found, change{path, was, became, fset.Position(at).Line, apply, undo})
	}
	ast.Inspect(file, func(node ast.Node) bool {
		switch n := node.(type) {
		case *ast.GenDecl:
			return n.Tok != token.IMPORT
		case *ast.BinaryExpr:
			turnOperator(n, add)
		case *ast.BasicLit:
			changeNumber(n, add)
		case *ast.IfStmt:
			dropCondition(n, add)
		case *ast.CallExpr:
			changeCall(n, add)
		case *ast.Ident:
			turnTruth(n, add)
		case *ast.AssignStmt:
			dropSum(n, add)
		}
		return true
	})
	return found
}

type adder func(at token.Pos, was, became string, apply, undo func())

func turnOperator(n *ast.BinaryExpr, add adder) {
	was, became := n.Op, turned[n.Op]
	if became == token.ILLEGAL {
		return
	}
	add(n.OpPos, show(n), show(&ast.BinaryExpr{X: n.X, Op: became, Y: n.Y}),
		func() { n.Op = became }, func() { n.Op = was })
}

func changeNumber(n *ast.BasicLit, add adder) {
	was := n.Value
	became := ""
	switch n.Kind {
	case token.INT:
		if v, err := strconv.ParseInt(was, 0, 64); err == nil {
			became = strconv.FormatInt(v*2+1, 10)
		}
	case token.FLOAT:
		if v, err := strconv.ParseFloat(was, 64); err == nil {
			became = strconv.FormatFloat(v*1.5+0.01, 'g', 6, 64)
		}
	}
	if became != "" {
		add(n.Pos(), was, became, func() { n.Value = became }, func() { n.Value = was })
	}
}

// dropCondition makes an if without else never happen.
func dropCondition(n *ast.IfStmt, add adder) {
	if n.Else != nil || n.Init != nil {
		return
	}
	was := n.Cond
	never := &ast.BinaryExpr{X: &ast.ParenExpr{X: was}, Op: token.LAND, Y: ast.NewIdent("false")}
	add(n.Pos(), "if "+show(was), "never", func() { n.Cond = never }, func() { n.Cond = was })
}

// changeCall takes the smaller for the larger, or sorts the other way round.
func changeCall(n *ast.CallExpr, add adder) {
	was := show(n)
	if name, ok := n.Fun.(*ast.Ident); ok && (name.Name == "min" || name.Name == "max") {
		old := name.Name
		other := map[string]string{"min": "max", "max": "min"}[old]
		add(n.Pos(), was, other, func() { name.Name = other }, func() { name.Name = old })
	}
	if of, ok := n.Fun.(*ast.SelectorExpr); ok && of.Sel.Name == "Compare" && len(n.Args) == 2 {
		swap := func() { n.Args[0], n.Args[1] = n.Args[1], n.Args[0] }
		add(n.Pos(), was, "reversed", swap, swap)
	}
}

func turnTruth(n *ast.Ident, add adder) {
	other := map[string]string{"true": "false", "false": "true"}[n.Name]
	if other == "" {
		return
	}
	was := n.Name
	add(n.Pos(), was, other, func() { n.Name = other }, func() { n.Name = was })
}

// dropSum leaves out what is added or taken away: x += y becomes x += x - x, which builds whatever
// y was.
func dropSum(n *ast.AssignStmt, add adder) {
	if n.Tok != token.ADD_ASSIGN && n.Tok != token.SUB_ASSIGN {
		return
	}
	was := n.Rhs[0]
	nothing := &ast.BinaryExpr{X: n.Lhs[0], Op: token.SUB, Y: n.Lhs[0]}
	add(n.Pos(), show(n), "nothing", func() { n.Rhs[0] = nothing }, func() { n.Rhs[0] = was })
}

// show prints an expression on one line.
func show(node ast.Node) string {
	var text bytes.Buffer
	if err := format.Node(&text, token.NewFileSet(), node); err != nil {
		return "?"
	}
	return strings.Join(strings.Fields(text.String()), " ")
}

// sortChanges makes the order of changes independent of the order of a map.
func sortChanges(all []change) {
	slices.SortStableFunc(all, func(a, b change) int {
		return cmp.Or(cmp.Compare(a.file, b.file), cmp.Compare(a.line, b.line),
			cmp.Compare(a.was, b.was), cmp.Compare(a.became, b.became))
	})
}
