package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"memroom/event"
	"memroom/meter"
	"memroom/testenv"
)

// TestDoctorReportsTheContainersLimit puts doctor into a real cgroup with a limit: it must report
// that limit, not the machine's memory.
func TestDoctorReportsTheContainersLimit(t *testing.T) {
	group, err := meter.FindCgroup("/proc", "self")
	if err != nil {
		testenv.Needs(t, "a memory cgroup", err.Error())
	}
	dir := filepath.Join(group.Dir, fmt.Sprintf("memroom-test-%d", os.Getpid()))
	if err := os.Mkdir(dir, 0o755); err != nil {
		testenv.Needs(t, "the right to make a cgroup", err.Error())
	}
	t.Cleanup(func() { os.Remove(dir) })
	const limit = 512 * event.MiB
	name := map[int]string{1: "memory.limit_in_bytes", 2: "memory.max"}[group.Version]
	if err := os.WriteFile(filepath.Join(dir, name), []byte(strconv.FormatInt(int64(limit), 10)),
		0); err != nil {
		testenv.Needs(t, "a cgroup with the memory controller", err.Error())
	}
	out, err := exec.Command("sh", "-c", `echo $$ > "$0/cgroup.procs" && exec "$1" doctor --quick --json`, dir, testenv.Binary(t)).Output()
	if err != nil {
		t.Fatal(err)
	}
	var answer diagnosis
	if err := json.Unmarshal(out, &answer); err != nil {
		t.Fatal(err)
	}
	for _, c := range answer.Checks {
		if c.ID == "cgroup" {
			if got := c.Data.(map[string]any)["limit_bytes"]; got != float64(limit) {
				t.Errorf("reported %v, want %d", got, limit)
			}
			return
		}
	}
	t.Error("no check of the cgroup")
}
