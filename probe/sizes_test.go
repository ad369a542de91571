package probe

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"memroom/event"
	"memroom/testenv"
)

// TestSizesInPython: a size reads the same whether the probe writes it or the rest of memroom.
func TestSizesInPython(t *testing.T) {
	python := testenv.Python(t, "torch")
	sizes := []event.Bytes{0, 1, -1, 1023, 1024, -1024, 1536, event.MiB - 1, event.GiB - 1,
		-256 * event.MiB, 3 * event.GiB / 2, 1000 * event.KiB, 5 * event.TiB, 1234567890123}
	var list, want []string
	for _, s := range sizes {
		list, want = append(list, fmt.Sprint(int64(s))), append(want, s.String())
	}
	const script = `import sys
sys.path.insert(0, sys.argv[1])
from _memroom_probe.fit.memory import room
print(" ".join(room.words(int(n)) for n in sys.argv[2:]))`
	args := append([]string{"-B", "-c", script, filepath.Join(testenv.Root(t), "probe", "py")},
		list...)
	out, err := exec.Command(python, args...).CombinedOutput()
	if got := strings.TrimSpace(string(out)); err != nil || got != strings.Join(want, " ") {
		t.Errorf("Python writes\n%s\nwant\n%s (%v)", got, strings.Join(want, " "), err)
	}
}
