package meter

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"memroom/event"
)

// Cgroup is one memory cgroup. The files of the two versions have other names and meanings; they
// are translated here.
type Cgroup struct {
	Dir     string
	Version int // 1 or 2
}

// noLimit is what version 1 writes for "no limit": the largest page-aligned number. Anything near
// it means none.
const noLimit = event.Bytes(1) << 60

// FindCgroup returns the memory cgroup of a process, from its /proc/PID/cgroup and the mounts in
// /proc/self/mountinfo. On hybrid systems the version that has the memory controller wins.
func FindCgroup(procRoot string, pid string) (*Cgroup, error) {
	membership, err := os.ReadFile(filepath.Join(procRoot, pid, "cgroup"))
	if err != nil {
		return nil, err
	}
	mountinfo, err := os.ReadFile(filepath.Join(procRoot, "self", "mountinfo"))
	if err != nil {
		return nil, err
	}
	mounts := cgroupMounts(string(mountinfo))
	var unified string
	for line := range strings.Lines(string(membership)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		if parts[0] == "0" && parts[1] == "" {
			unified = parts[2]
		}
		for c := range strings.SplitSeq(parts[1], ",") {
			if c == "memory" {
				if m, ok := mounts["memory"]; ok {
					return &Cgroup{Dir: m.path(parts[2]), Version: 1}, nil
				}
			}
		}
	}
	if m, ok := mounts["unified"]; ok && unified != "" {
		return &Cgroup{Dir: m.path(unified), Version: 2}, nil
	}
	return nil, errors.New("no memory cgroup is mounted")
}

// cgroupMount is where a hierarchy is visible: root is the part of the hierarchy that is mounted at
// point.
type cgroupMount struct{ root, point string }

func (m cgroupMount) path(cgroup string) string {
	below, inside := strings.CutPrefix(cgroup, strings.TrimSuffix(m.root, "/"))
	if !inside {
		// our cgroup is outside of what is mounted; the mount's root is the nearest thing to it
		below = "/"
	}
	return filepath.Join(m.point, below)
}

// cgroupMounts finds the mount of the version 1 memory controller and the unified one.
func cgroupMounts(mountinfo string) map[string]cgroupMount {
	found := map[string]cgroupMount{}
	for line := range strings.Lines(mountinfo) {
		before, after, ok := strings.Cut(line, " - ")
		fields, kind := strings.Fields(before), strings.Fields(after)
		if !ok || len(fields) < 5 || len(kind) < 3 {
			continue
		}
		mount := cgroupMount{root: fields[3], point: unescapeMount(fields[4])}
		switch kind[0] {
		case "cgroup2":
			found["unified"] = mount
		case "cgroup":
			for option := range strings.SplitSeq(kind[2], ",") {
				if option == "memory" {
					found["memory"] = mount
				}
			}
		}
	}
	return found
}

var mountEscapes = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

func unescapeMount(s string) string { return mountEscapes.Replace(s) }

// Processes lists the members, of sub-groups too.
func (c *Cgroup) Processes() ([]int, error) {
	data, err := readInto(make([]byte, 4096), filepath.Join(c.Dir, "cgroup.procs"))
	if err != nil {
		return nil, err
	}
	var pids []int
	for field := range strings.FieldsSeq(string(data)) {
		if pid, err := strconv.Atoi(field); err == nil {
			pids = append(pids, pid)
		}
	}
	for _, sub := range c.groupsBelow() {
		more, _ := sub.Processes() // one that went away is no error
		pids = append(pids, more...)
	}
	return pids, nil
}

// groupsBelow returns the sub-groups. A folder's count of links reports whether there are any,
// without listing it.
func (c *Cgroup) groupsBelow() []*Cgroup {
	var st syscall.Stat_t
	if err := syscall.Stat(c.Dir, &st); err != nil || st.Nlink == 2 {
		return nil
	}
	entries, _ := os.ReadDir(c.Dir)
	var groups []*Cgroup
	for _, e := range entries {
		if e.IsDir() {
			groups = append(groups, &Cgroup{Dir: filepath.Join(c.Dir, e.Name()),
				Version: c.Version})
		}
	}
	return groups
}

// HasMemory reports whether the memory controller is on for this cgroup: in version 2 it must be
// delegated. The root cgroup has no accounting of its own.
func (c *Cgroup) HasMemory() bool {
	_, err := os.Stat(filepath.Join(c.Dir, c.file("memory.current", "memory.usage_in_bytes")))
	return err == nil
}

func (c *Cgroup) file(v2, v1 string) string {
	if c.Version == 2 {
		return v2
	}
	return v1
}

func (c *Cgroup) number(v2, v1 string) (event.Bytes, error) {
	name := c.file(v2, v1)
	if name == "" {
		return 0, os.ErrNotExist
	}
	var small [64]byte
	data, err := readInto(small[:], filepath.Join(c.Dir, name))
	if err != nil {
		return 0, err
	}
	text := strings.TrimSpace(string(data))
	if text == "max" {
		return noLimit, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", name, err)
	}
	return event.Bytes(n), nil
}

// table reads a file of "key value" lines.
func (c *Cgroup) table(name string) map[string]int64 {
	data, err := readInto(make([]byte, 4096), filepath.Join(c.Dir, name))
	if err != nil {
		return nil
	}
	values := map[string]int64{}
	for line := range strings.Lines(string(data)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if n, err := strconv.ParseInt(value, 10, 64); err == nil {
			values[key] = n
		}
	}
	return values
}

// Read takes a reading. The numbers that a kernel does not offer stay zero; the error is about the
// usage itself.
func (c *Cgroup) Read() (event.CgroupSample, error) {
	var s event.CgroupSample
	current, err := c.number("memory.current", "memory.usage_in_bytes")
	if err != nil {
		return s, err
	}
	s.Current = current
	s.Peak, _ = c.number("memory.peak", "memory.max_usage_in_bytes")
	var setter string
	if s.Limit, setter = c.limit(); setter != c.Dir {
		s.AtLimit, _ = (&Cgroup{Dir: setter, Version: c.Version}).number("memory.current",
			"memory.usage_in_bytes")
	}
	s.OOM, s.OOMKill = c.OOMCounts()
	stat := c.table("memory.stat")
	if c.Version == 2 {
		s.Anon, s.File = event.Bytes(stat["anon"]), event.Bytes(stat["file"])
		s.Shmem, s.Kernel = event.Bytes(stat["shmem"]), event.Bytes(stat["kernel"])
		s.Swap, _ = c.number("memory.swap.current", "")
	} else {
		s.Anon, s.File = event.Bytes(stat["total_rss"]), event.Bytes(stat["total_cache"])
		s.Shmem, s.Swap = event.Bytes(stat["total_shmem"]), event.Bytes(stat["total_swap"])
	}
	if data, err := os.ReadFile(filepath.Join(c.Dir, "memory.pressure")); err == nil {
		s.PressureSome, s.PressureFull = parsePressure(string(data))
	}
	return s, nil
}

// Quick reads only what the soft spots of a run change within a second: usage and kills.
func (c *Cgroup) Quick() (current event.Bytes, kills int64, err error) {
	current, err = c.number("memory.current", "memory.usage_in_bytes")
	_, kills = c.OOMCounts()
	return current, kills, err
}

// OOMCounts returns how often the limit was hit with nothing left to reclaim, and how many
// processes were killed for it, sub-groups included.
func (c *Cgroup) OOMCounts() (oom, kills int64) {
	if c.Version == 2 {
		events := c.table("memory.events")
		return events["oom"], events["oom_kill"]
	}
	kills = c.table("memory.oom_control")["oom_kill"] // not hierarchical in version 1
	for _, sub := range c.groupsBelow() {
		_, k := sub.OOMCounts()
		kills += k
	}
	return kills, kills
}

// Limit is the lowest limit that applies, of this cgroup or one around it; 0 when there is none.
func (c *Cgroup) Limit() event.Bytes {
	lowest, _ := c.limit()
	return lowest
}

// limit returns the lowest limit and the cgroup that sets it; the innermost of equal ones, and this
// one when there is none.
func (c *Cgroup) limit() (lowest event.Bytes, setter string) {
	setter = c.Dir
	for dir := c.Dir; len(dir) > 1; dir = filepath.Dir(dir) {
		level := &Cgroup{Dir: dir, Version: c.Version}
		for _, names := range [][2]string{{"memory.max", "memory.limit_in_bytes"},
			{"memory.high", ""}} {
			limit, err := level.number(names[0], names[1])
			if err == nil && limit < noLimit && (lowest == 0 || limit < lowest) {
				lowest, setter = limit, dir
			}
		}
		if _, err := os.Stat(filepath.Join(dir, "cgroup.procs")); err != nil {
			break
		}
	}
	return lowest, setter
}
