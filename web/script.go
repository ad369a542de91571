package web

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// The forms of import and export that the modules may use. Script knows only these.
var (
	importLine = regexp.MustCompile(`^import \{ ([\w, ]+) \} from "memroom/(\w+\.js)";$`)
	exportLine = regexp.MustCompile(`^export ((?:async )?function|class|const) (\w+)`)
)

// Script returns the named modules, and those they import, as the text of one script that needs no
// imports: each module is a function that returns what it exports. A page that carries its scripts
// inside can then name this one by its hash, and its content security policy need allow no address
// at all. entry is code that runs last; it takes exports as modules["NAME.js"].
//
// It panics on a module that it cannot put in: they are compiled in, so any test shows that.
func Script(entry string, names ...string) string {
	b := bundle{read: Text}
	for _, name := range names {
		if err := b.add(name); err != nil {
			panic(err)
		}
	}
	return "const modules = {};\n" + b.out.String() + entry + "\n"
}

// bundle puts modules one behind the other, those that are imported first.
type bundle struct {
	read    func(name string) string
	out     strings.Builder
	done    []string
	pending []string // being added: an import of one of them goes round in a circle
}

func (b *bundle) add(name string) error {
	if slices.Contains(b.done, name) {
		return nil
	}
	if slices.Contains(b.pending, name) {
		return fmt.Errorf("%s imports itself, by way of %s", name, strings.Join(b.pending, ", "))
	}
	b.pending = append(b.pending, name)
	var body strings.Builder
	var exports []string
	for i, line := range strings.Split(strings.TrimSuffix(b.read(name), "\n"), "\n") {
		if m := importLine.FindStringSubmatch(line); m != nil {
			if err := b.add(m[2]); err != nil {
				return err
			}
			line = fmt.Sprintf("const { %s } = modules[%q];", m[1], m[2])
		} else if m := exportLine.FindStringSubmatch(line); m != nil {
			exports = append(exports, m[2])
			line = strings.TrimPrefix(line, "export ")
		} else if strings.HasPrefix(line, "import") || strings.HasPrefix(line, "export") {
			return fmt.Errorf("%s:%d: this form of import or export is not known: %s", name, i+1,
				line)
		}
		body.WriteString(line + "\n")
	}
	b.pending = b.pending[:len(b.pending)-1]
	b.done = append(b.done, name)
	fmt.Fprintf(&b.out, "modules[%q] = (() => {\n%sreturn { %s };\n})();\n", name, body.String(),
		strings.Join(exports, ", "))
	return nil
}
