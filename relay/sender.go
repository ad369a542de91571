package relay

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Sender sends one run's folder. Run does the work.
type Sender struct {
	Dir   string // of the run
	ID    string
	URL   string // of the server
	Token string
	// Over means that the run will write no more.
	Over func() bool
	// Poll is how often the folder is looked at, Patience how long to go on after the run's end
	// without an answer. Zero: two seconds, two minutes.
	Poll, Patience time.Duration
	// Client of HTTP; nil: one of our own.
	Client *http.Client

	state   State
	acked   map[string]int64
	sent    map[string]stamp // of replaced files
	refused map[string]bool  // files that the server does not take
	told    time.Time        // last request that was answered
}

// State is what is known in the run's folder about sending it: report.json.
type State struct {
	URL  string `json:"url"`
	Key  string `json:"key"`
	Done bool   `json:"done"` // the server has everything
	// ID of the run at the server.
	ID string `json:"id,omitempty"`
	// TokenFile is where the token was read from; the token itself is not written down.
	TokenFile string `json:"token_file,omitempty"`
	Problem   string `json:"problem,omitempty"`
}

// stateFile is the name of [State] in a run's folder.
const stateFile = "report.json"

// stamp changes when a replaced file does.
type stamp struct {
	size int64
	at   time.Time
}

// Sizes of what is read and sent at once.
const (
	mostPiece   = 1 << 20
	mostRequest = 4 << 20
	// stillHere is how often a request is sent although nothing has changed.
	stillHere = 15 * time.Second
	// longestPause between two tries: long enough for a server that a thousand runs wait for.
	longestPause = 15 * time.Second
)

// ReadState reads how far a folder has been sent.
func ReadState(dir string) (s State, err error) {
	data, err := os.ReadFile(filepath.Join(dir, stateFile))
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal(data, &s); err != nil {
		return s, err
	}
	if !ValidKey(s.Key) {
		return s, fmt.Errorf("%s is damaged: it holds no key; delete it and send the run again",
			stateFile)
	}
	return s, nil
}

func (s State) write(dir string) error {
	data, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	path := filepath.Join(dir, stateFile)
	if err := os.WriteFile(path+".new", append(data, '\n'), 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// CheckURL returns an error if text is not a usable address of a server.
func CheckURL(text string) error {
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return fmt.Errorf("%q is not an address: write it like https://HOST:8722", text)
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return fmt.Errorf("%q is not the address of a server: write it like https://HOST:8722", text)
	case u.User != nil:
		return errors.New("a password in the address would be seen by everybody on this machine: " +
			"leave it out, and put a token into MEMROOM_REPORT_TOKEN or --report-token-file")
	case u.RawQuery != "" || u.Fragment != "":
		return fmt.Errorf("%q: leave out what follows the question mark; the token goes into "+
			"MEMROOM_REPORT_TOKEN or --report-token-file", u.Scheme+"://"+u.Host)
	}
	return nil
}

// Prepare writes down that the run is to be sent, before anything is: a machine that goes down has
// it in its folder.
func Prepare(dir, address, tokenFile string) error {
	if old, err := ReadState(dir); err == nil && old.URL == address {
		old.Done, old.TokenFile = false, tokenFile
		return old.write(dir)
	}
	var random [16]byte
	if _, err := rand.Read(random[:]); err != nil {
		return err
	}
	return State{URL: address, Key: hex.EncodeToString(random[:]), TokenFile: tokenFile}.write(dir)
}

// ErrRefused means that the server will not take the run, now or later.
var ErrRefused = errors.New("the server refused the record")

// Run sends until everything is acknowledged after the run's end, and returns nil then. It stops
// with an error when the server refuses, when ctx ends, or when nothing was answered for Patience
// after the end; the folder is then still marked as waiting.
func (s *Sender) Run(ctx context.Context) (err error) {
	if s.state, err = ReadState(s.Dir); err != nil {
		return err
	}
	s.prepare()
	defer func() {
		if err != nil {
			s.state.Problem = err.Error()
		}
		_ = s.state.write(s.Dir)
	}()
	welcomed := false
	pause := s.Poll
	ended := time.Time{}
	for {
		over := s.Over()
		if over && ended.IsZero() {
			ended = time.Now()
		}
		if !welcomed {
			err = s.hello(ctx)
			welcomed = err == nil
		}
		finished := false
		if err == nil {
			finished, err = s.pass(ctx)
		}
		s.say(err)
		switch {
		case err == nil && finished && over:
			s.state.Done = true
			return nil
		case err == nil && finished:
			pause = s.Poll
		case err == nil: // there is more
			pause = 0
		case errors.Is(err, ErrRefused):
			return err
		case errors.Is(err, errUnknown):
			welcomed, pause = false, time.Second
		default:
			pause = min(longestPause, max(time.Second, 2*pause))
			if over && time.Since(laterOf(ended, s.told)) > s.Patience {
				return err
			}
		}
		err = nil
		if err = s.rest(ctx, pause, over); err != nil {
			return err
		}
	}
}

// say writes down what is wrong, as long as it is: whoever waits for the end of the run need not
// wait for a server that is away.
func (s *Sender) say(err error) {
	problem := ""
	if err != nil {
		problem = err.Error()
	}
	if s.state.Problem != problem {
		s.state.Problem = problem
		_ = s.state.write(s.Dir)
	}
}

// rest waits, no longer than until the run's end: somebody may wait for us then.
func (s *Sender) rest(ctx context.Context, pause time.Duration, over bool) error {
	const glance = 200 * time.Millisecond
	for pause > 0 {
		step := min(pause, glance)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(step):
		}
		if pause -= step; !over && s.Over() {
			return nil
		}
	}
	return ctx.Err()
}

func laterOf(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

func (s *Sender) prepare() {
	if s.Poll <= 0 {
		s.Poll = 2 * time.Second
	}
	if s.Patience <= 0 {
		s.Patience = 2 * time.Minute
	}
	if s.Client == nil {
		// A redirect would take the token and the record elsewhere.
		s.Client = &http.Client{Timeout: time.Minute,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	}
	s.acked, s.sent, s.refused = map[string]int64{}, map[string]stamp{}, map[string]bool{}
}

// hello names the run and learns what the server has.
func (s *Sender) hello(ctx context.Context) error {
	host, _ := os.Hostname()
	body, err := json.Marshal(Hello{Key: s.state.Key, ID: s.ID, Host: host,
		Now: time.Now().UnixMilli()})
	if err != nil {
		return err
	}
	var welcome Welcome
	if err := s.post(ctx, "/api/reports", "application/json", body, &welcome); err != nil {
		return err
	}
	if welcome.Own {
		s.state.ID = welcome.ID
		s.refused[""] = true
		return nil
	}
	s.acked, s.sent = welcome.Files, map[string]stamp{}
	if s.acked == nil {
		s.acked = map[string]int64{}
	}
	if s.state.ID != welcome.ID {
		s.state.ID, s.state.Problem = welcome.ID, ""
		return s.state.write(s.Dir)
	}
	return nil
}

// pass sends one request with what is new. finished means that there was nothing more.
func (s *Sender) pass(ctx context.Context) (finished bool, err error) {
	if s.refused[""] { // the server reads the folder itself
		return true, nil
	}
	frames, stamps, more := s.collect()
	if len(frames) == 0 && time.Since(s.told) < stillHere {
		return true, nil
	}
	body, err := Pack(frames)
	if err != nil {
		return false, err
	}
	var answer struct {
		Files map[string]int64 `json:"files"`
	}
	err = s.post(ctx, "/api/reports/"+s.state.Key, "application/x-memroom-frames", body, &answer)
	var apart *placeError
	if errors.As(err, &apart) { // an answer of before was lost on its way
		for name, size := range apart.files {
			s.acked[name] = size
		}
		return false, nil
	}
	var not *fileError
	if errors.As(err, &not) && len(frames) > 0 {
		s.refused[not.file] = true
		return false, nil
	}
	if err != nil {
		return false, err
	}
	for name, size := range answer.Files {
		s.acked[name] = size
	}
	for name, st := range stamps {
		s.sent[name] = st
	}
	return !more, nil
}

// collect reads what the server does not have, up to the size of a request.
func (s *Sender) collect() (frames []Frame, stamps map[string]stamp, more bool) {
	stamps = map[string]stamp{}
	room := mostRequest
	for _, name := range s.files() {
		path := filepath.Join(s.Dir, filepath.FromSlash(name))
		info, err := os.Lstat(path)
		if err != nil || !info.Mode().IsRegular() || s.refused[name] {
			continue
		}
		now := stamp{info.Size(), info.ModTime()}
		if Kept(name) == Replaced {
			if s.sent[name] == now {
				continue
			}
			if now.size > int64(room) {
				more = more || now.size <= mostRequest
				continue
			}
			data, err := os.ReadFile(path)
			if err != nil || int64(len(data)) > mostRequest {
				continue
			}
			frames = append(frames, Frame{File: name, Whole: true, Data: data})
			stamps[name] = now
			room -= len(data)
			continue
		}
		for s.ackedOr(name, frames) < now.size {
			if room < mostPiece {
				return frames, stamps, true
			}
			at := s.ackedOr(name, frames)
			data := readPiece(path, at, min(mostPiece, now.size-at))
			if len(data) == 0 {
				break
			}
			frames = append(frames, Frame{File: name, At: at, Data: data})
			room -= len(data)
		}
	}
	return frames, stamps, more
}

// ackedOr is where the next piece of a file begins, those that are being sent counted.
func (s *Sender) ackedOr(name string, frames []Frame) int64 {
	at := s.acked[name]
	for _, f := range frames {
		if f.File == name {
			at = max(at, f.At+int64(len(f.Data)))
		}
	}
	return at
}

// files lists what there is to send: small ones first, so that a run shows up at once.
func (s *Sender) files() []string {
	names := append([]string{}, replaced...)
	entries, _ := os.ReadDir(s.Dir)
	for _, e := range entries {
		if applied.MatchString(e.Name()) {
			names = append(names, e.Name())
		}
	}
	names = append(names, growing...)
	dumps, _ := os.ReadDir(filepath.Join(s.Dir, "dumps"))
	for _, e := range dumps {
		if name := "dumps/" + e.Name(); Kept(name) == Grows {
			names = append(names, name)
		}
	}
	return names
}

func readPiece(path string, at, most int64) []byte {
	file, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer file.Close()
	data := make([]byte, most)
	n, err := file.ReadAt(data, at)
	if err != nil && err != io.EOF {
		return nil
	}
	return data[:n]
}

// errUnknown means that the server does not know the run: it must be named again.
var errUnknown = errors.New("the server does not know the run")

// placeError holds where the server's files end, if that is not where we think.
type placeError struct{ files map[string]int64 }

func (placeError) Error() string { return "the server has another part of the record" }

// fileError names a file of which the server takes no more: it is too large, or damaged.
type fileError struct{ file, text string }

func (e fileError) Error() string { return e.text }

func (s *Sender) post(ctx context.Context, path, kind string, body []byte, answer any) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost,
		strings.TrimSuffix(s.URL, "/")+path, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("%w: %v", ErrRefused, err)
	}
	request.Header.Set("Content-Type", kind)
	if s.Token != "" {
		request.Header.Set("Authorization", "Bearer "+s.Token)
	}
	reply, err := s.Client.Do(request)
	if err != nil {
		return err
	}
	defer reply.Body.Close()
	data, err := io.ReadAll(io.LimitReader(reply.Body, 8<<20))
	if err != nil {
		return err
	}
	if reply.StatusCode == http.StatusOK {
		s.told = time.Now()
		return json.Unmarshal(data, answer)
	}
	return refusal(reply.StatusCode, data)
}

// refusal reads an answer that is no success.
func refusal(status int, data []byte) error {
	var said struct {
		Error string           `json:"error"`
		Files map[string]int64 `json:"files"`
		File  string           `json:"file"`
	}
	_ = json.Unmarshal(data, &said)
	if said.Error == "" {
		said.Error = http.StatusText(status)
	}
	said.Error = fmt.Sprintf("the server answered %d: %s", status, said.Error)
	switch {
	case status == http.StatusConflict && said.Files != nil:
		return &placeError{said.Files}
	case (status == http.StatusRequestEntityTooLarge ||
		status == http.StatusUnprocessableEntity) && said.File != "":
		return &fileError{said.File, said.Error}
	case status == http.StatusGone:
		return errUnknown
	case status >= 500 || status == http.StatusTooManyRequests ||
		status == http.StatusRequestTimeout:
		return errors.New(said.Error) // a full disk, a database that is away: later
	}
	return fmt.Errorf("%w: %s", ErrRefused, said.Error)
}
