package optuna

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"memroom/trial"
)

// played is a Python of canned answers: it notes what it is asked, and answers with the lines of a
// file. Optuna itself is met in trial/conformance.
type played struct {
	dir, python string
}

func play(t *testing.T, answers ...string) played {
	p := played{dir: t.TempDir()}
	p.python = filepath.Join(p.dir, "python")
	script := "#!/bin/sh\nexec 3< " + p.dir + "/answers\n" +
		"while read -r line; do printf '%s\\n' \"$line\" >> " + p.dir + "/asked\n" +
		"read -r answer <&3 || { cat " + p.dir + "/last >&2; exit 1; }\n" +
		"printf '%s\\n' \"$answer\"; done\n"
	text := ""
	if len(answers) > 0 {
		text = strings.Join(answers, "\n") + "\n"
	}
	for name, content := range map[string]string{"python": script, "answers": text,
		"last": "Traceback\nModuleNotFoundError: No module named 'optuna'\n"} {
		if err := os.WriteFile(filepath.Join(p.dir, name), []byte(content), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

func (p played) asked() []string {
	text, _ := os.ReadFile(filepath.Join(p.dir, "asked"))
	return strings.Split(strings.TrimSpace(string(text)), "\n")
}

// TestWhatOptunaIsAskedAndTold: the study, trials that ended before, a point, a report, an end.
func TestWhatOptunaIsAskedAndTold(t *testing.T) {
	p := play(t, "{}", "{}", `{"params": {"lr": 0.25}}`, `{"prune": true}`, `{"prune": false}`, "{}")
	value := 0.5
	ended := &trial.Trial{ID: 3, State: trial.Finished, Value: &value}
	s, err := Open(Options{Python: p.python, Name: "study", Mode: "min", Seed: 7},
		[]*trial.Trial{ended})
	if err != nil {
		t.Fatal(err)
	}
	if params, ok, err := s.Ask(4); err != nil || !ok || params.String() != "lr=0.25" {
		t.Errorf("a point: %v, %v, %v", params, ok, err)
	}
	for _, want := range []bool{true, false} {
		if got, err := s.Prune(4, 10, 0.75); err != nil || got != want {
			t.Errorf("pruned %v, %v; want %v", got, err, want)
		}
	}
	if got, err := s.Prune(4, 11, math.NaN()); got || err != nil {
		t.Errorf("what is no number was reported: %v, %v", got, err)
	}
	if err := s.Tell(&trial.Trial{ID: 4, State: trial.Failed, Why: "no room"}); err != nil {
		t.Error(err)
	}
	s.Close()
	asked := p.asked()
	if len(asked) != 6 {
		t.Fatalf("asked %d times: %q", len(asked), asked)
	}
	for i, words := range []string{`"do":"open"`, `"value":0.5`, `"do":"ask"`, `"value":0.75`,
		`"step":10`, `"why":"no room"`} {
		if !strings.Contains(asked[i], words) {
			t.Errorf("question %d has no %s: %s", i, words, asked[i])
		}
	}
	if strings.Contains(asked[5], `"value"`) {
		t.Errorf("a trial without a value was told with one: %s", asked[5])
	}
}

// TestWhenOptunaFails checks that the error contains Optuna's message, the last output of its
// Python, or what to do where Optuna is missing.
func TestWhenOptunaFails(t *testing.T) {
	for name, c := range map[string]struct {
		answers []string
		says    string
	}{
		"refuses":   {[]string{`{"error": "no such sampler"}`}, "Optuna: no such sampler"},
		"nonsense":  {[]string{`hello`}, `said "hello\n"`},
		"not there": {nil, "has no optuna: pip install optuna"},
	} {
		if _, err := Open(Options{Python: play(t, c.answers...).python}, nil); err == nil ||
			!strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Open(Options{Python: filepath.Join(t.TempDir(), "none")}, nil); err == nil ||
		!strings.Contains(err.Error(), "for Optuna") {
		t.Errorf("no Python: %v", err)
	}
	p := play(t, "{}")
	s, err := Open(Options{Python: p.python}, nil)
	if err != nil {
		t.Fatal(err)
	}
	last := filepath.Join(p.dir, "last")
	if err := os.WriteFile(last, []byte("a\nKilled by hand\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, ok, err := s.Ask(1); ok || err == nil ||
		!strings.HasSuffix(err.Error(), ": Killed by hand") {
		t.Errorf("a Python that ended: %v, %v", ok, err)
	}
	if _, err := Open(Options{Python: play(t, "{}").python}, []*trial.Trial{{ID: 1}}); err == nil {
		t.Error("a trial that could not be told was passed over")
	}
}

// TestSpacesInOptunasWords: every kind of domain but normal ones, which Optuna does not have.
func TestSpacesInOptunasWords(t *testing.T) {
	space := trial.Space{
		{Name: "lr", Domain: trial.Domain{Kind: trial.LogScale, Low: 1e-4, High: 0.1}},
		{Name: "kind", Domain: trial.Domain{Kind: trial.Choice, Values: make([]trial.Value, 2)}}}
	got, err := describe(space)
	if err != nil || len(got) != 2 || got[0]["low"] != 1e-4 || got[0]["high"] != 0.1 ||
		got[0]["values"] != nil || len(got[1]["values"].([]trial.Value)) != 2 {
		t.Errorf("%v, %v", got, err)
	}
	for _, kind := range []trial.Kind{trial.Normal, trial.LogNormal} {
		if _, err := describe(trial.Space{{Name: "x", Domain: trial.Domain{Kind: kind}}}); err == nil {
			t.Errorf("%s was taken", kind)
		}
		if _, err := Open(Options{Python: play(t, "{}").python, Space: trial.Space{{Name: "x",
			Domain: trial.Domain{Kind: kind}}}}, nil); err == nil {
			t.Errorf("a study of %s was opened", kind)
		}
	}
}

// TestTheLastWordsAreKept checks that the end of what a Python process writes to stderr is kept.
func TestTheLastWordsAreKept(t *testing.T) {
	var last tail
	for range 3 {
		if n, err := last.Write([]byte(strings.Repeat("x", 3000))); n != 3000 || err != nil {
			t.Fatal(n, err)
		}
	}
	if _, err := last.Write([]byte("end")); err != nil || len(last.text) != 4096 ||
		!strings.HasSuffix(string(last.text), "xend") {
		t.Errorf("%d bytes are kept", len(last.text))
	}
}
