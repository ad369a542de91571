package trace

import (
	"strings"
	"testing"

	"memroom/event"
)

// TestHowFarEndsReach: what stands above or below an end belongs to it up to so many lines away,
// and no line farther. Each case has both, and what the log is read as while they belong together.
func TestHowFarEndsReach(t *testing.T) {
	first := func(log *Log) *Crash {
		if i := log.First(); i >= 0 {
			return &log.Crashes[i]
		}
		return &Crash{}
	}
	other := func(log *Log) bool { return first(log).Class == Other }
	survived := func(log *Log) bool { return first(log).Class == Survived }
	exhausted := func(log *Log) bool { return first(log).Class == Exhausted }
	spared := func(log *Log) bool { return !exhausted(log) }
	nothing := func(log *Log) bool { return len(log.Crashes) == 0 }
	holds := func(log *Log) bool { return first(log).Allocated != nil }
	limited := func(log *Log) bool { return first(log).Capacity != nil }
	asked := func(log *Log) bool { return first(log).Requested != nil }
	inShm := func(log *Log) bool { return first(log).Where == event.WhereShm }
	sure := func(log *Log) bool { return first(log).Sure > 0.9 }
	onCard := func(log *Log) bool { return first(log).Where == event.WhereGPU }
	inCgroup := func(log *Log) bool { return first(log).Where == event.WhereCgroup }
	collective := func(log *Log) bool { return strings.Contains(first(log).What, "NCCL") }
	driver := func(log *Log) bool { return strings.Contains(first(log).What, "driver") }
	const (
		torch  = "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB"
		oldest = "insufficient driver version: 418"
		full   = "OSError: [Errno 28] No space left on device"
		late   = "the job has timed out after 3600 seconds"
		ended  = "Exited (137) 3 minutes ago"
		peak   = "Memory Utilized: 1.00 GB\nMemory Efficiency: 1.00% of 100.00 GB"
		blas   = "E tensorflow/stream_executor/cuda/cuda_blas.cc:1] failed to create cublas handle: " +
			"CUBLAS_STATUS_NOT_INITIALIZED"
		pool = "concurrent.futures.process.BrokenProcessPool: A process in the process pool was " +
			"terminated abruptly"
		kernel = "kernel: Out of memory: Killed process 7 (python) total-vm:9kB, anon-rss:8kB"
	)
	for _, c := range []struct {
		name, above, below string
		together           func(log *Log) bool
		lines              int // that may stand between them
	}{
		{"an exception in documentation", "    Raises:", torch, nothing, 5},
		{"an old driver, of PyTorch", "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED",
			oldest, driver, 5},
		{"what ggml asked for", "ggml_gallocr: failed to allocate CUDA0 buffer",
			"a buffer of size 1048576", asked, 1},
		{"thrust above what it says", "terminate called after throwing 'thrust::system_error'",
			"  what():  out of memory", onCard, 1},
		{"a time limit above a kill", late, "Killed", other, 9},
		{"a time limit below a kill", "Killed", late, other, 7},
		{"a cancelled job below a kill", "bash: line 1: 77 Killed   python a.py",
			"slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 10:00 ***", spared, 3},
		{"a cgroup's report above a kill", "kernel: Memory cgroup stats for /job",
			kernel, inCgroup, 59},
		{"an exception of a shutdown", "Exception ignored in: <function A.__del__>",
			torch, survived, 23},
		{"a test above it", "=== RUN TestFull", torch + "\n--- PASS: TestFull", survived, 11},
		{"a test that passed below", "=== RUN TestFull\n" + torch,
			"--- PASS: TestFull", survived, 11},
		{"it went on, below", torch, "retrying with half of it", survived, 3},
		{"it went on, above", "will retry once", torch, survived, 1},
		{"no container was killed, 137 above", ended, `"OOMKilled": false,`, other, 13},
		{"no container was killed, 137 below", `"OOMKilled": false,`, ended, other, 13},
		{"a pod above its end", "kubectl get pods", "OOMKilled", sure, 13},
		{"a pod below its end", "OOMKilled", "kubectl get pods", sure, 13},
		{"a worker of Ray dies after a warning",
			"***LOW MEMORY*** memory usage on this node: 61.0/62.0 GiB",
			"ray.exceptions.RayActorError: The actor died", exhausted, 59},
		{"old Ray's store", "Plasma store at capacity", "Check failed: object_store", inShm, 119},
		{"NCCL above", "ncclUnhandledCudaError: Call to CUDA function failed.",
			"CUDA error: out of memory", collective, 3},
		{"what NCCL asked for", "NCCL WARN Cuda failure 'out of memory'",
			"NCCL WARN Failed to CUDA calloc 1048576 bytes", asked, 5},
		{"a worker's own exception",
			"ValueError: wrong shape",
			"RuntimeError: DataLoader worker (pid 7) exited unexpectedly with exit code 1.", spared, 1},
		{"the limit of a Dask worker", "distributed.nanny - Worker memory limit: 4.00 GiB",
			"distributed.scheduler.KilledWorker: ('sum', 3)", limited, 19},
		{"an exception above a pool", "ValueError: wrong shape", pool, other, 59},
		{"a pickle below a pool", pool,
			"TypeError: cannot pickle '_thread.lock' object", other, 3},
		{"a small peak above a pool", peak, pool, other, 58},
		{"a small peak below a pool", pool, peak, other, 18},
		{"a card with room", blas, "Memory usage: 900 bytes free, 1000 bytes total", other, 3},
		{"an old driver, of TensorFlow", blas, oldest, driver, 5},
		{"shared memory above a full disk", "bus error in worker", full, inShm, 3},
		{"shared memory below a full disk", full, "bus error in worker", inShm, 2},
		{"the table of a TPU core", "It would not fit at the bottom of memory.",
			"HBM capacity 15.75GiB", limited, 7},
		{"what an engine may use", "INFO: Available KV cache memory: 3.00 GiB",
			"ValueError: To serve at least one request (4.00 GiB KV cache is needed)", limited, 59},
		{"a job's memory in seff", "Memory Utilized: 15.50 GB",
			"State: OUT_OF_MEMORY (exit code 0)", holds, 5},
	} {
		for between, want := range map[int]bool{0: true, c.lines: true, c.lines + 1: false} {
			text := c.above + strings.Repeat("\na line of another kind", between) + "\n" + c.below
			if log := readText(t, text+"\n"); c.together(log) != want {
				t.Errorf("%s: with %d lines between them %v, want %v: %+v", c.name, between, !want,
					want, *first(log))
			}
		}
	}
}
