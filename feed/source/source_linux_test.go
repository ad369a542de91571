package source

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestBracesAreSpeltOut: as a shell does it; what is neither words nor numbers stays.
func TestBracesAreSpeltOut(t *testing.T) {
	for pattern, want := range map[string]string{
		"a": "a", "{a,b}": "a b", "x{1..3}y": "x1y x2y x3y", "{08..11}": "08 09 10 11",
		"{8..11}": "8 9 10 11", "{1..003}": "001 002 003", "{a}": "{a}", "{3..1}": "{3..1}",
		"{1..x}": "{1..x}", "{a,b}{1..2}": "a1 a2 b1 b2", "open{1..2": "open{1..2", "{,x}a": "a xa",
		"{-1..2}": "{-1..2}", "{5..5}": "5", "{x}{1..2}": "{x}1 {x}2"} {
		if got := strings.Join(braces(pattern), " "); got != want {
			t.Errorf("%s: %s, want %s", pattern, got, want)
		}
	}
	if got := len(braces("{1..5000}{1..5000}")); got != mostSpelt+1 {
		t.Errorf("a great many: %d", got)
	}
	if _, err := spellOut([]string{"{1..5000}{1..5000}"}); err == nil ||
		!strings.Contains(err.Error(), "more than 1000000 names") {
		t.Errorf("%v", err)
	}
}

// write makes files below a folder.
func write(t *testing.T, names ...string) string {
	t.Helper()
	root := t.TempDir()
	for _, name := range names {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// TestNamesAreExpanded: globs with folders between, one pattern sorted, several in their order;
// hidden files are left out, and a name that holds braces is itself.
func TestNamesAreExpanded(t *testing.T) {
	root := write(t, "b.csv", "a.csv", "x/c.csv", "x/y/d.csv", "x/.hidden/e.csv", "_own/f.csv",
		"x/g.txt", "odd{1,2}.csv", "x/.own.csv", "_SUCCESS.csv")
	if err := os.Symlink(root, filepath.Join(root, "x", "back")); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		patterns []string
		want     string
	}{
		{[]string{"[abo]*.csv"}, "a.csv b.csv odd{1,2}.csv"}, {[]string{"b.csv", "a.csv"}, "b.csv a.csv"},
		{[]string{"{b,a}.csv"}, "a.csv b.csv"}, {[]string{"**/*.csv"},
			"a.csv b.csv odd{1,2}.csv x/c.csv x/y/d.csv"},
		{[]string{"x/**/*.csv"}, "x/c.csv x/y/d.csv"}, {[]string{"**"},
			"a.csv b.csv odd{1,2}.csv x/c.csv x/g.txt x/y/d.csv"},
		{[]string{"*/y/**"}, "x/y/d.csv"}, {[]string{"odd{1,2}.csv"}, "odd{1,2}.csv"},
		{[]string{"x/?.txt", "b.csv"}, "x/g.txt b.csv"}, {[]string{"not-there.csv"}, "not-there.csv"},
	} {
		full := make([]string, len(c.patterns))
		for i, p := range c.patterns {
			full[i] = filepath.Join(root, p)
		}
		names, err := Expand(full)
		for i := range names {
			names[i], _ = filepath.Rel(root, names[i])
		}
		if got := strings.Join(names, " "); err != nil || got != c.want {
			t.Errorf("%q: %s %v, want %s", c.patterns, got, err, c.want)
		}
	}
	for pattern, want := range map[string]string{"*.parquet": "no file matches",
		"**/*.x": "no file matches",
		"[":      "syntax error", "**/[": "syntax error"} {
		if names, err := Expand([]string{filepath.Join(root, pattern)}); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v %v, want %s", pattern, names, err, want)
		}
	}
	if names, err := Expand(nil); err == nil {
		t.Errorf("nothing was named: %v", names)
	}
	if names, err := Expand([]string{"https://host/{1..2}.csv"}); err != nil || len(names) != 2 ||
		names[1] != "https://host/2.csv" {
		t.Errorf("%v %v", names, err)
	}
	found, is, err := Folder("file://" + root)
	if err != nil || !is || len(found) != 6 {
		t.Errorf("a folder: %v %v %v", found, is, err)
	}
	if _, is, _ := Folder(filepath.Join(root, "a.csv")); is {
		t.Error("a file is no folder")
	}
}

// TestFilesOfThisMachine: what can be read many times and from any place; a change is noticed.
func TestFilesOfThisMachine(t *testing.T) {
	root := write(t, "a.csv")
	name := filepath.Join(root, "a.csv")
	f, err := Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if f.Size() != 5 || f.Name() != name || f.Check() != nil || Remote(name) {
		t.Errorf("%d bytes, %v", f.Size(), f.Check())
	}
	Keep([]File{f})
	if !f.(*local).keep {
		t.Error("five bytes are not kept")
	}
	if data := Map(f); string(data) != "a.csv" {
		t.Errorf("mapped: %q", data)
	} else {
		Unmap(data)
	}
	if err := os.WriteFile(name, []byte("longer than before"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := f.Check(); err == nil || !strings.Contains(err.Error(), "has changed since") {
		t.Errorf("%v", err)
	}
	for _, c := range [][2]string{{root, "is a folder"}, {"/dev/null", "not a regular file"},
		{filepath.Join(root, "none"), "there is no file"}, {"gs://bucket/x", "https:// or s3://"},
		{"s3://bucket", "write s3://bucket/key"}, {"s3:///key", "write s3://bucket/key"}} {
		if _, err := Open(c[0]); err == nil || !strings.Contains(err.Error(), c[1]) {
			t.Errorf("%s: %v, want %s", c[0], err, c[1])
		}
	}
	large := &local{size: 1 << 60}
	if Keep([]File{large}); large.keep {
		t.Error("an exabyte is kept")
	}
	file, err := Scratch()
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := os.Stat(file.Name()); err == nil {
		t.Error("a scratch file has a name")
	}
}

// server serves one file by ranges; before does something else with some of the requests.
type server struct {
	*httptest.Server
	mu       sync.Mutex
	requests []*http.Request
	before   func(n int, w http.ResponseWriter, r *http.Request) (done bool)
}

func serve(t *testing.T, content string,
	before func(int, http.ResponseWriter, *http.Request) bool) *server {
	s := &server{before: before}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.requests = append(s.requests, r)
		n := len(s.requests)
		s.mu.Unlock()
		if s.before != nil && s.before(n, w, r) {
			return
		}
		w.Header().Set("ETag", `"one"`)
		http.ServeContent(w, r, "", time.Time{}, strings.NewReader(content))
	}))
	t.Cleanup(s.Close)
	return s
}

func says(code int) func(int, http.ResponseWriter, *http.Request) bool {
	return func(n int, w http.ResponseWriter, _ *http.Request) bool {
		if n == 2 {
			w.WriteHeader(code)
		}
		return n == 2
	}
}

// TestRangesOfAnAddress: any bytes, up to the end, with the tag that makes a change an error.
func TestRangesOfAnAddress(t *testing.T) {
	s := serve(t, "0123456789", nil)
	f, err := Open(s.URL + "/x.csv")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if f.Size() != 10 || f.Identity() != `10 bytes, tag "one"` || !Remote(f.Name()) || f.Check() != nil {
		t.Errorf("%d, %s", f.Size(), f.Identity())
	}
	for _, c := range []struct {
		offset int64
		length int
		want   string
		err    error
	}{{0, 3, "012", nil}, {4, 6, "456789", nil}, {8, 5, "89", io.EOF}, {9, 1, "9", nil},
		{10, 1, "", io.EOF},
		{99, 1, "", io.EOF}} {
		p := make([]byte, c.length)
		n, err := f.ReadAt(p, c.offset)
		if string(p[:n]) != c.want || err != c.err {
			t.Errorf("%d bytes at %d: %q %v, want %q %v", c.length, c.offset, p[:n], err, c.want, c.err)
		}
	}
	last := s.requests[len(s.requests)-1]
	if last.Header.Get("If-Match") != `"one"` || last.Header.Get("Accept-Encoding") != "identity" ||
		last.Header.Get("Range") != "bytes=9-9" {
		t.Errorf("%v", last.Header)
	}
}

// TestServersThatFailForAWhile: failures that may pass are tried again, others are errors at once.
func TestServersThatFailForAWhile(t *testing.T) {
	for name, c := range map[string]struct {
		before func(int, http.ResponseWriter, *http.Request) bool
		want   string // of the error; empty: the bytes
		asked  int
	}{
		"busy": {says(503), "", 3}, "too many": {says(429), "", 3}, "timeout": {says(408), "", 3},
		"gone": {says(404), "answered 404", 2}, "changed": {says(412), "has changed since", 2},
		"no ranges": {says(200), "does not serve ranges", 2},
		"stops in the middle": {func(n int, w http.ResponseWriter, _ *http.Request) bool {
			if n == 2 {
				w.Header().Set("Content-Range", "bytes 0-9/10")
				w.Header().Set("ETag", `"one"`)
				w.Header().Set("Content-Length", "10")
				w.WriteHeader(206)
				_, _ = w.Write([]byte("0123"))
			}
			return n == 2
		}, "", 3},
		"another file": {func(n int, w http.ResponseWriter, r *http.Request) bool {
			if n == 2 {
				w.Header().Set("ETag", `"two"`)
				r.Header.Del("If-Match")
				http.ServeContent(w, r, "", time.Time{}, strings.NewReader("abcdefghij"))
			}
			return n == 2
		}, "has changed since it was indexed", 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, "0123456789", c.before)
			f, err := Open(s.URL + "/x.csv")
			if err != nil {
				t.Fatal(err)
			}
			p := make([]byte, 10)
			n, err := f.ReadAt(p, 0)
			if c.want == "" && (err != nil || string(p[:n]) != "0123456789") ||
				c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%q %v, want %q", p[:n], err, c.want)
			}
			if len(s.requests) != c.asked {
				t.Errorf("asked %d times, want %d", len(s.requests), c.asked)
			}
		})
	}
	whole := serve(t, "x", func(_ int, w http.ResponseWriter, _ *http.Request) bool {
		_, _ = w.Write([]byte("x"))
		return true
	})
	if _, err := Open(whole.URL); err == nil || !strings.Contains(err.Error(), "download the file") {
		t.Errorf("%v", err)
	}
	f, err := Open(strings.Replace(serve(t, "x", nil).URL, "http://", "http://user:secret@", 1))
	if err != nil || strings.Contains(f.Name(), "secret") {
		t.Errorf("%v %v", f, err)
	}
}

// TestObjectsOfABucket: by their names, page after page, with a signature where there are keys.
func TestObjectsOfABucket(t *testing.T) {
	for _, name := range []string{"AWS_ENDPOINT_URL_S3", "AWS_SESSION_TOKEN", "AWS_REGION",
		"AWS_DEFAULT_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"} {
		t.Setenv(name, "")
	}
	var asked []string
	s := serve(t, "content", func(_ int, w http.ResponseWriter, r *http.Request) bool {
		asked = append(asked, r.URL.RequestURI()+" "+r.Header.Get("Authorization"))
		if r.URL.Query().Get("list-type") == "" {
			return false
		}
		keys, more := []string{"d/b 1.csv", "d/x.txt"}, "<IsTruncated>true</IsTruncated>"+
			"<NextContinuationToken>a/b</NextContinuationToken>"
		if r.URL.Query().Get("continuation-token") == "a/b" {
			keys, more = []string{"d/a.csv", "d/e/f.csv"}, ""
		}
		_, _ = fmt.Fprint(w, "<ListBucketResult>", more)
		for _, k := range keys {
			_, _ = fmt.Fprintf(w, "<Contents><Key>%s</Key></Contents>", k)
		}
		_, _ = fmt.Fprint(w, "</ListBucketResult>")
		return true
	})
	t.Setenv("AWS_ENDPOINT_URL", s.URL+"/")
	names, err := Expand([]string{"s3://bucket/d/*.csv"})
	if want := []string{"s3://bucket/d/a.csv", "s3://bucket/d/b 1.csv"}; err != nil ||
		!slices.Equal(names, want) {
		t.Errorf("%q %v, want %q", names, err, want)
	}
	if want := []string{"/bucket?list-type=2&prefix=d%2F ",
		"/bucket?continuation-token=a%2Fb&list-type=2&prefix=d%2F "}; !slices.Equal(asked, want) {
		t.Errorf("asked %q, want %q", asked, want)
	}
	for pattern, want := range map[string]string{"s3://bucket/z*": "no object matches",
		"s3://b*/x": "only the key may be a pattern", "s3://bucket/[": "syntax error"} {
		if _, err := Expand([]string{pattern}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", pattern, err, want)
		}
	}
	t.Setenv("AWS_ACCESS_KEY_ID", "ID")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "SECRET")
	asked = nil
	f, err := Open("s3://bucket/d/b 1.csv")
	if err != nil || f.Size() != 7 || f.Name() != "s3://bucket/d/b 1.csv" {
		t.Fatalf("%v %v", f, err)
	}
	if !strings.HasPrefix(asked[0], "/bucket/d/b%201.csv AWS4-HMAC-SHA256 Credential=ID/") ||
		!strings.Contains(asked[0], "/us-east-1/s3/aws4_request, SignedHeaders=host;range;"+
			"x-amz-content-sha256;x-amz-date, Signature=") {
		t.Errorf("%q", asked)
	}
}

// TestPathsOfSignatures: everything but letters, digits and four marks is escaped.
func TestPathsOfSignatures(t *testing.T) {
	for path, want := range map[string]string{"/azAZ09-._~/": "/azAZ09-._~/", "/a b": "/a%20b",
		"/a+b=c": "/a%2Bb%3Dc", "/ü": "/%C3%BC", "/@[`{": "/%40%5B%60%7B"} {
		if got := escapePath(path); got != want {
			t.Errorf("%q: %s, want %s", path, got, want)
		}
	}
	if got := escapeQuery("a/b c"); got != "a%2Fb%20c" {
		t.Errorf("a query: %s", got)
	}
	if got := first("", "b", "c"); got != "b" || first() != "" {
		t.Errorf("the first: %q", got)
	}
}

// TestLeastLimitOfCgroups: of one and those above it; "max" is none.
func TestLeastLimitOfCgroups(t *testing.T) {
	root := t.TempDir()
	for dir, text := range map[string]string{"": "900\n", "a": "max\n", "a/b": "500\n",
		"a/b/c": "700\n"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, dir, "memory.max"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for group, want := range map[string]int64{"/": 900, "/a": 900, "/a/b": 500, "/a/b/c": 500,
		"/none": 900} {
		if got := leastLimit(root, group, "memory.max"); got != want {
			t.Errorf("%s: %d, want %d", group, got, want)
		}
	}
}

// TestMoreFilesThanMayBeOpen: the files behind the first ones hold no descriptor, are read all the
// same, and their changes are noticed.
func TestMoreFilesThanMayBeOpen(t *testing.T) {
	folder := t.TempDir()
	var files []File
	var last string
	before := descriptors(t)
	for i := range mostHeld + 20 {
		last = filepath.Join(folder, fmt.Sprint(i))
		if err := os.WriteFile(last, fmt.Appendf(nil, "%06d", i), 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := Open(last)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		files = append(files, f)
	}
	for i, f := range files {
		got := make([]byte, 6)
		if _, err := f.ReadAt(got, 0); err != nil || string(got) != fmt.Sprintf("%06d", i) {
			t.Fatalf("%d: %q, %v", i, got, err)
		}
		f.Drop(0, 6)
	}
	if now := descriptors(t); now > before+mostHeld {
		t.Errorf("%d descriptors, %d before", now, before)
	}
	data := Map(files[len(files)-1])
	if string(data) != fmt.Sprintf("%06d", len(files)-1) {
		t.Errorf("mapped: %q", data)
	}
	Unmap(data)
	if err := os.WriteFile(last, []byte("another"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := files[len(files)-1].ReadAt(make([]byte, 1), 0)
	for _, err := range []error{err, files[len(files)-1].Check()} {
		if err == nil || !strings.Contains(err.Error(), "has changed since") {
			t.Errorf("%v", err)
		}
	}
}

func descriptors(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}
