package api

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"memroom/event"
	"memroom/store"
)

// site is a server over a home of its own.
type site struct {
	*httptest.Server
	t     *testing.T
	home  *store.Store
	token string // that every request brings, unless a test chose one
}

const siteToken = "the token of every test"

func newSite(t *testing.T, change ...func(*Options)) *site {
	t.Helper()
	kept, err := store.Open(filepath.Join(t.TempDir(), "home"))
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Store: kept, Version: "0.1.0", Local: true, Temporary: t.TempDir(),
		Poll: 5 * time.Millisecond, Token: siteToken}
	for _, c := range change {
		c(&o)
	}
	s := New(o)
	web := httptest.NewUnstartedServer(s)
	web.Config.ConnContext = s.ConnContext
	web.Start()
	t.Cleanup(func() { s.Close(); web.Close() })
	token := ""
	if o.Token == siteToken && !o.Peers {
		token = siteToken
	}
	return &site{web, t, kept, token}
}

// addRun records a run that is over, with n readings.
func (s *site) addRun(name string, n int) *store.Folder {
	s.t.Helper()
	folder, err := s.home.Create(time.Now())
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(folder.Close)
	run := event.Run{ID: folder.ID, Name: name, Command: []string{"python", "train.py"},
		Started: time.Now()}
	if err := folder.SaveRun(run); err != nil {
		s.t.Fatal(err)
	}
	addReadings(s.t, folder, 0, n)
	exit := `{"exit_code":0,"seconds":3,"at":"2026-01-01T00:00:00Z"}`
	for file, text := range map[string]string{"exit.json": exit,
		"keeper.json": `{"keeper":1,"finished":true}`, "output": "hello\n"} {
		if err := os.WriteFile(folder.Path(file), []byte(text), 0o600); err != nil {
			s.t.Fatal(err)
		}
	}
	return folder
}

func addReadings(t testing.TB, folder *store.Folder, from, n int) {
	t.Helper()
	for i := from; i < from+n; i++ {
		err := folder.AppendSamples([]event.Sample{{AtMS: int64(i) * 250, Processes: 1, Resident: 5000,
			Anonymous: event.Bytes(1000 + i), Machine: &event.MachineSample{Total: 1 << 30,
				Available: 1 << 29}}})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// ask sends a request; headers are names and values in turn.
func (s *site) ask(method, path string, body io.Reader, headers ...string) (int, string,
	http.Header) {
	s.t.Helper()
	r, err := http.NewRequest(method, s.URL+path, body)
	if err != nil {
		s.t.Fatal(err)
	}
	if s.token != "" {
		r.Header.Set("Authorization", "Bearer "+s.token)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		if headers[i] == "Host" {
			r.Host = headers[i+1]
			continue
		}
		r.Header.Set(headers[i], headers[i+1])
	}
	client := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse
	}}
	answer, err := client.Do(r)
	if err != nil {
		s.t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return answer.StatusCode, string(text), answer.Header
}

// TestWhoMayAsk: rebinding by Host, other pages by Origin and Sec-Fetch-Site.
func TestWhoMayAsk(t *testing.T) {
	s := newSite(t, func(o *Options) { o.Hosts = []string{"box.example"} })
	for _, c := range []struct {
		path    string
		want    int
		headers []string
	}{
		{"/api/runs", 200, nil},
		{"/api/runs", 200, []string{"Host", "localhost:9"}},
		{"/api/runs", 200, []string{"Host", "LOCALHOST"}},
		{"/api/runs", 200, []string{"Host", "[::1]:80"}},
		{"/api/runs", 200, []string{"Host", "box.example:80"}},
		{"/api/runs", 403, []string{"Host", "evil.example"}},
		{"/api/runs", 403, []string{"Host", "localhost.evil.example"}},
		{"/api/runs", 403, []string{"Host", "127.0.0.1.evil.example"}},
		{"/api/runs", 403, []string{"Host", "192.0.2.7"}},
		{"/", 403, []string{"Host", "evil.example:8722"}},
		{"/metrics", 403, []string{"Host", "evil.example"}},
		{"/api/runs", 403, []string{"Origin", "http://evil.example"}},
		{"/api/runs", 403, []string{"Origin", "null"}},
		{"/api/runs", 403, []string{"Origin", "http://localhost:1"}},
		{"/api/runs", 403, []string{"Origin", "://"}},
		{"/api/runs", 403, []string{"Sec-Fetch-Site", "cross-site"}},
		{"/api/runs", 403, []string{"Sec-Fetch-Site", "same-site"}},
		{"/api/runs", 200, []string{"Sec-Fetch-Site", "same-origin"}},
		{"/api/runs", 403, []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate",
			"Sec-Fetch-Dest", "document"}},
		{"/", 200, []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate",
			"Sec-Fetch-Dest", "document"}},
		{"/", 403, []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate",
			"Sec-Fetch-Dest", "iframe"}},
	} {
		if got, text, _ := s.ask("GET", c.path, nil, c.headers...); got != c.want {
			t.Errorf("%s %q: %d, want %d: %s", c.path, c.headers, got, c.want, clip(text, 200))
		}
	}
	own := []string{"Origin", s.URL, "Content-Type", "application/octet-stream"}
	if got, text, _ := s.ask("POST", "/api/snapshots", strings.NewReader("x"), own...); got != 200 {
		t.Errorf("our own page cannot upload: %d %s", got, text)
	}
	for _, kind := range []string{"text/plain", "application/x-www-form-urlencoded",
		"multipart/form-data; boundary=x", ""} {
		if got, _, _ := s.ask("POST", "/api/snapshots", strings.NewReader("x"), "Content-Type",
			kind); got != 415 {
			t.Errorf("a form's %q: %d", kind, got)
		}
	}
}

func TestTokens(t *testing.T) {
	const right = "0123456789abcdef"
	s := newSite(t, func(o *Options) { o.Token, o.Local = right, false })
	tokenCookie := "memroom_token" + s.URL[strings.LastIndexByte(s.URL, ':')+1:]
	for _, c := range []struct {
		path    string
		want    int
		headers []string
	}{
		{"/", 401, nil}, {"/api/runs", 401, nil}, {"/metrics", 401, nil}, {"/openapi.json", 401, nil},
		{"/app.js", 401, nil}, {"/healthz", 200, nil}, {"/api/nothing", 401, nil},
		{"/api/runs", 401, []string{"Authorization", "Bearer " + right[:15]}},
		{"/api/runs", 401, []string{"Authorization", "Bearer " + right + "0"}},
		{"/api/runs", 401, []string{"Authorization", "Basic " + right}},
		{"/api/runs", 401, []string{"Authorization", "Bearer "}},
		{"/api/runs", 401, []string{"Cookie", tokenCookie + "=x"}},
		{"/api/runs?token=x", 401, nil},
		{"/api/runs", 200, []string{"Authorization", "Bearer " + right}},
		{"/api/runs", 200, []string{"Cookie", tokenCookie + "=" + right}},
		{"/api/runs", 403, []string{"Cookie", tokenCookie + "=" + right, "Origin", "http://evil"}},
	} {
		if got, text, _ := s.ask("GET", c.path, nil, c.headers...); got != c.want {
			t.Errorf("%s %q: %d, want %d: %s", c.path, c.headers, got, c.want, clip(text, 200))
		}
	}
	got, _, head := s.ask("GET", "/runs/x?a=1&token="+right, nil)
	cookie := head.Get("Set-Cookie")
	if got != 303 || head.Get("Location") != "/runs/x?a=1" || !strings.Contains(cookie, "HttpOnly") ||
		!strings.Contains(cookie, "SameSite=Strict") {
		t.Errorf("%d to %q with %q", got, head.Get("Location"), cookie)
	}
	for _, path := range []string{"//evil.example/", "/%5Cevil.example/"} {
		if _, _, head := s.ask("GET", path+"?token="+right, nil); strings.Contains(
			head.Get("Location"), "evil.example") && !strings.HasPrefix(head.Get("Location"), "/%5C") {
			t.Errorf("%s leads to %q", path, head.Get("Location"))
		}
	}
}

// TestNothingOutsideIsReached: paths in place of names.
func TestNothingOutsideIsReached(t *testing.T) {
	s := newSite(t)
	folder := s.addRun("x", 4)
	secret := filepath.Join(s.home.Home, "secret")
	if err := os.WriteFile(secret, []byte("TOPSECRET"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(folder.Dumps(), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(secret, filepath.Join(folder.Dumps(), "link.pickle")); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/api/runs/..", "/api/runs/..%2f..%2fsecret", "/api/runs/%2e%2e/log",
		"/api/runs/" + folder.ID + "%2f..%2f" + folder.ID, "/api/runs/" + folder.ID + "%00",
		"/api/snapshots/" + folder.ID + "~..%2f..%2f..%2fsecret",
		"/api/snapshots/" + folder.ID + "~link.pickle/data",
		"/api/snapshots/..~secret", "/..%2fsecret", "/app.js%2f..%2f..%2fsecret", "/secret",
		"/api/runs/" + folder.ID + "/log?stream=../../../secret",
		"/api/runs/20260101-000000-abc", "/api/runs/last", "/api/compare?a=../x&b=" + folder.ID} {
		got, text, _ := s.ask("GET", path, nil)
		if strings.Contains(text, "TOPSECRET") {
			t.Errorf("%s gives the secret", path)
		}
		if got == 200 && !strings.Contains(path, "stream=") || got >= 500 {
			t.Errorf("%s: %d %s", path, got, clip(text, 100))
		}
	}
}

func TestHeadersOfEveryAnswer(t *testing.T) {
	s := newSite(t)
	for _, path := range []string{"/", "/app.js", "/api/runs", "/nothing", "/metrics"} {
		_, _, h := s.ask("GET", path, nil)
		policy := h.Get("Content-Security-Policy")
		if !strings.Contains(policy, "default-src 'none'") || strings.Contains(policy, "unsafe") ||
			h.Get("X-Content-Type-Options") != "nosniff" || h.Get("X-Frame-Options") != "DENY" ||
			h.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%s: %v", path, h)
		}
	}
	_, page, _ := s.ask("GET", "/", nil)
	if regexp.MustCompile(`(?i)<script(?:[^>]*)>[^<]|\son\w+=|https?://|\sstyle=`).MatchString(page) {
		t.Error("the page holds a script, a handler, a style or an address of its own")
	}
}

// TestPageIsSmall is the bar of 300 kB, packed.
func TestPageIsSmall(t *testing.T) {
	if n := PageBytes(); n > 300_000 {
		t.Errorf("the page has %d bytes packed", n)
	}
}

// TestOpenAPINamesEveryAddress, and no other.
func TestOpenAPINamesEveryAddress(t *testing.T) {
	s := newSite(t)
	_, text, _ := s.ask("GET", "/openapi.json", nil)
	var doc struct {
		OpenAPI string
		Paths   map[string]map[string]struct {
			OperationID string
			Responses   map[string]any
			Parameters  []struct{ Name, In string }
		}
	}
	if err := json.Unmarshal([]byte(text), &doc); err != nil || doc.OpenAPI == "" {
		t.Fatal(err)
	}
	described := map[string]bool{}
	for path, methods := range doc.Paths {
		for method, op := range methods {
			described[strings.ToUpper(method)+" "+path] = true
			if op.OperationID == "" || len(op.Responses) == 0 {
				t.Errorf("%s %s says too little", method, path)
			}
			for _, name := range regexp.MustCompile(`\{(\w+)\}`).FindAllStringSubmatch(path, -1) {
				found := false
				for _, p := range op.Parameters {
					found = found || p.Name == name[1] && p.In == "path"
				}
				if !found {
					t.Errorf("%s %s does not describe {%s}", method, path, name[1])
				}
			}
		}
	}
	for _, r := range New(Options{Store: s.home}).routes {
		if name := r.method + " " + r.path; !described[name] {
			t.Errorf("%s is not described", name)
		} else {
			delete(described, name)
		}
	}
	for name := range described {
		t.Errorf("%s is described and not there", name)
	}
}

// TestCursorsReachEveryRunOnce, also while new ones begin.
func TestCursorsReachEveryRunOnce(t *testing.T) {
	s := newSite(t)
	want := map[string]bool{}
	for i := range 7 {
		want[s.addRun(fmt.Sprint("run ", i), 2).ID] = true
	}
	cursor, seen := "", map[string]int{}
	for page := 0; page == 0 || cursor != ""; page++ {
		_, text, _ := s.ask("GET", "/api/runs?limit=3&cursor="+cursor, nil)
		var answer struct {
			Runs []Overview
			Next string
		}
		if err := json.Unmarshal([]byte(text), &answer); err != nil {
			t.Fatal(err)
		}
		for _, r := range answer.Runs {
			seen[r.ID]++
		}
		cursor = answer.Next
		if page == 0 {
			s.addRun("latecomer", 2)
		}
	}
	for id := range want {
		if seen[id] != 1 {
			t.Errorf("run %s came %d times", id, seen[id])
		}
	}
	for _, bad := range []string{"?cursor=nothing", "?limit=0", "?limit=x", "?limit=9999999"} {
		if got, text, _ := s.ask("GET", "/api/runs"+bad, nil); got != 400 {
			t.Errorf("%s: %d %s", bad, got, text)
		}
	}
}

// TestCursorsThatLeaveTheList: the run at which a page ended does not match any more when the next
// page is asked for. The list goes on after its place, and does not begin again.
func TestCursorsThatLeaveTheList(t *testing.T) {
	s := newSite(t)
	began := time.Date(2026, 11, 17, 4, 0, 0, 0, time.UTC)
	var folders []*store.Folder // oldest first; the last two begin at one time
	save := func(i int, name string) {
		t.Helper()
		err := folders[i].SaveRun(event.Run{ID: folders[i].ID, Name: name,
			Started: began.Add(time.Duration(min(i, 4)) * time.Minute)})
		if err != nil {
			t.Fatal(err)
		}
	}
	for i := range 6 {
		folders = append(folders, s.addRun("ours", 1))
		save(i, "ours")
	}
	if folders[5].ID < folders[4].ID {
		folders[4], folders[5] = folders[5], folders[4]
	}
	for last := range folders {
		save(last, "renamed")
		_, text, _ := s.ask("GET", "/api/runs?name=ours&cursor="+folders[last].ID, nil)
		save(last, "ours")
		var answer struct{ Runs []Overview }
		if err := json.Unmarshal([]byte(text), &answer); err != nil {
			t.Fatal(err)
		}
		if len(answer.Runs) != last {
			t.Fatalf("after run %d: %d runs, want the %d older ones", last, len(answer.Runs), last)
		}
		for i, r := range answer.Runs {
			if want := folders[last-1-i].ID; r.ID != want {
				t.Errorf("after run %d, place %d: %s, want %s", last, i, r.ID, want)
			}
		}
	}
}

// stream reads server-sent events: those of a kind, with their IDs.
type sent struct{ kind, id, data string }

func readStream(t testing.TB, r io.Reader, do func(sent) bool) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 8<<20)
	var e sent
	for lines.Scan() {
		key, value, _ := strings.Cut(lines.Text(), ": ")
		switch key {
		case "event":
			e.kind = value
		case "id":
			e.id = value
		case "data":
			e.data = value
		case "":
			if e.kind != "" && !do(e) {
				return
			}
			e = sent{}
		}
	}
}

// TestStreamsLoseNothing: a hundred viewers who each break off now and then and come back with
// Last-Event-ID see every reading exactly once, in order.
func TestStreamsLoseNothing(t *testing.T) {
	s := newSite(t)
	folder := s.addRun("live", 10)
	// it goes on: its keeper is this process
	stat, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		t.Skip("needs /proc: not on this system")
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+2:]))
	live := fmt.Sprintf(`{"keeper":%d,"keeper_start":%s}`, os.Getpid(), fields[19])
	over := func(text string) {
		if err := os.WriteFile(folder.Path("keeper.json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	over(live)
	_ = os.Remove(folder.Path("exit.json"))
	const total, viewers = 300, 100
	var wait sync.WaitGroup
	for v := range viewers {
		wait.Go(func() {
			var seen []int64
			last, ended := "0.0.0", false
			random := rand.New(rand.NewPCG(uint64(v), 1))
			for !ended {
				r, _ := http.NewRequest("GET", s.URL+"/api/runs/"+folder.ID+"/live", nil)
				r.Header.Set("Authorization", "Bearer "+s.token)
				r.Header.Set("Last-Event-ID", last)
				answer, err := http.DefaultClient.Do(r)
				if err != nil {
					t.Error(err)
					return
				}
				left := 1 + random.IntN(12)
				readStream(t, answer.Body, func(e sent) bool {
					if e.id != "" {
						last = e.id
					}
					switch e.kind {
					case "samples":
						var list []event.Sample
						if err := json.Unmarshal([]byte(e.data), &list); err != nil {
							t.Error(err)
						}
						for _, sample := range list {
							seen = append(seen, sample.AtMS)
						}
					case "over":
						ended = true
					}
					left--
					return left > 0 && !ended
				})
				answer.Body.Close()
			}
			if len(seen) != total {
				t.Errorf("viewer %d saw %d of %d readings", v, len(seen), total)
			}
			for i, at := range seen {
				if at != int64(i)*250 {
					t.Errorf("viewer %d: reading %d is of %d ms", v, i, at)
					return
				}
			}
		})
	}
	for at := 10; at < total; at += 10 {
		addReadings(t, folder, at, 10)
		time.Sleep(10 * time.Millisecond)
	}
	over(`{"keeper":1,"finished":true}`)
	wait.Wait()
	for _, bad := range []string{"x", "1.2", "-1.0.0", "1.2.3.4"} {
		if got, _, _ := s.ask("GET", "/api/runs/"+folder.ID+"/live", nil, "Last-Event-ID",
			bad); got != 400 {
			t.Errorf("Last-Event-ID %q: %d", bad, got)
		}
	}
}

// TestSnapshots: what is broken is said; what is whole comes with its data and its table.
func TestSnapshots(t *testing.T) {
	s := newSite(t, func(o *Options) { o.UploadLimit = 4 << 20 })
	send := func(body []byte) (int, opened) {
		got, text, _ := s.ask("POST", "/api/snapshots?name=..%2f..%2fx.pickle",
			bytes.NewReader(body), "Content-Type", "application/octet-stream")
		var o opened
		_ = json.Unmarshal([]byte(text), &o)
		return got, o
	}
	whole, err := os.ReadFile(filepath.Join("..", "cli", "testdata", "mlp.pickle.gz"))
	if err != nil {
		t.Fatal(err)
	}
	got, o := send(whole)
	if got != 200 || o.Name != "x.pickle" {
		t.Fatalf("%d %+v", got, o)
	}
	if got, data, _ := s.ask("GET", "/api/snapshots/"+o.ID+"/data", nil); got != 200 ||
		!strings.Contains(data[4:2000], `"file":"x.pickle"`) {
		t.Errorf("%d %s", got, clip(data, 200))
	}
	if got, text, _ := s.ask("GET", "/api/snapshots/"+o.ID+"/whatif", nil); got != 200 ||
		!strings.Contains(text, "expandable_segments:True") {
		t.Errorf("%d %s", got, clip(text, 200))
	}
	for _, broken := range [][]byte{[]byte("hello"), {0x80, 5}, bytes.Repeat([]byte{'('}, 1<<20),
		[]byte("\x1f\x8b not packed")} {
		if got, o = send(broken); got != 200 {
			t.Errorf("%q: %d", broken[:2], got)
			continue
		}
		if got, text, _ := s.ask("GET", "/api/snapshots/"+o.ID+"/data", nil); got != 422 ||
			!strings.Contains(text, "error") || strings.Contains(text, "/upload-") {
			t.Errorf("%q: %d %s", broken[:2], got, clip(text, 300))
		}
	}
	if got, _ = send(nil); got != 400 {
		t.Errorf("an empty file: %d", got)
	}
	if got, _ = send(make([]byte, 5<<20)); got != 413 {
		t.Errorf("a file that is too large: %d", got)
	}
	if got, _, _ := s.ask("POST", "/api/snapshots", io.LimitReader(endless{}, 6<<20), "Content-Type",
		"application/octet-stream"); got != 413 {
		t.Errorf("one that does not say how large it is: %d", got)
	}
	if got, _, _ := s.ask("DELETE", "/api/snapshots/"+o.ID, nil); got != 204 {
		t.Errorf("delete: %d", got)
	}
	if got, _, _ := s.ask("GET", "/api/snapshots/"+o.ID, nil); got != 404 {
		t.Errorf("after delete: %d", got)
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

// TestDamagedAndNewerRecordsAreShown, with what is known of them.
// TestPackedUploadsAreBounded: a packed file may not bring more than a plain one.
func TestPackedUploadsAreBounded(t *testing.T) {
	m := newSnapshots(t.TempDir(), 2*event.GiB, nil)
	for _, c := range []struct {
		size     event.Bytes
		uploaded bool
		want     event.Bytes // 0: by its ratio
	}{{10 * event.MiB, true, 0}, {100 * event.MiB, true, 2 * event.GiB},
		{100 * event.MiB, false, 0}} {
		if got := m.limits(&opened{Size: c.size, uploaded: c.uploaded}).Unpacked; got != c.want {
			t.Errorf("%+v: %s", c, got)
		}
	}
	m.most = event.MiB // small files are often packed very tightly
	if got := m.limits(&opened{Size: 2 * event.MiB, uploaded: true}).Unpacked; got != 64*event.MiB {
		t.Errorf("a small limit allows %s", got)
	}
}

func TestDamagedAndNewerRecordsAreShown(t *testing.T) {
	s := newSite(t)
	damaged, newer := s.addRun("damaged", 3), s.addRun("newer", 3)
	if err := os.WriteFile(damaged.Path("run.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	run, _ := newer.Run()
	run.Version = "9.0.0"
	if err := newer.SaveRun(run); err != nil {
		t.Fatal(err)
	}
	if got, text, _ := s.ask("GET", "/api/runs/"+damaged.ID, nil); got != 200 ||
		!strings.Contains(text, `"state":"damaged"`) {
		t.Errorf("%d %s", got, clip(text, 300))
	}
	if got, text, _ := s.ask("GET", "/api/runs/"+newer.ID, nil); got != 200 ||
		!strings.Contains(text, "newer than this one") {
		t.Errorf("%d %s", got, clip(text, 300))
	}
	if got, text, _ := s.ask("GET", "/api/runs", nil); got != 200 || strings.Count(text,
		`"status"`) != 2 {
		t.Errorf("%d %s", got, clip(text, 300))
	}
}

func TestMetricsAreWellFormed(t *testing.T) {
	s := newSite(t)
	s.addRun("a \"b\"\\\nc", 4)
	got, text, head := s.ask("GET", "/metrics", nil)
	if got != 200 || !strings.HasPrefix(head.Get("Content-Type"), "text/plain; version=0.0.4") {
		t.Fatalf("%d %v", got, head)
	}
	line := regexp.MustCompile(`^memroom_\w+(\{(\w+="(\\.|[^"\\\n])*",?)*\})? -?[0-9.e+-]+$`)
	family, seen := "", map[string]bool{}
	for _, l := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
		if name, ok := strings.CutPrefix(l, "# TYPE "); ok {
			family, _, _ = strings.Cut(name, " ")
			if seen[family] {
				t.Errorf("%s comes twice", family)
			}
			seen[family] = true
			continue
		}
		if !strings.HasPrefix(l, "#") && (!line.MatchString(l) || !strings.HasPrefix(l, family)) {
			t.Errorf("not a metric of %s: %q", family, l)
		}
	}
	for _, want := range []string{"memroom_runs", "memroom_run_headroom_bytes", "memroom_viewers",
		"memroom_run_peak_bytes"} {
		if !seen[want] {
			t.Errorf("no %s", want)
		}
	}
}

func TestPlansByTheirQuery(t *testing.T) {
	s := newSite(t)
	got, text, _ := s.ask("GET", "/api/plan?preset=gpt2&batch=4&seq=128&gpu=24GiB", nil)
	var p planned
	if err := json.Unmarshal([]byte(text), &p); err != nil || got != 200 {
		t.Fatalf("%d %v %s", got, err, clip(text, 200))
	}
	if p.Prediction.Fits == nil || !*p.Prediction.Fits || p.Prediction.DevicePeak < 1<<30 ||
		p.Command != "memroom plan --preset gpt2 --batch 4 --seq 128 --gpu 24GiB" {
		t.Errorf("%+v %q", p.Prediction, p.Command)
	}
	for _, bad := range []string{"", "?preset=nothing", "?preset=gpt2&batch=0", "?preset=gpt2&batch=x",
		"?preset=gpt2&gpu=a%20lot", "?preset=gpt2&alloc-conf=x", "?preset=gpt2&batch=99999999999",
		"?preset=gpt2&devices=9999x24GiB", "?preset=gpt2&optimizer=none%20such"} {
		if got, text, _ := s.ask("GET", "/api/plan"+bad, nil); got != 400 {
			t.Errorf("%s: %d %s", bad, got, clip(text, 200))
		}
	}
	config := `{"model_type":"gpt2","n_layer":2,"n_embd":64,"n_head":2,"vocab_size":100}`
	if got, text, _ := s.ask("POST", "/api/plan?batch=1&seq=32", strings.NewReader(config),
		"Content-Type", "application/json"); got != 200 {
		t.Errorf("a config.json: %d %s", got, clip(text, 200))
	}
	if got, _, _ := s.ask("POST", "/api/plan", strings.NewReader("{"), "Content-Type",
		"application/json"); got != 400 {
		t.Errorf("half a config.json: %d", got)
	}
}
