package studyfile

import (
	"slices"
	"strings"
)

// sweepKeys are those of a W&B sweep. A file with any other key is our own.
var sweepKeys = []string{"program", "method", "metric", "parameters", "name", "description",
	"early_terminate", "command", "project", "entity", "run_cap", "controller", "settings"}

// isSweep distinguishes a W&B sweep from our own study file, which may have a method and parameters
// too.
func isSweep(tree map[string]any) bool {
	if tree["method"] == nil || tree["parameters"] == nil {
		return false
	}
	if _, plain := tree["metric"].(string); plain {
		return false
	}
	for key := range tree {
		if !slices.Contains(sweepKeys, key) {
			return false
		}
	}
	return true
}

// synonyms are the words that other libraries have for our keys.
var synonyms = map[string]string{
	"params": "parameters", "space": "parameters", "search_space": "parameters",
	"param_space": "parameters", "hyperparameters": "parameters",
	"num_samples": "samples", "n_trials": "samples", "num_trials": "samples", "trials": "samples",
	"max_trials": "samples", "run_cap": "samples", "max_trial_count": "samples", "count": "samples",
	"direction": "mode", "goal": "mode", "cmd": "command", "method": "search",
	"algorithm": "search", "search_alg": "search", "objective": "metric",
	"max_concurrent": "concurrent", "max_concurrent_trials": "concurrent",
	"concurrency": "concurrent", "parallel": "concurrent", "parallel_trials": "concurrent",
	"host_memory": "host_mem", "gpu_memory": "gpu_mem", "trial_memory": "trial_mem",
	"cpus": "cpus_per_trial", "cpu": "cpus_per_trial", "gpus": "gpus_per_trial",
	"gpu": "gpus_per_trial", "max_retries": "retries", "max_failures": "retries",
	"environment": "env", "template": "templates", "config_files": "templates",
	"pattern": "metric_pattern", "random_seed": "seed", "reduction_factor": "reduction",
	"grace_period": "grace", "grace_reports": "grace",
}

// groups are tables that only sort keys: what is in them counts as if it stood outside.
var groups = []string{"study", "tune", "resources", "budget", "budgets", "limits"}

// plainly brings a file's keys into our words: groups opened, dashes made underscores, synonyms
// replaced. A key that is there in our own word wins.
func plainly(tree map[string]any) map[string]any {
	out := map[string]any{}
	for _, key := range keysOf(tree) {
		if inner, ok := tree[key].(map[string]any); ok && slices.Contains(groups, key) {
			for name, value := range plainly(inner) {
				out[name] = value
			}
		}
	}
	for _, key := range keysOf(tree) {
		value := tree[key]
		inner, table := value.(map[string]any)
		if table && slices.Contains(groups, key) {
			continue
		}
		name := strings.ReplaceAll(key, "-", "_")
		if ours, ok := synonyms[name]; ok {
			if _, both := tree[ours]; both {
				out[key] = value // contradicts: named as unknown
				continue
			}
			name = ours
		}
		switch {
		case table && name == "metric": // {name: loss, mode: min}
			for from, to := range plainly(inner) {
				if from == "name" {
					from = "metric"
				}
				out[from] = to
			}
		case table && (name == "search" || name == "scheduler"): // {name: asha, max_t: 9}
			for from, to := range plainly(inner) {
				if from == "name" || from == "type" || from == "search" {
					from = name
				}
				out[from] = to
			}
		default:
			out[name] = value
		}
	}
	return out
}

// modeOf reads min and max in Optuna's, W&B's and Katib's words.
func modeOf(word string) string {
	switch strings.ToLower(word) {
	case "minimize", "minimise", "minimum":
		return "min"
	case "maximize", "maximise", "maximum":
		return "max"
	}
	return word
}

// commandWords cuts a command line as a shell would. One that needs a shell gets one.
func commandWords(line string) []string {
	var words []string
	var word strings.Builder
	quote, inside := rune(0), false
	for i, c := range line {
		switch {
		case quote != 0 && c == quote:
			quote = 0
		case quote != 0:
			word.WriteRune(c)
		case c == '\'' || c == '"':
			quote, inside = c, true
		case strings.ContainsRune("|&;<>\\`", c) || c == '$' && strings.HasPrefix(line[i:], "$("):
			return []string{"sh", "-c", line}
		case strings.ContainsRune(" \t\r\n", c):
			if inside {
				words = append(words, word.String())
				word.Reset()
				inside = false
			}
		default:
			inside = true
			word.WriteRune(c)
		}
	}
	if quote != 0 {
		return []string{"sh", "-c", line} // sh reports what is wrong
	}
	if inside {
		words = append(words, word.String())
	}
	return words
}
