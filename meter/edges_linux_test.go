package meter

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"memroom/event"
)

// TestNothingBesideAnError: who drops an error gets zeros, not a guess.
func TestNothingBesideAnError(t *testing.T) {
	p := NewProc(tree(t, map[string]string{"vmstat": "nr_free_pages 1\n"}))
	if n, err := p.OOMKills(); err == nil || n != 0 {
		t.Errorf("vmstat without the line: %d %v", n, err)
	}
	p = NewProc(t.TempDir())
	if n, err := p.OOMKills(); err == nil || n != 0 {
		t.Errorf("no vmstat: %d %v", n, err)
	}
	if some, full, err := p.Pressure(); err == nil || some != 0 || full != 0 {
		t.Errorf("no pressure: %v %v %v", some, full, err)
	}
	if m, err := p.Machine(); err == nil || m != (event.MachineSample{}) {
		t.Errorf("no meminfo: %+v %v", m, err)
	}
	if total, used, err := SharedMemory("/nowhere"); err == nil || total != 0 || used != 0 {
		t.Errorf("no tmpfs: %d %d %v", total, used, err)
	}
	if env, err := p.Environ(1); err == nil || env != nil {
		t.Errorf("no process: %v %v", env, err)
	}
	if words, err := p.CommandLine(1); err == nil || words != nil {
		t.Errorf("no process: %v %v", words, err)
	}
}

// TestWhatAProcessWasStartedWith: values keep their equal signs, arguments their spaces.
func TestWhatAProcessWasStartedWith(t *testing.T) {
	p := NewProc(tree(t, map[string]string{"5/environ": "A=1\x00B=x=y\x00broken\x00C=\x00",
		"5/cmdline": "python\x00a b\x00\x00-x\x00"}))
	env, err := p.Environ(5)
	want := map[string]string{"A": "1", "B": "x=y", "C": ""}
	if diff := cmp.Diff(want, env); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
	words, err := p.CommandLine(5)
	if err != nil || !slices.Equal(words, []string{"python", "a b", "", "-x"}) {
		t.Errorf("%q %v", words, err)
	}
	words, err = NewProc("/proc").CommandLine(os.Getpid())
	if err != nil || !slices.Equal(words, os.Args) {
		t.Errorf("of this process: %q %v", words, err)
	}
}

// TestKernelRecordsOfEveryForm: three fields are enough, two are not.
func TestKernelRecordsOfEveryForm(t *testing.T) {
	const text = "Killed process 7 (python)"
	for head, ok := range map[string]bool{"3,1,2": true, "3,1,2,-": true, "3,1,2,c,caller=T1": true,
		"3,1": false, "3": false, "3,1,": false} {
		kill, got := parseKernelRecord(head + ";" + text + "\n SUB=x\n")
		if got != ok || ok && (kill.PID != 7 || kill.At != 2*time.Microsecond || kill.Line != text) {
			t.Errorf("%s: %+v %v", head, kill, got)
		}
	}
	if _, ok := parseKernelRecord("3,1,2,-" + text); ok {
		t.Error("a record without its text was taken")
	}
	if _, ok := parseKernelRecord("3,1,2,-;Killed process 99999999999999999999 (x)"); ok {
		t.Error("an impossible process was taken")
	}
}

// TestKernelLogOfThisMachine: it is read or the reason is said; nothing was killed in the future.
func TestKernelLogOfThisMachine(t *testing.T) {
	kills, err := KernelOOMKills(1000000 * time.Hour)
	if err == nil && len(kills) > 0 || err != nil && kills != nil {
		t.Errorf("%+v %v", kills, err)
	}
	if err != nil && !errors.Is(err, os.ErrPermission) && !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no reason that is known: %v", err)
	}
}

// TestScanPassesBrokenProcesses: one whose status is gone is nobody's child.
func TestScanPassesBrokenProcesses(t *testing.T) {
	files := join(process(11, 1, 0, ""), process(12, 1, 0, ""))
	files["13/comm"], files["self/status"] = "gone", "PPid:\t10\n"
	p := NewProc(tree(t, files))
	if got := p.childrenByScan(10); !slices.Equal(got, []int{11}) {
		t.Errorf("children of 10: %v", got)
	}
	if got := p.childrenByScan(0); len(got) != 0 {
		t.Errorf("children of nobody: %v", got)
	}
	if got := NewProc(p.Root + "/none").childrenByScan(10); got != nil {
		t.Errorf("without /proc: %v", got)
	}
}

// TestWorkersAreTwoOrMore: one child is no crowd of workers; of two, one is read for both.
func TestWorkersAreTwoOrMore(t *testing.T) {
	child := func(pid int) map[string]string {
		files := process(pid, 10, 0, "")
		dir := fmt.Sprintf("%d/", pid)
		files[dir+"status"] = strings.Replace(files[dir+"status"], fmt.Sprintf("PPid:\t%d", pid-1),
			"PPid:\t11", 1)
		files[dir+"smaps_rollup"] = "Rss: 100 kB\nPss: 40 kB\nPrivate_Clean: 1 kB\n" +
			"Private_Dirty: 30 kB\nPss_Anon: 4 kB\nPss_Shmem: 1 kB\n"
		return files
	}
	for n, want := range map[int]*event.WorkersSample{0: nil, 1: nil,
		2: {PID: 20, Count: 2, Resident: 200 * event.KiB, Private: 62 * event.KiB},
		3: {PID: 20, Count: 3, Resident: 300 * event.KiB, Private: 93 * event.KiB}} {
		all := []map[string]string{process(10, 1, 0, "11 ")}
		list := ""
		for i := range n {
			list += fmt.Sprintf("%d ", 20+i)
			all = append(all, child(20+i))
		}
		all = append(all, process(11, 5, 0, list))
		follow := &Tree{Proc: NewProc(tree(t, join(all...))), Keeper: 10,
			Forked: map[int]bool{20: true, 21: true, 22: true}}
		follow.Refresh(time.Now())
		var s event.Sample
		follow.Read(&s, true)
		if diff := cmp.Diff(want, follow.Workers()); diff != "" {
			t.Errorf("%d children: %s", n, diff)
		}
	}
}

// TestCgroupWithoutItsFiles: absent is normal. The numbers that are there count, the rest is zero.
func TestCgroupWithoutItsFiles(t *testing.T) {
	c := &Cgroup{Dir: tree(t, map[string]string{"memory.current": "100\n"}), Version: 2}
	got, err := c.Read()
	if err != nil || got != (event.CgroupSample{Current: 100}) {
		t.Errorf("%+v %v", got, err)
	}
	if c.table("memory.stat") != nil || !c.HasMemory() || c.Limit() != 0 {
		t.Errorf("%v %v %v", c.table("memory.stat"), c.HasMemory(), c.Limit())
	}
	other := &Cgroup{Dir: c.Dir, Version: 1} // reads other names
	if _, err := other.Read(); !errors.Is(err, os.ErrNotExist) || other.HasMemory() {
		t.Errorf("%v %v", err, other.HasMemory())
	}
	broken := &Cgroup{Dir: tree(t, map[string]string{"memory.current": "many\n"}), Version: 2}
	if _, err := broken.Read(); err == nil || !strings.Contains(err.Error(), "read memory.current") {
		t.Errorf("%v", err)
	}
}
