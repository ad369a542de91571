package explain

import (
	"slices"
	"strconv"
	"strings"

	"memroom/event"
	"memroom/lazyregexp"
	"memroom/remedy"
	"memroom/trace"
)

// moment is what a person's words about an end tell: when it came, or what was under way. The first
// row whose words stand in a text counts.
type moment struct {
	said   *lazyregexp.Regexp // in what the person wrote about the end
	also   *lazyregexp.Regexp // anywhere in the text; nil: nothing more is asked for
	unless *lazyregexp.Regexp // anywhere in the text
	where  []event.Where      // nil: any
	// holds also where a program's message shows the end, without a traceback or a cause
	always bool
	fits   func(*Facts) bool // nil: always
	// its words count in what a program printed, too: settings, metrics, commands
	anywhere bool

	cause  Cause
	detail string
	sure   float64
	says   string // the clause of the verdict
	shows  string // what it means, after the person's words
	cures  []remedy.ID
	words  []ownCure
	write  func(*Facts) []ownCure // makes them of the text, where they depend on it
}

// ownCure is a cure in the words of a case, which the catalogue has for another circumstance only.
type ownCure struct {
	id    remedy.ID
	title string
	args  string
}

var (
	device = []event.Where{event.WhereGPU, event.WhereMPS}
	ofHost = []event.Where{event.WhereHost, event.WhereCgroup}
)

// Words about the time of an end.
const (
	beforeNoun = `(?:when(?:ever)?|while|whilst|during|in|at|on|upon|after|before|once|every time|as soon as|doing|start(?:s|ing|ed)?|beg[iu]n(?:s|ning)?)`
	aFewWords  = `(?:[\w'"/-]+ ){0,4}?`
)

var moments = []moment{
	{said: re(`w[ao]k(?:e|es|en|ing)[_ -]?up|\bsleep(?:[_ ]mode|ing)?\b`), also: re(`\bvllm|sglang|rollout`), where: device, always: true,
		cause: CauseSetting, detail: "engine_wakes", sure: 0.7,
		says:  "an inference engine wants its share of the card back, and the trainer still holds memory there",
		shows: "the engine takes its share as a whole; what the trainer holds (weights, states, cached blocks) must fit beside it",
		write: besideEngine},
	{said: re(`(?:append|add|stor|collect|kept|keep|accumulat|gather)\w* (?:\w+ ){0,4}?(?:to|in|into|on) (?:a |the )?(?:python )?(?:list|lists|dict|buffer|array|gpu|card|cuda|gpu memory)\b|(?:stay|stays|kept|remain\w*|still) (?:on|in) (?:the )?(?:gpu|cuda|card|vram)`),
		also: re(`\beval|validat|\btest(?:ing)? (?:set|epoch)|predict|inference`), where: device, cause: CauseBatch, detail: "eval_outputs", sure: 0.7,
		says: "what is kept of every batch stays on the card", shows: "it grows with the number of samples, whatever the batch",
		words: []ownCure{{remedy.EvalOutputs, "bring what is kept of each batch to host memory", "preds.append(out.detach().cpu())   # or keep a running metric instead of the outputs"}}},
	{said: keptGraph, anywhere: true, unless: re(`keras|tensorflow`), cause: CauseLeak, detail: "", sure: 0.7,
		says: "what is summed up or kept holds the graph of every batch", shows: "a tensor that was not detached keeps all that its backward pass would need",
		write: detached},
	{said: regressed, unless: re(`data ?set (?:version|update)`), always: true, cause: CauseSetting, detail: "", sure: 0.6,
		says:  "another release is said to need less, with the same settings",
		shows: "so it is not the batch or the model that is too large",
		write: otherRelease},
	{said: longInput, where: device, always: true, fits: func(f *Facts) bool {
		return !f.Ran.Trained ||
			evaluates(f.Crash, f.Hints)
	},
		cause: CauseBatch, detail: "", sure: 0.6,
		says: "one input as a whole is too long or too large", shows: "it is computed in one piece, and attention grows with the square of its length",
		words: []ownCure{{remedy.LessAtOnce, "the input in pieces", "pieces of 10 to 30 seconds of sound, tiles of a picture, or some frames at a time; with a small overlap, joined on the CPU"},
			{remedy.RightDevice, "the longest ones on the CPU", "where there is more memory: device=\"cpu\""}}},
	{said: re(`\.append\(|(?:append|add|stor|collect)\w* [^.\n]{0,30}\blists?\b`), also: re(`pre-?process|data ?set|\brows\b|samples|corpus|records`), where: ofHost, always: true, fits: bareHostEnd,
		anywhere: true, cause: CauseHostData, detail: "", sure: 0.6,
		says: "what is built sample by sample in Python lists stays in memory", shows: "a Python object takes many times what the same numbers take in an array",
		words: []ownCure{{remedy.StreamData, "write it in parts, or make each sample when it is used", "a generator or Dataset.__getitem__; or rows to Parquet, TFRecord or np.memmap, some thousand at a time"}}},
	{said: re(`(?:gather|concat|collect|accumulat|stor|keep|append|torch\.cat)\w*[^.\n]{0,60}\b(?:predictions?|outputs?|logits|results)\b|\b(?:predictions?|outputs?|logits)\b[^.\n]{0,40}(?:gather|accumulat|kept|stored|in (?:a )?(?:single|one) array)|compute_metrics|nested_concat`),
		also: re(`\beval|validat|metric|\bpredictions\b`), cause: CauseBatch, detail: "eval_outputs", sure: 0.65,
		shows: "they grow with the number of samples, whatever the batch"},
	{said: re(`(?:first|after|through) (?:the )?(?:first )?~?\d+ (?:\w+ )?(?:steps|batches|iterations|samples|images)?[^.\n]{0,60}`), also: re(`(?:validation|evaluation) (?:stage|step|loop)|during (?:validation|evaluation)`),
		where: device,
		cause: CauseBatch, detail: "eval_outputs", sure: 0.6,
		says:  "it comes in the middle of an evaluation, whose first batches had fitted",
		shows: "so something of each batch is kept: outputs, or the state of a metric",
		words: []ownCure{{remedy.EvalOutputs, "keep numbers of each batch, not tensors on the card", "metric.update(pred.detach().cpu(), target.cpu()); self.log(...) a number; no list of outputs"}}},
	{said: re(beforeNoun + ` ` + aFewWords + `(?:validat\w+|evaluat\w+|eval\b|testing\b|test (?:set|phase|step|epoch|time|loop)|predict\w*)|(?:验证|评估|测试)(?:时|阶段|过程|集|的时候|完)|\b(?:validation|evaluation|eval|prediction)\b[^.\n]{0,30}\b(?:oom|out of memory|crash\w*|fail\w*|error|memory|killed)`),
		where: device, cause: CauseBatch, detail: "eval_batch", sure: 0.55,
		unless: re(`\bvllm\b|\bsglang\b|llama\.cpp|\bollama\b|predict\w*\(?[^.\n]{0,30}\bloop`),
		says:   "it comes with the evaluation", shows: "evaluation has a batch size of its own, and may keep the outputs of all batches"},
	{said: re(`(?:when|while|during|at|on|upon|before|trying to|once|after) ` + aFewWords + `(?:sav(?:e|es|ing|ed)\b|checkpointing (?:the )?(?:model|state)|(?:the |a )?checkpoint (?:\w+ ){0,2}?(?:saved|written)|writ\w+ (?:\w+ )?checkpoint|save_\w+)|\bsav(?:e|ing) (?:\w+ ){0,3}(?:checkpoint|model|state|weights)|(?:after|when) (?:the )?(?:training|train|last epoch|final epoch|finetuning|fine-tuning) (?:is |was |has |had )?(?:finish|complet|done|end)\w*|after (?:the )?(?:last|final) (?:epoch|step)|保存(?:模型|权重|检查点|checkpoint)?(?:时|的时候)`),
		always: true, unless: re(`reduc\w+ the batch size (?:solved|fixed)`), cause: CauseModel, detail: "checkpoint_save", sure: 0.6,
		says: "it comes when a checkpoint is saved", shows: "a gathered or copied set of weights and states comes beside what is there",
		write: savedParts},
	{said: re(`\bresum\w+|continu\w+ (?:the |my )?(?:train\w*|finetun\w*) from|restart\w* from|load\w* (?:the |my |a |an |from )?(?:(?:saved|last|latest|previous|training) )?(?:checkpoint|optimizer|optim)(?: states?\b| from\b| and\b|[,.\n]|$)|from (?:a |the |my )?(?:saved|last|latest|previous|intermediate) checkpoint|断点|恢复训练`),
		where: device, cause: CauseModel, detail: "load_to_card", sure: 0.6,
		says: "it comes when training continues from a checkpoint", shows: "the saved weights and optimizer states are restored beside those that the card holds already"},
	{said: re(`\bmerg(?:e|es|ing)\b[^.\n]{0,50}(?:lora|adapter|peft)|merge_and_unload`), cause: CauseModel, detail: "merge", sure: 0.6,
		says: "it comes when adapters are merged", shows: "merging needs the full weights, unpacked, beside what is there"},
	{said: re(`full[ -_]?batch|(?:whole|entire|full) graph|full_batch`), also: re(`graph|\bgnn|\bgcn|sage\b|\bogb|torch_geometric|\bdgl|\bnode`), where: device, always: true,
		cause: CauseBatch, detail: "one_tensor", sure: 0.7,
		says:  "the whole graph is computed at once",
		shows: "in full-batch training the activations of all nodes and edges lie on the card together",
		words: []ownCure{{remedy.InParts, "train on sampled neighbourhoods or clusters of the graph", "NeighborLoader(data, num_neighbors=[15, 10], batch_size=1024), or ClusterLoader; DGL: NeighborSampler([15, 10])"},
			{remedy.SmallerLayer, "a smaller network: its activations count for every node", "fewer hidden channels, then fewer layers"}}},
	{unless: re(`offload`), said: re(`optimi[sz]er(?:'s)? step|optimizer\.step|step of the optimi[sz]er|optimi[sz]er states?`), where: device, cause: CauseModel, detail: "optimizer_step", sure: 0.6,
		says:  "what the model itself needs does not fit (weights, gradients, optimizer states)",
		shows: "the optimizer makes its states in its first step",
		write: fewerStates},
	{said: atStart, where: []event.Where{event.WhereGPU}, fits: statesOnly, cause: CauseModel,
		detail: "optimizer_step",
		sure:   0.6,
		says:   "what the model itself needs does not fit (weights, gradients, optimizer states)",
		shows:  "it fails at the start, and batch and activations are as small as they can be made",
		write:  fewerStates},
	{said: sameSettings, unless: re(`upgrad|updat\w+|new(?:er)? (?:version|release|data)|\bincreas|resum|larger|bigger|checkpoint`),
		where: device, always: true, fits: func(f *Facts) bool {
			return f.Crash.Allocated == nil && len(f.Crash.Neighbours) == 0
		}, cause: CauseUnknown, detail: "full", sure: 0,
		says:  "something else holds part of the card now: the same job had room before",
		shows: "neither the model nor the batch is larger than when it ran",
		words: []ownCure{{remedy.FreeNeighbour, "look who holds the card before anything is made smaller",
			"nvidia-smi   # other users, and processes of your own that are left from an earlier run: end those by their number"}}},
	{said: rises, also: re(`\basr\b|speech|\baudio|utterance|\bwav2?|\btts\b`), unless: keptGraph, where: device, always: true, cause: CauseUnknown, detail: "longest_batch", sure: 0,
		says:  "either a longer sample came than before, or something is kept from step to step",
		shows: "where samples differ in length the pool keeps what the longest so far needed, which looks like a leak",
		write: longSamples},
	{said: heldSaid, also: rises, where: device, anywhere: true, cause: CauseLeak,
		detail: "", sure: 0.6,
		says: "memory is said to grow, and something of each step is kept", shows: "a tensor that is kept keeps its memory and its graph, a number does not",
		cures: []remedy.ID{remedy.KeepLess}},
	{said: rises, unless: risesWithSize, where: device, cause: CauseLeak, detail: "rises", sure: 0.55,
		says: "memory is said to grow while it runs", shows: "what grows is not shown: what each step keeps, or samples that are larger than those before"},
	{said: rises, unless: risesWithSize, where: ofHost, cause: CauseLeak, detail: "growth_host",
		sure: 0.55,
		says: "host memory is said to grow while it runs", shows: "which process grows, and what it keeps, is not shown"},
	{said: re(`\b(?:read|load|open|prepar|build|process|creat)\w* (?:in )?(?:the |my |a |all |whole |entire |full |this |of )*(?:\w+ ){0,2}?(?:data ?sets?|data(?:base)?|csv|files|images|corpus|arrays?|h5|hdf5|parquet|json|samples|videos)\b|(?:data ?sets?|data|csv|files|images) (?:\w+ )?(?:is|are|was|were) (?:being )?(?:read|loaded|opened|prepared|built|processed|cached)|\bread_csv|load_dataset|(?:full|whole|entire|large[r]?|big(?:ger)?) data ?set|读取数据|加载数据`), where: ofHost, always: true, fits: bareHostEnd,
		cause: CauseHostData, detail: "", sure: 0.55,
		says: "the data that is read may be held as a whole", shows: "what is read into lists, arrays or frames stays in host memory",
		cures: []remedy.ID{remedy.StreamData, remedy.RaiseLimit}},
}

var (
	// longInput are inputs that are long, and words that short ones work
	longInput = re(`\b(?:long(?:er)?|\d+[- ]?(?:min(?:ute)?s?|hours?|seconds?|m\d+s)) (?:\w+ )?(?:audios?|videos?|clips?|files?|recordings?|speech|tracks?|documents?|inputs?)\b|(?:works?|fine|ok) (?:for|with|on) (?:short|small)\w*|(?:audio|video|clip|file|image|text|input)\w* (?:\w+ ){0,2}?(?:longer|larger|bigger) than`)
	// keptGraph are tensors that keep what their backward pass needs
	keptGraph = re(`not (?:being )?detach\w*|without (?:a )?detach|\w+ ?\+= ?\w*(?:loss|cost|batch|err)\w*(?: ?[/*;\n]|$)|graph (?:of \w+ (?:\w+ )?)?(?:is kept|stays?|alive|retained|not freed)|retain_graph ?= ?true`)
	// heldSaid are words and lines of what each step leaves in a list or a sum
	heldSaid = re(`\w*(?:loss|output|result|prediction|logit|feature)\w*[^.\n]{0,20}\b(?:in|into|to) (?:a |the )?(?:\w+ )?(?:list|dict|buffer)\b|\w+\.append\(\w*(?:loss|out|pred|logit|feat)\w*\)`)
	// regressed are words of a release with which the same ran, and one with which it does not
	regressed = re(`\b(?:since|after) (?:\w+ ){0,3}?(?:upgrad|updat)\w*|(?:previous|old(?:er)?|earlier|prior) (?:version|release|commit)s?\b[^.\n]{0,60}(?:work|fine|ok|no problem|less|fit)|\bdowngrad\w+|\bregression\b|(?:works?|worked|fine|ok) (?:with|in|on|using) (?:\w+ )?(?:version |v|==)\d+\.\d+|version\b[^.\n]{0,50}\bworks?\b[^.\n]{0,30}\b(?:latest|newest|newer|current|main|master)\b|(?:latest|newest|newer) [^.\n]{0,40}\b(?:oom|out of memory|fail|crash)`)
	rises     = re(`\b(?:memory|mem|v?ram|rss|usage)\b[^\n]{0,60}?\b(?:increas|gr[eo]w|ris(?:e|ing)|climb|accumulat|leak|fills? (?:up )?(?:slowly|gradually|over|more)|go(?:es|ing)? up|went up|creep|never (?:released|freed))|\b(?:increas|grow|ris|climb)\w* (?:\w+ ){0,3}(?:memory|ram|vram)|\bleak\w*|(?:内存|显存)[^。\n]{0,16}(?:泄[漏露]|一直|不断|逐渐|持续|越来越|缓慢)`)
	late      = re(`\b(?:after|within|until) (?:\w+ ){0,3}?(?:few|some|several|many|couple|certain|\d[\d.,]*k?|one|two|three|four|five|six|eight|ten|twelve|first|second|third|half|hundreds|thousands)(?: of| or so| more)?(?: \w+)? ?(?:epoch|epoche|epoches|iter|iteration|step|hour|batche?|day|period)s?\b|\b(?:in the middle|halfway|midway|randomly|random (?:times?|steps?|moments?)|eventually|sometimes|after (?:a|some) (?:while|time|period)|after training for|(?:at|in|after|during) (?:the )?epoch ?[#:]? ?(?:[2-9]|\d\d+)\b|(?:at|after) (?:the )?step ?[#:]? ?\d{3,}|after \d+ ?%|\d+ ?% of (?:the )?training|over time|overnight|(?:at|around|about) (?:step|iteration|epoch) ?[#:]? ?\d\d+|(?:at|around|about) \d{2,}k? ?(?:steps|iterations)|après \S+ (?:\S+ )?(?:époque|itération|heure)|nach (?:\S+ ){1,3}(?:epoche|stunde|schritt)|después de (?:\S+ ){1,3}(?:época|iteraci|hora)|(?:second|third|fourth|2nd|3rd|4th|next) epoch)\b|第[二三四五六七八九十\d]+(?:个)?(?:轮|epoch)|训练(?:到|了|一段|几)[^。\n]{0,16}(?:后|时|轮|epoch|步)|跑了?一段时间|几个?(?:epoch|轮)`)
	atStart   = re(`\b(?:first|very first|1st|initial) (?:training )?(?:step|iteration|iter|batch|forward|backward|epoch)|\bimmediate\w*|right away|straight away|\binstantly|at the (?:very )?(?:start|beginning)|as soon as|(?:before|without) (?:\w+ ){0,3}?(?:first|single|one) (?:step|iteration|batch)|\bstep 0\b|\bstart(?:s|ed|ing)? (?:of )?(?:the )?train|\bbeg[iu]n\w* (?:of )?(?:the )?train|刚开始|一开始`)
	// risesWithSize is a rise with what is asked for, and a leak that is only asked about
	risesWithSize = re(`\b(?:increas|gr[eo]w|ris|climb)\w*[^.\n]{0,20} (?:with|when|as|if) (?:an? |the |larger |more |bigger |i (?:use|increase|set) )*(?:\w+ )?(?:batch|resolution|length|size|number|context|image)|\bleak\w*(?: here| maybe)?\s?\?`)
)

// bareHostEnd reports whether host memory ran out without a traceback or a figure of what was
// asked.
func bareHostEnd(f *Facts) bool {
	c := f.Crash
	return onHost(c) && len(c.Frames) == 0 && c.Requested == nil && c.Framework != "ray"
}

// statesOnly reports whether a training has made its activations as small as settings can.
func statesOnly(f *Facts) bool {
	_, checkpointed := f.Hints.Settings[string(remedy.Checkpointing)]
	return trains(f.Crash, f.Hints) && f.batchOfOne() && checkpointed &&
		f.Hints.Settings[string(remedy.LoRA)] == ""
}

// statesOf is how many values an optimizer keeps for each weight.
var statesOf = []struct {
	is    *lazyregexp.Regexp
	name  string
	count int
}{
	{re(`\bprodigy`), "Prodigy", 4}, {re(`\bdadapt\w*`), "D-Adaptation", 4},
	{re(`(?:optim\w*["']?\s?[=: ]\s?["']?|optim\.)adamw?\b`), "Adam", 2},
}

// optimizerKey is the setting of an optimizer, as programs take it.
var optimizerKey = lazyregexp.New(`(--?optim(?:izer)?(?:[_-](?:type|name))?[= ]["']?|\boptim(?:izer)?(?:_type|_name)?["']?\s?[=:]\s?["']?)(\w+)`)

// fewerStates are cures of states that fill a card.
func fewerStates(f *Facts) []ownCure {
	smaller := "Adafactor, or AdamW in 8 bits"
	for _, l := range f.lines {
		if m := optimizerKey.FindStringSubmatch(l.Text); m != nil {
			smaller = m[1] + "Adafactor instead of " + m[2] + "; or AdamW in 8 bits"
			break
		}
	}
	return []ownCure{{remedy.OptimizerAdafactor, "an optimizer that keeps little for each weight",
		smaller},
		{remedy.LoRA, "train adapters (LoRA) or fewer layers", "states then exist for what is trained only; else offload them to host memory"}}
}

// besideEngine are cures where a trainer and an engine take turns on a card.
func besideEngine(f *Facts) []ownCure {
	share := "gpu_memory_utilization (mem_fraction_static) lower, by what the trainer holds"
	if k, ok := f.key(Share); ok {
		share = k.with(strconv.FormatFloat(max(0.2, k.Number()-0.2), 'g', 2, 64)) + " instead of " + k.Text
	}
	away, ok := f.Tool.setting(remedy.OptimizerOffload)
	if !ok {
		away = "the trainer's offload of optimizer and parameters"
	}
	return []ownCure{{remedy.ServingShare, "give the engine a smaller share of the card", share},
		{remedy.OptimizerOffload, "take the trainer's states off the card while the engine runs",
			away + "; torch.cuda.empty_cache() before the engine wakes up"}}
}

// namedInProse are kinds of messages whose words people use in sentences.
var namedInProse = []string{"torch_device", "torch_class", "device_generic", "any_generic",
	"torch_mps"}

// toldCase explains an end that only a person describes, perhaps with the name of a message.
func toldCase(f *Facts, _ Sums) (judged, bool) {
	c := f.Crash
	named := onCard(c) && c.Sure <= 0.6 && len(c.Frames) == 0 && c.Requested == nil &&
		c.Capacity == nil &&
		slices.Contains(namedInProse, c.Kind)
	if c.Kind != trace.KindTold && !named || has(c, trace.SignPredicts) {
		return judged{}, false
	}
	if j, ok := byMoment(f, true); ok {
		return j, true
	}
	if len(c.Frames) > 0 {
		if j := byStages(c, f.Hints); j.cause != CauseUnknown {
			return j, true
		}
	}
	if !onCard(c) {
		return judged{}, false
	}
	return judged{cause: CauseUnknown, detail: "told"}, true
}

// byMoment explains an end by what the person writes about it.
func byMoment(f *Facts, told bool) (judged, bool) {
	c := f.Crash
	for i := range moments {
		m := &moments[i]
		if !told && !m.always || m.where != nil && !slices.Contains(m.where, c.Where) ||
			m.also != nil && !m.also.MatchString(f.text) || m.unless != nil && m.unless.MatchString(f.text) ||
			m.fits != nil && !m.fits(f) {
			continue
		}
		for n, text := range []string{f.Said.Of, f.Said.Near, f.text} {
			if words := m.said.FindString(text); words != "" && (n < 2 || m.anywhere) {
				return m.judge(f, words), true
			}
		}
	}
	return judged{}, false
}

func (m *moment) judge(f *Facts, words string) judged {
	j := because(m.cause, m.detail, m.sure, "the text says %q: %s", short(strings.TrimSpace(words)),
		m.shows)
	j.reason, j.cures, j.words = m.says, m.cures, m.words
	if m.write != nil {
		j.words = m.write(f)
	}
	if m.detail != "optimizer_step" {
		return j
	}
	for _, o := range statesOf {
		if o.is.MatchString(f.text) {
			j = j.also("%s keeps %d more values for each weight, beside the weight and its gradient", o.name, o.count)
			break
		}
	}
	return j
}

// detached writes the line that lets go of the graph, with the name that the text has for the sum.
func detached(f *Facts) []ownCure {
	sum := summed.FindStringSubmatch(f.text)
	if sum == nil {
		sum = []string{"", "total", "loss"}
	}
	return []ownCure{{remedy.Detach, "keep numbers, not tensors with their graph",
		sum[1] + " += " + sum[2] + ".item()   # for a list: outputs.append(y.detach().cpu())"}}
}

var summed = re(`\b(\w+) ?\+= ?(\w*(?:loss|cost|batch|err)\w*)`)

// otherRelease are cures of a regression. What the text says was not given back comes first.
func otherRelease(f *Facts) []ownCure {
	back := ownCure{remedy.OtherVersion, "go back to the release that worked, and report the difference",
		"pip install 'PACKAGE==THE_VERSION_THAT_WORKED'   # then compare the defaults that changed"}
	if onCard(f.Crash) && f.says("not released", "not properly released", "empty_cache", "not free") &&
		f.Ran.Runtime != LlamaCPP {
		return []ownCure{{remedy.EmptyCache, "give cached blocks back where the newer release may have stopped to",
			"torch.cuda.empty_cache()   # at the end of the step, before the other program on the card needs room"}, back}
	}
	return []ownCure{back}
}

// longSamples bounds the length of samples, in the tool's settings where they are known.
func longSamples(f *Facts) []ownCure {
	text, ok := f.Tool.setting(remedy.LongestBatch)
	if !ok {
		text = "leave out or cut samples beyond 20 to 30 seconds; sorted with the longest first, it fails at once or never"
	}
	return []ownCure{{remedy.LongestBatch, "a bound on the length of samples", text},
		{remedy.KeepLess, "if it rises with samples of one length, too", "print(torch.cuda.memory_allocated()) after each step: a rise there is something that is kept"}}
}

// savedParts are cures of a checkpoint that is gathered, where the text shows that it is divided.
func savedParts(f *Facts) []ownCure {
	if !f.says("fsdp", "zero", "deepspeed", "full_state_dict", "shard") {
		return nil
	}
	return []ownCure{{remedy.SaveSharded, "each rank writes its own part",
		"FSDP: SHARDED_STATE_DICT, or FullStateDictConfig(rank0_only=True); DeepSpeed: no stage3_gather_16bit_weights_on_model_save"}}
}
