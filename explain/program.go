package explain

import (
	"slices"
	"strconv"
	"strings"

	"memroom/event"
	"memroom/lazyregexp"
	"memroom/remedy"
)

// Program is what ran, as far as the text shows it. Cures, clauses and measurements have to agree
// with it, see licences.
type Program struct {
	Runtime Runtime
	Maker   remedy.Maker // of the card
	System  System
	Server  int     // processes of a server that hold a model each, 0 if not said
	Model   Model   // the largest that the text names
	Trained bool    // words or frames of a training stand in the text
	Learnt  float64 // the share of all weights that is trained, as it is printed; 0 if it is not
	Adapted bool    // only adapters are trained
	Divided bool    // several cards, or the host, hold the weights together
}

// Runtime is what allocates.
type Runtime string

// The runtimes whose settings and whose ways to measure differ. Those of Python frameworks have the
// names that messages give them.
const (
	Torch     Runtime = "pytorch"
	Engine    Runtime = "engine"  // an inference engine with flags: vLLM, SGLang, TGI
	LlamaCPP  Runtime = "llama"   // llama.cpp and its kin
	Exported  Runtime = "export"  // ONNX Runtime, TensorRT, Triton: weights in a file of their own
	Translate Runtime = "ct2"     // CTranslate2, as in faster-whisper
	Trees     Runtime = "trees"   // boosted trees
	Paddle    Runtime = "paddle"  // PaddlePaddle
	Browser   Runtime = "browser" // JavaScript
	Unnamed   Runtime = ""
)

// serves reports whether an engine of inference is all that ran.
func (p Program) serves(f *Facts) bool {
	return p.Runtime == Engine && !p.Trained || p.Runtime == LlamaCPP || f.Crash.Kind == "serving_cache"
}

// System is what the program runs on.
type System string

// The systems that settings belong to.
const (
	Mac     System = "macOS"
	Windows System = "Windows"
	Posix   System = ""
)

// runtimes are words that show what allocates, most telling first.
var runtimes = []struct {
	is *lazyregexp.Regexp
	of Runtime
}{
	{re(`llama_(?:new_context|kv_cache|model_load|init)|ggml_|llama\.cpp|llama-cpp|llama-server|\bollama\b|\bgguf\b|koboldcpp|lm ?studio`), LlamaCPP},
	{re(`faster[-_]whisper|ctranslate2`), Translate},
	{re(`onnxruntime|onnx runtime|triton ?server|tritonserver|bfc_arena|tensorrt\b|\btrtexec|\bopenvino`), Exported},
	{re(`\bvllm\b|\bsglang\b|text-generation-(?:inference|launcher)|\blmdeploy\b|\btensorrt-llm\b`), Engine},
	{re(`\bxgboost\b|\blightgbm\b|\bcatboost\b`), Trees},
	{re(`paddle(?:paddle|ocr|nlp|det|seg|/)|\bpaddle\.`), Paddle},
	{re(`\bnode(?:\.js|js)\b|javascript heap|transformers\.js|onnxruntime-web|tfjs|tensorflow\.js|webgpu|\bwasm\b`), Browser},
}

// programOf types what ran. The message of a framework counts for more than words of the text.
func programOf(f *Facts) Program {
	c, h := f.Crash, f.Hints
	p := Program{Maker: makerOf(c, h), Model: modelIn(f), Trained: learns(c, h) ||
		trainSaid.MatchString(f.text),
		Learnt: shareLearnt(f.text),
		Divided: f.says("offload", "fsdp", "zero3", "zero-3", "zero 3", "stage 3", "stage3",
			"pipeline parallel", "device_map", "num-shard", "--sharded") || dividesSaid.MatchString(f.text)}
	p.Adapted = p.Learnt > 0 && p.Learnt < 0.05 || p.Learnt == 0 && f.says("lora", "adapter", "freeze",
		"frozen", "peft", "trainable parameters = ")
	switch {
	case c.Framework == "pytorch" && c.Kind != "told" && c.Sure > 0.6 && serverOf(c, h) == "":
		p.Runtime = Torch
	case c.Framework == "tensorflow", c.Framework == "jax":
		p.Runtime = Runtime(c.Framework)
	default:
		for _, r := range runtimes {
			if r.is.MatchString(f.text) {
				p.Runtime = r.of
				break
			}
		}
		if p.Runtime == Unnamed && c.Framework == "pytorch" {
			p.Runtime = Torch
		}
	}
	switch {
	case c.Where == event.WhereMPS, f.says("/users/", "macos", "darwin", "apple m1", "apple m2",
		"apple m3",
		"mps backend", "macbook"):
		p.System = Mac
	case seen(c, h, "windows"), f.says("anaconda3\\", "as administrator", "windows 1", `c:\`):
		p.System = Windows
	}
	if m := serverProcesses.FindStringSubmatch(f.text); m != nil {
		p.Server, _ = strconv.Atoi(first(m[1:]...))
	}
	return p
}

// learntOf is how tools print the share of the weights that they train.
var learntOf = re(`trainable%?:? ?(?:\|\| )?(\d+\.\d+)|\((\d+\.\d+)% (?:trained|trainable)|trainable params:[^\n]*trainable%: ?(\d+\.\d+)`)

func shareLearnt(text string) float64 {
	m := learntOf.FindStringSubmatch(text)
	if m == nil {
		return 0
	}
	percent, _ := strconv.ParseFloat(first(m[1:]...), 64)
	return percent / 100
}

var (
	trainSaid   = re(`\b(?:train(?:ing|ed|s)?|fine-?tun\w+|finetuning)\b`)
	dividesSaid = re(`tensor[_-]parallel(?:[_-]size)?["']?[= :]+[2-9]|--tp[= ][2-9]|\bnum_shard\w*[= ][2-9]`)
	// serverProcesses is how many processes a server of requests has
	serverProcesses = re(`\b(?:gunicorn|uvicorn|uwsgi|celery|hypercorn|torchserve|flask|fastapi|django)\b[^\n]{0,60}?(?:\b(\d{1,3}) (?:workers?|process(?:es)?)|(?:-w|--workers|--processes|workers) ?=? ?(\d{1,3})\b)|` +
		`\b(\d{1,3}) (?:gunicorn|uvicorn|uwsgi|celery) (?:workers?|process(?:es)?)`)
)

// Model is a model that the text names, by the number of its weights.
type Model struct {
	Name     string
	Billions float64
	Each     float64 // bytes of a weight as it is loaded, 0 if the text does not say
	Width    string  // the same in words
}

// weights returns what they take, in 16 bits where nothing is said.
func (m Model) weights(each float64) event.Bytes { return event.Bytes(m.Billions * 1e9 * each) }

// releases are numbers of three parts and more, which are no sizes: 0.12.0b.
var releases = re(`\bv?\d+\.\d+\.\d+[\w.-]*`)

// sizedName is the number of weights in the name of a model, with the rest of the name.
var sizedName = re(`(?:[\w./-]*[a-z_/-])?\b?(?:(\d{1,2})x)?(\d{1,3}(?:\.\d{1,9})?)[ -]?(b|billion)\b(?: [ah]\d00\b)?(?:[-_][\w.-]*)?|[\w./-]*[a-z]-(\d{2,3})m\b`)

// namedModels are models that people name without their number of weights, in billions.
var namedModels = []struct {
	is       *lazyregexp.Regexp
	billions float64
}{
	{re(`whisper[^\n]{0,40}\blarge(?:-v[123])?\b|(?:asr_model|model_size|--model)["']?[ =:]+["']?large(?:-v[123])?\b`), 1.55},
	{re(`\bglm-?4\b`), 9.4}, {re(`chatglm\d?(?:-6b)?\b`), 6.2}, {re(`\bgpt-?j\b`), 6.05}, {re(`gpt-?neox`), 20.6},
}

// Words of the width of weights, and what a weight of each takes.
var widths = []struct {
	is    *lazyregexp.Regexp
	each  float64
	width string
}{
	{re(`\b4[- ]?bit|load_in_4bit|qlora|\bnf4\b|gptq|\bawq\b|\bint4\b|\bq4_`), 0.56, "4 bits"},
	{re(`\b8[- ]?bit\b|load_in_8bit|\bint8\b|\bq8_0\b|\bfp8\b`), 1.05, "8 bits"},
	{re(`dtype["']?[ =:]+["']?(?:torch\.)?float(?:32)?\b|\bfp32\b|torch\.float32|\bfloat32\b`), 4, "32 bits"},
	{re(`\b(?:bf16|fp16|bfloat16|float16|half precision)\b|dtype["']?[ =:]+["']?half\b|\.half\(\)`), 2, "16 bits"},
}

// modelIn returns the largest model that the text names.
func modelIn(f *Facts) Model {
	var m Model
	text := f.text[:min(len(f.text), 64<<10)]
	text = releases.ReplaceAllString(text, "")
	for _, found := range sizedName.FindAllStringSubmatch(text, 60) {
		if strings.Contains(found[0], " a") || strings.Contains(found[0], " h") {
			continue // 80B A100: a card
		}
		n, _ := strconv.ParseFloat(found[2], 64)
		if found[4] != "" {
			n, _ = strconv.ParseFloat(found[4], 64)
			n /= 1000
		}
		if experts, _ := strconv.ParseFloat(found[1], 64); experts > 1 {
			n *= 0.83 * experts // attention is shared
		}
		if n > m.Billions && n < 1100 {
			m.Billions, m.Name = n, strings.Trim(found[0], " ./-")
		}
	}
	for _, named := range namedModels {
		if at := named.is.FindString(text); at != "" && m.Billions == 0 {
			m.Billions, m.Name = named.billions, at[strings.LastIndexAny(at, " =:\"")+1:]
		}
	}
	for _, w := range widths {
		if w.is.MatchString(text) {
			m.Each, m.Width = w.each, w.width
			break
		}
	}
	return m
}

// card is the memory that one card has: by the message, or by the name of the largest card or
// machine in the text.
func (f *Facts) card(s Sums) (event.Bytes, string) {
	if s.Capacity > 0 && onCard(f.Crash) && !f.Crash.Capped {
		return s.Capacity, "the card"
	}
	if len(f.Cards) == 0 {
		return 0, ""
	}
	c := slices.MaxFunc(f.Cards, func(a, b Card) int { return int(a.Size>>20) - int(b.Size>>20) })
	return c.Size, strings.Trim(c.Name, " .")
}
