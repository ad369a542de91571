package trace

import (
	"strings"

	"memroom/event"
)

// Messages of GPU libraries and of programs other than the big three.
var deviceWords = []entry{
	{words: []string{"_status_alloc_failed", "cufft_alloc_failed", "_status_not_initialized",
		"valid cudnn algorithm", "cudnn_status_internal_error"}, endings: []*ending{libraryStatus}},
	{words: []string{"out of memory", "failed to allocate", "unable to allocate"},
		endings: []*ending{ggml, cupy, paddle, nodeHeap, deviceGeneric, anyGeneric}},
	{words: []string{"enforce allocating <= available"}, endings: []*ending{paddle}},
	{words: []string{"failed to allocate memory for requested buffer"},
		endings: []*ending{onnxRuntime}},
	{words: []string{"cuda_error_out_of_memory", "hip_error_outofmemory", "erroroutofdevicememory",
		"cuda_out_of_memory", "cl_mem_object_allocation_failure",
		"memory object allocation failure",
		"hiperroroutofmemory", "cudaerrormemoryallocation", "errorout_of_memory",
		"outofdevicememory", "error_out_of_device_memory", "error_out_of_host_memory",
		"allocation is out of device memory", "device memory allocation failed",
		"memory not enough: current free"}, endings: []*ending{deviceCode}},
	{words: []string{"insufficient memory (", "kiogpucommandbuffercallbackerroroutofmemory"},
		endings: []*ending{ggml, metal}},
	{words: []string{"ncudalib::toutofmemoryerror", "error: out of memory. requested"},
		endings: []*ending{catBoost}},
	{words: []string{"requires more system memory"}, endings: []*ending{ollama}},
	{words: []string{"could not be allocated", "tactic device request"},
		endings: []*ending{tensorRT}},
}

var (
	libraryStatus = &ending{kind: "library_status", read: readLibraryStatus, frames: true}
	ggml          = &ending{kind: "ggml", read: readGGML, mayPass: true}
	cupy          = &ending{kind: "cupy", read: readCuPy, frames: true}
	paddle        = &ending{kind: "paddle", read: readPaddle, frames: true}
	onnxRuntime   = &ending{kind: "onnxruntime", read: readONNX, frames: true}
	nodeHeap      = &ending{kind: "heap", read: readHeap}
	deviceGeneric = &ending{kind: "device_generic", read: readDeviceGeneric, frames: true,
		mayPass: true}
	anyGeneric = &ending{kind: "any_generic", read: readAnyGeneric, frames: true, mayPass: true}
	deviceCode = &ending{kind: "device_code", read: readDeviceCode, frames: true, mayPass: true}
	metal      = &ending{kind: "metal", read: readMetal}
	catBoost   = &ending{kind: "catboost", read: readCatBoost}
	ollama     = &ending{kind: "ollama", read: readOllama}
	tensorRT   = &ending{kind: "tensorrt", read: readTensorRT}
)

var libraryFailed = pattern(`\b((?:CUBLAS|CUDNN|CUSOLVER|CUSPARSE|CURAND|HIPBLAS|ROCBLAS|MIOPEN)_STATUS_(?:ALLOC_FAILED|NOT_INITIALIZED|INTERNAL_ERROR)|CUFFT_ALLOC_FAILED)|valid cuDNN algorithm`)

// driverNamed matches the reason that TensorFlow prints if it knows the driver's version.
var driverNamed = pattern(`insufficient driver version: \d`)

// driverOld is a library that did not start where the message names the driver as the reason.
func driverOld(framework string) *Crash {
	return &Crash{Class: Other, Sure: 0.6, Where: event.WhereUnknown, Framework: framework,
		What: "a GPU library could not start, and the message names the driver's version; " +
			"`nvidia-smi` shows whether the card was full, which looks the same"}
}

// readLibraryStatus reads what cuBLAS and its kin answer when the card has no room for their
// handles and workspaces. "Not initialized" is ambiguous: on a full card it is the same thing, else
// a broken installation.
func readLibraryStatus(p *passage) *Crash {
	t := p.text()
	m := libraryFailed.FindStringSubmatch(t)
	if m == nil || strings.Contains(t, "case CU") || strings.Contains(t, "return \"CU") {
		return nil
	}
	c := &Crash{Class: Exhausted, Where: event.WhereGPU, Framework: "pytorch",
		What: "a GPU library could not get memory of its own"}
	if strings.Contains(t, "tensorflow/") {
		c.Framework = "tensorflow"
	}
	status := strings.ToUpper(m[1])
	if strings.Contains(status, "NOT_INITIALIZED") && driverNamed.MatchString(
		strings.Join(p.following(6), "\n")) {
		return driverOld(c.Framework)
	}
	switch {
	case strings.Contains(status, "ALLOC_FAILED") && strings.Contains(strings.ToLower(t), "create"):
		// the first call of a library: a kernel that failed before it is reported here as well
		c.Sure, c.What = 0.65, "a GPU library could not make its handle; on a full card that is what happens, "+
			"and after a kernel that failed (an index out of range)"
	case strings.Contains(status, "ALLOC_FAILED"), status == "":
		c.Sure = 0.9
	case strings.Contains(status, "NOT_INITIALIZED") && c.Framework == "pytorch":
		return &Crash{Class: Other, Sure: 0.5, Where: event.WhereUnknown, Framework: c.Framework,
			What: "a GPU library could not start, and nothing shows a full card: a release of it " +
				"that does not fit the others, or a kernel that failed before"}
	case strings.Contains(status, "NOT_INITIALIZED"):
		c.Sure, c.What = 0.6, "a GPU library could not start; on a full card that is what happens"
	case c.Framework == "tensorflow" && strings.Contains(strings.ToLower(t),
		"could not create cudnn handle"):
		c.Sure = 0.6
	default:
		return &Crash{Class: Other, Sure: 0.5, Where: event.WhereUnknown, Framework: c.Framework,
			What: "an internal error of cuDNN"}
	}
	return c
}

var (
	ggmlAsked  = pattern(`allocating {size} on device|buffer of size {size}|Device memory allocation of size {size}|attempted to allocate {size}`)
	ggmlSigns  = pattern(`ggml|llama_|llama-server|ollama|llama\.cpp|alloc_tensor_range|CUDA\d buffer|ROCm\d buffer|CPU buffer|gallocr`)
	cpuBuffers = pattern(`ggml_aligned_malloc|failed to allocate (?:CPU|buffer, likely OOM)|CPU buffer of size|ggml_backend_cpu`)
)

func readGGML(p *passage) *Crash {
	t := strings.Join(p.following(2), " ")
	if !ggmlSigns.MatchString(p.line()) {
		return nil
	}
	c := &Crash{Class: Exhausted, Sure: 0.95, Where: event.WhereGPU, Framework: "other",
		Requested: eitherSize(ggmlAsked.FindStringSubmatch(t))}
	if c.Requested == nil && !strings.Contains(strings.ToLower(t), "out of memory") {
		return nil
	}
	if cpuBuffers.MatchString(p.line()) {
		c.Where = event.WhereHost
	}
	return c
}

var catAsked = pattern(`Requested {size}; Free {size}`)

// readCatBoost reads the pool that CatBoost takes from a card at its start.
func readCatBoost(p *passage) *Crash {
	m := catAsked.FindStringSubmatch(p.text())
	if m == nil {
		return nil
	}
	return &Crash{Class: Exhausted, Sure: 0.97, Where: event.WhereGPU, Framework: "other",
		Requested: parseSize(m[1], m[2]), Free: parseSize(m[3], m[4])}
}

var (
	cupyNew   = pattern(`out of memory allocating {size} \(allocated so far: {size}(?:, limit set to: {size})?`)
	cupyOld   = pattern(`out of memory to allocate {size} \(total {size}`)
	cupyLimit = pattern(`limit set to: {size}`)
)

func readCuPy(p *passage) *Crash {
	t := p.text()
	m := cupyNew.FindStringSubmatch(t)
	if m == nil {
		m = cupyOld.FindStringSubmatch(t)
	}
	if m == nil {
		return nil
	}
	return &Crash{Class: Exhausted, Sure: 0.97, Where: event.WhereGPU, Framework: "other",
		Requested: parseSize(m[1], m[2]),
		Allocated: parseSize(m[3], m[4]), Capacity: sizeIn(cupyLimit, t)}
}

var (
	paddleOOM  = pattern(`out of memory error on (?:GPU|XPU|NPU|MLU)|Cannot (?:allocate|malloc) {size} memory on (?:GPU|XPU|NPU)|Failed to allocate {size} .*Paddle`)
	paddleAsk  = pattern(`cannot (?:allocate|malloc) {size} memory`)
	paddleUsed = pattern(`{size} memory has been allocated`)
	// its first releases: the share that it takes at once, and what is free
	paddleShare = pattern(`allocating <= available failed, {size} > {size}`)
	paddleFree  = pattern(`available memory is only {size}`)
)

func readPaddle(p *passage) *Crash {
	t := p.text()
	if m := paddleShare.FindStringSubmatch(t); m != nil {
		return &Crash{Class: Exhausted, Sure: 0.95, Where: event.WhereGPU, Framework: "other",
			Requested: parseSize(m[1], m[2]), Free: parseSize(m[3], m[4])}
	}
	if !paddleOOM.MatchString(t) {
		return nil
	}
	return &Crash{Class: Exhausted, Sure: 0.97, Where: event.WhereGPU, Framework: "other",
		Requested: sizeIn(paddleAsk, t), Allocated: sizeIn(paddleUsed, t),
		Free: sizeIn(paddleFree, t)}
}

var onnxAsked = pattern(`requested buffer of size {size}`)

func readONNX(p *passage) *Crash {
	t := p.text()
	c := &Crash{Class: Exhausted, Sure: 0.93, Where: event.WhereGPU, Framework: "other",
		Requested: sizeIn(onnxAsked, t)}
	if strings.Contains(t, "_nchwc") { // a layout only the CPU provider uses
		c.Where = event.WhereHost
	}
	return c
}

var heapOut = pattern(`(?:javascript|java) heap|heap out of memory|GC overhead limit`)

func readHeap(p *passage) *Crash {
	if !heapOut.MatchString(p.text()) {
		return nil
	}
	return &Crash{Class: Exhausted, Sure: 0.9, Where: event.WhereHost, Framework: "other"}
}

// shortage matches programs of all kinds that say it in their own words next to a word for the
// device.
var (
	shortage  = later(`(?i)\b(cuda|gpu|vram|hip|rocm|device memory|cudaMalloc|vulkan|opencl|nvidia|hbm|tpu)\b[^.]{0,80}?out of memory|out of memory[^.]{0,60}?\b(cuda|gpu|vram|device|hbm|tpu)\b|cudaMalloc\w* fail|(?:cuda|hip)(?:Malloc|HostAlloc|HostRegister)\w*\(.{0,300}?out of memory|thrust::|parallel_for failed|device_helpers|cudaSuccess \(2 vs|cuMemCreate|cuMemAlloc`)
	askedSome = pattern(`(?:tried|trying|failed|unable|attempt(?:ed|ing)?|requested|could not) (?:to )?allocat(?:e|ing|ion of)? (?:a buffer of )?{size}`)
	shareOnly = later(`(?i)not (?:an? )?(?:cuda |gpu |host )?(?:out of memory|oom)|no out of memory|without (?:running )?out of memory|never (?:ran|run) out of memory|avoid(?:s|ing)? (?:\w+ )?out of memory`)
	aboutCode = later(`\bassert(?:\w+\(| (?:not |\w+\(|\w[\w.\[\]]* (?:==|!=|in|is) |["'(]))|def test|re\.compile|\braises?\(|\breturn (?:["'(]|[a-z_.]+\(|False|True|None)|\bin (?:str\(|text\b|msg\b|message\b|e\.args)|\bstartswith\(|\be?grep\b|\bcase CU|\braise \w+\(`)
)

// lockedHost are calls that lock host memory: CUDA reports their failure as its own.
var lockedHost = later(`cudaMallocHost|cudaHostAlloc|cudaHostRegister|hipHostMalloc`)

// thrust is the library of GPU algorithms that XGBoost, cuML and others build on.
var thrust = later(`what\(\): |thrust::`)

// passesOn reports whether the same line goes on with the message of a library, which has its own
// words and figures: "ran out of memory with exception: CUDA out of memory. Tried to ...".
func (p *passage) passesOn() bool {
	return quotedOOM.MatchString(p.line()) ||
		quotedOOM.MatchString(strings.Join(p.following(1), " "))
}

var quotedOOM = later(`(?i)out of memory.{1,80}(?:CUDA|HIP|XPU|NPU) out of memory\. Tried to allocate`)

func readDeviceGeneric(p *passage) *Crash {
	t, line := p.text(), p.line()
	if p.word != "out of memory" || shareOnly.MatchString(line) || aboutCode.MatchString(line) ||
		p.passesOn() {
		return nil
	}
	lower := strings.ToLower(t)
	if strings.Contains(lower, "out of memory: kill") || strings.Contains(lower,
		"cgroup out of memory") || strings.Contains(lower, "resource_exhausted") {
		return nil
	}
	if !shortage.MatchString(cut(t, 400)) && !(thrust.MatchString(line) &&
		thrust.MatchString(strings.Join(p.above(2), "\n"))) {
		return nil
	}
	c := &Crash{Class: Exhausted, Sure: proseSure(p, 0.85), Where: event.WhereGPU,
		Framework: "other", Requested: sizeIn(askedSome, cut(t, 400))}
	if c.Sure <= 0.6 && supposed.MatchString(line) {
		return nil
	}
	if lockedHost.MatchString(cut(t, 400)) {
		c.Where = event.WhereHost
	}
	if foreignIn(cut(t, 600)) == "" {
		c.Framework = "" // settled by what else the log shows
	}
	return c
}

// XGBoost's own words, in bytes or with a unit.
var (
	treeAsked = later(`(?i)\brequested memory: ?([\d.]+) ?([KMGT]i?B)?`)
	treeFree  = later(`(?i)\bfree memory: ?([\d.]+) ?([KMGT]i?B)?`)
)

// plainSize is a size without a unit, in bytes, or with one.
func plainSize(is *expression, text string) *event.Bytes {
	m := is.FindStringSubmatch(text)
	if m == nil {
		return nil
	}
	if m[2] == "" {
		m[2] = "B"
	}
	return parseSize(m[1], m[2])
}

// fatalWords stand at the beginning of a program's last words.
var fatalWords = later(`(?i)\b(?:fatal(?: error)?|error|panic|exception|abort(?:ed|ing)?|terminate[d]?|what\(\))\b[^.]{0,60}:?[^.]{0,40}out of memory|^out of memory[.!]?$`)

// readAnyGeneric reads last words that name no device. Whose memory it was is settled by what else
// the log shows.
func readAnyGeneric(p *passage) *Crash {
	line := withoutPrefix(p.line())
	if p.word != "out of memory" || shareOnly.MatchString(line) || aboutCode.MatchString(line) ||
		!fatalWords.MatchString(line) || p.passesOn() {
		return nil
	}
	lower := strings.ToLower(line)
	if strings.Contains(lower, "out of memory: kill") || strings.Contains(lower,
		"cgroup out of memory") || strings.Contains(lower, "task") ||
		strings.HasPrefix(lower, "#") {
		return nil
	}
	return &Crash{Class: Exhausted, Sure: 0.6, Where: event.WhereUnknown,
		Requested: sizeIn(askedSome, cut(p.text(), 300))}
}

// Sizes in the words of Habana's and MindSpore's runtimes.
var (
	askedOther = pattern(`(?:allocation failed for size::|required size\[){size}`)
	freeOther  = pattern(`free memory size\[{size}`)
)

// onTheHost is TensorFlow's word for host memory that it locks for the card.
var onTheHost = pattern(`failed to alloc(?:ate)? {size} on host`)

func readDeviceCode(p *passage) *Crash {
	t := p.text()
	if driverRefused.MatchString(t) || strings.Contains(t, "case ") ||
		aboutCode.MatchString(p.line()) {
		return nil
	}
	c := &Crash{Class: Exhausted, Sure: proseSure(p, 0.9), Where: event.WhereGPU,
		Requested: firstSize(sizeIn(askedSome, cut(t, 400)), sizeIn(askedOther, cut(t, 600))),
		Free:      sizeIn(freeOther, cut(t, 400))}
	if strings.Contains(t, "OUT_OF_HOST_MEMORY") || onTheHost.MatchString(p.line()) {
		c.Where = event.WhereHost
		c.Requested = firstSize(c.Requested, sizeIn(onTheHost, p.line()))
	}
	if strings.Contains(t, "tensorflow") || strings.Contains(t, "StreamExecutor") {
		c.Framework = "tensorflow"
	} else if foreignIn(cut(t, 600)) != "" {
		c.Framework = "other"
	}
	return c
}

func readMetal(p *passage) *Crash {
	if !strings.Contains(strings.ToLower(p.text()), "command buffer") &&
		!strings.Contains(p.text(), "kIOGPU") {
		return nil
	}
	return &Crash{Class: Exhausted, Sure: 0.9, Where: event.WhereMPS, Framework: "other"}
}

var (
	ollamaNeeds = pattern(`requires more system memory \({size}\)`)
	ollamaHas   = pattern(`than is available \({size}\)`)
)

func readOllama(p *passage) *Crash {
	t := p.text()
	return &Crash{Class: Exhausted, Sure: 0.95, Where: event.WhereHost, Framework: "other",
		Requested: sizeIn(ollamaNeeds, t), Capacity: sizeIn(ollamaHas, t)}
}

var trtAsked = pattern(`Requested amount of GPU memory \({size}\)`)

func readTensorRT(p *passage) *Crash {
	t := p.text()
	if p.word == "tactic device request" {
		return &Crash{Class: Survived, Sure: 0.8, Where: event.WhereGPU, Framework: "other",
			What: "TensorRT skipped a tactic that needs more memory"}
	}
	if !strings.Contains(t, "GPU memory") {
		return nil
	}
	return &Crash{Class: Exhausted, Sure: 0.93, Where: event.WhereGPU, Framework: "other",
		Requested: sizeIn(trtAsked, t)}
}
