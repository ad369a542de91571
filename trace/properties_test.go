package trace

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"memroom/event"
)

// TestVersionsInWords: a release, a range, an open end, or nothing known; replays use the newest
// that is possible.
func TestVersionsInWords(t *testing.T) {
	for v, want := range map[Version][2]string{
		{}:                         {"unknown", ""},
		{From: "2.13"}:             {"2.13 or newer", "2.13"},
		{To: "1.13"}:               {"1.13 or older", "1.13"},
		{From: "2.1", To: "2.1"}:   {"2.1", "2.1"},
		{From: "2.10", To: "2.11"}: {"2.10 to 2.11", "2.11"},
	} {
		if got := [2]string{v.String(), v.Use()}; got != want {
			t.Errorf("%+v: %q, want %q", v, got, want)
		}
	}
}

// TestVersionsByTheirKeys: each key was new in a release, and a newer one outweighs all older ones.
func TestVersionsByTheirKeys(t *testing.T) {
	steps := []struct {
		add  func(*keysSeen)
		want Version
	}{
		{func(*keysSeen) {}, Version{"", "1.13"}},
		{func(k *keysSeen) { k.requestedSize = true }, Version{"2.0", "2.0"}},
		{func(k *keysSeen) { k.isExpandable = true }, Version{"2.1", "2.2"}},
		{func(k *keysSeen) { k.timeUS = true }, Version{"2.2", "2.2"}},
		{func(k *keysSeen) { k.settings = true }, Version{"2.3", "2.4"}},
		{func(k *keysSeen) { k.annotations = true }, Version{"2.5", "2.8"}},
		{func(k *keysSeen) { k.compileContext = true }, Version{"2.8", "2.8"}},
		{func(k *keysSeen) { k.graphReuse = true }, Version{"2.9", "2.9"}},
		{func(k *keysSeen) { k.userMetadata = true }, Version{"2.10", "2.11"}},
		{func(k *keysSeen) { k.forwardFrames = true }, Version{"2.11", "2.11"}},
		{func(k *keysSeen) { k.poolID = true }, Version{"2.12", "2.12"}},
		{func(k *keysSeen) { k.maxRound = true }, Version{From: "2.13"}},
	}
	var seen keysSeen
	for i, s := range steps {
		s.add(&seen)
		if got := inferVersion(&seen); got != s.want {
			t.Errorf("with %d keys: %s, want %s", i, got, s.want)
		}
	}
	for _, old := range []keysSeen{{history: true}, {traces: true}} {
		if got := inferVersion(&old); got != (Version{"2.0", "2.0"}) {
			t.Errorf("%+v: %s", old, got)
		}
	}
	if got := inferVersion(&keysSeen{graphReuse: true}); got != (Version{"2.9", "2.11"}) {
		t.Errorf("a snapshot of 2.9 or newer without events: %s", got)
	}
}

// brokenReader returns some bytes, then fails.
type brokenReader struct {
	text io.Reader
	err  error
}

func (b *brokenReader) Read(p []byte) (int, error) {
	n, err := b.text.Read(p)
	if err == io.EOF {
		err = b.err
	}
	return n, err
}

// TestFailingSourcesAreErrors: a file that cannot be read is no empty one.
func TestFailingSourcesAreErrors(t *testing.T) {
	broken := errors.New("the disk is broken")
	for _, text := range []string{"", "\x80\x02", "\x1f\x8b\x08", "CUDA out of memory\n"} {
		if _, err := ReadLog(&brokenReader{strings.NewReader(text), broken}); !errors.Is(err, broken) {
			t.Errorf("a log after %q: %v", text, err)
		}
		if _, err := (Limits{}).unpack(&brokenReader{strings.NewReader(text),
			broken}); !errors.Is(err, broken) && text == "" {
			t.Errorf("unpacking after %q: %v", text, err)
		}
	}
}

// TestFiguresOfCrashesAreFigures: for every log, certainty is between 0 and 1, sizes are not
// negative, and the kind and place of a crash are named. Ray's store at capacity counts only if a
// check failed.
func TestFiguresOfCrashesAreFigures(t *testing.T) {
	texts := map[string][]byte{
		"ray":                          []byte("(raylet) plasma store at capacity\n(raylet) Check failed: entry\n"),
		"ray at the end of a sentence": []byte("E1 plasma store at capacity, spilling\nall is well\n"),
	}
	files, err := filepath.Glob(filepath.Join("..", "explain", "testdata", "logs", "*.txt"))
	if err != nil || len(files) < 20 {
		t.Fatalf("%d logs, %v", len(files), err)
	}
	for _, path := range files {
		if texts[path], err = os.ReadFile(path); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range texts {
		log, err := ReadLog(bytes.NewReader(text))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, c := range log.Crashes {
			if c.Sure <= 0 || c.Sure > 1 || c.Kind == "" || c.Where == "" {
				t.Errorf("%s: %+v", name, c)
			}
			for _, size := range []*event.Bytes{c.Requested} {
				if size != nil && *size < 0 {
					t.Errorf("%s: a size of %d", name, *size)
				}
			}
		}
		if want := map[string]int{"ray": 1}[name]; !strings.Contains(name, "/") &&
			len(log.Crashes) != want {
			t.Errorf("%s: %d crashes, want %d", name, len(log.Crashes), want)
		}
	}
}
