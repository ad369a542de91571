package attack

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"io"
	"math/rand/v2"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"

	"memroom/testenv"
)

// seeded returns the numbers of one kind of attack: the same in every run.
func seeded(kind string) *rand.Rand {
	var seed uint64
	for _, c := range kind {
		seed = seed*31 + uint64(c)
	}
	return rand.New(rand.NewPCG(seed, 12))
}

// damage changes a file in one of the ways in which files get damaged, or are made to do damage.
func damage(r *rand.Rand, data []byte) []byte {
	if len(data) == 0 {
		return data
	}
	out := bytes.Clone(data)
	at := r.IntN(len(out))
	switch r.IntN(9) {
	case 0, 1: // cut off
		return out[:at]
	case 2, 3: // bits
		for range 1 + r.IntN(8) {
			out[r.IntN(len(out))] ^= 1 << r.IntN(8)
		}
	case 4: // a run of one byte
		fill := byte(r.Uint32())
		for i := at; i < min(len(out), at+1+r.IntN(64)); i++ {
			out[i] = fill
		}
	case 5: // numbers at the edges
		edges := []uint64{0, 1, 1<<31 - 1, 1 << 31, 1<<63 - 1, 1 << 63, 1<<64 - 1}
		number := binary.LittleEndian.AppendUint64(nil, edges[r.IntN(len(edges))])
		copy(out[at:], number)
	case 6: // a piece twice, or elsewhere
		from := r.IntN(len(out))
		piece := out[from:min(len(out), from+1+r.IntN(300))]
		return append(append(bytes.Clone(out[:at]), piece...), out[at:]...)
	case 7: // a piece missing
		return append(out[:at], out[min(len(out), at+1+r.IntN(100)):]...)
	case 8: // another number in a text
		if found := digits.FindAllIndex(out, 1000); len(found) > 0 {
			edges := []string{"0", "-1", "1e308", "9223372036854775807", "18446744073709551616",
				"0.5", "NaN", "null", "[]", `"x"`, strings.Repeat("9", 400)}
			where := found[r.IntN(len(found))]
			return bytes.Join([][]byte{out[:where[0]], []byte(edges[r.IntN(len(edges))]),
				out[where[1]:]}, nil)
		}
	}
	return out
}

var digits = regexp.MustCompile(`[0-9]+`)

func gz(data []byte) []byte  { return gzAll(bytes.NewReader(data)) }
func zst(data []byte) []byte { return zstAll(bytes.NewReader(data)) }

func gzAll(r io.Reader) []byte {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	io.Copy(w, r)
	w.Close()
	return b.Bytes()
}

func zstAll(r io.Reader) []byte {
	var b bytes.Buffer
	w, err := zstd.NewWriter(&b, zstd.WithEncoderConcurrency(1))
	if err != nil {
		panic(err)
	}
	io.Copy(w, r)
	w.Close()
	return b.Bytes()
}

// again returns a beginning and then the same bytes many times.
func again(begin string, data []byte, times int) io.Reader {
	all := []io.Reader{strings.NewReader(begin)}
	for range times {
		all = append(all, bytes.NewReader(data))
	}
	return io.MultiReader(all...)
}

func xzOf(data []byte) []byte {
	var b bytes.Buffer
	w, err := xz.WriterConfig{DictCap: 1 << 16}.NewWriter(&b)
	if err != nil {
		panic(err)
	}
	w.Write(data)
	w.Close()
	return b.Bytes()
}

// sample reads a file of the tree.
func sample(t testing.TB, path ...string) []byte {
	t.Helper()
	data := testenv.Read(t, filepath.Join(append([]string{testenv.Root(t)}, path...)...))
	return data
}

func gunzip(t testing.TB, data []byte) []byte {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	plain, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return plain
}
