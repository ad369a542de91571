package trace

import (
	"strings"

	"memroom/event"
)

// Messages of XLA, as JAX passes them on.
var jaxWords = []entry{
	{words: []string{"resource_exhausted", "of memory while trying to allocate"},
		endings: []*ending{jaxExhausted}},
	{words: []string{"ran out of memory in memory space"}, endings: []*ending{jaxExhausted}},
	{words: []string{"failed to allocate request for"}, endings: []*ending{jaxExhausted}},
	{words: []string{"at the bottom of memory"}, endings: []*ending{jaxExhausted}},
	{words: []string{"exceeded hbm capacity by", "total hbm usage >=", "program hbm requirement"},
		endings: []*ending{xlaTable}},
}

var jaxExhausted = &ending{kind: "jax_exhausted", read: readJAX, frames: true, mayPass: true}

// xlaTable is the compiler's table of a program's memory where the message above it is missing.
var xlaTable = &ending{kind: "jax_exhausted", read: readXLATable, frames: true}

var (
	xlaTotal  = pattern(`total hbm usage >= {size}`)
	xlaNeeds  = pattern(`program hbm requirement {size}`)
	xlaBeyond = pattern(`exceeded hbm capacity by {size}`)
	xlaHeader = pattern(`resource_exhausted|ran out of memory in memory space|at the bottom of memory`)
)

func readXLATable(p *passage) *Crash {
	t := strings.Join(append(p.above(12), p.following(12)...), "\n")
	beyond := sizeIn(xlaBeyond, t)
	if xlaHeader.MatchString(t) || beyond == nil && !strings.Contains(t,
		"Largest program allocations") {
		return nil // the message itself, or the table of a program that fits
	}
	c := &Crash{Class: Exhausted, Sure: 0.85, Where: event.WhereGPU, Framework: "jax",
		Requested: firstSize(sizeIn(xlaTotal, t), sizeIn(xlaNeeds, t))}
	if c.Requested != nil && beyond != nil {
		c.Capacity = minus(c.Requested, beyond)
	}
	if m := xlaUsedOf.FindStringSubmatch(t); m != nil {
		c.Requested, c.Capacity = parseSize(m[1], m[2]), parseSize(m[3], m[4])
	}
	return c
}

var (
	xlaAsked  = pattern(`(?:trying to allocate|allocating|failed to allocate request for|attempting to (?:reserve|allocate)) {size}`)
	xlaExact  = pattern(`request for [\d.]+\s?[KMGT]?i?B \({size}\)`)
	xlaUsedOf = pattern(`used {size} of {size}\s*(?:hbm|vmem|smem|cmem|memory)?`)
	xlaTensor = pattern(`Hbm usage: {size}`)
	xlaLimit  = pattern(`exceeding available bytes: {size}`)
	tfMessage = pattern(`OOM when allocating|tensorflow/|\bnode\b.*\{\{`)
	quota     = pattern(`quota|rate limit|received message larger|message larger than max|grpc_status|too many requests|exceeded your current|requests per|resource has been exhausted`)
	xlaMemory = pattern(`memory|allocat|hbm|reserve`)
	xlaFree   = pattern(`there are {size} free`)
	xlaHBM    = pattern(`HBM capacity {size}`)
	xlaHeld   = pattern(`Currently allocated:[^\n]{0,40}\(\s*{size}\)`)
	// no program needs nothing
	emptyAsked = later(`(?i)(?:trying to allocate|allocating|failed to allocate request for) 0(?:\.0+)? ?(?:bytes|B)\b`)
	// the words of XLA's client for the CPU, which allocates without a pool
	xlaHostSide = pattern(`out of host memory|memory space host|out of memory allocating \d+ bytes\b`)
	// a program of XLA that runs on the CPU
	xlaOnCPU = pattern(`TFRT_?CPU|CpuDevice|CpuExecutable|backend[ =:"']{1,3}cpu\b|falling back to cpu|jax_platform(?:s|_name)?\W{1,4}cpu\b|device:CPU:0 by allocator cpu`)
)

// emptyTensor explains a refusal of zero bytes.
const emptyTensor = "0 bytes were refused: no shortage, but an empty tensor that the compiler or a library does " +
	"not take"

// xlaPadding is XLA's line about an array that its layout makes larger.
var xlaPadding = later(`Extra memory due to padding: [\d.]+[KMG] \([\d.]+x expansion\)`)

func readJAX(p *passage) *Crash {
	t := p.text()
	switch {
	case tfMessage.MatchString(t) && strings.Contains(t, "OOM when allocating"):
		return nil // TensorFlow's, read there
	case quota.MatchString(t) && !xlaUsedOf.MatchString(t):
		return &Crash{Class: Other, Sure: 0.9, Where: event.WhereUnknown, Framework: "other",
			What: "a quota or message size was exceeded, not memory"}
	case !xlaMemory.MatchString(t):
		return nil
	case driverRefused.MatchString(t):
		return nil
	}
	if emptyAsked.MatchString(t) {
		return &Crash{Class: Other, Sure: 0.9, Where: event.WhereUnknown, Framework: "jax",
			What: emptyTensor}
	}
	c := &Crash{Class: Exhausted, Sure: 0.97, Where: event.WhereGPU, Framework: "jax"}
	if xlaHostSide.MatchString(t) || xlaOnCPU.MatchString(strings.Join(append(p.above(60), t), "\n")) {
		c.Where = event.WhereHost
	}
	c.Requested = firstSize(sizeIn(xlaExact, t), sizeIn(xlaAsked, t), sizeIn(xlaTensor, t))
	c.Capacity, c.Free = sizeIn(xlaLimit, t), sizeIn(xlaFree, t)
	if p.word == "at the bottom of memory" { // the compiler's table of a TPU core stands below
		table := strings.Join(p.following(8), "\n")
		c.Capacity, c.Allocated = sizeIn(xlaHBM, table), sizeIn(xlaHeld, table)
	}
	if pads := xlaPadding.FindStringSubmatch(strings.Join(p.following(80), "\n")); pads != nil &&
		!xlaPadding.MatchString(t) {
		c.Text = cut(t, maxCrashText) + " " + pads[0] // in a table below, too far to belong to the message
	}
	if m := xlaUsedOf.FindStringSubmatch(t); m != nil {
		c.Requested, c.Capacity = parseSize(m[1], m[2]), parseSize(m[3], m[4])
	}
	return c
}
