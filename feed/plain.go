package feed

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zlib"
	"github.com/klauspost/compress/zstd"

	"memroom/feed/format"
	"memroom/feed/source"
)

// openPlain opens a file. A file that is compressed as a whole, whatever its name, cannot be read
// from the middle. It is unpacked once into a file without a name in the temporary folder.
func openPlain(name string, o format.Options) (source.File, error) {
	if imagesIn(name, o) {
		return source.OpenImages(name)
	}
	f, err := source.Open(name)
	if err != nil {
		return nil, err
	}
	packed, err := format.Packed(f, o)
	if err != nil {
		f.Close()
		return nil, err
	}
	if packed == "" {
		return f, nil
	}
	defer f.Close()
	plain, err := source.Scratch()
	if err != nil {
		return nil, err
	}
	size, err := unpack(plain, f, packed)
	if err != nil {
		plain.Close()
		if errors.Is(err, io.ErrUnexpectedEOF) {
			err = fmt.Errorf("the compressed data ends before it should: it was cut off or is still " +
				"being written")
		}
		return nil, fmt.Errorf("%s: %w", f.Name(), err)
	}
	return &unpacked{File: plain, name: f.Name(), identity: f.Identity(), size: size}, nil
}

func unpack(to io.Writer, f source.File, packed string) (int64, error) {
	in := bufio.NewReaderSize(io.NewSectionReader(f, 0, f.Size()), 256<<10)
	switch packed {
	case format.Gzip:
		r, err := gzip.NewReader(in)
		if err != nil {
			return 0, err
		}
		return io.Copy(to, r)
	case format.Zlib:
		r, err := zlib.NewReader(in)
		if err != nil {
			return 0, err
		}
		return io.Copy(to, r)
	}
	r, err := zstd.NewReader(in, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(64<<20))
	if err != nil {
		return 0, err
	}
	defer r.Close()
	return io.Copy(to, r)
}

// unpacked is the content of a compressed file.
type unpacked struct {
	*os.File
	name, identity string
	size           int64
}

func (u *unpacked) Name() string      { return u.name }
func (u *unpacked) Identity() string  { return u.identity }
func (u *unpacked) Size() int64       { return u.size }
func (u *unpacked) Check() error      { return nil } // nobody else has it
func (u *unpacked) Drop(int64, int64) {}
