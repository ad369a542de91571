package format

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"

	"memroom/feed/source"
	"memroom/feed/table"
)

// JSON lines: a row is an object. Columns are the keys that occur. A column is int64, float64,
// bool, text, or a list of numbers, by what all its values are; everything else (objects, lists of
// texts, mixtures) comes as its JSON text. A key that is absent or null is missing.

type jsonKind byte

const (
	jsonNull jsonKind = iota
	jsonBool
	jsonInt
	jsonFloat
	jsonText
	jsonList
	jsonObject
)

// jsonValue finds the value that begins at pos: its kind and its end, -1 where it is no JSON.
func jsonValue(s []byte, pos int) (jsonKind, int) {
	if pos >= len(s) {
		return 0, -1
	}
	switch c := s[pos]; c {
	case '"':
		return jsonText, jsonStringEnd(s, pos)
	case '{', '[':
		end := jsonNestedEnd(s, pos)
		if c == '[' {
			return jsonList, end
		}
		return jsonObject, end
	case 't':
		return jsonBool, word(s, pos, "true")
	case 'f':
		return jsonBool, word(s, pos, "false")
	case 'n':
		return jsonNull, word(s, pos, "null")
	case 'N':
		return jsonFloat, word(s, pos, "NaN") // Python writes it
	case 'I':
		return jsonFloat, word(s, pos, "Infinity")
	}
	kind, i := jsonInt, pos
	if s[i] == '-' {
		i++
		if i < len(s) && s[i] == 'I' {
			return jsonFloat, word(s, i, "Infinity")
		}
	}
	start := i
	for ; i < len(s); i++ {
		c := s[i]
		if c >= '0' && c <= '9' {
			continue
		}
		if c != '.' && c != 'e' && c != 'E' && c != '+' && c != '-' {
			break
		}
		kind = jsonFloat
	}
	if i == start {
		return 0, -1
	}
	if kind == jsonInt && !isInt(s[pos:i]) {
		kind = jsonFloat
	}
	return kind, i
}

func word(s []byte, pos int, w string) int {
	if len(s)-pos >= len(w) && string(s[pos:pos+len(w)]) == w {
		return pos + len(w)
	}
	return -1
}

func jsonStringEnd(s []byte, pos int) int {
	for i := pos + 1; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return -1
}

// jsonNestedEnd returns the end of an object or list.
func jsonNestedEnd(s []byte, pos int) int {
	depth := 0
	for i := pos; i < len(s); i++ {
		switch s[i] {
		case '"':
			if i = jsonStringEnd(s, i) - 1; i < 0 {
				return -1
			}
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				return i + 1
			}
		}
	}
	return -1
}

func jsonSpace(s []byte, pos int) int {
	for pos < len(s) && (s[pos] == ' ' || s[pos] == '\t' || s[pos] == '\r' || s[pos] == '\n') {
		pos++
	}
	return pos
}

// jsonMembers calls visit for each key and value of an object.
func jsonMembers(s []byte, visit func(key, value []byte, kind jsonKind) string) string {
	i := jsonSpace(s, 0)
	if i >= len(s) || s[i] != '{' {
		return "is not a JSON object"
	}
	i = jsonSpace(s, i+1)
	if i < len(s) && s[i] == '}' {
		return ""
	}
	for {
		if i >= len(s) || s[i] != '"' {
			return fmt.Sprintf("is not JSON: a key should begin at byte %d of the line", i)
		}
		end := jsonStringEnd(s, i)
		if end < 0 {
			return "is not JSON: the line ends inside a string"
		}
		key := s[i+1 : end-1]
		i = jsonSpace(s, end)
		if i >= len(s) || s[i] != ':' {
			return fmt.Sprintf("is not JSON: a colon should be at byte %d of the line", i)
		}
		i = jsonSpace(s, i+1)
		kind, end := jsonValue(s, i)
		if end < 0 {
			return fmt.Sprintf("is not JSON: the value at byte %d of the line is cut off or "+
				"wrong", i)
		}
		if why := visit(key, s[i:end], kind); why != "" {
			return why
		}
		i = jsonSpace(s, end)
		switch {
		case i < len(s) && s[i] == ',':
			i = jsonSpace(s, i+1)
		case i < len(s) && s[i] == '}':
			if jsonSpace(s, i+1) != len(s) {
				return "has more than one JSON object"
			}
			return ""
		default:
			return fmt.Sprintf("is not JSON: byte %d of the line should be a comma or a brace", i)
		}
	}
}

// jsonProfile counts the values of a key by type.
type jsonProfile struct {
	seen                                     int64  // rows that have the key
	last                                     int64  // the last of them, counted from 1
	large, negative                          int64  // of the whole numbers: above int64, below zero
	text                                     string // the first text, and its place
	row, from                                int64
	null, bools, ints, floats, texts, others int64
	intLists, floatLists, emptyLists         int64
}

func (p *jsonProfile) add(value []byte, kind jsonKind, row, from int64) {
	if p.last != row+1 { // a key may stand in a row twice
		p.seen++
	}
	p.last = row + 1
	switch kind {
	case jsonNull:
		p.null++
	case jsonBool:
		p.bools++
	case jsonInt:
		p.ints++
		if value[0] == '-' {
			p.negative++
		}
	case jsonFloat:
		if isLarge(value) {
			p.large++
		} else {
			p.floats++
		}
	case jsonText:
		if p.texts == 0 {
			p.text, p.row, p.from = string(value[:min(len(value), 60)]), row, from
		}
		p.texts++
	case jsonList:
		p.addList(value)
	default:
		p.others++
	}
}

func (p *jsonProfile) numbers() int64 { return p.ints + p.large + p.floats }

func (p *jsonProfile) addList(value []byte) {
	floats, count, ok := false, 0, true
	ok = jsonElements(value, func(v []byte, kind jsonKind) bool {
		count++
		floats = floats || kind == jsonFloat
		return kind == jsonInt || kind == jsonFloat
	})
	switch {
	case !ok:
		p.others++
	case count == 0:
		p.emptyLists++
	case floats:
		p.floatLists++
	default:
		p.intLists++
	}
}

// jsonElements calls visit for the elements of a list until it returns false.
func jsonElements(s []byte, visit func(v []byte, kind jsonKind) bool) bool {
	i := jsonSpace(s, 1)
	if i < len(s) && s[i] == ']' {
		return true
	}
	for {
		kind, end := jsonValue(s, i)
		if end < 0 || !visit(s[i:end], kind) {
			return false
		}
		i = jsonSpace(s, end)
		if i >= len(s) || s[i] != ',' {
			return i < len(s) && s[i] == ']'
		}
		i = jsonSpace(s, i+1)
	}
}

func (p *jsonProfile) field(name string, rows int64) Field {
	lists := p.intLists + p.floatLists + p.emptyLists
	f := Field{Null: p.null > 0 || p.seen < rows}
	numbers := p.numbers()
	kinds, texts := 0, p.texts
	if rare(texts, numbers) {
		texts = 0
	}
	for _, n := range []int64{p.bools, numbers, texts, lists} {
		if n > 0 {
			kinds++
		}
	}
	switch {
	case p.others > 0 || kinds > 1:
		f.Column = table.Column{Name: name, Kind: table.Text, From: "JSON text"}
	case texts > 0:
		f.Column = table.Column{Name: name, Kind: table.Text, From: "string"}
	case p.bools > 0:
		f.Column = table.FixedOf(name, "|b1", 1, "bool")
	case p.floats > 0 || p.large > 0 && p.negative > 0:
		f.Column = table.FixedOf(name, "<f8", 8, "number")
	case p.large > 0:
		f.Column = table.FixedOf(name, "<u8", 8, "number")
	case p.ints > 0:
		f.Column = table.FixedOf(name, "<i8", 8, "number")
	case lists > 0:
		f.Column = table.Column{Name: name, Kind: table.List, DType: "<i8", Width: 8, From: "list"}
		if p.floatLists > 0 || p.intLists == 0 {
			f.DType = "<f8"
		}
	default:
		f.Column, f.Any = table.FixedOf(name, "<f8", 8, "null"), true
	}
	return f
}

// jsonKey returns the text of a key: Python writes é as \u00e9.
func jsonKey(key []byte) []byte {
	if !slices.Contains(key, '\\') {
		return key
	}
	return jsonString(slices.Concat([]byte{'"'}, key, []byte{'"'}), nil)
}

// jsonStart returns where the rows begin, behind a byte order mark. A file that is one list or one
// object over many lines is named as such: each of its lines would be called bad.
func jsonStart(f source.File) (int64, error) {
	head, err := headOf(f, 64<<10)
	if err != nil {
		return 0, err
	}
	start := int64(0)
	if bytes.HasPrefix(head, []byte("\xEF\xBB\xBF")) {
		head, start = head[3:], 3
	}
	head = bytes.TrimLeft(head, " \t\r\n")
	if bytes.HasPrefix(head, []byte("[")) && bytes.HasPrefix(bytes.TrimLeft(head[1:], " \t\r\n"),
		[]byte("{")) {
		return 0, fmt.Errorf("%s is one JSON list, where each line should be an object (JSON lines); "+
			"to rewrite it: jq -c '.[]' old.json > new.jsonl", f.Name())
	}
	if first, _, more := bytes.Cut(head, []byte("\n")); more && string(bytes.TrimSpace(first)) == "{" {
		return 0, fmt.Errorf("%s has objects that go over several lines, where each line should be an "+
			"object (JSON lines); to rewrite it: jq -c . old.json > new.jsonl", f.Name())
	}
	return start, nil
}

func anyMember([]byte, []byte, jsonKind) string { return "" }

func scanJSONL(f source.File, o Options) (*Index, error) {
	ix := &Index{}
	var names []string
	profiles := map[string]*jsonProfile{}
	look := newSampler(f, o)
	var b blocker
	var looked int64
	start, err := jsonStart(f)
	if err != nil {
		return nil, err
	}
	err = eachRow(f, start, jsonRows, func(row []byte, at int64) error {
		// A row that will be left out does not count for the types, not even its good part.
		if look.wants(at) && !(o.Skip && jsonMembers(row, anyMember) != "") {
			why := jsonMembers(row, func(key, value []byte, kind jsonKind) string {
				key = jsonKey(key)
				p := profiles[string(key)]
				if p == nil {
					p = &jsonProfile{}
					profiles[string(key)] = p
					names = append(names, string(key))
					if len(names) > 100000 {
						return "brings the number of keys above 100,000: the keys are data"
					}
				}
				p.add(value, kind, b.row, at)
				return ""
			})
			if why != "" && !o.Skip {
				return &BadRow{f.Name(), b.row, at, why}
			}
			if why == "" {
				looked++
			}
		}
		b.add(at, int64(len(row)), int64(len(row)))
		return nil
	})
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		field := profiles[name].field(name, looked)
		if kind, ok := o.Types[name]; ok {
			t, err := declared(name, kind)
			if err != nil {
				return nil, err
			}
			t.Null = field.Null && t.DType != "<f4" && t.DType != "<f8"
			field = t
		} else if p := profiles[name]; field.Kind == table.Fixed && !o.Skip &&
			rare(p.texts, p.numbers()) {
			return nil, &BadRow{f.Name(), p.row, p.from, rareText(field.Column, p.text, p.texts)}
		}
		ix.Fields = append(ix.Fields, field)
	}
	ix.Blocks = b.blocks
	if o.Skip {
		if err := keepGood(f, ix, start, jsonRows, newJSONCheck(ix)); err != nil {
			return nil, err
		}
	}
	estimate(ix)
	return ix, nil
}

// newJSONCheck returns a function that reports whether a row can be read, by reading all of it.
func newJSONCheck(ix *Index) func([]byte) string {
	columns := Columns(ix.Fields)
	scratch := table.NewRows(columns, 1, 0)
	reader := newJSONRow(columns)
	return func(row []byte) string {
		scratch.Reset()
		return reader.into(row, scratch)
	}
}

// jsonRow reads rows into columns.
type jsonRow struct {
	columns []table.Column
	places  map[string]int
	values  []jsonFound
	room    []byte
}

type jsonFound struct {
	value []byte
	kind  jsonKind
}

func newJSONRow(columns []table.Column) *jsonRow {
	r := &jsonRow{columns: columns, places: map[string]int{}, values: make([]jsonFound, len(columns))}
	for i, c := range columns {
		r.places[c.Name] = i
	}
	return r
}

// place returns the column of a key, however the key is written.
func (r *jsonRow) place(key []byte) (int, bool) {
	i, ok := r.places[string(jsonKey(key))]
	return i, ok
}

// into adds a row, or returns why it cannot be read.
func (r *jsonRow) into(row []byte, rows *table.Rows) string {
	clear(r.values)
	why := jsonMembers(row, func(key, value []byte, kind jsonKind) string {
		if i, ok := r.place(key); ok {
			r.values[i] = jsonFound{value, kind}
		}
		return ""
	})
	for i := 0; i < len(r.columns) && why == ""; i++ {
		why = setJSON(&rows.Data[i], r.columns[i], r.values[i].value, r.values[i].kind, &r.room)
	}
	if why == "" {
		rows.Count++
	}
	return why
}

type jsonDecoder struct {
	f    source.File
	ix   *Index
	skip bool
}

func openJSONL(f source.File, ix *Index, o Options) (Decoder, error) {
	return &jsonDecoder{f, ix, o.Skip}, nil
}

func (d *jsonDecoder) Close() error { return nil }

func (d *jsonDecoder) Decode(b Block, columns []table.Column) (*table.Rows, error) {
	data, err := readBlock(d.f, b)
	if err != nil {
		return nil, err
	}
	return d.decode(data, b, columns)
}

// DecodeSome looks for the ends of lines, which is many times quicker than reading them.
func (d *jsonDecoder) DecodeSome(b Block, want []int32, columns []table.Column) (
	*table.Rows, error) {
	if d.skip {
		return nil, errSome
	}
	data, b, err := readSome(d.f, b, jsonRows, want)
	if err != nil {
		return nil, err
	}
	return d.decode(data, b, columns)
}

func (d *jsonDecoder) decode(data []byte, b Block, columns []table.Column) (*table.Rows, error) {
	defer table.Give(data)
	rows := table.NewRows(columns, int(b.Rows), b.Length)
	scan := newJSONScan(data, newJSONRow(columns), rows, int(b.Rows))
	bad := func([]byte) string { return "" }
	if d.skip {
		bad = newJSONCheck(d.ix)
	}
	err := rowsOf(data, jsonRows, func(row []byte, at int) error {
		if bad(row) != "" {
			return nil
		}
		if why := scan.row(at, at+len(row)); why != "" {
			return &BadRow{d.f.Name(), b.First + int64(rows.Count), b.Offset + int64(at), why}
		}
		return nil
	})
	scan.cut()
	if err == nil && int64(rows.Count) != b.Rows {
		err = changedSince(d.f.Name(), b, rows.Count)
	}
	return rows, err
}

// setJSON puts a value into a column, or returns why it cannot.
func setJSON(into *table.Data, c table.Column, v []byte, kind jsonKind, room *[]byte) string {
	switch {
	case c.Kind != table.Fixed && kind == jsonNull:
		into.AddNull()
	case c.Kind == table.Text && kind == jsonText && c.From != "JSON text":
		*room = jsonString(v, (*room)[:0])
		into.AddBytes(*room)
	case c.Kind == table.Text:
		into.AddBytes(v)
	case c.Kind == table.List:
		return setJSONList(into, c, v, kind)
	case c.DType == "|b1" && kind == jsonBool:
		into.Fixed = append(into.Fixed, map[byte]byte{'t': 1, 'f': 0}[v[0]])
	case kind == jsonNull && (c.DType == "<f8" || c.DType == "<f4"):
		return setNumber(into, c, []byte("NaN"))
	case kind == jsonBool && c.DType == "<f8":
		into.AddFloat(map[byte]float64{'t': 1, 'f': 0}[v[0]])
	case kind == jsonInt || kind == jsonFloat:
		return setNumber(into, c, v)
	default:
		return wrong(c, v)
	}
	return ""
}

func setNumber(into *table.Data, c table.Column, v []byte) string {
	switch c.DType {
	case "<f8":
		if string(v) == "NaN" {
			into.AddFloat(math.NaN())
			return ""
		}
		x, err := parseFloat(v)
		if err != nil {
			return wrong(c, v)
		}
		into.AddFloat(x)
		return ""
	case "<f4":
		return setFloat32(c)(v, false, into)
	case "|b1":
		return wrong(c, v)
	}
	return setInt(c)(v, false, into)
}

func setJSONList(into *table.Data, c table.Column, v []byte, kind jsonKind) string {
	if kind != jsonList {
		return wrong(c, v)
	}
	why := ""
	ok := jsonElements(v, func(e []byte, kind jsonKind) bool {
		if c.DType == "<f8" {
			x, err := parseFloat(e)
			if err != nil {
				why = wrong(c, e)
			}
			into.Bytes = binary.LittleEndian.AppendUint64(into.Bytes, math.Float64bits(x))
			return why == ""
		}
		x, err := strconv.ParseInt(string(e), 10, 64)
		if err != nil {
			why = wrong(c, e)
		}
		into.Bytes = binary.LittleEndian.AppendUint64(into.Bytes, uint64(x))
		return why == ""
	})
	if !ok && why == "" {
		why = wrong(c, v)
	}
	into.End()
	return why
}

// jsonString returns the text of a quoted string.
func jsonString(v []byte, out []byte) []byte {
	v = v[1 : len(v)-1]
	if !slices.Contains(v, '\\') {
		return append(out, v...)
	}
	for i := 0; i < len(v); i++ {
		if v[i] != '\\' || i+1 >= len(v) {
			out = append(out, v[i])
			continue
		}
		i++
		switch v[i] {
		case 'n':
			out = append(out, '\n')
		case 't':
			out = append(out, '\t')
		case 'r':
			out = append(out, '\r')
		case 'b':
			out = append(out, '\b')
		case 'f':
			out = append(out, '\f')
		case 'u':
			r := hex4(v, i+1)
			i += 4
			if utf16.IsSurrogate(r) && i+2 < len(v) && v[i+1] == '\\' && v[i+2] == 'u' {
				if joined := utf16.DecodeRune(r, hex4(v, i+3)); joined != utf8.RuneError {
					r = joined
					i += 6
				}
			}
			out = utf8.AppendRune(out, r)
		default:
			out = append(out, v[i])
		}
	}
	return out
}

func hex4(v []byte, at int) rune {
	if at+4 > len(v) {
		return utf8.RuneError
	}
	x, err := strconv.ParseUint(string(v[at:at+4]), 16, 32)
	if err != nil {
		return utf8.RuneError
	}
	return rune(x)
}
