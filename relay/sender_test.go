package relay

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"memroom/testenv"
)

// receiver keeps what is sent to it. The first answers can be others: those of a server that is
// full, has forgotten the run, or has another part of a file.
type receiver struct {
	*httptest.Server
	mu       sync.Mutex
	files    map[string][]byte
	hellos   []Hello
	frames   [][]Frame
	token    string
	answers  []func(w http.ResponseWriter) // to the next requests with frames
	welcomes Welcome
}

func newReceiver(t *testing.T) *receiver {
	r := &receiver{files: map[string][]byte{}, welcomes: Welcome{ID: "there"}}
	r.Server = httptest.NewServer(r)
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.token = request.Header.Get("Authorization")
	if request.URL.Path == "/api/reports" {
		var hello Hello
		_ = json.NewDecoder(request.Body).Decode(&hello)
		r.hellos = append(r.hellos, hello)
		_ = json.NewEncoder(w).Encode(r.welcomes)
		return
	}
	frames, err := Unpack(request.Body)
	if err != nil || request.URL.Path != "/api/reports/"+r.hellos[0].Key {
		http.Error(w, "{}", http.StatusBadRequest)
		return
	}
	r.frames = append(r.frames, frames)
	if len(r.answers) > 0 {
		say := r.answers[0]
		r.answers = r.answers[1:]
		say(w)
		return
	}
	sizes := map[string]int64{}
	for _, f := range frames {
		if f.Whole {
			r.files[f.File] = nil
		}
		r.files[f.File] = append(r.files[f.File][:f.At], f.Data...)
		sizes[f.File] = int64(len(r.files[f.File]))
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"files": sizes})
}

// says returns a handler that answers with an error.
func says(status int, body string) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) {
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	}
}

// folder is a run's folder that is to be sent, and its sender.
func folder(t *testing.T, r *receiver, files map[string]string) *Sender {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		put(t, dir, name, text)
	}
	if err := Prepare(dir, r.URL, "token.txt"); err != nil {
		t.Fatal(err)
	}
	return &Sender{Dir: dir, ID: "here", URL: r.URL + "/", Token: "secret",
		Poll: time.Millisecond, Over: func() bool { return true }}
}

func put(t *testing.T, dir, name, text string) {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	testenv.Write(t, path, []byte(text))
}

func (r *receiver) holds(t *testing.T, want map[string]string) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, text := range want {
		if got := string(r.files[name]); got != text {
			t.Errorf("%s: %d bytes %.40q, want %d %.40q", name, len(got), got, len(text), text)
		}
	}
	if len(r.files) != len(want) {
		t.Errorf("%d files arrived, want %d", len(r.files), len(want))
	}
}

// TestAFolderIsSent: every file that is kept arrives whole, however large, in requests of bounded
// size; what is not kept stays.
func TestAFolderIsSent(t *testing.T) {
	r := newReceiver(t)
	long := strings.Repeat("0123456789abcde\n", 9<<16) // 9 MiB
	kept := map[string]string{"run.json": "{}", "apply-12.json": "[]", "output": long,
		"samples.jsonl": "{}\n", "dumps/a.pickle": "\x80"}
	all := map[string]string{"keeper.log": "no", "dumps/.hidden": "no", "apply-x.json": "no",
		"fit.json": strings.Repeat("x", mostRequest+1)}
	for name, text := range kept {
		all[name] = text
	}
	s := folder(t, r, all)
	if err := s.Run(context.Background()); err != nil {
		t.Fatal(err)
	}
	r.holds(t, kept)
	for _, frames := range r.frames {
		sum := 0
		for _, f := range frames {
			sum += len(f.Data)
			if len(f.Data) > mostPiece {
				t.Errorf("a piece of %s has %d bytes", f.File, len(f.Data))
			}
		}
		if sum > mostRequest {
			t.Errorf("a request has %d bytes", sum)
		}
	}
	if len(r.frames) != 3 || r.frames[0][0].File != "run.json" {
		t.Errorf("%d requests, the first begins with %s", len(r.frames), r.frames[0][0].File)
	}
	state, err := ReadState(s.Dir)
	if err != nil || !state.Done || state.ID != "there" || state.Problem != "" ||
		state.TokenFile != "token.txt" || state.Key != r.hellos[0].Key {
		t.Errorf("%+v %v", state, err)
	}
	host, _ := os.Hostname()
	if h := r.hellos[0]; len(r.hellos) != 1 || h.ID != "here" || h.Host != host || h.Now == 0 {
		t.Errorf("named itself as %+v", r.hellos)
	}
	if r.token != "Bearer secret" {
		t.Errorf("the token arrived as %q", r.token)
	}
	if info, _ := os.Stat(filepath.Join(s.Dir, stateFile)); info.Mode().Perm() != 0o600 {
		t.Errorf("%s is %s", stateFile, info.Mode())
	}
}

// TestWhatGrowsIsSentOn: while the run goes on, only what is new travels.
func TestWhatGrowsIsSentOn(t *testing.T) {
	r := newReceiver(t)
	s := folder(t, r, map[string]string{"output": "one\n", "watch.json": "1", "run.json": "{}"})
	looked := 0
	s.Over = func() bool {
		if looked++; looked == 3 {
			put(t, s.Dir, "output", "one\ntwo\n")
			put(t, s.Dir, "watch.json", "22")
		}
		return looked > 6
	}
	if err := s.Run(context.Background()); err != nil {
		t.Fatal(err)
	}
	r.holds(t, map[string]string{"output": "one\ntwo\n", "watch.json": "22", "run.json": "{}"})
	if len(r.frames) != 2 || len(r.frames[1]) != 2 {
		t.Fatalf("%d requests: %+v", len(r.frames), r.frames)
	}
	if f := r.frames[1][1]; f.File != "output" || f.At != 4 || string(f.Data) != "two\n" {
		t.Errorf("sent again: %+v", f)
	}
}

// TestServersThatAnswerOtherwise: after each of these answers the rest of the record arrives.
func TestServersThatAnswerOtherwise(t *testing.T) {
	for name, c := range map[string]struct {
		answer func(http.ResponseWriter)
		hellos int
		want   map[string]string
	}{
		"it has a part already": {says(409, `{"files":{"output":4}}`), 1,
			map[string]string{"output": "one\ntwo\n", "run.json": "{}"}},
		"it takes no more of a file": {says(413, `{"file":"output","error":"full"}`), 1,
			map[string]string{"run.json": "{}"}},
		"it has forgotten the run": {says(410, `{}`), 2,
			map[string]string{"output": "one\ntwo\n", "run.json": "{}"}},
		"its disk is full for now": {says(507, `{"error":"no space"}`), 1,
			map[string]string{"output": "one\ntwo\n", "run.json": "{}"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newReceiver(t)
			r.answers = append(r.answers, c.answer)
			if _, ok := c.want["output"]; ok {
				r.files["output"] = []byte("one\n")
			}
			s := folder(t, r, map[string]string{"output": "one\ntwo\n", "run.json": "{}"})
			if err := s.Run(context.Background()); err != nil {
				t.Fatal(err)
			}
			r.holds(t, c.want)
			if len(r.hellos) != c.hellos || len(r.frames) != 2 {
				t.Errorf("named itself %d times in %d requests", len(r.hellos), len(r.frames))
			}
			if state, _ := ReadState(s.Dir); !state.Done || state.Problem != "" {
				t.Errorf("%+v", state)
			}
		})
	}
}

// TestARefusalEndsIt: at once, with the server's words in the folder, which still waits.
func TestARefusalEndsIt(t *testing.T) {
	r := newReceiver(t)
	r.answers = append(r.answers, says(403, `{"error":"the token is another one"}`))
	s := folder(t, r, map[string]string{"run.json": "{}"})
	err := s.Run(context.Background())
	if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "403: the token is another one") {
		t.Errorf("%v", err)
	}
	if state, _ := ReadState(s.Dir); state.Done || state.Problem != err.Error() {
		t.Errorf("%+v", state)
	}
}

// TestNobodyAnswers: the sender stops trying after the end, and no sooner.
func TestNobodyAnswers(t *testing.T) {
	r := newReceiver(t)
	s := folder(t, r, map[string]string{"run.json": "{}"})
	r.Close()
	s.Patience = time.Nanosecond
	looked := 0
	s.Over = func() bool { looked++; return looked > 2 }
	if err := s.Run(context.Background()); err == nil || errors.Is(err, ErrRefused) || looked < 3 {
		t.Errorf("%v after %d looks", err, looked)
	}
	if state, err := ReadState(s.Dir); err != nil || state.Done || state.Problem == "" {
		t.Errorf("%+v %v", state, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.Patience, looked = time.Hour, -1000
	cancel()
	if err := s.Run(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

// TestTheServerHasTheFolder: a server on the same machine reads the run itself.
func TestTheServerHasTheFolder(t *testing.T) {
	r := newReceiver(t)
	r.welcomes.Own = true
	s := folder(t, r, map[string]string{"run.json": "{}"})
	if err := s.Run(context.Background()); err != nil || len(r.frames) > 0 {
		t.Errorf("%v, %d requests", err, len(r.frames))
	}
	if state, _ := ReadState(s.Dir); !state.Done || state.ID != "there" {
		t.Errorf("%+v", state)
	}
}

// TestNothingNewIsSaidNowAndThen: a server hears of a run in which nothing happens.
func TestNothingNewIsSaidNowAndThen(t *testing.T) {
	for name, c := range map[string]struct {
		ago  time.Duration
		want int
	}{"just told": {0, 0}, "long ago": {stillHere + time.Second, 1}} {
		r := newReceiver(t)
		s := folder(t, r, nil)
		s.state, _ = ReadState(s.Dir)
		s.prepare()
		if err := s.hello(context.Background()); err != nil {
			t.Fatal(err)
		}
		s.told = time.Now().Add(-c.ago)
		if finished, err := s.pass(context.Background()); err != nil || !finished {
			t.Errorf("%s: %v %v", name, finished, err)
		}
		if len(r.frames) != c.want {
			t.Errorf("%s: %d requests, want %d", name, len(r.frames), c.want)
		}
	}
}

// TestARedirectIsNotFollowed: it would take token and record elsewhere.
func TestARedirectIsNotFollowed(t *testing.T) {
	there := newReceiver(t)
	here := httptest.NewServer(http.RedirectHandler(there.URL, http.StatusTemporaryRedirect))
	defer here.Close()
	s := folder(t, there, map[string]string{"run.json": "{}"})
	s.URL = here.URL
	if err := s.Run(context.Background()); !errors.Is(err, ErrRefused) || there.token != "" {
		t.Errorf("%v, and the other server saw %q", err, there.token)
	}
}

// TestRestEndsWithTheRun: whoever waits for the end of the run does not wait for a pause.
func TestRestEndsWithTheRun(t *testing.T) {
	s := &Sender{Over: func() bool { return true }}
	if err := s.rest(context.Background(), 24*time.Hour, false); err != nil {
		t.Error(err)
	}
}

// TestRefusalsByStatus: which answers mean later, which never.
func TestRefusalsByStatus(t *testing.T) {
	for status, want := range map[int]string{500: "later", 503: "later", 507: "later", 429: "later",
		408: "later", 410: "unknown", 400: "never", 401: "never", 403: "never", 404: "never",
		409: "never", 413: "never", 302: "never", 499: "never"} {
		err := refusal(status, []byte(`{"error":"because"}`))
		got := "later"
		switch {
		case errors.Is(err, ErrRefused):
			got = "never"
		case errors.Is(err, errUnknown):
			got = "unknown"
		}
		if got != want {
			t.Errorf("%d: %s (%v), want %s", status, got, err, want)
		}
		if want != "unknown" && !strings.Contains(err.Error(), "because") {
			t.Errorf("%d does not say why: %v", status, err)
		}
	}
	if err := refusal(404, []byte("<html>")); !strings.HasSuffix(err.Error(), "404: Not Found") {
		t.Errorf("without words of its own: %v", err)
	}
	var place *placeError
	if err := refusal(409, []byte(`{"files":{"output":7}}`)); !errors.As(err, &place) ||
		place.files["output"] != 7 {
		t.Errorf("%v", err)
	}
	var large *fileError
	if err := refusal(413, []byte(`{"file":"output"}`)); !errors.As(err, &large) ||
		large.file != "output" {
		t.Errorf("%v", err)
	}
}

// TestPreparedOnce: the same server keeps its key, another one gets its own.
func TestPreparedOnce(t *testing.T) {
	dir := t.TempDir()
	prepared := func(url string) State {
		t.Helper()
		if err := Prepare(dir, url, "f"); err != nil {
			t.Fatal(err)
		}
		state, err := ReadState(dir)
		if err != nil || state.URL != url || state.Done || state.TokenFile != "f" {
			t.Fatalf("%+v %v", state, err)
		}
		return state
	}
	first := prepared("http://a")
	first.Done = true
	if err := first.write(dir); err != nil {
		t.Fatal(err)
	}
	if again := prepared("http://a"); again.Key != first.Key {
		t.Error("the same server got another key")
	}
	if other := prepared("http://b"); other.Key == first.Key {
		t.Error("another server got the same key")
	}
	for _, text := range []string{"", "{", `{"key":""}`, `{"key":"../../x"}`,
		`{"key":"` + strings.Repeat("A", 32) + `"}`, `{"key":"` + strings.Repeat("a", 33) + `"}`} {
		put(t, dir, stateFile, text)
		if state, err := ReadState(dir); err == nil {
			t.Errorf("%q is read as %+v", text, state)
		}
	}
}

func TestSendersHabits(t *testing.T) {
	s := &Sender{}
	s.prepare()
	if s.Poll != 2*time.Second || s.Patience != 2*time.Minute || s.Client.Timeout != time.Minute {
		t.Errorf("%s, %s, %s", s.Poll, s.Patience, s.Client.Timeout)
	}
	s = &Sender{Poll: 1, Patience: 3, Client: http.DefaultClient}
	s.prepare()
	if s.Poll != 1 || s.Patience != 3 || s.Client != http.DefaultClient {
		t.Errorf("what was set is replaced: %s, %s", s.Poll, s.Patience)
	}
}

// TestTheMostThatOneRequestHolds: 16 MiB unpack, one byte more does not.
func TestTheMostThatOneRequestHolds(t *testing.T) {
	for extra, taken := range map[int]bool{0: true, 1: false} {
		body, err := Pack([]Frame{{File: "output", Data: make([]byte, MostUnpacked/2)},
			{File: "output", At: MostUnpacked / 2, Data: make([]byte, MostUnpacked/2+extra)}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Unpack(bytes.NewReader(body)); (err == nil) != taken {
			t.Errorf("%d bytes: %v", MostUnpacked+extra, err)
		}
	}
}
