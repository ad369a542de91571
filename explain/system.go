package explain

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"memroom/event"
	"memroom/lazyregexp"
	"memroom/remedy"
	"memroom/trace"
)

// Sizes that nobody means: no machine has them, or they are many times the card.
const (
	beyondAnyMachine = 64 * event.TiB
	beyondTheCard    = 16 // times its capacity
	beyondReason     = 1000
	largerThanCard   = 1.0
)

// byMistake knows requests that no card could serve.
func byMistake(c *trace.Crash, h *trace.Hints) (judged, bool) {
	if c.Requested == nil || c.Kind == "serving_cache" || c.Framework == "ray" {
		return judged{}, false
	}
	asked := *c.Requested
	if c.Capacity == nil || *c.Capacity <= 0 || !onCard(c) {
		if asked < beyondAnyMachine {
			return judged{}, false
		}
		return because(CauseBug, "bad_size", 0.9,
			"no machine has %s: a wrong shape, index or size was computed", printed(asked)).
			saying("no machine has that much: this is a bug, not a shortage"), true
	}
	times := timesCard(c)
	switch {
	case times >= beyondTheCard && times < beyondReason && slices.ContainsFunc(c.Code,
		madeDense.MatchString):
		n := math.Sqrt(float64(asked) / 4)
		j := because(CauseBatch, "one_tensor", 0.7,
			"a sparse adjacency or matrix is made dense: about %s x %s values of 4 bytes, whatever the batch", rounded(n), rounded(n)).
			saying("that is one dense table of about %s x %s, whatever the batch", rounded(n), rounded(n))
		j.words = []ownCure{{remedy.InParts, "keep it sparse, or make a part of it at a time",
			"a model that works on edges; sampled subgraphs (NeighborLoader) before it is made dense"}}
		return j, true
	case times >= beyondTheCard && times < beyondReason:
		return because(CauseBug, "far_beyond", 0.75,
			"one tensor of %s is %.0f times the card: a wrong shape or index, or all with all of a large input; no "+
				"batch is that large", printed(asked), times).
			saying("that is %.0f times the card: a wrong shape or index, or all pairs of a large input, not a batch",
				times), true
	case times >= beyondTheCard:
		return because(CauseBug, "bad_size", 0.9,
			"one tensor of %s is %.0f times the card: a wrong shape or index, not a batch",
			printed(asked), times).
			saying("that is %.0f times the card: a bug (a wrong shape or index), not a shortage",
				times), true
	case times >= largerThanCard && len(c.Frames) == 0 && !wholeProgram.MatchString(c.Text):
		return oversized(c, h), true
	}
	return judged{}, false
}

var madeDense = re(`to_dense(?:_adj)?\(|\.todense\(|\.toarray\(`)

// wholeProgram is XLA's sum over a compiled program, which is no tensor.
var wholeProgram = lazyregexp.New(`Used [\d.]+[KMGT] of [\d.]+[KMGT]|hbm capacity by|hbm usage`)

// timesCard is the request as a multiple of the card, 0 where either is not known.
func timesCard(c *trace.Crash) float64 {
	if c.Requested == nil || c.Capacity == nil || *c.Capacity <= 0 || !onCard(c) ||
		wholeProgram.MatchString(c.Text) {
		return 0
	}
	return float64(*c.Requested) / float64(*c.Capacity)
}

// printed writes sizes that have no unit of their own.
func printed(b event.Bytes) string {
	if b >= 1<<60 {
		return "more than 1EiB"
	}
	return b.String()
}

// properName writes a framework as its makers do.
func properName(framework string) string {
	switch framework {
	case "jax":
		return "JAX"
	case "tensorflow":
		return "TensorFlow"
	}
	return "the framework"
}

// contextRefused are calls that fail before a program has memory of its own on a card.
var contextRefused = lazyregexp.New(`cuCtxCreate|cudaSetDevice|implicit initialization on GPU`)

// privateShare is the part of live memory in private pools from which they are the cause.
const privateShare = 0.3

// bySystem knows limits that are not the size of the card: caps, pools of CUDA graphs, locked host
// memory, Windows' promise of memory, Apple's share.
func bySystem(c *trace.Crash, h *trace.Hints) (judged, bool) {
	steps := []func(*trace.Crash, *trace.Hints) (judged, bool){
		bySmallDevice, byPrivatePools, byPinned, byCap, byOnePiece, byRefusal, byApple,
	}
	for _, step := range steps {
		if j, ok := step(c, h); ok {
			return j, true
		}
	}
	switch c.Kind {
	case "no_batch_left":
		return because(CauseModel, "", 0.6,
			"not even a batch of one fitted: the model with its gradients and optimizer state fills the "+
				"card"), true
	case "tf_backpedal":
		return because(CauseNeighbour, "", 0.65,
				"the driver refused even a small size at the start: another process holds the card"),
			true
	case "tf_library":
		if has(c, trace.SignRefused) {
			return because(CauseNeighbour, "library_start", 0.7,
				"the driver refused the share that is taken at the start: another process holds part of the "+
					"card"), true
		}
		if !strings.Contains(c.Text, "Dst tensor") {
			return because(CauseSetting, "library_start", 0.55,
				"%s takes most of the card at once, which leaves libraries such as cuDNN and cuBLAS too little",
				properName(c.Framework)), true
		}
	case "library_status":
		if c.Sure < 0.8 && c.Framework == "pytorch" {
			cause, sure := CauseUnknown, 0.0
			if passIn(c.Frames) {
				cause, sure = CauseBatch, 0.5
			}
			return because(cause, "handle", sure,
				"a library could not make its handle on the card, and the message has no figures: the card was full, "+
					"or a kernel had failed before (an index out of range); run on the CPU, or with "+
					"CUDA_LAUNCH_BLOCKING=1, the second shows itself").
				saying("a full card (a batch that is too large, or another process) is one reason, a kernel that " +
					"failed before it the other"), true
		}
		if c.Framework == "tensorflow" || c.Framework == "jax" {
			return because(CauseSetting, "library_start", 0.55,
				"%s takes most of the card at once, which leaves libraries such as cuDNN and cuBLAS too little",
				properName(c.Framework)), true
		}
	case "page_file":
		return because(CauseSetting, "page_file", 0.9,
			"Windows' commit limit (RAM and page file together) was reached"), true
	}
	return judged{}, false
}

// smallDevice is a size that no card for such work has; the share that an integrated GPU is given
// is that small.
const smallDevice = event.GiB

// bySmallDevice knows programs that run on the wrong one of two devices.
func bySmallDevice(c *trace.Crash, _ *trace.Hints) (judged, bool) {
	if c.Kind != "torch_device" || c.Where != event.WhereGPU || c.Capacity == nil ||
		*c.Capacity > smallDevice || c.Capped || c.Free != nil && *c.Free > *c.Capacity {
		return judged{}, false
	}
	return because(CauseSetting, "small_device", 0.7,
		"the device that the program uses has %s in all, as the share of an integrated GPU does", *c.Capacity).
		saying("the device that it uses is too small, not the work"), true
}

func byPrivatePools(c *trace.Crash, h *trace.Hints) (judged, bool) {
	if c.Private == nil || c.Allocated == nil ||
		float64(*c.Private) < privateShare*float64(*c.Allocated) {
		return judged{}, false
	}
	j := because(CauseSetting, "cuda_graphs", 0.8,
		"%s of the %s in use lie in private pools of CUDA graphs", *c.Private, *c.Allocated)
	if sizes := first(c.Signs[trace.SignGraphSizes], h.Signs[trace.SignGraphSizes]); sizes != "" {
		j = j.also("%s distinct input sizes were seen: each records a graph of its own", sizes)
	}
	return j, true
}

func first[T comparable](values ...T) T {
	var zero T
	for _, v := range values {
		if v != zero {
			return v
		}
	}
	return zero
}

// lockedByTF is the refusal of host memory by the CUDA driver, in TensorFlow's words.
var lockedByTF = lazyregexp.New(`failed to alloc(?:ate)? \d+ bytes on host: CUDA_ERROR_OUT_OF_MEMORY`)

// locking are frames that lock host memory.
var locking = stage{names: []string{"pin_memory", "_pin_memory_loop", "do_one_step"},
	files: []string{"_utils/pin_memory.py"}, code: []string{".pin_memory(", "cudaHostAlloc",
		"cudaHostRegister"}}

// byPinned knows refusals of locked host memory, which CUDA reports as its own shortage.
func byPinned(c *trace.Crash, h *trace.Hints) (judged, bool) {
	if c.Kind == "device_code" && onHost(c) && lockedByTF.MatchString(c.Text) {
		return because(CauseSetting, "pinned", 0.75,
			"TensorFlow asked the driver for host memory that is locked for copies to the card").
			saying("pinned host memory ran out, not the card"), true
	}
	if c.Where != event.WhereGPU || c.Capacity != nil {
		return judged{}, false
	}
	frame, pinned := frameOf(c, locking)
	wsl := seen(c, h, trace.SignWSL)
	switch {
	case pinned && wsl:
		return because(CauseSetting, "pinned", 0.85,
			"the call locks host memory (%s), and WSL lets only part of it be locked", frame).
			saying("pinned host memory ran out, not the card"), true
	case pinned || strings.Contains(c.Text, "cudaHostAlloc"):
		return because(CauseSetting, "pinned", 0.75,
			"the call locks host memory (%s); the card is not asked for any", frame).
			saying("pinned host memory ran out, not the card"), true
	case wsl && c.Kind == "torch_raw":
		return because(CauseSetting, "wsl", 0.6,
			"under WSL the driver also fails like this when host memory cannot be locked or promised").
			also("the message has no figures of the card, so it is not shown to be full").
			saying("under WSL that is often host memory, not the card"), true
	}
	return judged{}, false
}

// byCap knows the cap that a program sets for itself.
func byCap(c *trace.Crash, _ *trace.Hints) (judged, bool) {
	if !c.Capped || c.Free == nil || c.Requested == nil || *c.Free < *c.Requested {
		return judged{}, false
	}
	return because(CauseSetting, "own_cap", 0.85,
		"the program allows itself %s of the card (set_per_process_memory_fraction), and %s are free",
		*c.Capacity, *c.Free), true
}

// A refusal is not the card's where clearly more than the request is free, and that not just
// because memory was given back between the failure and the message.
const (
	freeEnough = 1.2 // times the request
	freeShare  = 0.1 // of the card
)

// onePiece is the largest allocation that Intel's driver grants by default.
const onePiece = 4 * event.GiB

// byOnePiece recognises refusals on Intel's cards, whose message does not print the free memory:
// the program holds little, and the card is large.
func byOnePiece(c *trace.Crash, _ *trace.Hints) (judged, bool) {
	if !strings.Contains(c.Text, "XPU out of memory") || c.Requested == nil || c.Capacity == nil ||
		c.Allocated == nil || c.Free != nil {
		return judged{}, false
	}
	held := *c.Allocated
	if c.Idle != nil {
		held += *c.Idle
	}
	if float64(held+*c.Requested) > 0.8*float64(*c.Capacity) {
		return judged{}, false
	}
	j := because(CauseSetting, "one_piece", 0.6,
		"this process holds %s of %s, and %s were refused: the card should have had room", held,
		*c.Capacity, *c.Requested)
	if *c.Requested < onePiece {
		j = j.saying("why the driver refused is not shown")
	} else {
		j = j.also("Intel's driver grants at most 4 GiB at once unless " +
			"UR_L0_ENABLE_RELAXED_ALLOCATION_LIMITS=1 is set before the program starts")
	}
	return j, true
}

// byRefusal knows requests that the driver refuses although the card has room.
func byRefusal(c *trace.Crash, h *trace.Hints) (judged, bool) {
	if c.Where != event.WhereGPU || c.Free == nil || c.Requested == nil || c.Capacity == nil ||
		c.Kind == "serving_cache" || *c.Free > *c.Capacity ||
		float64(*c.Free) < freeShare*float64(*c.Capacity) ||
		float64(*c.Free) < freeEnough*float64(*c.Requested) {
		return judged{}, false
	}
	j := because(CauseSetting, "refused", 0.7,
		"the driver refused %s although %s were free: the card was not full", *c.Requested,
		*c.Free)
	if posix(c) && !seen(c, h, trace.SignWSL) {
		return j.also("in containers and slices of a card that is a quota, else host memory that the driver " +
			"needs beside it, a bug of the driver, or a neighbour that came and went").
			saying("why the driver refused is not shown"), true
	}
	j = j.also("on Windows that is the commit limit (page file too small for RAM and card together), " +
		"in containers and MIG slices a quota, else a neighbour that came and went")
	if seen(c, h, trace.SignWindows) || seen(c, h, trace.SignWSL) {
		j.confidence = 0.8
	}
	return j.saying("host memory or the page file may be what is short"), true
}

// byApple knows what fills the share of memory that Apple's GPU may use.
func byApple(c *trace.Crash, h *trace.Hints) (judged, bool) {
	if c.Where == event.WhereMPS && c.Capacity != nil && c.Elsewhere != nil && c.Allocated != nil &&
		c.Requested != nil && float64(*c.Allocated+*c.Elsewhere+*c.Requested) <
		0.8*float64(*c.Capacity) {
		return because(CauseSetting, "refused", 0.7,
			"%s and %s elsewhere are in use of the %s allowed: the limit was not reached, Metal itself refused "+
				"%s, as in virtual machines or when the whole machine is short", *c.Allocated, *c.Elsewhere,
			*c.Capacity, *c.Requested).
			saying("the limit was not reached: the machine itself is short, or Metal is not usable there"), true
	}
	if c.Where != event.WhereMPS || c.Capacity == nil || c.Elsewhere == nil ||
		c.Allocated == nil || *c.Elsewhere < *c.Allocated {
		return judged{}, false
	}
	j := because(CauseSetting, "mps_elsewhere", 0.6,
		"%s of the %s allowed are other allocations of the process, outside of PyTorch's pool (%s)",
		*c.Elsewhere, *c.Capacity, *c.Allocated)
	if seen(c, h, trace.SignMPSLate) {
		j = j.also("the watermark variable is set inside the program: it has no effect after torch " +
			"was imported; set it before the program starts")
	}
	return j, true
}

// frameOf names the frame that shows a stage.
func frameOf(c *trace.Crash, s stage) (string, bool) {
	if i, ok := s.in(c); ok {
		return fmt.Sprintf("%s in %s", c.Frames[i].Name, c.Frames[i].File), true
	}
	return "", false
}
