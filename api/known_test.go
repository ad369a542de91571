package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"net/url"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"memroom/event"
	"memroom/plan"
	"memroom/remedy"
	"memroom/store"
)

// TestRecordHoldsWhatTheFolderHolds: each file of a run is in its record, and nothing is there
// before its file is.
func TestRecordHoldsWhatTheFolderHolds(t *testing.T) {
	s := newSite(t)
	folder := s.addRun("known", 3)
	record := func() (rec Record) {
		t.Helper()
		_, text, _ := s.ask("GET", "/api/runs/"+folder.ID, nil)
		if err := json.Unmarshal([]byte(text), &rec); err != nil {
			t.Fatalf("%v in %s", err, text)
		}
		return rec
	}
	if rec := record(); rec.Summary != nil || rec.Verdict != nil || rec.Fit != nil ||
		len(rec.Tries) != 0 || rec.Name != "known" || rec.Output["output"] != 6 {
		t.Errorf("before: %+v", rec)
	}
	for _, err := range []error{
		folder.SaveSummary(event.Summary{Steps: 7}),
		folder.SaveVerdict(event.Verdict{ExitCode: 3}),
		folder.AppendAttempt(event.Attempt{Number: 1}), folder.AppendAttempt(event.Attempt{Number: 2}),
		os.WriteFile(folder.Path("fit.json"), []byte(`{"impossible":"too large"}`), 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	rec := record()
	if rec.Summary == nil || rec.Summary.Steps != 7 || rec.Verdict == nil ||
		rec.Verdict.ExitCode != 3 || len(rec.Tries) != 2 || rec.Tries[1].Number != 2 ||
		rec.Fit == nil || rec.Fit.Impossible != "too large" {
		t.Errorf("after: %+v", rec)
	}
	if err := os.WriteFile(folder.Path("fit.json"), []byte(`{"impos`), 0o600); err != nil {
		t.Fatal(err)
	}
	if rec := record(); rec.Fit != nil {
		t.Errorf("a file that is cut off was taken: %+v", rec.Fit)
	}
}

// TestEventsOfARun: the kinds asked for, from a place on, up to a limit; data only where the page
// shows it.
func TestEventsOfARun(t *testing.T) {
	s := newSite(t)
	folder := s.addRun("", 1)
	kinds := []string{"note", "phase", "died", "remedy", "finding", "process"}
	for i, kind := range kinds {
		err := folder.AppendEvent(event.Happened{AtMS: int64(i), Kind: kind,
			Data: json.RawMessage(`{"a":1}`)})
		if err != nil {
			t.Fatal(err)
		}
	}
	list := func(events []event.Happened) (text string) {
		for _, e := range events {
			text += e.Kind
			if e.Data != nil {
				text += "+"
			}
			text += " "
		}
		return text
	}
	for asked, want := range map[string]string{"": "phase+ died remedy+ finding ",
		"all":  "note phase+ died remedy+ finding process ",
		"note": "note ", "note,process": "note process ", "other": ""} {
		events, _, more := readEvents(t.Context(), folder, 0, 100, wanted(asked))
		if got := list(events); got != want || more {
			t.Errorf("%q: %q, more %v, want %q", asked, got, more, want)
		}
	}
	events, next, more := readEvents(t.Context(), folder, 0, 2, wanted(""))
	if got := list(events); got != "phase+ died " || !more {
		t.Errorf("the first two: %q, more %v", got, more)
	}
	events, _, more = readEvents(t.Context(), folder, next, 3, wanted(""))
	if got := list(events); got != "remedy+ finding " || more {
		t.Errorf("what follows: %q, more %v", got, more)
	}
}

func TestLinesThatAreSent(t *testing.T) {
	for _, c := range []struct{ line, plain, event string }{
		{`{"kind":"oom"}` + "\n", `{"kind":"oom"}`, `{"kind":"oom"}`},
		{`{"kind":"note"}`, `{"kind":"note"}`, ""},
		{` [1] `, `[1]`, ""},
		{"\n", "", ""}, {`{"kind":"oom"`, "", ""}, {"", "", ""},
	} {
		if got := string(plainLine([]byte(c.line))); got != c.plain {
			t.Errorf("%q is sent as %q", c.line, got)
		}
		if got := string(eventLine([]byte(c.line))); got != c.event {
			t.Errorf("%q is sent as the event %q", c.line, got)
		}
	}
}

// TestPieceAsJSON: known answers; a column without a value is null, the lowest values are left out
// where they are the highest.
func TestPieceAsJSON(t *testing.T) {
	p := store.Piece{From: 1, To: 9, Count: 5, Offset: 2, At: []int64{1, 5, 9}, Columns: []store.Column{
		{Name: "same", High: []int64{4, 5, 6}, Low: []int64{4, 5, 6}},
		{Name: "range", High: []int64{4, math.MinInt64, 6}, Low: []int64{3, math.MaxInt64, 6}},
		{Name: "late", High: []int64{0, 5, math.MinInt64}, Low: []int64{math.MaxInt64, 5, 1}},
	}}
	const head = `{"from":1,"to":9,"count":5,"offset":2,"exact":false,"sketch":false,"at":[1,5,9],`
	want := head + `"columns":{"same":{"high":[4,5,6]},"range":{"high":[4,null,6],"low":[3,null,6]},` +
		`"late":{"high":[null,5,null],"low":[null,5,1]}}}`
	if got := string(appendPiece(nil, p)); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	p.Exact, p.Columns = true, p.Columns[1:2]
	want = strings.Replace(head, `"exact":false`, `"exact":true`, 1) +
		`"columns":{"range":{"high":[4,null,6]}}}`
	if got := string(appendPiece(nil, p)); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}

func TestColumnsThatAreShown(t *testing.T) {
	for name, want := range map[string]bool{"resident": true, "rank0.resident": false,
		"anonymous": false, "card.retries": false, "rank1.ooms": false, "used": true,
		"card0.reserved": true, "heap": false, "cgroup_at_limit": false} {
		if shownColumn(name) != want {
			t.Errorf("%s is shown: %v", name, !want)
		}
	}
}

// TestSetupOfAQuery: every field of the form reaches the setup, each by itself.
func TestSetupOfAQuery(t *testing.T) {
	plain := func() plan.Setup {
		return plan.Setup{Setup: remedy.Setup{Batch: 1, Accumulate: 1, Ranks: 1, Optimizer: "adamw",
			Attention: "sdpa", Torch: "2.11"}}
	}
	for query, change := range map[string]func(*plan.Setup){
		"": func(*plan.Setup) {}, "batch=4": func(s *plan.Setup) { s.Batch = 4 },
		"seq=128": func(s *plan.Setup) { s.Seq = 128 }, "image=64": func(s *plan.Setup) { s.Image = 64 },
		"precision=bf16":          func(s *plan.Setup) { s.Precision = "bf16" },
		"optimizer=sgd":           func(s *plan.Setup) { s.Optimizer = "sgd" },
		"checkpointing=true":      func(s *plan.Setup) { s.Checkpointing = true },
		"checkpointing=false":     func(*plan.Setup) {},
		"attn=eager":              func(s *plan.Setup) { s.Attention = "eager" },
		"accumulate=2":            func(s *plan.Setup) { s.Accumulate = 2 },
		"lora-rank=8":             func(s *plan.Setup) { s.LoRARank = 8 },
		"lora-targets=q,v":        func(s *plan.Setup) { s.LoRATargets = []string{"q", "v"} },
		"load-in=4bit":            func(s *plan.Setup) { s.LoadIn = "4bit" },
		"ranks=2&shard=fsdp":      func(s *plan.Setup) { s.Ranks, s.Shard = 2, "fsdp" },
		"offload=optimizer":       func(s *plan.Setup) { s.Offload = []string{"optimizer"} },
		"loss=fused":              func(s *plan.Setup) { s.ChunkedLoss = true },
		"loss=mean":               func(*plan.Setup) {},
		"padded=true":             func(s *plan.Setup) { s.Padded = true },
		"alloc-conf=backend:a":    func(s *plan.Setup) { s.AllocConf = "backend:a" },
		"torch=2.4":               func(s *plan.Setup) { s.Torch = "2.4" },
		"batch=65536&seq=2097152": func(s *plan.Setup) { s.Batch, s.Seq = 65536, 2097152 },
	} {
		q, err := url.ParseQuery(query)
		if err != nil {
			t.Fatal(err)
		}
		want := plain()
		change(&want)
		got, err := planSetup(q)
		if err != nil || !reflect.DeepEqual(want, got) {
			t.Errorf("%q: %v\n%+v\nwant\n%+v", query, err, got, want)
		}
	}
	for _, query := range []string{"batch=0", "batch=-1", "batch=x", "accumulate=0", "ranks=0",
		"batch=65537", "seq=2097153", "image=16385", "seq=16777217", "lora-rank=-1"} {
		q, _ := url.ParseQuery(query)
		var f failure
		if _, err := planSetup(q); !errors.As(err, &f) || f.status != http.StatusBadRequest {
			t.Errorf("%q: %v", query, err)
		}
	}
}

// TestWrongMethod: every address without a place for an ID names the method that it takes.
func TestWrongMethod(t *testing.T) {
	s := New(Options{Store: newSite(t).home, Local: true, Temporary: t.TempDir()})
	defer s.Close()
	tried := 0
	for _, known := range s.routes {
		if strings.Contains(known.path, "{") || known.method == "" {
			continue
		}
		tried++
		err := s.nothingHere(nil, &http.Request{Method: "PATCH", URL: &url.URL{Path: known.path}})
		var f failure
		if !errors.As(err, &f) || f.status != http.StatusMethodNotAllowed ||
			!strings.Contains(f.text, known.path+" takes ") {
			t.Errorf("PATCH %s: %v", known.path, err)
		}
	}
	if tried < 5 {
		t.Errorf("%d addresses tried", tried)
	}
	err := s.nothingHere(nil, &http.Request{Method: "GET", URL: &url.URL{Path: "/nowhere"}})
	var f failure
	if !errors.As(err, &f) || f.status != http.StatusNotFound {
		t.Errorf("nowhere: %v", err)
	}
}

// TestRunFileOfARun: the page holds its title and its data.
func TestRunFileOfARun(t *testing.T) {
	s := newSite(t)
	folder := s.addRun("paged", 5)
	var page bytes.Buffer
	if err := RunFile(&page, Options{Store: s.home, Version: "0.1.0"}, folder, nil, nil); err != nil {
		t.Fatal(err)
	}
	if text := page.String(); !strings.Contains(text, "run "+folder.ID+" · memroom") ||
		!strings.Contains(text, "showRunFile") || !strings.Contains(text, `id="data"`) {
		t.Errorf("the page: %.300s", text)
	}
}

// TestPlanOnSeveralCards: cards that exist give a map, others an error with its reason.
func TestPlanOnSeveralCards(t *testing.T) {
	s := newSite(t)
	const plan = "/api/plan?preset=gpt2&batch=1&seq=64"
	if status, text, _ := s.ask("GET", plan+"&devices=24GiB,24GiB", nil); status != 200 ||
		!strings.Contains(text, `"layers"`) {
		t.Errorf("two cards: %d %.300s", status, text)
	}
	if status, text, _ := s.ask("GET", plan, nil); status != 200 ||
		strings.Contains(text, `"layers"`) {
		t.Errorf("no cards: %d %.300s", status, text)
	}
	for _, wrong := range []string{"&devices=nonsense", "&devices=1MiB,1MiB", "&gpu=nonsense"} {
		if status, text, _ := s.ask("GET", plan+wrong, nil); status != http.StatusBadRequest ||
			!strings.Contains(text, `"error"`) {
			t.Errorf("%s: %d %.300s", wrong, status, text)
		}
	}
}

// TestReportedNumbers: what programs reported over time; of many the first and the newest stay.
func TestReportedNumbers(t *testing.T) {
	s := newSite(t)
	folder := s.addRun("", 1)
	for i := range 5000 {
		data := fmt.Sprintf(`{"step":%d,"values":{"loss":%d.5}}`, i, i)
		if i == 4992 { // one that is kept
			data = `{"step":1,"values":{"accuracy":1,"loss":null}}`
		}
		if err := folder.AppendEvent(event.Happened{AtMS: int64(i), Kind: "report",
			Data: json.RawMessage(data)}); err != nil {
			t.Fatal(err)
		}
	}
	got := reportedBy(t.Context(), folder)
	loss, last := got.Columns["loss"], len(got.At)-1
	if last < reportedPoints/2 || last >= reportedPoints || got.At[0] != 0 || got.At[last] < 4990 ||
		*loss[0] != 0.5 || *loss[1] != float64(got.At[1])+0.5 {
		t.Errorf("%d reports, from %d to %d", last+1, got.At[0], got.At[last])
	}
	at := slices.Index(got.At, 4992)
	if at < 0 || loss[at] != nil || *got.Columns["accuracy"][at] != 1 {
		t.Error("a number that is missing is not missing")
	}
}

// TestPrintedLossesAreSearchedOnce: pages ask again and again; only an output that has grown is
// read again.
func TestPrintedLossesAreSearchedOnce(t *testing.T) {
	folder := newSite(t).addRun("", 0)
	for i := range 3 {
		if err := folder.AppendSamples([]event.Sample{{AtMS: int64(i), Processes: 1,
			Output: event.Bytes(8 * i)}}); err != nil {
			t.Fatal(err)
		}
	}
	shown := courseOf(folder)
	for _, c := range []struct {
		text string
		want float64
	}{{"loss: 1\nloss: 2\n", 2}, {"loss: 1\nloss: 3\n", 2}, {"loss: 1\nloss: 44\n", 44}} {
		if err := os.WriteFile(folder.Output(), []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		values := numbersOf(t.Context(), folder, shown).Columns["loss"]
		if len(values) != 3 || values[2] == nil || *values[2] != c.want {
			t.Errorf("%q: %v, want %v at the end", c.text, values, c.want)
		}
	}
}

// TestPrintedLosses: what a program printed and did not report, at the readings of the meters after
// which it stood in the output. Numbers of other kinds and other ways of writing one are no part.
func TestPrintedLosses(t *testing.T) {
	for name, c := range map[string]struct {
		lines []string // between two readings each
		want  map[string]string
	}{
		"keras": {[]string{"Epoch 1/2\n", "16/16 - 1s - loss: 0.5 - val_loss: 0.625\n", "",
			"16/16 - 1s - loss: 0.25 - val_loss: 0.375\n"},
			map[string]string{"loss": "- 0.5 - 0.25", "val_loss": "- 0.625 - 0.375"}},
		"a progress bar": {[]string{"  0%| | loss=4", "\r 50%|#| loss=3", "\r100%|##| loss=2\n"},
			map[string]string{"loss": "- 4 2"}},
		"a GAN": {[]string{"[0/2] d_loss 0.5 g_loss 1.5\n", "[1/2] d_loss 0.25 g_loss nan\n",
			"[2/2] d_loss 0.125 g_loss 2.5\n"},
			map[string]string{"d_loss": "0.5 0.25 0.125", "g_loss": "1.5 - 2.5"}},
		"a mean at the end": {[]string{"step 1: loss=0.5\n", "step 2: loss=0.25\naverage loss: 9\n"},
			map[string]string{"loss": "0.5 0.25"}},
		"Hugging Face": {[]string{"{'loss': 2.5, 'epoch': 1}\n", "{'loss': 1.5, 'epoch': 2}\n"},
			map[string]string{"loss": "2.5 1.5"}},
		"one number": {[]string{"loss: 1\n", "done\n"}, map[string]string{}},
		"the word alone": {[]string{"nn.CrossEntropyLoss()\n", "glossary: 3\n glossary: 4\n"},
			map[string]string{}},
		"nothing was printed": {[]string{"", ""}, map[string]string{}},
	} {
		s := newSite(t)
		folder := s.addRun("", 0)
		text := ""
		for i, lines := range c.lines {
			text += lines
			if err := folder.AppendSamples([]event.Sample{{AtMS: int64(i), Processes: 1,
				Output: event.Bytes(len(text))}}); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(folder.Output(), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		got := map[string]string{}
		for column, values := range numbersOf(t.Context(), folder, courseOf(folder)).Columns {
			var words []string
			for _, v := range values {
				word := "-"
				if v != nil {
					word = fmt.Sprint(*v)
				}
				words = append(words, word)
			}
			got[column] = strings.Join(words, " ")
		}
		if !maps.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
