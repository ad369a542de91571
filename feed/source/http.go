package source

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Retries of a request that failed for a reason that may pass, and the wait before the first of
// them, doubled each time: 0.2 + 0.4 + 0.8 + 1.6 s.
const (
	tries     = 5
	firstWait = 200 * time.Millisecond
	// patience bounds one request, so that a server that stops answering is an error, not a hang.
	patience = 30 * time.Second
)

type web struct {
	name   string // as the user wrote it, without a password
	target *url.URL
	client *http.Client
	sign   func(*http.Request) // nil where no signature is asked for
	size   int64
	tag    string
}

func openHTTP(name string) (File, error) {
	target, err := url.Parse(name)
	if err != nil {
		return nil, err
	}
	if target.User != nil {
		name = target.Redacted()
	}
	return openWeb(&web{name: name, target: target})
}

func openWeb(w *web) (File, error) {
	w.client = &http.Client{Timeout: patience}
	answer, err := w.get(0, 1)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	if w.size, w.tag = described(answer); w.size < 0 {
		return nil, fmt.Errorf("%s: the server does not serve ranges of a file (status %s): download "+
			"the file, or use a server that does", w.name, answer.Status)
	}
	return w, nil
}

// described gives what an answer says about the whole file: its size, -1 if it does not say, and
// what changes with its content.
func described(answer *http.Response) (int64, string) {
	_, total, found := strings.Cut(answer.Header.Get("Content-Range"), "/")
	size, err := strconv.ParseInt(total, 10, 64)
	if err != nil || !found {
		size = -1
	}
	tag := answer.Header.Get("ETag")
	if strings.Trim(tag, `"`) == "" {
		tag = answer.Header.Get("Last-Modified")
	}
	return size, tag
}

func (w *web) Name() string      { return w.name }
func (w *web) Size() int64       { return w.size }
func (w *web) Identity() string  { return fmt.Sprintf("%d bytes, tag %s", w.size, w.tag) }
func (w *web) Drop(int64, int64) {}
func (w *web) Check() error      { return nil } // every range carries If-Match
func (w *web) Close() error      { w.client.CloseIdleConnections(); return nil }

// ReadAt asks for a range. A server that is busy, or stops in the middle, is asked again, for what
// is missing.
func (w *web) ReadAt(p []byte, offset int64) (int, error) {
	if offset >= w.size {
		return 0, io.EOF
	}
	want := p[:min(int64(len(p)), w.size-offset)]
	done := 0
	wait := firstWait
	for attempt := 1; ; attempt++ {
		n, err := w.readOnce(want[done:], offset+int64(done))
		done += n
		if done == len(want) {
			break
		}
		var passing *passing
		if !errors.As(err, &passing) {
			return done, err
		}
		if n > 0 {
			attempt = 1 // it goes on
		}
		if attempt >= tries {
			return done, fmt.Errorf("%s: bytes %d-%d: gave up after %d tries: %w", w.name, offset,
				offset+int64(len(want)), tries, err)
		}
		time.Sleep(wait)
		wait *= 2
	}
	if len(want) < len(p) {
		return done, io.EOF
	}
	return done, nil
}

func (w *web) readOnce(p []byte, offset int64) (int, error) {
	answer, err := w.once(offset, int64(len(p)))
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	// A server may not know If-Match: what it says about the file is compared too.
	if size, tag := described(answer); size != w.size || tag != w.tag {
		return 0, fmt.Errorf("%s has changed since it was indexed (was %s, is %d bytes, tag %s): start the "+
			"stream again", w.name, w.Identity(), size, tag)
	}
	n, err := io.ReadFull(answer.Body, p)
	if err != nil {
		return n, &passing{fmt.Errorf("the server stopped after %d of %d bytes: %w", n, len(p), err)}
	}
	return n, nil
}

// get is once with retries.
func (w *web) get(offset, length int64) (*http.Response, error) {
	return w.again(func() (*http.Response, error) { return w.once(offset, length) })
}

// whole asks for all that is there, with retries.
func (w *web) whole() (*http.Response, error) {
	return w.again(func() (*http.Response, error) {
		return w.ask(func(*http.Request) {}, http.StatusOK)
	})
}

// again asks until the answer is one, or a failure that will not pass.
func (w *web) again(ask func() (*http.Response, error)) (*http.Response, error) {
	wait := firstWait
	for attempt := 1; ; attempt++ {
		answer, err := ask()
		var passing *passing
		if err == nil || !errors.As(err, &passing) {
			return answer, err
		}
		if attempt >= tries {
			return nil, fmt.Errorf("%s: gave up after %d tries: %w", w.name, tries, err)
		}
		time.Sleep(wait)
		wait *= 2
	}
}

// passing is a failure that may not happen again.
type passing struct{ error }

func (p *passing) Unwrap() error { return p.error }

// once asks for a range.
func (w *web) once(offset, length int64) (*http.Response, error) {
	return w.ask(func(request *http.Request) {
		request.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", offset, offset+length-1))
		request.Header.Set("Accept-Encoding", "identity")
		if w.tag != "" && strings.HasPrefix(w.tag, `"`) {
			request.Header.Set("If-Match", w.tag)
		}
	}, http.StatusPartialContent)
}

// ask sends one request and gives an answer that has the status that is wanted.
func (w *web) ask(complete func(*http.Request), want int) (*http.Response, error) {
	request, err := http.NewRequest(http.MethodGet, w.target.String(), nil)
	if err != nil {
		return nil, err
	}
	complete(request)
	if w.sign != nil {
		w.sign(request)
	}
	answer, err := w.client.Do(request)
	if err != nil {
		return nil, &passing{err}
	}
	if answer.StatusCode == want {
		return answer, nil
	}
	answer.Body.Close()
	switch code := answer.StatusCode; {
	case code == http.StatusPreconditionFailed:
		return nil, fmt.Errorf("%s has changed since it was indexed: start the stream again", w.name)
	case code >= 500 || code == http.StatusTooManyRequests || code == http.StatusRequestTimeout:
		return nil, &passing{fmt.Errorf("the server answered %s", answer.Status)}
	case code == http.StatusOK:
		return nil, fmt.Errorf("%s: the server does not serve ranges: download the file", w.name)
	}
	return nil, fmt.Errorf("%s: the server answered %s%s", w.name, answer.Status,
		nextAfter(answer.StatusCode, w.sign != nil))
}

// nextAfter says what to do about an answer that will stay the same.
func nextAfter(status int, signed bool) string {
	switch {
	case status == http.StatusNotFound:
		return ": is the address right?"
	case status != http.StatusUnauthorized && status != http.StatusForbidden:
		return ""
	case signed:
		return ": may these keys read it, and is AWS_REGION right?"
	}
	return ": it asks who you are. For s3:// set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; " +
		"download others first"
}
