package trace

import (
	"strings"

	"memroom/event"
)

// Messages of Python, NumPy and other languages about host memory.
var pythonWords = []entry{
	{words: []string{"unable to allocate", "memoryerror"}, endings: []*ending{arrayMemory,
		plainMemoryError}},
	{words: []string{"cannot allocate memory", "not enough memory",
		"insufficient system resources"}, endings: []*ending{errnoMemory}},
	{words: []string{"paging file is too small", "winerror 1455", "error code: <1455>",
		"(1455)", "error 1455", "auslagerungsdatei", "fichier de pagination",
		"archivo de paginaci", "arquivo de pagina", "айл подкачки", "页面文件太小",
		"ページング ファイル", "file di paging"}, endings: []*ending{pageFile}},
	{words: []string{"kann keinen speicher", "kein speicherplatz mehr verfügbar",
		"nicht genügend hauptspeicher", "impossible d'allouer de la m",
		"impossible d’allouer de la m",
		"no se pudo asignar memoria", "no se puede asignar memoria", "无法分配内存", "無法配置記憶體",
		"メモリを確保できません", "евозможно выделить память", "е удалось выделить память",
		"impossibile allocare memoria", "não foi possível alocar mem"},
		endings: []*ending{errnoMemory}},
	{words: []string{"insufficient memory) failed to allocate"}, endings: []*ending{imageMemory}},
	{words: []string{"std::bad_alloc", "bad_alloc", "'bad allocation'", "error: bad allocation"},
		endings: []*ending{badAlloc}},
	{words: []string{"cannot allocate vector of size", "vector memory exhausted"},
		endings: []*ending{rVector}},
	{words: []string{"java heap space", "java.lang.outofmemoryerror", "gc overhead limit exceeded",
		"heap limit allocation failed"}, endings: []*ending{nodeHeapWords}},
	{words: []string{"after using all available ram",
		"tried to allocate more memory than is available"}, endings: []*ending{notebookRAM}},
	{words: []string{"% memory budget", "killedworker"}, endings: []*ending{dask}},
	{words: []string{"c error: out of memory"}, endings: []*ending{parserMemory}},
	{words: []string{"perhaps out of memory"}, endings: []*ending{serverWorker}},
	{words: []string{"killed signal terminated program"}, endings: []*ending{compilerKilled}},
	{words: []string{"malloc of size", "realloc of size", "arrow.lib.arrowmemoryerror",
		"arrowmemoryerror"},
		endings: []*ending{errnoMemory}},
}

var (
	arrayMemory = &ending{kind: "array_memory", read: readArrayMemory, frames: true,
		mayPass: true}
	imageMemory = &ending{kind: "array_memory", read: readImageMemory, frames: true,
		mayPass: true}
	plainMemoryError = &ending{kind: "memory_error", read: readMemoryError, frames: true,
		mayPass: true}
	errnoMemory    = &ending{kind: "errno_memory", read: readErrno, frames: true}
	pageFile       = &ending{kind: "page_file", read: readPageFile, frames: true}
	badAlloc       = &ending{kind: "bad_alloc", read: readBadAlloc}
	rVector        = &ending{kind: "r_vector", read: readRVector}
	nodeHeapWords  = &ending{kind: "heap", read: readHeapWords}
	notebookRAM    = &ending{kind: "notebook_ram", read: readNotebook}
	parserMemory   = &ending{kind: "memory_error", read: readParserMemory, frames: true}
	serverWorker   = &ending{kind: "server_worker", read: readServerWorker}
	compilerKilled = &ending{kind: "compiler_killed", read: readCompilerKilled}
	dask           = &ending{kind: "dask", read: readDask}
)

var imageAsked = pattern(`failed to allocate (\d+) bytes`)

// readImageMemory reads OpenCV's refusal of host memory for one image.
func readImageMemory(p *passage) *Crash {
	c := &Crash{Class: Exhausted, Sure: 0.95, Where: event.WhereHost, Framework: "python"}
	if m := imageAsked.FindStringSubmatch(p.text()); m != nil {
		c.Requested = parseSize(m[1], "")
	}
	return c
}

var arrayAsked = pattern(`unable to allocate {size}`)

// nothingAsked explains a refusal of zero bytes: the library printed a shortage that is none.
const nothingAsked = "an array of 0 bytes was refused: no shortage, but a wrong shape or versions of libraries " +
	"that do not fit each other"

func readArrayMemory(p *passage) *Crash {
	t := p.text()
	b := sizeIn(arrayAsked, t)
	if b == nil || !strings.Contains(t, "array") && !strings.Contains(strings.ToLower(t),
		"memoryerror") {
		return nil
	}
	if *b == 0 {
		return &Crash{Class: Other, Sure: 0.8, Where: event.WhereUnknown, Framework: "python",
			What: nothingAsked}
	}
	return &Crash{Class: Exhausted, Sure: 0.97, Where: event.WhereHost, Framework: "python",
		Requested: b}
}

func readParserMemory(*passage) *Crash {
	return &Crash{Class: Exhausted, Sure: 0.9, Where: event.WhereHost, Framework: "python"}
}

func readServerWorker(*passage) *Crash {
	return &Crash{Class: Exhausted, Sure: 0.55, Where: event.WhereHost, Framework: "python",
		What: "a worker was killed; its server suspects memory"}
}

func readCompilerKilled(*passage) *Crash {
	return &Crash{Class: Exhausted, Sure: 0.85, Where: event.WhereHost, Framework: "other",
		What: "a compiler was killed, as when too many of them build at once (MAX_JOBS=2 helps)"}
}

var arrayShape = later(`(?i)array with\s+shape \(([\d, ]+)\) and data type (\w+)`)

// arrayBytes computes the size of an array from its shape, where NumPy did not print it.
func arrayBytes(text string) *event.Bytes {
	m := arrayShape.FindStringSubmatch(text)
	if m == nil || widths[m[2]] == 0 {
		return nil
	}
	return shapeBytes(m[1], widths[m[2]])
}

// memoryErrorLine is the exception at the end of a traceback, not a mention of it.
var memoryErrorLine = later(`(?:^|[\s:.\]])(?:std::bad_alloc: )?(?:\w+\.)*_?(?:Array)?MemoryError\b(?::|$|[\s` + "`" + `"']*$|\s+Traceback \(most recent)`)

func readMemoryError(p *passage) *Crash {
	line := withoutPrefix(p.line())
	if p.word != "memoryerror" || !memoryErrorLine.MatchString(line) {
		return nil
	}
	lower := strings.ToLower(p.text())
	for _, own := range []string{"outofmemoryerror", "devicememoryerror", "out_of_memory: cuda",
		"rmm", "raise memoryerror", "except memoryerror"} {
		if strings.Contains(strings.ToLower(line), own) {
			return nil
		}
	}
	c := &Crash{Class: Exhausted, Sure: 0.9, Where: event.WhereHost, Framework: "python",
		Requested: firstSize(sizeIn(arrayAsked, p.text()), arrayBytes(p.text()),
			absurdNumber(line))}
	if c.Requested != nil && *c.Requested == 0 {
		return &Crash{Class: Other, Sure: 0.8, Where: event.WhereUnknown, Framework: "python",
			What: nothingAsked}
	}
	if strings.Contains(lower, "cuda") && (strings.Contains(lower, "bad_alloc") ||
		strings.Contains(strings.ToLower(line), "cudaerror")) {
		c.Where, c.Framework = event.WhereGPU, "other"
	}
	if !strings.HasSuffix(strings.TrimSpace(line), "MemoryError") &&
		!strings.Contains(line, "MemoryError:") {
		c.Sure = 0.5
	}
	return c
}

// longNumber is a count of bytes that no machine has: twenty digits do not fit a number of 64 bits.
var longNumber = later(`(?i)allocat\w*\b[^\n\d]{0,40}\b(\d{15,20})\b`)

// absurdNumber reads a size that is nonsense where an exception names no unit.
func absurdNumber(line string) *event.Bytes {
	m := longNumber.FindStringSubmatch(line)
	if m == nil {
		return nil
	}
	if len(m[1]) > 18 {
		beyond := event.Bytes(1) << 60
		return &beyond
	}
	return parseSize(m[1], "B")
}

// plainBytes is a size in the words of allocators, which count in bytes and name no unit.
var plainBytes = later(`(?i)\b(?:m|c|re)alloc of size (\d{1,18})\b`)

var errnoParen = pattern(`memory \(size={size}\)`)

var errnoSize = pattern(`(?:allocate|allocation of|mmap(?:ing)?|map) {size}`)

// notMemory names what the kernel's "cannot allocate memory" means where it is not about RAM.
func notMemory(lower string) string {
	switch {
	case strings.Contains(lower, "static tls block"):
		return "a library was loaded too late for its thread-local storage; import it first, or set " +
			"LD_PRELOAD"
	case strings.Contains(lower, "ibv_reg_mr"), strings.Contains(lower, "memlock"),
		strings.Contains(lower, "ibv_create"):
		return "the limit on locked memory is too low for InfiniBand (ulimit -l)"
	case strings.Contains(lower, "inotify"):
		return "too many watches on files (inotify)"
	}
	return ""
}

func readErrno(p *passage) *Crash {
	t, line := p.text(), p.line()
	lower := strings.ToLower(t)
	if strings.Contains(lower, "defaultcpuallocator") || strings.Contains(lower,
		"you tried to allocate") || aboutCode.MatchString(line) {
		return nil
	}
	if why := notMemory(lower); why != "" {
		return &Crash{Class: Other, Sure: 0.9, Where: event.WhereUnknown, Framework: "other",
			What: why}
	}
	if strings.Contains(line, "--mem-fraction-static") {
		return nil // an inference engine's share of a card
	}
	if p.word == "not enough memory" && (!errorMark.MatchString(line) || musing.MatchString(line)) {
		return nil
	}
	c := &Crash{Class: Exhausted, Sure: proseSure(p, 0.9), Where: event.WhereHost,
		Framework: "other",
		Requested: firstSize(sizeIn(errnoSize, cut(t, 300)), sizeIn(errnoParen, cut(line, 300)))}
	if m := plainBytes.FindStringSubmatch(cut(t, 300)); m != nil {
		c.Requested, c.Sure = parseSize(m[1], "B"), 0.93
	}
	if strings.Contains(t, "OSError") || strings.Contains(t, "Errno 12") ||
		strings.Contains(t, "pyarrow") || strings.Contains(t, "Error:") {
		c.Framework = "python"
	}
	return c
}

// musing is a sentence of somebody who wonders, in which the words are no message.
var musing = later(`(?i)\b(?:when|because|if|both|whether|since|maybe|perhaps|think|believe|seems?|enough and)\b` +
	`[^:\n]{0,60}not enough memory`)

// tooSmall is Windows' sentence about its page file in other languages.
var tooSmall = later(`(?i)auslagerungsdatei ist zu klein|pagination est (?:insuffisant|trop petit)|` +
	`paginaci\S*n es demasiado peque|pagina\S+ \S+ (?:muito )?pequen|подкачки слишком мал|页面文件太小|` +
	`ページング ファイルが小さすぎ|file di paging (?:è )?(?:troppo|insuff)`)

func readPageFile(p *passage) *Crash {
	t := p.text()
	if !strings.Contains(t, "1455") && !strings.Contains(strings.ToLower(t), "paging file") &&
		!tooSmall.MatchString(t) {
		return nil
	}
	c := &Crash{Class: Exhausted, Sure: 0.93, Where: event.WhereHost, Framework: "python",
		What: "Windows could not promise more memory: its page file is too small"}
	if strings.Contains(strings.ToLower(t), "torch") {
		c.Framework = "pytorch"
	}
	return c
}

// deviceAllocator are libraries that allocate on a card in the words of the C++ library.
var deviceAllocator = later(`\bRMM\b|/rmm/|rmm::|thrust::|hipError`)

func readBadAlloc(p *passage) *Crash {
	c := &Crash{Class: Exhausted, Sure: proseSure(p, 0.88), Where: event.WhereHost,
		Framework: "other"}
	// the exception's own line: what is printed below it may speak of a card that has room
	if line := p.line(); strings.Contains(strings.ToLower(line), "cuda") ||
		strings.Contains(line, "out_of_memory") || deviceAllocator.MatchString(line) {
		c.Where = event.WhereGPU
	}
	return c
}

var rSize = pattern(`cannot allocate vector of size {size}`)

func readRVector(p *passage) *Crash {
	return &Crash{Class: Exhausted, Sure: 0.96, Where: event.WhereHost, Framework: "other",
		Requested: sizeIn(rSize, p.text())}
}

func readHeapWords(p *passage) *Crash {
	return &Crash{Class: Exhausted, Sure: proseSure(p, 0.92), Where: event.WhereHost,
		Framework: "other", What: "the program's own heap limit"}
}

func readNotebook(p *passage) *Crash {
	return &Crash{Class: Exhausted, Sure: 0.95, Where: event.WhereHost, Framework: "python"}
}

var daskLimit = pattern(`worker memory limit: {size}`)

func readDask(p *passage) *Crash {
	t := p.text()
	if strings.Contains(t, "Pausing worker") {
		return &Crash{Class: Survived, Sure: 0.8, Where: event.WhereHost, Framework: "python",
			What: "Dask paused a worker"}
	}
	limit := sizeIn(daskLimit, strings.Join(append(p.above(20), p.line()), "\n"))
	if p.word == "killedworker" {
		return &Crash{Class: Exhausted, Sure: 0.7, Where: event.WhereHost, Framework: "python",
			Capacity: limit}
	}
	return &Crash{Class: Exhausted, Sure: 0.9, Where: event.WhereHost, Framework: "python",
		Capacity: limit}
}
