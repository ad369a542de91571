package format

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/compress"

	"memroom/feed/source"
)

// damageEnv makes this test's binary read damaged files of one name, from a number on.
const damageEnv = "MEMROOM_TEST_DAMAGE"

// mostOfDamage is how much reading a damaged file of some kilobytes may allocate, all in all,
// and addressSpace (KiB) what ends a process that believes a length.
const (
	mostOfDamage = 512 << 20
	addressSpace = 16 << 20
)

// damageable returns small files in which every byte is changed.
func damageable(t *testing.T) map[string][]byte {
	files := manyKinds(t)
	for _, text := range []string{"a.csv", "a.jsonl", "a.txt", "a.tar"} {
		delete(files, text)
	}
	kinds := map[string]nestedColumn{
		"text":  {kind: arrow.BinaryTypes.String, rows: []string{`"abc"`, "null", `""`}},
		"large": {kind: arrow.BinaryTypes.LargeString, rows: []string{`"abc"`, "null"}},
		"view":  {kind: arrow.BinaryTypes.StringView, rows: []string{`"abcdefghijklmnop"`, `"a"`}},
		"lists": {kind: arrow.ListOf(arrow.PrimitiveTypes.Float64), rows: []string{"[1, 2]", "[]"}},
		"fixed": {kind: arrow.FixedSizeListOf(2, arrow.PrimitiveTypes.Int16), rows: []string{"[1, 2]"}},
		"struct": {kind: arrow.StructOf(arrow.Field{Name: "x", Type: arrow.PrimitiveTypes.Int8}),
			rows: []string{`{"x": 1}`}},
		"null": {kind: arrow.Null, rows: []string{"null"}},
		"bool": {kind: arrow.FixedWidthTypes.Boolean, rows: []string{"true", "false"}},
		"dictionary": {kind: &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int8,
			ValueType: arrow.BinaryTypes.String}, rows: []string{`"a"`, `"b"`}},
	}
	for name, c := range kinds {
		record := nestedRecord(t, c, 24)
		for ending, options := range map[string][]ipc.Option{"plain": nil, "lz4": {ipc.WithLZ4()},
			"zstd": {ipc.WithZstd()}} {
			var out bytes.Buffer
			w := ipc.NewWriter(&out, append(options, ipc.WithSchema(record.Schema()))...)
			if err := errors.Join(w.Write(record), w.Close()); err != nil {
				t.Fatal(name, err)
			}
			files[name+"-"+ending+".arrow"] = out.Bytes()
		}
	}
	for _, name := range []string{"i64", "text"} {
		if c, ok := leafColumns()[name]; ok {
			for _, codec := range []compress.Compression{compress.Codecs.Snappy,
				compress.Codecs.Zstd} {
				files[fmt.Sprintf("%s-%s.parquet", name, codec)] = writeParquet(t, c, 300, 120, true,
					[]parquet.WriterProperty{parquet.WithCompression(codec)})
			}
		}
	}
	return files
}

// damages calls try for a file with one byte changed: every third byte, in turn in another way; in
// the long form all bytes in all ways.
func damages(content []byte, try func(number int, damaged []byte)) {
	ways := []func(byte) byte{func(b byte) byte { return b ^ 0x80 },
		func(b byte) byte { return b ^ 0x01 }, func(byte) byte { return 0xff }}
	for i := range content {
		for k, way := range ways {
			if os.Getenv("MEMROOM_ATTACK") != "long" && (i%3 != 0 || i/3%len(ways) != k) {
				continue
			}
			if changed := way(content[i]); changed != content[i] {
				damaged := slices.Clone(content)
				damaged[i] = changed
				try(i*len(ways)+k, damaged)
			}
		}
	}
}

// TestEveryByteMayBeWrong: one byte of a binary file is changed. Whatever it is, the file is read
// or refused with an error that names it: no length in it is believed before it is compared with
// what is there. The reading is done in another process, because Go cannot go on without memory.
func TestEveryByteMayBeWrong(t *testing.T) {
	files := damageable(t)
	if name := os.Getenv(damageEnv); name != "" {
		readDamaged(t, name, files[name])
		return
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			script := fmt.Sprintf("ulimit -v %d; exec \"$@\"", addressSpace)
			c := exec.Command("sh", "-c", script, "sh", os.Args[0], "-test.timeout=120s", "-test.run",
				"^TestEveryByteMayBeWrong$")
			c.Env = append(os.Environ(), damageEnv+"="+name, "GOMAXPROCS=1")
			if out, err := c.CombinedOutput(); err != nil {
				text := string(out)
				if len(text) > 3000 {
					text = text[:1500] + "\n...\n" + text[len(text)-1500:]
				}
				t.Errorf("%v\n%s", err, text)
			}
		})
	}
}

func readDamaged(t *testing.T, name string, content []byte) {
	folder := t.TempDir()
	path := filepath.Join(folder, name)
	var before, after runtime.MemStats
	damages(content, func(number int, damaged []byte) {
		if err := os.WriteFile(path, damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(os.Stderr, "\r%d", number) // the last one that is seen is the one that hurt
		runtime.ReadMemStats(&before)
		f, err := source.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		_, _, err = readAll(f, Options{})
		runtime.ReadMemStats(&after)
		if took := after.TotalAlloc - before.TotalAlloc; took > mostOfDamage {
			t.Errorf("\n%s, change %d: reading it took %d MiB", name, number, took>>20)
		}
		if err != nil && !strings.Contains(err.Error(), name) {
			t.Errorf("\n%s, change %d: the error does not name the file: %v", name, number, err)
		}
		for _, word := range []string{"runtime error", "goroutine", "nil pointer"} {
			if err != nil && strings.Contains(err.Error(), word) {
				t.Errorf("\n%s, change %d: %v", name, number, err)
			}
		}
	})
}
