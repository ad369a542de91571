package cli

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"memroom/testenv"
)

// serving is a memroom serve of a test's own.
type serving struct {
	t    *testing.T
	cmd  *exec.Cmd
	home string
	url  string
}

func startServe(t *testing.T, binary, home string, flags ...string) *serving {
	t.Helper()
	cmd := exec.Command(binary, append([]string{"serve"}, flags...)...)
	cmd.Env = append(os.Environ(), "MEMROOM_HOME="+home)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s := &serving{t: t, cmd: cmd, home: home}
	t.Cleanup(s.kill)
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("memroom serve said nothing: %v: %s", err, said.String())
	}
	_, s.url, _ = strings.Cut(strings.TrimSpace(line), ": ")
	s.url, _, _ = strings.Cut(s.url, "?")
	return s
}

// kill ends it as a machine that goes down would.
func (s *serving) kill() {
	if s.cmd != nil {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
		s.cmd = nil
	}
}

func (s *serving) port() string {
	return strings.TrimSuffix(s.url[strings.LastIndexByte(s.url, ':')+1:], "/")
}

type listedRun struct {
	ID, Name, State, Status string
	Reported                bool
	Ahead                   float64 `json:"clock_ahead_seconds"`
}

func (s *serving) runs(token string) (list []listedRun) {
	s.t.Helper()
	request, err := http.NewRequest(http.MethodGet, s.url+"api/runs", nil)
	if err != nil {
		s.t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+token)
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		s.t.Fatal(err)
	}
	defer answer.Body.Close()
	data, err := io.ReadAll(answer.Body)
	var page struct{ Runs []listedRun }
	if err != nil || json.Unmarshal(data, &page) != nil {
		s.t.Fatalf("%v: %s", err, data)
	}
	return page.Runs
}

// waitFor asks again and again; only a hang makes it give up.
func waitFor(t *testing.T, what string, yes func() bool) {
	t.Helper()
	begin, limit := time.Now(), 10*time.Minute
	if end, set := t.Deadline(); set {
		limit = time.Until(end) / 2
	}
	for ; !yes(); time.Sleep(50 * time.Millisecond) {
		if time.Since(begin) > limit {
			t.Fatalf("waited %v until %s", limit, what)
		}
	}
}

// sameRecord compares a run's files with the copy at the server, byte by byte.
func sameRecord(t *testing.T, own, kept string) {
	t.Helper()
	compared := 0
	for _, name := range []string{"samples.jsonl", "events.jsonl", "attempts.jsonl", "output",
		"output.err", "steps.jsonl", "keeper.json", "exit.json", "verdict.json", "summary.json",
		"watch.json", "dumps/one.pickle"} {
		a, err := os.ReadFile(filepath.Join(own, name))
		if os.IsNotExist(err) {
			continue
		}
		b, err2 := os.ReadFile(filepath.Join(kept, name))
		if err != nil || err2 != nil || !bytes.Equal(a, b) {
			t.Errorf("%s: %d bytes here, %d there (%v %v)", name, len(a), len(b), err, err2)
		}
		compared++
	}
	if compared < 7 {
		t.Errorf("only %d files were compared", compared)
	}
}

// TestReportTo sends a run to a server that is away when it begins, comes, is killed in its middle
// and comes back; over SQLite and over a real PostgreSQL. Nothing is lost and nothing is there
// twice.
func TestReportTo(t *testing.T) {
	binary := testenv.Binary(t)
	t.Run("sqlite", func(t *testing.T) { t.Parallel(); reportTo(t, binary, "") })
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		reportTo(t, binary, testenv.Postgres(t).Address)
	})
	t.Run("waits", func(t *testing.T) { t.Parallel(); reportWaits(t, binary) })
}

func reportTo(t *testing.T, binary, db string) {
	home, central := filepath.Join(t.TempDir(), "home"), filepath.Join(t.TempDir(), "central")
	const token = "a token of the test"
	flags := []string{"--token", token, "--port"}
	if db != "" {
		flags = append([]string{"--db", db}, flags...)
	}
	first := startServe(t, binary, central, append(flags, "0")...)
	port, address := first.port(), first.url
	first.kill()
	stop := filepath.Join(t.TempDir(), "stop")
	// it writes a snapshot of its own and prints until the stop file exists
	script := fmt.Sprintf(`head -c 3000000 /dev/urandom > "$MEMROOM_HOME"/runs/*/dumps/one.pickle
		i=0; while [ ! -e %s ]; do echo tick $i; i=$((i+1)); sleep 0.05; done; echo problem >&2; exit 4`,
		stop)
	run := exec.Command(binary, "run", "--quiet", "--name", "far", "--report-to", address, "--",
		"sh", "-c", script)
	run.Env = append(os.Environ(), "MEMROOM_HOME="+home, "MEMROOM_REPORT_TOKEN="+token)
	var said bytes.Buffer
	run.Stderr = &said
	if err := run.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.WriteFile(stop, nil, 0o600); _ = run.Wait() })
	time.Sleep(time.Second) // the server is away

	second := startServe(t, binary, central, append(flags, port)...)
	waitFor(t, "the run shows up", func() bool {
		list := second.runs(token)
		return len(list) == 1 && list[0].Status == "running" && list[0].Reported
	})
	second.kill()
	time.Sleep(time.Second)
	third := startServe(t, binary, central, append(flags, port)...)
	testenv.Write(t, stop, nil)
	_ = run.Wait()
	if code := run.ProcessState.ExitCode(); code != 4 {
		t.Errorf("the run ended with %d, not with the command's 4: %s", code, said.String())
	}
	waitFor(t, "all of it has arrived", func() bool {
		list := third.runs(token)
		return len(list) == 1 && list[0].State == "exit 4"
	})
	own, _ := filepath.Glob(filepath.Join(home, "runs", "*"))
	kept, _ := filepath.Glob(filepath.Join(central, "central*", "runs", "*"))
	if len(own) != 1 || len(kept) != 1 {
		t.Fatalf("%q here, %q there", own, kept)
	}
	waitFor(t, "the sender says that it is done", func() bool {
		data, err := os.ReadFile(filepath.Join(own[0], "report.json"))
		return err == nil && bytes.Contains(data, []byte(`"done": true`))
	})
	sameRecord(t, own[0], kept[0])

	// the copy is only a copy: a server with an empty home has everything from the database
	third.kill()
	for _, dir := range kept {
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
	}
	startServe(t, binary, central, append(flags, "0")...)
	sameRecord(t, own[0], kept[0])
	if data, err := os.ReadFile(filepath.Join(own[0], "report.json")); err != nil ||
		bytes.Contains(data, []byte(token)) {
		t.Errorf("the token is written down: %v", err)
	}
}

// reportWaits: a record that no server takes stays, and memroom report sends it later. Wrong
// tokens are said, and never harm the run.
func reportWaits(t *testing.T, binary string) {
	home, central := filepath.Join(t.TempDir(), "home"), filepath.Join(t.TempDir(), "central")
	s := startServe(t, binary, central, "--port", "0", "--token", "the right one")
	memroom := func(token string, args ...string) (string, int) {
		cmd := exec.Command(binary, args...)
		cmd.Env = append(os.Environ(), "MEMROOM_HOME="+home, "MEMROOM_REPORT_TOKEN="+token)
		out, err := cmd.CombinedOutput()
		if cmd.ProcessState == nil {
			t.Fatal(err)
		}
		return string(out), cmd.ProcessState.ExitCode()
	}
	out, code := memroom("the wrong one", "run", "--report-to", s.url, "--", "sh", "-c", "exit 0")
	if code != 0 || !strings.Contains(out, "401") || !strings.Contains(out, "memroom report") {
		t.Errorf("with a wrong token: exit %d, %s", code, out)
	}
	if out, code := memroom("the wrong one", "report"); code == 0 || !strings.Contains(out, "401") {
		t.Errorf("report with a wrong token: exit %d, %s", code, out)
	}
	if list := s.runs("the right one"); len(list) != 0 {
		t.Errorf("the server has %v", list)
	}
	if out, code := memroom("the right one", "report", "--json"); code != 0 ||
		!strings.Contains(out, `"done": true`) {
		t.Errorf("report: exit %d, %s", code, out)
	}
	if list := s.runs("the right one"); len(list) != 1 || list[0].State != "ok" {
		t.Errorf("the server has %v", list)
	}
	if out, code := memroom("the right one", "report"); code != 0 ||
		!strings.Contains(out, "no record waits") {
		t.Errorf("a second report: exit %d, %s", code, out)
	}
	// a server over the same home needs no copy
	same := startServe(t, binary, home, "--port", "0")
	if out, code := memroom("", "report", "last", "--to", same.url); code != 0 {
		t.Errorf("to a server over the same home: exit %d, %s", code, out)
	}
	if list := same.runs(""); len(list) != 1 || list[0].Reported {
		t.Errorf("a run that is there already shows as %v", list)
	}
}
