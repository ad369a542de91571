package fit

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"memroom/remedy"
)

// Mapping names the program's own arguments that set the micro-batch and how many of them make a
// step. A name that begins with a dash is a flag, another one a key=value argument or a key of the
// config file.
type Mapping struct {
	MicroBatch string
	Accumulate string
	Config     string // path of the config file that holds the two, empty when they are arguments
	Trainer    remedy.Trainer

	value, accumulated int // as they are now, 0 when not found
}

// Possible reports whether the micro-batch was found and can be divided.
func (m Mapping) Possible() bool { return m.value > 1 }

// ParseMapping reads --map: micro_batch=--bs,accumulate=--accum.
func ParseMapping(text string) (Mapping, error) {
	var m Mapping
	for _, pair := range strings.Split(text, ",") {
		key, name, ok := strings.Cut(strings.TrimSpace(pair), "=")
		switch {
		case !ok || name == "":
			return m, fmt.Errorf("--map %s: write micro_batch=--FLAG,accumulate=--FLAG", text)
		case key == "micro_batch":
			m.MicroBatch = name
		case key == "accumulate":
			m.Accumulate = name
		default:
			return m, fmt.Errorf("--map %s: %q is not micro_batch or accumulate", text, key)
		}
	}
	if m.MicroBatch == "" || m.Accumulate == "" {
		return m,
			fmt.Errorf("--map %s: both micro_batch and accumulate are needed: one without the other changes "+
				"the effective batch", text)
	}
	return m, nil
}

// trainers are the config keys of libraries that accumulate themselves. The Trainer of transformers
// is not among them: with a model that takes num_items_in_batch and ignores it
// (BertForSequenceClassification in 5.17) four micro-batches give four times the loss and the
// gradient. Its models return their loss, so the pieces cost as little inside the process, where
// the weights are checked. Who knows their model names the two arguments with --map.
var trainers = []struct {
	trainer remedy.Trainer
	batch   string
	accum   string
}{
	{remedy.Torchtune, "batch_size", "gradient_accumulation_steps"},
	{remedy.Axolotl, "micro_batch_size", "gradient_accumulation_steps"},
	{remedy.DeepSpeed, "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"},
}

// FindMapping recognises a trainer by its arguments or its config file. configs are the contents of
// the files that [ConfigFiles] names. Without one the zero Mapping is given.
func FindMapping(args []string, configs map[string][]byte) Mapping {
	for _, t := range trainers {
		m := Mapping{MicroBatch: t.batch, Accumulate: t.accum, Trainer: t.trainer}
		if !usesTrainer(t.trainer, args) {
			continue
		}
		for _, path := range ConfigFiles(args) { // the first that has it, not any
			if m := m.inConfig(path, configs[path]); m.value > 0 {
				return m.overridden(args)
			}
		}
	}
	return Mapping{}
}

func usesTrainer(t remedy.Trainer, args []string) bool {
	for _, a := range args {
		base := filepath.Base(a)
		switch {
		case t == remedy.Torchtune && (base == "tune" || strings.Contains(a, "torchtune")),
			t == remedy.Axolotl && (base == "axolotl" || strings.HasPrefix(a, "axolotl.cli")),
			t == remedy.DeepSpeed && strings.HasPrefix(a, "--deepspeed"):
			return true
		}
	}
	return false
}

// ConfigFiles are the arguments that may be config files of a trainer.
func ConfigFiles(args []string) []string {
	var files []string
	for _, a := range args {
		if _, value, ok := strings.Cut(a, "="); ok && strings.HasPrefix(a, "-") {
			a = value
		}
		if ext := filepath.Ext(a); ext == ".json" || ext == ".yaml" || ext == ".yml" {
			files = append(files, a)
		}
	}
	return files
}

// In looks the two arguments up on a command line.
func (m Mapping) In(args []string) Mapping {
	m.value, _ = strconv.Atoi(Argument(args, m.MicroBatch))
	m.accumulated = 1
	if n, err := strconv.Atoi(Argument(args, m.Accumulate)); err == nil {
		m.accumulated = n
	}
	return m
}

// overridden takes key=value arguments into account, which win over the config file.
func (m Mapping) overridden(args []string) Mapping {
	if n, err := strconv.Atoi(Argument(args, m.MicroBatch)); err == nil {
		m.value = n
	}
	if n, err := strconv.Atoi(Argument(args, m.Accumulate)); err == nil {
		m.accumulated = n
	}
	return m
}

// Argument returns the value of --name VALUE, --name=VALUE or name=VALUE; the last one counts, as
// in argparse.
func Argument(args []string, name string) string {
	value := ""
	for i, a := range args {
		if key, v, ok := strings.Cut(a, "="); ok && sameFlag(key, name) {
			value = v
		} else if sameFlag(a, name) && strings.HasPrefix(name, "-") && i+1 < len(args) {
			value = args[i+1]
		}
	}
	return value
}

// sameFlag compares flags as argparse users write them: with dashes or underscores between the
// words.
func sameFlag(a, b string) bool {
	return a == b || strings.HasPrefix(b, "--") && strings.ReplaceAll(a, "-",
		"_") == strings.ReplaceAll(b, "-", "_")
}

func (m Mapping) inConfig(path string, content []byte) Mapping {
	m.Config = path
	m.value, m.accumulated = 0, 1
	if found := m.line(m.MicroBatch).FindSubmatch(content); found != nil {
		m.value, _ = strconv.Atoi(string(found[2]))
	}
	if found := m.line(m.Accumulate).FindSubmatch(content); found != nil {
		m.accumulated, _ = strconv.Atoi(string(found[2]))
	}
	return m
}

// line matches a key of the config's outermost level with a whole number: JSON or YAML, the rest of
// the file untouched.
func (m Mapping) line(key string) *regexp.Regexp {
	if filepath.Ext(m.Config) == ".json" {
		return regexp.MustCompile(`("` + regexp.QuoteMeta(key) + `"\s*:\s*)(\d+)`)
	}
	return regexp.MustCompile(`(?m)^(` + regexp.QuoteMeta(key) + `\s*:[ \t]*)(\d+)`)
}

// Rewritten is a command with a smaller micro-batch.
type Rewritten struct {
	Args   []string
	Config []byte // new content of Mapping.Config, nil when that is not what was changed
	Words  string
}

// Rewrite divides the micro-batch by at least factor and multiplies the accumulation by as much, so
// that the effective batch stays. The divisor is the smallest one that leaves no remainder.
func (m Mapping) Rewrite(args []string, config []byte, factor int) (Rewritten, error) {
	if !m.Possible() {
		return Rewritten{}, fmt.Errorf("%s is not among the arguments, or is 1", m.MicroBatch)
	}
	divisor := m.value
	for d := min(factor, m.value); d < m.value; d++ {
		if m.value%d == 0 {
			divisor = d
			break
		}
	}
	batch, steps := strconv.Itoa(m.value/divisor), strconv.Itoa(m.accumulated*divisor)
	out := Rewritten{Words: fmt.Sprintf("%s %d -> %s, %s %d -> %s", m.MicroBatch, m.value, batch,
		m.Accumulate, m.accumulated, steps)}
	if m.Config == "" || Argument(args, m.MicroBatch) != "" {
		out.Args = SetArgument(SetArgument(args, m.MicroBatch, batch), m.Accumulate, steps)
		return out, nil
	}
	out.Args = slices.Clone(args)
	out.Config = m.setLine(m.setLine(config, m.MicroBatch, batch), m.Accumulate, steps)
	return out, nil
}

func (m Mapping) setLine(config []byte, key, value string) []byte {
	pattern := m.line(key)
	if pattern.Match(config) {
		return pattern.ReplaceAll(config, []byte("${1}"+value))
	}
	if filepath.Ext(m.Config) == ".json" {
		return regexp.MustCompile(`^\s*\{`).ReplaceAll(config, []byte("{\n  \""+key+"\": "+value+","))
	}
	return append(slices.Clone(config), []byte("\n"+key+": "+value+"\n")...)
}

// SetArgument changes every occurrence of an argument, or adds it at the end.
func SetArgument(args []string, name, value string) []string {
	out, found := slices.Clone(args), false
	for i, a := range out {
		if key, _, ok := strings.Cut(a, "="); ok && sameFlag(key, name) {
			out[i], found = key+"="+value, true
		} else if sameFlag(a, name) && strings.HasPrefix(name, "-") && i+1 < len(out) {
			out[i+1], found = value, true
		}
	}
	switch {
	case found:
		return out
	case strings.HasPrefix(name, "-"):
		return append(out, name, value)
	}
	return append(out, name+"="+value)
}

// ReplacePath points an argument that names a config file to its changed copy.
func ReplacePath(args []string, from, to string) []string {
	out := slices.Clone(args)
	for i, a := range out {
		if a == from {
			out[i] = to
		} else if key, value, ok := strings.Cut(a, "="); ok && value == from {
			out[i] = key + "=" + to
		}
	}
	return out
}
