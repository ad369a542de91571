package supervise

import (
	"testing"

	"memroom/testenv"
)

// TestRunsOfOneNameShareNoCgroup: IDs are times, and two runs with homes of their own may have the
// same one. Whoever clears up after an attempt ends every process of its cgroup.
func TestRunsOfOneNameShareNoCgroup(t *testing.T) {
	first, notes := makeRoom("test-of-one-name", 0)
	if first.group == nil {
		testenv.Needs(t, "cgroup", notes[0])
	}
	defer removeCgroup(first.group.Dir)
	second, _ := makeRoom("test-of-one-name", 0)
	if second.group == nil {
		t.Fatal("the second run has no cgroup")
	}
	defer removeCgroup(second.group.Dir)
	if first.group.Dir == second.group.Dir {
		t.Errorf("both are in %s", first.group.Dir)
	}
}
