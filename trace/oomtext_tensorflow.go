package trace

import (
	"strconv"
	"strings"

	"memroom/event"
)

// Messages of TensorFlow and of the BFC allocator that it shares with JAX.
var tensorflowWords = []entry{
	{words: []string{"oom when allocating tensor", "oom when allocating"},
		endings: []*ending{tfTensor}},
	{words: []string{"ran out of memory trying to allocate"},
		endings: []*ending{tfSoft, tfAllocator}},
	{words: []string{"failed to allocate"}, endings: []*ending{tfBackpedal}},
	{words: []string{"dst tensor is not initialized", "dst tensor is not copied",
		"failed to create cublas handle", "blas gemm launch failed", "blas xgemm launch failed",
		"could not create cudnn handle", "implicit initialization on gpu",
		"failed to create session"}, endings: []*ending{tfLibrary}},
	{words: []string{"exceeds 10% of"}, endings: []*ending{tfWarning}},
	{words: []string{"resourceexhaustederror", "resource exhausted:"},
		endings: []*ending{tfClassOnly}},
	{words: []string{"memory_limit_:", "maxinuse:", "inuse:   "}, follow: hintBFC},
}

var (
	tfTensor    = &ending{kind: "tf_tensor", read: readTFTensor, frames: true, mayPass: true}
	tfSoft      = &ending{kind: "tf_soft", read: readTFSoft}
	tfAllocator = &ending{kind: "tf_allocator", read: readTFAllocator}
	tfBackpedal = &ending{kind: "tf_backpedal", read: readTFBackpedal}
	tfLibrary   = &ending{kind: "tf_library", read: readTFLibrary, frames: true}
	tfWarning   = &ending{kind: "tf_warning", read: readTFWarning}
	tfClassOnly = &ending{kind: "tf_class", read: readTFClass, frames: true}
)

var (
	tensorShape = later(`(?i)(?:with|of) shape ?(?:TensorShape\()?[\[(]([\d, ]*)[\])]`)
	// the same up to TensorFlow 0.7: shapedim { size: 64 } dim { size: 128 }
	oldShape    = later(`(?i)shape ?((?:dim ?\{ ?size: ?\d+ ?\} ?)+)`)
	tensorType  = later(`(?i)\btype ([a-z_0-9]+)`)
	tensorPlace = later(`(?i)device:(CPU|GPU|TPU|XLA_\w+):\d+|by allocator (\S+)`)
)

// widths are the bytes of one element of TensorFlow's types, as messages name them.
var widths = map[string]int64{"float": 4, "float32": 4, "half": 2, "float16": 2, "bfloat16": 2,
	"double": 8, "float64": 8, "int8": 1, "uint8": 1,
	"bool": 1, "int16": 2, "uint16": 2, "int32": 4, "uint32": 4, "int64": 8, "uint64": 8,
	"complex64": 8, "complex128": 16, "string": 24}

// graphNode is the operation that TensorFlow names below or in its message.
var graphNode = later(`\[\[?\{?\{?(?i:node):? ([^\s={}\]]{1,300})`)

func readTFTensor(p *passage) *Crash {
	t := p.text()
	c := &Crash{Class: Exhausted, Sure: 0.98, Where: event.WhereGPU, Framework: "tensorflow"}
	if m := graphNode.FindStringSubmatch(t); m != nil {
		c.Node = m[1]
	}
	for i, m := range tensorPlace.FindAllStringSubmatch(t, 4) {
		if i == 0 && strings.EqualFold(m[1], "CPU") { // later ones belong to operations that it lists
			c.Where = event.WhereHost
		}
		if m[2] != "" { // the allocator itself is what refused
			c.Where = event.WhereGPU
			if strings.Contains(strings.ToLower(m[2]), "cpu") {
				c.Where = event.WhereHost
			}
			break
		}
	}
	if m := tensorShape.FindStringSubmatch(t); m != nil {
		width := int64(4)
		if of := tensorType.FindStringSubmatch(t); of != nil && widths[strings.ToLower(of[1])] > 0 {
			width = widths[strings.ToLower(of[1])]
		} else if of == nil {
			width = 4 // TensorFlow before 1.4 did not name the type; float is nearly always right
		}
		c.Requested = shapeBytes(m[1], width)
	} else if m := oldShape.FindStringSubmatch(t); m != nil {
		c.Requested = shapeBytes(strings.Join(strings.FieldsFunc(m[1], func(r rune) bool {
			return r < '0' || r > '9'
		}), ","), 4)
	} else if !strings.Contains(strings.ToLower(t), "allocator") {
		c.Sure = proseSure(p, 0.9)
	}
	return c
}

// shapeBytes multiplies dimensions, nil where they are no numbers or overflow.
func shapeBytes(dims string, width int64) *event.Bytes {
	total := width
	for _, d := range strings.Split(dims, ",") {
		d = strings.TrimSpace(d)
		if d == "" {
			continue
		}
		n, err := strconv.ParseInt(d, 10, 64)
		if err != nil || n < 0 || n > 0 && total > (1<<62)/n {
			return nil
		}
		total *= n
	}
	if total == 0 {
		return nil
	}
	b := event.Bytes(total)
	return &b
}

func readTFSoft(p *passage) *Crash {
	t := p.text()
	if !strings.Contains(t, "not a failure") {
		return nil
	}
	return &Crash{Class: Survived, Sure: 0.97, Where: event.WhereGPU, Framework: "tensorflow",
		What: "TensorFlow did without the memory (a larger workspace would only have been faster)"}
}

var (
	bfcAsked   = pattern(`trying to allocate {size}`)
	bfcRounded = later(`\(rounded to (\d+)\)`)
)

func readTFAllocator(p *passage) *Crash {
	t := p.text()
	c := &Crash{Class: Exhausted, Sure: 0.93, Where: event.WhereGPU, Framework: "tensorflow",
		Requested: sizeIn(bfcAsked, t)}
	if m := bfcRounded.FindStringSubmatch(t); m != nil {
		c.Requested = parseSize(m[1], "")
	}
	if strings.Contains(t, "(cpu") || strings.Contains(t, "Allocator (mklcpu") {
		c.Where = event.WhereHost
	}
	return c
}

var driverRefused = later(`(?i)failed to allocate [\d.]+\s?[KMGTP]?i?B? \((\d+) ?(?:bytes|B)\) from device: .{0,40}?(?:CUDA_ERROR_OUT_OF_MEMORY|HIP_ERROR_OutOfMemory|hipError)`)

// readTFBackpedal reads a refusal of the driver, after which TensorFlow asks for nine tenths of the
// size. Whether it got any memory is decided at the end, from the sequence of sizes.
func readTFBackpedal(p *passage) *Crash {
	m := driverRefused.FindStringSubmatch(p.text())
	if m == nil {
		return nil
	}
	return &Crash{Class: Survived, Sure: 0.5, Where: event.WhereGPU, Framework: "tensorflow",
		Requested: parseSize(m[1], ""),
		What:      "the driver refused a size and TensorFlow asked for less"}
}

var cublasFull = pattern(`ALLOC_FAILED|out of memory|OUT_OF_MEMORY|NOT_INITIALIZED|Dst tensor|INTERNAL_ERROR|launch failed`)

// cardFigures is what XLA prints of a card where a library does not start.
var cardFigures = later(`Memory usage: (\d+) bytes free, (\d+) bytes total`)

func readTFLibrary(p *passage) *Crash {
	t := p.text()
	if !cublasFull.MatchString(t) {
		return nil
	}
	if m := cardFigures.FindStringSubmatch(strings.Join(p.following(4), "\n")); m != nil {
		free, total := parseSize(m[1], "B"), parseSize(m[2], "B")
		if free != nil && total != nil && *free > *total/4 {
			return &Crash{Class: Other, Sure: 0.8, Where: event.WhereUnknown, Framework: "tensorflow",
				What: "a GPU library could not start although " + free.String() + " of " + total.String() +
					" were free: its version or that of the driver"}
		}
	}
	if driverNamed.MatchString(strings.Join(p.following(6), "\n")) {
		return driverOld("tensorflow")
	}
	sure := 0.6
	if strings.Contains(t, "ALLOC_FAILED") || strings.Contains(strings.ToLower(t),
		"out of memory") || strings.HasPrefix(p.word, "dst tensor") {
		sure = 0.92
	}
	return &Crash{Class: Exhausted, Sure: sure, Where: event.WhereGPU, Framework: "tensorflow",
		What: "a GPU library could not get memory of its own"}
}

func readTFWarning(p *passage) *Crash {
	if !strings.Contains(p.line(), "Allocation of") {
		return nil
	}
	return &Crash{Class: Survived, Sure: 0.9, Where: event.WhereHost, Framework: "tensorflow",
		What: "a warning about a large allocation in host memory"}
}

func readTFClass(p *passage) *Crash {
	t := p.text()
	lower := strings.ToLower(t)
	switch {
	case strings.Contains(lower, "at the bottom of memory"):
		return nil // a TPU's, read with JAX's
	case strings.Contains(lower, "oom when allocating"), strings.Contains(lower, "out of memory"),
		strings.Contains(lower, "failed to allocate") && !strings.Contains(lower,
			"failed to allocate memory"):
		return nil // the fuller message follows and is read on its own
	case quota.MatchString(t):
		return &Crash{Class: Other, Sure: 0.85, Where: event.WhereUnknown, Framework: "other",
			What: "a quota or message size was exceeded, not memory"}
	}
	return &Crash{Class: Exhausted, Sure: proseSure(p, 0.75), Where: event.WhereGPU,
		Framework: "tensorflow"}
}
