package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"memroom/central"
	"memroom/relay"
	"memroom/store"
)

const reportKey = "0123456789abcdef0123456789abcdef"

// receiving lets a site take reports into a home.
func receiving(t *testing.T, home string) func(*Options) {
	t.Helper()
	kept, err := central.Open(home, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = kept.Close() })
	return func(o *Options) {
		o.Reported = kept.Copy
		o.Receive = func() (*central.Central, error) { return kept, nil }
	}
}

func (s *site) hello(key string, now time.Time) (int, string) {
	status, text, _ := s.ask("POST", "/api/reports", strings.NewReader(fmt.Sprintf(
		`{"key":%q,"id":"20261116-080725-7uk","host":"far","now_ms":%d}`, key, now.UnixMilli())))
	return status, text
}

func (s *site) frames(key string, frames ...relay.Frame) (int, string) {
	s.t.Helper()
	body, err := relay.Pack(frames)
	if err != nil {
		s.t.Fatal(err)
	}
	status, text, _ := s.ask("POST", "/api/reports/"+key, bytes.NewReader(body))
	return status, text
}

// TestReports takes a run of a machine whose clock is three hours ahead, and refuses what makes no
// sense.
func TestReports(t *testing.T) {
	s := newSite(t, receiving(t, t.TempDir()))
	ahead := time.Now().Add(3 * time.Hour)
	if status, text := s.hello(reportKey, ahead); status != 200 {
		t.Fatalf("hello: %d %s", status, text)
	}
	run := fmt.Sprintf(`{"id":"20261116-080725-7uk","name":"far","command":["x"],"host":"far","started":%q}`,
		ahead.Add(-time.Minute).Format(time.RFC3339))
	if status, text := s.frames(reportKey, relay.Frame{File: "run.json", Whole: true,
		Data: []byte(run)}, relay.Frame{File: "keeper.json", Whole: true,
		Data: []byte(`{"keeper":1,"keeper_start":1}`)},
		relay.Frame{File: "output", Data: []byte("hello\n")}); status != 200 {
		t.Fatalf("frames: %d %s", status, text)
	}
	var list struct{ Runs []Overview }
	_, text, _ := s.ask("GET", "/api/runs", nil)
	if err := json.Unmarshal([]byte(text), &list); err != nil || len(list.Runs) != 1 {
		t.Fatalf("%v: %s", err, text)
	}
	far := list.Runs[0]
	if far.Status != store.Running || far.ClockAhead < 10790 || far.ClockAhead > 10810 {
		t.Errorf("status %s, clock ahead by %v s", far.Status, far.ClockAhead)
	}
	if age := time.Since(far.Started); age < 0 || age > 5*time.Minute || far.Seconds > 300 {
		t.Errorf("it began %v ago and took %v s, by our clock", age, far.Seconds)
	}
	for name, c := range map[string]struct {
		status int
		do     func() (int, string)
	}{
		"no JSON": {400, func() (int, string) {
			status, text, _ := s.ask("POST", "/api/reports", strings.NewReader("{"))
			return status, text
		}},
		"a key that is a path": {400, func() (int, string) { return s.hello("../../x", ahead) }},
		"a key that nobody has": {410, func() (int, string) {
			return s.frames(strings.Repeat("f", 32))
		}},
		"what is not packed": {400, func() (int, string) {
			status, text, _ := s.ask("POST", "/api/reports/"+reportKey, strings.NewReader("x"))
			return status, text
		}},
		"a way out of the folder": {400, func() (int, string) {
			return s.frames(reportKey, relay.Frame{File: "dumps/../../../x", Data: []byte("x")})
		}},
		"a gap": {409, func() (int, string) {
			return s.frames(reportKey, relay.Frame{File: "output", At: 50, Data: []byte("x")})
		}},
		"a page of another origin": {403, func() (int, string) {
			status, text, _ := s.ask("POST", "/api/reports", strings.NewReader("{}"), "Origin",
				"http://evil.example")
			return status, text
		}},
	} {
		if status, text := c.do(); status != c.status {
			t.Errorf("%s: %d %s, want %d", name, status, text, c.status)
		}
	}
}

// TestReportsOnAFullDisk: a real disk without room answers 507, and takes the same piece later.
func TestReportsOnAFullDisk(t *testing.T) {
	home := t.TempDir()
	if err := syscall.Mount("tmpfs", home, "tmpfs", 0, "size=2m,mode=700"); err != nil {
		t.Skipf("needs a small disk: mounting a tmpfs failed: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(home, syscall.MNT_DETACH) })
	s := newSite(t, receiving(t, home))
	if status, text := s.hello(reportKey, time.Now()); status != 200 {
		t.Fatalf("hello: %d %s", status, text)
	}
	ballast := filepath.Join(home, "central.ballast")
	file, err := os.Create(ballast)
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = file.Write(make([]byte, 4096))
	}
	file.Close()
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	piece := relay.Frame{File: "output", Data: bytes.Repeat([]byte("what was printed\n"), 4000)}
	status, text := s.frames(reportKey, piece)
	if status != 507 || !strings.Contains(text, "full") {
		t.Errorf("a full disk: %d %s", status, text)
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	if status, text := s.frames(reportKey, piece); status != 200 {
		t.Errorf("with room again: %d %s", status, text)
	}
}

// TestUploadOnAFullDisk: a snapshot that the server cannot keep is answered with 507 too.
func TestUploadOnAFullDisk(t *testing.T) {
	small := t.TempDir()
	if err := syscall.Mount("tmpfs", small, "tmpfs", 0, "size=1m,mode=700"); err != nil {
		t.Skipf("needs a small disk: mounting a tmpfs failed: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(small, syscall.MNT_DETACH) })
	s := newSite(t, func(o *Options) { o.Temporary = small })
	status, text, _ := s.ask("POST", "/api/snapshots?name=x.pickle",
		bytes.NewReader(bytes.Repeat([]byte{0x80}, 3<<20)), "Content-Type",
		"application/octet-stream")
	if status != 507 {
		t.Errorf("%d %s", status, text)
	}
	if left, err := os.ReadDir(small); err != nil || len(left) != 0 {
		t.Errorf("%d files are left of an upload that failed (%v)", len(left), err)
	}
}
