package cli

import (
	"fmt"
	"os"
	"path/filepath"

	"memroom/event"
	"memroom/meter"
)

// checkCgroup reports the limit that applies to this process and whether a run can get a cgroup of
// its own.
func checkCgroup() []check {
	limit := check{ID: "cgroup", Title: "cgroup limit", Status: statusOK}
	own := check{ID: "cgroup_own", Title: "own cgroup", Status: statusOK}
	group, err := meter.FindCgroup("/proc", "self")
	if err != nil {
		why := "no memory cgroup: " + err.Error()
		limit.Status, limit.Why = statusMissing, why
		own.Status, own.Why, own.Fix = statusMissing, why,
			"memroom enforces --host-mem itself: it checks ten times a second"
		return []check{limit, own}
	}
	reading, err := group.Read()
	if err != nil {
		limit.Status, limit.Why = statusMissing, err.Error()
		limit.Fix = "the root cgroup has no counters; a container or a service has them"
	} else {
		limit.Value = describeLimit(group, reading)
		limit.Data = map[string]any{"version": group.Version, "limit_bytes": reading.Limit,
			"current_bytes": reading.Current, "kills": reading.OOMKill}
		if reading.Limit > 0 && reading.Current > reading.Limit*9/10 {
			limit.Status, limit.Why = statusWarn, "more than 90 % of it is already in use"
		}
	}
	if err := tryOwnCgroup(group); err != nil {
		own.Status, own.Why = statusMissing, err.Error()
		own.Fix = "delegate a subtree (systemd-run --user --scope, or Delegate=yes), or run as root; " +
			"without it memroom enforces --host-mem itself"
	} else {
		own.Value = fmt.Sprintf("can be created below %s (version %d): the kernel enforces a run's limit",
			group.Dir, group.Version)
	}
	return []check{limit, own}
}

func describeLimit(group *meter.Cgroup, reading event.CgroupSample) string {
	if reading.Limit == 0 {
		return fmt.Sprintf("none (version %d), %s in use", group.Version, reading.Current)
	}
	return fmt.Sprintf("%s (version %d), %s in use: a job here can have this much, not the machine's "+
		"whole RAM", reading.Limit, group.Version, reading.Current)
}

// tryOwnCgroup makes a cgroup and removes it: permission bits alone do not tell.
func tryOwnCgroup(group *meter.Cgroup) error {
	dir := filepath.Join(group.Dir, fmt.Sprintf("memroom-doctor-%d", os.Getpid()))
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	defer os.Remove(dir)
	inner := &meter.Cgroup{Dir: dir, Version: group.Version}
	if !inner.HasMemory() {
		return fmt.Errorf("%s: the memory controller is not delegated to sub-groups", group.Dir)
	}
	return nil
}
