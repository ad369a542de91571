//go:build linux && !race

package supervise_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"memroom/store"
)

// TestHomeIsBytes: a home and arguments that are no UTF-8 stop neither the monitor nor the probe,
// and reach a second attempt unchanged.
func TestHomeIsBytes(t *testing.T) {
	w := newWorkshop(t, ourselves)
	w.home = filepath.Join(w.home, "caf\xe9\xff")
	if err := os.Mkdir(w.home, 0o700); err != nil {
		t.Fatal(err)
	}
	marker := filepath.Join(w.home, "first\xfe")
	program := w.script(`
import os, sys
me = os.fsencode(sys.argv[1])
os.write(1, me + b"|" + os.fsencode(os.environ["ODD"]) + b"\n")
if not os.path.exists(me):
    open(me, "w").close()
    kept = []
    while True:
        kept.append(bytearray(4 << 20))
`)
	cmd := w.memroom(append([]string{"run", "--fit", "--host-mem", "128MiB", "--on-pressure",
		": '\xff' > " + filepath.Join(w.home, "hook\xff"), "--pressure-at", "0.3", "--"},
		append(program, marker)...)...)
	cmd.Env = append(cmd.Env, "ODD=\xff\xfe")
	got := w.finish(cmd)
	line := marker + "|\xff\xfe\n"
	if lines := strings.Count(got.out, line); lines == 0 || strings.Count(got.out, "\n") != lines {
		t.Errorf("out %q, want lines of %q\n%s", got.out, line, got.err)
	} else if lines < 2 {
		t.Errorf("no second attempt: the test tests nothing\n%s", got.err)
	}
	folder := (&store.Store{Home: w.records()}).Folder(w.newestID())
	summary, err := folder.Summary()
	if err != nil || summary.Samples == 0 {
		t.Errorf("the monitor did not report: %+v, %v", summary, err)
	}
	if log, _ := os.ReadFile(folder.Path("monitor.log")); len(log) > 0 {
		t.Errorf("the monitor's log: %s", log)
	}
	said := false
	for h := range folder.Events() {
		said = said || h.Kind == "process"
	}
	if !said {
		t.Error("no probe was heard")
	}
}
