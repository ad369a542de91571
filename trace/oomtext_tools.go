package trace

import (
	"regexp"
	"strings"
)

// tools are programs and libraries that have training settings of their own: their users write
// neither the loop nor the arguments of the library below it. With a word too many, an answer loses
// its lines of code. With one too few, it names the settings of another program.
var tools = []string{
	// detection, segmentation and other vision
	"ultralytics", "yolo task=", "yolo detect", "yolo segment", "yolo train", "yolox/", "mmdet",
	"mmseg", "mmengine", "mmpretrain", "mmaction", "mmrotate", "mmyolo", "mmpose", "mmocr",
	"mmcv/runner", "mmcv.runner", "detectron2", "paddledetection", "paddleocr", "paddlenlp",
	"paddleseg", "ppocr", "ppdet/", "object_detection/model", "slowfast/", "nnunet", "nnu-net",
	"basicsr", "deepfacelab", "fastreid", "deeplab/train", "nndet/", "nndetection",
	// text
	"fairseq", "opennmt", "onmt/", "parlai", "sparseml", "tensor2tensor", "lmflow", "fastchat/train",
	"llava/train", "xtuner", "swift sft", "swift pt", "swift rlhf", "swift/llm", "swift/trainers",
	"ms-swift", "axolotl", "torchtune/", "litgpt", "lit_gpt", "llamafactory", "llama-factory",
	"llama_factory", "llmtuner", "llama-efficient-tuning", "finetuning_type", "instructlab",
	"ilab model", "open_instruct", "open-instruct", "h2o-llmstudio", "autotrain", "nanotron",
	"torchtitan", "megatron/", "megatron-lm", "megatron-deepspeed", "megatron.core",
	"megatron.training", "/nemo/", "nemo.collections", "nemo_automodel", "nemo-rl", "nemo_rl",
	"llmfoundry", "llm-foundry", "gpt-neox", "maxtext", "t5x/",
	// preferences and rewards
	"openrlhf", "/verl/", "verl.trainer", "verl.workers", "rl_games",
	// speech
	"espnet", "speechbrain", "wenet/", "icefall", "ketos", "so-vits-svc", "gpt-sovits", "gpt_sovits",
	"bert-vits2", "diff-svc",
	// images and shapes
	"sd-scripts", "kohya_ss", "kohya-ss", "fluxgym", "onetrainer", "ai-toolkit", "simpletuner",
	"diffusion-pipe", "musubi-tuner", "nerfstudio", "alphafold/", "colabfold", "openfold/",
}

// toolWord is any of them, with no letter right before it.
var toolWord = later(toolSource())

func toolSource() string {
	list := make([]string, len(tools))
	for i, word := range tools {
		list[i] = regexp.QuoteMeta(word)
		if word[0] != '/' {
			list[i] = `\b` + list[i]
		}
		list[i] = strings.ReplaceAll(list[i], "/", `[/\\]`)
	}
	return `(?i)` + strings.Join(list, "|")
}

// farTools notes a tool wherever it stands: the command is often far above the end.
func farTools() []entry {
	var words []string
	for _, word := range tools {
		if len(word) >= shortestFar {
			words = append(words, word)
		}
	}
	return []entry{{words: words, hint: func(h *hintCollector, p *passage) {
		m := toolWord.FindStringSubmatch(cut(p.line(), 4000))
		if m != nil && h.Signs[SignToolkit] == "" {
			h.Signs.put(SignToolkit, m[0])
		}
	}}}
}

// shortestFar is how long a word must be to be looked for in the whole log.
const shortestFar = 6
