package local

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"memroom/event"
	"memroom/meter"
)

// TestHeldOnVersionTwo: page cache fills memory.current up to memory.high and hinders nobody; what
// cannot be dropped does.
func TestHeldOnVersionTwo(t *testing.T) {
	const limit = 1024 << 20
	high := highOf(limit)
	for name, c := range map[string]struct {
		current, anon, shmem, active, inactive, dirty, slab event.Bytes
		want                                                bool
	}{
		"a large file was read": {current: high, anon: 120 * event.MiB, active: 300 * event.MiB,
			inactive: 560 * event.MiB},
		"cache beyond it, for a moment": {current: high + 3*event.MiB, anon: 300 * event.MiB,
			active: 200 * event.MiB, inactive: 480 * event.MiB},
		"it holds all it may": {current: high + 2*event.MiB, anon: 985 * event.MiB,
			inactive: 4 * event.MiB, want: true},
		"half is shared memory": {current: high, anon: 480 * event.MiB, shmem: 500 * event.MiB,
			inactive: 8 * event.MiB, want: true},
		"a file that is being written": {current: high, anon: 500 * event.MiB,
			inactive: 480 * event.MiB, dirty: 470 * event.MiB, want: true},
		"file handles and names": {current: high, anon: 100 * event.MiB, slab: 850 * event.MiB,
			inactive: 30 * event.MiB},
		"in the middle": {current: 600 * event.MiB, anon: 580 * event.MiB},
	} {
		dir := t.TempDir()
		g := &meter.Cgroup{Dir: dir, Version: 2}
		files := map[string]event.Bytes{"memory.high": high, "memory.current": c.current}
		for file, value := range files {
			if err := write(g, file, value); err != nil {
				_ = os.WriteFile(filepath.Join(dir, file), nil, 0o600)
				if err := write(g, file, value); err != nil {
					t.Fatal(err)
				}
			}
		}
		text := ""
		for key, value := range map[string]event.Bytes{"anon": c.anon, "shmem": c.shmem,
			"file": c.active + c.inactive + c.shmem, "active_file": c.active,
			"inactive_file": c.inactive, "file_dirty": c.dirty, "slab_reclaimable": c.slab,
			"slab_unreclaimable": 2 * event.MiB, "kernel_stack": event.MiB, "pgfault": 12345} {
			text += key + " " + strconv.FormatInt(int64(value), 10) + "\n"
		}
		if err := os.WriteFile(filepath.Join(dir, "memory.stat"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := held(g); got != c.want {
			t.Errorf("%s: held %v, want %v", name, got, c.want)
		}
	}
}
