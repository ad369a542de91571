package attack

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"
)

// served is a memroom serve under attack.
type served struct {
	t       testing.TB
	cmd     *exec.Cmd
	errs    *bytes.Buffer
	at      string // without the slash at its end
	token   string
	stopped bool
}

func serve(t testing.TB, home string, env []string, flags ...string) *served {
	t.Helper()
	s := &served{t: t, errs: &bytes.Buffer{}}
	s.cmd = exec.Command(memroom(t), append([]string{"serve", "--port", "0"}, flags...)...)
	s.cmd.Env = append(append(os.Environ(), "MEMROOM_HOME="+home), env...)
	s.cmd.Stderr = s.errs
	out, err := s.cmd.StdoutPipe()
	if err == nil {
		err = s.cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.stop)
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		_ = s.cmd.Wait()
		tally.suffer(crashes, 1)
		t.Fatalf("memroom serve said nothing: %v: %s", err, shorten(s.errs.String()))
	}
	_, text, _ := strings.Cut(strings.TrimSpace(line), ": ")
	u, err := url.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	s.at, s.token = "http://"+u.Host, u.Query().Get("token")
	return s
}

// stop ends the server and looks for a crash in what it said.
func (s *served) stop() { s.stopWith(os.Interrupt, time.Minute) }

func (s *served) stopWith(one os.Signal, within time.Duration) {
	if s.stopped {
		return
	}
	s.stopped = true
	_ = s.cmd.Process.Signal(one)
	ended := time.AfterFunc(within, func() {
		tally.suffer(hangs, 1)
		s.t.Error("memroom serve does not end")
		_ = s.cmd.Process.Kill()
	})
	_ = s.cmd.Wait()
	ended.Stop()
	if text := s.errs.String(); crash.MatchString(text) || strings.Contains(text, "a bug in memroom") {
		tally.suffer(crashes, 1)
		s.t.Errorf("memroom serve crashed: %s", shorten(text))
	}
}

var client = &http.Client{Timeout: 2 * time.Minute} // one that takes longer hangs

// ask sends a request with the token.
func (s *served) ask(method, path string, body io.Reader) (int, []byte) {
	r, err := http.NewRequest(method, s.at+path, body)
	if err != nil {
		s.t.Error(err)
		return 0, nil
	}
	r.Header.Set("Authorization", "Bearer "+s.token)
	r.Header.Set("Content-Type", "application/octet-stream")
	answer, err := client.Do(r)
	if err != nil {
		tally.suffer(hangs, 1)
		s.t.Errorf("%s %s: %v", method, path, err)
		return 0, nil
	}
	defer answer.Body.Close()
	text, _ := io.ReadAll(answer.Body)
	return answer.StatusCode, text
}

// good is a record with everything that one can hold. BEGAN stands for when.
var good = map[string]string{
	"run.json": `{"id":"RUN","name":"n","tags":["a"],"command":["python","train.py","--lr","0.1"],
		"dir":"/w","host":"far","started":"2026-11-16T08:07:25+01:00","version":"0.1.0",
		"host_mem":1073741824,"gpu_mem":5,"env":{"A":"b"},"group":"g","node_rank":1}`,
	"keeper.json": `{"keeper":4,"keeper_start":77,"finished":true,"began":"2026-11-16T08:07:25Z"}`,
	"exit.json": `{"attempt":1,"exit_code":137,"signal":"killed","at":"2026-11-16T08:08:25Z",
		"seconds":60.5,"max_rss":1000,"cgroup_peak":2000,"cpu_seconds":1.5}`,
	"verdict.json": `{"is_oom":true,"where":"cgroup","killed_by":"kernel","confidence":"certain",
		"evidence":["one","two"]}`,
	"summary.json": `{"run":{"id":"RUN","command":["x"],"started":"2026-11-16T08:07:25Z"},
		"exit":{"exit_code":137,"at":"2026-11-16T08:08:25Z"},"verdict":{"is_oom":true,"where":"cgroup"},
		"attempts":[{"number":1,"command":["x"],"started":"2026-11-16T08:07:25Z",
		"ended":"2026-11-16T08:08:25Z"}],"peaks":{"rss":5000,"unreclaimable":4000,"host_limit":9000,
		"shm":10,"shm_total":100,"gpus":[{"uuid":"u","name":"H","total":100,"used":50,"reserved":40}]},
		"steps":9,"step_ms":3.5,"findings":[{"kind":"leak","severity":"warning","title":"it grows",
		"detail":"d"}],"notes":["n"],"samples":4}`,
	"watch.json": `{"peaks":{"rss":1,"unreclaimable":2,"host_limit":3},"findings":[{"title":"t",
		"severity":"warning"}],"notes":["n"],"steps":1,"samples":2,"forecasts":[{"kind":"host",
		"seconds":5}],"accounts":{"u":{"limit":5,"lines":[{"name":"free","bytes":5}]}},
		"host_account":{"limit":5,"lines":[{"name":"free","bytes":5}]}}`,
	"fit.json":     `{"attempts":[{"remedies":["a"],"outcome":"oom"}],"outcome":"fits","remedies":[]}`,
	"apply-1.json": `{"remedies":[{"name":"a"}]}`,
	"samples.jsonl": `{"at_ms":250,"procs":1,"rss":5,"anonymous":3,"shared":1,"held":3,"machine":{"total":900,"available":500,"shm_used":1},"cgroup":{"current":5,"limit":50,"anon":3,"file":1,"shmem":1}}
{"at_ms":500,"procs":2,"rss":7,"anonymous":4,"machine":{"total":900,"available":400},"gpus":[{"uuid":"u","total":100,"used":30,"ours":20,"others":10}]}
{"at_ms":750,"procs":2,"rss":9,"anonymous":5,"machine":{"total":900,"available":300},"gpus":[{"uuid":"u","total":100,"used":60,"ours":50,"others":10}]}
`,
	"steps.jsonl": `{"at_ms":300,"pid":7,"rank":0,"step":1,"device":0,"end":"2026-11-16T08:07:25Z","duration_ns":5,"allocated":5,"reserved":9,"inactive_split":1}
{"at_ms":700,"pid":7,"rank":0,"step":2,"device":0,"end":"2026-11-16T08:07:26Z","duration_ns":5,"allocated":6,"reserved":9}
`,
	"events.jsonl": `{"at_ms":1,"kind":"attempt","text":"one"}
{"at_ms":300,"kind":"account","pid":7,"data":{"device":0,"weights":1,"gradients":1,"optimizer":2,"allocated":5,"reserved":9}}
{"at_ms":400,"kind":"finding","finding":{"title":"t","severity":"warning"}}
{"at_ms":600,"kind":"phase","data":{"name":"train"}}
{"at_ms":700,"kind":"oom","text":"no room"}
`,
	"attempts.jsonl": `{"number":1,"command":["x"],"started":"2026-11-16T08:07:25Z","exit":{"exit_code":1,"at":"2026-11-16T08:07:26Z"},"verdict":{"is_oom":true}}
`,
	"samples.roll": `["rss","anonymous"]
{"at":[0,150,250,250,1],"values":[5,5,3,3]}
`,
	"steps.roll": `["0.allocated"]
{"at":[0,100,300,300,1],"values":[5,5]}
`,
	"output": "hello\n", "output.err": "no room\n",
}

// odd are values that no record should hold.
var odd = []string{"null", "-1", "-5", "0", "1e308", "1e999", "9223372036854775807",
	"-9223372036854775808", "18446744073709551616", "0.5", `""`, `"x"`, "[]", "{}", "true", "[null]",
	`[{}]`, `{"a":null}`, `"9999-12-31T23:59:59-10:00"`, `"0000-01-01T00:00:00+10:00"`,
	`"\u001b[2J\n\u0000"`, `"` + strings.Repeat("long ", 2000) + `"`,
	strings.Repeat("[", 300) + strings.Repeat("]", 300),
	strings.Repeat(`{"a":`, 300) + "1" + strings.Repeat("}", 300)}

// place is a value of a JSON text: where it begins and ends.
type place struct{ from, to int }

// places finds the values of a JSON text, and those in them.
func places(text []byte) (found []place) {
	d := json.NewDecoder(bytes.NewReader(text))
	var open []int
	for {
		token, err := d.Token()
		if err != nil {
			return found
		}
		end := int(d.InputOffset())
		switch token {
		case json.Delim('{'), json.Delim('['):
			open = append(open, end-1)
		case json.Delim('}'), json.Delim(']'):
			found = append(found, place{open[len(open)-1], end})
			open = open[:len(open)-1]
		default:
			from := end - 1
			for from > 0 && !bytes.ContainsRune([]byte(",:[{ \n\t"), rune(text[from-1])) {
				from--
			}
			found = append(found, place{from, end})
		}
	}
}

// distort damages a file of a record: a value becomes an odd one, or bytes change.
func distort(r *rand.Rand, name string, data []byte) []byte {
	all := places(data)
	if r.IntN(3) == 0 {
		return oddNumbers(r, data)
	}
	if strings.HasSuffix(name, ".roll") || len(all) == 0 || r.IntN(4) == 0 {
		return damage(r, data)
	}
	if r.IntN(20) == 0 {
		return []byte(odd[r.IntN(len(odd))])
	}
	p := all[r.IntN(len(all))]
	return slices.Concat(data[:p.from], []byte(odd[r.IntN(len(odd))]), data[p.to:])
}

// oddNumbers replaces many of the whole numbers of a file. It can still be read, so that what
// calculates with the numbers is reached.
func oddNumbers(r *rand.Rand, data []byte) []byte {
	values := []string{"-1", "-5", "0", "1", "7", "9223372036854775807", "-9223372036854775808",
		"4611686018427387904", "1000000000000000", "-1000000000000000"}
	if bytes.HasSuffix(data, []byte{'\n'}) { // lines
		data = bytes.Repeat(data, 1+r.IntN(3))
	}
	return wholeNumber.ReplaceAllFunc(data, func(found []byte) []byte {
		if r.IntN(2) == 0 {
			return found
		}
		before := bytes.TrimRight(found, "0123456789")
		return slices.Concat(before, []byte(values[r.IntN(len(values))]))
	})
}

var wholeNumber = regexp.MustCompile(`(":|[\[,])\d+\b`)

// fileNames are the files of a record in a fixed order.
func fileNames() []string {
	var names []string
	for name := range good {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// record makes the files of one record, and damages so many of them.
func record(r *rand.Rand, id string, harmed int) (files map[string][]byte, which []string) {
	files = map[string][]byte{}
	for _, name := range fileNames() {
		files[name] = []byte(strings.ReplaceAll(good[name], "RUN", id))
	}
	for range harmed {
		name := fileNames()[r.IntN(len(files))]
		files[name] = distort(r, name, files[name])
		which = append(which, name)
	}
	return files, which
}

// put writes records into the database of a server that is not running, as a disk or an earlier
// version may have left them.
func put(t testing.TB, path string, r *rand.Rand, records map[string]map[string][]byte) {
	t.Helper()
	conn, err := sqlite.OpenConn(path, sqlite.OpenReadWrite)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	do := func(text string, args ...any) {
		if err := sqlitex.Execute(conn, text, &sqlitex.ExecOptions{Args: args}); err != nil {
			t.Fatal(err)
		}
	}
	do("BEGIN")
	for id, files := range records {
		key := fmt.Sprintf("%032x", []byte(id)[3:19])
		ahead, first := int64(5), time.Now().UnixMilli()
		switch r.IntN(60) {
		case 0:
			ahead = 1 << 62
		case 1:
			first = -1 << 60
		case 2:
			id = "../../" + id
		case 3:
			key = "short" + key
		}
		do("INSERT INTO memroom_runs VALUES (?, ?, ?, ?, ?, ?)", key, id, id, "far", ahead, first)
		for name, data := range files {
			size, packed := int64(len(data)), gz(data)
			switch r.IntN(100) {
			case 0:
				size = -size
			case 1:
				packed = damage(r, packed)
			}
			do("INSERT INTO memroom_files VALUES (?, ?, ?)", key, name, size)
			do("INSERT INTO memroom_pieces VALUES (?, ?, 0, ?)", key, name, packed)
		}
	}
	do("COMMIT")
}

func runID(n int) string {
	const letters = "abcdefghjkmnpqrstuvwxyz"
	return fmt.Sprintf("20261116-%02d%02d%02d-%c%c%c", n/3600%24, n/60%60, n%60,
		letters[n/len(letters)/len(letters)%len(letters)], letters[n/len(letters)%len(letters)],
		letters[n%len(letters)])
}

// TestDamagedRecordsAtAServer starts a server over databases full of damaged records and reads each
// in every way. It starts, a good record among them is whole and in every list, nothing answers 500
// and nothing hangs. Each damaged record is also sent, as an upload.
func TestDamagedRecordsAtAServer(t *testing.T) {
	r := seeded("server")
	batch := times(100, 500)
	for from, all := 0, times(100, 10_000); from < all; from += batch {
		home := filepath.Join(t.TempDir(), "home")
		s := serve(t, home, nil)
		if status, text := s.ask("POST", "/api/reports", strings.NewReader(fmt.Sprintf(
			`{"key":"%032x","id":%q,"host":"far","now_ms":%d}`, 1, runID(86399),
			time.Now().UnixMilli()))); status != 200 {
			t.Fatalf("hello: %d %s", status, text)
		}
		records := map[string]map[string][]byte{}
		fine := runID(86398)
		whole, _ := record(r, fine, 0)
		for n := from; n < from+batch; n++ {
			files, harmed := record(r, runID(n), 1+r.IntN(3))
			records[runID(n)] = files
			s.send(fmt.Sprintf("%032x", 1), files, harmed[:1])
		}
		s.stop()
		// the good one is put without damage to its rows
		put(t, filepath.Join(home, "central.sqlite"), rand.New(rand.NewPCG(60, 61)),
			map[string]map[string][]byte{fine: whole})
		put(t, filepath.Join(home, "central.sqlite"), r, records)
		s = serve(t, home, nil)
		s.readAll(records, fine)
		for _, name := range []string{"output", "samples.jsonl", "events.jsonl", "steps.jsonl"} {
			kept, _ := os.ReadFile(filepath.Join(home, "central", "runs", fine, name))
			if !bytes.Equal(kept, whole[name]) {
				tally.suffer(lostBytes, int64(len(whole[name])))
				t.Errorf("%s of the good record: %q", name, kept)
			}
		}
		s.stop()
	}
}

// send uploads files of a record, each in a request of its own: what is refused must be refused
// with a reason.
func (s *served) send(key string, files map[string][]byte, names []string) {
	for _, name := range names {
		data := files[name]
		whole := strings.HasSuffix(name, ".json")
		head := fmt.Sprintf(`{"file":%q,"at":0,"size":%d,"whole":%v}`+"\n", name, len(data), whole)
		status, text := s.ask("POST", "/api/reports/"+key,
			bytes.NewReader(gz(append([]byte(head), data...))))
		tally.add("damaged uploads", status != 200, 0)
		if status >= 500 || status != 200 && !bytes.Contains(text, []byte(`"error"`)) {
			s.t.Errorf("upload of %s: %d %s", name, status, text)
		}
	}
}

// readAll looks at every record in every way.
func (s *served) readAll(records map[string]map[string][]byte, fine string) {
	list := func() {
		status, text := s.ask("GET", "/api/runs?limit=500", nil)
		if status != 200 || !bytes.Contains(text, []byte(fine)) || !json.Valid(text) {
			s.t.Errorf("the list: %d %s", status, shorten(string(text)))
		}
	}
	list()
	work := make(chan string)
	var wait sync.WaitGroup
	for range 4 {
		wait.Go(func() {
			for id := range work {
				for _, path := range []string{"/api/runs/" + id, "/api/runs/" + id + "/series",
					"/api/runs/" + id + "/account", "/api/runs/" + id + "/account?at_ms=600",
					"/api/runs/" + id + "/events?kinds=all", "/api/runs/" + id + "/log", "/runs/" + id,
					"/api/compare?a=" + fine + "&b=" + id} {
					if status, text := s.ask("GET", path, nil); status >= 500 || status == 0 {
						s.t.Errorf("%s: %d %s", path, status, shorten(string(text)))
					}
				}
				tally.add("damaged records at a server", false, 0)
			}
		})
	}
	for id := range records {
		work <- id
	}
	close(work)
	wait.Wait()
	list()
	if status, text := s.ask("GET", "/metrics", nil); status != 200 {
		s.t.Errorf("metrics: %d %s", status, text)
	}
}

// askEnv makes this test's binary ask a server as the user it runs as.
const askEnv = "MEMROOM_ATTACK_ASK"

// asked are requests that would reveal or change something.
var asked = []string{"GET /", "GET /api/runs", "GET /api/runs/RUN", "GET /api/runs/RUN/log",
	"GET /api/runs/RUN/live", "GET /api/live", "GET /api/snapshots", "GET /api/studies",
	"GET /metrics", "GET /openapi.json", "GET /healthz", "GET /app.js", "GET /nothing",
	"GET /api/plan?preset=gpt2", "POST /api/plan", "POST /api/snapshots", "POST /api/reports",
	"POST /api/reports/00000000000000000000000000000001", "DELETE /api/snapshots/x", "HEAD /api/runs",
	"OPTIONS /api/runs", "PUT /api/runs", "GET /?token=x"}

// askAsOther asks for everything over one connection, then sends uploads whose sockets are closed
// before the server can look whose they are. It prints what was let in.
func askAsOther(at string) {
	run := os.Getenv(askEnv)
	for _, one := range asked {
		method, path, _ := strings.Cut(strings.ReplaceAll(one, "RUN", run), " ")
		r, err := http.NewRequest(method, at+path, strings.NewReader("{}"))
		if err != nil {
			panic(err)
		}
		r.Header.Set("Content-Type", "application/octet-stream")
		answer, err := (&http.Client{CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse
		}}).Do(r)
		if err != nil {
			fmt.Println("refused", one)
			continue
		}
		text, _ := io.ReadAll(answer.Body)
		answer.Body.Close()
		if answer.StatusCode != http.StatusUnauthorized || bytes.Contains(text, []byte(run)) {
			fmt.Println("let in:", one, answer.StatusCode, string(text))
			continue
		}
		fmt.Println("refused", one)
	}
	for range 50 {
		conn, err := net.Dial("tcp", strings.TrimPrefix(at, "http://"))
		if err != nil {
			panic(err)
		}
		fmt.Fprintf(conn, "POST /api/snapshots?name=forged HTTP/1.1\r\nHost: localhost\r\n"+
			"Content-Type: application/octet-stream\r\nContent-Length: 6\r\n\r\nforged")
		conn.Close()
		fmt.Println("refused a closed socket")
	}
}

// TestSecondUserAtAServer: another user of the machine gets nothing from the page and can send
// nothing to it; its owner may look, and send with the token.
func TestSecondUserAtAServer(t *testing.T) {
	linux(t)
	root(t)
	self := copyOfSelf(t)
	home := filepath.Join(t.TempDir(), "home")
	if err := start(t, home, "--", "echo", "hello").Wait(); err != nil {
		t.Fatal(err)
	}
	ids, _ := filepath.Glob(filepath.Join(home, "runs", "*"))
	for _, listen := range []string{"127.0.0.1", "::1", "localhost"} {
		s := serve(t, home, nil, "--listen", listen)
		cmd := exec.Command(self, s.at)
		cmd.Env = []string{askEnv + "=" + filepath.Base(ids[0])}
		cmd.Dir = "/"
		o := finish(t, asNobody(cmd))
		for line := range strings.Lines(o.stdout) {
			refused := strings.HasPrefix(line, "refused")
			tally.add("requests of another user", refused, 0)
			if !refused {
				t.Errorf("%s: %s", listen, line)
			}
		}
		if !strings.Contains(o.stdout, "closed socket") {
			t.Errorf("%s: the other user did not come to the end: %s %s", listen, o.stdout, o.stderr)
		}
		if _, text := s.ask("GET", "/api/snapshots", nil); bytes.Contains(text, []byte("forged")) {
			t.Errorf("%s: another user's upload was kept: %s", listen, text)
		}
		token := s.token
		s.token = ""
		if status, text := s.ask("GET", "/api/runs", nil); status != 200 {
			t.Errorf("%s: its owner may not look: %d %s", listen, status, text)
		}
		if status, _ := s.ask("POST", "/api/snapshots", strings.NewReader("x")); status != 401 {
			t.Errorf("%s: sending without a token: %d", listen, status)
		}
		if s.token = token; s.token == "" {
			t.Errorf("%s: no token was printed", listen)
		}
		if status, text := s.ask("POST", "/api/snapshots", strings.NewReader("x")); status != 200 {
			t.Errorf("%s: sending with the token: %d %s", listen, status, text)
		}
		s.stop()
	}
}

// TestKilledServersLeaveNoUploads: uploads have no name that could stay.
func TestKilledServersLeaveNoUploads(t *testing.T) {
	linux(t)
	temporary := t.TempDir()
	s := serve(t, filepath.Join(t.TempDir(), "home"), []string{"TMPDIR=" + temporary})
	snapshot := sample(t, "cli", "testdata", "mlp.pickle.gz")
	status, text := s.ask("POST", "/api/snapshots", bytes.NewReader(snapshot))
	var opened struct{ ID string }
	if status != 200 || json.Unmarshal(text, &opened) != nil {
		t.Fatalf("%d %s", status, text)
	}
	if status, data := s.ask("GET", "/api/snapshots/"+opened.ID+"/data", nil); status != 200 ||
		len(data) == 0 {
		t.Errorf("the snapshot is not drawn: %d", status)
	}
	_ = s.cmd.Process.Kill()
	s.stop()
	tally.add("kills", false, 0)
	_ = filepath.WalkDir(temporary, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			t.Errorf("%s is left", path)
		}
		return nil
	})
}

// TestServersEnd asks servers to end by every signal that asks for it, in every state in which one
// can be: they end in about two seconds, and leave no folder and no process.
func TestServersEnd(t *testing.T) {
	linux(t)
	silent, err := net.Listen("tcp", "127.0.0.1:0") // a database that takes a connection, and is quiet
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { silent.Close() })
	connected := make(chan net.Conn, 8)
	go func() {
		for {
			conn, err := silent.Accept()
			if err != nil {
				return
			}
			connected <- conn
		}
	}()
	begin := func(s *served, head string) { // a request that does not come to its end
		conn, err := net.Dial("tcp", strings.TrimPrefix(s.at, "http://"))
		if err != nil {
			s.t.Fatal(err)
		}
		s.t.Cleanup(func() { conn.Close() })
		fmt.Fprintf(conn, head, s.token)
		if strings.Contains(head, "GET") {
			_, _ = conn.Read(make([]byte, 12)) // the answer has begun
		}
	}
	const hello = " HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n"
	for i, state := range []struct {
		name  string
		reach func(s *served)
	}{
		{"idle", func(*served) {}},
		{"a connection", func(s *served) { begin(s, "%.0s") }},
		{"half a head", func(s *served) { begin(s, "POST /api/plan"+hello) }},
		{"a viewer", func(s *served) { begin(s, "GET /api/live"+hello+"\r\n") }},
		{"half an upload", func(s *served) {
			begin(s, "POST /api/snapshots"+hello+"Content-Type: application/octet-stream\r\n"+
				"Content-Length: 99999\r\n\r\nsome")
		}},
		{"half a report", func(s *served) {
			begin(s, "POST /api/reports"+hello+"Content-Length: 999\r\n\r\n{")
		}},
	} {
		t.Run(state.name, func(t *testing.T) {
			t.Parallel()
			temporary := t.TempDir()
			s := serve(t, filepath.Join(t.TempDir(), "home"), []string{"TMPDIR=" + temporary})
			state.reach(s)
			s.endBy([]os.Signal{os.Interrupt, syscall.SIGTERM}[i%2], temporary, 0)
		})
	}
	// One that waits for its database, and had Ctrl-C ignored, as a shell's child in the background.
	t.Run("start", func(t *testing.T) {
		t.Parallel()
		temporary := t.TempDir()
		s := launch(t, temporary, `trap "" INT; exec "$@"`, "serve", "--port", "0", "--db",
			"postgres://x@"+silent.Addr().String()+"/x?sslmode=disable")
		conn := <-connected
		defer conn.Close()
		s.endBy(os.Interrupt, temporary, 0)
	})
	// What is no server, but has a folder and a child, dies of the signal after it has put them away.
	t.Run("a rehearsal", func(t *testing.T) {
		t.Parallel()
		temporary, started := t.TempDir(), filepath.Join(t.TempDir(), "started")
		s := launch(t, temporary, `exec "$@"`, "plan", "--rehearse", "--", "sh", "-c",
			"echo $$ > \"$0\"; exec sleep 60", started)
		var child int
		eventually(t, "the child starts", func() bool {
			text, _ := os.ReadFile(started)
			_, err := fmt.Sscan(string(text), &child)
			return err == nil
		})
		s.endBy(syscall.SIGTERM, temporary, -1)
		if syscall.Kill(child, 0) == nil {
			_ = syscall.Kill(child, syscall.SIGKILL)
			t.Error("its child goes on")
		}
	})
}

// launch starts a command of memroom by a script, with a folder for temporary files.
func launch(t *testing.T, temporary, script string, args ...string) *served {
	t.Helper()
	s := &served{t: t, errs: &bytes.Buffer{}}
	s.cmd = exec.Command("sh", append([]string{"-c", script, "sh", memroom(t)}, args...)...)
	s.cmd.Env = append(os.Environ(), "MEMROOM_HOME="+filepath.Join(t.TempDir(), "home"),
		"TMPDIR="+temporary)
	s.cmd.Stderr = s.errs
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.stop)
	return s
}

// endBy sends a signal and waits for the end, with exit code want; -1 is death by the signal.
func (s *served) endBy(one os.Signal, temporary string, want int) {
	s.t.Helper()
	s.stopWith(one, 20*time.Second) // two on a machine that has nothing else to do
	tally.add("servers asked to end", false, 0)
	if code := s.cmd.ProcessState.ExitCode(); code != want {
		s.t.Errorf("%v: exit code %d: %s", one, code, shorten(s.errs.String()))
	}
	if left, _ := os.ReadDir(temporary); len(left) > 0 {
		s.t.Errorf("%v: %v is left", one, left)
	}
}
