package format

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"slices"

	"memroom/feed/source"
	"memroom/feed/table"
)

// TFRecord files of tf.train.Example. A feature that has one value in every row is a scalar (int64,
// float32, bytes), one with other numbers of values a list. A feature of several byte strings is
// refused. Both checksums of a record are checked.

const (
	featureBytes  = 1
	featureFloats = 2
	featureInts   = 3
	recordHead    = 12 // length and its checksum
	recordTail    = 4
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func maskedCRC(data []byte) uint32 {
	c := crc32.Checksum(data, castagnoli)
	return (c>>15 | c<<17) + 0xa282ead8
}

// recordEnd is the rowEnd of TFRecord; whether the record is sound is checked where it is decoded.
func recordEnd(data []byte) int {
	if len(data) < recordHead {
		return 0
	}
	n := binary.LittleEndian.Uint64(data)
	if n > longest || maskedCRC(data[:8]) != binary.LittleEndian.Uint32(data[8:]) {
		return len(data) // no record: what follows cannot be found, the rest is one bad row
	}
	if total := recordHead + int(n) + recordTail; total <= len(data) {
		return total
	}
	return 0
}

// recordRows are the rows of TFRecord: none is blank.
var recordRows = rowKind{recordEnd, func([]byte) bool { return false }}

// payload checks a record and returns its content, or what is wrong with it.
func payload(row []byte) ([]byte, string) {
	if len(row) < recordHead {
		return nil, fmt.Sprintf("is cut off: %d bytes where a record begins", len(row))
	}
	n := binary.LittleEndian.Uint64(row)
	if maskedCRC(row[:8]) != binary.LittleEndian.Uint32(row[8:]) {
		return nil, "is not a record: the checksum of its length is wrong"
	}
	if uint64(len(row)) != recordHead+n+recordTail {
		return nil, fmt.Sprintf("is cut off: %d of %d bytes are there", len(row), recordHead+n+recordTail)
	}
	data := row[recordHead : recordHead+n]
	if maskedCRC(data) != binary.LittleEndian.Uint32(row[recordHead+n:]) {
		return nil, "is damaged: the checksum of its content is wrong"
	}
	return data, ""
}

// protoField returns the next field of a message: its number, its content (of length-delimited
// fields) or its value, and the rest. ok is false where it is damaged.
func protoField(m []byte) (number int, content []byte, value uint64, rest []byte, ok bool) {
	tag, n := binary.Uvarint(m)
	if n <= 0 {
		return
	}
	m = m[n:]
	number = int(tag >> 3)
	switch tag & 7 {
	case 0:
		if value, n = binary.Uvarint(m); n <= 0 {
			return
		}
		return number, nil, value, m[n:], true
	case 1:
		if len(m) < 8 {
			return
		}
		return number, m[:8], 0, m[8:], true
	case 2:
		size, n := binary.Uvarint(m)
		if n <= 0 || size > uint64(len(m)-n) {
			return
		}
		return number, m[n : n+int(size)], 0, m[n+int(size):], true
	case 5:
		if len(m) < 4 {
			return
		}
		return number, m[:4], 0, m[4:], true
	}
	return
}

// features calls visit for each feature of an Example: its name, which kind of list it has, and
// that list.
func features(example []byte, visit func(name string, kind int, list []byte) string) string {
	const damaged = "is not a tf.train.Example"
	for len(example) > 0 {
		number, all, _, rest, ok := protoField(example)
		if !ok {
			return damaged
		}
		example = rest
		if number == 2 && len(all) > 0 {
			return "is a tf.train.SequenceExample, whose feature lists are not read: write each as one " +
				"int64_list or float_list of a tf.train.Example"
		}
		if number != 1 {
			continue
		}
		for len(all) > 0 {
			number, entry, _, rest, ok := protoField(all)
			if !ok {
				return damaged
			}
			all = rest
			if number != 1 {
				continue
			}
			var name string
			var feature []byte
			for len(entry) > 0 {
				number, content, _, rest, ok := protoField(entry)
				if !ok {
					return damaged
				}
				entry = rest
				switch number {
				case 1:
					name = string(content)
				case 2:
					feature = content
				}
			}
			kind, list := 0, []byte(nil)
			if len(feature) > 0 {
				if kind, list, _, _, ok = protoField(feature); !ok {
					return damaged
				}
			}
			if why := visit(name, kind, list); why != "" {
				return why
			}
		}
	}
	return ""
}

// listValues returns the values of a list as NumPy has them, or the byte strings.
func listValues(kind int, list []byte, out []byte) (values []byte, texts [][]byte, ok bool) {
	for len(list) > 0 {
		number, content, value, rest, fine := protoField(list)
		if !fine {
			return nil, nil, false
		}
		list = rest
		switch {
		case number != 1:
		case kind == featureBytes:
			texts = append(texts, content)
		case kind == featureFloats: // packed, or four bytes each
			out = append(out, content...)
		case content == nil:
			out = binary.LittleEndian.AppendUint64(out, value)
		default:
			for len(content) > 0 {
				v, n := binary.Uvarint(content)
				if n <= 0 {
					return nil, nil, false
				}
				out = binary.LittleEndian.AppendUint64(out, v)
				content = content[n:]
			}
		}
	}
	return out, texts, true
}

type tfProfile struct {
	kind                int
	seen, single, empty int64
}

func scanTFRecord(f source.File, o Options) (*Index, error) {
	ix := &Index{}
	var names []string
	profiles := map[string]*tfProfile{}
	var b blocker
	check := tfCheck{kinds: map[string]int{}}
	err := eachRow(f, 0, recordRows, func(row []byte, at int64) error {
		why := check.row(row)
		if why != "" {
			if o.Skip {
				ix.Skipped++
				return nil
			}
			return &BadRow{f.Name(), b.row, at, why}
		}
		// A row that is left out does not count for the types, not even its good part.
		for _, found := range check.found {
			p := profiles[found.name]
			if p == nil {
				p = &tfProfile{}
				profiles[found.name] = p
				names = append(names, found.name)
			}
			p.add(found)
			check.kinds[found.name] = p.kind
		}
		b.add(at, int64(len(row)), int64(len(row)))
		return nil
	})
	if err != nil {
		return nil, err
	}
	slices.Sort(names) // a protobuf map has no order
	for _, name := range names {
		ix.Fields = append(ix.Fields, profiles[name].field(name, b.row))
	}
	ix.Blocks = b.blocks
	return ix, nil
}

// tfCheck reports whether a record can be read, by looking at all of its features.
type tfCheck struct {
	kinds map[string]int // of features, where they are known
	found []tfFound      // the features of the last record
	room  []byte
}

// tfFound is a feature of a record and how many values it has.
type tfFound struct {
	name        string
	kind, count int
}

func (c *tfCheck) row(row []byte) string {
	c.found = c.found[:0]
	data, why := payload(row)
	if why != "" {
		return why
	}
	return features(data, c.feature)
}

func (c *tfCheck) feature(name string, kind int, list []byte) string {
	values, texts, ok := listValues(kind, list, c.room[:0])
	c.room = values[:0]
	count := len(texts)
	switch known := c.kinds[name]; {
	case !ok:
		return "is not a tf.train.Example"
	case kind == featureBytes && count > 1:
		return fmt.Sprintf("feature %q holds %d byte strings; only one a row is read", name, count)
	case known != 0 && kind != 0 && kind != known:
		return fmt.Sprintf("feature %q changes its type", name)
	case kind == featureFloats:
		count = len(values) / 4
	case kind == featureInts:
		count = len(values) / 8
	}
	c.found = append(c.found, tfFound{name, kind, count})
	return ""
}

func (p *tfProfile) add(found tfFound) {
	if p.kind == 0 {
		p.kind = found.kind
	}
	p.seen++
	switch found.count {
	case 0:
		p.empty++
	case 1:
		p.single++
	}
}

func (p *tfProfile) field(name string, rows int64) Field {
	single := p.single+p.empty == p.seen && p.single > 0
	f := Field{Null: p.single < rows && single}
	switch {
	case p.kind == featureBytes || p.kind == 0:
		f.Column = table.Column{Name: name, Kind: table.Binary, From: "bytes_list"}
	case p.kind == featureFloats && single:
		f.Column = table.FixedOf(name, "<f4", 4, "float_list")
	case p.kind == featureFloats:
		f.Column = table.Column{Name: name, Kind: table.List, DType: "<f4", Width: 4, From: "float_list"}
	case single:
		f.Column = table.FixedOf(name, "<i8", 8, "int64_list")
	default:
		f.Column = table.Column{Name: name, Kind: table.List, DType: "<i8", Width: 8, From: "int64_list"}
	}
	return f
}

type tfDecoder struct {
	f    source.File
	skip bool
	ix   *Index
}

func openTFRecord(f source.File, ix *Index, o Options) (Decoder, error) {
	return &tfDecoder{f, o.Skip, ix}, nil
}

// featureKinds maps the From of a column to its kind of feature.
var featureKinds = map[string]int{"bytes_list": featureBytes, "float_list": featureFloats,
	"int64_list": featureInts}

func (d *tfDecoder) Close() error { return nil }

func (d *tfDecoder) Decode(b Block, columns []table.Column) (*table.Rows, error) {
	data, err := readBlock(d.f, b)
	if err != nil {
		return nil, err
	}
	rows := table.NewRows(columns, int(b.Rows), b.Length)
	type found struct {
		kind int
		list []byte
	}
	values := make([]found, len(columns))
	room := []byte{}
	check := tfCheck{kinds: map[string]int{}}
	for _, f := range d.ix.Fields {
		check.kinds[f.Name] = featureKinds[f.From]
	}
	err = rowsOf(data, recordRows, func(row []byte, at int) error {
		if d.skip && check.row(row) != "" {
			return nil
		}
		clear(values)
		content, why := payload(row)
		if why == "" {
			why = features(content, func(name string, kind int, list []byte) string {
				for i := range columns {
					if columns[i].Name == name {
						values[i] = found{kind, list}
					}
				}
				return ""
			})
		}
		for i := 0; i < len(columns) && why == ""; i++ {
			why = setFeature(&rows.Data[i], columns[i], values[i].kind, values[i].list, &room)
		}
		if why != "" {
			return &BadRow{d.f.Name(), b.First + int64(rows.Count), b.Offset + int64(at), why}
		}
		rows.Count++
		return nil
	})
	return rows, err
}

func setFeature(into *table.Data, c table.Column, kind int, list []byte, room *[]byte) string {
	values, texts, ok := listValues(kind, list, (*room)[:0])
	*room = values[:0]
	switch {
	case !ok:
		return "is not a tf.train.Example"
	case c.Kind == table.Binary && len(texts) == 0:
		into.AddNull()
	case c.Kind == table.Binary:
		into.AddBytes(texts[0])
	case c.Kind == table.List:
		into.AddBytes(values)
	case len(values) == 0:
		if err := addMissing(into, c); err != nil {
			return err.Error()
		}
	case kind == featureInts && c.DType == "<f8": // some rows are missing
		into.AddFloat(float64(int64(binary.LittleEndian.Uint64(values))))
	default:
		into.Fixed = append(into.Fixed, values[:c.Width]...)
	}
	return ""
}
