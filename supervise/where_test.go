//go:build linux && !race

package supervise_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"memroom/event"
	"memroom/testenv"
)

// TestWhatFilledHostMemory kills programs that fill host memory before their first step, each in
// another way. The line that holds it must be named.
func TestWhatFilledHostMemory(t *testing.T) {
	script := filepath.Join(testenv.Root(t), "supervise", "testdata", "fills.py")
	for way, lines := range marked(t, script) {
		t.Run(way, func(t *testing.T) {
			python := testenv.Python(t, "numpy", "pandas", "torch", "PIL")
			w := newWorkshop(t, ourselves)
			w.oneThread()
			got := w.run("--host-mem", "1200MiB", "--", python, script, way)
			if got.code == 0 {
				t.Fatalf("it got through\n%s\n%s", got.out, got.err)
			}
			summary, err := w.folder().Summary()
			if err != nil {
				t.Fatal(err)
			}
			var found *event.Finding
			for _, f := range summary.Findings {
				if f.Kind == "filled" {
					found = &f
				}
			}
			if found == nil {
				t.Fatalf("no line is named: %+v", summary.Findings)
			}
			if at := fmt.Sprint("fills.py:", lines); len(found.Frames) != 1 ||
				found.Frames[0].Line != lines || !strings.Contains(found.Title, at) {
				t.Errorf("%q, want line %d", found.Title, lines)
			}
			left, _ := filepath.Glob(filepath.Join(w.folder().Dir, "where-*"))
			if len(left) > 0 {
				t.Errorf("files are left: %q", left)
			}
		})
	}
}

// marked returns the line of each function of a script that ends in "# fills".
func marked(t *testing.T, script string) map[string]int {
	t.Helper()
	source, err := os.ReadFile(script)
	if err != nil {
		t.Fatal(err)
	}
	lines, function := map[string]int{}, ""
	for i, line := range strings.Split(string(source), "\n") {
		if m := regexp.MustCompile(`^def (\w+)`).FindStringSubmatch(line); m != nil {
			function = m[1]
		}
		if strings.HasSuffix(line, "# fills") {
			lines[function] = i + 1
		}
	}
	if len(lines) != 16 {
		t.Fatalf("%d ways of filling memory, want 16", len(lines))
	}
	return lines
}

// TestAskingHurtsNobody: a program that has become another one has no handler, and one that closed
// our file may have its own under the same number.
func TestAskingHurtsNobody(t *testing.T) {
	script := filepath.Join(testenv.Root(t), "supervise", "testdata", "fills.py")
	for _, way := range []string{"replaced", "closed"} {
		t.Run(way, func(t *testing.T) {
			python := testenv.Python(t, "numpy")
			w := newWorkshop(t, ourselves)
			got := w.run("--host-mem", "1500MiB", "--", python, script, way, t.TempDir())
			if got.code != 0 || !strings.Contains(got.out, "LEFT 0\n") {
				t.Errorf("exit %d\n%s\n%s", got.code, got.out, got.err)
			}
		})
	}
}
