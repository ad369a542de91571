package format

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"memroom/feed/source"
)

// TestImagesLieInMemoryOnce decodes the blocks of a folder: what is read is the column, not copied
// into it.
func TestImagesLieInMemoryOnce(t *testing.T) {
	folder, size := t.TempDir(), 50_000
	for i := range 40 {
		content := bytes.Repeat([]byte{byte(i)}, size)
		if err := os.WriteFile(filepath.Join(folder, fmt.Sprintf("%02d.jpg", i)), content,
			0o600); err != nil {
			t.Fatal(err)
		}
	}
	images, err := source.OpenImages(folder)
	if err != nil {
		t.Fatal(err)
	}
	ix, err := scanImages(images, Options{})
	if err != nil {
		t.Fatal(err)
	}
	decoder, _ := openImages(images, ix, Options{})
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	row := 0
	for _, b := range ix.Blocks {
		rows, err := decoder.Decode(b, Columns(ix.Fields))
		if err != nil {
			t.Fatal(err)
		}
		start := int64(0)
		for i := range rows.Count {
			end := rows.Data[0].Ends[i]
			if got := rows.Data[0].Bytes[start:end]; len(got) != size || got[0] != byte(row) {
				t.Fatalf("image %d has %d bytes of %d", row, len(got), got[0])
			}
			start, row = end, row+1
		}
	}
	runtime.ReadMemStats(&after)
	if took := int(after.TotalAlloc - before.TotalAlloc); row != 40 || took > 40*size*5/4 {
		t.Errorf("%d images of %d bytes took %d bytes", row, size, took)
	}
}
