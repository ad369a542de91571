package trace

import (
	"bytes"
	"encoding/binary"
	"io"
	"math"
	"reflect"
	"testing"

	"github.com/ulikunitz/xz"

	"memroom/event"
)

// message writes a protobuf message: numbers, floats and texts in the order of their fields.
func message(fields map[int]any) (out []byte) {
	for number := 1; number < 32; number++ {
		tag := func(kind int) { out = binary.AppendUvarint(out, uint64(number<<3|kind)) }
		switch v := fields[number].(type) {
		case int:
			tag(0)
			out = binary.AppendUvarint(out, uint64(v))
		case float32:
			tag(5)
			out = binary.LittleEndian.AppendUint32(out, math.Float32bits(v))
		case string:
			tag(2)
			out = append(binary.AppendUvarint(out, uint64(len(v))), v...)
		}
	}
	return out
}

// TestBFCDumpFieldByField: every field of bfc_memory_map.proto that is kept, with a value of its
// own.
func TestBFCDumpFieldByField(t *testing.T) {
	chunk := map[int]any{1: 0x7000, 2: 4096, 3: 4000, 4: 17, 5: "MatMul", 6: 18, 7: 19, 8: 1, 9: 21}
	stats := map[int]any{1: 31, 2: 32, 3: 33, 4: 34, 5: float32(0.5)}
	dump := message(map[int]any{1: "GPU_0_bfc", 2: string(message(map[int]any{1: 1})),
		3: string(message(chunk)), 5: string(message(stats))})
	got, err := ReadBFCDump(bytes.NewReader(dump))
	if err != nil {
		t.Fatal(err)
	}
	want := &BFCDump{Allocator: "GPU_0_bfc", Allocs: 31, InUse: 32, PeakInUse: 33, LargestAlloc: 34,
		Fragmentation: 0.5, Chunks: []BFCDumpChunk{{Addr: 0x7000, Size: 4096, Requested: 4000,
			InUse: true, Op: "MatMul", Step: 21}}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("read %+v, want %+v", got, want)
	}
}

// TestBFCDumpWithImpossibleChunks: sizes of nothing, and chunks beyond the last address.
func TestBFCDumpWithImpossibleChunks(t *testing.T) {
	for name, c := range map[string]struct {
		chunk map[int]any
		good  bool
	}{
		"one byte":         {map[int]any{1: 1 << 40, 2: 1}, true},
		"nothing":          {map[int]any{1: 1 << 40}, false},
		"up to the end":    {map[int]any{1: -4096, 2: 4095}, true},
		"beyond the end":   {map[int]any{1: -4096, 2: 4097}, false},
		"a negative size":  {map[int]any{1: 1 << 40, 2: -1}, false},
		"an address of 0":  {map[int]any{2: 512}, true},
		"less than a page": {map[int]any{1: 8, 2: 256}, true},
	} {
		dump := message(map[int]any{1: "a", 3: string(message(c.chunk))})
		if _, err := ReadBFCDump(bytes.NewReader(dump)); (err == nil) != c.good {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestSnapshotWithoutSettings: settings that a snapshot leaves out are unknown, and no split size
// is no limit.
func TestSnapshotWithoutSettings(t *testing.T) {
	p := newPickler(4, false)
	p.dict(pair{"segments", func() {
		p.list(1, func(int) {
			p.dict(p.num("device", 0), p.num("address", 1<<21), p.num("total_size", 2<<20),
				p.str("segment_type", "large"))
		})
	}})
	s, err := ReadSnapshot(bytes.NewReader(p.stop()))
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(s.Settings, event.AllocatorSettings{MaxSplit: -1}) {
		t.Errorf("settings %+v", s.Settings)
	}
}

// TestXZDamageIsNeverTakenForContent: whichever bit of a packed file is flipped, unpacking returns
// an error or the original content. A wrong number of blocks in the index is an error.
func TestXZDamageIsNeverTakenForContent(t *testing.T) {
	plain := bytes.Repeat([]byte("device_traces of one step; "), 40)
	file := xzed(t, xz.WriterConfig{}, plain)
	unpack := func(data []byte) ([]byte, error) {
		content, _, err := Limits{}.Sniff(bytes.NewReader(data))
		if err != nil {
			return nil, err
		}
		return io.ReadAll(content)
	}
	if got, err := unpack(file); err != nil || !bytes.Equal(got, plain) {
		t.Fatalf("%d bytes, %v", len(got), err)
	}
	for at := 6; at < len(file); at++ { // behind the letters by which the format is known
		for bit := range 8 {
			changed := bytes.Clone(file)
			changed[at] ^= 1 << bit
			if got, err := unpack(changed); err == nil && !bytes.Equal(got, plain) {
				t.Errorf("bit %d of byte %d: %d bytes of something else", bit, at, len(got))
			}
		}
	}
	footer := file[len(file)-12:]
	index := len(file) - 12 - 4*(int(binary.LittleEndian.Uint32(footer[4:]))+1)
	for _, count := range []byte{0, 2, 3, 127} {
		changed := bytes.Clone(file)
		changed[index+1] = count
		if _, err := unpack(changed); err == nil {
			t.Errorf("an index of %d blocks behind one is no error", count)
		}
	}
}
