package explain

import (
	"strconv"
	"strings"

	"memroom/event"
	"memroom/remedy"
)

// The parts of a card that weights alone, or weights with what training keeps for them, must take
// to be the cause before anything is computed.
const (
	mostOfCard = 0.9
	muchOfCard = 0.65
	longSample = 4096 // tokens, from which a context is long
)

// weightsBeyond: the model that is named has more weights than the card that is named has room for,
// by the width that the text shows.
func weightsBeyond(f *Facts, s Sums) (judged, bool) {
	c, m := f.Crash, f.Ran.Model
	capacity, whose := f.card(s)
	if f.Ran.Runtime == LlamaCPP && onHost(c) && s.Asked > s.Capacity {
		capacity, whose = s.Capacity, "the machine"
	} else if !onCard(c) && c.Where != event.WhereUnknown {
		return judged{}, false
	}
	if m.Billions == 0 || capacity == 0 || c.Steps > 0 || c.Kind == "serving_cache" ||
		cacheFailed.MatchString(f.text) ||
		f.Ran.Divided || drawing(c, f.Hints) || f.ranSome() || passIn(c.Frames) || s.Others > capacity/10 ||
		has(c,
			"epochs") {
		return judged{}, false
	}
	each, width := m.Each, m.Width
	if each == 0 {
		each, width = 2, "16 bits"
		switch f.Ran.Runtime {
		case Exported:
			each, width = 4, "32 bits"
		case LlamaCPP:
			each, width = 0.56, "4 bits"
		}
	}
	taken, least := m.weights(each), mostOfCard
	if f.Ran.Runtime == Translate || f.Ran.Runtime == Exported {
		least = muchOfCard // beside what an encoder or an arena takes
	}
	if float64(taken) <= least*float64(capacity) {
		return judged{}, false
	}
	j := because(CauseModel, "load", 0.7, "%s: %s weights are %s in %s, and %s has %s", m.Name,
		billions(m.Billions), taken, width, whose, capacity).
		saying("the weights alone take %s in %s, of %s", taken, width, capacity)
	if taken > capacity {
		j = j.saying("the weights alone take more than %s has: %s in %s, of %s",
			map[bool]string{true: "the machine", false: "one card"}[onHost(c)], taken, width, capacity)
	}
	j.words = f.smallerWeights(each, capacity)
	return j, true
}

// ranSome reports whether the text tells of work that had gone well: what is loaded once did fit.
func (f *Facts) ranSome() bool {
	return late.MatchString(f.Said.Of) ||
		late.MatchString(f.Said.Near) || wentWell.MatchString(f.text)
}

var wentWell = re(`train\w* (?:is|was|works|runs|ran|goes|went)[^.\n]{0,20}\b(?:fine|ok|well|normal\w*)\b`)

func billions(n float64) string {
	return strconv.FormatFloat(n, 'g', 3, 64) + " billion"
}

// smallerWeights are cures of weights that one card cannot hold, in the settings of what loads
// them.
func (f *Facts) smallerWeights(each float64, capacity event.Bytes) []ownCure {
	m := f.Ran.Model
	halved := each > 2 && float64(m.weights(2)) < mostOfCard*float64(capacity)
	half, packed, spread := ownCure{remedy.HalfWeights, "load the weights in 16 bits",
		"torch_dtype=torch.float16 (bfloat16 where the card has it): " + m.weights(2).String()},
		ownCure{remedy.Quantize4Bit, "pack the weights in 4 bits",
			"load_in_4bit: about " + m.weights(0.56).String()},
		ownCure{remedy.DeviceMap, "spread the weights over the cards, or over card and host",
			`device_map="auto"; or FSDP or ZeRO-3, in which each card holds a part`}
	switch f.Ran.Runtime {
	case Engine:
		half.args = "--dtype half, with a shorter --max-model-len   # weights are then " + m.weights(2).String()
		packed.args = "a checkpoint in AWQ or GPTQ: about " + m.weights(0.56).String()
		spread.title, spread.args = "spread the weights over several cards", "--tensor-parallel-size N"
	case LlamaCPP:
		packed.title, packed.args, spread.args = "a smaller model, or fewer bits", "a file in Q4_K_M or smaller", "-ngl N   # fewer layers on the card, the others on the CPU"
	case Translate:
		return []ownCure{{remedy.Quantize8Bit, "a smaller model, or the same in 8 bits",
			`small or medium instead of large; compute_type="int8": ` + m.weights(1.05).String()},
			{remedy.DeviceMap, "compute on the CPU", `device="cpu"   # a card cannot use the machine's memory as its own`}}
	case Exported:
		half.args = "export the model in fp16 (or int8): " + m.weights(2).String() +
			", a copy for each instance and card"
		return []ownCure{half, {remedy.DeviceMap, "one copy, or a server that divides the model over cards",
			"instance_group count 1 on one card; vLLM, TensorRT-LLM or FasterTransformer with tensor parallelism: " +
				"cards of one machine do not add up by themselves"}}
	}
	switch {
	case halved:
		return []ownCure{half, packed}
	case f.Ran.Runtime == LlamaCPP && onHost(f.Crash):
		packed.args = "a model with fewer weights; Q3 and Q2 files cost quality"
		return []ownCure{packed}
	case each > 1, f.Ran.Runtime == LlamaCPP:
		return []ownCure{packed, spread}
	}
	return []ownCure{spread}
}

// statesBeyond: training all weights of the model that is named needs more than the cards that are
// named have. Where nothing of a shard is said each card holds all.
func statesBeyond(f *Facts, s Sums) (judged, bool) {
	c, m := f.Crash, f.Ran.Model
	capacity, _ := f.card(s)
	if !onCard(c) || m.Billions < 0.5 || capacity == 0 || !f.Ran.Trained || !trains(c, f.Hints) ||
		f.Ran.Adapted || f.says("offload") || passIn(c.Frames) || c.Steps > 1 || f.ranSome() {
		return judged{}, false
	}
	cards := 1
	parts, said := 1, modelParallel.FindAllStringSubmatch(f.text, 4)
	for _, m := range said {
		n, _ := strconv.Atoi(m[1])
		parts *= max(1, n)
	}
	switch {
	case len(said) > 0 && !f.says("zero", "fsdp", "deepspeed", "distributed-", "rollout", "vllm"):
		cards = parts // each group of so many cards holds all weights and states
	case f.says("zero", "fsdp", "deepspeed", "shard", "parallel"):
		cards = max(8, f.World) // at most a machine's, where their number is not said
		if m := cardsCounted.FindStringSubmatch(f.text); m != nil {
			cards, _ = strconv.Atoi(m[1])
		}
	}
	if 16e9*m.Billions < 1.1*float64(cards)*float64(capacity) {
		return judged{}, false
	}
	j := because(CauseModel, "optimizer_step", 0.6,
		"each of %s weights needs 16 bytes in training with Adam (weight, gradient, two states, a copy in 32 bits): %s",
		billions(m.Billions), m.weights(16)).
		saying("training all weights takes more than the cards have: %s with gradients and optimizer states",
			m.weights(16))
	j.words = f.written(fewerStates)
	if c.Framework == "jax" {
		j.words = []ownCure{{remedy.FSDP, "divide weights and optimizer states over all cores",
			"a mesh whose fsdp axis has all of jax.device_count(), with partition rules for parameters and opt_state"}}
	}
	if cards == 1 && len(said) > 0 {
		j = j.also("%s: each card holds all of it, however many there are", strings.TrimSpace(said[0][0]))
		j.words = []ownCure{{remedy.FSDP, "divide weights and states over the cards",
			"--tensor-model-parallel-size 8 (or pipeline stages) with --use-distributed-optimizer"}, j.words[1]}
	}
	return j, true
}

// modelParallel are settings of how many cards hold a model together.
var modelParallel = re(`(?:tensor|pipeline)[-_]model[-_]parallel[-_]size["']?[= :]+(\d{1,3})\b`)

// cardsCounted is how many cards of a kind people say that they use.
var cardsCounted = re(`\b(\d{1,2}) ?[x×*]? ?(?:nvidia |rtx ?|tesla )?(?:[ahlv]\d{2,3}s?|[1-5]0[5-9]0(?: ?ti)?|t4|p100|gpus?)\b`)

// serverCopies: a server works in several processes, each of which loads the models again.
func serverCopies(f *Facts, s Sums) (judged, bool) {
	n := f.Ran.Server
	if n < 2 || f.Ran.Runtime == Engine || f.Crash.Steps > 0 {
		return judged{}, false
	}
	where, cures := "on the card", []ownCure{
		{remedy.FewerProcesses, "fewer processes on one card, or a card for each",
			"as many workers as copies fit; CUDA_VISIBLE_DEVICES=N in the environment of each worker, before it imports the library"},
		{remedy.LessAtOnce, "one process that holds the model, behind a queue",
			"workers that only pass requests on to it"}}
	if onHost(f.Crash) {
		where = "in memory"
		cures[0].title, cures[0].args = "fewer worker processes",
			"load the model before they fork (gunicorn --preload), so that they share its pages"
	}
	j := because(CauseNeighbour, "pool_workers", 0.7,
		"%d worker processes serve: each loads its own copy of the models%s", n,
		map[bool]string{true: ", and opens a context of its own", false: ""}[onCard(f.Crash)]).
		saying("%d worker processes each hold a copy of the models %s", n, where)
	if s.OneSmall || s.Asked > 0 && s.Asked < 64*event.MiB {
		j = j.also("the %s that were refused are only the last straw", s.Asked)
	}
	j.words = cures
	return j, true
}

// longContext: an engine makes room for keys and values of the whole context that it was given, or
// that the model was trained for.
func longContext(f *Facts, s Sums) (judged, bool) {
	m := contextMade.FindStringSubmatch(f.text)
	if f.Crash.Kind != "ggml" || !cacheBuffer.MatchString(f.text) || m == nil && !f.cacheBeyond(s) {
		return judged{}, false
	}
	now, of := "", "the context that it was given, or was trained for"
	if m != nil {
		k := Key{Value: m[1], Text: "n_ctx = " + m[1]}
		if k.Number() < longSample {
			return judged{}, false
		}
		now, of = " instead of "+k.Text, thousands(int64(k.Number()))+" tokens"
	}
	j := because(CauseModel, "engine_compute", 0.8,
		"room for keys and values of %s is made at the start, whatever is used of it", of).
		saying("the cache of keys and values for a context of %s does not fit", of)
	if m == nil {
		j = j.saying("the cache of keys and values alone is %s: the context is far too long for the card", s.Asked)
	}
	if onHost(f.Crash) && f.says("child", "processes at", "in parallel") {
		j = j.also("each process makes a cache of its own")
	}
	j.words = []ownCure{{remedy.ShorterSequence, "a context as long as is needed", "-c 8192" + now + "   # n_ctx in code; 0 takes what the model was trained for"},
		{remedy.GenerationCache, "the cache in 8 bits", "-ctk q8_0 -ctv q8_0 -fa on"}}
	return j, true
}

// cacheBeyond reports whether the cache that was refused is more than a card has.
func (f *Facts) cacheBeyond(s Sums) bool {
	size, _ := f.card(s)
	return cacheFailed.MatchString(f.text) && size > 0 && s.Asked > size
}

// cacheFailed are an engine's words about the buffer that did not fit.
var cacheFailed = re(`failed to allocate [^\n]{0,20}\bkv[ _-]?(?:cache|buffer)`)

var contextMade = re(`\bn_ctx\s*= ?(\d{4,8})\b`)
