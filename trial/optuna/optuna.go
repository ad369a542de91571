// Package optuna lets Optuna propose the points of a study: a Python process holds its sampler,
// pruner and storage, and gets questions and results over pipes. The storage is Optuna's own, so
// that its dashboard opens the study.
package optuna

import (
	"bufio"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"

	"memroom/trial"
)

//go:embed beside.py
var source string

// Options of the study at Optuna's side.
type Options struct {
	Python  string // interpreter that has optuna
	Name    string
	Mode    string // min or max
	Sampler string // name of a class of optuna.samplers; empty: TPESampler
	Pruner  string // name of a class of optuna.pruners; empty: none
	Storage string // URL
	State   string // file for the sampler's own state
	Seed    uint64
	Space   trial.Space
}

// Searcher is the Python process.
type Searcher struct {
	process *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Reader
	errors  *tail
}

// tail keeps the end of what the Python process writes to stderr.
type tail struct{ text []byte }

func (t *tail) Write(p []byte) (int, error) {
	t.text = append(t.text, p...)
	t.text = t.text[max(0, len(t.text)-4096):]
	return len(p), nil
}

// Open starts the Python process and its study. It then reports the trials whose end Optuna has
// missed.
func Open(o Options, over []*trial.Trial) (*Searcher, error) {
	space, err := describe(o.Space)
	if err != nil {
		return nil, err
	}
	s := &Searcher{process: exec.Command(o.Python, "-u", "-c", source), errors: &tail{}}
	s.process.Stderr = s.errors
	if s.in, err = s.process.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := s.process.StdoutPipe()
	if err != nil {
		return nil, err
	}
	s.out = bufio.NewReaderSize(out, 1<<20)
	if err := s.process.Start(); err != nil {
		return nil, fmt.Errorf("%s cannot be started for Optuna: %w; name a Python that has optuna "+
			"with --python", o.Python, err)
	}
	if _, err := s.ask(map[string]any{"do": "open", "name": o.Name, "mode": o.Mode,
		"sampler": o.Sampler, "pruner": o.Pruner, "storage": o.Storage, "state": o.State,
		"seed": o.Seed, "space": space}); err != nil {
		s.Close()
		return nil, err
	}
	for _, t := range over {
		if err := s.Tell(t); err != nil {
			s.Close()
			return nil, err
		}
	}
	return s, nil
}

// describe writes the space in Optuna's words, which has no normal distribution.
func describe(space trial.Space) ([]map[string]any, error) {
	var out []map[string]any
	for _, d := range space {
		one := map[string]any{"name": d.Name, "low": d.Domain.Low, "high": d.Domain.High,
			"step": d.Domain.Step, "kind": string(d.Domain.Kind)}
		switch d.Domain.Kind {
		case trial.Choice:
			one["values"] = d.Domain.Values
		case trial.Normal, trial.LogNormal:
			return nil, fmt.Errorf("parameter %s = %s: Optuna has no normal distribution; "+
				"take uniform or loguniform, or --search random", d.Name, d.Domain.Source)
		}
		out = append(out, one)
	}
	return out, nil
}

// answer of the Python; which fields are set depends on what was asked.
type answer struct {
	Error  string       `json:"error"`
	Params trial.Params `json:"params"`
	Prune  bool         `json:"prune"`
}

func (s *Searcher) ask(question map[string]any) (answer, error) {
	line, err := json.Marshal(question)
	if err != nil {
		return answer{}, err
	}
	if _, err := s.in.Write(append(line, '\n')); err != nil {
		return answer{}, s.gone(err)
	}
	reply, err := s.out.ReadBytes('\n')
	if err != nil {
		return answer{}, s.gone(err)
	}
	var a answer
	if err := json.Unmarshal(reply, &a); err != nil {
		return a, fmt.Errorf("the Python process of Optuna said %.200q", reply)
	}
	if a.Error != "" {
		return a, errors.New("Optuna: " + a.Error)
	}
	return a, nil
}

// gone explains the end of the Python by what it said last.
func (s *Searcher) gone(err error) error {
	_ = s.process.Wait()
	text := strings.TrimSpace(string(s.errors.text))
	if last := strings.LastIndexByte(text, '\n'); last >= 0 {
		text = text[last+1:]
	}
	if strings.Contains(text, "No module named 'optuna'") {
		return fmt.Errorf("%s has no optuna: pip install optuna, or name another one with "+
			"--python", s.process.Path)
	}
	return fmt.Errorf("the Python process of Optuna has ended (%w): %s", err, text)
}

// Ask returns the point of a trial. Called twice for the same trial, after a crash, it returns the
// same point.
func (s *Searcher) Ask(id int) (trial.Params, bool, error) {
	a, err := s.ask(map[string]any{"do": "ask", "trial": id})
	return a.Params, err == nil, err
}

// Prune passes on a report and asks whether the trial should end.
func (s *Searcher) Prune(id, step int, value float64) (bool, error) {
	if value != value {
		return false, nil
	}
	a, err := s.ask(map[string]any{"do": "report", "trial": id, "step": step, "value": value})
	return a.Prune, err
}

// Tell returns the end of a trial. Infeasible is a constraint that was broken, not a bad value.
func (s *Searcher) Tell(t *trial.Trial) error {
	question := map[string]any{"do": "tell", "trial": t.ID, "state": t.State, "why": t.Why}
	if t.Value != nil {
		question["value"] = *t.Value
	}
	_, err := s.ask(question)
	return err
}

// Close ends the Python.
func (s *Searcher) Close() {
	s.in.Close()
	_ = s.process.Wait()
}
