package driver

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"memroom/event"
	"memroom/fit"
	"memroom/remedy"
)

// MemoryOf is the file that holds what made this command fit under this limit on these cards.
func MemoryOf(home string, command []string, card string, limit event.Bytes) string {
	return filepath.Join(Memories(home), fit.Key(command, contents("", command), card,
		limit)+".json")
}

// Begin sets what is in effect from the start of the first attempt of the run in dir: its arguments
// and its environment.
func Begin(spec Spec, dir string, command, env []string) (args, withRemedies []string, err error) {
	if len(spec.First) == 0 {
		return command, env, nil
	}
	found, err := Mapping("", command, spec.Map)
	if err != nil {
		return nil, nil, err
	}
	args, _ = rewritten(dir, "", command, found, fit.Factor(spec.First))
	apply, err := writeApply(dir, 1, spec.First)
	if err != nil {
		return nil, nil, fmt.Errorf("write the remedies: %w", err)
	}
	return args, setEnv(env, "MEMROOM_APPLY", apply), nil
}

// Mapping finds the command's own arguments for gradient accumulation: those that the user names in
// text, else those of a trainer that we know. Relative paths begin in dir.
func Mapping(dir string, command []string, text string) (fit.Mapping, error) {
	if text == "" {
		return fit.FindMapping(command, contents(dir, command)), nil
	}
	m, err := fit.ParseMapping(text)
	return m.In(command), err
}

// Rewrite returns the command with a micro-batch that is factor times smaller; nothing is written.
func Rewrite(command []string, m fit.Mapping, factor int) (fit.Rewritten, error) {
	return m.Rewrite(command, contents("", command)[m.Config], factor)
}

// Framework is the one whose remedies a command takes: of those that it was seen to import, else
// what its script shows.
func Framework(dir string, command []string, imported ...string) remedy.Framework {
	switch {
	case slices.Contains(imported, "torch"):
		return remedy.PyTorch
	case slices.Contains(imported, "tensorflow"):
		return remedy.TensorFlow
	}
	found, _ := remedy.Detect(command, string(contents(dir, command)[fit.Script(command)]))
	return found
}

// contents reads the script and the config files among the arguments: what they say decides how
// much memory is needed. Relative paths begin in dir, the command's working directory; empty: ours.
func contents(dir string, command []string) map[string][]byte {
	const most = 4 << 20
	found := map[string][]byte{}
	for _, a := range append(fit.ConfigFiles(command), fit.Script(command)) {
		path := inDir(dir, a)
		if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() ||
			info.Size() > most {
			continue
		}
		if data, err := os.ReadFile(path); err == nil {
			found[a] = data
		}
	}
	return found
}

// inDir is a path as a process with that working directory means it.
func inDir(dir, path string) string {
	if filepath.IsAbs(path) || dir == "" {
		return path
	}
	return filepath.Join(dir, path)
}

// rewritten returns the command with a micro-batch that is factor times smaller. A config file is
// changed in a copy, in the run's folder. A command that cannot be rewritten stays as it is.
func rewritten(runDir, dir string, command []string, m fit.Mapping, factor int) (args,
	words []string) {
	if factor < 2 {
		return command, nil
	}
	changed, err := m.Rewrite(command, contents(dir, command)[m.Config], factor)
	if err != nil {
		return command, nil
	}
	args = changed.Args
	if changed.Config != nil {
		copied := filepath.Join(runDir, "config-"+filepath.Base(m.Config))
		if err := os.WriteFile(copied, changed.Config, 0o600); err != nil {
			return command, nil
		}
		args = fit.ReplacePath(args, m.Config, copied)
	}
	return args, []string{changed.Words}
}

// resume adds the newest checkpoint that this run has written.
func (p *Policy) resume(dir string, args []string) (withCheckpoint []string, checkpoint string) {
	how := fit.FindResume(args, p.spec.ResumeWith, p.spec.Checkpoints)
	var newest time.Time
	for _, pattern := range how.Patterns {
		paths, err := filepath.Glob(inDir(dir, pattern))
		if err != nil {
			continue
		}
		for _, path := range paths {
			info, err := os.Stat(path)
			if err == nil && info.ModTime().After(p.began) && info.ModTime().After(newest) &&
				complete(path) {
				newest, checkpoint = info.ModTime(), path
			}
		}
	}
	if checkpoint == "" {
		return args, ""
	}
	return how.With(args, checkpoint), checkpoint
}

// complete: a folder of transformers is a checkpoint once its state, written last, is there.
func complete(path string) bool {
	info, err := os.Stat(path)
	if err != nil || !info.IsDir() {
		return err == nil && info.Size() > 0
	}
	if !strings.HasPrefix(filepath.Base(path), "checkpoint-") {
		return true
	}
	_, err = os.Stat(filepath.Join(path, "trainer_state.json"))
	return err == nil
}
