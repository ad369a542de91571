package explain

import (
	"slices"
	"strings"

	"memroom/event"
	"memroom/lazyregexp"
	"memroom/remedy"
	"memroom/trace"
)

// licence is what a sentence needs behind it. Every cure is held against all rows before it is
// printed, in the words in which it would be: a row whose words it uses and whose facts are missing
// drops it.
type licence struct {
	says  *lazyregexp.Regexp // in what a cure says and types, lower case
	needs string             // the facts, in words
	holds func(*Facts, Sums, *Explanation) bool
}

var licences = []licence{
	{re(`limit on host memory|job's memory|\bmemorymax\b`), "a system whose limits are the person's to set",
		func(f *Facts, _ Sums, _ *Explanation) bool { return !rented.MatchString(f.text) }},
	{re(`--mem=|more memory`), "no word that more was had in vain",
		func(f *Facts, _ Sums, _ *Explanation) bool { return !moreInVain.MatchString(f.text) }},
	{re(`ptimizer|8-bit|\badafactor\b`), "a run that has an optimizer",
		func(f *Facts, _ Sums, _ *Explanation) bool { return !f.Ran.serves(f) }},
	{re(`\bulimit\b|/dev/shm|--shm-size|vm\.\w+`), "Linux",
		func(f *Facts, _ Sums, _ *Explanation) bool { return f.Ran.System == Posix }},
	{re(`\bcuda_\w+=|nvidia-smi|pytorch_cuda`), "a card of NVIDIA",
		func(f *Facts, _ Sums, _ *Explanation) bool { return f.Ran.System != Mac }},
	{re(`torch\.|pytorch_|\.item\(\)|inference_mode|device_map=|dataloader\(|per_device_|gradient_checkpointing`), "PyTorch, or nothing that shows another runtime",
		func(f *Facts, _ Sums, _ *Explanation) bool {
			of := []Runtime{Torch, Unnamed, Engine, Runtime(f.Crash.Framework)}
			return slices.Contains(of, f.Ran.Runtime) &&
				f.ofTorch()
		}},
	{re(`smaller inputs, or fewer|a smaller batch\b|fewer samples at once|fewer or smaller inputs|half_your_batch|half_of_now|batch_size=half|split the batch`),
		"a batch that is shown and not known to fit, or a network at work that a smaller input would help",
		func(f *Facts, s Sums, x *Explanation) bool {
			return !f.ranBefore() && !has(f.Crash, trace.SignResumed) && x.Detail != "overflow" &&
				(s.Mine > 0 || f.Crash.Allocated == nil)
		}},
	{re(`--quantization|--dtype|--max-num-|--tensor-parallel|--gpu-memory-utilization`), "an engine's own command line",
		func(f *Facts, _ Sums, _ *Explanation) bool {
			return !learns(f.Crash, f.Hints) && (f.Tool == nil || f.Tool.Name == "vLLM" ||
				f.Tool.Name == "SGLang")
		}},
	{re(`bfloat16|\bbf16\b|mixed precision`), "a network that is trained in 32 bits, for all that is shown, on a card that has the type",
		func(f *Facts, _ Sums, x *Explanation) bool {
			return !lowPrecision.MatchString(f.text) && (!oldCard.MatchString(f.text) ||
				newCard.MatchString(f.text)) &&
				!firstTensorFlow.MatchString(f.text)
		}},
	{re(`^if a model is trained`), "nothing: a text that shows training gets the cure without the condition",
		func(*Facts, Sums, *Explanation) bool { return false }},
	{re(`print\(a\.shape`), "a line of code, or a size that no batch has",
		func(f *Facts, s Sums, _ *Explanation) bool {
			return len(f.Crash.Frames) > 0 || s.Mine > 0 || f.Crash.Allocated == nil || s.Beyond >= 2
		}},
	{re(`recompute_grad|tf\.function|mixed_precision|tf\.data|autotune\.ram`), "TensorFlow 2",
		func(f *Facts, _ Sums, _ *Explanation) bool { return !firstTensorFlow.MatchString(f.text) }},
	{re(`dataloader workers|num_workers`), "a loader that ran where it failed, or its setting",
		func(f *Facts, _ Sums, x *Explanation) bool {
			k, own := f.key(Workers)
			return own && k.Number() > 1 || !own && (len(f.Crash.Frames) > 0 || x.Confidence >= 0.5 ||
				f.Crash.Kind == "torch_worker" ||
				x.Where == event.WhereShm)
		}},
	{re(`work on parts|in parts, work on one|stream the data|streaming=true`),
		"something that reads or holds data where it failed",
		func(f *Facts, _ Sums, x *Explanation) bool {
			c := f.Crash
			return len(c.Frames) > 0 || c.Requested != nil || x.Cause == CauseHostData && len(x.given) > 0 ||
				x.Detail == "" && x.Cause == CauseHostData || has(c, trace.SignDataLoad) ||
				c.Kind != "bare_kill" && c.Kind != "exit_137" &&
					x.Detail != "map_writer"
		}},
	{re(`\bfsdp\b|\bzero\b|\blora\b|8-bit|adafactor|checkpoint`), "a network that is trained or loaded",
		func(f *Facts, _ Sums, x *Explanation) bool {
			return x.job.Facts[remedy.Networks] || len(x.words) > 0 || f.Tool != nil
		}},
}

// ofTorch reports whether nothing but PyTorch is shown to run, or PyTorch besides others.
func (f *Facts) ofTorch() bool {
	return f.says("torch") || !otherWords.MatchString(f.text) ||
		f.Crash.Framework == "pytorch" && !bareHostEnd(f)
}

// otherWords are frameworks that are not PyTorch.
var otherWords = re(`\bmlx\b|tensorflow|\btf\.|\bkeras\b|\bjax\b|mxnet|paddle|\bonnxruntime\b`)

// rented are notebooks of a service, whose memory is what it gives.
var rented = re(`\bcolab\b|kaggle|paperspace|sagemaker studio`)

// moreInVain are words of a limit that was raised, or that cannot be.
var moreInVain = re(`already (?:set|have|use|used|gave|asked for) (?:the )?max\w*|(?:pass|giv|us|request|increas|allocat|add)\w* (?:\w+ ){0,3}?(?:more |the )?(?:memory|ram|--mem)[^.\n]{0,80}(?:only until|longer but|still|same error|same problem|again)|no matter how much (?:memory|ram)|(?:largest|most|maximum|max) (?:\w+ )?(?:memory|ram)[^.\n]{0,30}\b(?:permit|allow|possible|can (?:get|have|ask)|offer)`)

// onAlready are settings that switch a cure on, as commands, files and sentences have them. Where
// one stands in the text and is not switched off, the cure is not news.
var onAlready = []struct {
	of []remedy.ID
	is *lazyregexp.Regexp
}{
	{[]remedy.ID{remedy.Checkpointing}, re(`(?:gradient|activation|grad)[-_ ]?checkpoint\w*|use_checkpoint\w*`)},
	{[]remedy.ID{remedy.Optimizer8Bit, remedy.OptimizerAdafactor, remedy.OptimizerPaged}, re(`(?:adamw?|optim\w*)[-_ ]?(?:bnb[-_ ]?)?8[-_ ]?bit|8[-_ ]?bit[-_ ]?adamw?|paged_adamw?|adafactor`)},
	{[]remedy.ID{remedy.Attention}, re(`xformers|flash[-_ ]?att\w*|\bsdpa\b|scaled_dot_product`)},
	{[]remedy.ID{remedy.Quantize4Bit, remedy.Quantize8Bit}, re(`load_in_[48]bit|\bqlora\b|\bnf4\b|\bgptq\b|\bawq\b|[48][-_ ]?bit quant\w*`)},
	{[]remedy.ID{remedy.ZeRO, remedy.FSDP}, re(`zero[-_ ]?(?:stage[-_ ]?)?[23]\b|stage[-_ ]?[23]\b|\bfsdp\b`)},
}

// switchedOff follows a setting that is off.
var switchedOff = re(`^\w*["']?\s?[=: ]\s?["']?(?:false|no|none|off|0|disabled)\b`)

// switchedOn reports whether the text has a cure on.
func (f *Facts) switchedOn(id remedy.ID) bool {
	for _, row := range onAlready {
		if !slices.Contains(row.of, id) {
			continue
		}
		for _, at := range row.is.FindAllStringIndex(f.text, 8) {
			if !switchedOff.MatchString(f.text[at[1]:min(len(f.text), at[1]+40)]) {
				return true
			}
		}
	}
	return false
}

// Cards without the type of numbers bfloat16, and with it.
var (
	oldCard = re(`\b(?:v100|p100|p40|t4|k80|titan|gtx|10[5-8]0|20[678]0|mx\d{3})\b|compute_capability = [1-7]`)
	newCard = re(`\b(?:a100|a10g?|a40|h100|h200|l4|l40s?|30[5-9]0|40[5-9]0|50[5-9]0|a6000|b200)\b`)
)

// firstTensorFlow are words of releases before the second: their logs have no time in front of a
// line, their programs sessions.
var firstTensorFlow = re(`(?m)^[iwe] tensorflow/|\btf-?slim\b|\(slim\)|contrib\.slim|tf\.session|tf\.placeholder|gpu_options\.`)

// licensed drops the cures whose words have nothing behind them.
func (x *Explanation) licensed(list []Advice) []Advice {
	if x.facts == nil || x.job.Facts == nil {
		return list
	}
	return slices.DeleteFunc(list, func(a Advice) bool {
		words := strings.ToLower(strings.Join([]string{a.Title, a.How.Env, a.How.Args, a.How.Code}, "\n"))
		if x.facts.switchedOn(a.ID) && x.typed[a.ID] == "" && x.Detail != "not_sharded" {
			return true
		}
		if x.facts.standsAlready(a.How.Args) || !x.proved(a) {
			return true
		}
		if strings.Contains(a.How.Code, "torch.") && !x.facts.ofTorch() {
			return true
		}
		return !strings.Contains(words, " instead of ") && slices.ContainsFunc(licences,
			func(l licence) bool {
				return l.says.MatchString(words) && !l.holds(x.facts, x.sums, x)
			})
	})
}

// flagGiven is a flag with its value.
var flagGiven = re(`^--([\w.-]+)[ =](\S+)`)

// standsAlready reports whether the text has a flag with the very value that a cure gives it.
func (f *Facts) standsAlready(args string) bool {
	m := flagGiven.FindStringSubmatch(strings.ToLower(args))
	return m != nil && slices.ContainsFunc(f.Keys, func(k Key) bool {
		value, _, _ := strings.Cut(m[2], ",")
		return strings.ToLower(strings.TrimLeft(k.Name, "-")) == m[1] && k.Value == value
	})
}

// sameBefore is what people write whose program ran with the very same settings.
var sameBefore = re(`\bsame (?:\w+ ){0,2}?(?:parameter|setting|config|code|script|command|batch)\w*\b[^.\n]{0,60}(?:\bwork|\bran\b|\brun\b|train|fine|before|yesterday|earlier)|` +
	`\b(?:work(?:ed|s)|ran|trained|was) (?:\w+ ){0,2}?(?:fine|ok|well|without \w+|perfectly|normally|no problem)\b[^.\n]{0,30}(?:before|yesterday|earlier|previously|last (?:week|time|month)|until)|` +
	`\b(?:yesterday|previously|before(?: this| that)?|last (?:week|time|month)|earlier)[, ][^.\n]{0,30}\b(?:it |this |that |everything )?(?:worked|ran|was) (?:\w+ )?(?:fine|ok|well|perfectly|without)|` +
	`(?:之前|以前|昨天|上次)[^。，\n]{0,12}(?:可以|正常|没问题|能跑|能训练|没有问题)|동일한[^.\n]{0,16}(?:파라미터|설정|코드)|同じ(?:設定|コード|パラメータ)`)

// sameSettings are words of the same settings and of an earlier time, together.
var sameSettings = re(`\bsame (?:\w+ ){0,2}?(?:parameter|setting|config|code|script|command|batch)\w*\b[^.\n]{0,80}\b(?:before|yesterday|earlier|previously|last (?:week|time|month)|ago)\b|` +
	`\b(?:before|yesterday|earlier|previously|last (?:week|time|month)|ago)\b[^.\n]{0,60}\bsame (?:\w+ ){0,2}?(?:parameter|setting|config|code|script|command|batch)\w*|` +
	`(?:同样|相同|一样)的?(?:参数|配置|代码|设置)[^。\n]{0,20}(?:之前|以前|昨天|上次)|(?:之前|以前|昨天|上次)[^。\n]{0,20}(?:同样|相同|一样)的?(?:参数|配置|代码|设置)|동일한[^.\n]{0,16}(?:파라미터|설정|코드)|同じ(?:設定|コード|パラメータ)`)

// ranBefore reports whether the person says that the same program with the same settings had room.
func (f *Facts) ranBefore() bool {
	return sameBefore.MatchString(f.Said.Of) || sameBefore.MatchString(f.Said.Near)
}

// attempt is what people try, with the cures that it was.
type attempt struct {
	is *lazyregexp.Regexp // in the sentence about it, lower case
	of []remedy.ID
}

var attempts = []attempt{
	{re(`(?:batch|\bbs\b)[^.]{0,40}(?:\b1\b|one|small|still|same|also|too)|(?:reduc|lower|decreas|small|chang|cut)\w*[^.]{0,30}batch|no matter[^.]{0,30}batch|regardless[^.]{0,30}batch|batch[^\n]{0,30}\. (?:lower|reduc|decreas|sett|chang|halv)\w* it\b|tried[^.\n]{0,20}batch_size ?= ?\d`),
		[]remedy.ID{remedy.MicroBatch, remedy.EvalBatch}},
	{re(`expandable_segments|max_split|alloc_conf|empty_cache|fragment`), pooling},
	{re(`gradient.checkpoint|activation.checkpoint|checkpointing`), keeping},
	{re(`num\w*_?-?workers?|\bworkers?\b`), []remedy.ID{remedy.DataLoaderWorkers}},
	{re(`shm-size|ipc=host|/dev/shm|共享内存`), []remedy.ID{remedy.ShmSize}},
}

// capStands adds that a cap of Apple's GPU that was taken off is still printed.
func (x *Explanation) capStands() {
	if set := x.facts.Hints.Settings[string(remedy.RaiseLimit)]; x.Where == event.WhereMPS &&
		x.Capacity != nil && strings.Contains(set, "WATERMARK") {
		x.Evidence = slices.Insert(x.Evidence, min(1, len(x.Evidence)), "the message still prints a cap: "+
			"PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 has not reached this process (it counts before torch is imported), and would only let the system swap")
	}
}
