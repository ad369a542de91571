package central

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"zombiezen.com/go/sqlite"

	"memroom/relay"
	"memroom/testenv"
)

// databases runs a test over SQLite and over a real PostgreSQL.
func databases(t *testing.T, work func(t *testing.T, open func() *Central)) {
	opener := func(t *testing.T, address string) func() *Central {
		home := t.TempDir()
		return func() *Central {
			t.Helper()
			c, err := Open(home, address)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = c.Close() })
			return c
		}
	}
	t.Run("sqlite", func(t *testing.T) { work(t, opener(t, "")) })
	t.Run("postgres", func(t *testing.T) { work(t, opener(t, testenv.Postgres(t).Address)) })
}

const (
	key   = "0123456789abcdef0123456789abcdef"
	other = "ffffffffffffffffffffffffffffffff"
	id    = "20261116-080725-7uk"
)

func hello(t *testing.T, c *Central, key string) relay.Welcome {
	t.Helper()
	w, err := c.Hello(relay.Hello{Key: key, ID: id, Host: "far", Now: time.Now().UnixMilli()},
		time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func add(t *testing.T, c *Central, frames ...relay.Frame) map[string]int64 {
	t.Helper()
	sizes, err := c.Add(key, frames, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return sizes
}

func content(t *testing.T, c *Central, id, name string) string {
	t.Helper()
	data, err := os.ReadFile(c.Copy.Folder(id).Path(name))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestRecordsAreKept(t *testing.T) {
	databases(t, func(t *testing.T, open func() *Central) {
		c := open()
		if w := hello(t, c, key); w.ID != id || len(w.Files) != 0 {
			t.Errorf("a new run is welcomed with %+v", w)
		}
		grown := func(at int64, text string) relay.Frame {
			return relay.Frame{File: "samples.jsonl", At: at, Data: []byte(text)}
		}
		run := relay.Frame{File: "run.json", Whole: true, Data: []byte(`{"id":"` + id + `","started":"2026-11-16T08:07:25Z"}`)}
		add(t, c, run, grown(0, "one\n"), grown(4, "two\n"))
		// an answer was lost: the same again, and more
		if sizes := add(t, c, grown(4, "two\nthree\n")); sizes["samples.jsonl"] != 14 {
			t.Errorf("kept %v, want 14 bytes", sizes)
		}
		if sizes := add(t, c, grown(0, "one\n")); sizes["samples.jsonl"] != 14 {
			t.Errorf("an old piece changed the size: %v", sizes)
		}
		_, err := c.Add(key, []relay.Frame{grown(20, "gap")}, time.Now())
		var place *PlaceError
		if !errors.As(err, &place) || place.Files["samples.jsonl"] != 14 {
			t.Errorf("a gap is %v", err)
		}
		watch := func(text string) relay.Frame {
			return relay.Frame{File: "watch.json", Whole: true, Data: []byte(text)}
		}
		add(t, c, watch(`{"steps":1000}`))
		add(t, c, watch(`{}`))
		const want = "one\ntwo\nthree\n"
		if got := content(t, c, id, "samples.jsonl"); got != want {
			t.Errorf("the copy holds %q", got)
		}
		// a second machine with a run of the same name
		if w := hello(t, c, other); w.ID == id || len(w.ID) != len(id) {
			t.Errorf("two runs have the place %s", w.ID)
		} else if _, err := c.Add(other, []relay.Frame{run}, time.Now()); err != nil ||
			!strings.Contains(content(t, c, w.ID, "run.json"), w.ID) {
			t.Errorf("the other run does not know its name here: %v", err)
		}
		if _, err := c.Add(strings.Repeat("0", 32), nil, time.Now()); !errors.Is(err, ErrUnknown) {
			t.Errorf("a key that nobody has gives %v", err)
		}

		// the copy is only a copy
		copies := c.Copy.Folder(id).Dir
		_ = c.Close()
		if err := os.RemoveAll(copies); err != nil {
			t.Fatal(err)
		}
		stranger := filepath.Join(filepath.Dir(copies), "20200101-000000-abc")
		if err := os.Mkdir(stranger, 0o700); err != nil {
			t.Fatal(err)
		}
		c = open()
		if got := content(t, c, id, "samples.jsonl"); got != want {
			t.Errorf("the new copy holds %q", got)
		}
		if got := content(t, c, id, "watch.json"); got != "{}" {
			t.Errorf("the replaced file is %q", got)
		}
		if _, err := os.Stat(stranger); err == nil {
			t.Error("a run that the database does not have is still shown")
		}
		if w := hello(t, c, key); w.Files["samples.jsonl"] != 14 || w.Files["watch.json"] != 0 {
			t.Errorf("after a restart it is welcomed with %+v", w)
		}
	})
}

// TestOneServeADatabase: a second one would not see what the first one acknowledges.
func TestOneServeADatabase(t *testing.T) {
	home := t.TempDir()
	address := testenv.Postgres(t).Address
	for _, at := range []string{"", address} {
		first, err := Open(home, at)
		if err != nil {
			t.Fatal(err)
		}
		if second, err := Open(home, at); err == nil || !strings.Contains(err.Error(), "another") {
			t.Errorf("a second server on %q: %v %v", at, second, err)
		}
		_ = first.Close()
		again, err := Open(home, at)
		if err != nil {
			t.Errorf("after the first one has gone: %v", err)
			continue
		}
		_ = again.Close()
	}
}

// TestPostgresGoesAway: requests fail with a reason while it is away, and go on when it is back.
func TestPostgresGoesAway(t *testing.T) {
	server := testenv.Postgres(t)
	c, err := Open(t.TempDir(), server.Address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	hello(t, c, key)
	piece := func(n int) relay.Frame {
		return relay.Frame{File: "output", At: int64(10 * n), Data: fmt.Appendf(nil, "%09d\n", n)}
	}
	add(t, c, piece(0))
	server.Stop()
	for range 2 {
		if _, err := c.Add(key, []relay.Frame{piece(1)}, time.Now()); !errors.Is(err, ErrAway) {
			t.Errorf("while it is away: %v", err)
		}
	}
	server.Start()
	add(t, c, piece(1), piece(2))
	if got := content(t, c, id, "output"); got != "000000000\n000000001\n000000002\n" {
		t.Errorf("the copy holds %q", got)
	}
}

// TestFullDisk: on a real disk without room nothing is acknowledged, and when there is room again
// the sender goes on where it was.
func TestFullDisk(t *testing.T) {
	home := t.TempDir()
	if err := syscall.Mount("tmpfs", home, "tmpfs", 0, "size=3m,mode=700"); err != nil {
		t.Skipf("needs a small disk: mounting a tmpfs failed: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(home, syscall.MNT_DETACH) })
	ballast := filepath.Join(home, "memroom-home") // counts as ours
	if err := os.WriteFile(ballast, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := Open(home, "")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	hello(t, c, key)
	random := make([]byte, 64<<10) // does not shrink
	for i := range random {
		random[i] = byte(i * i * 2654435761 >> 7)
	}
	kept := bytes.Buffer{}
	full := false
	for range 100 {
		frame := relay.Frame{File: "output", At: int64(kept.Len()), Data: random}
		if _, err = c.Add(key, []relay.Frame{frame}, time.Now()); err != nil {
			full = errors.Is(err, ErrFull)
			break
		}
		kept.Write(random)
		random[0]++
		if err := os.WriteFile(ballast, make([]byte, kept.Len()), 0o600); err != nil {
			_ = os.WriteFile(ballast, nil, 0o600) // the disk is as good as full
			fill(t, filepath.Join(home, "central.fill"))
		}
	}
	if !full {
		t.Fatalf("a full disk gives %v after %d bytes", err, kept.Len())
	}
	if err := c.db.(*sqliteDB).meaning(sqlite.ResultIOErrWrite.ToError()); !errors.Is(err, ErrFull) {
		t.Errorf("a write that fails where nothing fits: %v", err)
	}
	for _, name := range []string{ballast, filepath.Join(home, "central.fill")} {
		if err := os.Truncate(name, 0); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
	}
	add(t, c, relay.Frame{File: "output", At: int64(kept.Len()), Data: random})
	kept.Write(random)
	if got := content(t, c, id, "output"); got != kept.String() {
		t.Errorf("the copy holds %d bytes, want %d", len(got), kept.Len())
	}
	_ = c.Close()
	if err := os.RemoveAll(filepath.Join(home, "central")); err != nil {
		t.Fatal(err)
	}
	if c, err = Open(home, ""); err != nil {
		t.Fatal(err)
	}
	if got := content(t, c, id, "output"); got != kept.String() {
		t.Errorf("the database holds %d bytes, want %d", len(got), kept.Len())
	}
}

// TestDisksThatFail: SQLite reports many failures as an I/O error. A disk with room left is not
// called full, the error names what failed, and the sender may come again.
func TestDisksThatFail(t *testing.T) {
	path := filepath.Join(t.TempDir(), "central.sqlite")
	db, err := openSQLite(path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.close()
	for code, want := range map[sqlite.ResultCode]string{
		sqlite.ResultIOErrRead: "cannot be read (", sqlite.ResultIOErrShortRead: "cannot be read (",
		sqlite.ResultIOErrWrite: "cannot be written", sqlite.ResultIOErrFsync: "cannot be written",
		sqlite.ResultIOErrLock: "cannot be locked", sqlite.ResultIOErrNoMem: "no memory",
		sqlite.ResultIOErrMMap: "cannot be read or written (",
		sqlite.ResultIOErr:     "cannot be read or written (",
	} {
		err := db.meaning(code.ToError())
		if errors.Is(err, ErrFull) || !errors.Is(err, ErrAway) || !strings.Contains(err.Error(), want) ||
			!strings.Contains(err.Error(), path) {
			t.Errorf("%v: %v", code, err)
		}
	}
	left, err := filepath.Glob(filepath.Join(filepath.Dir(path), "central-room-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("%q is left on the disk (%v)", left, err)
	}
	for code, want := range map[sqlite.ResultCode]error{sqlite.ResultFull: ErrFull,
		sqlite.ResultBusy: ErrAway, sqlite.ResultLocked: ErrAway} {
		if err := db.meaning(code.ToError()); !errors.Is(err, want) {
			t.Errorf("%v: %v, want %v", code, err, want)
		}
	}
	if err := db.meaning(nil); err != nil {
		t.Errorf("nothing wrong: %v", err)
	}
	for _, said := range []error{sqlite.ResultCorrupt.ToError(), os.ErrPermission} {
		if err := db.meaning(said); err != said {
			t.Errorf("%v becomes %v", said, err)
		}
	}
}

// fill takes what is left of a disk.
func fill(t *testing.T, path string) {
	t.Helper()
	file, err := os.Create(path)
	if err != nil {
		return
	}
	defer file.Close()
	for {
		if _, err := file.Write(make([]byte, 4096)); err != nil {
			return
		}
	}
}

func TestBadAddressesOfDatabases(t *testing.T) {
	for _, address := range []string{"mysql://x", "postgres://me:secretword@bad host/%zz",
		"postgres://nobody@/x?host=/nonexistent"} {
		_, err := Open(t.TempDir(), address)
		if err == nil || strings.Contains(err.Error(), "secretword") {
			t.Errorf("%s: %v", address, err)
		}
	}
}
