package format

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/metadata"
	"github.com/apache/arrow-go/v18/parquet/schema"

	"memroom/feed/source"
	"memroom/feed/table"
)

// Parquet. A block is a row group, or a part of one that is large. Columns are decoded one after
// another, so that pages of only one are in memory at a time. A nested column becomes one column
// for each of its leaves, named by its path; lists of numbers are lists, lists of texts and lists
// of lists come as JSON.

// parquetFile is a file with the readers that goroutines share out: a reader is used by one at a
// time.
type parquetFile struct {
	f    source.File
	meta *metadata.FileMetaData
	mu   sync.Mutex
	free []*file.Reader

	pages map[[2]int]*chunkPages // by row group and leaf, of those that are read in parts
}

// readerProperties makes the library read in small steps: a column chunk may be larger than memory.
func readerProperties() *parquet.ReaderProperties {
	props := parquet.NewReaderProperties(memory.DefaultAllocator)
	props.BufferedStreamEnabled = true
	props.BufferSize = 64 << 10
	return props
}

// column returns a reader of a leaf of a row group that begins at or before a row, and how many
// rows come before it there.
func (p *parquetFile) column(r *file.Reader, leaf, group int, first int64) (
	file.ColumnChunkReader, int64, error) {
	chunk, err := r.MetaData().RowGroup(group).ColumnChunk(leaf)
	if err != nil {
		return nil, 0, err
	}
	// The library verifies no checksums and believes sizes: all pages are looked at before.
	known, err := p.pagesOf(chunk, r.MetaData().Schema.Column(leaf), [2]int{group, leaf})
	if err != nil {
		return nil, 0, err
	}
	if first == 0 {
		chunk, err := r.RowGroup(group).Column(leaf)
		return chunk, 0, err
	}
	return known.from(p.f, first, readerProperties(), r.BufferPool())
}

// pagesOf returns the pages of a column chunk, which are looked for once.
func (p *parquetFile) pagesOf(chunk *metadata.ColumnChunkMetaData, column *schema.Column,
	key [2]int) (*chunkPages, error) {
	p.mu.Lock()
	known := p.pages[key]
	p.mu.Unlock()
	if known != nil {
		return known, nil
	}
	known, err := findPages(p.f, chunk, column)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pages == nil {
		p.pages = map[[2]int]*chunkPages{}
	}
	p.pages[key] = known
	return known, nil
}

// sized makes a source.File what arrow-go wants: something to seek in, though it mostly reads at
// offsets.
type sized struct {
	source.File
	at int64
}

func (s *sized) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case 1:
		offset += s.at
	case 2:
		offset += s.Size()
	}
	s.at = offset
	return offset, nil
}

func (s *sized) Read(p []byte) (int, error) {
	n, err := s.ReadAt(p, s.at)
	s.at += int64(n)
	return n, err
}

// Close does nothing: the file is its opener's.
func (s *sized) Close() error { return nil }

func (p *parquetFile) reader() (_ *file.Reader, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.free); n > 0 {
		r := p.free[n-1]
		p.free = p.free[:n-1]
		return r, nil
	}
	defer caught(&err, p.f.Name())
	options := []file.ReadOption{file.WithReadProps(readerProperties())}
	if p.meta != nil {
		options = append(options, file.WithMetadata(p.meta))
	}
	r, err := file.NewParquetReader(&sized{File: p.f}, options...)
	if err != nil {
		return nil, fmt.Errorf("%s: %w (a Parquet file that was cut off has no footer: copy or write it "+
			"anew)", p.f.Name(), err)
	}
	p.meta = r.MetaData()
	return r, nil
}

func (p *parquetFile) giveBack(r *file.Reader) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free = append(p.free, r)
}

// caught turns a panic of the library over a damaged file into an error.
func caught(err *error, name string) {
	switch r := recover().(type) {
	case nil:
	case runtime.Error:
		*err = fmt.Errorf("%s: %w", name, damaged("what it describes does not fit together"))
	default:
		*err = fmt.Errorf("%s: %w", name, damaged("%v", r))
	}
}

func scanParquet(f source.File, _ Options) (_ *Index, err error) {
	defer caught(&err, f.Name())
	p := &parquetFile{f: f}
	r, err := p.reader()
	if err != nil {
		return nil, err
	}
	ix := &Index{}
	var perRow int64
	leaves := r.MetaData().Schema
	types, names := originals(r.MetaData()), leafNames(leaves)
	for i := range leaves.NumColumns() {
		own := leafField(leaves.Column(i))
		own.Null = leaves.Column(i).MaxDefinitionLevel() > 0 && parquetNulls(r, i)
		own = asWritten(own, types)
		own.Name = names[i]
		wide, err := p.width(r, i, own)
		if errors.Is(err, errHole) { // as with whole numbers that are missing themselves
			own.DType, own.Width = "<f8", 8
			wide, err = p.width(r, i, own)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: column %q: %w", f.Name(), own.Name, err)
		}
		ix.Fields = append(ix.Fields, own)
		perRow += wide
	}
	if len(ix.Fields) == 0 {
		return nil, fmt.Errorf("%s has no columns, so it has nothing to read", f.Name())
	}
	for g := range r.NumRowGroups() {
		rows := r.MetaData().RowGroup(g).NumRows()
		step := max(1, groupBlock/max(1, perRow))
		parts := max(1, (rows+step-1)/step)
		step = max(1, (rows+parts-1)/parts)
		for first := int64(0); first < rows; first += step {
			n := min(step, rows-first)
			ix.Blocks = append(ix.Blocks, Block{Rows: n, Bytes: n * perRow, Part: int32(g), First: first})
		}
	}
	return ix, nil
}

// leafName is the path of a leaf without the names that lists and maps bring: those are found by
// what they are, because a field of a struct may be called "list" or "item" too.
func leafName(c *schema.Column) string {
	var parts []string
	for n := c.SchemaNode(); n != nil && n.Parent() != nil; n = n.Parent() {
		if !ofList(n) {
			parts = append(parts, n.Name())
		}
	}
	slices.Reverse(parts)
	return strings.Join(parts, ".")
}

// ofList reports whether a node is the repeated group of a list or map, or the element in a list's.
func ofList(n schema.Node) bool {
	repeated := func(n schema.Node) bool {
		if n == nil || n.Parent() == nil || n.RepetitionType() != parquet.Repetitions.Repeated {
			return false
		}
		switch n.Parent().ConvertedType() {
		case schema.ConvertedTypes.List, schema.ConvertedTypes.Map, schema.ConvertedTypes.MapKeyValue:
			return true
		}
		return false
	}
	if repeated(n) {
		return true
	}
	group, is := n.Parent().(*schema.GroupNode)
	return is && repeated(group) && group.NumFields() == 1
}

// leafField returns the field that a leaf becomes.
func leafField(c *schema.Column) Field {
	name := leafName(c)
	from := c.PhysicalType().String()
	if l := c.LogicalType(); l != nil && l.IsValid() && !l.IsNone() {
		from += " " + l.String()
	}
	dtype, width, text := leafType(c)
	field := Field{Column: table.FixedOf(name, dtype, width, from)}
	switch {
	case c.MaxRepetitionLevel() > 1, dtype == "" && c.MaxRepetitionLevel() == 1:
		field.Column = table.Column{Name: name, Kind: table.Text, From: from + " list as JSON"}
	case dtype == "" && text:
		field.Column = table.Column{Name: name, Kind: table.Text, From: from}
	case dtype == "":
		field.Column = table.Column{Name: name, Kind: table.Binary, From: from}
	case c.MaxRepetitionLevel() == 1:
		field.Column = table.Column{Name: name, Kind: table.List, DType: dtype, Width: width, From: from}
	}
	return field
}

// leafType returns the dtype of a leaf's values. It is "" for byte strings, for which text reports
// whether they are UTF-8.
func leafType(c *schema.Column) (dtype string, width int, text bool) {
	units := map[schema.TimeUnitType]string{schema.TimeUnitMillis: "ms", schema.TimeUnitMicros: "us",
		schema.TimeUnitNanos: "ns"}
	switch l := c.LogicalType().(type) {
	case schema.DecimalLogicalType:
		return "<f8", 8, false
	case schema.DateLogicalType:
		return "<M8[D]", 8, false
	case schema.TimestampLogicalType:
		return "<M8[" + units[l.TimeUnit()] + "]", 8, false
	case schema.TimeLogicalType:
		return "<m8[" + units[l.TimeUnit()] + "]", 8, false
	case schema.IntLogicalType:
		return intType(int(l.BitWidth()), l.IsSigned())
	case schema.Float16LogicalType:
		return "<f2", 2, false
	case schema.StringLogicalType, schema.JSONLogicalType, schema.EnumLogicalType:
		return "", 0, true
	}
	switch c.PhysicalType() {
	case parquet.Types.Boolean:
		return "|b1", 1, false
	case parquet.Types.Int32:
		return "<i4", 4, false
	case parquet.Types.Int64:
		return "<i8", 8, false
	case parquet.Types.Int96:
		return "<M8[ns]", 8, false
	case parquet.Types.Float:
		return "<f4", 4, false
	case parquet.Types.Double:
		return "<f8", 8, false
	}
	return "", 0, false
}

func intType(bits int, signed bool) (string, int, bool) {
	kind, order := "u", "<"
	if signed {
		kind = "i"
	}
	if bits == 8 {
		order = "|"
	}
	return fmt.Sprintf("%s%s%d", order, kind, bits/8), bits / 8, false
}

// parquetNulls reports whether a leaf has missing values, or may have some because the file does
// not record their number.
func parquetNulls(r *file.Reader, leaf int) bool {
	for g := range r.NumRowGroups() {
		chunk, err := r.MetaData().RowGroup(g).ColumnChunk(leaf)
		if err != nil {
			return true
		}
		stats, err := chunk.Statistics()
		if err != nil || stats == nil || !stats.HasNullCount() || stats.NullCount() > 0 {
			return true
		}
	}
	return false
}

// width returns about how many bytes a row of a leaf takes when decoded. For texts and lists it
// reads some rows. Their size on disk is a poor guide, because equal values are stored once.
func (p *parquetFile) width(r *file.Reader, leaf int, own Field) (int64, error) {
	if own.Kind == table.Fixed && own.Null {
		return int64(max(own.Width, 8)), nil // whole numbers with holes become float64
	}
	if own.Kind == table.Fixed {
		return int64(own.Width), nil
	}
	const look = 2000
	for g := range r.NumRowGroups() {
		rows := min(look, r.MetaData().RowGroup(g).NumRows())
		if rows == 0 {
			continue
		}
		into := table.Data{}
		if err := p.readLeaf(r, leaf, g, 0, rows, own.Column, &into); err != nil {
			return 0, err
		}
		return 16 + int64(len(into.Bytes))/rows, nil
	}
	return 16, nil
}

func openParquet(f source.File, _ *Index, _ Options) (Decoder, error) {
	p := &parquetFile{f: f}
	r, err := p.reader()
	if err != nil {
		return nil, err
	}
	p.giveBack(r)
	return p, nil
}

func (p *parquetFile) Close() error { return nil }

func (p *parquetFile) Decode(b Block, columns []table.Column) (_ *table.Rows, err error) {
	defer caught(&err, fmt.Sprintf("%s: row group %d", p.f.Name(), b.Part))
	r, err := p.reader()
	if err != nil {
		return nil, err
	}
	leaves := r.MetaData().Schema
	rows := table.NewRows(columns, int(b.Rows), 0)
	rows.Count = int(b.Rows)
	names := leafNames(leaves)
	for i, c := range columns {
		leaf := slices.Index(names, c.Name)
		if err := p.readLeaf(r, leaf, int(b.Part), b.First, b.Rows, c, &rows.Data[i]); err != nil {
			return nil, fmt.Errorf("%s: row group %d, rows %d to %d: column %q: %w", p.f.Name(), b.Part,
				b.First, b.First+b.Rows, c.Name, err)
		}
	}
	p.giveBack(r)
	p.drop(b)
	return rows, nil
}

// DecodeSome decodes one column after another and keeps the rows that are wanted, so that the whole
// block is never in memory: a process that has just started would have to ask for all of it.
func (p *parquetFile) DecodeSome(b Block, want []int32, columns []table.Column) (_ *table.Rows,
	err error) {
	defer caught(&err, fmt.Sprintf("%s: row group %d", p.f.Name(), b.Part))
	r, err := p.reader()
	if err != nil {
		return nil, err
	}
	picks := make([]table.Pick, len(want))
	for i, row := range want {
		picks[i].Row = row
	}
	places := map[string]int{}
	for i, name := range leafNames(r.MetaData().Schema) {
		places[name] = i
	}
	some := &table.Rows{Count: len(want), Data: make([]table.Data, len(columns))}
	for i, c := range columns {
		own := []table.Column{c}
		all := table.NewRows(own, int(b.Rows), 0)
		all.Count = int(b.Rows)
		err := p.readLeaf(r, places[c.Name], int(b.Part), b.First, b.Rows, c, &all.Data[0])
		if err != nil {
			return nil, err
		}
		some.Data[i] = table.Extract(own, []*table.Rows{all}, picks).Data[0]
		all.Recycle()
	}
	p.giveBack(r)
	return some, nil
}

// drop lets the kernel forget the pages of the row group.
func (p *parquetFile) drop(b Block) {
	group := p.meta.RowGroup(int(b.Part))
	for i := range group.NumColumns() {
		if chunk, err := group.ColumnChunk(i); err == nil {
			start := chunk.DataPageOffset()
			if chunk.HasDictionaryPage() {
				start = min(start, chunk.DictionaryPageOffset())
			}
			p.f.Drop(start, chunk.TotalCompressedSize())
		}
	}
}
