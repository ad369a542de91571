package source

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Retries of a request that failed for a reason that may pass, and the wait before the first of
// them, doubled each time: 0.2 + 0.4 + 0.8 + 1.6 s. What counts as progress begins them anew, so
// that no wait is longer than the last of these.
const (
	tries     = 5
	firstWait = 200 * time.Millisecond
	progress  = 64 << 10 // bytes, or all that is missing; a server may drip
	// patience bounds one request, so that a server that stops answering is an error, not a hang.
	patience = 30 * time.Second
)

type web struct {
	name   string // as the user wrote it, without secrets
	target *url.URL
	client *http.Client
	sign   func(*http.Request) // nil where no signature is asked for
	size   int64
	tag    string
}

func openHTTP(name string) (File, error) {
	target, err := url.Parse(name)
	if err != nil {
		// The error leaves out the wrong part: it may be a part of a password.
		return nil, fmt.Errorf("%s is not an address: write https://HOST/FILE, and in a "+
			"password %%2F for /, %%40 for @ and %%3A for a colon", Shown(name))
	}
	return openWeb(&web{name: Shown(name), target: target})
}

// plainError returns what went wrong without the address: http and url put it into every error.
func plainError(err error) error {
	var outer *url.Error
	if errors.As(err, &outer) {
		return outer.Err
	}
	return err
}

// refused is a place that a server must not send us to.
type refused struct{ error }

// clientFor returns a client for an address. To where clouds answer who a machine is nobody is sent
// by a server or a name. A user may name such an address as it is.
func clientFor(target *url.URL) *http.Client {
	transport := guarded()
	if answersWho(net.ParseIP(target.Hostname())) {
		transport = http.DefaultTransport
	}
	return &http.Client{Timeout: patience, Transport: transport, CheckRedirect: checkRedirect}
}

var guarded = sync.OnceValue(func() http.RoundTripper {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	dialer := &net.Dialer{Timeout: patience, Control: func(_, address string, _ syscall.RawConn) error {
		host, _, _ := net.SplitHostPort(address)
		return checkHost(host)
	}}
	transport.DialContext = dialer.DialContext
	return transport
})

func checkHost(host string) error {
	host, _, _ = strings.Cut(host, "%") // the zone of an IPv6 address
	if ip := net.ParseIP(host); answersWho(ip) {
		return &refused{fmt.Errorf("it leads to %s, where clouds answer who a machine is: it is not "+
			"asked unless you name it", ip)}
	}
	return nil
}

// answersWho reports whether clouds answer at an address who a machine is, and with which keys:
// addresses of the link itself (169.254.0.0/16, fe80::/10), Amazon's over IPv6 and Alibaba's.
func answersWho(ip net.IP) bool {
	return ip != nil && (ip.IsLinkLocalUnicast() || ip.Equal(net.ParseIP("fd00:ec2::254")) ||
		ip.Equal(net.ParseIP("100.100.100.200")))
}

func checkRedirect(to *http.Request, via []*http.Request) error {
	to.Header.Del("Referer") // it would show the next server the signature of this address
	switch {
	case to.URL.Scheme != "http" && to.URL.Scheme != "https":
		return &refused{fmt.Errorf("the server sends us on to a %s:// address: only http:// and "+
			"https:// are followed", to.URL.Scheme)}
	case len(via) >= 10:
		return &refused{errors.New("the server sends us on and on, more than 10 times")}
	}
	return checkHost(to.URL.Hostname())
}

func openWeb(w *web) (File, error) {
	w.client = clientFor(w.target)
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

// described returns what an answer contains about the whole file: its size, or -1 if it is not
// known, and a tag that changes with its content.
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
		if n >= progress {
			attempt, wait = 1, firstWait // it goes on
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
	// A server may ignore If-Match, so the size and the tag in its answer are compared too.
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

// ask sends one request and returns an answer that has the wanted status.
func (w *web) ask(complete func(*http.Request), want int) (*http.Response, error) {
	request, err := http.NewRequest(http.MethodGet, w.target.String(), nil)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", w.name, plainError(err))
	}
	complete(request)
	if w.sign != nil {
		w.sign(request)
	}
	answer, err := w.client.Do(request)
	var never *refused
	var certificate *tls.CertificateVerificationError
	switch {
	case errors.As(err, &never), errors.As(err, &certificate):
		return nil, fmt.Errorf("%s: %w", w.name, plainError(err))
	case err != nil && strings.Contains(err.Error(), "Location header"): // http has no other sign
		return nil, fmt.Errorf("%s: the server sends us on to something that is not an address", w.name)
	case err != nil:
		return nil, &passing{plainError(err)}
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

// nextAfter returns what to do about an answer that will stay the same.
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
