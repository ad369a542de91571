package ray

import (
	"archive/zip"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"memroom/event"
	"memroom/trial"
	"memroom/trial/remote"
)

// played is a Ray of canned answers, by method and path; what has none is not found. A real Ray is
// met in trial/conformance.
type played struct {
	answers map[string]answered
	asked   []string
	bodies  []string
	tokens  []string
}

type answered struct {
	code int
	text string
}

func play(t *testing.T, e *Engine, answers map[string]answered) *played {
	p := &played{answers: answers}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		what := r.Method + " " + r.URL.RequestURI()
		p.asked, p.bodies = append(p.asked, what), append(p.bodies, string(body))
		p.tokens = append(p.tokens, r.Header.Get("Authorization"))
		a, known := p.answers[what]
		if !known {
			a = answered{http.StatusNotFound, "a traceback\nnot found"}
		}
		w.WriteHeader(a.code)
		_, _ = io.WriteString(w, a.text)
	}))
	t.Cleanup(server.Close)
	if answers["GET /api/version"].code == 0 {
		answers["GET /api/version"] = answered{200, `{"ray_version": "2.60"}`}
	}
	e.Address = server.URL
	if err := e.Open(); err != nil {
		t.Fatal(err)
	}
	return p
}

// TestWhatAClusterHas checks that nodes that are alive count. The size of a card is the smallest
// that a node reports, else a share of the study's own budget, else unknown.
func TestWhatAClusterHas(t *testing.T) {
	const nodes = `{"data":{"result":{"result":[
		{"state":"ALIVE","resources_total":{"CPU":8,"memory":1073741824,"GPU":2}},
		{"state":"DEAD","resources_total":{"CPU":64,"memory":1099511627776,"GPU":8}},
		{"state":"ALIVE","resources_total":{"CPU":16,"memory":2147483648,"GPU":1}}]}}}`
	const summary = `{"data":{"summary":[{"gpus":[{"memoryTotal":81920},{"memoryTotal":0}]},
		{"gpus":[{"memoryTotal":40960},{"memoryTotal":49152},{"memoryTotal":0}]}]}}`
	for name, c := range map[string]struct {
		summary string
		budget  event.Bytes
		card    event.Bytes
	}{
		"told":     {summary, 30 * event.GiB, 40 * event.GiB},
		"budget":   {"{}", 30 * event.GiB, 10 * event.GiB},
		"unknown":  {"{}", 0, remote.UnknownCard},
		"no cards": {`{"data":{"summary":[{"gpus":[]}]}}`, 3 * event.GiB, event.GiB},
	} {
		e := &Engine{GPUMem: c.budget}
		play(t, e, map[string]answered{"GET /api/v0/nodes?detail=1&limit=10000": {200, nodes},
			"GET /nodes?view=summary": {200, c.summary}})
		got, err := e.Capacity()
		if err != nil || got.Host != 3*event.GiB || got.HostFree != got.Host ||
			got.NodeHost != 2*event.GiB || got.CPUs != 24 || got.NodeCPUs != 16 || len(got.Cards) != 3 {
			t.Errorf("%s: %+v, %v", name, got, err)
			continue
		}
		if got.Cards[0].Budget != c.card || got.Cards[2].Free != c.card {
			t.Errorf("%s: cards %+v, want %s", name, got.Cards, c.card)
		}
	}
}

// TestOneCard checks that the size of a cluster's only card is found, and that it is 0 without
// cards.
func TestOneCard(t *testing.T) {
	const summary = `{"data":{"summary":[{"gpus":[{"memoryTotal":81920}]}]}}`
	e := &Engine{}
	play(t, e, map[string]answered{"GET /nodes?view=summary": {200, summary}})
	if got := e.cardSize(1); got != 80*event.GiB {
		t.Errorf("one card of %s", got)
	}
	if got := e.cardSize(0); got != 0 {
		t.Errorf("no card of %s", got)
	}
	if e.client.Timeout <= 0 {
		t.Error("a cluster that does not answer is waited for without end")
	}
}

// TestWhatRayIsAskedToRun: processors, memory and the share of a card in Ray's own words.
func TestWhatRayIsAskedToRun(t *testing.T) {
	on := func(cpus float64, device event.Bytes, cards ...int) trial.Launch {
		return trial.Launch{CPUs: cpus, Device: device, Cards: cards}
	}
	for name, c := range map[string]struct {
		launch trial.Launch
		card   event.Bytes
		cpus   float64
		gpus   any // nil: none
	}{
		"a part":         {on(1.257, 3*event.GiB, 0), 8 * event.GiB, 1.26, 0.38},
		"two whole":      {on(1, event.GiB, 0, 1), 8 * event.GiB, 1, 2.0},
		"more than one":  {on(0, 9*event.GiB, 0), 8 * event.GiB, 0.01, 1.0},
		"unknown card":   {on(1, event.GiB, 0), remote.UnknownCard, 1, 1.0},
		"card not asked": {on(1, event.GiB, 0), 0, 1, 1.0},
		"no card":        {on(2, 0), 8 * event.GiB, 2, nil},
	} {
		e := &Engine{Token: "secret"}
		p := play(t, e, map[string]answered{"POST /api/jobs/": {200, "{}"}})
		e.card = c.card
		c.launch.Host, c.launch.Trial = event.GiB, 12
		job := remote.Job{ID: "a-1", Launch: c.launch, Command: []string{"run", "it's"}, Dir: "/x y",
			Env: map[string]string{"A": "1"}}
		if failed := e.Submit([]remote.Job{job}); len(failed) > 0 {
			t.Fatal(name, failed)
		}
		var body map[string]any
		if err := json.Unmarshal([]byte(p.bodies[len(p.bodies)-1]), &body); err != nil {
			t.Fatal(err)
		}
		if body["entrypoint_num_cpus"] != c.cpus || body["entrypoint_num_gpus"] != c.gpus ||
			body["entrypoint_memory"] != float64(event.GiB+remote.Overhead) ||
			body["submission_id"] != "a-1" {
			t.Errorf("%s: %v", name, body)
		}
		if strings.Contains(p.bodies[len(p.bodies)-1], "working_dir") {
			t.Errorf("%s: a folder was named: %v", name, body)
		}
		line, _ := body["entrypoint"].(string)
		if !strings.HasPrefix(line, "cd '/x y' || ") || !strings.HasSuffix(line, `exec 'run' 'it'\''s'`) {
			t.Errorf("%s: %s", name, line)
		}
		if p.tokens[len(p.tokens)-1] != "Bearer secret" {
			t.Error("without the token")
		}
	}
}

// TestRefusals: one job may be there already, a cluster that is not ready is away, a refusal is
// final.
func TestRefusals(t *testing.T) {
	for name, c := range map[string]struct {
		submit, look answered
		ok, away     bool
	}{
		"there already": {answered{400, "exists"}, answered{200, `{"status":"RUNNING"}`}, true, false},
		"refused":       {answered{400, "no"}, answered{404, ""}, false, false},
		"just refused":  {answered{499, "no"}, answered{404, ""}, false, false},
		"not ready":     {answered{500, "starting"}, answered{404, ""}, false, true},
		"cannot look":   {answered{503, "starting"}, answered{500, ""}, false, true},
	} {
		e := &Engine{}
		play(t, e, map[string]answered{"POST /api/jobs/": c.submit, "GET /api/jobs/a": c.look})
		err := e.Submit([]remote.Job{{ID: "a"}})["a"]
		if (err == nil) != c.ok || errors.Is(err, remote.ErrAway) != c.away {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestLooking checks that jobs that Ray does not know are left out, and that an invalid answer is
// an error.
func TestLooking(t *testing.T) {
	e := &Engine{}
	p := play(t, e, map[string]answered{"GET /api/jobs/a%2Fb": {200, `{"status":"RUNNING"}`}})
	got, err := e.Look([]string{"a/b", "unknown"})
	if err != nil || len(got) != 1 || got["a/b"].Phase != remote.Running {
		t.Errorf("%v, %v", got, err)
	}
	p.answers["GET /api/jobs/c"] = answered{502, "bad gateway"}
	if _, err := e.Look([]string{"c"}); !errors.Is(err, remote.ErrAway) {
		t.Errorf("bad gateway: %v", err)
	}
	p.answers["GET /api/jobs/c"] = answered{200, "<html>"}
	if _, err := e.Look([]string{"c"}); err == nil || errors.Is(err, remote.ErrAway) {
		t.Errorf("a page: %v", err)
	}
	p.answers["POST /api/jobs/c/stop"] = answered{200, "{}"}
	if err := e.Stop("c"); err != nil || p.asked[len(p.asked)-1] != "POST /api/jobs/c/stop" {
		t.Errorf("%v, %q", err, p.asked)
	}
}

// TestLogsAreReadOnce: from an offset on; right after a reading, not again.
func TestLogsAreReadOnce(t *testing.T) {
	e := &Engine{}
	p := play(t, e, map[string]answered{"GET /api/jobs/a/logs": {200, `{"logs":"0123456789"}`}})
	for _, c := range []struct {
		from int64
		want string
		asks int
	}{{0, "0123456789", 1}, {10, "", 0}, {4, "456789", 1}, {11, "", 1}} {
		before := len(p.asked)
		got, err := e.Output("a", c.from)
		if err != nil || string(got) != c.want || len(p.asked)-before != c.asks {
			t.Errorf("from %d: %q, %v, asked %d times, want %q", c.from, got, err, len(p.asked)-before,
				c.want)
		}
	}
}

// TestFoldersAreSentOnce checks that a folder is sent once, under a name made of its content. A
// refusal is an error, and a URI is passed on as it is.
func TestFoldersAreSentOnce(t *testing.T) {
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "train.py"), []byte("print()"), 0o600); err != nil {
		t.Fatal(err)
	}
	e := &Engine{Folder: folder}
	p := play(t, e, map[string]answered{})
	if err := e.Take(""); err == nil || !strings.Contains(err.Error(), "does not take it (404)") {
		t.Errorf("refused: %v", err)
	}
	put := p.asked[len(p.asked)-1]
	if name := filepath.Base(put); len(name) != len("_ray_pkg_.zip")+32 {
		t.Errorf("the package is called %s: Ray wants a hash of 32 digits", name)
	}
	p.answers[put] = answered{200, "{}"}
	if err := e.Take(""); err != nil || !strings.HasPrefix(e.workingDir, "gcs://_ray_pkg_") ||
		!strings.HasSuffix(put, strings.TrimPrefix(e.workingDir, "gcs:/")) {
		t.Errorf("%v, %s after %s", err, e.workingDir, put)
	}
	p.answers[strings.Replace(put, "PUT", "GET", 1)] = answered{200, "{}"}
	before := len(p.asked)
	if err := e.Take(""); err != nil || len(p.asked) != before+1 {
		t.Errorf("sent again: %v, %q", err, p.asked[before:])
	}
	p.answers["POST /api/jobs/"] = answered{200, "{}"}
	if failed := e.Submit([]remote.Job{{ID: "a"}}); len(failed) > 0 ||
		!strings.Contains(p.bodies[len(p.bodies)-1], `"working_dir":"`+e.workingDir+`"`) {
		t.Errorf("%v: the job does not name its folder: %s", failed, p.bodies[len(p.bodies)-1])
	}
	if line := e.entrypoint(remote.Job{Command: []string{"a"}, Dir: "/x"}); line != "exec 'a'" {
		t.Errorf("with a folder of its own: %s", line)
	}
	e.Folder = filepath.Join(folder, "none")
	if err := e.Take(""); err == nil || !strings.Contains(err.Error(), "--working-dir") {
		t.Errorf("a folder that is not there: %v", err)
	}
	for _, given := range []string{"", "s3://bucket/code.zip"} {
		e.Folder = given
		if err := e.Take(""); err != nil || e.workingDir != given {
			t.Errorf("%q became %q, %v", given, e.workingDir, err)
		}
	}
}

// TestPackHoldsTheFiles: their contents, and those that links point to. A folder that is not there
// is an error.
func TestPackHoldsTheFiles(t *testing.T) {
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "a.py"), []byte("print(1)"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("a.py", filepath.Join(folder, "b.py")); err != nil {
		t.Fatal(err)
	}
	data, err := pack(folder)
	if err != nil {
		t.Fatal(err)
	}
	archive, err := zip.NewReader(bytes.NewReader(data), int64(len(data)))
	if err != nil || len(archive.File) != 2 {
		t.Fatal(archive, err)
	}
	for _, f := range archive.File {
		file, err := f.Open()
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(file)
		if err != nil || string(text) != "print(1)" || f.Mode().Perm() != 0o700 {
			t.Errorf("%s: %q, %v, %v", f.Name, text, f.Mode(), err)
		}
	}
	if _, err := pack(filepath.Join(folder, "none")); err == nil {
		t.Error("a folder that is not there was packed")
	}
}

// TestFoldersThatAreTooLarge: the last byte that is allowed, and one more.
func TestFoldersThatAreTooLarge(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "data")
	for size, fits := range map[int64]bool{mostPackage: true, mostPackage + 1: false} {
		file, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(file.Truncate(size), file.Close()); err != nil {
			t.Fatal(err)
		}
		if _, err := pack(folder); (err == nil) != fits {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
}

// TestLastWords: the last line of a message, and of a long one its end.
func TestLastWords(t *testing.T) {
	long := strings.Repeat("a", 100) + strings.Repeat("b", 300)
	for text, want := range map[string]string{"": "", "one": "one", "one\ntwo\n": "two",
		long: strings.Repeat("b", 300), strings.Repeat("c", 300): strings.Repeat("c", 300)} {
		if got := tail(text); got != want {
			t.Errorf("%.20q: %.20q (%d), want %.20q", text, got, len(got), want)
		}
	}
}

// TestWhoAnswers checks that the error distinguishes a missing token from a server that is not Ray.
func TestWhoAnswers(t *testing.T) {
	for text, c := range map[string]answered{"asks for a token": {401, "who?"},
		"something else answers": {200, "{}"}, "no Ray cluster takes jobs": {500, "x"}} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(c.code)
			_, _ = io.WriteString(w, c.text)
		}))
		e := &Engine{Address: server.URL}
		if err := e.Open(); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v", text, err)
		}
		server.Close()
	}
}
