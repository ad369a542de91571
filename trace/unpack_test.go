package trace

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"

	"memroom/event"
	"memroom/testenv"
)

// allocated returns the bytes that f allocates.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

func gzipped(data []byte) []byte {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	w.Write(data)
	w.Close()
	return b.Bytes()
}

func zstded(data []byte, options ...zstd.EOption) []byte {
	var b bytes.Buffer
	w, err := zstd.NewWriter(&b, options...)
	if err != nil {
		panic(err)
	}
	w.Write(data)
	w.Close()
	return b.Bytes()
}

func xzed(t testing.TB, c xz.WriterConfig, data []byte) []byte {
	c.DictCap = 64 << 10 // quick to make
	var b bytes.Buffer
	w, err := c.NewWriter(&b)
	if err != nil {
		t.Fatal(err)
	}
	w.Write(data)
	w.Close()
	return b.Bytes()
}

// withDictionary changes the dictionary size that an xz file's first block asks for.
func withDictionary(file []byte, code byte) []byte {
	out := bytes.Clone(file)
	size := 4 * (int(out[12]) + 1)
	header := out[12 : 12+size]
	at := bytes.Index(header, []byte{xzLZMA2, 1})
	header[at+2] = code
	binary.LittleEndian.PutUint32(header[size-4:], crc32.ChecksumIEEE(header[:size-4]))
	return out
}

func TestXZContainersAreRead(t *testing.T) {
	plain := bytes.Repeat(snapshotWith(newPickler(4, false), 40), 3)
	files := map[string][]byte{}
	for name, check := range map[string]byte{"crc32": xz.CRC32, "crc64": xz.CRC64,
		"sha256": xz.SHA256} {
		files[name] = xzed(t, xz.WriterConfig{CheckSum: check}, plain)
		files[name+" in blocks"] = xzed(t, xz.WriterConfig{CheckSum: check, BlockSize: 1000}, plain)
	}
	files["no checksum"] = xzed(t, xz.WriterConfig{NoCheckSum: true}, plain)
	third := len(plain) / 3
	files["streams with padding"] = bytes.Join([][]byte{xzed(t, xz.WriterConfig{}, plain[:third]),
		make([]byte, 8), xzed(t, xz.WriterConfig{}, plain[third:])}, nil)
	for name, file := range files {
		r, err := newXZReader(bytes.NewReader(file))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got, err := io.ReadAll(r)
		if err != nil || !bytes.Equal(got, plain) {
			t.Errorf("%s: %d of %d bytes, %v", name, len(got), len(plain), err)
		}
		for cut := 0; cut < len(file); cut += 1 + len(file)/200 {
			if name == "streams with padding" && cut%4 == 0 {
				continue // may end between the streams
			}
			if r, err := newXZReader(bytes.NewReader(file[:cut])); err == nil {
				if _, err := io.ReadAll(r); err == nil {
					t.Errorf("%s cut at %d of %d: not noticed", name, cut, len(file))
				}
			}
		}
		flipped := bytes.Clone(file)
		flipped[len(file)/2] ^= 4
		if r, err := newXZReader(bytes.NewReader(flipped)); err == nil {
			if got, err := io.ReadAll(r); err == nil && !bytes.Equal(got, plain) {
				t.Errorf("%s: a changed byte was not noticed", name)
			}
		}
	}
}

// TestXZOfTheRealProgram reads what xz itself writes, in threads (many blocks with sizes in their
// headers) and with every checksum.
func TestXZOfTheRealProgram(t *testing.T) {
	program, err := exec.LookPath("xz")
	if err != nil {
		testenv.Needs(t, "xz", "its files cannot be made")
	}
	path := filepath.Join(t.TempDir(), "plain")
	plain := bytes.Repeat(snapshotWith(newPickler(4, false), 3000), 4)
	if err := os.WriteFile(path, plain, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{}, {"-9e"}, {"-0"}, {"-T2", "--block-size=100KiB"},
		{"-C", "none"}, {"-C", "crc32"}, {"-C", "sha256"}} {
		packed, err := exec.Command(program, append(args, "-kc", path)...).Output()
		if err != nil {
			t.Fatal(args, err)
		}
		r, err := newXZReader(bytes.NewReader(packed))
		if err != nil {
			t.Fatal(args, err)
		}
		if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, plain) {
			t.Errorf("%v: %d of %d bytes, %v", args, len(got), len(plain), err)
		}
	}
}

// TestDamagedPackedFilesGiveAnError changes and cuts packed files everywhere, the headers most:
// each ends in a result or in an error of one line, in both readers.
func TestDamagedPackedFilesGiveAnError(t *testing.T) {
	plain := snapshotWith(newPickler(4, false), 5)
	for name, file := range map[string][]byte{"gzip": gzipped(plain), "zstd": zstded(plain),
		"xz": xzed(t, xz.WriterConfig{}, plain)} {
		try := func(what string, data []byte) {
			for reader, read := range map[string]func(io.Reader) error{
				"snapshot": func(r io.Reader) error { _, err := ReadSnapshot(r); return err },
				"sniff": func(r io.Reader) error {
					content, _, err := Limits{}.Sniff(r)
					if err == nil {
						_, err = io.Copy(io.Discard, content)
					}
					return err
				},
			} {
				if err := read(bytes.NewReader(data)); err != nil &&
					strings.Contains(err.Error(), "\n") {
					t.Errorf("%s, %s, %s: %q", name, what, reader, err)
				}
			}
		}
		for at := range file {
			try(fmt.Sprint("cut at ", at), file[:at])
			if at > 40 && at%7 != 0 && at < len(file)-20 {
				continue
			}
			for bit := range 8 {
				changed := bytes.Clone(file)
				changed[at] ^= 1 << bit
				try(fmt.Sprintf("bit %d of byte %d", bit, at), changed)
			}
		}
		if _, _, err := (Limits{}).Sniff(bytes.NewReader(file[:7])); err == nil && name != "zstd" {
			t.Errorf("%s: a header cut short is no error", name)
		}
	}
}

// TestHeadersDoNotDecideHowMuchMemoryIsTaken has headers that ask for far more than is inside.
func TestHeadersDoNotDecideHowMuchMemoryIsTaken(t *testing.T) {
	plain := snapshotWith(newPickler(4, false), 5)
	small := xzed(t, xz.WriterConfig{}, plain)
	window := func(log int) []byte { // a frame with a window of 2^log bytes and one raw block
		b := []byte{0x28, 0xb5, 0x2f, 0xfd, 0, byte(log-10) << 3}
		size := uint32(len(plain))<<3 | 1
		b = append(b, byte(size), byte(size>>8), byte(size>>16))
		return append(b, plain...)
	}
	for name, c := range map[string]struct {
		file []byte
		say  string // "": it is read
	}{
		"xz, 64 MiB":   {withDictionary(small, 28), ""},
		"xz, 96 MiB":   {withDictionary(small, 29), "dictionary of 96MiB"},
		"xz, 3 GiB":    {withDictionary(small, 39), "dictionary of 3GiB"},
		"xz, 4 GiB":    {withDictionary(small, 40), "dictionary of 4GiB"},
		"zstd, 64 MiB": {window(26), ""},
		// 128 MiB
		"zstd, 128 MiB": {window(27), "more than 64MiB of memory"},
		"zstd, 1 GiB":   {window(30), "more than 64MiB of memory"},
	} {
		var s *Snapshot
		var err error
		used := allocated(func() { s, err = ReadSnapshot(bytes.NewReader(c.file)) })
		switch {
		case c.say == "" && (err != nil || s.Truncated):
			t.Errorf("%s: %v", name, err)
		case c.say != "" && (err == nil || !strings.Contains(err.Error(), c.say)):
			t.Errorf("%s: %v; want it to say %q", name, err, c.say)
		}
		if used > 150<<20 {
			t.Errorf("%s: took %d MiB for %d bytes", name, used>>20, len(c.file))
		}
	}
}

// TestManyXZBlocksCostWhatTheyHold has a thousand blocks of a few bytes that each ask for the
// largest dictionary.
func TestManyXZBlocksCostWhatTheyHold(t *testing.T) {
	stream := withDictionary(xzed(t, xz.WriterConfig{}, []byte("abcdef")), 28)
	var err error
	used := allocated(func() {
		var r *xzReader
		if r, err = newXZReader(bytes.NewReader(bytes.Repeat(stream, 1000))); err == nil {
			_, err = io.Copy(io.Discard, r)
		}
	})
	if err == nil || !strings.Contains(err.Error(), "large dictionaries") || used > 400<<20 {
		t.Errorf("%v, %d MiB", err, used>>20)
	}
}

func TestUnpackingStopsAtTheLimit(t *testing.T) {
	bomb := func(size int) []byte {
		data, _ := io.ReadAll(zipped(size))
		return data
	}
	for _, c := range []struct {
		limits Limits
		size   int
		large  bool
	}{
		{Limits{}, 63 << 20, false},
		{Limits{}, 65 << 20, true},
		{Limits{Unpacked: event.MiB}, 1<<20 - 2, false}, // with the two bytes in front
		{Limits{Unpacked: event.MiB}, 1 << 20, true},
		{Limits{Unpacked: 128 * event.MiB}, 100 << 20, false},
	} {
		content, _, err := c.limits.Sniff(bytes.NewReader(bomb(c.size)))
		if err != nil {
			t.Fatal(err)
		}
		n, err := io.Copy(io.Discard, content)
		var large *TooLarge
		if errors.As(err, &large) != c.large || !c.large && n != int64(c.size)+2 {
			t.Errorf("%+v, %d bytes: read %d, %v", c.limits, c.size, n, err)
		}
		if c.large && !strings.Contains(err.Error(), "--max-unpacked") {
			t.Errorf("%v does not say what to do", err)
		}
	}
}

// TestTightlyPackedLargeFilesAreRead has more than the floor in a file that is packed as tightly as
// any real one.
func TestTightlyPackedLargeFilesAreRead(t *testing.T) {
	noise := make([]byte, 3<<20)
	for i, x := 0, uint32(1); i < len(noise); i++ {
		x = x*1664525 + 1013904223
		noise[i] = byte(x >> 24)
	}
	copy(noise, "\x80\x04")
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	for i := 0; i < len(noise); i += 64 << 10 { // 40 bytes of zeroes for each of noise
		w.Write(noise[i : i+64<<10])
		w.Write(make([]byte, 40*64<<10))
	}
	w.Close()
	plain, err := Limits{}.unpack(&b)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := io.Copy(io.Discard, plain); err != nil || n != 41*3<<20 {
		t.Errorf("%d bytes, %v", n, err)
	}
}

// TestSmallFilesStaySmall has pickles whose naive reading takes the square of their size in memory
// or time.
func TestSmallFilesStaySmall(t *testing.T) {
	for name, c := range map[string]struct {
		file   []byte
		say    string
		budget uint64
	}{
		"one list of blocks in all segments": {sharedBlocks(4000, 4000), "blocks, segments",
			1 << 30},
		"a stack written frame by frame": {longStack(20_000, 1), "", 200 << 20},
		"long stacks written again":      {longStack(20_000, 400), "many parts", 300 << 20},
		"two events named in turn":       {repeatedEvents(2 << 20), "named again", 200 << 20},
		"a device for each segment":      {manyDevices(5000), "", 64 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			var s *Snapshot
			var err error
			used := allocated(func() { s, err = ReadSnapshot(bytes.NewReader(c.file)) })
			said := fmt.Sprint(err)
			if s != nil {
				said += s.Reason
			}
			if !strings.Contains(said, c.say) {
				t.Errorf("%d bytes: %v; want %q", len(c.file), said, c.say)
			}
			if used > c.budget {
				t.Errorf("%d bytes took %d MiB", len(c.file), used>>20)
			}
			if s != nil && len(s.Recordings) > maxRecorders {
				t.Errorf("%d devices", len(s.Recordings))
			}
		})
	}
}

// sharedBlocks names one list of blocks in every segment.
func sharedBlocks(blocks, segments int) []byte {
	p := newPickler(4, false)
	p.dict(pair{"segments", func() {
		list := -1
		p.list(segments, func(i int) {
			p.dict(p.str("segment_type", "small"), p.num("address", int64(i)<<21),
				pair{"blocks", func() {
					if list >= 0 {
						p.get(list)
						return
					}
					list = p.next
					p.list(blocks, func(int) {
						p.dict(p.str("state", "inactive"), p.num("size", 512))
					})
				}})
		})
	}})
	return p.stop()
}

// longStack appends frames to a list one by one, again and again.
func longStack(frames, times int) []byte {
	p := newPickler(4, false)
	slot := p.next
	p.dict(p.str("filename", "a"), p.str("name", "b"), p.num("line", 1))
	p.op(opEmptyList)
	for range times {
		p.op(opEmptyList)
		for range frames {
			p.get(slot)
			p.op(opAppend)
		}
		p.op(opAppend)
	}
	return p.stop()
}

func repeatedEvents(times int) []byte {
	p := newPickler(4, false)
	p.dict(pair{"device_traces", func() {
		p.list(1, func(int) {
			p.op(opEmptyList, opMark)
			var slots [2]int
			for i := range slots {
				slots[i] = p.next
				p.dict(p.str("action", "alloc"), p.num("addr", int64(i)<<60|7),
					p.num("size", int64(i)<<60|1), p.num("time_us", int64(i)<<60))
			}
			for i := range times {
				p.get(slots[i&1])
			}
			p.op(opAppends)
		})
	}})
	return p.stop()
}

func manyDevices(n int) []byte {
	p := newPickler(4, false)
	p.dict(pair{"segments", func() {
		p.list(n, func(i int) {
			p.dict(p.str("segment_type", "small"), p.num("device", int64(i)-100))
		})
	}})
	return p.stop()
}

func TestSlotsOfBothLengths(t *testing.T) {
	for op, want := range map[byte][2]int{opBinGet: {0x11, 2}, opLongBinGet: {0x44332211, 5}} {
		slot, length := slotAt([]byte{op, 0x11, 0x22, 0x33, 0x44, 0x55})
		if slot != want[0] || length != want[1] {
			t.Errorf("opcode %q names slot %#x in %d bytes", op, slot, length)
		}
	}
}

func TestBFCDumpStopsAtTheLimit(t *testing.T) {
	dump, err := os.ReadFile("testdata/bfc-exhaust.dump")
	if err != nil {
		t.Fatal(err)
	}
	exactly := Limits{Unpacked: event.Bytes(len(dump))}
	if _, err := exactly.ReadBFCDump(bytes.NewReader(dump)); err != nil {
		t.Error(err)
	}
	exactly.Unpacked--
	if _, err := exactly.ReadBFCDump(bytes.NewReader(dump)); err == nil ||
		!strings.Contains(err.Error(), "--max-unpacked") {
		t.Errorf("%v", err)
	}
}

func TestPackedTwiceIsSaid(t *testing.T) {
	plain := snapshotWith(newPickler(4, false), 5)
	for name, file := range map[string][]byte{"gzip": gzipped(gzipped(plain)),
		"zstd": gzipped(zstded(plain)), "xz": zstded(xzed(t, xz.WriterConfig{}, plain))} {
		_, err := ReadSnapshot(bytes.NewReader(file))
		_, _, sniffed := Limits{}.Sniff(bytes.NewReader(file))
		if want := "packed twice: " + name; !strings.Contains(fmt.Sprint(err), want) ||
			!strings.Contains(fmt.Sprint(sniffed), want) {
			t.Errorf("%v; %v; want %q", err, sniffed, want)
		}
	}
	if _, err := ReadSnapshot(bytes.NewReader(gzipped([]byte("{}")))); err == nil ||
		!strings.Contains(err.Error(), "JSON") {
		t.Errorf("packed JSON: %v", err)
	}
}
