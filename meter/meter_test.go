package meter

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"memroom/event"
)

// tree writes a fixture: a map of paths to contents.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for path, content := range files {
		full := filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(full, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// process returns the files of one process of so many pages: resident, of them file and shared.
func process(pid, resident, shared int, children string) map[string]string {
	dir := fmt.Sprintf("%d/", pid)
	return map[string]string{
		dir + "statm": fmt.Sprintf("99999 %d %d 1 0 5 0\n", resident, shared),
		dir + "status": fmt.Sprintf("Name:\tpython (x) y\nState:\tS (sleeping)\nPPid:\t%d\nVmHWM:\t 40 "+
			"kB\nRssAnon:\t 8 kB\nRssFile:\t 4 kB\nRssShmem:\t 4 kB\nVmSwap:\t 12 kB\nThreads:\t2\n",
			pid-1),
		dir + fmt.Sprintf("task/%d/children", pid): children,
		dir + "smaps_rollup": "00400000-7ff r--p 00000000 00:00 0 [rollup]\nRss:  " +
			"99 kB\nPss:  10 kB\nPss_Dirty: 3 kB\nPss_Anon: 4 kB\nPss_File: 5 kB\nPss_Shmem: 1 kB\n",
		dir + "environ": "RANK=1\x00WORLD_SIZE=4\x00",
	}
}

func join(maps ...map[string]string) map[string]string {
	all := map[string]string{}
	for _, m := range maps {
		for k, v := range m {
			all[k] = v
		}
	}
	return all
}

func TestTreeSumsDescendants(t *testing.T) {
	root := tree(t, join(process(10, 1, 0, "11 12 "), process(11, 4, 2, "13 "),
		process(12, 50, 0, ""), process(13, 3, 1, ""), process(99, 1000, 0, "")))
	follow := &Tree{Proc: NewProc(root), Keeper: 10, Except: []int{12}}
	follow.Refresh(time.Now())
	if diff := cmp.Diff([]int{11, 13}, follow.Processes()); diff != "" {
		t.Error(diff)
	}
	var s event.Sample
	follow.Read(&s, true)
	page := pageSize
	want := event.Sample{Processes: 2, Resident: 7 * page, Anonymous: 4 * page,
		Shared: 8 * event.KiB, File: 3*page - 8*event.KiB, Swapped: 24 * event.KiB}
	if diff := cmp.Diff(want, s); diff != "" {
		t.Error(diff)
	}
	if pss, ok := follow.Proportional(time.Minute, time.Minute); !ok ||
		pss != (Shares{All: 20 * event.KiB, Held: 10 * event.KiB}) {
		t.Errorf("pss %v %v", pss, ok)
	}
}

// TestTreeWithoutChildrenFiles: a kernel without the lists of children is walked by looking at
// every process.
func TestTreeWithoutChildrenFiles(t *testing.T) {
	files := join(process(10, 1, 0, ""), process(11, 4, 2, ""), process(12, 5, 0, ""))
	for path := range files {
		if strings.HasSuffix(path, "/children") {
			delete(files, path)
			files[strings.TrimSuffix(path, "children")+"comm"] = "python"
		}
	}
	follow := &Tree{Proc: NewProc(tree(t, files)), Keeper: 10}
	follow.Refresh(time.Now())
	if diff := cmp.Diff([]int{11, 12}, follow.Processes()); diff != "" {
		t.Error(diff)
	}
}

func TestBrokenProcFiles(t *testing.T) {
	p := NewProc(tree(t, map[string]string{"5/statm": "1 x\n", "6/statm": "1 x y z",
		"5/smaps_rollup": "", "vmstat": "nr_free_pages 1\n",
		"meminfo": "garbage\nMemTotal: many kB\n"}))
	for _, pid := range []int{5, 6, 7} {
		if _, err := p.Statm(pid); err == nil {
			t.Errorf("statm of %d was accepted", pid)
		}
	}
	if _, err := p.Proportional(5); err == nil {
		t.Error("an empty smaps_rollup was accepted")
	}
	if _, err := p.OOMKills(); err == nil || !strings.Contains(err.Error(), "4.13") {
		t.Errorf("vmstat without oom_kill: %v", err)
	}
	if m, err := p.Machine(); err != nil || m.Total != 0 {
		t.Errorf("%+v %v", m, err)
	}
}

func TestMachine(t *testing.T) {
	p := NewProc(tree(t, map[string]string{
		"meminfo": "MemTotal:       16000 kB\nMemFree:  1 kB\nMemAvailable:    8000 " +
			"kB\nSwapTotal: 100 kB\nSwapFree: 40 kB\n",
		"vmstat": "nr_free_pages 5\noom_kill 17\npgfault 3\n",
		"pressure/memory": "some avg10=1.25 avg60=0.00 avg300=0.00 total=5\nfull avg10=0.50 avg60=0.00 " +
			"avg300=0.00 total=1\n",
	}))
	got, err := p.Machine()
	want := event.MachineSample{Total: 16000 * event.KiB, Available: 8000 * event.KiB,
		SwapTotal: 100 * event.KiB, SwapFree: 40 * event.KiB, OOMKill: 17, PressureSome: 1.25,
		PressureFull: 0.5}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
}

func TestCgroup2(t *testing.T) {
	root := tree(t, map[string]string{
		"cgroup.procs": "", "memory.max": "max", "memory.high": "max",
		"a/cgroup.procs": "", "a/memory.max": "8589934592\n", "a/memory.high": "max\n",
		"a/b/cgroup.procs": "31\n32\n", "a/b/memory.current": "1000\n", "a/b/memory.peak": "2000\n",
		"a/b/memory.max": "max\n", "a/b/memory.high": "max\n",
		"a/b/memory.events":       "low 0\nhigh 0\nmax 4\noom 3\noom_kill 2\noom_group_kill 0\n",
		"a/b/memory.stat":         "anon 300\nfile 400\nkernel 50\nshmem 70\nnot a number x\n",
		"a/b/memory.swap.current": "9\n",
		"a/b/memory.pressure": "some avg10=2.00 avg60=0 avg300=0 total=0\nfull avg10=1.00 avg60=0 " +
			"avg300=0 total=0\n",
		"a/b/c/cgroup.procs": "33\n",
	})
	c := &Cgroup{Dir: filepath.Join(root, "a", "b"), Version: 2}
	got, err := c.Read()
	want := event.CgroupSample{Current: 1000, Peak: 2000, Limit: 8 * event.GiB, Anon: 300,
		File: 400, Shmem: 70, Kernel: 50, Swap: 9, OOM: 3, OOMKill: 2, PressureSome: 2,
		PressureFull: 1}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
	pids, err := c.Processes()
	if diff := cmp.Diff([]int{31, 32, 33}, pids); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
}

func TestCgroup1(t *testing.T) {
	root := tree(t, map[string]string{
		"cgroup.procs": "", "memory.limit_in_bytes": "9223372036854771712\n",
		"job/cgroup.procs": "7\n", "job/memory.limit_in_bytes": "1048576\n",
		"job/memory.usage_in_bytes": "900\n", "job/memory.max_usage_in_bytes": "1048576\n",
		"job/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
		"job/memory.stat": "cache 5\nrss 6\ntotal_rss 600\ntotal_cache 300\ntotal_shmem " +
			"20\ntotal_swap 1\n",
		"job/sub/memory.oom_control": "oom_kill 4\n",
	})
	got, err := (&Cgroup{Dir: filepath.Join(root, "job"), Version: 1}).Read()
	want := event.CgroupSample{Current: 900, Peak: event.MiB, Limit: event.MiB, Anon: 600,
		File: 300, Shmem: 20, Swap: 1, OOM: 5, OOMKill: 5}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
}

func TestFindCgroup(t *testing.T) {
	for _, c := range []struct {
		name, membership, mounts, dir string
		version                       int
	}{
		{"unified", "0::/user.slice/a.scope\n",
			"25 1 0:22 / /sys/fs/cgroup rw shared:9 - cgroup2 cgroup2 rw\n",
			"/sys/fs/cgroup/user.slice/a.scope", 2},
		{"hybrid", "4:memory:/job\n0::/\n",
			"25 1 0:22 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n26 1 0:23 / " +
				"/sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
			"/sys/fs/cgroup/memory/job", 1},
		{"two controllers together", "4:cpu,memory:/job\n",
			"25 1 0:22 / /cg/x\\040y rw - cgroup cgroup rw,cpu,memory\n", "/cg/x y/job", 1},
		{"container", "0::/\n", "25 1 0:22 /docker/1 /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
			"/sys/fs/cgroup", 2},
		{"mounted below", "4:memory:/docker/1/job\n",
			"25 1 0:22 /docker/1 /cg rw - cgroup cgroup rw,memory\n", "/cg/job", 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			root := tree(t, map[string]string{"self/cgroup": c.membership,
				"self/mountinfo": c.mounts})
			got, err := FindCgroup(root, "self")
			if err != nil || got.Dir != c.dir || got.Version != c.version {
				t.Errorf("%+v %v, want %s version %d", got, err, c.dir, c.version)
			}
		})
	}
	root := tree(t, map[string]string{"self/cgroup": "garbage\n", "self/mountinfo": "x\n"})
	if _, err := FindCgroup(root, "self"); err == nil {
		t.Error("found a cgroup in garbage")
	}
}
