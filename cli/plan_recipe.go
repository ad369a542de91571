package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"
	"go.yaml.in/yaml/v3"

	"memroom/models"
)

// recipe is a file of a trainer (TrainingArguments, accelerate, DeepSpeed, axolotl, LLaMA-Factory,
// TRL, torchtune and others), as flags of plan.
type recipe struct {
	path    string
	model   string
	all     map[string]any // every setting by its last name
	unknown []string       // keys that were not understood
}

// setting is one value of a file with the names above it.
type setting struct {
	path  []string
	value any
}

func (s setting) name() string { return strings.ToLower(s.path[len(s.path)-1]) }

// within is the name of the section that holds a setting, empty at the top.
func (s setting) within() string {
	if len(s.path) < 2 {
		return ""
	}
	return strings.ToLower(s.path[len(s.path)-2])
}

// trainerKeys are names that a model's configuration does not have and a trainer's file does.
var trainerKeys = []string{"per_device_train_batch_size", "micro_batch_size", "base_model",
	"model_name_or_path", "zero_optimization", "train_micro_batch_size_per_gpu", "distributed_type",
	"gradient_accumulation_steps", "cutoff_len", "local_batch_size", "max_seq_length",
	"gradient_checkpointing", "accumulate_grad_batches", "zero_stage"}

// readRecipe reads a trainer's file; nil where the file is something else.
func readRecipe(path string) (map[string]any, error) {
	if info, err := os.Stat(path); err != nil || info.IsDir() || info.Size() > maxConfigFile {
		return nil, nil
	}
	ext := strings.ToLower(filepath.Ext(path))
	if !slices.Contains([]string{".yml", ".yaml", ".json", ".toml"}, ext) {
		return nil, nil
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	fields := map[string]any{}
	switch ext {
	case ".json":
		if json.Unmarshal(data, &fields) != nil || fields["model_type"] != nil {
			return nil, nil
		}
		known := func(s setting) bool { return slices.Contains(trainerKeys, s.name()) }
		if !slices.ContainsFunc(flatten(fields, nil), known) {
			return nil, nil
		}
		return fields, nil
	case ".toml":
		if err := toml.Unmarshal(data, &fields); err != nil {
			return nil, fmt.Errorf("%s: expected a trainer's settings as TOML: %w", path, err)
		}
		return fields, nil
	}
	if err := yaml.Unmarshal(data, &fields); err != nil {
		return nil, fmt.Errorf("%s: expected a trainer's settings as YAML: %w", path, err)
	}
	return fields, nil
}

// maxNesting bounds how deep the sections of a file are followed.
const maxNesting = 8

// flatten lists the settings of a file in a fixed order: sections are entered, lists are values.
func flatten(fields map[string]any, above []string) []setting {
	var found []setting
	for _, name := range sortedKeys(fields) {
		path := append(slices.Clone(above), name)
		if inner, ok := fields[name].(map[string]any); ok && len(path) < maxNesting {
			found = append(found, flatten(inner, path)...)
			continue
		}
		found = append(found, setting{path, fields[name]})
	}
	return found
}

// useRecipe turns a trainer's file, where the first argument is one, into flags. What was given on
// the command line stays.
func (c *planCmd) useRecipe(s *session) error {
	if c.Rehearse || len(c.Args) == 0 || len(c.Args) > 2 {
		return nil
	}
	fields, err := readRecipe(c.Args[0])
	if err != nil || fields == nil {
		return err
	}
	r := &recipe{path: c.Args[0], all: map[string]any{}}
	c.readSettings(r, flatten(fields, nil))
	if c.Shard != "" && c.Ranks == 1 {
		s.note("%s shards with %s and does not say over how many cards: add --ranks N; planned for one",
			r.path, c.Shard)
		c.Shard, c.NoReshard, c.Replicas = "", false, 0
		c.Offload = slices.DeleteFunc(c.Offload, func(what string) bool {
			return what == "parameters"
		})
	}
	if len(r.unknown) > 0 {
		s.note("%s: not understood and left out: %s", r.path, strings.Join(r.unknown, ", "))
	}
	return c.useModel(s, r)
}

// readSettings takes the settings one by one, DeepSpeed's own file last.
func (c *planCmd) readSettings(r *recipe, list []setting) {
	for _, one := range list {
		if _, again := r.all[one.name()]; !again {
			r.all[one.name()] = one.value
		}
	}
	for _, one := range list {
		c.useSetting(r, one)
	}
	c.settle(r)
}

// useModel finds the model that the file names, unless a second argument is its configuration.
func (c *planCmd) useModel(s *session, r *recipe) error {
	switch {
	case len(c.Args) == 2:
		c.Args = c.Args[1:]
		return nil
	case c.Preset != "":
		c.Args = nil
		return nil
	case r.model == "":
		return usageError(fmt.Errorf("%s names no model: give its config.json after it", r.path))
	}
	for _, at := range []string{r.model, filepath.Join(filepath.Dir(r.path), r.model)} {
		if _, err := configFile(at); err == nil {
			c.Args = []string{at}
			return nil
		}
	}
	if preset := presetOf(r.model); preset != "" {
		s.note("%s trains %s, which is not on this machine: planned as the preset %s", r.path,
			r.model, preset)
		c.Args, c.Preset = nil, preset
		return nil
	}
	return usageError(fmt.Errorf("%s trains %s, which is not on this machine: give its config.json "+
		"after the file, as in memroom plan %s config.json", r.path, r.model, r.path))
}

// presetOf is the preset that a name on the hub or in torchtune means, empty if there is none.
func presetOf(name string) string {
	name = bareName(name)
	for _, preset := range models.PresetNames() {
		if bareName(preset) == name {
			return preset
		}
	}
	// releases that differ in their weights alone
	for newer, older := range map[string]string{"llama318b": "llama38b", "llama3170b": "llama370b",
		"llama3370b": "llama370b", "mixtral8x7bv01": "mixtral8x7b", "bertbaseuncased": "bertbase",
		"bertbasecased": "bertbase", "gpt2small": "gpt2", "tinyllama11b": "tinyllama",
		"mistral7bv01": "mistral7b"} {
		if name == newer {
			return presetOf(older)
		}
	}
	return ""
}

// bareName is a model's name without its owner, its separators and the words for how it was tuned.
func bareName(name string) string {
	name = strings.ToLower(name)
	name = name[strings.LastIndexAny(name, "/")+1:]
	name = strings.Map(func(r rune) rune {
		if r == '-' || r == '_' || r == '.' || r == ' ' {
			return -1
		}
		return r
	}, name)
	name = strings.TrimPrefix(name, "meta")
	for {
		short := name
		for _, tail := range []string{"instruct", "chat", "hf", "base", "it", "bnb4bit", "v10"} {
			short = strings.TrimSuffix(short, tail)
		}
		if short == name {
			return name
		}
		name = short
	}
}

func sortedKeys(m map[string]any) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
