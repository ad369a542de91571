package format

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"path"
	"strings"

	"memroom/feed/source"
)

// This file finds the format of a data file whose name does not show it or is wrong.

// Compressions of whole files.
const (
	Gzip = "gzip"
	Zstd = "zstd"
	Zlib = "zlib" // TensorFlow's other way to write records
)

var packers = map[string]string{".gz": Gzip, ".tgz": Gzip, ".zst": Zstd}

// beginnings are the first bytes of files that people name .csv, .json or .txt by mistake.
var beginnings = []struct{ bytes, what, cure string }{
	{"\xFF\xFE", "UTF-16", "write it as UTF-8: iconv -f UTF-16 -t UTF-8"},
	{"\xFE\xFF", "UTF-16", "write it as UTF-8: iconv -f UTF-16 -t UTF-8"},
	{"PK\x03\x04", "a ZIP archive (.zip, .xlsx, .npz)", "unpack it, or save the sheet as CSV"},
	{"\xD0\xCF\x11\xE0", "an old Excel file", "save the sheet as CSV"},
	{"PAR1", "Parquet", "say format=\"parquet\" (--format parquet)"},
	{"ARROW1", "an Arrow file", "say format=\"arrow\" (--format arrow)"},
	{"\x93NUMPY", "a NumPy array", "say format=\"npy\" (--format npy)"},
	{"BZh", "bzip2", "unpack it, or compress it with gzip or zstd"},
	{"\xFD7zXZ", "xz", "unpack it, or compress it with gzip or zstd"},
	{"\x89HDF", "HDF5", "write its arrays as .npy"},
	{"SQLite format 3", "an SQLite data base", "export its table as CSV"},
	{"Obj\x01", "Avro", "convert it to Parquet"},
	{"ORC", "ORC", "convert it to Parquet"},
}

// stoodIn are the first bytes of what people get in place of a file of any format.
var stoodIn = []struct{ bytes, what string }{
	{"version https://git-lfs.github.com/",
		"this is a Git LFS pointer, not the file itself: git lfs pull"},
	{"<!doctype html", "this is a web page, not data: a download gave an error page or needs a login"},
	{"<html", "this is a web page, not data: a download gave an error page or needs a login"},
	{"<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error>",
		"this is the error of an object store, not data"},
}

// isItself names the content of a file that is no data at all. Text may be a web page.
func isItself(f source.File, kind string) error {
	head, err := headOf(f, 1<<10)
	if err != nil {
		return err
	}
	head = bytes.TrimLeft(bytes.TrimPrefix(head, []byte("\xEF\xBB\xBF")), " \t\r\n")
	for _, s := range stoodIn {
		if kind == "text" && s.bytes[0] == '<' {
			continue
		}
		if len(head) >= len(s.bytes) && strings.EqualFold(string(head[:len(s.bytes)]), s.bytes) {
			return fmt.Errorf("%s: %s", f.Name(), s.what)
		}
	}
	return nil
}

// notRead are endings of files that people have and that streams do not read.
var notRead = map[string]string{
	".npz":     "an .npz file is a ZIP archive: save each array with numpy.save(\"x.npy\", archive[\"x\"])",
	".zip":     "ZIP archives are not read: unpack it",
	".xlsx":    "Excel files are not read: save the sheet as CSV",
	".xls":     "Excel files are not read: save the sheet as CSV",
	".bz2":     "bzip2 (.bz2) is not read: unpack it, or compress it with gzip or zstd",
	".xz":      "xz is not read: unpack it, or compress it with gzip or zstd",
	".lz4":     "lz4 is not read: unpack it, or compress it with gzip or zstd",
	".h5":      "HDF5 is not read: write its arrays with numpy.save",
	".hdf5":    "HDF5 is not read: write its arrays with numpy.save",
	".pkl":     "pickles are not read: write the data as Parquet, .npy or JSON lines",
	".pickle":  "pickles are not read: write the data as Parquet, .npy or JSON lines",
	".pt":      "torch's files are not read: write tensors with numpy.save(\"x.npy\", tensor.numpy())",
	".pth":     "torch's files are not read: write tensors with numpy.save(\"x.npy\", tensor.numpy())",
	".orc":     "ORC is not read: convert it to Parquet",
	".avro":    "Avro is not read: convert it to Parquet",
	".mds":     "Mosaic's shards are not read: write the samples as a WebDataset tar or Parquet",
	".sqlite":  "data bases are not read: export the table as CSV or Parquet",
	".db":      "data bases are not read: export the table as CSV or Parquet",
	".jpg":     pictures,
	".jpeg":    pictures,
	".png":     pictures,
	".webp":    pictures,
	".wav":     pictures,
	".mp4":     pictures,
	".msgpack": "MessagePack is not read: write JSON lines or Parquet",
}

const pictures = "single media files are not read: put them in a tar file, as WebDataset does"

// Packed returns how a file is compressed as a whole: by its bytes, so that a .csv that is gzip
// inside is read too.
func Packed(f source.File, o Options) (string, error) {
	named := packers[strings.ToLower(path.Ext(plainName(f.Name())))]
	kind, err := Of(f.Name(), o)
	if named == "" && (err != nil || kind == "parquet" || kind == "arrow" || kind == "npy") {
		return "", nil // Scan reports what is wrong; these have a mark of their own
	}
	head, err := headOf(f, recordHead)
	if err != nil {
		return "", err
	}
	found := ""
	switch {
	case bytes.HasPrefix(head, []byte("\x1f\x8b\x08")):
		found = Gzip
	case bytes.HasPrefix(head, []byte("\x28\xb5\x2f\xfd")),
		len(head) >= 4 && head[0]>>4 == 5 && string(head[1:4]) == "\x2a\x4d\x18":
		found = Zstd
	}
	switch {
	case named != "" && found == "" && len(head) > 0:
		return "", fmt.Errorf("%s: the name ends in %s, the content is something else: give it the name "+
			"that fits", f.Name(), named)
	case kind == "tfrecord" && named == "" && len(head) == recordHead &&
		maskedCRC(head[:8]) == binary.LittleEndian.Uint32(head[8:]):
		return "", nil // the length of a record may look like anything
	case kind == "tfrecord" && found == "" && len(head) > 1 && head[0]&0x0f == 8 &&
		binary.BigEndian.Uint16(head)%31 == 0:
		found = Zlib
	}
	return found, nil
}

// plainName is a name without the query of an address.
func plainName(name string) string {
	if source.Remote(name) {
		name, _, _ = strings.Cut(name, "?")
	}
	return name
}

func headOf(f source.File, most int64) ([]byte, error) {
	head := make([]byte, min(f.Size(), most))
	if n, err := f.ReadAt(head, 0); n < len(head) {
		return nil, fmt.Errorf("%s: %w", f.Name(), shorter(err))
	}
	return head, nil
}

// looksLikeText returns an error where a text format finds something else.
func looksLikeText(f source.File, kind string) error {
	head, err := headOf(f, 64<<10)
	if err != nil {
		return err
	}
	for _, b := range beginnings {
		if bytes.HasPrefix(head, []byte(b.bytes)) {
			return fmt.Errorf("%s: expected %s, but the content is %s: %s", f.Name(), kind, b.what,
				b.cure)
		}
	}
	if kind != "text" && bytes.IndexByte(head, '\n') < 0 && bytes.Count(head, []byte{'\r'}) > 1 {
		return fmt.Errorf("%s: its lines end with a carriage return alone, as on old Macs; to rewrite it: "+
			"tr '\\r' '\\n' < old > new", f.Name())
	}
	return nil
}
