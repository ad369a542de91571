// Package format reads the files people have: each format finds out once where its blocks of rows
// lie and what its columns hold, and then decodes any block by itself.
package format

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"memroom/feed/source"
	"memroom/feed/table"
)

// Options are what the user said about the files.
type Options struct {
	Format    string            `json:"format,omitempty"`    // by the name's ending where empty
	Delimiter string            `json:"delimiter,omitempty"` // of CSV
	NoHeader  bool              `json:"no_header,omitempty"` // CSV without a line of names
	Types     map[string]string `json:"types,omitempty"`     // of CSV and JSONL columns
	Skip      bool              `json:"skip,omitempty"`      // bad rows are skipped and counted
}

// Field is a column as a file has it.
type Field struct {
	table.Column
	Null bool // some rows may be missing
	Any  bool // every row seen is missing: it can be any type
}

// Block is a stretch of rows that is decoded in one piece.
type Block struct {
	Rows, Bytes    int64 // Bytes: decoded, about
	Offset, Length int64 // in the file, of text formats
	Part           int32 // row group, record batch
	First          int64 // first row, in the file for text, in the part for others
}

// Index is what is known of a file after one look.
type Index struct {
	Identity string
	Format   string
	Fields   []Field
	Blocks   []Block
	Skipped  int64 // bad rows left out
	Notes    []string
	Delim    byte      // of CSV
	Header   bool      // CSV: the first row is a line of names
	Messages []Message // of Arrow: where its messages lie
}

// Decoder decodes blocks of one file. Decode may be called by several goroutines at once.
type Decoder interface {
	Decode(b Block, columns []table.Column) (*table.Rows, error)
	Close() error
}

// Sparse is a decoder that reads some rows of a block in much less time than all of them.
type Sparse interface {
	// DecodeSome returns the rows with these numbers within the block, which ascend. An error only
	// means that Decode must be called, whose error names the row.
	DecodeSome(b Block, want []int32, columns []table.Column) (*table.Rows, error)
}

// Sizes of blocks, in bytes. They are part of the order: changing one changes every shuffled
// stream. A window mixes as many places of the data as it has blocks, so blocks are small: some
// dozens make up the smallest window. Reading one costs more than its share where pages are larger.
const (
	textBlock  = 256 << 10 // of a text file
	plainBlock = 256 << 10 // of decoded rows, where any row can be read by itself
	groupBlock = 512 << 10 // of decoded rows, where reading a part costs more than its share
)

type driver struct {
	scan func(source.File, Options) (*Index, error)
	open func(source.File, *Index, Options) (Decoder, error)
}

var drivers = map[string]driver{
	"csv":      {scanCSV, openCSV},
	"jsonl":    {scanJSONL, openJSONL},
	"text":     {scanText, openText},
	"npy":      {scanNPY, openNPY},
	"parquet":  {scanParquet, openParquet},
	"arrow":    {scanIPC, openIPC},
	"tfrecord": {scanTFRecord, openTFRecord},
	"tar":      {scanTar, openTar},
	"images":   {scanImages, openImages},
}

var endings = map[string]string{
	".csv": "csv", ".tsv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl",
	".txt": "text", ".npy": "npy", ".parquet": "parquet", ".pq": "parquet",
	".arrow": "arrow", ".feather": "arrow", ".ipc": "arrow", ".arrows": "arrow",
	".tfrecord": "tfrecord", ".tfrecords": "tfrecord", ".tar": "tar", ".tgz": "tar",
}

// Of returns the format of a file: the one that the user chose, or the one that its name implies.
func Of(name string, o Options) (string, error) {
	if o.Format != "" {
		if _, known := drivers[o.Format]; !known {
			return "", fmt.Errorf("there is no format %q: use csv, jsonl, text, npy, parquet, arrow, "+
				"tfrecord, tar or images", o.Format)
		}
		return o.Format, nil
	}
	base := strings.ToLower(Uncompressed(path.Base(plainName(name))))
	if f, known := endings[path.Ext(base)]; known {
		return f, nil
	}
	if source.IsImage(base) {
		return "images", nil
	}
	if strings.Contains(base, ".tfrecord") { // train.tfrecord-00000-of-00010
		return "tfrecord", nil
	}
	if why := notRead[path.Ext(base)]; why != "" {
		return "", fmt.Errorf("%s: %s", name, why)
	}
	return "", fmt.Errorf("%s: the name does not tell the format: say it with --format (format= in "+
		"Python)", name)
}

// Uncompressed returns a name without the ending of a compression.
func Uncompressed(name string) string {
	for _, ending := range []string{".gz", ".zst"} {
		if strings.HasSuffix(strings.ToLower(name), ending) {
			return name[:len(name)-len(ending)]
		}
	}
	return name
}

// Scan looks through a file once.
func Scan(f source.File, o Options) (*Index, error) {
	name, err := "images", error(nil)
	if _, is := f.(*source.Images); !is {
		if name, err = Of(f.Name(), o); err != nil {
			return nil, err
		}
	}
	if f.Size() == 0 && name != "csv" && name != "jsonl" && name != "text" && name != "tfrecord" {
		return nil, fmt.Errorf("%s is empty: is it still being written?", f.Name())
	}
	if err := isItself(f, name); err != nil {
		return nil, err
	}
	if name == "csv" || name == "jsonl" || name == "text" {
		if err := looksLikeText(f, name); err != nil {
			return nil, err
		}
	}
	ix, err := drivers[name].scan(f, o)
	if err != nil {
		return nil, err
	}
	ix.Identity, ix.Format = f.Identity(), name
	return ix, nil
}

// LeaveOut takes blocks out of an index that cannot be decoded, and counts their rows. Text formats
// and TFRecord have left their bad rows out already.
func LeaveOut(f source.File, ix *Index, o Options) error {
	if ix.Format != "parquet" && ix.Format != "arrow" {
		return nil
	}
	d, err := Open(f, ix, o)
	if err != nil {
		return err
	}
	defer d.Close()
	columns := Columns(ix.Fields)
	var good []Block
	for _, b := range ix.Blocks {
		if _, err := d.Decode(b, columns); err != nil {
			ix.Skipped += b.Rows
			ix.Notes = append(ix.Notes, err.Error())
			continue
		}
		good = append(good, b)
	}
	ix.Blocks = good
	return nil
}

// Open prepares decoding.
func Open(f source.File, ix *Index, o Options) (Decoder, error) {
	return drivers[ix.Format].open(f, ix, o)
}

// Loose reports whether rows of a format name their own columns, so that a file in which no row has
// one of them is no other kind of file.
func Loose(format string) bool {
	return format == "jsonl" || format == "tfrecord" || format == "tar"
}

// Merge returns fields that hold the rows of both files. Where loose, either may lack columns.
func Merge(a, b []Field, name string, loose bool) ([]Field, error) {
	if loose {
		a, b = withMissing(a, b), withMissing(b, a)
	}
	if len(a) != len(b) {
		return nil, fmt.Errorf("%s has %d columns, the files before it have %d: choose those that all "+
			"have with columns= (--column), or read the files apart", name, len(b), len(a))
	}
	merged := make([]Field, len(a))
	for i, x := range a {
		y, ok := find(b, x.Name)
		if !ok {
			return nil, fmt.Errorf("%s has no column %q, which the files before it have: choose those "+
				"that all "+
				"have with columns= (--column)", name, x.Name)
		}
		m, err := mergeField(x, y)
		if err != nil {
			return nil, fmt.Errorf("%s: column %q: %w", name, x.Name, err)
		}
		merged[i] = m
	}
	return merged, nil
}

// withMissing returns the fields of a file, and those of another file as ones whose rows are
// missing.
func withMissing(fields, other []Field) []Field {
	all := slices.Clone(fields)
	for _, f := range other {
		if _, ok := find(fields, f.Name); !ok {
			f.Null = true
			all = append(all, f)
		}
	}
	return all
}

func find(fields []Field, name string) (Field, bool) {
	for _, f := range fields {
		if f.Name == name {
			return f, true
		}
	}
	return Field{}, false
}

func mergeField(x, y Field) (Field, error) {
	null := x.Null || y.Null
	switch {
	case !slices.Equal(x.Classes, y.Classes):
		return x, fmt.Errorf("has the classes %q here and %q in the folder before it: name the folder "+
			"that holds both", y.Classes, x.Classes)
	case x.Any:
		y.Null = null
		return y, nil
	case y.Any:
		x.Null = null
		return x, nil
	case x.Kind == y.Kind && x.DType == y.DType && fmt.Sprint(x.Shape) == fmt.Sprint(y.Shape):
		x.Null = null
		return x, nil
	case numeric(x) && numeric(y):
		wide := table.FixedOf(x.Name, "<i8", 8, x.From)
		if strings.Contains(x.DType+y.DType, "f") || strings.Contains(x.DType+y.DType, "u8") {
			wide.DType = "<f8"
		}
		return Field{Column: wide, Null: null}, nil
	case len(x.Shape) == 1 && y.Kind == table.List && x.DType == y.DType:
		y.Null = null
		return y, nil // lists of one size here, of others there
	case len(y.Shape) == 1 && x.Kind == table.List && x.DType == y.DType:
		x.Null = null
		return x, nil
	case x.Kind == table.List && y.Kind == table.List && x.Width == 8 && y.Width == 8:
		x.DType, x.Null = "<f8", null
		return x, nil
	}
	why := fmt.Sprintf("is %s here and %s in the files before it", described(y), described(x))
	if x.From == "csv" || x.From == "string" || x.From == "number" {
		why += fmt.Sprintf("; types={%q: \"str\"} reads texts", x.Name)
	}
	return x, errors.New(why)
}

// described returns a description of a field, for people.
func described(f Field) string {
	switch {
	case f.Kind == table.Fixed && len(f.Shape) > 0:
		return fmt.Sprintf("%s of shape %v", f.DType, f.Shape)
	case f.Kind == table.Fixed:
		return f.DType
	case f.Kind == table.List:
		return "a list of " + f.DType
	}
	return string(f.Kind)
}

// numeric reports whether a field is a scalar number that float64 can stand for.
func numeric(f Field) bool {
	return f.Kind == table.Fixed && len(f.Shape) == 0 && len(f.DType) == 3 &&
		strings.ContainsRune("iuf", rune(f.DType[1]))
}

// Columns returns the columns of the stream: whole numbers and truth values with missing rows
// become float64, as they do in pandas.
func Columns(fields []Field) []table.Column {
	columns := make([]table.Column, len(fields))
	for i, f := range fields {
		c := f.Column
		integer := c.Kind == table.Fixed && len(c.DType) == 3 &&
			strings.ContainsRune("iub", rune(c.DType[1]))
		switch {
		case f.Any:
			c = table.FixedOf(c.Name, "<f8", 8, c.From)
		case f.Null && integer:
			c.DType, c.Width = "<f8", 8*product(c.Shape)
		}
		columns[i] = c
	}
	return columns
}

// BadRow is a row that cannot be read.
type BadRow struct {
	File   string
	Row    int64 // counted from 0, without the header
	Offset int64 // of the row in the file
	Why    string
}

func (b *BadRow) Error() string {
	return fmt.Sprintf("%s: row %d (offset %d): %s", b.File, b.Row, b.Offset, b.Why)
}
