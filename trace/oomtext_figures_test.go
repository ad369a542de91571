package trace

import (
	"strings"
	"testing"

	"memroom/event"
)

// TestFiguresOfOtherCommands: sizes that people add to a log by a command are read with their unit,
// and only where the end itself names none.
func TestFiguresOfOtherCommands(t *testing.T) {
	const bus = "RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error.\n"
	const kill = "RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed.\n"
	const handle = "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling " +
		"`cublasCreate(handle)`\n"
	for name, c := range map[string]struct {
		text                              string
		requested, capacity, used, unused event.Bytes // 0: not known
	}{
		"df -h":         {bus + "shm 64M 61M 3.1M 96% /dev/shm\n", 0, 64 * event.MiB, 0, 0},
		"df":            {bus + "tmpfs 65536 65000 536 99% /dev/shm\n", 0, 64 * event.MiB, 0, 0},
		"another mount": {bus + "overlay  64M   61M  3.1M  96% /data\n", 0, 0, 0, 0},
		"free -g": {kill + "$ free -g\n      total  used  free\n" +
			"Mem:             125           3         119\n", 0, 125 * event.GiB, 0, 0},
		"free -h": {kill + "$ free -h\n" +
			"Mem:           188Gi       184Gi       1.1Gi\n", 0, 188 * event.GiB, 0, 0},
		"free": {kill + "$ free\nMem:        1048576     1000      900\n", 0, event.GiB, 0, 0},
		"the kernel's figure": {kill + "Out of memory: Killed process 7 (python) total-vm:9kB, " +
			"anon-rss:1048576kB, file-rss:0kB\n", 0, 0, event.GiB, 0},
		"sacct": {"slurmstepd: error: Detected 1 oom_kill event in StepId=7.0.\n" +
			"JobID             State     MaxRSS    Elapsed\n" +
			"7.batch       COMPLETED     11804K   00:41:27\n" +
			"7.0          OUT_OF_ME+   2097152K   00:41:20\n", 0, 0, 2 * event.GiB, 0},
		"one card": {handle + "memory.free [MiB], memory.total [MiB]\n243 MiB, 8192 MiB\n", 0,
			8 * event.GiB, 0, 243 * event.MiB},
		"several cards": {handle + "memory.free [MiB], memory.total [MiB]\n" +
			"243 MiB, 8192 MiB\n9 MiB, 8192 MiB\n", 0, 0, 0, 0},
		"xgboost": {"xgboost.core.XGBoostError: device_helpers.cuh:431: std::bad_alloc: " +
			"cudaErrorMemoryAllocation: out of memory\n- Free memory: 1048576\n" +
			"- Requested memory: 8388608\n", 8 * event.MiB, 0, 0, event.MiB},
	} {
		log, err := ReadLog(strings.NewReader(c.text))
		if err != nil || len(log.Crashes) == 0 {
			t.Errorf("%s: %d crashes, %v", name, len(log.Crashes), err)
			continue
		}
		got := log.Crashes[0]
		for what, pair := range map[string][2]event.Bytes{
			"asked for": {known(got.Requested), c.requested}, "wall": {known(got.Capacity), c.capacity},
			"in use": {known(got.Allocated), c.used}, "free": {known(got.Free), c.unused},
		} {
			if pair[0] != pair[1] {
				t.Errorf("%s: %s is %v, want %v", name, what, pair[0], pair[1])
			}
		}
	}
}

func known(b *event.Bytes) event.Bytes {
	if b == nil {
		return 0
	}
	return *b
}

// TestSourceIsNoOutput: a program's source lines are distinguished from its output.
func TestSourceIsNoOutput(t *testing.T) {
	for line, source := range map[string]bool{
		"except torch.cuda.OutOfMemoryError:":                        true,
		"    except torch.cuda.OutOfMemoryError as e:":               true,
		"        print('CUDA out of memory, skipping batch')":        true,
		`    raise RuntimeError("CUDA out of memory")`:               true,
		`    if "out of memory" in str(e):`:                          true,
		`    logger.warning("CUDA out of memory")`:                   true,
		"RuntimeError: CUDA out of memory. Tried to allocate 2 GiB":  false,
		"torch.OutOfMemoryError: CUDA out of memory. Tried":          false,
		"If reserved but unallocated memory is large try setting":    false,
		"Out of memory: Killed process 7 (python)":                   false,
		"# There is insufficient memory for the Java Runtime":        false,
		"raise your shared memory limit: out of memory":              false,
		"[rank0]: torch.OutOfMemoryError: CUDA out of memory.":       false,
		"WARNING: ran out of memory, retrying batch with a smaller.": false,
	} {
		if got := sourceLine.MatchString(line); got != source {
			t.Errorf("%q: source is %v", line, got)
		}
	}
}
