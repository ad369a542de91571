package api

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"memroom/trial"
	"memroom/trial/engine"
)

// TestStudies lists and shows a study, names those that cannot be read, and finds no others.
func TestStudies(t *testing.T) {
	s := newSite(t)
	root := filepath.Join(s.home.Home, "studies")
	if _, text, _ := s.ask("GET", "/api/studies", nil); text != `{"studies":[]}` {
		t.Errorf("without studies: %s", text)
	}
	spec := engine.Spec{Name: "one", Created: time.Now(), Command: []string{"train", "--token",
		"hf_abcdefghijklmnopqrstuvwxyz123456", "--lr", "${lr}"}, Method: trial.Random, Samples: 4,
		Options: trial.Options{Metric: "loss", Mode: "min"},
		Space: trial.Space{{Name: "lr", Domain: trial.Domain{Kind: trial.LogScale, Low: 0.001,
			High: 0.1}}}}
	if _, err := engine.Create(root, spec); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(root, "newer"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "newer", "study.json"),
		[]byte(`{"version":99,"name":"newer"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	var list struct{ Studies []StudyRow }
	_, text, _ := s.ask("GET", "/api/studies", nil)
	if err := json.Unmarshal([]byte(text), &list); err != nil || len(list.Studies) != 2 {
		t.Fatalf("%v: %s", err, text)
	}
	if one, newer := list.Studies[0], list.Studies[1]; one.Name != "one" || one.Wanted != 4 ||
		!strings.Contains(newer.Problem, "newer memroom") {
		t.Errorf("listed %+v", list.Studies)
	}
	var shown trial.Picture
	_, text, _ = s.ask("GET", "/api/studies/one", nil)
	if err := json.Unmarshal([]byte(text), &shown); err != nil || shown.Wanted != 4 ||
		strings.Contains(text, "hf_abc") {
		t.Errorf("%v: %s", err, text)
	}
	for _, name := range []string{"none", "..", "%2e%2e", "..%2f..%2fruns", "newer%00", ".new-x"} {
		if status, text, _ := s.ask("GET", "/api/studies/"+name, nil); status != 404 &&
			status != 301 && status != 307 {
			t.Errorf("%s: %d %s", name, status, text)
		}
	}
	if status, _, _ := s.ask("GET", "/api/studies/newer", nil); status != 409 {
		t.Errorf("a study of a newer memroom: %d", status)
	}
}
