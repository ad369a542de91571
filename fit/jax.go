package fit

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// InScript adds the lines of the script to what helps where remedies do not reach into a program:
// each with what to write there. helps: of Tried.Foreign.
func InScript(helps, path string, source []byte) string {
	lines := jaxLines(filepath.Base(path), string(source))
	if helps == "" || len(lines) == 0 {
		return helps
	}
	return helps + ". In this script: " + strings.Join(lines, "; ")
}

// jaxLines are the places of a JAX script that keep more than they must.
func jaxLines(name, source string) []string {
	s := readScript(source)
	var found []string
	for _, place := range slices.Concat(s.undonated(), s.unrepeated()) {
		found = append(found, fmt.Sprintf("%s:%d: %s", name, place.line, place.words))
	}
	return found
}

// place is a line, counted from 1, and what to write there.
type place struct {
	line  int
	words string
}

// script is Python's text as far as it is understood here: lines without comments, and functions.
type script struct {
	lines     []string
	functions []function
}

// function is one def: its lines from first, up to end, without its decorators, which begin at
// decorated. Lines are counted from 0.
type function struct {
	name                  string
	parameters            []string
	decorated, first, end int
}

var (
	defLine    = regexp.MustCompile(`^(\s*)(?:async\s+)?def\s+(\w+)\s*\(`)
	jitOfName  = regexp.MustCompile(`\bjit\(\s*(\w+)`)
	jitInWords = regexp.MustCompile(`\bp?jit\b`)
	gradOf     = regexp.MustCompile(`\b(?:value_and_grad|grad|vjp)\(\s*([\w.]+)`)
	updates    = regexp.MustCompile(`^[\w.]*(?:apply_updates|tree\.map|tree_map)\(`)
	scanOf     = regexp.MustCompile(`\bscan\(\s*(\w+)\s*,`)
	callOfOne  = regexp.MustCompile(`^\s+(\w+)\s*=\s*([A-Za-z_][\w.]*)\((.*)\)\s*$`)
	layerOnOne = regexp.MustCompile(`^\s+(\w+)\s*=\s*(\w+)\(.*\)\((\w+).*\)\s*$`)
	repeats    = regexp.MustCompile(`\b(?:jax\.|nn\.|ad_)?(?:checkpoint|remat)\(|\bremat\b`)
	libraries  = regexp.MustCompile(`^(?:jnp|jax|np|numpy|lax|nn)\.`)
)

func readScript(source string) script {
	s := script{lines: strings.Split(source, "\n")}
	for i, line := range s.lines {
		code, _, _ := strings.Cut(line, "#")
		s.lines[i] = strings.TrimRight(code, " \t\r")
	}
	for i, line := range s.lines {
		if m := defLine.FindStringSubmatch(line); m != nil {
			s.functions = append(s.functions, s.function(i, m[2], len(m[1])))
		}
	}
	return s
}

// function reads the def at a line.
func (s script) function(at int, name string, indent int) function {
	f := function{name: name, first: at, decorated: at, end: len(s.lines)}
	for f.decorated > 0 && strings.HasPrefix(strings.TrimSpace(s.lines[f.decorated-1]), "@") {
		f.decorated--
	}
	text := s.statement(at)
	_, inside, _ := strings.Cut(text, "(")
	for _, p := range outside(inside) {
		p, _, _ = strings.Cut(p, ":")
		p, _, _ = strings.Cut(p, "=")
		f.parameters = append(f.parameters, strings.TrimSpace(p))
	}
	for i := at + strings.Count(text, "\n") + 1; i < len(s.lines); i++ {
		line := s.lines[i]
		if strings.TrimSpace(line) != "" && indentOf(line) <= indent {
			f.end = i
			break
		}
	}
	return f
}

// statement is the text from a line on until its brackets are closed.
func (s script) statement(at int) string {
	depth := 0
	for i := at; i < len(s.lines); i++ {
		depth += strings.Count(s.lines[i], "(") + strings.Count(s.lines[i], "[")
		depth -= strings.Count(s.lines[i], ")") + strings.Count(s.lines[i], "]")
		if depth <= 0 {
			return strings.Join(s.lines[at:i+1], "\n")
		}
	}
	return strings.Join(s.lines[at:], "\n")
}

// outside splits at the commas that stand in no brackets, up to a bracket that was open before.
func outside(text string) []string {
	var parts []string
	depth, from := 0, 0
	for i, r := range text {
		switch {
		case strings.ContainsRune("([{", r):
			depth++
		case strings.ContainsRune(")]}", r) && depth == 0:
			return append(parts, text[from:i])
		case strings.ContainsRune(")]}", r):
			depth--
		case r == ',' && depth == 0:
			parts, from = append(parts, text[from:i]), i+1
		}
	}
	return append(parts, text[from:])
}

func indentOf(line string) int { return len(line) - len(strings.TrimLeft(line, " \t")) }

// undonated are compiled steps that give back what they were given, changed, and keep both.
func (s script) undonated() []place {
	var found []place
	for _, f := range s.functions {
		at, how := s.jitted(f)
		replaced := s.replaced(f)
		if at < 0 || strings.Contains(how, "donate_arg") || len(replaced) == 0 {
			continue
		}
		var numbers, names []string
		for _, i := range replaced {
			numbers, names = append(numbers, fmt.Sprint(i)), append(names, f.parameters[i])
		}
		if len(numbers) == 1 {
			numbers[0] += ","
		}
		found = append(found, place{at + 1, fmt.Sprintf(
			"jax.jit(%s, donate_argnums=(%s)), so that the new %s take the place of the old",
			f.name, strings.Join(numbers, ", "), strings.Join(names, ", "))})
	}
	return found
}

// jitted is the line that compiles a function, with its text; -1 where none does.
func (s script) jitted(f function) (int, string) {
	if above := strings.Join(s.lines[f.decorated:f.first], "\n"); jitInWords.MatchString(above) {
		return f.decorated, above
	}
	for i, line := range s.lines {
		if m := jitOfName.FindStringSubmatch(line); m != nil && m[1] == f.name {
			return i, s.statement(i)
		}
	}
	return -1, ""
}

// replaced are the numbers of the parameters that a function returns under the same name, or with
// "new" before or behind it.
func (s script) replaced(f function) []int {
	var found []int
	for i := f.end - 1; i > f.first; i-- {
		line := strings.TrimSpace(s.lines[i])
		if !strings.HasPrefix(line, "return ") {
			continue
		}
		text := strings.TrimSpace(strings.TrimPrefix(s.statement(i)[indentOf(s.lines[i]):], "return "))
		if strings.HasPrefix(text, "(") && strings.HasSuffix(text, ")") {
			text = text[1 : len(text)-1]
		}
		for _, given := range outside(text) {
			if at := f.replacedBy(strings.TrimSpace(given)); at >= 0 && !slices.Contains(found, at) {
				found = append(found, at)
			}
		}
		break
	}
	slices.Sort(found)
	return found
}

// replacedBy is the number of the parameter in whose place a result comes; -1 where it is none's.
func (f function) replacedBy(result string) int {
	name := strings.TrimSuffix(strings.TrimPrefix(result, "new_"), "_new")
	if at := slices.Index(f.parameters, name); at >= 0 || !updates.MatchString(result) {
		return at
	}
	return slices.IndexFunc(f.parameters, func(p string) bool {
		return p != "" && regexp.MustCompile(`\b`+regexp.QuoteMeta(p)+`\b`).MatchString(result)
	})
}

// unrepeated are the calls of blocks whose results are all kept for the backward pass.
func (s script) unrepeated() []place {
	if repeats.MatchString(strings.Join(s.lines, "\n")) {
		return nil
	}
	for _, name := range s.differentiated() {
		for _, f := range s.reached(name) {
			if found, ok := s.block(f); ok {
				return []place{found}
			}
		}
	}
	return nil
}

// differentiated are the names of functions whose gradient is taken.
func (s script) differentiated() []string {
	var names []string
	for _, line := range s.lines {
		for _, m := range gradOf.FindAllStringSubmatch(line, -1) {
			names = append(names, m[1])
		}
	}
	return names
}

// reached are the functions with a name, then those that they call by name, and the calls of
// layers, which are reached in other ways.
func (s script) reached(name string) []function {
	var own, called, layers []function
	for _, f := range s.functions {
		if f.name == name {
			own = append(own, f)
		}
	}
	for _, f := range s.functions {
		for _, from := range own {
			text := strings.Join(s.lines[from.first+1:from.end], "\n")
			if f.name != name && regexp.MustCompile(`\b`+f.name+`\(`).MatchString(text) {
				called = append(called, f)
			}
		}
		if f.name == "__call__" {
			layers = append(layers, f)
		}
	}
	return slices.Concat(own, called, layers)
}

// block is the first call of a block in a loop, or the body of a scan.
func (s script) block(f function) (place, bool) {
	loop := -1
	for i := f.first + 1; i < f.end; i++ {
		line := s.lines[i]
		if m := scanOf.FindStringSubmatch(line); m != nil {
			return place{i + 1, fmt.Sprintf("scan(jax.checkpoint(%s), ...), so that only what goes "+
				"from one round to the next is kept", m[1])}, true
		}
		if loop >= 0 && strings.TrimSpace(line) != "" && indentOf(line) <= loop {
			loop = -1
		}
		if strings.HasPrefix(strings.TrimSpace(line), "for ") {
			loop = indentOf(line)
			continue
		}
		if loop < 0 {
			continue
		}
		if m := layerOnOne.FindStringSubmatch(line); m != nil && m[1] == m[3] {
			return place{i + 1, fmt.Sprintf("nn.remat(%s)(...)(%s), %s", m[2], m[1], onlyBetween)}, true
		}
		if m := callOfOne.FindStringSubmatch(line); m != nil && !libraries.MatchString(m[2]) &&
			regexp.MustCompile(`\b`+m[1]+`\b`).MatchString(m[3]) {
			return place{i + 1, fmt.Sprintf("%s = jax.checkpoint(%s)(%s), %s", m[1], m[2], m[3],
				onlyBetween)}, true
		}
	}
	return place{}, false
}

const onlyBetween = "so that only what goes from one block to the next is kept"
