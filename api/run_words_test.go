package api

import (
	"slices"
	"strings"
	"testing"

	"memroom/event"
	"memroom/report"
	"memroom/store"
)

func TestNamesOfRuns(t *testing.T) {
	for command, want := range map[string]string{
		"python train.py --lr 3":                          "train.py, ",
		"/opt/bin/python3 /a/b/fit.py --model gpt2":       "fit.py, gpt2",
		"python -m axolotl.cli.train --base-model=a/b x":  "axolotl.cli.train, a/b",
		"accelerate launch sft.py --model_name_or_path q": "sft.py, q",
		"python run.py model=resnet50":                    "run.py, resnet50",
		"sh -c exit":                                      "sh, ",
		"python t.py --model --x":                         "t.py, ",
	} {
		o := Overview{Row: store.Row{Command: command, Tags: []string{"a", "study:s"}}}
		o.name()
		if got := o.Script + ", " + o.Model; got != want || o.Study != "s" {
			t.Errorf("%s: %s, study %s", command, got, o.Study)
		}
	}
}

func TestShortWords(t *testing.T) {
	f := event.Finding{Kind: "filled", Frames: []event.Frame{{File: "/a/data.py", Line: 6}}}
	if got := shortly(f); got != "memory filled, data.py:6" {
		t.Error(got)
	}
	if got := shortly(event.Finding{Kind: "new_kind"}); got != "new kind" {
		t.Error(got)
	}
}

func TestCuresInWords(t *testing.T) {
	got := curesOf([]event.Finding{{Remedies: []string{"stream_data", "nothing_known"}}})
	if len(got) != 1 || got["stream_data"] != "stream the data instead of loading it whole" {
		t.Error(got)
	}
}

func TestSharesOfTheFullestMemory(t *testing.T) {
	rooms := []Room{{Kind: "host", Peak: 1, Limit: 10}, {Kind: "gpu", Peak: 1, Limit: 10},
		{Kind: "shm", Peak: 10, Limit: 10}, {Kind: "gpu", Peak: 9, Limit: 10}}
	if column, limit := fullest(rooms); column != "gpu1.used" || limit != 10 {
		t.Errorf("%s of %d", column, limit)
	}
	piece := store.Piece{Columns: []store.Column{{Low: []int64{1, 9, 5}, High: []int64{2, 0, 5}}}}
	if got := sharesOf(piece, 10); !slices.Equal(got, []float64{.2, .5}) {
		t.Error(got)
	}
	if got := sharesOf(piece, 0); !slices.Equal(got, []float64{.4, 1}) {
		t.Error(got)
	}
}

// TestExplanationIsMadeOnce, and one that panics costs only its own answer.
func TestExplanationIsMadeOnce(t *testing.T) {
	made := 0
	s := newSite(t, func(o *Options) {
		o.Explain = func(f *store.Folder) (*report.ExplainPage, error) {
			if made++; made > 1 {
				panic("a record that is not as it should be")
			}
			return &report.ExplainPage{Verdict: "it was the batch"}, nil
		}
	})
	first, second := s.addRun("one", 2), s.addRun("two", 2)
	for range 2 {
		_, text, _ := s.ask("GET", "/api/runs/"+first.ID+"/explanation", nil)
		if !strings.Contains(text, "it was the batch") {
			t.Error(text)
		}
	}
	status, text, _ := s.ask("GET", "/api/runs/"+second.ID+"/explanation", nil)
	if status != 500 || !strings.Contains(text, "a bug in memroom") {
		t.Error(status, text)
	}
}

func TestUnknownAddressIsAPageForPeople(t *testing.T) {
	s := newSite(t)
	status, text, _ := s.ask("GET", "/nowhere", nil, "Accept", "text/html,*/*")
	if status != 404 || !strings.Contains(text, "<!doctype html>") {
		t.Errorf("%d %.80s", status, text)
	}
	if status, text, _ = s.ask("GET", "/nowhere", nil); status != 404 || text[0] != '{' {
		t.Errorf("%d %.80s", status, text)
	}
}
