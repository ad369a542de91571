package trace

import (
	"fmt"
	"math"
	"math/rand"
	"strings"
	"testing"

	"memroom/event"
)

// figures are the sizes in a message, or 0 for those that it does not contain.
type figures struct{ asked, capacity, live, idle, free event.Bytes }

// wording writes figures as one version of a program does.
type wording struct {
	name  string
	where event.Where
	write func(f figures, r *rand.Rand) string
	tells figures // 1 for each figure in the wording, 0 for the others
}

// size writes a size as PyTorch does: two decimals and the largest unit.
func sizeWords(b event.Bytes) string {
	switch {
	case b >= event.GiB:
		return fmt.Sprintf("%.2f GiB", float64(b)/float64(event.GiB))
	case b >= event.MiB:
		return fmt.Sprintf("%.2f MiB", float64(b)/float64(event.MiB))
	case b >= event.KiB:
		return fmt.Sprintf("%.2f KiB", float64(b)/float64(event.KiB))
	}
	return fmt.Sprintf("%d bytes", int64(b))
}

func decimalWords(b event.Bytes) string {
	return strings.NewReplacer("GiB", "GB", "MiB", "MB", "KiB", "KB").Replace(sizeWords(b))
}

var wordings = []wording{
	{"torch 1.0 to 1.3", event.WhereGPU, func(f figures, r *rand.Rand) string {
		return fmt.Sprintf("RuntimeError: CUDA out of memory. Tried to allocate %s (GPU %d; %s total "+
			"capacity; %s already allocated; %s free; %s cached)",
			sizeWords(f.asked), r.Intn(8), sizeWords(f.capacity), sizeWords(f.live),
			sizeWords(f.free),
			sizeWords(f.idle))
	}, figures{1, 1, 1, 1, 1}},
	{"torch 1.4 to 2.0", event.WhereGPU, func(f figures, r *rand.Rand) string {
		return fmt.Sprintf("torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate %s (GPU "+
			"%d; %s total capacity; %s already allocated; %s free; %s reserved in total by PyTorch) If "+
			"reserved memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation.",
			sizeWords(f.asked), r.Intn(8), sizeWords(f.capacity), sizeWords(f.live),
			sizeWords(f.free),
			sizeWords(f.live+f.idle))
	}, figures{1, 1, 1, 1, 1}},
	{"torch 2.1", event.WhereGPU, func(f figures, r *rand.Rand) string {
		return fmt.Sprintf("torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate %s. GPU "+
			"%d has a total capacty of %s of which %s is free. Including non-PyTorch memory, this process "+
			"has 17179869184.00 GiB memory in use. Of the allocated memory %s is allocated by PyTorch, and "+
			"%s is reserved by PyTorch but unallocated.",
			sizeWords(f.asked), r.Intn(8), sizeWords(f.capacity), sizeWords(f.free),
			sizeWords(f.live),
			sizeWords(f.idle))
	}, figures{1, 1, 1, 1, 1}},
	{"torch 2.2 and later", event.WhereGPU, func(f figures, r *rand.Rand) string {
		return fmt.Sprintf("[rank%d]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate %s. "+
			"GPU %d has a total capacity of %s of which %s is free. Process %d has %s memory in use. Of the "+
			"allocated memory %s is allocated by PyTorch, and %s is reserved by PyTorch but unallocated.",
			r.Intn(8), sizeWords(f.asked), r.Intn(8), sizeWords(f.capacity), sizeWords(f.free),
			1000+r.Intn(1e6), sizeWords(f.live+f.idle+600*event.MiB), sizeWords(f.live),
			sizeWords(f.idle))
	}, figures{1, 1, 1, 1, 1}},
	{"torch on AMD", event.WhereGPU, func(f figures, r *rand.Rand) string {
		return fmt.Sprintf("torch.OutOfMemoryError: HIP out of memory. Tried to allocate %s. GPU %d has "+
			"a total capacity of %s of which %s is free. Of the allocated memory %s is allocated by PyTorch, "+
			"and %s is reserved by PyTorch but unallocated.",
			sizeWords(f.asked), r.Intn(8), sizeWords(f.capacity), sizeWords(f.free),
			sizeWords(f.live),
			sizeWords(f.idle))
	}, figures{1, 1, 1, 1, 1}},
	{"torch on Intel", event.WhereGPU, func(f figures, r *rand.Rand) string {
		return fmt.Sprintf("torch.OutOfMemoryError: XPU out of memory. Tried to allocate %s. GPU %d has "+
			"a total capacity of %s. Of the allocated memory %s is allocated by PyTorch, and %s is reserved "+
			"by PyTorch but unallocated.",
			sizeWords(f.asked), r.Intn(8), sizeWords(f.capacity), sizeWords(f.live),
			sizeWords(f.idle))
	}, figures{1, 1, 1, 1, 0}},
	{"torch's own warning", event.WhereGPU, func(f figures, r *rand.Rand) string {
		return fmt.Sprintf("[W CUDACachingAllocator.cpp:3933] memory allocation failed with OOM on "+
			"device %d while trying to allocate %d bytes (free: %d, total: %d).",
			r.Intn(8), f.asked, f.free, f.capacity)
	}, figures{1, 1, 0, 0, 1}},
	{"Apple before 2.0", event.WhereMPS, func(f figures, _ *rand.Rand) string {
		return fmt.Sprintf("RuntimeError: MPS backend out of memory (MPS allocated: %s, max allowed: "+
			"%s). Tried to allocate %s on private pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable "+
			"upper limit for memory allocations (may cause system failure).",
			decimalWords(f.live), decimalWords(f.capacity), decimalWords(f.asked))
	}, figures{1, 1, 1, 0, 0}},
	{"Apple since 2.0", event.WhereMPS, func(f figures, _ *rand.Rand) string {
		return fmt.Sprintf("RuntimeError: MPS backend out of memory (MPS allocated: %s, other "+
			"allocations: %s, max allowed: %s). Tried to allocate %s on shared pool.",
			sizeWords(f.live), sizeWords(f.idle), sizeWords(f.capacity), sizeWords(f.asked))
	}, figures{1, 1, 1, 0, 0}},
	{"torch in host memory", event.WhereHost, func(f figures, _ *rand.Rand) string {
		return fmt.Sprintf("RuntimeError: [enforce fail at alloc_cpu.cpp:%d] . DefaultCPUAllocator: "+
			"can't allocate memory: you tried to allocate %d bytes. Error code 12 (Cannot allocate memory)",
			75, f.asked)
	}, figures{asked: 1}},
	{"torch in host memory on Windows", event.WhereHost, func(f figures, _ *rand.Rand) string {
		return fmt.Sprintf("RuntimeError: [enforce fail at "+
			"C:\\cb\\pytorch\\c10\\core\\impl\\alloc_cpu.cpp:81] data. DefaultCPUAllocator: not enough "+
			"memory: you tried to allocate %d bytes.",
			f.asked)
	}, figures{asked: 1}},
	{"NumPy", event.WhereHost, func(f figures, _ *rand.Rand) string {
		return fmt.Sprintf("numpy.core._exceptions._ArrayMemoryError: Unable to allocate %s for an array "+
			"with shape (%d,) and data type uint8",
			sizeWords(f.asked), f.asked)
	}, figures{asked: 1}},
	{"JAX", event.WhereGPU, func(f figures, _ *rand.Rand) string {
		return fmt.Sprintf("jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory "+
			"while trying to allocate %d bytes.",
			f.asked)
	}, figures{asked: 1}},
	{"JAX on TPU", event.WhereGPU, func(f figures, _ *rand.Rand) string {
		return fmt.Sprintf("XlaRuntimeError: RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran "+
			"out of memory in memory space hbm. Used %.2fG of %.2fG hbm. Exceeded hbm capacity by 1.00G.",
			float64(f.asked)/float64(event.GiB), float64(f.capacity)/float64(event.GiB))
	}, figures{asked: 1, capacity: 1}},
	{"TensorFlow's allocator", event.WhereGPU, func(f figures, _ *rand.Rand) string {
		return fmt.Sprintf("2023-01-01 10:00:00.000001: W tensorflow/tsl/framework/bfc_allocator.cc:485] "+
			"Allocator (GPU_0_bfc) ran out of memory trying to allocate %s (rounded to %d)requested by op "+
			"MatMul",
			sizeWords(f.asked), f.asked)
	}, figures{asked: 1}},
	{"Slurm's old words", event.WhereCgroup, func(f figures, _ *rand.Rand) string {
		return fmt.Sprintf("slurmstepd: error: Step 12.0 exceeded memory limit (%d > %d), being killed",
			f.live/event.KiB, f.capacity/event.KiB)
	}, figures{capacity: 1, live: 1}},
	{"the kernel", event.WhereHost, func(f figures, r *rand.Rand) string {
		return fmt.Sprintf("[%d.5] Out of memory: Killed process %d (python) total-vm:%dkB, "+
			"anon-rss:%dkB, file-rss:%dkB, shmem-rss:0kB, UID:1000",
			r.Intn(1e6), r.Intn(1e5), 4*f.live/event.KiB, f.live/event.KiB, r.Intn(5000))
	}, figures{live: 1}},
	{"Ray", event.WhereHost, func(f figures, r *rand.Rand) string {
		return fmt.Sprintf("Memory on the node (IP: 10.0.%d.1, ID: a) where the task (task ID: b, "+
			"name=f, pid=3, memory used=1.00GB) was running was %.2fGB / %.2fGB (0.97), which exceeds the "+
			"memory usage threshold of 0.95. Task was killed due to the node running low on memory.",
			r.Intn(200), float64(f.live)/float64(event.GiB), float64(f.capacity)/float64(event.GiB))
	}, figures{capacity: 1, live: 1}},
	{"CuPy", event.WhereGPU, func(f figures, _ *rand.Rand) string {
		return fmt.Sprintf("cupy.cuda.memory.OutOfMemoryError: Out of memory allocating %d bytes "+
			"(allocated so far: %d bytes, limit set to: %d bytes).",
			f.asked, f.live, f.capacity)
	}, figures{asked: 1, capacity: 1, live: 1}},
}

// dress puts a message into the clothes in which logs bring it.
var dress = []struct {
	name string
	on   func(string) string
}{
	{"plain", func(s string) string { return s }},
	{"after a progress bar", func(s string) string {
		return "\r 12%|#2        | 31/250 [00:10<01:12,  3.0it/s]\r 12%|#2 | 31/250" + s
	}},
	{"coloured", func(s string) string { return "\x1b[31m\x1b[1m" + s + "\x1b[0m" }},
	{"quoted", func(s string) string { return "> > " + s }},
	{"time before it", func(s string) string { return "2024-05-01T10:11:12.123456Z " + s }},
	{"in JSON", func(s string) string {
		return `{"level":"error","msg":"` + strings.ReplaceAll(s, `"`, `\"`) + `\nKilled by none\n"}`
	}},
	{"cut off after it", func(s string) string { return "x\n" + s }},
	{"Windows line ends", func(s string) string { return "a\r\n" + s + "\r\nb\r\n" }},
	{"a long line before it", func(s string) string {
		return strings.Repeat("y", 70_000) + "\n" +
			s
	}},
}

// TestNumbersOfEveryWording: the figures come out as they were written, whatever version wrote them
// and however the log brings them.
func TestNumbersOfEveryWording(t *testing.T) {
	random := rand.New(rand.NewSource(11))
	for _, w := range wordings {
		for _, d := range dress {
			for range 2 {
				f := someFigures(random)
				text := d.on(w.write(f, random))
				c := crashIn(t, w.name+", "+d.name, text)
				if c == nil {
					continue
				}
				if c.Where != w.where || c.Class != Exhausted {
					t.Errorf("%s, %s: %s at %s, want %s: %s", w.name, d.name, c.Class, c.Where,
						w.where,
						cut(text, 300))
				}
				told := func(figure, tells event.Bytes) event.Bytes { return figure * tells }
				for _, x := range []struct {
					name string
					got  *event.Bytes
					want event.Bytes
				}{
					{"asked", c.Requested, told(f.asked, w.tells.asked)},
					{"capacity", c.Capacity, told(f.capacity, w.tells.capacity)},
					{"live", c.Allocated, told(f.live, w.tells.live)},
					{"idle", c.Idle, told(f.idle, w.tells.idle)},
					{"free", c.Free, told(f.free, w.tells.free)},
				} {
					if !within(x.got, x.want) {
						t.Errorf("%s, %s: %s is %v, want %s: %s", w.name, d.name, x.name, x.got,
							x.want,
							cut(text, 300))
					}
				}
			}
		}
	}
}

func someFigures(r *rand.Rand) figures {
	capacity := event.Bytes(4+r.Intn(76))*event.GiB + event.Bytes(r.Intn(1000))*event.MiB
	live := event.Bytes(float64(capacity) * (0.3 + 0.6*r.Float64()))
	return figures{asked: event.Bytes(2+r.Intn(3000)) * event.MiB, capacity: capacity, live: live,
		idle: event.Bytes(20+r.Intn(900)) * event.MiB, free: event.Bytes(1+r.Intn(900)) * event.MiB}
}

func crashIn(t *testing.T, name, text string) *Crash {
	t.Helper()
	log := readText(t, text)
	first := log.First()
	if first < 0 {
		t.Errorf("%s: nothing found in %s", name, cut(text, 300))
		return nil
	}
	return &log.Crashes[first]
}

// within allows the rounding of two printed figures.
func within(got *event.Bytes, want event.Bytes) bool {
	if got == nil || want == 0 {
		return got == nil && want == 0
	}
	return math.Abs(float64(*got-want)) <= max(0.01*float64(want), 0.02*float64(event.GiB))
}
