package trace

import (
	"bytes"
	"strconv"
	"strings"

	"memroom/event"
)

// Messages of PyTorch's allocators, 0.3 to today, with the back ends that share its wording.
var torchWords = []entry{
	{words: []string{"out of memory"}, endings: []*ending{torchMPS, torchDevice, torchAsync,
		torchRaw}},
	{words: []string{"can not allocate memory block with size larger"},
		endings: []*ending{torchDevice}},
	{words: []string{"preemptively rejected"}, endings: []*ending{torchDevice}},
	{words: []string{"would exceed allowed memory", "allocation on device"},
		endings: []*ending{torchAsync}},
	{words: []string{"invalid buffer size", "total bytes of ndarray >"},
		endings: []*ending{torchMPSBuffer}},
	{words: []string{"defaultcpuallocator", "buy new ram", "you tried to allocate"},
		endings: []*ending{torchCPU}},
	{words: []string{"dataloader worker"}, endings: []*ending{torchWorker}},
	{words: []string{"insufficient shared memory", "unable to write to file </torch",
		"unable to allocate shared memory", "unable to mmap",
		"unable to open shared memory object", "/dev/shm/nccl", "could not create shared memory",
		"unable to resize shared memory"}, endings: []*ending{torchShm}},
	{words: []string{"couldn't open shared file mapping"}, endings: []*ending{pageFile}},
	{words: []string{"available kv cache memory (", "no available memory for the cache blocks",
		"that can be stored in kv cache", "is less than desired gpu memory utilization",
		"try to increase --mem-fraction-static", "not enough memory to handle",
		"kv cache is needed", "reserved for kv cache is -"}, endings: []*ending{serving}},
	{words: []string{"enough gpu ram to fit", "not enough gpu memory to load"},
		endings: []*ending{dispatched}},
	{words: []string{"nvmapmemallocinternaltagged", "nvmapmemhandlealloc: error",
		"nvml_success == r internal assert"}, endings: []*ending{board}},
	{words: []string{"failed to cuda calloc", "failed to cuda malloc"},
		endings: []*ending{ncclAlloc}},
	{words: []string{"cuda oom", "hip oom"}, endings: []*ending{torchDevice}},
	{words: []string{"failed with oom on device"}, endings: []*ending{torchWarned}},
	{words: []string{"is allocated by pytorch"}, endings: []*ending{torchTail}},
	{words: []string{"no executable batch size"}, endings: []*ending{noBatchLeft}},
	{words: []string{"preempted by preemptionmode"}, endings: []*ending{cachePreempted}},
	{words: []string{"bus error", "sigbus", "code: -7", "code -7", "code  : -7", "code=-7", "code = -7",
		"status -7", "with -7", "signal 7", "signal: 7", "code 135", "code: 135"},
		endings: []*ending{bareBus}},
	{words: []string{"error out of memory at line"}, endings: []*ending{torchRaw}},
	{words: []string{"assert: out of memory", "cuda runtime error at", "cuda error at",
		"cudaassert", "checkcudaerrors"}, endings: []*ending{ownCheck}},
	{words: []string{"outofmemoryerror"}, endings: []*ending{translated, torchBroken,
		torchClassOnly}},
	{words: []string{"runtimeerror: cuda out", "runtimeerror: hip out", "runtimeerror: cuda ou"},
		endings: []*ending{torchBroken}},
}

var (
	torchDevice = &ending{kind: "torch_device", read: readTorchDevice, frames: true,
		mayPass: true}
	torchTail      = &ending{kind: "torch_device", read: readTorchTail, frames: true}
	torchMPS       = &ending{kind: "torch_mps", read: readTorchMPS, frames: true, mayPass: true}
	torchMPSBuffer = &ending{kind: "torch_mps_buffer", read: readMPSBuffer, frames: true}
	torchAsync     = &ending{kind: "torch_async", read: readTorchAsync, frames: true, mayPass: true}
	ownCheck       = &ending{kind: "own_check", read: readOwnCheck, frames: true}
	torchRaw       = &ending{kind: "torch_raw", read: readTorchRaw, frames: true, mayPass: true}
	torchCPU       = &ending{kind: "torch_cpu", read: readTorchCPU, frames: true, mayPass: true}
	torchWorker    = &ending{kind: "torch_worker", read: readTorchWorker, frames: true,
		mayPass: true}
	torchShm       = &ending{kind: "torch_shm", read: readTorchShm, frames: true}
	ncclAlloc      = &ending{kind: "nccl_alloc", read: readNCCLAlloc, frames: true}
	torchWarned    = &ending{kind: "torch_warned", read: readTorchWarned}
	noBatchLeft    = &ending{kind: "no_batch_left", read: readNoBatch, frames: true}
	cachePreempted = &ending{kind: "cache_preempted", read: readCachePreempted}
	bareBus        = &ending{kind: "bare_bus", read: readBareBus}
	torchBroken    = &ending{kind: "torch_device", read: readTorchBroken, frames: true, mayPass: true}
	torchClassOnly = &ending{kind: "torch_class", read: readTorchClass, frames: true, mayPass: true}
	serving        = &ending{kind: "serving_cache", read: readServing, frames: true}
	dispatched     = &ending{kind: "dispatched", read: readDispatched, frames: true}
	board          = &ending{kind: "board", read: readBoard, frames: true}
)

var (
	deviceOOM    = pattern(`\b(CUDA|HIP|XPU|NPU|MUSA|MLU|HPU|GCU|PrivateUse1|SDAA|DCU) (?:OOM|out of memory)|memory block with size larger`)
	triedSize    = pattern(`(?:tried|trying) to (?:allocate|map) {size}`)
	wantedSize   = pattern(`requested size:? {size}`)
	oldTotal     = pattern(`{size} total ?capacity`)
	newTotal     = pattern(`total capac(?:i?)ty of {size}|GPU \d+ total: {size}`)
	oldUsed      = pattern(`{size} already allocated`)
	newUsed      = pattern(`{size} is allocated by PyTorch`)
	otherUsed    = pattern(`PyTorch allocated: {size}`)
	oldFree      = pattern(`{size} free[;)]`)
	newFree      = pattern(`of which {size} is free`)
	allowed      = pattern(`{size} allowed;`)
	reserved     = pattern(`{size} reserved in total`)
	cached       = pattern(`{size} cached`)
	idle         = pattern(`{size} is reserved by PyTorch but unallocated`)
	privatePools = pattern(`with {size} allocated in private pools`)
	thisUses     = pattern(`this process has {size} memory in use`)
	othersUse    = pattern(`Process (\d+) has {size} memory in use`)
	cardNumber   = pattern(`GPU (\d{1,3})(?:;| has a total| total:)`)
	noNVML       = event.Bytes(1) << 60 // "17179869184.00 GiB" is NVML's "not available"
)

// countedOnly is the head of PyTorch's table of memory, which counts shortages and is none.
var countedOnly = later(`CUDA OOMs:\s{1,20}\d`)

func readTorchDevice(p *passage) *Crash {
	t := p.text()
	if countedOnly.MatchString(p.line()) {
		return nil
	}
	device := deviceOOM.FindStringSubmatch(t)
	if device == nil && !strings.Contains(strings.ToLower(t), "preemptively rejected") {
		return nil
	}
	c := &Crash{Class: Exhausted, Sure: 0.99, Where: event.WhereGPU, Framework: "pytorch"}
	c.Requested = firstSize(beyondMeasure(t), sizeIn(triedSize, t), sizeIn(wantedSize, t))
	c.Private, c.Capped = sizeIn(privatePools, t), allowed.MatchString(t)
	if all, most := sizeIn(oldTotal, t), sizeIn(allowed, t); all != nil && most != nil {
		c.Capped = *most < *all // a cap of the whole card is none
	}
	c.Capacity = firstSize(sizeIn(allowed, t), sizeIn(oldTotal, t),
		eitherSize(newTotal.FindStringSubmatch(t)))
	if c.Capped {
		c.Total = eitherSize(newTotal.FindStringSubmatch(t))
	}
	c.Allocated = firstSize(sizeIn(oldUsed, t), sizeIn(newUsed, t), sizeIn(otherUsed, t))
	c.Free = firstSize(sizeIn(newFree, t), sizeIn(oldFree, t))
	if c.Free != nil && *c.Free >= noNVML {
		c.Free = nil // a negative number, printed as if it were none
	}
	c.InProcess = sizeIn(thisUses, t)
	c.Idle = firstSize(sizeIn(idle, t), minus(sizeIn(reserved, t), c.Allocated), sizeIn(cached, t))
	for _, m := range othersUse.FindAllStringSubmatch(t, 64) {
		pid, _ := strconv.ParseInt(m[1], 10, 64)
		if b := parseSize(m[2], m[3]); b != nil && *b < noNVML {
			c.Neighbours = append(c.Neighbours, Holder{PID: pid, Bytes: *b})
		}
	}
	if m := cardNumber.FindStringSubmatch(t); m != nil {
		n, _ := strconv.Atoi(m[1])
		c.Card = &n
	}
	c.dropNonsense()
	c.dropSelf()
	if strings.Contains(p.line(), "Warning: ") && strings.Contains(p.line(), "Plan failed") {
		c.Class, c.Sure, c.What = Survived, 0.95, "a warning that cuDNN took another of its plans"
		return c
	}
	if c.Requested == nil && c.Capacity == nil {
		if c.Sure = proseSure(p, 0.97); c.Sure <= 0.6 && supposed.MatchString(p.line()) {
			return nil
		}
	}
	return c
}

// readTorchTail reads the end of PyTorch's message where a log begins in the middle of it.
func readTorchTail(p *passage) *Crash {
	t := p.line() + " " + p.text()
	if p.window.offset(p.at) > 600 || deviceOOM.MatchString(t+strings.Join(p.above(12), "\n")) {
		return nil
	}
	return &Crash{Class: Exhausted, Sure: 0.9, Where: event.WhereGPU, Framework: "pytorch",
		Capacity: eitherSize(newTotal.FindStringSubmatch(t)), Allocated: sizeIn(newUsed, t),
		Free: sizeIn(newFree, t), Idle: sizeIn(idle, t), InProcess: sizeIn(thisUses, t)}
}

// beyondMeasure reads PyTorch's words for a size that it does not print.
func beyondMeasure(text string) *event.Bytes {
	if !strings.Contains(text, "more than 1EB") {
		return nil
	}
	exa := event.Bytes(1) << 60
	return &exa
}

// dropNonsense lets go of what is said to be allocated where that is more than the card: pools that
// are mapped and unmapped are counted twice. A single process that is listed is then this one.
func (c *Crash) dropNonsense() {
	if c.Allocated == nil || c.Capacity == nil || *c.Allocated <= *c.Capacity+*c.Capacity/50 {
		return
	}
	c.Over, c.Allocated = c.Allocated, nil
	if len(c.Neighbours) == 1 && c.InProcess == nil {
		own := c.Neighbours[0].Bytes
		c.InProcess, c.Neighbours = &own, nil
	}
}

// dropSelf removes this process from its neighbours: inside a container PyTorch does not know its
// own number on the host.
func (c *Crash) dropSelf() {
	if c.InProcess == nil && len(c.Neighbours) == 1 && c.Capacity != nil && c.Free != nil &&
		*c.Capacity-*c.Free-c.Neighbours[0].Bytes < 256*event.MiB { // this one has to hold something
		c.InProcess, c.Neighbours = &c.Neighbours[0].Bytes, nil
	}
	if c.InProcess != nil || c.Allocated == nil {
		return
	}
	held := *c.Allocated
	if c.Idle != nil {
		held += *c.Idle
	}
	for i, n := range c.Neighbours {
		// two that hold more than the card together are one
		both := c.Capacity != nil && n.Bytes >= held && n.Bytes+held > *c.Capacity
		if both || n.Bytes >= held && n.Bytes <= held+2*event.GiB {
			own := n.Bytes
			c.InProcess, c.Neighbours = &own, append(c.Neighbours[:i:i], c.Neighbours[i+1:]...)
			return
		}
	}
}

func firstSize(sizes ...*event.Bytes) *event.Bytes {
	for _, s := range sizes {
		if s != nil {
			return s
		}
	}
	return nil
}

// eitherSize reads the first filled pair of groups of a pattern with alternatives.
func eitherSize(m []string) *event.Bytes {
	for i := 1; i+1 < len(m); i += 2 {
		if m[i] != "" {
			return parseSize(m[i], m[i+1])
		}
	}
	return nil
}

// errorMark is what stands before a real message, and not before a sentence about one.
var errorMark = pattern(`error|exception|fatal|fail|traceback|terminate called|what\(\):|\[rank|\bE\d{4} |abort`)

// supposed is a sentence about a shortage that did not happen: a change log, advice, a plan.
var supposed = pattern(`\b(?:fix(?:e[sd]|ing)?|avoid\w*|prevent\w*|handl\w+|catch\w*|guard\w*|no longer|in case of|` +
	`to be safe|might|may|could|would|should|if (?:you|it|there|the|a|an)|when you|whether|instead of|` +
	`never|did not|does not|no)\b[^.\n]{0,60}(?:out of memory|\boom\b)|` +
	`(?:out of memory|\boom\b)[^.\n]{0,40}\b(?:test|tests|check|checks|handling|handler|errors? (?:can|may|might))\b`)

// toReader matches the beginning of a sentence with advice for the reader in case something
// happens.
var toReader = later(`(?i)\b(?:if|when|whenever|in case|should) you(?:r|'re)?\b(?:[^.\n]|\.\S){0,100}$`)

// advises reports whether the telling word stands in such a sentence.
func (p *passage) advises() bool {
	line := p.line()
	at := strings.Index(strings.ToLower(line), p.word)
	return at > 0 && at <= len(line) && toReader.MatchString(line[:at])
}

// proseSure lowers the certainty of words that stand in a sentence rather than in a message.
func proseSure(p *passage, sure float64) float64 {
	before, _, _ := strings.Cut(strings.ToLower(p.text()), p.word)
	if errorMark.MatchString(before) {
		return sure
	}
	return min(sure, 0.6)
}

var (
	mpsOOM     = pattern(`MPS backend (?:ran )?out of memory|MPS out of memory`)
	mpsUsed    = pattern(`MPS allocated: {size}`)
	mpsOthers  = pattern(`other allocations: {size}`)
	mpsAllowed = pattern(`max allowed: {size}`)
	mpsBuffer  = pattern(`invalid buffer size:? {size}`)
)

func readTorchMPS(p *passage) *Crash {
	t := p.text()
	if !mpsOOM.MatchString(t) {
		return nil
	}
	return &Crash{Class: Exhausted, Sure: 0.99, Where: event.WhereMPS, Framework: "pytorch",
		Requested: sizeIn(triedSize, t),
		Capacity:  sizeIn(mpsAllowed, t), Allocated: sizeIn(mpsUsed, t),
		Elsewhere: sizeIn(mpsOthers, t)}
}

func readMPSBuffer(p *passage) *Crash {
	b := sizeIn(mpsBuffer, p.text())
	if strings.HasPrefix(p.word, "total bytes") { // the limit of one array
		four := 4 * event.GiB
		return &Crash{Class: Exhausted, Sure: 0.9, Where: event.WhereMPS, Framework: "pytorch",
			Capacity: &four, What: "one array of more than 4 GiB, which Metal cannot hold"}
	}
	if b == nil {
		return nil
	}
	return &Crash{Class: Exhausted, Sure: 0.9, Where: event.WhereMPS, Framework: "pytorch",
		Requested: b}
}

var (
	asyncUsed  = pattern(`currently allocated\s*: {size}`)
	asyncAsked = pattern(`requested\s*: {size}`)
	asyncLimit = pattern(`device limit\s*: {size}`)
	asyncFree  = pattern(`free \(according to CUDA\)\s*: {size}`)
	asyncOOM   = pattern(`allocation on device.{0,40}(?:would exceed allowed memory|this error means you ran out of memory|$)`)
)

func readTorchAsync(p *passage) *Crash {
	t := p.text()
	if !asyncOOM.MatchString(t) || !strings.Contains(strings.ToLower(t), "out of memory") &&
		!strings.Contains(t, "OutOfMemoryError") {
		return nil
	}
	return &Crash{Class: Exhausted, Sure: 0.98, Where: event.WhereGPU, Framework: "pytorch",
		Requested: sizeIn(asyncAsked, t),
		Capacity:  sizeIn(asyncLimit, t), Allocated: sizeIn(asyncUsed, t),
		Free: sizeIn(asyncFree, t)}
}

var rawCUDA = pattern(`\b(?:(?:CUDA|HIP) (?:driver |runtime |kernel )?(?:error|failure|failed with error|call failed)|cuda runtime error|THCudaCheck FAIL|` +
	`(?:cuda|hip)Error(?:MemoryAllocation|OutOfMemory)|Cuda failure|AcceleratorError|hip error|error code: 2|CUDA error 2|error=2)` +
	`[^.;]{0,120}?out of memory|Error out of memory at line \d+`)

// ownChecks are what programs in CUDA C++ print where they check each call themselves: the words of
// cudaGetErrorString with a file and a line.
var ownChecks = later(`(?i)(?:\b(?:gpu|cuda|hip)\w{0,8}assert: out of memory \S+ \d+|` +
	`\b(?:cuda|hip) (?:runtime )?error (?:at|in)[: ][^\n]{0,120}\.(?:cu|cuh|cpp|cc|h|hpp)[: (]{1,3}\d+\)?[^\n]{0,80}\s+` +
	`[^\n]{0,40}\bout of memory|checkcudaerrors[^\n]{0,200}\b(?:out of memory|cudaErrorMemoryAllocation))`)

func readOwnCheck(p *passage) *Crash {
	text := p.line() + "\n" + strings.Join(p.following(1), "\n")
	if !ownChecks.MatchString(text) || strings.Contains(p.line(), "#define") {
		return nil
	}
	return &Crash{Class: Exhausted, Sure: 0.92, Where: event.WhereGPU, Framework: "other"}
}

// foreign are programs that print the same words without PyTorch behind them.
var foreign = []struct{ sign, name string }{
	{"ggml", "other"}, {"llama", "other"}, {"mxnet", "other"}, {"paddle", "other"},
	{"darknet", "other"}, {"ctranslate", "other"}, {"dlib", "other"}, {"dmlc", "other"},
	{"opencv", "other"}, {"faiss", "other"}, {"open3d", "other"}, {"colmap", "other"},
	{"caffe", "other"}, {"cupy", "other"}, {"numba", "other"}, {"onnxruntime", "other"},
	{"tensorrt", "other"}, {"xgboost", "other"},
	{"rmm::", "other"}, {"kaldi", "other"}, {"gpu_device.cpp", "other"},
	{".julia/", "other"}, {".jl:", "other"}, {"loaderror:", "other"}, {"panicked at", "other"},
	{"cuda failed with error", "other"}, {"; hostname=", "other"}, {"cudasuccess", "other"},
}

func foreignIn(text string) string {
	lower := strings.ToLower(text)
	for _, f := range foreign {
		if strings.Contains(lower, f.sign) {
			return f.name
		}
	}
	return ""
}

func readTorchRaw(p *passage) *Crash {
	t := p.text()
	if !rawCUDA.MatchString(t) {
		return nil
	}
	c := &Crash{Class: Exhausted, Sure: 0.95, Where: event.WhereGPU, Framework: "pytorch"}
	if other := foreignIn(cut(t, 600)); other != "" {
		c.Framework = other
	}
	if strings.Contains(t, "NCCL") || strings.Contains(t, "Cuda failure") ||
		strings.Contains(strings.Join(p.above(4), " "), "ncclUnhandledCudaError") {
		c.What = "inside a collective operation (NCCL)"
		c.Requested = firstSize(c.Requested, sizeIn(ncclAsked, strings.Join(p.following(6), " ")))
	}
	return c
}

var cpuSize = pattern(`you tried to allocate {size}`)

func readTorchCPU(p *passage) *Crash {
	t := p.text()
	lower := strings.ToLower(t)
	if !strings.Contains(lower, "allocate memory") && !strings.Contains(lower,
		"not enough memory") && !strings.Contains(lower, "you tried to allocate") {
		return nil
	}
	return &Crash{Class: Exhausted, Sure: 0.97, Where: event.WhereHost, Framework: "pytorch",
		Requested: sizeIn(cpuSize, t)}
}

var workerKilled = pattern(`DataLoader worker (?:\(pid\(?s?\)?[^)]*\)+ )?(?:is killed by signal: (Bus error|Killed|Segmentation fault|Aborted|Terminated|Floating point exception)|exited unexpectedly)`)

// spawnedVain are words of workers that fail from the first on where they are spawned.
var spawnedVain = later(`(?is)(?:windows|[A-Z]:\\).*(?:immediately|num_workers ?=? ?0[^.\n]{0,20}(?:works?|fine|ok))`)

func readTorchWorker(p *passage) *Crash {
	m := workerKilled.FindStringSubmatch(p.text())
	if m == nil {
		return nil
	}
	c := &Crash{Framework: "pytorch", Class: Exhausted}
	switch strings.ToLower(m[1]) {
	case "bus error":
		c.Where, c.Sure = event.WhereShm, 0.95
		if said := p.roomInShm(); said != "" {
			c.Class, c.Sure, c.Where = Other, 0.6, event.WhereUnknown
			c.What = "a DataLoader worker ended with a bus error, for which the message suspects shared memory, " +
				"but it is said that no workers run or that /dev/shm is large (" + said +
				"); a mapped file (LMDB, .npy, .arrow) that is shorter than it should be, or a disk that failed, " +
				"gives the same signal: compare its size with the source, and make or copy it anew"
		}
	case "killed":
		c.Where, c.Sure, c.What = event.WhereHost, 0.8,
			"a DataLoader worker was killed, as the kernel does when host memory runs out"
	case "":
		if raisedAbove(p) {
			return nil // its own exception stands right above
		}
		if workerCrashed.MatchString(p.around()) {
			c.Class, c.Sure, c.Where = Other, 0.8, event.WhereUnknown
			c.What = "a DataLoader worker crashed (segmentation fault)"
			return c
		}
		if spawnedVain.MatchString(p.around()) {
			c.Class, c.Sure, c.Where = Other, 0.6, event.WhereUnknown
			c.What = "a DataLoader worker could not be started; where workers are spawned (Windows, macOS) and in notebooks " +
				"the script needs `if __name__ == '__main__':`, and with num_workers=0 its own exception shows"
			return c
		}
		c.Where, c.Sure, c.What = event.WhereHost, 0.5,
			"a DataLoader worker died without saying why; memory is the usual reason"
	case "terminated":
		c.Class, c.Sure, c.Where, c.What = Other, 0.7, event.WhereUnknown,
			"a DataLoader worker was asked to end (SIGTERM), as when the job is stopped or a rank fails first"
	default:
		c.Class, c.Sure, c.Where, c.What = Other, 0.8, event.WhereUnknown,
			"a DataLoader worker crashed ("+strings.ToLower(m[1])+")"
	}
	return c
}

// curedSo is what people write whom a change has helped.
var curedSo = later(`(?i)\b(?:solved|fixed|fixes|works now|helped|resolved|resolves|went away)\b|解决`)

// roomInShm returns a remark about workers or /dev/shm from which it follows that /dev/shm is not
// full.
func (p *passage) roomInShm() string {
	text := p.around()
	var said Signs
	if said.add(text); curedSo.MatchString(text) {
		return ""
	}
	return said[SignShmRoom]
}

// workerCrashed are words about a worker that crashed in native code.
var workerCrashed = later(`(?i)segmentation fault encountered in worker|signal: (?:Segmentation fault|Aborted|` +
	`Illegal instruction|Floating point exception)`)

// raisedAbove reports whether an exception that has nothing to do with memory or a lost worker
// stands directly above.
func raisedAbove(p *passage) bool {
	for _, line := range p.above(2) {
		if m := raised.FindStringSubmatch(strings.TrimSpace(line)); m != nil {
			lower := strings.ToLower(line)
			return !strings.Contains(lower, "memory") && !strings.Contains(lower, "worker") &&
				m[1] != "Empty"
		}
	}
	return false
}

func readTorchShm(p *passage) *Crash {
	t := p.text()
	lower := strings.ToLower(t)
	c := &Crash{Class: Exhausted, Sure: 0.96, Where: event.WhereShm, Framework: "pytorch"}
	if other := foreignIn(strings.Join(append(p.above(8), p.following(6)...), "\n")); other != "" &&
		!strings.Contains(lower, "torch") {
		c.Framework = other // whose loaders use the same words
	}
	switch {
	case strings.Contains(lower, "too many open files"):
		return &Crash{Class: Other, Sure: 0.9, Where: event.WhereUnknown, Framework: "pytorch",
			What: "too many open files (ulimit -n)"}
	case p.word == "unable to mmap":
		c.Requested = sizeIn(mmapSize, t)
		if !strings.Contains(t, "</torch_") { // an ordinary file, such as weights
			c.Where = event.WhereHost
		}
	case p.word == "unable to open shared memory object" && !strings.Contains(lower, "no space") &&
		!strings.Contains(lower, "allocate"):
		return nil
	}
	if strings.Contains(lower, "file exists") || strings.Contains(lower, "permission denied") {
		return nil
	}
	return c
}

// oldRuntime are words of the runtime that releases before 1.4 wrote.
var oldRuntime = later(`THCudaCheck FAIL|cuda runtime error \(2\)|THC/generic/THCStorage`)

// Wording is the newest release of torch that writes the message in these words; empty where they
// are still in use, or are not torch's.
func (c *Crash) Wording() string {
	switch t := c.Text; {
	case oldRuntime.MatchString(t):
		return "1.3"
	case c.Framework != "pytorch" || !strings.Contains(t, "already allocated"):
		return ""
	case strings.Contains(t, "iB cached)"):
		return "1.3"
	case strings.Contains(t, "reserved in total by PyTorch"):
		return "2.0"
	}
	return ""
}

// segmentSize is NCCL's word for a segment that it could not make.
var segmentSize = pattern(`(?:segment|/dev/shm/nccl)\S* ?\S* \(?(?:of )?size {size}`)

var ncclAsked = pattern(`failed to cuda (?:calloc|malloc)(?: async)? {size}`)

// readNCCLAlloc reads NCCL's own words when the card has no room for its buffers.
func readNCCLAlloc(p *passage) *Crash {
	return &Crash{Class: Exhausted, Sure: 0.8, Where: event.WhereGPU, Framework: "pytorch",
		Requested: sizeIn(ncclAsked, p.text()), What: "inside a collective operation (NCCL)"}
}

var warnedOOM = pattern(`OOM on device (\d+)\D{0,40}allocate {size} ?\(free: {size}, total: {size}`)

// readTorchWarned reads the line that PyTorch logs when an allocation fails; the exception usually
// follows and has more details.
func readTorchWarned(p *passage) *Crash {
	m := warnedOOM.FindStringSubmatch(p.text())
	if m == nil {
		return nil
	}
	card, _ := strconv.Atoi(m[1])
	return &Crash{Class: Exhausted, Sure: 0.85, Where: event.WhereGPU, Framework: "pytorch",
		Card: &card, Requested: parseSize(m[2], m[3]), Free: parseSize(m[4], m[5]),
		Capacity: parseSize(m[6], m[7])}
}

// readNoBatch reads the end of a search for a batch that fits: not even one sample did.
func readNoBatch(*passage) *Crash {
	return &Crash{Class: Exhausted, Sure: 0.9, Where: event.WhereGPU, Framework: "pytorch",
		What: "not even a batch of one fitted"}
}

func readCachePreempted(*passage) *Crash {
	return &Crash{Class: Survived, Sure: 0.9, Where: event.WhereGPU, Framework: "pytorch",
		What: "the server had too little cache for all requests at once and let some wait"}
}

// busForm is how shells, Python and launchers write that a process got SIGBUS.
var busForm = later(`(?:^|[:\d)\]] +)Bus error\b|Bus error(?: \(core dumped\)|: \d|\s*$)|SIGBUS|bus error encountered|` +
	`(?i:code|status|with)[ :=]{1,5}-7\b|(?i:signal):? 7\b|(?i:code):? 135\b`)

// readBareBus reads a bus error without the sentence that PyTorch adds: a page of a full /dev/shm,
// most often.
func readBareBus(p *passage) *Crash {
	if workerKilled.MatchString(p.text()) || strings.Contains(p.text(), "shared memory") {
		return nil // the fuller messages have their own words
	}
	if p.roomInShm() != "" {
		return nil
	}
	if !busForm.MatchString(p.line()) {
		return nil // a sentence about one
	}
	return &Crash{Class: Exhausted, Sure: 0.5, Where: event.WhereShm,
		What: "a bus error; with workers around it is a full /dev/shm"}
}

var mmapSize = pattern(`unable to mmap {size}`)

var javaOrRay = pattern(`java|scala|ray\.exceptions|RayTaskError|kotlin|jvm|cupy|julia`)

// readTorchClass recognises the name of the exception where its message is missing or worded by
// somebody else.
// brokenWords are the telling words with a break inside, or with codes of a terminal's colours that
// were there.
var brokenWords = later(`(?i)\bo ?u ?t ?o ?f ?m ?e ?m ?o ?r ?y\b`)

// readTorchBroken reads a message whose telling words were broken: by the end of a narrow line, or
// by colours. Those that stand whole are read where they are found.
func readTorchBroken(p *passage) *Crash {
	raw := p.window.buf[p.at:min(len(p.window.buf), p.at+200)]
	if bytes.Contains(bytes.ToLower(raw), []byte("out of memory")) {
		return nil
	}
	head := cut(p.text(), 200)
	if !brokenWords.MatchString(head) {
		return nil
	}
	p.cached = brokenWords.ReplaceAllString(head, "out of memory") + p.text()[len(head):]
	return readTorchDevice(p)
}

func readTorchClass(p *passage) *Crash {
	t := p.text()
	line := p.line()
	lower := strings.ToLower(t)
	if javaOrRay.MatchString(line) || strings.Contains(lower, "out of memory") ||
		strings.Contains(lower, "out of resource") || // of a kernel, on the chip
		!strings.Contains(lower, "torch") && !strings.Contains(lower, "cuda") {
		return nil
	}
	sure := proseSure(p, 0.85)
	if classRaised.MatchString(line) {
		sure = 0.85
	}
	return &Crash{Class: Exhausted, Sure: sure, Where: event.WhereGPU,
		Framework: "pytorch", Requested: sizeIn(triedSize, t)}
}

// classRaised matches the line of an exception: first its class, and then its message.
var classRaised = later(`^\s*torch(?:\.cuda)?\.OutOfMemoryError(?::|\s*$)`)

// readDispatched reads a refusal to load: the parts of a model that found no room on the cards may
// not be computed elsewhere.
func readDispatched(p *passage) *Crash {
	if aboutCode.MatchString(p.line()) && !strings.Contains(p.line(), "Error: ") {
		return nil
	}
	return &Crash{Class: Exhausted, Sure: 0.9, Where: event.WhereGPU, Framework: "pytorch",
		What: "parts of the model found no room on the cards, and the loader refused"}
}

// readBoard reads what the driver of Jetson boards prints when an allocation fails. PyTorch's own
// message fails there too, because the board has no NVML.
func readBoard(*passage) *Crash {
	return &Crash{Class: Exhausted, Sure: 0.9, Where: event.WhereGPU, Framework: "pytorch",
		What: "on a board with one memory (Jetson)"}
}

var (
	cacheNeeded    = pattern(`{size} KV cache is needed`)
	cacheLeft      = pattern(`available KV cache memory \({size}\)`)
	cacheStart     = pattern(`available KV cache memory: {size}`)
	longestContext = pattern(`estimated maximum model length is (\d{1,9})`)
	freeOfTotal    = pattern(`free memory on device[^(]*\(([\d.]+)/([\d.]+) ?GiB\)`)
	wantedShare    = pattern(`desired GPU memory utilization \([\d.]+, {size}\)`)
)

// readServing reads what inference servers say when weights leave too little for the cache of keys
// and values.
var (
	engineShare = later(`total_gpu_memory \(([\d.]+) ?GiB\) x gpu_memory_utilization \(([\d.]+)\) = ` +
		`([\d.]+) ?GiB`)
	engineWeights = pattern(`model weights take {size}`)
	enginePeak    = pattern(`activation peak memory takes {size}`)
)

// engineSum writes the memory that an engine reports and needs before its cache.
func engineSum(share, allowed, text string) string {
	weights, peak := sizeIn(engineWeights, text), sizeIn(enginePeak, text)
	if weights == nil || peak == nil {
		return ""
	}
	return "weights take " + weights.String() + " and a trial run " + peak.String() + " of the " +
		allowed + "GiB that gpu_memory_utilization " + share + " allows"
}

func readServing(p *passage) *Crash {
	t := strings.Join(p.following(6), " ")
	c := &Crash{Class: Exhausted, Sure: 0.95, Where: event.WhereGPU, Framework: "pytorch"}
	if m := longestContext.FindStringSubmatch(t); m != nil {
		c.Fits, _ = strconv.Atoi(m[1])
	}
	above := strings.Join(append(p.above(60), p.line()), "\n")
	c.Requested, c.Capacity = sizeIn(cacheNeeded, t), firstSize(sizeIn(cacheLeft, t),
		sizeIn(cacheStart, above))
	if m := engineShare.FindStringSubmatch(above); m != nil && c.Capacity == nil {
		c.Capacity, c.Allocated = parseSize(m[1], "GiB"), sizeIn(engineWeights, above)
		c.Signs.put(SignEngineSum, engineSum(m[2], m[3], above))
	}
	if m := freeOfTotal.FindStringSubmatch(t); m != nil {
		c.Free, c.Capacity, c.Requested = parseSize(m[1], "GiB"), parseSize(m[2], "GiB"),
			sizeIn(wantedShare, t)
		if c.Capacity != nil && c.Free != nil {
			if others := *c.Capacity - *c.Free; others > 0 {
				c.Neighbours = []Holder{{Bytes: others, Name: "other processes"}}
			}
		}
	}
	return c
}
