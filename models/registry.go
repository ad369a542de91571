package models

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"memroom/event"
)

// HasTarget reports whether a type reads one sequence and writes another.
func HasTarget(kind string) bool {
	for _, k := range kinds {
		if k.name == "encoder-decoders" {
			_, ok := k.builders[kind]
			return ok
		}
	}
	return false
}

// builder makes a model from its configuration.
type builder func(c *Config, r Run) (*Model, error)

// kind is a group of model types that people look for together. Its files start with its prefix.
type kind struct {
	name     string
	builders map[string]builder // by Hugging Face's model_type
}

// kinds lists every described model type by kind.
var kinds = []kind{
	{"decoders", map[string]builder{ // decoder_*.go
		"gpt2": gpt2, "gpt_bigcode": gpt2, "gpt_neo": gptNeo, "gptj": gptj, "codegen": gptj,
		"gpt_neox": neox,
		"opt":      opt, "bloom": bloom, "falcon": falcon, "mpt": mpt, "phi": phi, "phi3": phi3,
		"llama": llama, "mistral": llama, "ministral": llama, "qwen2": llama, "qwen3": llama,
		"gemma": gemma, "gemma2": gemma, "gemma3_text": gemma, "olmo": olmo, "olmo2": olmo,
		"olmo3": olmo, "granite": granite, "cohere": cohere, "cohere2": cohere,
		"smollm3": smollm3, "starcoder2": starcoder2, "stablelm": stablelm, "glm": glm,
		"glm4": glm, "nemotron": nemotron, "exaone4": exaone4, "seed_oss": lesser,
		"helium": lesser, "arcee": lesser, "ernie4_5": lesser, "hunyuan_v1_dense": lesser,
		"mixtral": mixtral, "qwen2_moe": mixtral, "qwen3_moe": mixtral, "olmoe": mixtral,
		"granitemoe": mixtral, "glm4_moe": glm4Moe,
		"deepseek_v2": deepseekV2, "deepseek_v3": deepseekV3, "gpt_oss": gptOss, "lfm2": lfm2,
	}},
	{"encoders", map[string]builder{ // encoder_*.go
		"bert": bert, "roberta": roberta, "xlm-roberta": roberta, "camembert": roberta,
		"electra": electra, "distilbert": distilbert, "albert": albert,
		"deberta-v2": debertaV2, "modernbert": modernBert, "esm": esm, "nomic_bert": nomicBert,
		"mpnet": mpnet,
	}},
	{"encoder-decoders", map[string]builder{ // seq2seq_*.go
		"t5": t5, "mt5": t5, "umt5": t5, "bart": bart, "mbart": bart, "m2m_100": bart,
		"pegasus": bart, "marian": bart,
		"blenderbot": bart,
	}},
	{"speech", map[string]builder{ // speech_*.go
		"whisper": whisper, "wav2vec2": wav2vec2, "hubert": wav2vec2,
		"audio-spectrogram-transformer": spectrogram,
	}},
	{"vision transformers", map[string]builder{ // vision_*.go
		"vit": vit, "deit": vit, "dinov2": dinov2, "dinov2_with_registers": dinov2,
		"dinov3_vit": dinov3,
		"swin":       swin, "swinv2": swinV2,
	}},
	{"text and images", map[string]builder{ // multimodal_*.go
		"clip": clip, "siglip": siglip,
	}},
	{"convolutional", map[string]builder{ // conv_*.go
		"convnext": convnextHF, "convnextv2": convnextHF, "resnet": resnetHF,
		"torchvision": torchvision,
	}},
	{"plain layers of PyTorch", map[string]builder{ // plain.go
		"lstm": recurrent, "gru": recurrent, "bilstm": recurrent, "mlp": mlp,
	}},
}

// lookup finds the builder of a model type.
func lookup(modelType string) (builder, bool) {
	for _, k := range kinds {
		if b, ok := k.builders[modelType]; ok {
			return b, true
		}
	}
	return nil, false
}

// Types lists the known model types.
func Types() []string {
	var list []string
	for _, k := range kinds {
		list = slices.AppendSeq(list, maps.Keys(k.builders))
	}
	slices.Sort(list)
	return list
}

// Decodes reports whether a model type is a decoder, which writes text.
func Decodes(modelType string) bool {
	_, ok := kinds[0].builders[modelType] // the first kind: decoders
	return ok
}

// UnknownTypeError means that a model type has no description here.
type UnknownTypeError struct{ Type string }

func (e *UnknownTypeError) Error() string {
	if e.Type == "" {
		return `the configuration names no "model_type": is it the config.json of a model?`
	}
	return fmt.Sprintf("model type %q is not known%s; activate an environment with torch and "+
		"transformers, which can build it (or name it with --python PATH), or rehearse your own script: "+
		"memroom plan --rehearse -- python train.py", e.Type, event.DidYouMean(e.Type, Types()))
}

// New builds the model a configuration describes.
func New(c *Config, r Run) (*Model, error) {
	b, ok := lookup(c.Type())
	if !ok {
		return nil, &UnknownTypeError{c.Type()}
	}
	r.arch, r.labels, r.padID = c.Architecture(), c.Labels(), c.Has("pad_token_id")
	if r.HeadName != "" {
		r.arch, r.labels = r.HeadName, 1
	}
	r.drop = c.Float(c.Float(0.1, "hidden_dropout"), "classifier_dropout")
	m, err := b(c, r)
	if err != nil {
		return nil, err
	}
	if strings.HasPrefix(c.Type(), "deberta") { // on the card, 2.5 and 2.9 % more were reserved
		m.Loose = true
	}
	if m.Head != "" && r.HeadName == "" && r.arch != "" && !sameHead(m.Head, r.arch) {
		m.Loose = true
		m.Notes = append(m.Notes,
			fmt.Sprintf("the head of %s is not described: that of %s is assumed",
				strings.Join(c.Strings("architectures"), ", "), m.Head))
	}
	return m, nil
}

// sameHead reports whether two names of heads mean one thing.
func sameHead(built, named string) bool {
	switch named {
	case "LMHeadModel":
		named = "ForCausalLM"
	case "MarianMTModel":
		named = "ForConditionalGeneration"
	}
	return built == named
}

// Known reports whether a model type is described.
func Known(modelType string) bool { _, ok := lookup(modelType); return ok }
