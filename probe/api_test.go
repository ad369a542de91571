package probe

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"memroom/testenv"
)

// TestExplicitAPI uses the pip package as a program would: with a run around it, and without.
func TestExplicitAPI(t *testing.T) {
	const program = `import memroom
print(memroom.active(), memroom.report(step=3, loss=0.5, accuracy=1))
with memroom.phase("export"):
    pass
try: memroom.report(loss="low")
except ValueError: print("refused")
`
	python := testenv.Python(t)
	path := "PYTHONPATH=" + filepath.Join(testenv.Root(t), "python")
	j := runJob(t, python, Setup{}, []string{path}, "-c", program)
	if j.failed != nil || j.out != "True True\nrefused\n" {
		t.Fatalf("%v, %q, %s", j.failed, j.out, j.err)
	}
	if r := messages[*Report](t, j); len(r) != 1 || r[0].Step != 3 || *r[0].Values["loss"] != 0.5 ||
		*r[0].Values["accuracy"] != 1 {
		t.Errorf("reports %+v", r)
	}
	if p := messages[*Phase](t, j); len(p) != 2 || p[0].Phase != "export" || !p[0].Begin ||
		p[1].Begin {
		t.Errorf("phases %+v", p)
	}
	cmd := exec.Command(python, "-c", program)
	cmd.Env = append(os.Environ(), path)
	if out, err := cmd.CombinedOutput(); err != nil || string(out) != "False False\nrefused\n" {
		t.Errorf("without memroom: %v, %s", err, out)
	}
}
