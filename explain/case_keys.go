package explain

import (
	"fmt"
	"strconv"
	"strings"

	"memroom/remedy"
	"memroom/trace"
)

// enoughShare is a share of the card from which a larger one hardly helps an engine.
const enoughShare = 0.9

// cacheBlocks: an engine found no room for its cache beside its weights and a trial run at the full
// length. A larger share helps where it is small, else a shorter length.
func cacheBlocks(f *Facts, s Sums) (judged, bool) {
	c := f.Crash
	if c.Kind != "serving_cache" || len(c.Neighbours) > 0 || c.Fits > 0 || s.Asked > 0 ||
		serverOf(c, f.Hints) != "vllm" {
		return judged{}, false
	}
	j, _ := byWall(c, f.Hints)
	if j.detail != "kv_cache" {
		return judged{}, false
	}
	write := func(name, value string) string { return name + "=" + value }
	if engineCommand.MatchString(f.text) {
		write = func(name, value string) string {
			return strings.TrimSuffix("--"+strings.ReplaceAll(name, "_", "-")+" "+value, " True")
		}
	}
	share, _ := strconv.ParseFloat(first(c.Signs[trace.SignEngine],
		f.Hints.Signs[trace.SignEngine]), 64)
	if k, ok := f.key(Share); ok && share == 0 {
		share = k.Number()
	}
	m, served := f.Ran.Model, servedModel.FindStringSubmatch(f.text)
	if m.Billions > 0 && !has(c, trace.SignEngineSum) && (m.Each == 0 || m.Each == 2) &&
		served != nil && strings.Contains(served[1], m.Name) {
		j = j.also("%s: %s weights are %s in 16 bits, over all cards", m.Name, billions(m.Billions),
			m.weights(2))
	}
	eager := write("enforce_eager", "True") + "   # which records no CUDA graphs"
	length := ownCure{remedy.ShorterSequence,
		"a shorter context: the trial run and one request at full length must fit",
		write("max_model_len", f.shorterContext()) + " " + eager}
	if k, ok := f.key(Length); ok && k.Number() >= 2048 && !k.Said {
		length.args = k.with(strconv.Itoa(int(k.Number())/2)) + " instead of " + k.Text + "; " + eager
	}
	j.words = []ownCure{length}
	if share < enoughShare {
		now := "the default of 0.9"
		if share > 0 {
			now = fmt.Sprint(share)
		}
		j.words = []ownCure{{remedy.ServingShare, "a larger share of the card, where nobody else needs it",
			write("gpu_memory_utilization", "0.95") + " instead of " + now}, length}
	}
	return j, true
}

// engineCommand are words of an engine's command line.
var engineCommand = re(`--gpu-memory|--max-model|vllm serve|api_server|vllm_worker|--model\b`)

// contextAsked is the length of a request as an engine prints it.
var contextAsked = re(`for ([\d,]+) tokens per request`)

// shorterContext is half of the length that the engine prints, or one that most models can do.
func (f *Facts) shorterContext() string {
	if m := contextAsked.FindStringSubmatch(f.text); m != nil {
		n, _ := strconv.Atoi(strings.ReplaceAll(m[1], ",", ""))
		return strconv.Itoa(n / 2)
	}
	return "4096"
}

// servedModel is the model that an engine is told to load.
var servedModel = re(`\bmodel(?:[-_ ]?(?:path|name))?["']?[= :]+["']?(\S+)`)

// offloadKey is a setting that moves states to host memory.
var offloadKey = re(`((?:[\w]+[.])*\w*(?:offload|cpu_adam)\w*)["']?\s?[=:]\s?["']?(true|cpu)\b`)

// offloadedStates: host memory is full, and settings of the text move weights or states there.
func offloadedStates(f *Facts, s Sums) (judged, bool) {
	keys := offloadKey.FindAllString(f.text, 4)
	if !onHost(f.Crash) || len(keys) == 0 || len(f.Crash.Frames) > 0 && f.Crash.Framework != "ray" {
		return judged{}, false
	}
	j := because(CauseModel, "offload_host", 0.65,
		"%s: weights or optimizer states wait in host memory, those of every rank of the node", keys[0]).
		saying("what is offloaded to host memory fills it, beside what else runs on the node")
	off := ""
	for _, k := range keys {
		if m := offloadKey.FindStringSubmatch(k); m[2] == "true" {
			off += m[1] + "=False "
		}
	}
	if off == "" {
		return judged{}, false
	}
	j.words = []ownCure{{remedy.OffloadLess, "offload less, where the cards have room", off}}
	return j, true
}

// manySaid is a number of things of which all pairs may be computed.
var manySaid = re(`\b(\d{4,6}) (?:\w+ ){0,2}?(?:nodes|images|points|samples|atoms|residues|genes|cells|users|items|tokens|rows|boxes|vertices)\b`)

// allPairs: a number that the text names solves the request as all pairs of its things.
func allPairs(f *Facts, s Sums) (judged, bool) {
	if s.Asked < largeRequest {
		return judged{}, false
	}
	for _, m := range manySaid.FindAllStringSubmatch(f.text, 20) {
		n, _ := strconv.ParseFloat(m[1], 64)
		for each := 1.0; each <= 64; each *= 2 {
			if !about(4*n*n*each, s.Asked) {
				continue
			}
			j := because(CauseBatch, "pairs", 0.8,
				"%.0f x %.0f x %.0f numbers of 4 bytes are what was refused: %s with all others",
				n, n, each, m[0]).saying("that is one tensor, all pairs of %s", m[0])
			j.words = []ownCure{{remedy.InParts, "not all pairs at once",
				"some thousand rows at a time against all others, keeping the nearest; a sparse matrix of what is connected; or on the CPU"}}
			return j, true
		}
	}
	return judged{}, false
}
