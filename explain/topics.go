package explain

import (
	"cmp"
	"slices"
	"strconv"
	"sync"

	"memroom/event"
	"memroom/lazyregexp"
	"memroom/remedy"
	"memroom/trace"
)

// Words about the time of an end.
const (
	beforeNoun = `(?:when(?:ever)?|while|whilst|during|in|at|on|upon|after|before|once|every time|as soon as|doing|start(?:s|ing|ed)?|beg[iu]n(?:s|ning)?)`
	aFewWords  = `(?:[\w'"/-]+ ){0,4}?`
)

var (
	device = []event.Where{event.WhereGPU, event.WhereMPS}
	ofHost = []event.Where{event.WhereHost, event.WhereCgroup}
	aCard  = []event.Where{event.WhereGPU}
	// a memory that the person does not name, too
	hostOrUnsaid = []event.Where{event.WhereHost, event.WhereCgroup, event.WhereUnknown}
	cardOrUnsaid = []event.Where{event.WhereGPU, event.WhereMPS, event.WhereUnknown}
)

func prose(weighs float64, is string) clue { return clue{weighs, said, re(is)} }
func lines(weighs float64, is string) clue { return clue{weighs, code, re(is)} }

// Words that several topics share.
const (
	growing   = `\b(?:memory|mem|v?ram|rss|usage)\b[^\n]{0,60}?\b(?:increas|gr[eo]w|ris(?:e|ing)|climb|accumulat|leak|fills? (?:up )?(?:slowly|gradually|over|more)|go(?:es|ing)? up|went up|creep|never (?:released|freed))|\b(?:increasing|growing|rising|climbing|grow(?:s|th)|increase) (?:\w+ ){0,2}?(?:memory|ram|vram) (?:use|usage|consum)\w*|\bleak\w*|(?:内存|显存)[^。\n]{0,16}(?:泄[漏露]|一直|不断|逐渐|持续|越来越|缓慢)`
	evaluated = `\b(?:evaluat\w+|eval|validat\w+|val(?:id)?|test(?:ing)? (?:set|phase|loop|epoch)|compute_metrics|metrics?|inference|predict\w*)\b|(?:验证|评估|测试)`
	kills     = `\bkill(?:ed|s)?\b|sigkill|\b137\b|out of (?:memory|ram)|\boom\b|memoryerror|crash\w*|bad_alloc|cannot allocate|not enough (?:memory|ram)`
	torchSeen = `torch|lightning|\bddp\b|cuda out of memory|dataloader|transformers|\bmmcv|detectron`
	sharded   = `\bfsdp\b|full_state|deepspeed|\bzero[-_ ]?[123]?\b|fullyshard|\bshard(?:ed|s|ing)?\b|megatron`
	kerasSeen = `\bkeras|tensorflow|\btf\.`
)

var (
	rises = re(growing)
	// risesWithSize is a rise with what is asked for, and a leak that is only asked about
	risesWithSize = re(`\b(?:increas|gr[eo]w|ris|climb)\w*[^.\n]{0,20} (?:with|when|as|if) (?:an? |the |larger |more |bigger |i (?:use|increase|set) )*(?:\w+ )?(?:batch|resolution|length|size|number|context|image)|\bleak\w*(?: here| maybe)?\s?\?`)
	late          = re(`\b(?:after|within|until) (?:\w+ ){0,3}?(?:few|some|several|many|couple|certain|\d[\d.,]*k?|one|two|three|four|five|six|eight|ten|twelve|first|second|third|half|hundreds|thousands)(?: of| or so| more)?(?: \w+)? ?(?:epoch|epoche|epoches|iter|iteration|step|hour|batche?|day|period)s?\b|\b(?:in the middle|halfway|midway|randomly|random (?:times?|steps?|moments?)|eventually|sometimes|after (?:a|some) (?:while|time|period)|after training for|(?:at|in|after|during) (?:the )?epoch ?[#:]? ?(?:[2-9]|\d\d+)\b|(?:at|after) (?:the )?step ?[#:]? ?\d{3,}|after \d+ ?%|\d+ ?% of (?:the )?training|over time|overnight|(?:at|around|about) (?:step|iteration|epoch) ?[#:]? ?\d\d+|(?:at|around|about) \d{2,}k? ?(?:steps|iterations)|après \S+ (?:\S+ )?(?:époque|itération|heure)|nach (?:\S+ ){1,3}(?:epoche|stunde|schritt)|después de (?:\S+ ){1,3}(?:época|iteraci|hora)|(?:second|third|fourth|2nd|3rd|4th|next) epoch)\b|第[二三四五六七八九十\d]+(?:个)?(?:轮|epoch)|训练(?:到|了|一段|几)[^。\n]{0,16}(?:后|时|轮|epoch|步)|跑了?一段时间|几个?(?:epoch|轮)`)
	atStart       = `\b(?:first|very first|1st|initial) (?:training )?(?:step|iteration|iter|batch|forward|backward|epoch)|\bimmediate\w*|right away|straight away|\binstantly|at the (?:very )?(?:start|beginning)|as soon as|(?:before|without) (?:\w+ ){0,3}?(?:first|single|one) (?:step|iteration|batch)|\bstep 0\b|\bstart(?:s|ed|ing)? (?:of )?(?:the )?train|\bbeg[iu]n\w* (?:of )?(?:the )?train|刚开始|一开始`
)

// topicTable is the field's knowledge of what fills memories, one row a topic.
var topicTable = sync.OnceValue(func() []topic {
	return []topic{
		// data in host memory
		{where: hostOrUnsaid, cause: CauseHostData, detail: "loaders_anew",
			clues: []clue{prose(3, `(?:more and more|increasing(?:ly)?|new|extra|additional) (?:\w+ ){0,2}?(?:sub-?process\w*|process\w*|workers?)[^.\n]{0,40}(?:each|every|per|after) (?:\w+ ){0,2}?epoch|(?:each|every|per|after) (?:\w+ ){0,2}?epoch[^.\n]{0,40}(?:more and more|new|additional) (?:\w+ ){0,2}?(?:sub-?process|process|worker)|(?:sub-?process\w*|process\w*|workers?)[^.\n]{0,60}(?:more and more|accumulat\w*|pil(?:e|es|ing) up|never (?:end|exit|die|close)\w*|not (?:being )?(?:killed|closed|terminated|released|joined))`),
				prose(1, `(?:each|every|per|after) (?:\w+ ){0,2}?epoch`), lines(1, `persistent_workers`), prose(0.5, `dataloader|data loader|loader`)},
			says:  "worker processes are started anew every epoch, and the earlier ones stay",
			shows: "each set of workers keeps its own copy of what it has read",
			cures: []topicCure{{id: remedy.DataLoaderWorkers, title: "make the loader once, before the loop over epochs, and let its workers end", args: "one loader for all epochs (PyTorch: persistent_workers=True); none made, and no iterator kept, inside of the loop"}}},
		{where: ofHost, cause: CauseHostData, detail: "workers", against: lazyregexp.New(`gunicorn|uvicorn|celery`),
			clues: []clue{prose(2.5, `(?:higher|more|larger|increas\w*|raising|bigger|any) [^.\n]{0,30}(?:num_?workers|workers)\b[^.\n]{0,60}(?:memory|ram\b|oom|consum|usage|crash|kill)`),
				prose(2.5, `(?:works?|fine|ok|no (?:leak|problem|oom|issue)s?|normal|stable)[^.\n]{0,40}(?:num_?workers? ?(?:=|to|is|:|of)* ?0|single (?:worker|process))|num_?workers? ?(?:=|to|is|:|of)* ?0[^.\n]{0,40}(?:works?|fine|ok\b|no (?:leak|problem|oom|issue)|stable|normal)`),
				prose(2.5, `copy[- ]on[- ](?:write|access|read)|ref(?:erence)?[- ]?count`), lines(0.5, `num_?workers`),
				prose(1, `(?:numpy|list|dict|pandas|dataframe)[^.\n]{0,60}\b(?:data ?set|data ?loader)|\b(?:data ?set|data ?loader)\b[^.\n]{0,60}(?:numpy|list of|dict|pandas|dataframe)`), prose(0.5, growing)},
			says:  "each worker of the loader ends up with a copy of what the data set holds",
			shows: "Python objects are counted when they are read, which copies their pages into every worker",
			cures: []topicCure{{id: remedy.ShareData, of: re(torchSeen), title: "hold the samples in one array that all workers share", args: "one np.memmap or Arrow file, or one torch tensor with share_memory_(); no lists or dicts of small objects in the Dataset"},
				{id: remedy.DataLoaderWorkers, title: "fewer workers", own: true,
					args: "num_workers=2, then 0; prefetch_factor=2"}}},
		{where: ofHost, cause: CauseHostData, detail: "", against: re(`--cache disk|kv[ -]?cache|cache_dir`),
			clues: []clue{lines(2.5, `--cache(?:[- ]+(?:images|ram)\b|\s|$)|cache_images ?[=:] ?(?:true|ram)|cache=(?:true|"?ram)|cache_(?:rate|num)=|\bcachedataset\(|preload(?:_\w+)?[=: ]+true|load_(?:in|to)_(?:ram|memory)[=: ]+true|keep_in_memory=true|in_memory[=: ]+true`),
				prose(2, `\bcach(?:e|es|ed|ing)[- ]+(?:\w+ ){0,3}?(?:images?|data ?set|data|features?|samples|frames|in (?:the )?(?:ram|memory))|(?:images?|data ?set|features|samples) (?:\w+ ){0,2}cached?\b`), prose(0.5, `\bram\b`)},
			says:  "what is cached in main memory fills it: decoded samples take many times their files",
			shows: "each decoded sample takes height x width x channels, whatever its file has",
			cures: []topicCure{{id: remedy.StreamData, title: "cache on disk, or not at all", own: true, args: "leave the cache setting out, or point it to a disk; a smaller part of the data set where it takes a share"}}},
		{where: ofHost, cause: CauseHostData, detail: "", needs: re(`tf\.data|tensorflow|keras|prefetch\(`),
			clues: []clue{lines(3.5, `[^\n=]*=[^\n]*\.cache\(\)[^\n]*`)},
			says:  ".cache() holds the whole data set in host memory once an epoch has passed",
			shows: ".cache() without a file keeps every element that has passed",
			cures: []topicCure{{id: remedy.StreamData, title: "cache to a file, or not at all", args: `.cache("/path/on/disk") instead of .cache()   # or leave it out, or put it before the decoding`}}},
		{where: hostOrUnsaid, cause: CauseHostData, detail: "map_writer", needs: re(`hugging ?face|\bdatasets\b|load_dataset|num_proc`),
			clues: []clue{prose(1, `\bmap\b|preprocess\w*|tokeniz\w*|feature[_ ]extract\w*`), lines(1.5, `\.map\(|num_proc ?=|writer_batch_size|save_to_disk|filter\([^\n]{0,40}num_proc`),
				prose(1, `hugging ?face|\bdatasets\b`), prose(1, `audio|image|video|pixel_values|input_features|embedding`), lines(0.5, `num_proc ?= ?(?:[89]|\d\d)`)},
			says:  "map keeps the results of writer_batch_size samples in memory, in each of its processes",
			shows: "large results (sound, images) times 1000 samples, times num_proc, are in memory before they are written",
			cures: []topicCure{{id: remedy.MapProcesses, title: "write more often, with fewer processes", args: "ds.map(..., batch_size=50, writer_batch_size=50, num_proc=2)"}}},
		{where: ofHost, cause: CauseHostData, detail: "", fits: bareHostEnd,
			clues:   []clue{lines(1.5, `\.append\(|(?:append|add|stor|collect)\w* [^.\n]{0,30}\blists?\b`), prose(1, `pre-?process|data ?set|\brows\b|samples|corpus|records`), prose(0.5, kills)},
			against: re(`\.eval\(\)|validat`),
			says:    "what is built sample by sample in Python lists stays in memory", shows: "a Python object takes many times what the same numbers take in an array",
			cures: []topicCure{{id: remedy.StreamData, title: "write it in parts, or make each sample when it is used", args: "rows to Parquet, TFRecord or np.memmap, some thousand at a time; or a generator"}}},
		{where: ofHost, cause: CauseHostData, detail: "", fits: bareHostEnd,
			clues: []clue{prose(3, `(?:read|load|open|put|fit|stor)\w* [^.\n]{0,40}(?:in|into|to) (?:the )?(?:main |cpu |system |host )?(?:memory|ram)\b|(?:whole|entire|full|all (?:the|of the|my)?) ?(?:\w+ )?(?:data ?set|data|csv|files?|corpus|images|table)[^.\n]{0,60}(?:memory|ram)\b`),
				prose(2, `\b(?:read|load|open|prepar|build|process|creat)\w* (?:in )?(?:the |my |a |all |whole |entire |full |this |of )*(?:\w+ ){0,2}?(?:data ?sets?|data(?:base)?|csv|files|images|corpus|arrays?|h5|hdf5|parquet|json|samples|videos)\b|(?:data ?sets?|data|csv|files|images) (?:\w+ )?(?:is|are|was|were) (?:being )?(?:read|loaded|opened|prepared|built|processed|cached)|读取数据|加载数据`),
				lines(1.5, `read_csv|read_parquet|read_json|load_dataset|pd\.concat|np\.load\(|pickle\.load|json\.load|readlines\(`), prose(1.5, `(?:large|big|huge|\d+ ?(?:gb|g|m|million|k)) (?:\w+ )?(?:data ?set|csv|corpus|parquet|json)|(?:full|whole|entire|larger?|big(?:ger)?) data ?set`)},
			says: "the data that is read may be held as a whole", shows: "what is read into lists, arrays or frames stays in host memory",
			cures: []topicCure{{id: remedy.StreamData, of: re(`read_csv`), title: "read the table in pieces", args: "pd.read_csv(path, chunksize=100_000, usecols=[...], dtype={...})   # float32 and category take half or less"},
				{id: remedy.StreamData, title: "read it in parts, or keep it on disk", args: "a part at a time, or np.memmap, Parquet or HDF5 of which each batch is read when it is used; first try a tenth of the data"}}},
		{where: ofHost, cause: CauseHostData, detail: "one_tensor",
			clues: []clue{prose(2.5, `one[- ]?hot|to_categorical|get_dummies`), lines(1.5, `=\s*np\.(?:empty|zeros|ones|full)\(`), prose(1, `allocat\w*[^.\n]{0,60}(?:array|shape)|float64`), prose(1, `dense (?:matrix|array)|toarray|todense`)},
			says:  "one array is made in its full size at once",
			shows: "its size is the product of its dimensions, 8 bytes each in float64, however many of them are zero",
			cures: []topicCure{{id: remedy.InParts, title: "a smaller type, fewer rows or classes, or a part at a time", args: "dtype=np.uint8 (float32 is half of float64); class numbers instead of one-hot; np.memmap; a smaller first dimension"}}},
		{where: ofHost, cause: CauseHostData, detail: "shuffle_buffer", needs: re(`shuffle\(|prefetch|buffer_size|tfrecord|tf\.data`),
			clues: []clue{lines(1, `shuffle\(\s*(?:buffer_size ?= ?)?(?:\d{4,}|len\(|\w+)`), prose(2, `shuffle buffer|filling up shuffle|prefetch\w*[^.\n]{0,40}(?:memory|ram)|(?:memory|ram)[^.\n]{0,40}(?:shuffle|prefetch)`), prose(0.5, growing), lines(0.5, `prefetch\(`)},
			says:  "the buffers of the input pipeline hold decoded elements",
			shows: "shuffle holds buffer_size elements, prefetch and parallel reads hold whole batches",
			cures: []topicCure{{id: remedy.ShuffleBuffer, title: "smaller buffers, or shuffle before decoding", own: true, args: "shuffle(1000) of file names before map(decode); prefetch(1), num_parallel_calls=2"}}},
		{where: ofHost, cause: CauseHostData, detail: "pairs_host",
			clues: []clue{prose(1.5, `\b(?:\d{5,7}|\d{2,3},\d{3}) (?:\w+ ){0,2}?(?:nodes|points|users|items|genes|cells|vertices)\b`), prose(2, `adjacency|similarity matrix|distance matrix|pairwise|dense matrix|n ?[x×*] ?n\b`), prose(1, `\bnodes\b|\bgraph\b|walk|factoriz`)},
			says:  "a dense matrix of all pairs grows with the square of their number",
			shows: "60,000 of them are 3.6 billion pairs: 14 GB in 4 bytes, for each such matrix",
			cures: []topicCure{{id: remedy.InParts, title: "not all pairs at once", args: "a sparse matrix (scipy.sparse), some thousand rows at a time, or a sample of them"}}},
		{where: ofHost, cause: CauseHostData, detail: "prefilled", needs: re(`replay|experience|\bdqn\b|\bsac\b|\btd3\b|reinforcement|\brl\b`),
			clues: []clue{prose(2.5, `(?:replay|experience)[ _-]?(?:buffer|memory|pool)`), lines(1, `buffer_?size|memory_?size|capacity`), prose(1, growing)},
			says:  "the buffer of past steps fills up to its full size while it runs",
			shows: "two observations a step, in float32 unless they are stored as bytes",
			cures: []topicCure{{id: remedy.SmallerBuffer, title: "a smaller buffer, frames as uint8", own: true, args: "capacity x (observation + next observation) must fit: a tenth of the capacity, dtype uint8, each frame stored once"}}},

		// processes on one machine
		{where: hostOrUnsaid, cause: CauseHostData, detail: "trial_copies",
			clues: []clue{prose(1.5, `tune\.run|ray tune|\btrials\b|n_jobs|joblib|grid ?search|concurrent|parallel (?:jobs?|workers?|trials?|runs?|processes)`), prose(2, `each (?:trial|worker|process|actor|job|run|fold|task)[^.\n]{0,40}(?:load|hold|read|copy|copies|memory|ram|gb)`),
				lines(1, `tune\.run|n_jobs ?= ?-?\d|max_concurrent|parallel\(`), prose(1, `\d+ ?gb?\b[^.\n]{0,60}\d+ ?gb?\b`), prose(0.5, `data ?set`)},
			against: re(`cuda out of memory|ray\.data`),
			says:    "every trial or job that runs at the same time holds its own copy of data and model",
			shows:   "memory is the number of jobs at once times what one of them holds",
			cures: []topicCure{{id: remedy.FewerTrials, of: re(`\bray\b|tune\.`), title: "fewer trials at once, one copy of the data", args: "tune.run(..., max_concurrent_trials=2, resources_per_trial={'cpu': 8}); tune.with_parameters(train, data=data) puts the data into the object store once"},
				{id: remedy.FewerTrials, title: "fewer jobs at once", own: true,
					args: "n_jobs=2; data as np.memmap, which jobs share"}}},
		{where: ofHost, cause: CauseHostData, detail: "env_copies", needs: re(`\benvs?\b|environment|rollout|simulat`),
			clues: []clue{lines(2, `num_envs|n_envs|subprocvecenv|vec_?env|num_(?:rollout_|env_)?(?:workers|runners)`), prose(1.5, `parallel env\w*|(?:number of|more|many) (?:env\w*|rollout workers)`)},
			says:  "every parallel environment is a process with its own copy of all that it imports",
			shows: "memory is the number of environments times what one of them holds",
			cures: []topicCure{{id: remedy.FewerProcesses, title: "fewer environments at once", own: true, args: "half as many environments, with twice the steps of each"}}},
		{where: ofHost, cause: CauseModel, detail: "ranks_load", fits: func(f *Facts) bool {
			return f.World > 1 && len(f.Crash.Frames) == 0 && f.Crash.Steps == 0 && f.Hints.Phase != "load"
		},
			clues: []clue{prose(3, `\bload\w*[^.\n]{0,80}\b(?:checkpoint|weights|model|pretrained)|(?:checkpoint|weights|model)[^.\n]{0,40}\b(?:is|are|being) loaded`)},
			says:  "RANKS ranks each load the whole model into the memory of one machine", shows: "as many copies as there are ranks lie in host memory while it loads",
			cures: []topicCure{{id: remedy.LoadOnce, of: re(torchSeen), title: "one copy in host memory, not one for each rank", args: "torch.load(path, mmap=True, map_location='cpu'); or load on rank 0 only and broadcast (FSDP: sync_module_states=True)"}}},
		{where: ofHost, cause: CauseUnknown, detail: "building", needs: re(`pip3? install|setup\.py|ninja|nvcc|cc1plus|cicc|building wheel|cmake|\bmake -j|flash[-_]attn|docker build|bazel`),
			clues:   []clue{prose(2, `(?:while|when|during|trying to|on) (?:\w+ ){0,2}?(?:compil\w+|build\w*|install\w*)|(?:compil\w+|build(?:ing|s)?|install\w*)[^.\n]{0,40}(?:kill|oom|out of memory|fail|crash|memoryerror)`), lines(1, `cc1plus|nvcc|ninja|building wheel|pip3? install|setup\.py|\bmake -j`), prose(0.5, kills)},
			against: re(`\bepoch|torch\.compile|trainer\(`),
			says:    "many compilers run at once while it is built", shows: "each of them takes some gigabytes",
			cures: []topicCure{{id: remedy.FewerProcesses, title: "fewer compilers at once", args: "MAX_JOBS=2 before the command (CMake: --parallel 2); pip install --no-cache-dir, or a ready wheel"}}},
		{where: ofHost, cause: CauseModel, detail: "converting", against: re(`convert\w* (?:the |a |my )?data|tfrecord`),
			clues: []clue{prose(2, `(?:when|while|during|trying to|for|after) (?:\w+ ){0,3}?(?:convert\w*|export\w*|quantiz\w*)|\b(?:convert|export|quantiz)\w* (?:the |a |my |this |to |model|weights|checkpoint|gguf|onnx)`), lines(1.5, `convert[\w-]*\.py|torch\.onnx\.export|\bgguf\b|optimum-cli export|mlx_lm\.convert|trtexec|convert_checkpoint`), prose(0.5, kills)},
			says:  "converting holds the whole weights in main memory, twice where their type changes",
			shows: "the weights that are read and those that are written lie there together",
			cures: []topicCure{{id: remedy.RaiseLimit, title: "a machine with more memory for the conversion, or swap", args: "twice the size of the checkpoint; from safetensors, which are mapped, not read; without a card the weights stay in 16 bits with --dtype/--outtype f16 where it has one"}}},
		{where: ofHost, cause: CauseModel, detail: "load_host",
			fits:  func(f *Facts) bool { return bareHostEnd(f) && f.World < 2 },
			clues: []clue{lines(1, `loading checkpoint shards|from_pretrained\(|load_in_[48]bit|low_cpu_mem_usage|torch\.load\(`), prose(2, `(?:when|while|during|on|at|after|trying to) (?:\w+ ){0,3}?load\w* (?:\w+ ){0,4}?(?:model|weights|checkpoint|llm|pipeline)|load\w* (?:the |a |my )?(?:model|weights|checkpoint)[^.\n]{0,60}(?:kill|crash|oom|out of memory|ram)`), prose(0.5, kills)},
			says:  "the weights are read into main memory before they go to the card",
			shows: "a checkpoint that is not mapped needs its whole size there, and twice of it where a model of random weights is made first",
			cures: []topicCure{{id: remedy.LoadOnce, of: re(`from_pretrained|transformers|diffusers|hugging`), title: "read the weights piece by piece", args: "from_pretrained(..., torch_dtype=torch.float16, low_cpu_mem_usage=True), of safetensors; device_map='auto' puts each shard where it belongs"},
				{id: remedy.RaiseLimit, title: "more main memory, or swap", args: "as much as the files of the checkpoint take, at least"}}},

		// evaluation
		{where: nil, cause: CauseBatch, detail: "eval_outputs", needs: re(evaluated),
			clues: []clue{prose(3, `(?:append|add|stor|collect|kept|keep|accumulat|gather)\w* (?:\w+ ){0,4}?(?:to|in|into|on) (?:a |the )?(?:python )?(?:list|lists|dict|gpu|card|cuda|gpu memory)\b|(?:stay|stays|kept|remain\w*|still) (?:on|in) (?:the )?(?:gpu|cuda|card|vram)`),
				prose(2.5, `compute_metrics|nested_concat|eval_accumulation|(?:gather|concat|collect|accumulat|stor|keep|append|torch\.cat)\w*[^.\n]{0,60}\b(?:predictions?|preds?|outputs?|logits|masks|gts?)\b|\b(?:predictions?|preds?|gts?|outputs?|logits|masks)\b[^.\n]{0,40}(?:gather|accumulat|kept|stored|in (?:a )?(?:single|one) array)`),
				lines(2, `(?:pred\w*|output\w*|logit\w*|gts?\w*|label\w*|target\w*|all_\w+|\w+_all)\.(?:append|extend)\(`), lines(1, `\.eval\(\)|no_grad\(\)|def validat|val_loader|eval_loader|validation_step`), prose(1, evaluated), prose(0.5, `(?:validation|evaluation|test)[^.\n]{0,30}(?:never|not) (?:able to )?(?:complete|finish)`)},
			against: re(`\bvllm\b|\bsglang\b|llama\.cpp|requires_grad|\.backward\(`),
			says:    "the outputs of all evaluation batches are kept until the metrics are computed",
			shows:   "they grow with the number of samples, whatever the batch",
			cures: []topicCure{{id: remedy.EvalOutputs, of: re(`compute_metrics|seq2seqtrainer|\btrainer\(|eval_accumulation|transformers`), title: "keep class ids or a score of each batch, not the logits", args: "Trainer(..., preprocess_logits_for_metrics=lambda logits, labels: logits[0].argmax(-1) if isinstance(logits, tuple) else logits.argmax(-1)); on a card also eval_accumulation_steps=8"},
				{id: remedy.EvalOutputs, of: re(`torch|\.cuda\(|\.cpu\(|\bgpu\b`), title: "bring what is kept of each batch to host memory, or keep numbers only", args: "preds.append(out.detach().cpu())   # better a running metric; masks as uint8 or run lengths (RLE)"},
				{id: remedy.EvalOutputs, title: "update the metric with every batch, and keep counts instead of outputs", args: "counts or a confusion matrix; masks as uint8 or run lengths (RLE); or write each batch to a file"}}},
		{where: device, cause: CauseBatch, detail: "eval_outputs",
			clues: []clue{prose(2, `(?:first|after|through) (?:the )?(?:first )?~?\d+ (?:\w+ )?(?:steps|batches|iterations|samples|images)?[^.\n]{0,60}`), prose(1, `(?:validation|evaluation) (?:stage|step|loop)|during (?:validation|evaluation)`)},
			needs: re(`(?:validation|evaluation) (?:stage|step|loop)|during (?:validation|evaluation)`), against: re(`sliding_window|volume`),
			says:  "it comes in the middle of an evaluation, whose first batches had fitted",
			shows: "so something of each batch is kept: outputs, or the state of a metric",
			cures: []topicCure{{id: remedy.EvalOutputs, of: re(torchSeen), title: "keep numbers of each batch, not tensors on the card", args: "metric.update(pred.detach().cpu(), target.cpu()); no list of outputs"}}},
		{where: device, cause: CauseBatch, detail: "eval_batch", against: re(`\bvllm\b|\bsglang\b|llama\.cpp|\bollama\b|predict\w*\(?[^.\n]{0,30}\bloop|train(?:ing)? (?:or|and) (?:evaluat\w+|validat\w+|testing)`),
			clues: []clue{prose(2, beforeNoun+` `+aFewWords+`(?:validat\w+|evaluat\w+|eval\b|testing\b|test (?:set|phase|step|epoch|time|loop)|predict\w*)|(?:验证|评估|测试)(?:时|阶段|过程|集|的时候|完)|\b(?:validation|evaluation|eval|prediction)\b[^.\n]{0,30}\b(?:oom|out of memory|crash\w*|fail\w*|error|memory|killed)`), lines(2, `\.test\([^\n]{0,30}(?:oom|out of memory)`), prose(3, `训练(?:正常|没问题|可以)[^。\n]{0,10}(?:预测|测试|验证)|(?:预测|测试|验证)(?:报错|失败|爆)`),
				prose(1.5, `eval\w*[^.\n]{0,40}(?:in the )?(?:middle|during) (?:of )?(?:the )?train`), lines(1, `\b(?:valid|eval|val|test)_batch_size|per_device_eval`), prose(1, `(?:training|train) (?:\w+ ){0,3}(?:works?|fine|ok\b|fits|completes?|without)`), prose(2, `after (?:the )?(?:one|first|1st) epoch|between epochs`)},
			says:  "evaluation needs more than training has left: its batch, image size and length are settings of their own",
			shows: "an evaluation runs beside all that training holds",
			cures: []topicCure{{id: remedy.EvalBatch, title: "smaller batches, images or lengths in the evaluation", own: true, args: "the evaluation's own batch size, image size or length; or evaluate after training, in a program of its own"},
				{id: remedy.EvalOutputs, title: "if it comes only after many batches of it: keep numbers of each batch, not its outputs", args: "a running metric; what must be kept goes to host memory"}}},
		{where: hostOrUnsaid, cause: CauseUnknown, detail: "epoch_end",
			clues:   []clue{prose(2, `(?:kill|crash|die|oom|out of memory|fail|end|stop)\w*[^.\n]{0,40}(?:after|at the end of) (?:the )?(?:one |an |each |every |first |1st )?epoch\b|(?:after|at the end of) (?:the )?(?:one |an |each |every |first |1st )?epoch\b[^.\n]{0,60}(?:kill|crash|die|oom|out of memory|fail)`), prose(0.5, kills)},
			against: re(growing),
			says:    "it ends where an epoch does: an evaluation, which keeps what it finds, a checkpoint or a new set of workers comes there",
			shows:   "the steps of training themselves had fitted",
			cures:   []topicCure{{id: remedy.EvalOutputs, title: "one run without the evaluation, or with a tenth of its data, tells which of them it is", args: "if it then passes: keep counts or scores of each batch instead of outputs; a part of the data is enough between epochs"}}},
		{where: ofHost, cause: CauseBatch, detail: "eval_phase",
			clues: []clue{prose(2.5, `(?:validat|evaluat)\w*[^.\n]{0,60}(?:not (?:free|release)|memory (?:grow|increas|ris)|leak)`), prose(1.5, `(?:validat|evaluat)\w*`), prose(1, growing)},
			says:  "memory is said to rise with evaluations",
			shows: "what is kept of each batch may add up"},
		{where: device, cause: CauseBatch, detail: "eval_window",
			clues:   []clue{lines(3, `sliding_window_inference|sliding window|count_map|sw_batch_size|predict_from_raw|importance_map`), prose(1, `volume|\bct\b|\bmri\b|3d|large image|tile`), prose(0.5, evaluated)},
			against: re(`sw_device|device ?= ?(?:torch\.device\()?["']cpu`),
			says:    "the results of all windows of one input are put together on the card",
			shows:   "they take the whole input times the classes, whatever the batch of windows",
			cures: []topicCure{{id: remedy.WindowOnHost, of: re(`nnunet`), title: "put the windows together in host memory", args: "nnUNetv2_predict ... --not_on_device"},
				{id: remedy.WindowOnHost, title: "put the windows together in host memory", args: "MONAI: sliding_window_inference(..., sw_device=torch.device('cuda'), device=torch.device('cpu'))"}}},
		{where: device, cause: CauseBatch, detail: "ray_chunk",
			clues:   []clue{lines(1.5, `(?:\b|_)nerf|neural radiance`), lines(2, `render_rays|positional_encoding|predict_and_render|batchify_rays|raw2outputs|volume_render`), lines(1.5, `\bnet_?chunk|rays?_?chunk|chunk_?size|\bn_rand\b|--chunk\b|rays_per_chunk`), prose(1, `\brays\b`), prose(1.5, `\brender\w*\b`), prose(1, `novel views?|train(?:ed)? model|poses?\b`)},
			against: re(`gaussian|splat|simplerender|blender`),
			says:    "the rays that are rendered at once are too many for the card",
			shows:   "samples per ray times rays of one chunk are computed together; a picture is rendered chunk by chunk",
			cures:   []topicCure{{id: remedy.LessAtOnce, title: "fewer rays in a chunk when rendering: the picture stays the same", make: rayChunk}}},

		// what training keeps
		{where: cardOrUnsaid, cause: CauseLeak, detail: "", against: re(`keras|tensorflow`), needs: re(`torch|cuda|\.backward\(|\bgpu\b`),
			clues: []clue{lines(3, `not (?:being )?detach\w*|without (?:a )?detach|\w+ ?\+= ?\w*(?:loss|cost|err)\w*(?: ?[/*;\n]|$)|graph (?:of \w+ (?:\w+ )?)?(?:is kept|stays?|alive|retained|not freed)|retain_graph ?= ?true`),
				prose(2, `\w*(?:loss|output|result|prediction|logit|feature)\w*[^.\n]{0,20}\b(?:in|into|to) (?:a |the )?(?:\w+ )?(?:list|dict|buffer)\b`), lines(2, `\w+\.append\(\w*(?:loss|out|pred|logit|feat)\w*\)|torch\.cat\(\(?\[?\w*(?:pred|out|res|feat|logit)\w*, ?\w+`), prose(1, growing), prose(1, `history|comput\w+ graph|autograd`)},
			says:  "what is summed up or kept holds the graph of every batch",
			shows: "a tensor that was not detached keeps all that its backward pass would need, also after .cpu()",
			cures: []topicCure{{id: remedy.Detach, title: "keep numbers, not tensors with their graph",
				make: detached},
				{id: remedy.KeepLess, of: re(`\.append\(|\blist\b`), title: "bound what is kept for plots and logs", args: "collections.deque(maxlen=100), or the mean of an epoch"}}},
		{where: cardOrUnsaid, cause: CauseLeak, detail: "rises", needs: re(`\btorch|pytorch|\.backward\(|cuda`), fits: func(f *Facts) bool {
			return !risesWithSize.MatchString(f.Said.Of) && (f.Ran.Trained || learns(f.Crash, f.Hints)) &&
				f.Tool == nil
		},
			against: re(`keras|tensorflow|\basr\b|speech|audio|utterance|\btts\b|\bvllm\b|after (?:one|an|each|every) epoch`),
			clues:   []clue{prose(2, growing), prose(1, `slow\w* (?:and \w+ )?(?:increas|grow|ris)|stead\w* |ceaseless|unlimit|keeps? (?:\w+ )?(?:grow|increas|ris)|until (?:oom|out of memory|it)|blows? up|every (?:iteration|step|epoch)`)},
			says:    "memory grows from step to step, so something of each step is kept: most often a loss or an output with its graph",
			shows:   "a tensor that is kept keeps its graph; a number does not",
			cures: []topicCure{{id: remedy.Detach, title: "where losses or outputs are summed up, logged or put into lists, keep numbers", make: detached},
				{id: remedy.KeepLess, title: "to find the line", args: "print(torch.cuda.memory_allocated()) after each part of a step: the part behind which it never falls back keeps something"}}},
		{where: device, cause: CauseLeak, detail: "rises", vague: true,
			fits:  func(f *Facts) bool { return !risesWithSize.MatchString(f.text) },
			clues: []clue{prose(2, growing)}, says: "memory is said to grow while it runs", shows: "either what each step keeps grows, or samples are larger than those before"},
		{where: ofHost, cause: CauseLeak, detail: "growth_host", vague: true,
			fits:  func(f *Facts) bool { return !risesWithSize.MatchString(f.text) },
			clues: []clue{prose(2, growing)}, says: "host memory is said to grow while it runs", shows: "which of its processes grows tells loader workers from the training itself"},
		{where: device, cause: CauseBatch, detail: "longest_batch",
			clues: []clue{prose(1, `\basr\b|speech|\baudio|utterance|\bwav2?|\btts\b|librispeech|aishell|icefall|espnet|kaldi|sentence|transcri`), prose(1.5, growing), lines(1.5, `max[-_]duration|batch[-_]bins|max[-_]tokens\b`),
				prose(2, `(?:long(?:er|est)?|length)[ -](?:\w+ ){0,2}?(?:audios?|utterances?|sentences?|sequences?|samples?|cuts?|texts?|clips?)|(?:utterances?|sentences?|samples|cuts|sequences) (?:\w+ ){0,3}(?:long|length)`), prose(1, `after some|random\w*|sometimes|some batches`), prose(1.5, `(?:reduc|lower|decreas|small)\w*[^.\n]{0,30}batch|batch[ _]?size ?(?:=|of|is|to)* ?1\b`)},
			against: re(`requires_grad|\+= ?\w*loss|\bvllm\b|whisper-?x|long-?form|openai|generate\(`),
			says:    "the longest samples set the peak, not how many a batch has",
			shows:   "a batch is as long as its longest sample, and the pool keeps what that one needed",
			cures: []topicCure{{id: remedy.LongestBatch, own: true, title: "leave out or cut the longest samples", args: "samples beyond 20 to 30 seconds (or 400 characters); sorted with the longest first, it fails at once or never"},
				{id: remedy.MicroBatch, own: true, title: "a smaller bound on what a batch holds together"}}},
		{where: device, cause: CauseBatch, detail: "one_tensor", needs: re(`graph|\bgnn|\bgcn|sage\b|\bogb|torch_geometric|\bdgl|\bnode`),
			clues: []clue{prose(3, `full[ -_]?batch|(?:whole|entire|full) graph`), prose(1.5, `(?:big|large|huge) graph|(?:nodes|points|vertices)[^.\n]{0,40}edges|graph[^.\n]{0,40}(?:nodes|edges)`), prose(1, `\d{5,}|\d{1,3},\d{3}`), lines(1, `torch_geometric|edge_index|\bdgl\b|gcnconv|\bpyg\b`)},
			says:  "the whole graph is computed at once",
			shows: "in full-batch training the activations of all nodes and edges lie on the card together; a batch counts graphs, not nodes",
			cures: []topicCure{{id: remedy.InParts, title: "train on sampled neighbourhoods or clusters of the graph", args: "NeighborLoader(data, num_neighbors=[15, 10], batch_size=1024), or ClusterLoader; DGL: NeighborSampler([15, 10])"},
				{id: remedy.SmallerLayer, title: "a smaller network: its activations count for every node", args: "fewer hidden channels, then fewer layers"}}},
		{where: device, cause: CauseBatch, detail: "pairs", needs: re(`detect|rcnn|yolo|anchor|bbox|gt[ _]box`), fits: func(f *Facts) bool { return f.Crash.Requested == nil },
			clues: []clue{lines(3, `\b(?:many|number of|lots of|hundreds of|thousands of|\d{3,}) (?:gt |ground[- ]truth |instance |annotated )*(?:box(?:es)?|bbox(?:es)?|objects|instances|gts?)\b`)},
			says:  "all pairs of boxes or points are in memory at once: samples with many objects set the peak", shows: "every box is compared with every anchor of its image",
			cures: []topicCure{{id: remedy.FewerPairs, own: true, title: "compare fewer boxes at once, or compare them on the CPU", args: "fewer anchors or boxes an image, or crops of the images"}}},
		{where: device, cause: CauseModel, detail: "embedding_tables",
			clues:   []clue{prose(2, `embedding (?:tables?|matrix|matrices|layers?|size)|(?:large|huge|big) embeddings?`), lines(1.5, `num_embeddings|arch-embedding-size|embeddingbag|\bdlrm\b|sparse_feature`), prose(1, `recommend\w*|users|items|million`)},
			against: re(`openai|sentence_transformers|encode\(`),
			says:    "the embedding tables, with what the optimizer keeps for each row, fill it",
			shows:   "rows x width x 4 bytes, three times of it with Adam",
			cures:   []topicCure{{id: remedy.SmallerLayer, title: "tables in host memory or divided over cards, or an optimizer that keeps little", args: "fewer or hashed rows, a narrower table; sparse=True with SGD or Adagrad; tables on the CPU"}}},
		{where: device, cause: CauseModel, detail: "optimizer_step", against: re(`offload`),
			clues: []clue{prose(3, `optimi[sz]er(?:'s)? step|optimizer\.step|step of the optimi[sz]er|optimi[sz]er states?`)},
			says:  "what the model itself needs does not fit (weights, gradients, optimizer states)", shows: "the optimizer makes its states in its first step",
			cures: fewerStates},
		{where: aCard, cause: CauseModel, detail: "optimizer_step", fits: statesOnly,
			clues: []clue{prose(3, atStart)},
			says:  "what the model itself needs does not fit (weights, gradients, optimizer states)", shows: "it fails at the start, and batch and activations are as small as they can be made",
			cures: fewerStates},
		{where: device, cause: CauseBatch, detail: "", fits: func(f *Facts) bool {
			return !f.Ran.Trained ||
				evaluates(f.Crash, f.Hints)
		},
			clues: []clue{prose(3, `\b(?:long(?:er)?|\d+[- ]?(?:min(?:ute)?s?|hours?|seconds?|m\d+s)) (?:\w+ )?(?:audios?|videos?|clips?|files?|recordings?|speech|tracks?|documents?|inputs?)\b|(?:works?|fine|ok) (?:for|with|on) (?:short|small)\w* (?:audio|video|clip|file|image|text|input|sequence)\w*|(?:audio|video|clip|file|image|text|input)\w* (?:\w+ ){0,2}?(?:longer|larger|bigger) than`)},
			says:  "one input as a whole is too long or too large", shows: "it is computed in one piece, and attention grows with the square of its length",
			cures: []topicCure{{id: remedy.LessAtOnce, own: true, title: "the input in pieces", args: "pieces of 10 to 30 seconds of sound, tiles of a picture, or some frames at a time; with a small overlap, joined on the CPU"},
				{id: remedy.RightDevice, of: re(`torch|device`), title: "the longest ones on the CPU", args: "where there is more memory: device=\"cpu\""}}},

		// several cards and ranks
		{where: cardOrUnsaid, cause: CauseUnknown, detail: "first_rank",
			clues: []clue{prose(2, `(?:\bfirst|\b0th|\bzero|\bmain|rank ?0|gpu ?[:#-]?0|\b0 gpus?|cuda:0|device 0|one of (?:the|them)) ?[^.\n]{0,60}(?:\bmore\b|extra|out of memory|oom|over memory|\bfull|higher|imbalance|most of)`), prose(2, `(?:gpu|memory|load|cards?)'?s?[^.\n]{0,20}(?:(?:im|un)-?balanc|uneven)\w*|(?:(?:im|un)-?balanc|uneven)\w*[^.\n]{0,30}(?:gpu|memory|load|card)`), prose(2, `(?:extra|additional|several|multiple|more) process\w*[^.\n]{0,60}(?:gpu|card|\d{3,4} ?m)`),
				prose(1, `distribut\w*|\bddp\b|multi-?gpu|multiple gpus|data ?parallel|\d gpus\b`), lines(1, `nproc|torchrun|distributed\.launch|dist_train|dist_launch|--ngpu \d|distributeddataparallel|dataparallel`), lines(1, `load(?:ing)? model: |torch\.load\(|--ckpt\b|map_location`),
				prose(1.5, `(?:single|one|1) gpus?[^\n]{0,300}(?:multi\w*|several|more|[2-8]) gpus?[^\n]{0,120}(?:out of memory|oom\b|fail)`)},
			against: re(`device_map|\bvllm\b|tensor[_-]parallel|pipeline parallel`),
			says:    "the first card holds more than the others, and fills up first",
			shows:   "every rank that opens card 0 (a checkpoint loaded to cuda:0 does) keeps memory there, and DataParallel gathers all outputs on it",
			cures: []topicCure{{id: remedy.SelectCard, of: re(`torch|\bddp\b|cuda|\bgpu|dist_train|nproc`), title: "with one process a card: each on its own card, checkpoints through host memory", args: "torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) before anything touches CUDA; torch.load(path, map_location='cpu')"},
				{id: remedy.DDP, of: re(`torch|data ?parallel|pytorch|--ngpu`), title: "with one process for all cards (DataParallel): DistributedDataParallel, started with torchrun", args: "torchrun --nproc_per_node=N ...; DistributedDataParallel(model, device_ids=[local_rank])"}}},
		{where: cardOrUnsaid, cause: CauseNeighbour, detail: "",
			clues: []clue{prose(3, `(?:another|other|some(?:one|body) else'?s?|zombie|leftover|orphan\w*) (?:process\w*|jobs?|programs?|applications?)[^.\n]{0,60}(?:gpu|memory|card|vram)|(?:gpu|card)s? (?:is|are) (?:shared|used by (?:other|another))`), prose(1, `shared (?:machine|server|gpu|cluster)`)},
			fits: func(f *Facts) bool {
				return f.Ran.Maker == remedy.NVIDIA &&
					len(f.Crash.Neighbours) == 0
			},
			against: re(`\bno (?:other|another)|not? (?:any )?other|without (?:any )?other`),
			says:    "another process holds part of the card", shows: "what others hold there is missing, whatever this program asks for",
			cures: []topicCure{{id: remedy.FreeNeighbour, title: "look who holds the card, and use another one or wait", args: "nvidia-smi; CUDA_VISIBLE_DEVICES=N with the number of a card that it shows free; end only what is a leftover of your own"}}},
		{where: device, cause: CauseUnknown, detail: "full",
			fits:  func(f *Facts) bool { return f.Crash.Allocated == nil && len(f.Crash.Neighbours) == 0 },
			clues: []clue{{3, said, sameSettings}}, against: re(`upgrad|updat\w+|new(?:er)? (?:version|release|data)|\bincreas|resum|larger|bigger|checkpoint`),
			says:  "something else holds part of the card now: the same job had room before",
			shows: "neither the model nor the batch is larger than when it ran",
			cures: []topicCure{{id: remedy.FreeNeighbour, title: "look who holds the card before anything is made smaller", args: "nvidia-smi   # other users, and processes of your own that are left from an earlier run: end those by their number"}}},
		{where: device, cause: CauseUnknown, detail: "cells", needs: re(`notebook|jupyter|colab|kaggle|\bcell\b`),
			clues: []clue{prose(2.5, `restart\w* (?:the |my )?(?:kernel|runtime|notebook|session)[^.\n]{0,60}(?:work|help|fine|ok|solv|first)|(?:second|2nd|next) (?:time|run|cell)|(?:re-?run|run(?:ning)? (?:it )?again)`), prose(0.5, `notebook|jupyter|colab`)},
			says:  "what earlier cells made is still on the card",
			shows: "a notebook keeps every name, and after an error the frames of the failed cell too",
			cures: []topicCure{{id: remedy.NotebookState, title: "restart the kernel, and keep nothing of an earlier try", args: "restart the runtime; or del model, optimizer, loss; gc.collect() before the next try"}}},

		// checkpoints
		{where: nil, cause: CauseModel, detail: "checkpoint_save", against: re(`reduc\w+ the batch size (?:solved|fixed)`),
			clues: []clue{prose(3, `(?:when|while|whilst|during|upon|before|trying to|after|try to) (?:\w+ ){0,2}?(?:sav(?:es|ing|ed)\b|save (?:the |a |my )?(?:\w+ )?(?:model|checkpoint|weights|state)|checkpointing (?:the )?(?:model|state)|(?:the |a )?checkpoint (?:\w+ ){0,2}?(?:saved|written)|writ\w+ (?:\w+ )?checkpoint|save_\w+)|\bsav(?:e|ing) (?:\w+ ){0,3}(?:checkpoint|model|state|weights)|保存(?:模型|权重|检查点|checkpoint)?(?:时|的时候)|model checkpointing (?:causes|leads|results)|checkpointing[^.\n]{0,60}(?:collat|gather|consolidat)`), prose(2, `(?:after|when) (?:the )?(?:training|train|last epoch|final epoch|finetuning|fine-tuning) (?:is |was |has |had )?(?:finish|complet|done|end)\w*|after (?:the )?(?:last|final) (?:epoch|step)`), prose(1, sharded)},
			says:  "it comes when a checkpoint is saved",
			shows: "a gathered or copied set of weights and states comes beside what is there",
			cures: []topicCure{{id: remedy.SaveSharded, of: re(`lightning`), title: "each rank writes its own part", args: "FSDPStrategy(state_dict_type=\"sharded\")"},
				{id: remedy.SaveSharded, of: re(`accelerate|fsdp_state_dict_type|transformers`), title: "each rank writes its own part", args: "fsdp_state_dict_type: SHARDED_STATE_DICT (accelerate config); DeepSpeed: no stage3_gather_16bit_weights_on_model_save"},
				{id: remedy.SaveSharded, of: re(sharded), title: "each rank writes its own part", args: "FSDP: SHARDED_STATE_DICT, or FullStateDictConfig(offload_to_cpu=True, rank0_only=True); DeepSpeed: no stage3_gather_16bit_weights_on_model_save"},
				{id: remedy.SaveSharded, of: re(`\b(?:[2-9]|\d\d) ?x ?[ahblv]\d|multi-?gpu|\bgpus\b|torchrun`), title: "where the model is divided over the cards (FSDP): write the parts, or gather them in host memory", args: "StateDictType.SHARDED_STATE_DICT; or FullStateDictConfig(offload_to_cpu=True, rank0_only=True)"}}},
		{where: device, cause: CauseModel, detail: "load_to_card", against: re(`works? (?:fine )?(?:when|after) resum`),
			clues: []clue{prose(3, `\b(?:when|after|on|upon|while|try(?:ing)? to|if i|to) (?:\w+ ){0,3}?resum\w+|resum\w+ (?:the |my )?(?:train\w*|from|finetun\w*)|continu\w+ (?:the |my )?(?:train\w*|finetun\w*) from|restart\w* from|from (?:a |the |my )?(?:saved|last|latest|previous|intermediate|specific) checkpoint|断点|恢复训练`), prose(2, `load\w* (?:the |my |a |an |from )?(?:(?:saved|last|latest|previous|training) )?(?:checkpoint|optimizer|optim)(?: states?\b| from\b| and\b|[,.\n]|$)`)},
			says:  "it comes when training continues from a checkpoint",
			shows: "the saved weights and optimizer states are restored beside those that the card holds already",
			cures: []topicCure{{id: remedy.LoadToHost, of: re(`torch|cuda`), title: "load the checkpoint into host memory, and let go of it", args: "checkpoint = torch.load(path, map_location='cpu'); model.load_state_dict(...); del checkpoint   # in the trainer where that loads it"},
				{id: remedy.LoadToHost, title: "load the checkpoint into host memory first", args: "where the program has a setting for the device of what it loads: the CPU"}}},
		{where: nil, cause: CauseModel, detail: "merge",
			clues: []clue{prose(3, `\bmerg(?:e|es|ing)\b[^.\n]{0,50}(?:lora|adapter|peft)|merge_and_unload`)},
			says:  "it comes when adapters are merged", shows: "merging needs the full weights, unpacked, beside what is there"},

		// engines, systems and releases
		{where: device, cause: CauseSetting, detail: "engine_wakes", needs: re(`\bvllm|sglang|rollout`),
			clues: []clue{prose(3, `w[ao]k(?:e|es|en|ing)[_ -]?up|\bsleep(?:[_ ]mode|ing)?\b`), lines(3, `wake_up\(|resume_memory_occupation`)},
			says:  "an inference engine wants its share of the card back, and the trainer still holds memory there",
			shows: "the engine takes its share as a whole; what the trainer holds (weights, states, cached blocks) must fit beside it",
			cures: []topicCure{{id: remedy.ServingShare,
				title: "give the engine a smaller share of the card", make: smallerShare},
				{id: remedy.OptimizerOffload, title: "take the trainer's states off the card while the engine runs", make: func(f *Facts) string {
					away, _ := f.Tool.setting(remedy.OptimizerOffload)
					return cmp.Or(away, "the trainer's offload of optimizer and parameters") + "; torch.cuda.empty_cache() before the engine wakes up"
				}}}},
		{where: cardOrUnsaid, cause: CauseSetting, detail: "engine_share", needs: re(`\bvllm\b|sglang`), fits: func(f *Facts) bool { return f.Crash.Requested == nil && len(f.Crash.Frames) == 0 },
			clues: []clue{prose(2, `(?:why|so much|too much|all|more|\d{2} ?gb?)[^.\n]{0,60}(?:v?ram|memory)`), prose(1, `small model|\d+m\b|opt-125m|reserv\w*|pre-?alloc\w*|0\.9|90 ?%`), lines(1, `gpu[_-]memory[_-]utilization`)},
			says:  "the engine takes its share of the card (0.9 of it unless set) for weights and cache, however small the model",
			shows: "what weights leave of that share becomes the cache of keys and values",
			cures: []topicCure{{id: remedy.ServingShare,
				title: "give the engine a smaller share of the card", make: smallerShare}}},
		{where: nil, cause: CauseSetting, detail: "", against: re(`data ?set (?:version|update)`),
			clues: []clue{prose(3, `\b(?:since|after) (?:\w+ ){0,3}?(?:upgrad|updat)\w*|(?:previous|old(?:er)?|earlier|prior) (?:version|release|commit)s?\b[^.\n]{0,60}(?:work|fine|ok|no problem|less|fit)|\bdowngrad\w+|\bregression\b|(?:works?|worked|fine|ok) (?:with|in|on|using) (?:\w+ )?(?:version |v|==)\d+\.\d+|version\b[^.\n]{0,50}\bworks?\b[^.\n]{0,30}\b(?:latest|newest|newer|current|main|master)\b|(?:latest|newest|newer) [^.\n]{0,40}\b(?:oom|out of memory|fail|crash)`)},
			fits: func(f *Facts) bool {
				return !f.says("regression model", "linear regression", "logistic regression", "regression task")
			},
			says:  "another release is said to need less, with the same settings",
			shows: "so it is not the batch or the model that is too large",
			cures: []topicCure{{id: remedy.EmptyCache, of: re(`not released|not properly released|empty_cache|not free`), title: "give cached blocks back where the newer release may have stopped to", make: func(f *Facts) string {
				if !onCard(f.Crash) || f.Ran.Runtime == LlamaCPP {
					return ""
				}
				return "torch.cuda.empty_cache()   # at the end of the step, before the other program on the card needs room"
			}}, {id: remedy.OtherVersion, title: "go back to the release that worked, and report the difference", args: "pip install 'PACKAGE==THE_VERSION_THAT_WORKED'   # then compare the defaults that changed"}}},
		{where: cardOrUnsaid, cause: CauseUnknown, detail: "mlx_model", needs: re(`\bmlx\b|mlx[_-]`), fits: func(f *Facts) bool {
			return f.Hints.Batch <= 1 && f.Ran.Adapted && !f.says("fine-tune-type full", "--batch-size 2")
		},
			clues: []clue{lines(1.5, `\blora\.py|mlx_lm|--train\b|convert\.py`), lines(1, `longer than \d+ tokens|max[-_]seq`), prose(1, `\b\d+b\b|fine-?tun\w*|lora`), lines(1, `insufficient memory`)},
			says:  "weights that are not packed, and long samples, are what fills a Mac where the batch is one",
			shows: "a 7B model takes 14.5 GB in 16 bits and 4 GB in 4 bits; a sample counts with its whole length",
			cures: []topicCure{{id: remedy.Quantize4Bit, title: "train adapters on weights in 4 bits", args: "convert the model with -q first, and give that folder as --model"},
				{id: remedy.ShorterSequence, title: "shorter samples, fewer layers", args: "--max-seq-length 1024, or split the samples; --grad-checkpoint; fewer layers with adapters"}}},
		{where: device, cause: CauseSetting, detail: "cuda_graphs", needs: re(torchSeen),
			clues:   []clue{lines(1.5, `torch\.compile|reduce-overhead|max-autotune`), prose(2, `(?:with|when|using|enabl\w+|after) (?:\w+ ){0,3}?(?:torch\.?compile|cuda ?graphs?|compil(?:e|ed|ing) (?:the )?model)|(?:without|disabl\w+) (?:torch\.?compile|cuda ?graphs?)`)},
			against: re(`\bvllm\b|sglang|private pools`),
			says:    "each compiled shape, or recorded graph, keeps memory of its own",
			shows:   "it is made anew for every new input size, and what a graph has recorded serves nothing else",
			cures: []topicCure{{id: remedy.CUDAGraphSizes, title: "fewer graphs and shapes",
				args: `torch.compile(model, dynamic=True) without mode="reduce-overhead"; inputs padded to few sizes`}}},
	}
})

// fewerStates are cures of states that fill a card.
var fewerStates = []topicCure{
	{id: remedy.OptimizerAdafactor, title: "an optimizer that keeps little for each weight",
		make: func(f *Facts) string {
			for _, l := range f.lines {
				if m := optimizerKey.FindStringSubmatch(l.Text); m != nil {
					return m[1] + "Adafactor instead of " + m[2] + "; or AdamW in 8 bits"
				}
			}
			return "Adafactor, or AdamW in 8 bits"
		}},
	{id: remedy.LoRA, title: "train adapters (LoRA) or fewer layers", args: "states then exist for what is trained only; else offload them to host memory"},
}

// optimizerKey is the setting of an optimizer, as programs take it.
var optimizerKey = lazyregexp.New(`(--?optim(?:izer)?(?:[_-](?:type|name))?[= ]["']?|\boptim(?:izer)?(?:_type|_name)?["']?\s?[=:]\s?["']?)(\w+)`)

// chunkKey is a setting of how many rays or points are computed at once.
var chunkKey = lazyregexp.New(`((?:--)?\b(?:[a-z_]*rays?_?chunk|net_?chunk|chunk_?size|chunk|eval-num-rays-per-chunk|chunksize)["']?\s?[=: ]\s?)(\d{3,7})`)

// rayChunk halves the setting of the text twice, or names those that such programs have.
func rayChunk(f *Facts) string {
	if m := chunkKey.FindStringSubmatch(f.text); m != nil {
		n, _ := strconv.Atoi(m[2])
		return m[1] + strconv.Itoa(n/4) + " instead of " + m[2]
	}
	if text, ok := f.Tool.setting(remedy.EvalBatch); ok {
		return f.filled(text)
	}
	return "a quarter of the setting for rays or points in a chunk (chunk and netchunk, chunksize, rayschunk), of validation too"
}

// smallerShare lowers the share that an engine takes.
func smallerShare(f *Facts) string {
	if k, ok := f.key(Share); ok {
		return k.with(strconv.FormatFloat(max(0.2, k.Number()-0.2), 'g', 2, 64)) + " instead of " + k.Text
	}
	return "gpu_memory_utilization=0.5 (SGLang: mem_fraction_static), and a shorter max_model_len"
}

// summed is a sum that takes a loss as it is.
var summed = re(`\b(\w+) ?\+= ?(\w*(?:loss|cost|batch|err)\w*)`)

// detached writes the line that lets go of the graph, with the name that the text has for the sum.
func detached(f *Facts) string {
	sum := summed.FindStringSubmatch(f.text)
	if sum == nil {
		sum = []string{"", "total", "loss"}
	}
	return sum[1] + " += " + sum[2] + ".item()   # for a list: outputs.append(y.detach().cpu())"
}

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

// namedInProse are kinds of messages whose words people use in sentences.
var namedInProse = []string{"torch_device", "torch_class", "device_generic", "any_generic",
	"torch_mps"}

// onlyTold reports whether a person's words are all that shows the end, perhaps with the name of a
// message.
func onlyTold(f *Facts) bool {
	c := f.Crash
	return c.Kind == trace.KindTold || onCard(c) && c.Sure <= 0.6 && len(c.Frames) == 0 &&
		c.Requested == nil &&
		c.Capacity == nil && slices.Contains(namedInProse, c.Kind)
}
