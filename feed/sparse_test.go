package feed

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"memroom/feed/format"
	"memroom/feed/table"
)

// lines makes rows of text of different lengths, with separators that make rows hard to find.
func lines(rows int, row func(i int) string, end string) string {
	var b strings.Builder
	for i := range rows {
		b.WriteString(row(i))
		if i < rows-1 {
			b.WriteString(end)
		}
		if i%17 == 3 {
			b.WriteString("\n") // a blank line is no row
		}
	}
	return b.String()
}

// TestFirstBatchAlone compares batches that are read before their window is decoded with the same
// ones out of the whole window.
func TestFirstBatchAlone(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	quoted := func(i int) string {
		more := strings.Repeat("\nmore", i%3)
		return fmt.Sprintf("%d,\"text, \"\"%d\"\"%s\",%g", i, i, more, float64(i)/7)
	}
	plain := func(i int) string { return fmt.Sprintf("%d,text %d,%g", i, i*i, float64(i)/7) }
	object := func(i int) string {
		return fmt.Sprintf(`{"a": %d, "b": "é\n %d", "c": [%d, 2]}`, i, i, i%5)
	}
	for name, text := range map[string]string{
		"plain.csv":    "a,b,c\n" + lines(60000, plain, "\n"),
		"windows.csv":  "a,b,c\r\n" + lines(60000, plain, "\r\n"),
		"quoted.csv":   "a,b,c\n" + lines(60000, quoted, "\n"),
		"object.jsonl": lines(60000, object, "\n"),
		"lines.txt":    lines(60000, object, "\n"), // no way to some rows alone
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), name)
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			d, err := Open([]string{path}, nil, format.Options{}, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			if d.Rows != 60000 || len(d.blocks) < 6 {
				t.Fatalf("%d rows in %d blocks", d.Rows, len(d.blocks))
			}
			spec := Spec{Shuffle: true, Seed: 4, Batch: 250, Window: d.DecodedBytes() / 3}
			whole := NewCursor(d, NewPool(d, 1<<30, 2), spec, 2)
			whole.begun = true
			for range 12 {
				k := rand.Int64N(whole.Batches() - 1)
				alone := NewCursor(d, NewPool(d, 1<<30, 2), spec, 2)
				fill(t, alone, k)
				if sparse := name != "lines.txt"; !atEnd(alone, k) && sparse != (len(alone.early) > 0) {
					t.Fatalf("%d batches were read with the first", len(alone.early))
				}
				alone = NewCursor(d, NewPool(d, 1<<30, 2), spec, 2)
				for b := k; b < min(k+6, whole.Batches()-1); b++ {
					if got, want := fill(t, alone, b), fill(t, whole, b); !bytes.Equal(got, want) {
						t.Fatalf("batch %d differs, begun at %d", b, k)
					}
				}
			}
		})
	}
}

// atEnd reports whether no whole batch follows k in its window.
func atEnd(c *Cursor, k int64) bool {
	return c.epoch.Find(k*250) != c.epoch.Find((k+2)*250-1)
}

// TestFirstBatchTellsWhatIsWrong: a bad row is named as it is when the window is read whole.
func TestFirstBatchTellsWhatIsWrong(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	path := filepath.Join(t.TempDir(), "bad.csv")
	rows := lines(3000, func(i int) string {
		if i == 1234 {
			return "1234,oops,too,many"
		}
		return fmt.Sprintf("%d,%d", i, i)
	}, "\n")
	if err := os.WriteFile(path, []byte("a,b\n"+rows), 0o600); err != nil {
		t.Fatal(err)
	}
	d, err := Open([]string{path}, nil, format.Options{}, nil)
	if err == nil {
		defer d.Close()
		c := NewCursor(d, NewPool(d, 1<<30, 2), Spec{Shuffle: true, Batch: 100, Window: 1 << 20}, 0)
		for k := int64(0); k < c.Batches() && err == nil; k++ {
			err = c.Fill(t.Context(), k, k+1, func(_ int, _ []table.Span, size int64) ([]byte, error) {
				return make([]byte, size), nil
			})
		}
	}
	if err == nil || !strings.Contains(err.Error(), "row 1234") {
		t.Fatalf("%v", err)
	}
}

func fill(t *testing.T, c *Cursor, k int64) []byte {
	t.Helper()
	var out []byte
	err := c.Fill(context.Background(), k, k+1,
		func(_ int, _ []table.Span, size int64) ([]byte, error) {
			out = make([]byte, size)
			return out, nil
		})
	if err != nil {
		t.Fatal(err)
	}
	return out
}
