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
	if err == nil && fields == nil && len(c.Args) == 2 { // the model may come first
		if fields, err = readRecipe(c.Args[1]); fields != nil {
			slices.Reverse(c.Args)
		}
	}
	if err != nil || fields == nil {
		return err
	}
	r := &recipe{path: c.Args[0], all: map[string]any{}}
	c.readSettings(s, r, flatten(fields, nil))
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

// readSettings takes the settings one by one, DeepSpeed's own file last. A flag that was given
// holds against the file, also one that equals its default: it is put back where a setting took its
// place, before what follows from several settings is decided and after it.
func (c *planCmd) readSettings(s *session, r *recipe, list []setting) {
	for _, one := range list {
		if _, again := r.all[one.name()]; !again {
			r.all[one.name()] = one.value
		}
	}
	for _, one := range list {
		c.useSetting(r, one)
	}
	s.obey()
	c.settle(r)
	s.obey()
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
	if _, err := models.Preset(r.model); err != nil {
		return usageError(fmt.Errorf("%s trains %s, which is not on this machine and not known by name: "+
			"give its config.json after the file, as in memroom plan %s config.json", r.path, r.model,
			r.path))
	}
	c.Args = []string{r.model}
	return nil
}

func sortedKeys(m map[string]any) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
