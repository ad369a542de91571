package cli

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"memroom/testenv"
	"memroom/trace"
)

// memroom runs one command line.
func memroom(args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = Main(context.Background(), args, Streams{In: strings.NewReader(""), Out: &out,
		Err: &errs})
	return code, out.String(), errs.String()
}

// TestHelpStatesTheBounds compares what --help promises with what the readers do.
func TestHelpStatesTheBounds(t *testing.T) {
	want := fmt.Sprintf("%d MiB, or %d times the packed size", trace.UnpackedAtLeast>>20,
		trace.UnpackedRatio)
	for _, command := range []string{"snapshot", "replay", "explain"} {
		_, out, _ := memroom(command, "--help")
		if text := strings.Join(strings.Fields(out), " "); !strings.Contains(text, want) ||
			!strings.Contains(text, "--max-unpacked") {
			t.Errorf("%s --help does not say %q", command, want)
		}
	}
}

// TestBombsAreStoppedAndTheFlagRaisesTheLimit has a log that unpacks to 80 MiB of blanks and then a
// message.
func TestBombsAreStoppedAndTheFlagRaisesTheLimit(t *testing.T) {
	path := filepath.Join(t.TempDir(), "train.log.gz")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	w := gzip.NewWriter(f)
	line := bytes.Repeat([]byte("                               \n"), 1<<15)
	for range 80 {
		w.Write(line)
	}
	io.WriteString(w, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. "+
		"GPU 0 has a total capacity of 23.65 GiB of which 1.02 GiB is free.\n")
	if err := firstError(w.Close(), f.Close()); err != nil {
		t.Fatal(err)
	}
	_, out, errs := memroom("explain", path)
	if !strings.Contains(out+errs, "--max-unpacked") {
		t.Errorf("nothing says that the limit was met: %s %s", out, errs)
	}
	code, out, errs := memroom("explain", path, "--max-unpacked", "200MiB")
	if code != exitOK || !strings.Contains(out, "2 GiB") && !strings.Contains(out, "2GiB") {
		t.Errorf("code %d: %s %s", code, out, errs)
	}
}

// TestDamagedHeadersAreAnError has files that say they are packed and are not.
func TestDamagedHeadersAreAnError(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{"a.gz": "\x1f\x8bxxxxxxxx", "b.gz": "\x1f\x8b",
		"c.xz": "\xfd7zXZ\x00garbage garbage", "d.xz": "\xfd7zXZ\x00",
		"e.zst": "\x28\xb5\x2f\xfd\xff\xff\xff\xff\xff"} {
		path := filepath.Join(dir, name)
		testenv.Write(t, path, []byte(content))
		for _, command := range []string{"explain", "snapshot", "replay"} {
			code, out, errs := memroom(command, path)
			if code != exitUsage || out != "" || !strings.Contains(errs, path) ||
				strings.Count(errs, "\n") != 1 {
				t.Errorf("%s %s: code %d, %q %q", command, name, code, out, errs)
			}
		}
	}
}

// TestRecordsOfCardsAreBounded has a record that is no record.
func TestRecordsOfCardsAreBounded(t *testing.T) {
	home := t.TempDir()
	t.Setenv("MEMROOM_HOME", home)
	path := filepath.Join(home, "cards.json")
	testenv.Write(t, path, nil)
	if err := os.Truncate(path, mostCalibrations+1); err != nil {
		t.Fatal(err)
	}
	if _, err := calibrations(); err == nil || !strings.Contains(err.Error(), "at most 64MiB") {
		t.Errorf("%v", err)
	}
}
