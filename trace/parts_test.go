package trace

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"io"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/ulikunitz/xz"

	"memroom/event"
)

// TestFieldsOfMessages: the four kinds of fields that protocol buffers have, and each cut short by
// a byte.
func TestFieldsOfMessages(t *testing.T) {
	long := append([]byte{0x12, 3}, "abc"...)
	for name, c := range map[string]struct {
		data []byte
		want protoField
	}{
		"a number": {[]byte{0x08, 0x96, 0x01}, protoField{number: 1, value: 150}},
		"64 bits": {[]byte{0x11, 1, 2, 0, 0, 0, 0, 0, 0x80},
			protoField{number: 2, value: 1<<63 + 513}},
		"text":       {long, protoField{number: 2, bytes: []byte("abc")}},
		"empty text": {[]byte{0x12, 0}, protoField{number: 2, bytes: []byte{}}},
		"32 bits":    {[]byte{0x1d, 4, 3, 2, 1}, protoField{number: 3, value: 0x01020304}},
		"a large number": {[]byte{0xf8, 0xff, 0xff, 0xff, 0x0f, 7},
			protoField{number: 1<<29 - 1, value: 7}},
		"the largest one": {[]byte{0x80, 0x80, 0x80, 0x80, 0x10, 7},
			protoField{number: 1 << 29, value: 7}},
	} {
		got, n := parseField(append(slices.Clone(c.data), 0x08, 1)) // another one follows
		if n != len(c.data) || got.number != c.want.number || got.value != c.want.value ||
			!bytes.Equal(got.bytes, c.want.bytes) {
			t.Errorf("%s: %+v of %d bytes", name, got, n)
		}
		for cut := range c.data {
			if got, n := parseField(c.data[:cut]); n != 0 {
				t.Errorf("%s, cut to %d bytes: %+v", name, cut, got)
			}
		}
	}
	for name, data := range map[string][]byte{"number 0": {0x00, 1}, "a group": {0x0b},
		"its end": {0x0c}, "kind 6": {0x0e}, "kind 7": {0x0f},
		"beyond all numbers":    {0x88, 0x80, 0x80, 0x80, 0x10, 7},
		"a text beyond the end": {0x12, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f}} {
		if f, n := parseField(data); n != 0 {
			t.Errorf("%s: %+v", name, f)
		}
	}
}

// failing is a source that fails after some bytes.
type failing struct{ left io.Reader }

func (b failing) Read(into []byte) (int, error) {
	if n, _ := b.left.Read(into); n > 0 {
		return n, nil
	}
	return 0, io.ErrClosedPipe
}

// TestDumpsThatCannotBeRead: the source's own error is given.
func TestDumpsThatCannotBeRead(t *testing.T) {
	if d, err := ReadBFCDump(failing{strings.NewReader("\x0a\x01x")}); err != io.ErrClosedPipe {
		t.Errorf("%+v %v", d, err)
	}
	// sums of what the chunks say
	d := BFCDump{Chunks: []BFCDumpChunk{{Size: 5, InUse: true}, {Size: 3}, {Size: 4}, {Size: 2}}}
	if pool, free, largest := d.Pool(); pool != 14 || free != 9 || largest != 4 {
		t.Errorf("%d %d %d", pool, free, largest)
	}
}

// blockHeader puts another header in front of an xz file's first block.
func blockHeader(file []byte, flags byte, fields ...byte) []byte {
	old := 4 * (int(file[12]) + 1)
	header := append([]byte{0, flags}, fields...)
	for (len(header)+4)%4 != 0 {
		header = append(header, 0)
	}
	header[0] = byte((len(header)+4)/4 - 1)
	header = binary.LittleEndian.AppendUint32(header, crc32.ChecksumIEEE(header))
	return slices.Concat(file[:12], header, file[12+old:])
}

// TestXZHeaders: the sizes, filters and dictionaries in a block's header are checked against the
// block's contents.
func TestXZHeaders(t *testing.T) {
	plain := bytes.Repeat([]byte("memory "), 20)
	file := xzed(t, xz.WriterConfig{CheckSum: xz.CRC32}, plain)
	size := func(n uint64) []byte { return binary.AppendUvarint(nil, n) }
	lzma2 := []byte{xzLZMA2, 1, 8}
	n := uint64(len(plain))
	for name, c := range map[string]struct {
		flags  byte
		fields []byte
		say    string // the error, empty: none
	}{
		"no sizes":             {0, lzma2, ""},
		"the unpacked size":    {0x80, slices.Concat(size(n), lzma2), ""},
		"both sizes":           {0xc0, slices.Concat(size(77), size(n), lzma2), ""},
		"the packed size":      {0x40, slices.Concat(size(77), lzma2), ""},
		"a byte more":          {0x80, slices.Concat(size(n+1), lzma2), "shorter than its header"},
		"a byte less":          {0x80, slices.Concat(size(n-1), lzma2), "longer than its header"},
		"nothing":              {0x80, slices.Concat(size(0), lzma2), "longer than its header"},
		"more than all disks":  {0x80, slices.Concat(size(1<<62+1), lzma2), "impossible size"},
		"a size without end":   {0x80, bytes.Repeat([]byte{0xff}, 11), "impossible size"},
		"another filter":       {0, []byte{0x03, 1, 0}, "other than LZMA2"},
		"two filters":          {1, slices.Concat([]byte{0x03, 1, 0}, lzma2), "other than LZMA2"},
		"a flag of the future": {0x04, lzma2, "other than LZMA2"},
		"two bytes of filter":  {0, []byte{xzLZMA2, 2, 8}, "other than LZMA2"},
		"no dictionary at all": {0, []byte{xzLZMA2, 1, 41}, "impossible dictionary"},
	} {
		r, err := newXZReader(bytes.NewReader(blockHeader(file, c.flags, c.fields...)))
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(r)
		switch {
		case c.say == "" && (err != nil || !bytes.Equal(got, plain)):
			t.Errorf("%s: %q, %v", name, got, err)
		case c.say != "" && (err == nil || !strings.Contains(err.Error(), c.say)):
			t.Errorf("%s: %v, want %q", name, err, c.say)
		}
	}
}

// TestXZStreams: checksums of other kinds are named, and behind a stream there is another one or
// zeros in fours.
func TestXZStreams(t *testing.T) {
	file := xzed(t, xz.WriterConfig{CheckSum: xz.CRC32}, []byte("memory"))
	for kind := range byte(18) {
		changed := slices.Clone(file)
		changed[7] = kind
		binary.LittleEndian.PutUint32(changed[8:], crc32.ChecksumIEEE(changed[6:8]))
		_, err := newXZReader(bytes.NewReader(changed))
		if known := kind == 0 || kind == 1 || kind == 4 || kind == 10; known != (err == nil) {
			t.Errorf("checksum of kind %d: %v", kind, err)
		}
	}
	for name, c := range map[string]struct {
		behind string
		good   bool
	}{
		"nothing": {"", true}, "four zeros": {"\x00\x00\x00\x00", true},
		"eight zeros": {strings.Repeat("\x00", 8), true}, "three zeros": {"\x00\x00\x00", false},
		"five zeros": {strings.Repeat("\x00", 5), false}, "a word": {"what", false},
		"it once more": {string(file), false}, "zeros and a word": {"\x00\x00\x00\x00what", false},
	} {
		r, err := newXZReader(bytes.NewReader(append(slices.Clone(file), c.behind...)))
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(r)
		if name == "it once more" {
			if err != nil || string(got) != "memorymemory" {
				t.Errorf("%s: %q %v", name, got, err)
			}
			continue
		}
		if (err == nil) != c.good || string(got) != "memory" {
			t.Errorf("%s: %q %v", name, got, err)
		}
	}
}

// TestStatesAndPoolsOfSnapshots: every state that a block can have, pools of entries and segments,
// and numbers that are written as fractions.
func TestStatesAndPoolsOfSnapshots(t *testing.T) {
	p := newPickler(4, false)
	pool := func(a, b int64) func() {
		return func() { p.integer(a); p.integer(b); p.op(opTuple2); p.put() }
	}
	float := func(v float64) func() {
		return func() {
			p.b = binary.BigEndian.AppendUint64(append(p.b, opBinFloat), math.Float64bits(v))
		}
	}
	states := []string{"active_allocated", "active_pending_free", "active_awaiting_free", "inactive",
		"something_new"}
	p.dict(
		pair{"segments", func() {
			p.list(1, func(int) {
				p.dict(p.num("device", 0), p.num("address", 4096), p.num("total_size", 5*512),
					pair{"segment_pool_id", pool(0, 7)}, p.str("segment_type", "large"),
					pair{"blocks", func() {
						p.list(5, func(i int) {
							p.dict(p.num("size", 512), p.num("requested_size", 100),
								p.num("address", 4096+512*int64(i)), p.str("state", states[i]))
						})
					}})
			})
		}},
		pair{"device_traces", func() {
			p.list(1, func(int) {
				p.list(4, func(i int) {
					p.dict(p.str("action", "alloc"), pair{"size", float([]float64{512.9, -3.5, 1e19,
						-1e19}[i])}, pair{"pool_id", []func(){pool(1, 2), pool(0, 0), pool(1, 2),
						func() { p.integer(1); p.op(opTuple1); p.put() }}[i]},
						pair{"forward_frames", func() {
							p.integer(1)
							p.integer(2)
							p.integer(3)
							p.op(opTuple3)
							p.put()
						}})
				})
			})
		}})
	s, err := ReadSnapshot(bytes.NewReader(p.stop()))
	if err != nil || len(s.Recordings) != 1 || len(s.Recordings[0].Segments) != 1 {
		t.Fatalf("%+v %v", s, err)
	}
	rec := &s.Recordings[0]
	var got []event.BlockState
	for _, b := range rec.Segments[0].Blocks {
		got = append(got, b.State)
	}
	if want := []event.BlockState{event.BlockActive, event.BlockPending, event.BlockPending,
		event.BlockFree, event.BlockFree}; !slices.Equal(got, want) {
		t.Errorf("states %v, want %v", got, want)
	}
	if id := rec.Segments[0].Pool; id != (event.PoolID{0, 7}) || rec.Segments[0].Small {
		t.Errorf("%+v", rec.Segments[0])
	}
	want := []event.Entry{{Kind: event.KindAlloc, Size: 512, Pool: event.PoolID{1, 2}},
		{Kind: event.KindAlloc, Size: -3}, {Kind: event.KindAlloc, Pool: event.PoolID{1, 2}},
		{Kind: event.KindAlloc}}
	if diff := cmp.Diff(want, entriesOf(&rec.History)); diff != "" {
		t.Error(diff)
	}
}

// TestPoolsAreFew: in a file with very many pools, those beyond the limit share the last number.
func TestPoolsAreFew(t *testing.T) {
	m := &machine{poolIDs: map[event.PoolID]int{}}
	for i := range maxPools + 10 {
		id := event.PoolID{1, uint64(i)}
		if got := m.pool(id); got != min(i, maxPools-1) {
			t.Fatalf("pool %d is number %d", i, got)
		}
	}
	if m.pool(event.PoolID{1, 5}) != 5 || len(m.pools) != maxPools {
		t.Errorf("%d pools", len(m.pools))
	}
}

// TestStacksUnderflow: files whose operations want more than there is.
func TestStacksUnderflow(t *testing.T) {
	for name, text := range map[string]string{
		"append to nothing":      "\x80\x04a.",
		"append one value":       "\x80\x04K\x01a.",
		"appends without a mark": "\x80\x04]e.",
		"appends below a mark":   "\x80\x04(e.",
		"a pair of one":          "\x80\x04K\x01\x86.",
		"three of two":           "\x80\x04K\x01K\x01\x87.",
		"one of none":            "\x80\x04\x85.",
		"a pair over a mark":     "\x80\x04K\x01(K\x01\x86.",
		"a tuple without a mark": "\x80\x04K\x01t.",
		"an item of nothing":     "\x80\x04s.",
		"items without a mark":   "\x80\x04}u.",
		"a value without a dict": "\x80\x04K\x01K\x02s.",
		"the end of nothing":     "\x80\x04.",
		"memory of nothing":      "\x80\x04\x94.",
		"items for a number":     "\x80\x04K\x01(K\x02e.",
		"an old protocol":        "\x80\x01}.",
		"a new protocol":         "\x80\x06}.",
	} {
		if s, err := ReadSnapshot(strings.NewReader(text)); err == nil {
			t.Errorf("%s: %+v", name, s)
		} else if strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), ": ") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
