package explain

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"

	"memroom/event"
	"memroom/lazyregexp"
	"memroom/remedy"
)

// form is how the size of a tensor follows from its inputs.
type form int

const (
	plain    form = iota // nothing can be solved for
	perWord              // something x vocabulary
	square               // n x n
	perImage             // something x height x width of an image that the text names
)

// operation is what one operation allocates, and what makes that smaller.
type operation struct {
	name   string             // of what it makes, a phrase: "the logits over the vocabulary"
	calls  *lazyregexp.Regexp // names of functions
	code   *lazyregexp.Regexp // source lines
	file   *lazyregexp.Regexp // paths of frames; with calls both must match
	needs  func(*Facts) bool  // nil: nothing more
	dims   string             // its size, in words
	form   form
	counts string // what is solved for: "tokens"
	cause  Cause
	detail string
	levers []Quantity // what changes its size, best first
	also   []remedy.ID
	late   bool   // said only where nothing else is known: the line alone shows it
	parts  string // how to make it in parts, or not at all; code or words
	vain   []remedy.ID
}

// inVainForOne are cures of what many layers keep. They do not make one tensor smaller.
var inVainForOne = []remedy.ID{remedy.Checkpointing, remedy.ActivationOffload,
	remedy.OptimizerOffload,
	remedy.Optimizer8Bit, remedy.OptimizerAdafactor, remedy.OptimizerFused, remedy.ExpandableSegments,
	remedy.LoRA, remedy.ZeRO, remedy.FSDP, remedy.Quantize8Bit, remedy.Quantize4Bit}

func re(text string) *lazyregexp.Regexp { return lazyregexp.New(text) }

// operations has a row for every operation that makes one large tensor. The first that a frame
// shows counts, innermost frame first.
var operations = sync.OnceValue(func() []operation {
	return []operation{
		{name: "the joint of a transducer",
			calls: re(`(?i)^(?:joint\w*|rnnt\w*|transducer\w*|_?joint_after_projection)$`),
			file:  re(`(?i)rnnt|transducer|joint`), dims: "samples x frames x labels x vocabulary",
			form:   perWord,
			counts: "samples x frames x labels", cause: CauseBatch, detail: "logits",
			levers: []Quantity{Tokens, Samples, Length},
			parts:  "a fused or pruned joint: fused_batch_size of the joint, or k2's pruned RNN-T loss; and shorter utterances"},
		{name: "the loss of every pixel over the classes",
			calls: re(`^(?:cross_entropy|log_softmax|nll_loss\w*|softmax)$`),
			needs: func(f *Facts) bool { return f.pictures() && !f.words() },
			dims:  "samples x classes x height x width",
			cause: CauseBatch, detail: "forward", levers: []Quantity{Samples, Side}},
		{name: "the logits over the vocabulary",
			calls: re(`(?i)^(?:log_softmax|cross_entropy|nll_loss\w*|logsumexp|selective_log_softmax|\w*log_?prob\w*|\w*logps\w*|` +
				`entropy_from_logits\w*|\w*parallel_cross_entropy|ForCausalLMLoss|fixed_cross_entropy|_compute_distributed_log_softmax|fused_linear\w*|_convert_to_fp32|compute_entropy\w*)$`),
			code:  re(`log_softmax\(|logits\.(?:float|clone|exp|contiguous)\(|softmax\((?:\w+_)?logits|logsumexp\(\s*logits|lm_head\(|logits = logits|shift_logits|output_layer\(`),
			needs: (*Facts).words, dims: "tokens x vocabulary", form: perWord, counts: "tokens",
			cause: CauseBatch, detail: "logits",
			levers: []Quantity{Tokens, Samples, Length},
			parts:  "compute the loss or log-probabilities in pieces of the sequence: for part in hidden.split(1024, dim=1): ...   # or a fused loss (Liger, cut cross entropy)",
			vain:   inVainForOne},
		{name: "the list of splats by the tiles that they cover",
			calls: re(`(?i)^(?:_?rasterize_?gaussians\w*|rasterize_to_pixels|isect_tiles|rasterization)$`),
			code:  re(`rasterize_gaussians\(|isect_tiles\(`), dims: "splats x tiles",
			cause: CauseBatch, detail: "one_tensor", levers: []Quantity{Side},
			also: []remedy.ID{remedy.SmallerImage, remedy.FewerPoints}, vain: inVainForOne},
		{name: "the masks of all objects, pixel by pixel, for their overlaps",
			calls: re(`(?i)^_?\w*mask_?(?:iou|overlap)\w*$`), dims: "objects x pixels, 4 bytes each once they are float",
			form: perImage, counts: "masks", cause: CauseBatch, detail: "eval_tensor",
			levers: []Quantity{Boxes},
			parts: "compare them on the CPU or a part at a time; at a lower resolution; or keep fewer detections before they are " +
				"compared (a higher score threshold)", vain: inVainForOne},
		{name: "all pairs of boxes",
			calls: re(`(?i)^(?:\w*(?:box|bbox|pairwise)_?(?:iou|overlaps)\w*|box_iou\w*|iou_calculator|generalized_box_iou|bbox_overlaps|_get_targets_single|get_box_metrics|intersect\w*)$`),
			file:  re(`(?i)iou|box|assign|tal\.py|match|loss|metric`), dims: "boxes x boxes",
			cause: CauseBatch, detail: "pairs",
			levers: []Quantity{Boxes}, also: []remedy.ID{remedy.FewerPairs}, vain: inVainForOne,
			parts: "compare in pieces: torch.cat([box_iou(part, others) for part in boxes.split(1024)]); or assign on the CPU"},
		{name: "all pairs of points",
			calls: re(`(?i)^(?:cdist|_?euclidean_dist\w*|pairwise_dist\w*|euclidean_distances|knn\w*|chamfer\w*|distchamfer|square_distance|compute_distance\w*|pdist|rbf_kernel|cosine_similarity_matrix|ssim_matrix)$`),
			code:  re(`cdist\(|\[:, None(?:, :)?\] ?[-*+]|\.unsqueeze\(1\) ?[-*+] ?\w+\.unsqueeze\(0\)|torch\.pow\(\w+\[:, None|pairwise_distances\(|cosine_similarity\(`),
			dims:  "points x points", form: square, counts: "points", cause: CauseBatch, detail: "pairs",
			levers: []Quantity{Samples, Boxes}, vain: inVainForOne,
			parts: "compare in pieces and keep the result of each only: for part in points.split(1024): cdist(part, others).topk(k)"},
		{name: "the similarities of all rows with all others",
			code: re(`sim(?:ilarity)?(?:_matrix)? = |@ \w*(?:text|image)_features|feats @ feats|\w+ ?@ ?\w+\.(?:T|t\(\))\b`),
			dims: "rows x rows", form: square, counts: "rows", cause: CauseBatch, detail: "pairs",
			levers: []Quantity{Samples},
			parts:  "in pieces, keeping the result of each only: for part in features.split(1024): (part @ others.T).topk(k)"},
		{name: "a correlation volume", calls: re(`(?i)^(?:corr|correlation|all_pairs_corr\w*|build_volume|cost_volume)$`), dims: "pixels x pixels", form: square, counts: "pixels",
			cause: CauseBatch, detail: "attention", levers: []Quantity{Side, Samples}, parts: "the implementation that computes it when it is needed (alternate_corr), where it has one"},
		{name: "the scores of attention",
			calls: re(`(?i)^(?:eager_attention_forward|_?attn|_?attention|attention_scores|_attn_(?:core|weights)|get_attention_scores|relative_position_bias|compute_bias|_make_causal_mask|_prepare_4d\w*|attention_probs|scaled_dot_product_attention\w*)$`),
			code:  re(`(?i)torch\.(?:matmul|bmm|baddbmm|einsum)\([^#\n]*(?:query|key|\bq\b|\bk\b)|@ ?\w*k\w*\.(?:transpose|mT|permute)|key_states\.transpose|k\.transpose|attn_weights|attention_scores|attn_scores|q ?@ ?k|sim ?= ?einsum|softmax\([^)]*(?:attn|scores|sim\b)`),
			dims:  "samples x heads x length x length", form: plain, cause: CauseBatch, detail: "attention",
			levers: []Quantity{Length, Samples, Side}, vain: nil},
		{name: "masks of the size of the image",
			calls: re(`(?i)^(?:paste_masks?\w*|_?do_paste_mask|process_mask\w*|post_process_\w*|sem_seg_postprocess|scale_masks|upsample_masks|retry_if_cuda_oom)$`),
			code:  resizedMasks,
			dims:  "objects x height x width", form: perImage, counts: "masks",
			cause: CauseBatch, detail: "eval_tensor", levers: []Quantity{Boxes, Side}, vain: inVainForOne,
			parts: "resize the masks on the CPU or a few at a time; keep fewer detections (a higher score threshold)"},
		{name: "an output that is resized to the full image",
			calls: re(`^(?:interpolate|upsample\w*|resize|grid_sample)$`), needs: func(f *Facts) bool {
				return f.evaluates() && !f.resizesMasks()
			},
			form: perImage, counts: "maps",
			code: re(`interpolate\(|upsample\(|resize\(`), dims: "maps x height x width", cause: CauseBatch,
			detail: "eval_tensor", levers: []Quantity{Boxes, Side, EvalSize}, vain: inVainForOne,
			parts: "resize on the CPU, or one map at a time: F.interpolate(x.cpu(), size); keep fewer maps (a higher score threshold)"},
		{name: "a map that is enlarged", calls: re(`^(?:interpolate|upsample\w*)$`),
			needs: func(f *Facts) bool { return !f.resizesMasks() },
			dims:  "samples x channels x height x width", cause: CauseBatch, detail: "forward",
			levers: []Quantity{Samples, Side}},
		{name: "a one-hot encoding", calls: re(`(?i)^(?:one_hot|to_categorical|get_dummies|onehot\w*)$`),
			code: re(`one_hot\(|to_categorical\(|get_dummies\(`),
			dims: "elements x classes, 8 bytes each in PyTorch", cause: CauseBatch, detail: "one_tensor",
			levers: []Quantity{Samples},
			parts:  "keep the indices: F.cross_entropy and nn.Embedding take them; sparse=True in pandas and scikit-learn"},
		{name: "a sparse matrix that is made dense",
			calls: re(`(?i)^(?:to_dense\w*|todense|toarray|densify|to_dense_adj)$`),
			code:  re(`\.to_dense\(|\.todense\(|\.toarray\(|to_dense_adj\(|\.A\b`),
			dims:  "rows x columns", cause: CauseUnknown, detail: "one_tensor", parts: "keep it sparse (CSR) where it is used; or convert a piece of the rows at a time"},
		{name: "a table of pairs (pair representation)",
			calls: re(`(?i)^(?:outer_product_mean|triangle\w*|pairformer\w*|evoformer\w*|msa_\w+)$`),
			file:  re(`(?i)fold|evoformer|pairformer|triangular|openfold|boltz|esm`),
			dims:  "residues x residues x channels", form: plain, cause: CauseBatch, detail: "one_sample", levers: []Quantity{Length, Side}, parts: "a smaller chunk_size of the trunk, or a shorter crop"},
		{name: "the copy that joins the results of all batches",
			calls: re(`(?i)^(?:torch_pad_and_concatenate|nested_concat|concatenate|_pad_and_concatenate|hstack|vstack)$`),
			dims:  "all batches, twice for a moment", cause: CauseBatch, detail: "eval_outputs",
			also: []remedy.ID{remedy.EvalOutputs}, needs: (*Facts).evaluates},
		{name: "one tensor for all of the data",
			code: re(`torch\.(?:from_numpy|as_tensor|tensor|FloatTensor)\([^)]*(?:train|data|X|all)\w*[^)]*\)[^#]*\.(?:cuda|to)\(`),
			dims: "all samples", cause: CauseHostData, detail: "data_on_card"},
		{name: "a copy in a wider type", code: re(`\.float\(\)|\.double\(\)|\.to\(torch\.float(?:32|64)\)|\.astype\((?:np\.)?["']?float(?:32|64)`),
			dims: "as many elements, 4 or 8 bytes each", late: true, cause: CauseUnknown, detail: "one_tensor",
			levers: []Quantity{Tokens, Samples, Length},
			parts:  "convert where it is used and as late as possible, a piece at a time; or stay in the narrow type"},
		{name: "repeated copies of a tensor",
			code: re(`\.repeat(?:_interleave)?\(|\.tile\(|np\.(?:repeat|tile|meshgrid)\(|torch\.meshgrid\(`),
			dims: "the input times the repeats", late: true, cause: CauseUnknown, detail: "one_tensor",
			levers: []Quantity{Samples, Answers, Side},
			parts:  "expand() instead of repeat(): it makes a view, no copy"},
		{name: "windows cut out of the input", calls: re(`(?i)^(?:unfold|im2col|extract_patches\w*|sliding_window_view)$`), dims: "windows x window size", cause: CauseBatch, detail: "one_tensor",
			levers: []Quantity{Samples, Side}},
		{name: "messages along all edges",
			calls: re(`(?i)^(?:message|propagate|__lift__|_lift|scatter\w*|edge_update|gspmm|gsddmm|update_all|apply_edges)$`), file: re(`(?i)geometric|dgl|gnn|graph|conv`),
			dims: "edges x features", cause: CauseBatch, detail: "one_tensor", levers: []Quantity{Neighbours,
				Samples},
			parts: "train on sampled neighbourhoods (NeighborLoader, dgl.dataloading) instead of the whole graph; keep the adjacency sparse (SparseTensor)"},
		{name: "an image that a decoder makes as a whole",
			calls: re(`(?i)^(?:decode|_decode|vae_decode|decode_first_stage|decode_latents|tiled_decode)$`),
			file:  re(`(?i)vae|autoencoder|diffusers|ldm`),
			dims:  "channels x height x width of every image", cause: CauseBatch, detail: "images",
			levers: []Quantity{Side, Count, Samples},
			parts:  "pipe.vae.enable_tiling(); pipe.vae.enable_slicing()   # or a tiled VAE decode in the program"},
		{name: "a spectrogram", calls: re(`(?i)^(?:stft|spectrogram|melspectrogram|_spectrogram)$`), dims: "samples x frequencies x frames", cause: CauseBatch, detail: "longest_batch", levers: []Quantity{Tokens, Length, Samples}},
		{name: "a kernel or covariance matrix",
			code: re(`\w+\.T ?@ ?\w+|\w+ ?@ ?\w+\.T\b|\.mm\(\w+, ?\w+\.t\(\)\)|np\.cov\(|torch\.cov\(|np\.dot\(\w+, ?\w+\.T`), calls: re(`^(?:cov|corrcoef|gram_matrix)$`),
			dims: "n x n", form: square, counts: "rows", late: true, cause: CauseUnknown, detail: "one_tensor", parts: "in pieces of the rows; or a method that needs no whole matrix (Nystroem, inducing points, IncrementalPCA)"},
		{name: "rows that a merge multiplies", calls: re(`(?i)^(?:merge|_get_join_indexers|join|_get_merge_keys|pivot\w*|crosstab|unstack)$`), file: re(`(?i)pandas|polars|dask`), dims: "matching rows of both sides",
			cause: CauseHostData, detail: "one_tensor", parts: "look for keys that repeat on both sides (a many-to-many merge multiplies rows): validate='one_to_many'; merge in pieces"},
	}
})

// resizedMasks are lines that bring masks to the size of an image.
var resizedMasks = re(`(?i)(?:interpolate|resize|upsample)\w*\(\s*[\w.]*mask`)

// resizesMasks reports whether a line near the message does so.
func (f *Facts) resizesMasks() bool {
	return slices.ContainsFunc(f.Crash.Code[:min(3, len(f.Crash.Code))], resizedMasks.MatchString)
}

// imageSize is the size of an image as people and programs write it.
var imageSize = re(`\b(\d{3,5}) ?[x*×] ?(\d{3,5})\b`)

// Tensor is the one allocation that was refused, as far as operation and figures tell it.
type Tensor struct {
	op    *operation
	frame int
	Bytes event.Bytes
	Size  string // such as "about 205,000 tokens x 76,032 x 4 bytes"; empty where nothing is solved
	Shape string // as the message prints it
}

// innermost is how many frames from the end are looked at for the operation: further out stand
// callers, which say what the program does and not what was allocated.
const innermost = 6

// tensorOf finds the operation that asked, and solves for its sizes.
func tensorOf(f *Facts, s Sums, late bool) *Tensor {
	c := f.Crash
	bare, asked := f.bareCode(), 0
	for i := 0; i < len(c.Frames)+len(bare) && asked < innermost; i++ {
		name, file, line := "", "", ""
		if len(bare) > 0 {
			line = bare[i]
			if m := lastCall.FindStringSubmatch(line); m != nil {
				name = m[1]
			}
		} else {
			name, file = c.Frames[i].Name, strings.ReplaceAll(c.Frames[i].File, "\\", "/")
		}
		if i < len(c.Code) && len(bare) == 0 {
			line = c.Code[i]
		}
		if plainLayer.MatchString(file) {
			continue // a layer of PyTorch's own does what the line that calls it says
		}
		if nextPass.MatchString(name) && asked > 0 {
			break // a layer below it asked, not this line
		}
		asked++
		all := operations()
		for j := range all {
			op := &all[j]
			called := op.calls != nil && op.calls.MatchString(name) && (op.file == nil ||
				op.file.MatchString(file) || strings.Contains(file, "torch/"))
			if !called && !(op.code != nil && line != "" && op.code.MatchString(line)) {
				continue
			}
			if op.late != late || op.needs != nil && !op.needs(f) {
				continue
			}
			t := &Tensor{op: op, frame: i, Bytes: s.Asked}
			t.Size = op.solved(f, s.Asked)
			return t
		}
	}
	return nil
}

// lastCall is the function that a line of code calls first of all.
var lastCall = lazyregexp.New(`(?:^|[=\s.(])(\w+)\(`)

// codeLine is a line of code in a text without frames.
var codeLine = lazyregexp.New(`^\s*(?:return\s+|[\w.\[\], ]+\s?=\s?)?[\w.]+\(.*$|^\s*[\w.]+ = \S`)

// bareCode are the lines of code right above a message whose frames the person left out.
func (f *Facts) bareCode() []string {
	if len(f.Crash.Frames) > 0 {
		return nil
	}
	var code []string
	for i := len(f.lines) - 1; i >= 0 && len(code) < 2; i-- {
		l := f.lines[i]
		if l.Number < f.Crash.Line && l.Number >= f.Crash.Line-2 && codeLine.MatchString(l.Text) {
			code = append(code, strings.TrimSpace(l.Text))
		}
	}
	return code
}

// nextPass are frames that hand on to whatever module comes next.
var nextPass = lazyregexp.New(`^(?:_call_impl|_wrapped_call_impl|__call__|wrapped_fn)$`)

// plainLayer are files of layers that hand on or compute one product.
var plainLayer = lazyregexp.New(`torch/nn/modules/(?:module|container|linear)\.py$`)

// solved solves for the sizes of a tensor of so many bytes.
func (op *operation) solved(f *Facts, asked event.Bytes) string {
	if asked < 256*event.MiB {
		return ""
	}
	switch op.form {
	case perWord:
		for _, v := range f.Vocab {
			if n := float64(asked) / float64(4*v.Value); n >= 100 {
				return fmt.Sprintf("about %s %s x %s (%s) x 4 bytes", rounded(n), op.counts, thousands(v.Value),
					v.Of)
			}
		}
	case perImage:
		for _, m := range imageSize.FindAllStringSubmatch(f.text, 40) {
			a, _ := strconv.ParseFloat(m[1], 64)
			b, _ := strconv.ParseFloat(m[2], 64)
			n := float64(asked) / (4 * a * b)
			if whole := math.Round(n); min(a, b) >= 256 && n >= 2 && n <= 5000 && about(whole*4*a*b, asked) {
				return fmt.Sprintf("%s %s of %.0f x %.0f x 4 bytes", thousands(int64(whole)), op.counts, a, b)
			}
		}
	case square:
		if n := float64(asked) / 4; printedShape.FindString(f.Crash.Text) == "" {
			return fmt.Sprintf("about %s pairs in float32", rounded(n))
		}
	}
	return ""
}

// rounded writes a count with the three digits that a printed size supports.
func rounded(n float64) string {
	digits := math.Pow(10, math.Max(0, math.Floor(math.Log10(n))-2))
	return thousands(int64(math.Round(n/digits) * digits))
}

// words reports whether the job works on text or speech with a vocabulary.
func (f *Facts) words() bool {
	return len(f.Vocab) > 0 || f.Hints.Seq > 0 || f.says("vocab", "lm_head", "tokenizer", "causallm",
		"logprob", "log_prob", "logps",
		"seq2seq", "language model", "transformer", "token", "llama", "qwen", "bert", "gpt")
}

// pictures reports whether it works on images or volumes.
func (f *Facts) pictures() bool {
	return ofPictures(f.Crash) || f.says("image", "img", "conv2d", "conv3d", "segmentation", "unet",
		"resnet", "mask", "crop")
}

// evaluates reports whether an evaluation or prediction is under way.
func (f *Facts) evaluates() bool {
	_, ok := evaluationIn(f.Crash)
	return ok
}

// about reports whether a size is what was printed, within the digits of a printed size.
func about(n float64, asked event.Bytes) bool {
	return n > 0 && math.Abs(n-float64(asked)) < 0.01*float64(asked)
}
