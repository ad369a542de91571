package format

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"

	"memroom/feed/source"
)

// Bodies of Arrow messages that are compressed, or that lie on a server, unpacked into a file. The
// description is changed to fit: Arrow allows a buffer of a compressed body to be stored as it is,
// behind a length of -1.

// unpackedBody is a body in the scratch file.
type unpackedBody struct {
	meta   []byte
	mapped []byte
}

// Compressions as Arrow numbers them; -1 is none.
const (
	codecNone = -1
	codecLZ4  = 0
	codecZstd = 1
)

// mostUnpacked is how many times larger data can be than its packed form, by any codec:
// Zstandard makes a block of 128 KiB of one byte out of four.
const mostUnpacked = 1 << 15

// bufferPlaces returns where the description of a record batch has its buffers' offsets and
// lengths, and how they are compressed.
func bufferPlaces(meta []byte, kind int8) (places []int, codec int) {
	root := rootOf(meta)
	header, ok := root.table(2)
	if ok && kind == kindDictionary {
		header, ok = header.table(1)
	}
	if !ok || kind == kindSchema {
		return nil, codecNone
	}
	codec = codecNone
	if c, packed := header.table(3); packed {
		codec = int(c.number(0, 1))
	}
	at, n := header.vector(2)
	for i := range n {
		places = append(places, at+16*i)
	}
	return places, codec
}

// packing is how a body is compressed, and how large it is unpacked.
func (d *ipcFile) packing(m Message, meta []byte) (codec int, size int64, err error) {
	places, codec := bufferPlaces(meta, m.Kind)
	if codec == codecNone {
		return codec, m.Data, nil
	}
	for _, p := range places {
		offset, length, err := bufferAt(meta, p, m)
		if err != nil {
			return 0, 0, err
		}
		if length < 8 {
			continue
		}
		head := make([]byte, 8)
		if n, err := d.f.ReadAt(head, m.Body+offset); n < 8 {
			return 0, 0, shorter(err)
		}
		own := int64(binary.LittleEndian.Uint64(head))
		if own < 0 {
			own = length
		}
		if own > mostUnpacked*length {
			return 0, 0, damaged("a buffer of %d bytes claims to be %d when unpacked", length, own)
		}
		size += own
	}
	return codec, size, nil
}

func bufferAt(meta []byte, place int, m Message) (offset, length int64, err error) {
	if place+16 > len(meta) {
		return 0, 0, damaged("the description of a record batch ends too soon")
	}
	offset = int64(binary.LittleEndian.Uint64(meta[place:]))
	length = int64(binary.LittleEndian.Uint64(meta[place+8:]))
	if offset < 0 || length < 0 || offset > m.Data || length > m.Data-offset {
		return 0, 0, damaged("a buffer lies outside its record batch")
	}
	return offset, length, nil
}

// unpack returns a body from the scratch file, where it is written on the first call.
func (d *ipcFile) unpack(i int, m Message, meta []byte, codec int) ([]byte, []byte, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if u := d.unpacked[i]; u != nil {
		return u.meta, u.mapped, nil
	}
	if d.scratch == nil {
		var err error
		if d.scratch, err = source.Scratch(); err != nil {
			return nil, nil, err
		}
	}
	start := (d.used + 65535) &^ 65535
	out := &bodyWriter{d: d, start: start}
	if err := out.write(m, meta, codec); err != nil {
		return nil, nil, err
	}
	d.used = start + out.at
	u := &unpackedBody{meta: meta, mapped: source.MapRange(d.scratch, start, out.at)}
	if u.mapped == nil {
		return nil, nil, fmt.Errorf("a record batch of %d bytes cannot be mapped: write smaller "+
			"ones, or "+
			"raise the limit of address space (ulimit -v)", out.at)
	}
	d.unpacked[i] = u
	return u.meta, u.mapped, nil
}

// bodyWriter writes a body into the scratch file, from start on.
type bodyWriter struct {
	d     *ipcFile
	start int64
	at    int64
}

func (w *bodyWriter) Write(p []byte) (int, error) {
	n, err := w.d.scratch.WriteAt(p, w.start+w.at)
	w.at += int64(n)
	return n, err
}

func (w *bodyWriter) write(m Message, meta []byte, codec int) error {
	places, _ := bufferPlaces(meta, m.Kind)
	if codec == codecNone {
		_, err := io.Copy(w, io.NewSectionReader(w.d.f, m.Body, m.Data))
		w.d.f.Drop(m.Body, m.Data)
		return err
	}
	mark := bytes.Repeat([]byte{0xFF}, 8) // a length of -1: the bytes that follow are not compressed
	for _, p := range places {
		offset, length, err := bufferAt(meta, p, m)
		if err != nil {
			return err
		}
		if length < 8 {
			continue
		}
		w.at = (w.at+63)&^63 + 56 // values begin at a cache line, behind the mark
		begin := w.at
		if _, err := w.Write(mark); err != nil {
			return err
		}
		part := io.NewSectionReader(w.d.f, m.Body+offset, length)
		if err := unpackBuffer(w, part, codec); err != nil {
			return fmt.Errorf("offset %d: %w", m.Body+offset, err)
		}
		binary.LittleEndian.PutUint64(meta[p:], uint64(begin))
		binary.LittleEndian.PutUint64(meta[p+8:], uint64(w.at-begin))
	}
	w.d.f.Drop(m.Body, m.Data)
	_, err := w.Write(make([]byte, 64)) // nothing reads beyond the last buffer, but alignment may
	return err
}

func unpackBuffer(w io.Writer, part *io.SectionReader, codec int) error {
	head := make([]byte, 8)
	if _, err := io.ReadFull(part, head); err != nil {
		return shorter(err)
	}
	size := int64(binary.LittleEndian.Uint64(head))
	if size < 0 {
		_, err := io.Copy(w, part)
		return err
	}
	var from io.Reader
	switch codec {
	case codecLZ4:
		from = lz4.NewReader(part)
	case codecZstd:
		z, err := zstd.NewReader(part, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(64<<20))
		if err != nil {
			return err
		}
		defer z.Close()
		from = z
	default:
		return fmt.Errorf("it is compressed in a way that memroom cannot read (%d): write it with lz4, "+
			"zstd or uncompressed", codec)
	}
	n, err := io.Copy(w, io.LimitReader(from, size))
	if err == nil && n < size {
		err = damaged("%d of %d bytes are there", n, size)
	}
	return err
}

// flat reads a table of a FlatBuffer, which is what Arrow describes messages in. What lies outside
// the buffer is absent.
type flat struct {
	data []byte
	at   int
}

func rootOf(data []byte) flat {
	if len(data) < 4 {
		return flat{}
	}
	return flat{data, int(binary.LittleEndian.Uint32(data))}
}

// field returns where a field of the table is; 0 if it is absent.
func (t flat) field(i int) int {
	if t.at < 0 || t.at+4 > len(t.data) {
		return 0
	}
	vtable := t.at - int(int32(binary.LittleEndian.Uint32(t.data[t.at:])))
	if vtable < 0 || vtable+4 > len(t.data) {
		return 0
	}
	size, entry := int(binary.LittleEndian.Uint16(t.data[vtable:])), vtable+4+2*i
	if 4+2*i >= size || entry+2 > len(t.data) { // as the library reads it, also where size is odd
		return 0
	}
	if offset := int(binary.LittleEndian.Uint16(t.data[entry:])); offset != 0 {
		return t.at + offset
	}
	return 0
}

// number reads a field of 1 or 8 bytes; 0 if it is absent.
func (t flat) number(i, width int) int64 {
	at := t.field(i)
	if at == 0 || at+width > len(t.data) {
		return 0
	}
	if width == 1 {
		return int64(t.data[at])
	}
	return int64(binary.LittleEndian.Uint64(t.data[at:]))
}

func (t flat) table(i int) (flat, bool) {
	at := t.field(i)
	if at == 0 || at+4 > len(t.data) {
		return flat{}, false
	}
	return flat{t.data, at + int(binary.LittleEndian.Uint32(t.data[at:]))}, true
}

// vector returns where the elements of a vector begin, and how many they are.
func (t flat) vector(i int) (at, n int) {
	at = t.field(i)
	if at == 0 || at+4 > len(t.data) {
		return 0, 0
	}
	at += int(binary.LittleEndian.Uint32(t.data[at:]))
	if at < 0 || at+4 > len(t.data) {
		return 0, 0
	}
	n = int(binary.LittleEndian.Uint32(t.data[at:]))
	if n < 0 || n > len(t.data)/16 {
		return 0, 0
	}
	return at + 4, n
}
