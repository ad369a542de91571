package serve

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"memroom/event"
	"memroom/testenv"
)

// TestServerMakesRoomInItsCgroup fills the cgroup of a real server until there would be no room for
// both. The server frees memory, and no process is killed.
func TestServerMakesRoomInItsCgroup(t *testing.T) {
	const limit, budget, wanted = 176 << 20, 160 << 20, 110 << 20
	group := filepath.Join("/sys/fs/cgroup/memory", fmt.Sprintf("memroom-squeeze-%d", os.Getpid()))
	if err := os.Mkdir(group, 0o755); err != nil {
		t.Skipf("SKIPPED: no memory cgroup (version 1) can be made here (%v): a server that gives "+
			"way is not tested in one", err)
	}
	t.Cleanup(func() {
		eventually(t, group+" is removed", func() bool { return os.Remove(group) == nil })
	})
	limitFile := filepath.Join(group, "memory.limit_in_bytes")
	if err := os.WriteFile(limitFile, fmt.Append(nil, limit), 0o644); err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	path, socket := filepath.Join(folder, "a.npy"), filepath.Join(folder, "s")
	writeRows(t, path, 3<<20) // 192 MiB
	inside := func(command ...string) *exec.Cmd {
		cmd := exec.Command("sh", append([]string{"-c", `echo $$ > "$0" && exec "$@"`,
			filepath.Join(group, "cgroup.procs")}, command...)...)
		cmd.Env = append(os.Environ(), "XDG_CACHE_HOME="+folder)
		t.Cleanup(func() {
			if cmd.Process != nil {
				_ = cmd.Process.Kill()
				_ = cmd.Wait()
			}
		})
		return cmd
	}
	server := inside(testenv.Binary(t), "feed", "serve", path, "--budget", "160MiB", "--socket",
		socket)
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the server listens", func() bool { // its file is there a moment earlier
		c, err := net.Dial("unix", socket)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	// The neighbour takes what it wants in steps of 2 MiB, and prints a line when it has it. It is
	// slow compared with the checks of the server (four a second), and near the limit it waits for
	// the server, up to a minute.
	neighbour := inside("python3", "-c", fmt.Sprintf(`
import time
held = []
def used():
    table = dict(line.split() for line in open("%s/memory.stat"))
    return int(table["total_rss"]) + int(table.get("total_shmem", 0))
for _ in range(%d >> 21):
    for _ in range(1200):
        if used() < %d: break
        time.sleep(0.05)
    held.append(b"x" * (2 << 20))
    time.sleep(0.05)
print("done", flush=True)
input()`, group, wanted, limit-(8<<20)))
	out, err := neighbour.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if _, err = neighbour.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	said := ""
	sum, report := readEpoch(t, socket, 32<<20, func(batch uint64) {
		if batch != 2000 { // by then the server holds what it may
			return
		}
		if err := neighbour.Start(); err != nil {
			t.Fatal(err)
		}
		line := make([]byte, 5)
		_, _ = io.ReadFull(out, line) // an end without a word is a kill
		said = strings.TrimSpace(string(line))
	})
	if said != "done" {
		t.Errorf("the neighbour was killed at the limit: the server did not give way")
	}
	if report.ShrunkTo == 0 || report.ShrunkTo > 100<<20 ||
		!strings.Contains(report.ShrunkBy, "cgroup") {
		t.Errorf("the server went from %s to %s (%s)", event.Bytes(budget), report.ShrunkTo,
			report.ShrunkBy)
	}
	if report.Peak+wanted <= limit {
		t.Errorf("the server took %s at most: beside %s that fits into %s, and nothing was tested",
			report.Peak, event.Bytes(wanted), event.Bytes(limit))
	}
	again, _ := readEpoch(t, socket, 32<<20, func(uint64) {})
	if again != sum {
		t.Error("the rows of the second pass came in another order")
	}
}
