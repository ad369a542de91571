package explain

import (
	"slices"
	"strconv"
	"strings"

	"memroom/event"
	"memroom/lazyregexp"
	"memroom/trace"
)

// Facts is what a log holds, typed, each with its line. Nothing in it is inferred.
type Facts struct {
	Crash *trace.Crash
	Hints *trace.Hints
	Tool  *Tool    // whose settings the job has; nil: none that we know
	Keys  []Key    // settings that the text shows
	Cards []Card   // cards that the text names with their size
	World int      // ranks of the job, 0 if not said
	Tried []string // what the person has tried in vain, in their words
	Vocab []Number // sizes of vocabularies: printed, or those of a model that is named
	Said  trace.Said
	Ran   Program
	text  string // of the log, lower case, as far as it is kept
	lines []trace.Line
}

// Quantity is what a setting sets.
type Quantity string

// The quantities that tell how much memory a job takes.
const (
	Samples    Quantity = "samples"    // of a batch
	Tokens     Quantity = "tokens"     // or seconds, of a batch
	Length     Quantity = "length"     // of a sample
	Side       Quantity = "side"       // of an image, crop or patch
	Count      Quantity = "frames"     // of a clip
	EvalSize   Quantity = "evaluation" // batch of evaluation
	Workers    Quantity = "workers"    // of the loader
	Buffered   Quantity = "buffer"     // elements of a buffer
	Answers    Quantity = "answers"    // sequences that are generated at once
	Boxes      Quantity = "boxes"      // detections, proposals
	Neighbours Quantity = "neighbours" // of a graph's node
	Share      Quantity = "share"      // of the card that an engine takes
	Vocabulary Quantity = "vocabulary"
	Processes  Quantity = "processes" // that prepare data
)

// Key is a setting as the text writes it.
type Key struct {
	Of    Quantity
	Name  string // as written, with its dashes
	Value string
	Text  string // name and value as they stand
	Line  int64
	Said  bool // in a sentence, whose words are nothing to type
}

// Number returns the value as a number, 0 where it is none.
func (k Key) Number() float64 {
	digits, thousand := strings.CutSuffix(strings.ToLower(strings.ReplaceAll(k.Value, "_", "")), "k")
	n, _ := strconv.ParseFloat(digits, 64)
	if thousand {
		n *= 1024
	}
	return n
}

// Card is a card that the text names, with its memory.
type Card struct {
	Name string
	Size event.Bytes
	Line int64
}

// Number is a size with what it is of.
type Number struct {
	Value int64
	Of    string
}

// keyNames are the names that programs give to settings, by what they set. The first row that
// matches counts.
var keyNames = []struct {
	of Quantity
	is *lazyregexp.Regexp
}{
	{EvalSize, lazyregexp.New(`(?i)^(?:per_device_|per_gpu_)?(?:eval|val|valid|validation|test)\w*batch\w*$|^max[_-]tokens[_-]valid$|^batch[_-]size[_-](?:valid|eval|test)$`)},
	{Tokens, lazyregexp.New(`(?i)^(?:max[_-]tokens(?:[_-]per[_-]\w+)?|\w*max_token_len_per\w*|tokens_per_(?:batch|gpu)|batch_tokens|batch_bins|` +
		`\w*_(?:max_)?duration|max_duration|max_num_batched_tokens|max-num-batched-tokens|frames_per_(?:gpu|batch)|max_batch_len\w*|batch_size_tokens)$`)},
	{Share, lazyregexp.New(`(?i)^(?:\w*gpu[_-]memory[_-]utilization|mem[_-]fraction[_-]static|xla_python_client_mem_fraction|flags_fraction_of_gpu_memory_to_use)$`)},
	{Samples, lazyregexp.New(`(?i)^(?:\w*?(?:train_|micro_|mini_|physical_)?batch[_-]?size\w*|batch|bsz|bs|ims_per_batch|(?:samples|im(?:g|age)s)_per_gpu|` +
		`global[_-]batch[_-]size|micro[_-]batch[_-]size\w*|samples_per_batch|num_envs|n_envs|rollout_n_envs)$`)},
	{Length, lazyregexp.New(`(?i)^(?:max_?seq(?:uence)?[_-]?len(?:gth)?|max[_-](?:length|len|model[_-]len|prompt_length|completion_length|response_length|` +
		`position_embeddings|source_length|target_length|input_length|new_tokens|(?:source|target)[_-]positions|sequence_length)|(?:[a-z]+_)*seq[_-]?len(?:gth)?|sequence_len(?:gth)?|cutoff_len|` +
		`block_size|context_len(?:gth)?|ctx[_-]size|n_ctx|num_ctx|model_max_length|max-model-len|segment_length|chunk_length|tune_frames)$`)},
	{Side, lazyregexp.New(`(?i)^(?:imgsz|im(?:age|g)[_-]?(?:size|scale|res)|resolution|crop[_-]size|input[_-]size|patch_size|roi_size|height|width|` +
		`min_size_train|image_resolution|train_crop_size|max_pixels|size)$`)},
	{Count, lazyregexp.New(`(?i)^(?:num_frames|n_frames|max_frames|clip_len|frames|video_length)$`)},
	{Processes, lazyregexp.New(`(?i)^(?:num[_-]proc(?:esses)?|(?:pre_?)?process(?:ing)?_(?:num_)?workers|preproc\w*_workers|\w*_num_proc|n_process|n_jobs|nproc)$`)},
	{Workers, lazyregexp.New(`(?i)^(?:(?:[a-z]+[_-])*num[_-]workers|(?:[a-z]+[_-])?workers|workers_per_gpu|n_workers|n_cpus?)$`)},
	{Buffered, lazyregexp.New(`(?i)^(?:(?:replay_|shuffle_)?buffer[_-]?(?:size|capacity)|memory_size|replay_size|queue_size|cache_size|prefetch_factor)$`)},
	{Answers, lazyregexp.New(`(?i)^(?:num_beams|beam|num_return_sequences|num_generations|rollout\.n|n_samples_per_prompt|max[_-]num[_-]seqs|num_images_per_prompt|nbest)$`)},
	{Boxes, lazyregexp.New(`(?i)^(?:max_per_img|max_det(?:ections)?|nms_pre|detections_per_image|num_queries|max_gt\w*|num_proposals|pre_nms_topk\w*)$`)},
	{Neighbours, lazyregexp.New(`(?i)^(?:fan[_-]?out|num_neighbors|sizes|eval_fanout)$`)},
	{Vocabulary, lazyregexp.New(`(?i)^(?:(?:padded_)?vocab(?:ulary)?[_-]?size|n_vocab|num_classes|vocab)$`)},
}

// The ways in which settings stand in commands, files, printed objects and environments.
var (
	flagKey   = lazyregexp.New(`(?:^|\s)--?([A-Za-z][\w.-]{1,60})(?:[= ]\s*)["']?([\w.+-]+)`)
	assignKey = lazyregexp.New(`["'` + "`" + `]?\b([A-Za-z][\w.]{0,80})["'` + "`" +
		`\]]*\s{0,12}[=:]\s{0,4}["'(\[{]*([\w.+-]+)`)
)

// saidKeys are settings that people write in sentences: "a batch size of 16", "batchsize(2)".
var saidKeys = []struct {
	of Quantity
	is *lazyregexp.Regexp
}{
	{EvalSize, lazyregexp.New(`(?i)\b((?:val\w*|eval\w*|test\w*) batch[ -]?size)(?: (?:is|was|of|to|at|as)| set to|\(| ?[=:])? ?(\d{1,5})\b`)},
	{Samples, lazyregexp.New(`(?i)\b((?:train\w* )?(?:batch|mini-?batch)[ -]?size)(?: (?:is|was|of|to|at|as|only|just|equals?|down|even|=)| (?:is )?set (?:to|as)|\(| ?[=:])* ?(\d{1,5})\b`)},
	{Length, lazyregexp.New(`(?i)\b((?:sequence|seq|context|max(?:imum)?) (?:length|len|window|size))(?: (?:is|was|of|to|at|as)| set to| ?[=:])* ?(\d{3,7}|\d{1,3}k)\b`)},
	{Side, lazyregexp.New(`(?i)\b((?:image|input|video|frame|crop|patch)s? (?:size|resolution|dimensions?)|resolution)(?: (?:is|are|was|of|to|at|as)| set to| ?[=:])* ?\(?(\d{3,5})\b`)},
	{Workers, lazyregexp.New(`(?i)\b((?:number of )?workers)(?: (?:is|was|of|to)| set to| ?[=:]) ?(\d{1,3})\b`)},
}

// maxKeys bounds what is kept: a log prints its settings once or twice.
const maxKeys = 400

// keysIn reads the settings of a text. Of a setting that stands in it again and again the last
// value before the failure counts.
func keysIn(lines []trace.Line, failed int64) []Key {
	var keys []Key
	for _, l := range lines {
		if len(keys) >= maxKeys {
			break
		}
		if strings.Contains(l.Text, "Error") && strings.Contains(l.Text, "GiB") {
			continue // the message itself
		}
		for _, re := range []*lazyregexp.Regexp{flagKey, assignKey} {
			for _, m := range re.FindAllStringSubmatch(l.Text, 60) {
				name, value := m[1], strings.Trim(m[2], ".-")
				last := name[strings.LastIndexByte(name, '.')+1:]
				if name == "rollout.n" || strings.HasSuffix(name, "rollout.n") {
					last = "rollout.n"
				}
				of := quantityOf(last)
				if of == "" || value == "" || value[0] < '0' || value[0] > '9' {
					continue
				}
				text := strings.TrimRight(strings.Trim(strings.TrimSpace(m[0]), "\"'`([{, "), ".")
				k := Key{Of: of, Name: name, Value: value, Text: text, Line: l.Number}
				switch at := slices.IndexFunc(keys, func(k Key) bool { return k.Name == name }); {
				case at < 0:
					keys = append(keys, k)
				case l.Number > keys[at].Line && (l.Number <= failed || keys[at].Line > failed):
					keys[at] = k
				}
			}
		}
		for _, row := range saidKeys {
			m := row.is.FindStringSubmatch(l.Text)
			if m != nil && !slices.ContainsFunc(keys, func(k Key) bool { return k.Of == row.of }) {
				keys = append(keys, Key{Of: row.of, Name: m[1], Value: m[2], Text: strings.TrimSpace(m[0]),
					Line: l.Number, Said: true})
				break
			}
		}
	}
	return keys
}

func quantityOf(name string) Quantity {
	for _, row := range keyNames {
		if row.is.MatchString(name) {
			return row.of
		}
	}
	return ""
}

// key returns the setting of a quantity that the text shows.
func (f *Facts) key(of ...Quantity) (Key, bool) {
	for _, q := range of {
		best := -1
		for i, k := range f.Keys {
			if k.Of == q && k.Number() > 0 && (best < 0 || rankOfKey(k) > rankOfKey(f.Keys[best])) {
				best = i
			}
		}
		if best >= 0 {
			return f.Keys[best], true
		}
	}
	return Key{}, false
}

// rankOfKey prefers the batch of a device to the batch of all, and training to anything else.
func rankOfKey(k Key) int {
	name := strings.ToLower(k.Name)
	holds := func(parts ...string) bool { return containsAny(name, parts) }
	switch {
	case holds("micro", "per_device", "per_gpu"):
		return 3
	case holds("global", "total", "mini", "data.", "ref."):
		return 0
	case strings.HasPrefix(k.Text, "-"):
		return 2
	}
	return 1
}

// cardName matches the name of a card with its memory, which is part of the name or which the user
// added.
var cardName = lazyregexp.New(`(?i)\b((?:NVIDIA |Nvidia |GeForce |Tesla |Quadro |RTX |GTX |TITAN )*(?:[AHBLV]\d{2,3}S?|GB?200|RTX ?A?\d{4}(?: ?(?:Ti|Super|Ada))?|T4|P100|K80|` +
	`(?:GTX )?1080 ?Ti|2080 ?Ti|3090(?: Ti)?|4090|5090|3080|4080|MI\d{3}X?))[ ,(-]{0,3}(?:SXM\d?-?|PCIe-?|with |of |has |\w+ )?(\d{2,3}) ?(?:GB|GiB|G)\b`)

// knownCards are cards and rented machines that come with one size of memory, in GiB.
var knownCards = []struct {
	is   *lazyregexp.Regexp
	size event.Bytes
}{
	{re(`(?i)\bH200\b`), 141}, {re(`(?i)\b(?:H100|H800|A800|p4de|p5)\b`), 80}, {re(`(?i)\bMI250X?\b`), 64},
	{re(`(?i)\bMI300X\b`), 192}, {re(`(?i)\bMI325X\b`), 256}, {re(`(?i)\b(?:L40S?|A6000)\b`), 48},
	{re(`(?i)\bp4d\.\d+xlarge|\bp3dn\b`), 40}, {re(`(?i)\b(?:rtx ?)?5090\b`), 32},
	{re(`(?i)\b(?:rtx ?)?(?:[34]090)\b|\bA10G?\b|\bA5000\b|\bP40\b|\bg[56]\.\d*xlarge|\bL4\b`), 24},
	{re(`(?i)\bT4\b|\bg4dn\.\w+|\bA4000\b|\bp3\.\d*xlarge|\b4080\b`), 16},
	{re(`(?i)\b(?:3060|4070|K80|p2\.\d*xlarge)\b`), 12}, {re(`(?i)\b[12]080 ?Ti\b`), 11},
	{re(`(?i)\b(?:GTX ?|RTX ?)(?:1070|1080|2070|2080|3070|4060)\b`), 8},
	{re(`(?i)\b(?:GTX ?|RTX ?)(?:1060|1660|2060)\b`), 6}, {re(`(?i)\b(?:GTX ?)1(?:650|050)\b`), 4},
}

func cardsIn(lines []trace.Line) []Card {
	var cards []Card
	for _, l := range lines {
		if m := cardName.FindStringSubmatch(l.Text); m != nil {
			n, _ := strconv.Atoi(m[2])
			cards = append(cards, Card{strings.TrimSpace(m[1]), event.Bytes(n) * event.GiB, l.Number})
			continue
		}
		for _, k := range knownCards {
			if m := k.is.FindString(l.Text); m != "" {
				cards = append(cards, Card{m, k.size * event.GiB, l.Number})
			}
		}
		if len(cards) > 32 {
			break
		}
	}
	return cards
}

// worldSaid are the ways in which launchers print how many ranks there are.
var worldSaid = lazyregexp.New(`(?i)\b(?:world[_ ]?size|nranks|nproc[_-]per[_-]node|num_processes|n_gpus_per_node|nprocs|local_world_size|num_gpus|--gpus|gpus_per_node|` +
	`ntasks-per-node|tensor_parallel_size)\b["'\])]*\s{0,3}[=: ]\s{0,3}["']?(\d{1,4})\b|(?:Rank|rank) \d+/(\d+)\b|\bGLOBAL_RANK: \d+, MEMBER: \d+/(\d+)|training on (\d+) (?:GPUs|devices)`)

func worldIn(lines []trace.Line) int {
	world := 0
	for _, l := range lines {
		for _, m := range worldSaid.FindAllStringSubmatch(l.Text, 8) {
			n, _ := strconv.Atoi(first(m[1:]...))
			world = max(world, n)
		}
	}
	return world
}

// triedSaid are sentences about what did not help.
var triedSaid = lazyregexp.New(`(?i)\b(?:i(?:'ve| have)? (?:already |also )*(?:tried|set|reduced|lowered|decreased|use[d]?|using|enabled|added|changed)|already (?:tried|using|set|enabled)|tried (?:to )?|even (?:with|after|when|if)|` +
	`still (?:get|got|oom|fails|happens|out of)|no (?:luck|effect|difference)|did(?:n't| not) help|does(?:n't| not) help|regardless of|no matter)[^\n]{0,200}`)

// backwards are words that speak of what stands before them.
var backwards = lazyregexp.New(`^(?i)(?:i(?:'ve| have)? )?(?:already |also )?tried (?:that|this|it|these|those|both|all|them)\b|^(?i)(?:did|does)(?:n't| not) help|^(?i)no (?:luck|effect|difference)`)

// saidBefore is how far before such words what they speak of may begin, in bytes.
const saidBefore = 160

func triedIn(lines []trace.Line) []string {
	var tried []string
	for _, l := range lines {
		if framed.MatchString(l.Text) || strings.Contains(l.Text, "ried to allocate") || len(tried) >= 40 {
			continue
		}
		if at := triedSaid.FindStringIndex(l.Text); at != nil {
			if backwards.MatchString(l.Text[at[0]:]) {
				at[0] = max(0, at[0]-saidBefore)
			}
			tried = append(tried, strings.ToLower(l.Text[at[0]:at[1]]))
		}
	}
	return tried
}

// growthSaid is what people write who saw memory rise while a program ran.
var growthSaid = lazyregexp.New(`\b(?:memory|v?ram|gpu)\b(?: \w+){0,4} (?:keeps?|kept|is|has been|was|gets|got|slowly|gradually|steadily)?` +
	` ?(?:increas|grow|ris|climb|accumulat)\w*[^.\n]{0,40}\b(?:epochs?|iterations?|steps?|batch(?:es)?|time|training|until)\b`)

// framed are lines of tracebacks, which no person wrote.
var framed = lazyregexp.New(`^\s*File "|^\s{4,}\S+\(|^Traceback|^\s*\^+\s*$`)

// vocabularies are those of models, by the names under which texts speak of them.
var vocabularies = []struct {
	is   *lazyregexp.Regexp
	size int64
	of   string
}{
	{lazyregexp.New(`(?i)qwen-?2(?:\.5)?-?(?:vl-)?(?:7|14|32|72)b`), 152_064, "Qwen2.5"},
	{lazyregexp.New(`(?i)\bqwen-?(?:1\.5|2|2\.5|3)\b`), 151_936, "Qwen"},
	{lazyregexp.New(`(?i)llama-?3|llama3`), 128_256, "Llama 3"},
	{lazyregexp.New(`(?i)gemma-?3`), 262_144, "Gemma 3"}, {lazyregexp.New(`(?i)gemma`), 256_000, "Gemma"},
	{lazyregexp.New(`(?i)llama-?2|vicuna|alpaca|llama-7b|llama-13b|mistral-7b|mixtral|tinyllama`), 32_000, "Llama 2"},
	{lazyregexp.New(`(?i)\bphi-3`), 32_064, "Phi-3"}, {lazyregexp.New(`(?i)\bphi-4`), 100_352, "Phi-4"},
	{lazyregexp.New(`(?i)deepseek-(?:v3|r1)\b`), 129_280, "DeepSeek"}, {lazyregexp.New(`(?i)bloom`), 250_880, "BLOOM"},
	{lazyregexp.New(`(?i)mt5|xlm-?r`), 250_112, "mT5"}, {lazyregexp.New(`(?i)flan-t5|\bt5-`), 32_128, "T5"},
	{lazyregexp.New(`(?i)\bgpt-?2\b|gpt-neo|nanogpt`), 50_257, "GPT-2"},
	{lazyregexp.New(`(?i)whisper`), 51_865, "Whisper"}, {lazyregexp.New(`(?i)bert-base|roberta`), 30_522, "BERT"},
	{lazyregexp.New(`(?i)falcon|chatglm`), 65_024, "Falcon"}, {lazyregexp.New(`(?i)glm-4`), 151_552, "GLM-4"},
}

func vocabIn(keys []Key, text string) []Number {
	var sizes []Number
	for _, k := range keys {
		if n := int64(k.Number()); k.Of == Vocabulary && n >= 1000 {
			sizes = append(sizes, Number{n, k.Text})
		}
	}
	for _, v := range vocabularies {
		if v.is.MatchString(text) {
			return append(sizes, Number{v.size, v.of})
		}
	}
	return sizes
}

// factsIn reads a log.
func factsIn(log *trace.Log, c *trace.Crash) *Facts {
	f := &Facts{Crash: c, Hints: &log.Hints, Keys: keysIn(log.Kept, c.Line), Cards: cardsIn(log.Kept),
		World: max(worldIn(log.Kept), log.Hints.Ranks, c.Ranks), Tried: triedIn(log.Kept),
		Said: log.Said, lines: log.Kept}
	var all strings.Builder
	for _, l := range log.Kept {
		all.WriteString(strings.ToLower(l.Text))
		all.WriteByte('\n')
	}
	f.text = all.String()
	f.Vocab = vocabIn(f.Keys, f.text)
	if growthSaid.MatchString(f.text) && !slices.Contains(f.Hints.Says, string(CauseLeak)) {
		f.Hints.Says = append(slices.Clone(f.Hints.Says), string(CauseLeak))
	}
	if c.Kind == trace.KindTold && hostTools.MatchString(f.text) {
		hosted := *c
		hosted.Where, f.Crash = event.WhereHost, &hosted // whatever memory the person names
	}
	f.Tool = toolOf(f)
	f.Ran = programOf(f)
	return f
}

// hostTools are programs that compute in host memory unless they are given a card.
var hostTools = re(`\bmergekit\b|--lazy-unpickle`)

// says reports whether the text contains one of these words, which must be in lower case.
func (f *Facts) says(words ...string) bool {
	return slices.ContainsFunc(words, func(w string) bool { return strings.Contains(f.text, w) })
}

// inVain returns what the person wrote about something that did not help; empty where they wrote
// nothing of it.
func (f *Facts) inVain(of *lazyregexp.Regexp) string {
	for _, t := range f.Tried {
		if of.MatchString(t) {
			return t
		}
	}
	return ""
}
