package remedy

import (
	"path/filepath"
	"strings"

	"memroom/lazyregexp"
)

// imports of a Python file, by the first name of the module.
var imports = lazyregexp.New(`(?m)^[ \t]*(?:from|import)[ \t]+(\w+)`)

// loops are what shows that a library's own training loop is used, not only its models.
var loops = []struct {
	trainer Trainer
	modules []string
	use     *lazyregexp.Regexp // also needed; nil: the import is enough
}{
	{Lightning, []string{"lightning", "pytorch_lightning"}, nil},
	{Transformers, []string{"transformers", "trl"}, lazyregexp.New(`Trainer\(|TrainingArguments|SFTConfig|DPOConfig`)},
	{DeepSpeed, []string{"deepspeed"}, lazyregexp.New(`deepspeed\.initialize`)},
	{Accelerate, []string{"accelerate"}, nil},
	{Keras, []string{"keras", "tensorflow"}, lazyregexp.New(`\.fit\(`)},
}

// Detect returns the framework and the trainer that a command uses, as far as its words and the
// text of its script show them. Both are empty where nothing shows.
func Detect(command []string, script string) (Framework, Trainer) {
	imported := map[string]bool{}
	for _, found := range imports.FindAllStringSubmatch(script, -1) {
		imported[found[1]] = true
	}
	trainer := detectTrainer(command, script, imported)
	switch {
	case trainer == Keras && !imported["torch"]:
		return TensorFlow, trainer
	case trainer != Plain || imported["torch"] || imported["timm"] || imported["peft"]:
		return PyTorch, trainer
	case imported["tensorflow"] || imported["keras"]:
		return TensorFlow, trainer
	case imported["jax"] || imported["flax"]:
		return JAX, trainer
	}
	return "", Plain
}

func detectTrainer(command []string, script string, imported map[string]bool) Trainer {
	for _, word := range command {
		switch base := filepath.Base(word); {
		case base == "tune" || strings.Contains(word, "torchtune"):
			return Torchtune
		case base == "axolotl" || strings.HasPrefix(word, "axolotl."):
			return Axolotl
		case base == "deepspeed" || strings.HasPrefix(word, "--deepspeed"):
			return DeepSpeed
		}
	}
	for _, l := range loops {
		for _, module := range l.modules {
			if imported[module] && (l.use == nil || l.use.MatchString(script)) {
				return l.trainer
			}
		}
	}
	return Plain
}
