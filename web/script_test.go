package web

import (
	"strings"
	"testing"
)

func TestScriptHoldsEveryModuleOnceAndNoImport(t *testing.T) {
	script := Script(`modules["snapshot.js"];`, Modules()...)
	for _, name := range Modules() {
		if n := strings.Count(script, "modules[\""+name+"\"] ="); n != 1 {
			t.Errorf("%s is in it %d times", name, n)
		}
	}
	for _, line := range strings.Split(script, "\n") {
		if strings.HasPrefix(line, "import") || strings.HasPrefix(line, "export") {
			t.Errorf("left in: %s", line)
		}
	}
	if strings.Contains(strings.ToLower(script), "</script") {
		t.Error("the script would end in the middle of the page's element")
	}
	if !strings.HasSuffix(script, "modules[\"snapshot.js\"];\n") {
		t.Error("the entry is not last")
	}
}

func TestImportedModulesComeFirst(t *testing.T) {
	script := Script("", "snapshot.js")
	at := func(name string) int { return strings.Index(script, "modules[\""+name+"\"] =") }
	for _, pair := range [][2]string{{"palette.js", "model.js"}, {"model.js", "timeline.js"},
		{"timeline.js", "snapshot.js"}, {"format.js", "tables.js"}} {
		if first, second := at(pair[0]), at(pair[1]); first < 0 || first > second {
			t.Errorf("%s is at %d, %s at %d", pair[0], first, pair[1], second)
		}
	}
}

func TestModulesThatCannotBePutInAreNamed(t *testing.T) {
	files := map[string]string{
		"circle.js":  "import { a } from \"memroom/other.js\";\nexport const b = 1;\n",
		"other.js":   "import { b } from \"memroom/circle.js\";\nexport const a = 1;\n",
		"default.js": "export default 3;\n",
		"star.js":    "import * as x from \"memroom/other.js\";\n",
		"outside.js": "import { x } from \"https://example.com/x.js\";\n",
	}
	for name, say := range map[string]string{"circle.js": "imports itself",
		"default.js": "default.js:1", "star.js": "star.js:1", "outside.js": "outside.js:1"} {
		b := bundle{read: func(name string) string { return files[name] }}
		if err := b.add(name); err == nil || !strings.Contains(err.Error(), say) {
			t.Errorf("%s: %v; want %q", name, err, say)
		}
	}
}
