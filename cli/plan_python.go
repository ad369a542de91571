package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"memroom/models"
	"memroom/plan"
	"memroom/tape"
)

// noPython as --python keeps the answer to what the binary describes itself.
const noPython = "none"

// neededModules are what the Python must hold for a model of transformers; one of diffusers needs
// that library instead.
const findModules = "import importlib.util as u, sys; " +
	"sys.exit(0 if u.find_spec('torch') and u.find_spec(sys.argv[1]) else 1)"

// findPython looks for a Python that can build the model: the one named, that of the active
// environment, or one on PATH. Empty is none.
func (c *planCmd) findPython(ctx context.Context, library string) (string, error) {
	if c.Python == noPython {
		return "", nil
	}
	var tries []string
	if c.Python != "" {
		tries = []string{c.Python}
	} else {
		if venv := os.Getenv("VIRTUAL_ENV"); venv != "" {
			tries = append(tries, filepath.Join(venv, "bin", "python"))
		}
		tries = append(tries, "python3", "python")
	}
	for _, name := range tries {
		path, err := exec.LookPath(name)
		if err != nil {
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
		err = exec.CommandContext(ctx, path, "-c", findModules, library).Run()
		cancel()
		if err == nil {
			return path, nil
		}
	}
	if c.Python != "" {
		return "", usageError(fmt.Errorf("--python %s: no Python with torch and %s answers there",
			c.Python, library))
	}
	return "", nil
}

// library is what builds a model of this configuration.
func library(model *models.Config) string {
	if model.Has("_class_name") {
		return "diffusers"
	}
	return "transformers"
}

// throughPython plans a model that the binary does not describe: Python builds it from its
// configuration and rehearses a standard training step on fake tensors.
func (c *planCmd) throughPython(s *session, python string, model *models.Config,
	target plan.Target) (*plan.Prediction, error) {
	if err := c.checkPython(model); err != nil {
		return nil, usageError(err)
	}
	dir, remove, err := temporaryFolder("model")
	if err != nil {
		return nil, err
	}
	defer remove()
	spec := filepath.Join(dir, "spec.json")
	if err := c.writeSpec(spec, model); err != nil {
		return nil, err
	}
	if models.Known(model.Type()) {
		s.note("%s builds the model and compiles it on fake tensors; --python none does without", python)
	} else {
		s.note("%s is not described here: %s builds it and rehearses a step", model.Type(), python)
	}
	record := filepath.Join(dir, "record.jsonl")
	said := &heardOutput{}
	args := []string{python, "-c",
		"import sys; from _memroom_probe.standard import main; main.run(sys.argv[1])", spec}
	if c.Shortest > 0 {
		c.Steps = max(c.Steps, lengthSteps)
	}
	if c.Ranks > 1 {
		target = target.Among(c.Ranks)
	}
	status, err := c.runRehearsed(s.ctx, said, args, dir, record, target)
	if err != nil {
		return nil, err
	}
	told := readTold(said.kept)
	if told.cannot != "" {
		return nil, cannotError{fmt.Sprintf("%s: %s", model.Type(), told.cannot)}
	}
	file, err := os.Open(record)
	if errors.Is(err, os.ErrNotExist) {
		return nil, unrecorded(args, status, said)
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	r, err := plan.ReadRehearsal(file)
	if err != nil {
		return nil, err
	}
	if err := failed(r, status, said); err != nil {
		return nil, err
	}
	p, err := r.Predict(target)
	if err != nil {
		return nil, err
	}
	told.into(p, c.setup(model).WithDefaults(), library(model), target)
	return p, nil
}

// cannotError is Python's own word that it cannot build or train a model.
type cannotError struct{ text string }

func (e cannotError) Error() string { return e.text }

// compiles reports whether the setup is one whose compiled form Python can find out: a described
// model is then planned through Python too.
func (c *planCmd) compiles(model *models.Config) bool {
	return c.Compile && c.Preset == "" && len(c.Args) == 1 && !c.Fit && c.checkPython(model) == nil &&
		c.LoadIn == "" && c.Shard == "" && c.Ranks <= 1
}

// checkPython refuses what a standard step through Python does not do.
func (c *planCmd) checkPython(model *models.Config) error {
	for _, f := range []struct {
		set  bool
		flag string
	}{{len(c.Offload) > 0, "--offload"}, {c.divided(), "--tensor-parallel and its kin"},
		{c.Fit, "--fit"}, {len(c.Devices) > 0, "--devices"},
		{c.EvalKeep > 1, "--eval-keep"}, {c.Trainer != "", "--trainer"}, {c.TRL != "", "--trl"},
		{c.TargetSeq > 0, "--target-seq"},
		{c.Transformers != "", "--transformers"}, {c.Padded, "--padded"}, {c.UseCache, "--use-cache"},
		{c.Shard != "" && c.Shard != "fsdp" && c.Shard != "ddp", "--shard " + c.Shard}} {
		if f.set {
			return fmt.Errorf("%s does not apply to %s, which is planned through Python: "+
				"leave it out, or write a script and use memroom plan --rehearse -- python "+
				"train.py", f.flag, model.Type())
		}
	}
	setup := c.setup(model)
	if err := setup.Check(); err != nil {
		return err
	}
	if setup = setup.WithDefaults(); setup.LoadIn != "" && setup.LoRARank == 0 {
		return fmt.Errorf("weights in %s cannot be trained: add --lora-rank N", setup.LoadIn)
	}
	return nil
}

// writeSpec puts down the step that Python shall rehearse.
func (c *planCmd) writeSpec(path string, model *models.Config) error {
	file, err := configFile(c.Args[0])
	if err != nil {
		return err
	}
	if file, err = filepath.Abs(file); err != nil {
		return err
	}
	setup := c.setup(model).WithDefaults()
	if setup.LoadIn != "" && len(setup.LoRATargets) == 0 { // as plan takes it for described types
		setup.LoRATargets = []string{tape.AllLinear}
	}
	text, err := json.Marshal(map[string]any{"config": file, "batch": c.Batch, "seq": c.Seq,
		"image": c.Image, "precision": setup.Precision, "optimizer": setup.Optimizer,
		"checkpointing": c.Checkpointing, "attn": c.Attn, "accumulate": c.Accumulate,
		"clip": c.Clip, "keep_grads": c.KeepGrads, "channels_last": c.ChannelsLast,
		"train_only": append([]string{}, c.TrainOnly...), "lora_rank": c.LoraRank,
		"lora_targets": append([]string{}, setup.LoRATargets...), "lora_dropout": c.LoraDropout,
		"dora": c.Dora, "modules_to_save": append([]string{}, c.ModulesToSave...),
		"load_in": setup.LoadIn, "double_quant": setup.DoubleQuant, "no_upcast": c.NoUpcast,
		"loss": c.Loss, "autocast": c.Autocast, "in_backward": c.InBackward, "ranks": c.Ranks,
		"shard": setup.Shard, "no_reshard": c.NoReshard, "eval_batch": c.EvalBatch,
		"shortest": c.Shortest, "compile": c.Compile})
	if err != nil {
		return err
	}
	return os.WriteFile(path, text, 0o600)
}

// lengthSteps is how many steps of different lengths are rehearsed.
const lengthSteps = 12

// standardMargin is by how much more a standard step may be off than a rehearsed script: of ten
// types measured on an H200 the worst was off by 4.3 %.
const standardMargin = 0.03

// stepTold is what the standard step said about itself.
type stepTold struct {
	cannot            string
	notes             []string
	class             string
	parameters, train int64
}

func readTold(text []byte) stepTold {
	var t stepTold
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		line, ours := strings.CutPrefix(lines.Text(), "memroom: ")
		if !ours {
			continue
		}
		kind, rest, _ := strings.Cut(line, ": ")
		switch kind {
		case "cannot":
			t.cannot = rest
		case "note":
			t.notes = append(t.notes, rest)
		case "model":
			_, _ = fmt.Sscanf(rest, "%s %d %d", &t.class, &t.parameters, &t.train)
		}
	}
	return t
}

// into completes a prediction with where it came from.
func (t *stepTold) into(p *plan.Prediction, s plan.Setup, library string, target plan.Target) {
	p.Method = "python"
	p.Parameters, p.Trainable = t.parameters, t.train
	p.Warnings = append(p.Warnings, fmt.Sprintf("came through Python: %s built %s from its "+
		"configuration and a standard step was rehearsed on fake tensors; your own script, rehearsed with "+
		"--rehearse, is nearer to the truth", library, t.class))
	p.Warnings = append(p.Warnings, t.notes...)
	p.AssumeStandard(&s, target)
	p.Widen(standardMargin)
}

// cachedModel is the configuration of a model id in the local Hugging Face cache, empty if it is
// not there.
func cachedModel(id string) string {
	if strings.Count(id, "/") > 1 || strings.HasPrefix(id, ".") || strings.HasPrefix(id, "/") {
		return ""
	}
	hub := os.Getenv("HF_HUB_CACHE")
	if hub == "" {
		home := os.Getenv("HF_HOME")
		if home == "" {
			user, err := os.UserHomeDir()
			if err != nil {
				return ""
			}
			home = filepath.Join(user, ".cache", "huggingface")
		}
		hub = filepath.Join(home, "hub")
	}
	folder := filepath.Join(hub, "models--"+strings.ReplaceAll(id, "/", "--"))
	if ref, err := os.ReadFile(filepath.Join(folder, "refs", "main")); err == nil {
		at := filepath.Join(folder, "snapshots", strings.TrimSpace(string(ref)), "config.json")
		if _, err := os.Stat(at); err == nil {
			return at
		}
	}
	found, _ := filepath.Glob(filepath.Join(folder, "snapshots", "*", "config.json"))
	if len(found) == 0 {
		return ""
	}
	return found[len(found)-1]
}
