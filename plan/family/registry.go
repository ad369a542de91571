package family

import (
	"fmt"
	"slices"
	"strings"
)

// builder makes a model from its configuration.
type builder func(c *Config, r Run) (*Model, error)

// registry maps Hugging Face's model_type to a builder.
var registry = map[string]builder{
	"bert":                  bert,
	"vit":                   vit,
	"swin":                  swin,
	"bart":                  bart,
	"t5":                    t5,
	"torchvision":           torchvision,
	"lstm":                  recurrent,
	"gru":                   recurrent,
	"bilstm":                recurrent,
	"gpt_neox":              neox,
	"phi":                   phi,
	"opt":                   opt,
	"mixtral":               mixtral,
	"qwen2_moe":             mixtral,
	"qwen3_moe":             mixtral,
	"bloom":                 bloom,
	"gemma":                 gemma,
	"gemma2":                gemma,
	"gemma3_text":           gemma,
	"phi3":                  phi3,
	"roberta":               roberta,
	"xlm-roberta":           roberta,
	"camembert":             roberta,
	"electra":               electra,
	"distilbert":            distilbert,
	"albert":                albert,
	"whisper":               whisper,
	"clip":                  clip,
	"deit":                  vit,
	"deberta-v2":            debertaV2,
	"falcon":                falcon,
	"dinov2":                dinov2,
	"dinov2_with_registers": dinov2,
	"convnext":              convnextHF,
	"convnextv2":            convnextHF,
	"resnet":                resnetHF,
	"gptj":                  gptj,
	"gpt_neo":               gptNeo,
	"mlp":                   mlp,
	"gpt2":                  gpt2,
	"llama":                 llama,
	"mistral":               llama,
	"qwen2":                 llama,
	"qwen3":                 llama,
}

// Types lists the known model types.
func Types() []string {
	list := make([]string, 0, len(registry))
	for t := range registry {
		list = append(list, t)
	}
	slices.Sort(list)
	return list
}

// UnknownTypeError says that a model type has no description here.
type UnknownTypeError struct{ Type string }

func (e *UnknownTypeError) Error() string {
	what := fmt.Sprintf("model type %q is not described", e.Type)
	if e.Type == "" {
		what = `the configuration names no "model_type"`
	}
	return what + ": known are " + strings.Join(Types(), ", ") + ". For any other model run your own script without a GPU: memroom plan --rehearse -- python train.py"
}

// New builds the model a configuration describes.
func New(c *Config, r Run) (*Model, error) {
	b, ok := registry[c.Type()]
	if !ok {
		return nil, &UnknownTypeError{c.Type()}
	}
	return b(c, r)
}

// Known says whether a model type is described.
func Known(modelType string) bool { _, ok := registry[modelType]; return ok }
