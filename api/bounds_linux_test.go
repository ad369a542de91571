package api

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"memroom/store"
)

// TestSlowBodiesTakeNoPlace: plans are answered while others send theirs slowly.
func TestSlowBodiesTakeNoPlace(t *testing.T) {
	s := newSite(t)
	for range 4 {
		conn, err := net.Dial("tcp", s.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprintf(conn, "POST /api/plan HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n"+
			"Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{", siteToken)
	}
	if got, text, _ := s.ask("GET", "/api/plan?preset=gpt2", nil); got != 200 {
		t.Errorf("%d %s", got, clip(text, 200))
	}
}

// TestAnswersEnd: a handler whose time is over answers with that alone, one whose client has gone
// with nothing, and one that panics costs nobody else an answer.
func TestAnswersEnd(t *testing.T) {
	s := New(Options{Store: newSite(t).home})
	defer s.Close()
	slow := s.answering(func(w http.ResponseWriter, r *http.Request) error {
		<-r.Context().Done()
		return answer(w, "half of it")
	}, time.Millisecond)
	w := httptest.NewRecorder()
	slow.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
	if w.Code != 503 || strings.Contains(w.Body.String(), "half") ||
		w.Header().Get("Content-Length") != "" { // that of the answer that came too late
		t.Errorf("%d %v %s", w.Code, w.Header(), w.Body)
	}
	gone, leave := context.WithCancel(t.Context())
	leave()
	w = httptest.NewRecorder()
	slow.ServeHTTP(w, httptest.NewRequest("GET", "/", nil).WithContext(gone))
	if w.Body.Len() > 0 {
		t.Errorf("to nobody: %s", w.Body)
	}
	w = httptest.NewRecorder()
	s.answering(func(http.ResponseWriter, *http.Request) error { panic("x") }, 0).ServeHTTP(w,
		httptest.NewRequest("GET", "/", nil))
	if w.Code != 500 {
		t.Errorf("a panic: %d %s", w.Code, w.Body)
	}
}

// TestWorkEndsWithItsClient: who has left costs no more reading.
func TestWorkEndsWithItsClient(t *testing.T) {
	s := newSite(t)
	folder := s.addRun("x", 100)
	gone, leave := context.WithCancel(t.Context())
	leave()
	if _, err := s.home.ListWhile(gone, store.Filter{}); err == nil {
		t.Error("a list was made for nobody")
	}
	lines := 0
	folder.SampleSeries().Before(gone, 1<<60, func([]byte) { lines++ })
	if lines > 1 {
		t.Errorf("%d lines were read for nobody", lines)
	}
	if events, _, _ := readEvents(gone, folder, 0, 100, wanted("all")); len(events) > 1 {
		t.Errorf("%d events were read for nobody", len(events))
	}
}

// TestOneRecordDoesNotSpoilTheList: whatever times it has.
func TestOneRecordDoesNotSpoilTheList(t *testing.T) {
	s := newSite(t)
	good := s.addRun("good", 1)
	for _, started := range []string{"9999-12-31T23:59:59-10:00", "0000-01-01T00:00:00+10:00",
		"0001-01-01T00:00:00Z", "2026-01-01T00:00:00+23:59", "yesterday", "-1", "10000-01-01T00:00:00Z"} {
		folder := s.addRun("bad", 1)
		for name, text := range map[string]string{
			"run.json":       fmt.Sprintf(`{"id":%q,"started":%q}`, folder.ID, started),
			"keeper.json":    fmt.Sprintf(`{"keeper":1,"finished":true,"began":%q}`, started),
			"exit.json":      fmt.Sprintf(`{"exit_code":0,"at":%q}`, started),
			"reported.json":  fmt.Sprintf(`{"heard":%q,"first":%q,"ahead_ms":9223372036854775807}`, started, started),
			"summary.json":   fmt.Sprintf(`{"attempts":[{"started":%q}]}`, started),
			"attempts.jsonl": fmt.Sprintf(`{"started":%q}`+"\n", started),
		} {
			if err := os.WriteFile(folder.Path(name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		for _, path := range []string{"/api/runs", "/api/runs/" + folder.ID, "/metrics",
			"/api/compare?a=" + good.ID + "&b=" + folder.ID, "/api/runs/" + folder.ID + "/account"} {
			if got, text, _ := s.ask("GET", path, nil); got >= 500 ||
				path == "/api/runs" && !strings.Contains(text, good.ID) {
				t.Errorf("%s: %s: %d %s", started, path, got, clip(text, 300))
			}
		}
	}
}
