package fit

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

// Resume describes how a program goes on from a checkpoint.
type Resume struct {
	Patterns []string // globs of the checkpoints, the newest of which counts
	// arguments to add, with {latest} in them; empty: the program finds it itself or cannot
	Template string
	Why      string // how it was recognised
}

// FindResume reads from the arguments where a program writes checkpoints and how it takes one.
// template is the user's own.
func FindResume(args []string, template, checkpoints string) Resume {
	if template != "" {
		if checkpoints == "" {
			return Resume{usualCheckpoints(), template, "--resume-with"}
		}
		return Resume{[]string{checkpoints}, template, "--resume-with"}
	}
	if out := Argument(args, "--output_dir"); out != "" && Argument(args,
		"--per_device_train_batch_size") != "" {
		resume := Resume{Patterns: []string{filepath.Join(out, "checkpoint-*")},
			Why: "transformers' arguments"}
		if Argument(args, "--resume_from_checkpoint") == "" {
			resume.Template = "--resume_from_checkpoint {latest}"
		}
		return resume
	}
	if i := slices.Index(args, "fit"); i > 0 && slices.ContainsFunc(args,
		func(a string) bool { return strings.HasPrefix(a, "--trainer") }) {
		root := Argument(args, "--trainer.default_root_dir")
		resume := Resume{Patterns: []string{filepath.Join(root, "lightning_logs", "version_*",
			"checkpoints", "*.ckpt")}, Why: "Lightning's arguments"}
		if Argument(args, "--ckpt_path") == "" {
			resume.Template = "--ckpt_path {latest}"
		}
		return resume
	}
	return Resume{}
}

// usualCheckpoints are globs for what people save models as, in the working directory and up to two
// folders below. Not every file that is newest is a checkpoint: a log always is newer.
func usualCheckpoints() []string {
	var patterns []string
	for _, below := range []string{"", "*", "*/*"} {
		for _, name := range []string{"*.pt", "*.pth", "*.ckpt", "*.tar", "*.safetensors",
			"checkpoint-*"} {
			patterns = append(patterns, filepath.Join(below, name))
		}
	}
	return patterns
}

// With adds the arguments that go on from a checkpoint. Words in the template are separated by
// spaces.
func (r Resume) With(args []string, latest string) []string {
	out := slices.Clone(args)
	for _, word := range strings.Fields(r.Template) {
		out = append(out, strings.ReplaceAll(word, "{latest}", latest))
	}
	return out
}

// CheckTemplate refuses a template that would not name the checkpoint.
func CheckTemplate(template string) error {
	if template != "" && !strings.Contains(template, "{latest}") {
		return fmt.Errorf("--resume-with %q: write {latest} where the checkpoint's path belongs",
			template)
	}
	return nil
}
