package attack

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"memroom/testenv"
)

// TestFeedAddresses hands addresses with secrets in all their places to the commands that read
// data, from servers that answer, refuse, and send us on to other places. No secret is printed, and
// nobody is sent to a file or to an address of the link itself.
func TestFeedAddresses(t *testing.T) {
	var next []string // by the number in the address
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, err := strconv.Atoi(strings.TrimSuffix(strings.TrimPrefix(r.URL.Path, "/on/"), "/a.csv"))
		switch {
		case err == nil && n < len(next):
			http.Redirect(w, r, next[n], http.StatusFound)
		case r.URL.Path == "/no/a.csv":
			http.Error(w, "no", http.StatusForbidden)
		default:
			http.ServeContent(w, r, "a.csv", time.Unix(1, 0), strings.NewReader("a,b\n1,2\n"))
		}
	}))
	t.Cleanup(server.Close)
	place := strings.TrimPrefix(server.URL, "http://")
	g := newTarget(t)
	next = []string{"file:///etc/passwd?s3cret", "http://169.254.1.1/s3cret",
		server.URL + "/on/2/a.csv?t=s3cret", "http://[s3cret"}
	paths := []string{"/a.csv", "/no/a.csv", "/on/0/a.csv", "/on/1/a.csv", "/on/2/a.csv",
		"/on/3/a.csv"}
	queries := []string{"", "?X-Amz-Signature=s3cret", "?sig=s3cret&x=s3cret", "?s3cret", "#s3cret"}
	look := func(t *testing.T, address string) {
		o := run(t, []string{"MEMROOM_HOME=" + g.home, "XDG_CACHE_HOME=" + g.dir}, "", "feed",
			"inspect", "--json", address)
		tally.add("addresses with secrets", o.code == 2, o.resident)
		if w := o.wrong("0", "", 0); w != "" {
			t.Errorf("%s: %s: %s", address, w, shorten(o.stderr))
		}
		if said := o.stdout + o.stderr; strings.Contains(said, "s3cret") ||
			strings.Contains(said, ":s3") || strings.Contains(said, "cret@") {
			t.Errorf("%s: %s", address, shorten(said))
		}
	}
	var wait sync.WaitGroup
	defer wait.Wait()
	for i, who := range []string{"", "me:s3cret@", "s3cret@", "me:s3/cret@"} {
		for k, query := range queries {
			wait.Go(func() { // most of the time is spent in waiting
				for n, path := range paths {
					if long() || (i+k+n)%2 == 0 {
						look(t, "http://"+who+place+path+query)
					}
				}
			})
		}
	}
}

// TestSecondUserAtAFeed: to a server that ends with its last consumer another user is none. Whoever
// knocks at its socket gets nothing, and does not end it before its first consumer has come.
func TestSecondUserAtAFeed(t *testing.T) {
	linux(t)
	root(t)
	self := copyOfSelf(t)
	data := filepath.Join(t.TempDir(), "a.csv")
	testenv.Write(t, data, []byte("a\n1\n"))
	name := fmt.Sprintf("@memroom-attack-%d", os.Getpid())
	s := launch(t, t.TempDir(), `exec "$@"`, "feed", "serve", data, "--exit-idle", "--socket", name)
	listens := func() bool { return sockets(t)[name] }
	eventually(t, "the server listens", listens)
	for range 3 {
		cmd := exec.Command(self, "/nowhere")
		cmd.Env, cmd.Dir = []string{knockEnv + "=" + name}, "/"
		o := finish(t, asNobody(cmd))
		refused := strings.Contains(o.stdout, "refused")
		tally.add("knocks of another user", refused, 0)
		if !refused {
			t.Errorf("another user got an answer: %s", o.stdout)
		}
	}
	time.Sleep(2 * time.Second) // after its last consumer it stays for less
	if !listens() {
		t.Error("another user's knock has ended the server")
	}
	s.stop()
}

// TestFeedFiles changes bytes of data files of the binary formats and reads them through the built
// command: lengths in them are not believed, and no error is one of Go's runtime.
func TestFeedFiles(t *testing.T) {
	g := newTarget(t)
	source := filepath.Join(g.dir, "source.csv")
	rows := "number,text,other\n" + strings.Repeat("1.5,some text,7\n2.5,other,8\n", 40)
	testenv.Write(t, source, []byte(rows))
	random := seeded("feed")
	for _, ending := range []string{".arrow", ".parquet"} {
		whole := filepath.Join(g.dir, "whole"+ending)
		if o := run(t, nil, "", "feed", "convert", source, "--to", whole); o.code != 0 {
			t.Fatal(o.stderr)
		}
		data := testenv.Read(t, whole)
		for range times(15, 1500) {
			damaged := append([]byte(nil), data...)
			damaged[random.IntN(len(damaged))] ^= 1 << random.IntN(8)
			g.throw(t, "damaged data files", "a"+ending, damaged, command{"feed bench FILE", "0"},
				512<<20)
		}
	}
}
