package explain

import (
	"slices"
	"strings"

	"memroom/event"
	"memroom/lazyregexp"
	"memroom/trace"
)

// byPool knows pools of worker processes, and what their users name as the cause of a lost one.
func byPool(c *trace.Crash, h *trace.Hints) (judged, bool) {
	switch c.Kind {
	case "kernel_died":
		return because(CauseUnknown, "limit", 0,
			"the notebook's kernel died and the message names no reason: memory is the usual one, a crash "+
				"in native code the other; the server's log or dmesg tells"), true
	case "pool_worker":
	default:
		if onHost(c) && has(c, trace.SignMerging) && len(c.Frames) == 0 {
			return because(CauseModel, "merge", 0.65,
				"adapters were being merged: the full weights, and a copy of those that change, are in "+
					"host memory"), true
		}
		if onHost(c) && has(c, trace.SignPool) && c.Steps == 0 && (c.Kind == "errno_memory" ||
			arrowRefused.MatchString(c.Text)) {
			detail, who := "pool_workers", "a pool of processes"
			if has(c, trace.SignDatasets) {
				detail, who = "map_writer", "map (datasets)"
			}
			return because(CauseHostData, detail, 0.55,
				"memory was refused in or beside the workers of %s: each of them holds its own copy of the "+
					"program, its data and its results", who), true
		}
		if onHost(c) && has(c, trace.SignDatasets) && len(c.Frames) == 0 && (c.Steps == 0 ||
			has(c, trace.SignPool)) {
			return because(CauseHostData, "map_writer", 0.55,
				"map (datasets) was running: each of its processes holds its own batch, results and what "+
					"the function captures"), true
		}
		return judged{}, false
	}
	switch {
	case has(c, trace.SignDatasets):
		return because(CauseHostData, "map_writer", 0.55,
			"a process of map (datasets) died: each process holds its own batch, results and what the "+
				"function captures"), true
	case has(c, trace.SignNNUNet):
		return because(CauseHostData, "pool_workers", 0.55,
			"a background worker of the loader died: each of them holds whole volumes in host memory"), true
	}
	return because(CauseHostData, "pool_workers", 0.55,
		"a worker process of the pool died: each of them holds its own copy of the data and results"), true
}

// arrowRefused is the refusal of memory by Arrow, which pools of workers share out.
var arrowRefused = lazyregexp.New(`(?i)ArrowMemoryError|\bre?alloc of size|malloc of size`)

// byImages knows programs that generate images: nothing is trained, so the cures of training are
// none.
func byImages(c *trace.Crash, h *trace.Hints) (judged, bool) {
	if !onCard(c) || !drawing(c, h) {
		return judged{}, false
	}
	j := because(CauseModel, "images", 0.55,
		"an image or clip was being generated: weights of several models and the whole picture are on "+
			"the card")
	if _, decoding := frameOf(c, stage{names: []string{"decode", "decode_first_stage", "decode_tiled_",
		"vae_decode", "decode_latents"}}); decoding {
		j = j.also("it failed while latents were decoded (VAE), which is the peak of most pipelines")
	}
	return j, true
}

// byGrowth uses the figures that a program prints about itself.
func byGrowth(c *trace.Crash, _ *trace.Hints) (judged, bool) {
	grown := c.Signs[trace.SignGrowth]
	if grown == "" || c.Where == event.WhereShm || c.Framework == "other" && onCard(c) {
		return judged{}, false
	}
	if onHost(c) {
		return because(CauseLeak, "growth_host", 0.65,
			"the memory that the program prints rises from %s: something is kept or cached from step to step",
			grown), true
	}
	return because(CauseLeak, "growth_seen", 0.65,
		"the memory that the program prints rises from %s: something is kept from step to step", grown), true
}

// Sizes that say that a card was full before the program asked for much.
const (
	smallAsk     = 64 * event.MiB
	smallProgram = 256 * event.MiB
)

// byFullBefore knows small requests of TensorFlow and JAX at their start: their own pool is taken
// at once, so a refusal of little means that somebody else holds the card.
func byFullBefore(c *trace.Crash, h *trace.Hints) (judged, bool) {
	if c.Where == event.WhereGPU && c.Framework == "jax" && has(c, trace.SignRefused) &&
		c.Requested != nil && *c.Requested <= event.GiB && c.Steps == 0 {
		return because(CauseNeighbour, "full_before", 0.65,
			"the driver refused the share that JAX takes at its start, then %s: PyTorch or TensorFlow in "+
				"the same program, or another process, holds the card", *c.Requested), true
	}
	if left := first(c.Signs[trace.SignSmallPool], h.Signs[trace.SignSmallPool]); left != "" &&
		c.Where == event.WhereGPU && c.Framework == "tensorflow" {
		return because(CauseNeighbour, "full_before", 0.65,
			"TensorFlow found only %s free on the card when it started: another process holds the rest, "+
				"or a limit that the program sets for itself", left), true
	}
	if c.Where != event.WhereGPU || c.Requested == nil || *c.Requested > smallAsk ||
		c.Allocated != nil && *c.Allocated > smallProgram {
		return judged{}, false
	}
	switch {
	case c.Kind == "jax_exhausted" && c.Capacity == nil && c.Free == nil && c.Steps == 0 &&
		firstArrays(c):
		j := because(CauseNeighbour, "full_before", 0.6,
			"only %s were asked for: the card was full already, by another process or by the share that "+
				"JAX or TensorFlow takes at its start", *c.Requested)
		if seen(c, h, trace.SignTFInJAX) {
			j = j.also("TensorFlow runs in the same process: tf.config.set_visible_devices([], 'GPU') keeps " +
				"it off the card")
		}
		return j, true
	case c.Kind == "tf_tensor" && c.Capacity == nil && weightNode.MatchString(c.Node) &&
		!modelNumber.MatchString(c.Node):
		return because(CauseNeighbour, "full_before", 0.55,
				"a weight of %s could not be created: another process, or an earlier model of this one, holds "+
					"the card", *c.Requested),
			true
	}
	return judged{}, false
}

// makesFirst are functions that make a program's first arrays, and look for its devices.
var makesFirst = lazyregexp.New(`(?i)^(?:PRNGKey|prng_key|key|threefry_seed|random_seed_\w*|seed|device_put|` +
	`_?device_put_\w+|init|init_\w+|_init_\w+|setup\w*|backends?|get_backend|local_devices|devices|random_bits|` +
	`create_train_state|initiali[sz]e\w*|replicate)$`)

// firstArrays reports whether the innermost lines of a traceback make a program's first arrays.
func firstArrays(c *trace.Crash) bool {
	return slices.ContainsFunc(c.Frames, func(f event.Frame) bool {
		return makesFirst.MatchString(f.Name)
	}) && !passIn(c.Frames)
}

// withStage adds what the program itself was doing on a card that others hold, or that is nearly
// full apart from its idle pieces. Both matter: even without the neighbour, a large request may not
// fit.
func withStage(j judged, c *trace.Crash, h *trace.Hints) judged {
	short := j.cause == CauseFragmentation && j.confidence < sureOfPieces
	if j.cause != CauseNeighbour && !short || j.detail != "" || len(c.Frames) == 0 {
		return j
	}
	if at, ok := byImages(c, h); ok {
		j.beside = at.detail
		return j.also("%s", at.evidence[0])
	}
	at, ok := byStage(c, h)
	if !ok {
		if at, ok = byTraceback(c, h); !ok {
			return j
		}
	}
	if len(at.evidence) == 0 || at.detail == "context" {
		return j
	}
	j.beside = at.detail
	if at.detail == "load_to_card" {
		j.detail = "load_beside"
		return j.also("%s: every rank that loads so lands on the card it was saved from", at.evidence[0])
	}
	return j.also("the request itself came %s", strings.TrimSuffix(at.evidence[0], "."))
}

// withEngine adds that an inference engine on the same card holds a share of it, where a training
// step is what failed.
func withEngine(j judged, c *trace.Crash, h *trace.Hints) judged {
	share := first(c.Signs[trace.SignEngine], h.Signs[trace.SignEngine])
	if share == "" || !onCard(c) || j.cause != CauseBatch && j.cause != CauseModel ||
		j.beside != "" || !seen(c, h, trace.SignPreference) {
		return j
	}
	j.beside = "serving_start"
	return j.also("an inference engine takes %s of the card for itself, beside the training", share)
}
