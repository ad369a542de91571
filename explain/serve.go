package explain

import (
	"slices"

	"memroom/lazyregexp"
	"memroom/trace"
)

// Buffers that llama.cpp and its kin name when one does not fit.
var (
	computeBuffer = lazyregexp.New(`(?i)gallocr|compute (?:pp )?buffer|graph_reserve`)
	cacheBuffer   = lazyregexp.New(`(?i)kv[ _-]?(?:cache|buffer|self)`)
)

// byBuffer distinguishes the buffers of llama.cpp: the weights, the cache, and the buffer that a
// prompt needs.
func byBuffer(c *trace.Crash) judged {
	switch {
	case c.Kind == "ollama":
		return because(CauseModel, "engine_weights", 0.7, "the weights and the context do not fit").
			saying("the weights and the context do not fit")
	case computeBuffer.MatchString(c.Text):
		return because(CauseModel, "engine_compute", 0.7,
			"the compute buffer did not fit: it grows with the context and with the tokens of a prompt that "+
				"are worked on at once")
	case cacheBuffer.MatchString(c.Text):
		return because(CauseModel, "engine_compute", 0.7,
			"the cache of keys and values did not fit: it grows with the context and with requests at once")
	}
	if onHost(c) {
		return because(CauseModel, "engine_weights", 0.7,
			"a buffer for the weights of layers that are not on the card did not fit in host memory").
			saying("the weights that stay in host memory do not fit")
	}
	return because(CauseModel, "engine_weights", 0.7,
		"a buffer for the weights of the layers on the card did not fit")
}

// byServer knows programs that serve requests: weights and the cache that they reserve fill a card,
// and a request comes on top.
func byServer(c *trace.Crash, h *trace.Hints) (judged, bool) {
	if c.Framework == "tensorflow" && onCard(c) && seen(c, h, trace.SignServing) && !learns(c, h) {
		if m := leadingShape.FindStringSubmatch(c.Text); m != nil && m[1] != "1" {
			return because(CauseBatch, "request_batch", 0.6,
				"the program serves requests, and the first dimension of the tensor is %s: the batch of one request, or of "+
					"several that were joined", m[1]), true
		}
	}
	if !onCard(c) || !has(c, trace.SignServing) || learns(c, h) || drawing(c, h) {
		return judged{}, false
	}
	name := serverOf(c, h)
	if name == "" {
		return judged{}, false
	}
	if at, ok := frameOf(c, engineLoads); ok && !passIn(c.Frames) {
		return because(CauseModel, "engine_load", 0.7,
			"the engine was loading its weights (%s): they do not fit, whatever share it is given",
			at), true
	}
	if !slices.Contains(keepsCache, name) {
		return because(CauseModel, "serving_request", 0.55,
			"the program serves requests: the models that it holds fill the card, and what a request needs "+
				"comes on top"), true
	}
	return because(CauseModel, "serving_request", 0.55,
		"the program serves requests: its weights and the room that it keeps for the cache fill the card, and "+
			"what a request needs comes on top"), true
}

// keepsCache are servers that keep room for keys and values of text.
var keepsCache = []string{"vllm", "sglang", "tgi", "ollama", "llama.cpp", "tensorrt-llm",
	"lmdeploy"}

// engineLoads are frames in which an inference engine makes and reads its weights.
var engineLoads = stage{names: []string{"load_model", "get_model", "create_weights",
	"_initialize_model", "initialize_model", "make_layers", "process_weights_after_loading"},
	files: []string{"model_loader"}}

// pickling are frames that turn an object into bytes; torch.save does so too, but that is a
// checkpoint.
var (
	pickling = stage{names: []string{"collect_results_cpu", "collect_results", "dump_to_fileobj",
		"dump_to_path", "collect_results_gpu"},
		code: []string{"pickle.dump", "pickle.dumps", "joblib.dump", "cPickle.dump", "dill.dump",
			"mmcv.dump(", "mmengine.dump("}}
	checkpointing = stage{files: []string{"torch/serialization",
		"paddle/framework"}, names: []string{"state_dict", "save_checkpoint", "save_pretrained"},
		code: []string{"torch.save(", "state_dict", "param_dict"}}
)

// byPickle knows objects that are pickled: results of an evaluation that were collected, or data.
func byPickle(c *trace.Crash, _ *trace.Hints) (judged, bool) {
	if !onHost(c) {
		return judged{}, false
	}
	i, ok := pickling.in(c)
	if _, saves := checkpointing.in(c); !ok || saves || spawned(c) {
		return judged{}, false
	}
	at := c.Frames[i]
	if _, evaluating := evaluationIn(c); evaluating || collecting.MatchString(at.Name) {
		return because(CauseHostData, "eval_results", 0.7,
			"the results of all evaluation batches are collected and pickled (%s in %s): they are in host "+
				"memory twice while that runs", at.Name, at.File), true
	}
	return because(CauseHostData, "pickled", 0.65,
		"an object is pickled as a whole (%s in %s): its bytes are built in host memory beside it",
		at.Name, at.File), true
}

var collecting = lazyregexp.New(`^collect_results`)

// byTaken knows a first call to a card that fails without figures: PyTorch's own pool would have
// printed some, so it is the driver that refused, and a table above may show why.
func byTaken(c *trace.Crash) (judged, bool) {
	i, moving := movingModel.in(c)
	if c.Kind != "torch_raw" || !moving || c.Steps > 0 || passIn(c.Frames[:i]) {
		return judged{}, false
	}
	if taken := c.Signs[trace.SignTaken]; taken != "" {
		return because(CauseNeighbour, "full_before", 0.75,
			"a table above shows a card of which %s are taken before this program uses it", taken), true
	}
	return because(CauseUnknown, "full", 0,
		"the first call to the card failed, and the message has no figures: the card was full before this "+
			"program had anything there, or its model does not fit").
		saying("it is not shown whether another process holds the card or the model is too large"), true
}
