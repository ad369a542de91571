package format

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"memroom/feed/source"
	"memroom/feed/table"
)

// CSV and TSV. Quotes are RFC 4180's, a row may span lines inside quotes, a blank line is no row. A
// column is int64, float64, bool or text by what all its values look like; empty cells and the
// words that pandas takes for missing (NA, NaN, null, ...) are missing.

// csvEnd returns the end of a row: the first newline that is not inside quotes.
func csvEnd(delim byte) rowEnd {
	return func(data []byte) int {
		n := bytes.IndexByte(data, '\n')
		if n < 0 || bytes.IndexByte(data[:n], '"') < 0 {
			return n + 1
		}
		start, quoted := true, false
		for i := 0; i < len(data); i++ {
			switch c := data[i]; {
			case quoted && c == '"':
				if i+1 < len(data) && data[i+1] == '"' {
					i++
				} else {
					quoted = false
				}
			case quoted:
			case c == '\n':
				return i + 1
			case c == '"' && start:
				quoted = true
			}
			start = !quoted && data[i] == delim
		}
		return 0
	}
}

// cell returns the cell that begins at pos, and where the next begins: past the end after the last.
func cell(row []byte, pos int, delim byte, room []byte) (value []byte, next int, quoted bool) {
	if pos < len(row) && row[pos] == '"' {
		return quotedCell(row, pos, delim, room)
	}
	for i := pos; i < len(row); i++ {
		if row[i] == delim {
			return row[pos:i], i + 1, false
		}
	}
	return row[min(pos, len(row)):], len(row) + 1, false
}

func quotedCell(row []byte, pos int, delim byte, room []byte) ([]byte, int, bool) {
	out := room[:0]
	i := pos + 1
	for i < len(row) {
		n := bytes.IndexByte(row[i:], '"')
		if n < 0 {
			out, i = append(out, row[i:]...), len(row)
			break
		}
		out = append(out, row[i:i+n]...)
		i += n + 1
		if i < len(row) && row[i] == '"' {
			out = append(out, '"')
			i++
			continue
		}
		break
	}
	for i < len(row) && row[i] != delim { // text after the closing quote belongs to the cell
		out = append(out, row[i])
		i++
	}
	return out, i + 1, true
}

var missingWords = func() map[string]bool {
	m := map[string]bool{}
	for _, w := range strings.Fields("#N/A #N/A #NA -1.#IND -1.#QNAN -NaN -nan 1.#IND 1.#QNAN <NA> N/A " +
		"NA NULL NaN None n/a nan null") {
		m[w] = true
	}
	m["#N/A N/A"] = true
	return m
}()

func missing(v []byte) bool {
	return len(v) == 0 || len(v) <= 8 && (v[0] == '#' || v[0] == '-' || v[0] == '1' || v[0] == '<' ||
		v[0] == 'N' || v[0] == 'n') && missingWords[string(v)]
}

// profile counts what a column's values look like.
type profile struct {
	missing, ints, floats, bools, texts int64
	large, negative                     int64 // of the whole numbers: above int64, below zero

	text      string // the first value that is text, and its place
	row, from int64
}

// rare reports whether a few values of a column are texts and all others numbers: then they are
// mistakes, not a column of texts.
func rare(texts, numbers int64) bool { return texts > 0 && numbers >= 100 && 100*texts <= numbers }

func (p *profile) numbers() int64 { return p.ints + p.large + p.floats }

func (p *profile) add(v []byte, row, from int64) {
	switch {
	case missing(v):
		p.missing++
	case isInt(v):
		p.ints++
		if trimSpace(v)[0] == '-' {
			p.negative++
		}
	case isLarge(v):
		p.large++
	case isBool(v):
		p.bools++
	default:
		if _, err := parseFloat(trimSpace(v)); err == nil {
			p.floats++
			break
		}
		if p.texts == 0 {
			p.text, p.row, p.from = string(v[:min(len(v), 60)]), row, from
		}
		p.texts++
	}
}

func isBool(v []byte) bool {
	switch string(v) {
	case "True", "False", "TRUE", "FALSE", "true", "false":
		return true
	}
	return false
}

// isInt reports whether a value is a whole number of at most 64 bits.
func isInt(v []byte) bool {
	v = trimSpace(v)
	digits := v
	if len(v) > 0 && (v[0] == '-' || v[0] == '+') {
		digits = v[1:]
	}
	if len(digits) == 0 || len(digits) > 19 {
		return false
	}
	for _, c := range digits {
		if c < '0' || c > '9' {
			return false
		}
	}
	if len(digits) == 19 {
		_, err := strconv.ParseInt(string(v), 10, 64)
		return err == nil
	}
	return true
}

// isLarge reports whether a value is a whole number that uint64 holds and int64 does not: hashes
// are.
func isLarge(v []byte) bool {
	v = trimSpace(v)
	if len(v) < 19 || len(v) > 20 {
		return false
	}
	x, err := strconv.ParseUint(string(v), 10, 64)
	return err == nil && x > math.MaxInt64
}

func trimSpace(v []byte) []byte {
	for len(v) > 0 && (v[0] == ' ' || v[0] == '\t') {
		v = v[1:]
	}
	for len(v) > 0 && (v[len(v)-1] == ' ' || v[len(v)-1] == '\t') {
		v = v[:len(v)-1]
	}
	return v
}

func (p *profile) field(name string) Field {
	f := Field{Null: p.missing > 0}
	switch {
	case p.texts > 0 && !rare(p.texts, p.numbers()) || p.bools > 0 && p.numbers() > 0:
		f.Column = table.Column{Name: name, Kind: table.Text}
	case p.bools > 0:
		f.Column = table.FixedOf(name, "|b1", 1, "")
	case p.floats > 0 || p.large > 0 && p.negative > 0:
		f.Column = table.FixedOf(name, "<f8", 8, "")
	case p.large > 0:
		f.Column = table.FixedOf(name, "<u8", 8, "")
	case p.ints > 0:
		f.Column = table.FixedOf(name, "<i8", 8, "")
	default:
		f.Column, f.Any = table.FixedOf(name, "<f8", 8, ""), true
	}
	f.From = "csv"
	return f
}

// declared returns the column for a type that the user named.
func declared(name, kind string) (Field, error) {
	widths := map[string]string{"int8": "|i1", "int16": "<i2", "int32": "<i4", "int64": "<i8",
		"uint8": "|u1", "uint16": "<u2", "uint32": "<u4", "uint64": "<u8", "float32": "<f4",
		"float64": "<f8", "bool": "|b1", "int": "<i8", "float": "<f8"}
	if d, known := widths[kind]; known {
		return Field{Column: table.FixedOf(name, d, int(d[2]-'0'), "declared "+kind)}, nil
	}
	if kind == "str" || kind == "text" || kind == "string" || kind == "object" {
		return Field{Column: table.Column{Name: name, Kind: table.Text, From: "declared str"}}, nil
	}
	return Field{}, fmt.Errorf("column %q: there is no type %q: use int8 to int64, uint8 to uint64, "+
		"float32, float64, bool or str", name, kind)
}

// wholly is the size up to which every row of a text file is looked at for the types of its
// columns. Of larger files, the first blocks and some hundred others are.
const wholly = 256 << 20

// sampler chooses the rows of a text file that are looked at closely.
type sampler struct {
	every int64 // one block of so many
	all   bool
}

func newSampler(f source.File, o Options) sampler {
	blocks := f.Size() / textBlock
	return sampler{every: max(1, blocks/256), all: o.Skip || f.Size() <= wholly}
}

func (s sampler) wants(at int64) bool {
	b := at / textBlock
	return s.all || b < 16 || b%s.every == 0
}

func scanCSV(f source.File, o Options) (*Index, error) {
	ix := &Index{Header: !o.NoHeader}
	names, start, err := csvHeader(f, o, ix)
	if err != nil {
		return nil, err
	}
	if len(names) == 0 {
		return ix, nil
	}
	profiles := make([]profile, len(names))
	fixed, err := declaredFields(names, o)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.Name(), err)
	}
	look := newSampler(f, o)
	var b blocker
	room := make([]byte, 0, 256)
	per := int64(len(names)) * 8
	err = eachRow(f, start, csvRows(ix.Delim), func(row []byte, at int64) error {
		if at+int64(len(row)) == f.Size() && unclosed(row, ix.Delim) && !o.Skip {
			return &BadRow{f.Name(), b.row, at, openQuote}
		}
		if look.wants(at) {
			why := lookAtRow(trimEnd(row), ix.Delim, profiles, room, b.row, at)
			if why != "" && !o.Skip {
				return &BadRow{f.Name(), b.row, at, why}
			}
		}
		b.add(at, int64(len(row)), per)
		return nil
	})
	if err != nil {
		return nil, err
	}
	for i, name := range names {
		p := &profiles[i]
		field := p.field(name)
		if t, ok := fixed[name]; ok {
			t.Null = field.Null && t.DType != "<f4" && t.DType != "<f8"
			field = t
		} else if rare(p.texts, p.numbers()) && !o.Skip {
			return nil, &BadRow{f.Name(), p.row, p.from, rareText(field.Column, p.text, p.texts)}
		}
		ix.Fields = append(ix.Fields, field)
	}
	ix.Blocks = b.blocks
	if o.Skip {
		if err := keepGood(f, ix, start, csvRows(ix.Delim), newRowCheck(ix).why); err != nil {
			return nil, err
		}
	}
	estimate(ix)
	return ix, nil
}

const openQuote = "has a quote that is not closed: all that follows it was read as one cell. Close " +
	"or double it; skip_bad=True (--skip-bad) leaves it out, with all that follows"

// unclosed reports whether a row ends inside quotes, which only the last one of a file can.
func unclosed(row []byte, delim byte) bool {
	if bytes.IndexByte(row, '"') < 0 {
		return false
	}
	start, quoted := true, false
	for i := 0; i < len(row); i++ {
		switch c := row[i]; {
		case quoted && c == '"':
			if i+1 < len(row) && row[i+1] == '"' {
				i++
			} else {
				quoted = false
			}
		case c == '"' && start:
			quoted = true
		}
		start = !quoted && row[i] == delim
	}
	return quoted
}

// raggedRow returns the error for a row of too few or too many cells.
func raggedRow(cells, columns int) string {
	noun := "cells"
	if cells == 1 {
		noun = "cell"
	}
	return fmt.Sprintf("has %d %s for %d columns; skip_bad=True (--skip-bad) leaves such rows out",
		cells, noun, columns)
}

// rareText returns the error for a text in a column of numbers.
func rareText(c table.Column, value string, texts int64) string {
	return fmt.Sprintf("column %q: %q is no number, as nearly all values of the column are (%d are "+
		"not): skip_bad=True (--skip-bad) leaves such rows out, types={%q: \"str\"} reads texts",
		c.Name, value, texts, c.Name)
}

// keepGood makes the blocks of a file anew, without the rows that cannot be read.
func keepGood(f source.File, ix *Index, start int64, kind rowKind, bad func([]byte) string) error {
	var b blocker
	ix.Skipped = 0
	err := eachRow(f, start, kind, func(row []byte, at int64) error {
		if bad(row) != "" {
			ix.Skipped++
			return nil
		}
		b.add(at, int64(len(row)), int64(len(row)))
		return nil
	})
	ix.Blocks = b.blocks
	return err
}

// rowCheck reports whether a row can be read, by reading all columns of it.
type rowCheck struct {
	delim   byte
	plan    []*csvTarget
	scratch *table.Rows
	room    []byte
}

func newRowCheck(ix *Index) *rowCheck {
	columns := Columns(ix.Fields)
	c := &rowCheck{delim: ix.Delim, scratch: table.NewRows(columns, 1, 0), room: make([]byte, 0, 256)}
	for i, column := range columns {
		c.plan = append(c.plan, newTarget(column, &c.scratch.Data[i]))
	}
	return c
}

func (c *rowCheck) why(row []byte) string {
	c.scratch.Reset()
	if unclosed(row, c.delim) {
		return openQuote
	}
	return decodeRow(trimEnd(row), c.delim, c.plan, c.room)
}

// estimate sets what the blocks will take in memory, now that the types are known.
func estimate(ix *Index) {
	var width int64
	texts := false
	for _, f := range ix.Fields {
		switch {
		case f.Kind != table.Fixed:
			texts = true
			width += 8
		case f.Null:
			width += 8
		default:
			width += int64(f.Width)
		}
	}
	for i := range ix.Blocks {
		b := &ix.Blocks[i]
		b.Bytes = b.Rows * width
		if texts {
			b.Bytes += b.Length
		}
	}
}

func declaredFields(names []string, o Options) (map[string]Field, error) {
	fields := map[string]Field{}
	for name, kind := range o.Types {
		if !slices.Contains(names, name) {
			return nil, fmt.Errorf("a type is given for column %q; the columns are %q", name, names)
		}
		f, err := declared(name, kind)
		if err != nil {
			return nil, err
		}
		fields[name] = f
	}
	return fields, nil
}

// lookAtRow adds a row to the profiles, or returns why it is bad.
func lookAtRow(row []byte, delim byte, profiles []profile, room []byte, number, at int64) string {
	pos, n := 0, 0
	for ; pos <= len(row); n++ {
		v, next, _ := cell(row, pos, delim, room)
		if n < len(profiles) {
			profiles[n].add(v, number, at)
		}
		pos = next
	}
	if n != len(profiles) {
		return raggedRow(n, len(profiles))
	}
	return ""
}

// csvHeader finds the names, the delimiter, and where the rows begin.
func csvHeader(f source.File, o Options, ix *Index) ([]string, int64, error) {
	if len(o.Delimiter) > 1 && o.Delimiter != `\t` {
		return nil, 0, fmt.Errorf("%s: the delimiter %q is not one character", f.Name(), o.Delimiter)
	}
	head, err := headOf(f, 4<<20)
	if err != nil {
		return nil, 0, err
	}
	start := int64(0)
	if bytes.HasPrefix(head, []byte("\xEF\xBB\xBF")) { // a byte order mark
		head, start = head[3:], 3
	}
	for n := lineEnd(head); n > 0 && hollow(head[:n], '\t'); n = lineEnd(head) {
		head, start = head[n:], start+int64(n)
	}
	first := head
	if n := bytes.IndexByte(head, '\n'); n >= 0 {
		first = head[:n]
	}
	ix.Delim = delimiter(f.Name(), o, first)
	n := csvEnd(ix.Delim)(head)
	if n <= 0 {
		n = len(head)
	}
	if hollow(head, ix.Delim) {
		return nil, start, nil
	}
	var names []string
	row := trimEnd(head[:n])
	for pos := 0; pos <= len(row); {
		v, next, _ := cell(row, pos, ix.Delim, nil)
		names = append(names, string(v))
		pos = next
	}
	if o.NoHeader {
		for i := range names {
			names[i] = strconv.Itoa(i)
		}
		return names, start, nil
	}
	return unique(names), start + int64(n), nil
}

func delimiter(name string, o Options, first []byte) byte {
	if o.Delimiter == `\t` { // as a shell passes it on
		return '\t'
	}
	if o.Delimiter != "" {
		return o.Delimiter[0]
	}
	if strings.HasSuffix(strings.ToLower(Uncompressed(name)), ".tsv") {
		return '\t'
	}
	for _, c := range []byte{',', '\t', ';', '|'} {
		if bytes.IndexByte(first, c) >= 0 {
			return c
		}
	}
	return ','
}

// unique names empty and repeated columns as pandas does.
func unique(names []string) []string {
	seen := map[string]int{}
	for i, name := range names {
		if name == "" {
			name = fmt.Sprintf("Unnamed: %d", i)
		}
		if n := seen[name]; n > 0 {
			names[i] = fmt.Sprintf("%s.%d", name, n)
		} else {
			names[i] = name
		}
		seen[name]++
	}
	return names
}

type csvDecoder struct {
	f    source.File
	ix   *Index
	skip bool
}

func openCSV(f source.File, ix *Index, o Options) (Decoder, error) {
	return &csvDecoder{f, ix, o.Skip}, nil
}

func (d *csvDecoder) Close() error { return nil }

// setter puts a cell into a column, or returns why it cannot.
type setter func(v []byte, quoted bool, into *table.Data) string

func (d *csvDecoder) Decode(b Block, columns []table.Column) (*table.Rows, error) {
	data, err := readBlock(d.f, b)
	if err != nil {
		return nil, err
	}
	return d.decode(data, b, columns)
}

// DecodeSome looks for the ends of rows, which is many times quicker than reading their cells.
func (d *csvDecoder) DecodeSome(b Block, want []int32, columns []table.Column) (
	*table.Rows, error) {
	if d.skip {
		return nil, errSome
	}
	data, b, err := readSome(d.f, b, csvRows(d.ix.Delim), want)
	if err != nil {
		return nil, err
	}
	return d.decode(data, b, columns)
}

func (d *csvDecoder) decode(data []byte, b Block, columns []table.Column) (*table.Rows, error) {
	defer table.Give(data)
	var err error
	rows := table.NewRows(columns, int(b.Rows), b.Length)
	plan := planOf(d.ix, columns, rows)
	if !d.skip && !strings.ContainsRune("+-.0123456789eE\"\r\n", rune(d.ix.Delim)) {
		at, why := newCSVScan(data, d.ix.Delim, plan, rows, int(b.Rows)).run()
		if why != "" {
			err = &BadRow{d.f.Name(), b.First + int64(rows.Count), b.Offset + int64(at), why}
		}
	} else {
		err = d.carefully(data, b, plan, rows)
	}
	if err == nil && int64(rows.Count) != b.Rows {
		err = changedSince(d.f.Name(), b, rows.Count)
	}
	return rows, err
}

// planOf returns the column that each cell of a row goes to; nil where nobody wants it.
func planOf(ix *Index, columns []table.Column, rows *table.Rows) []*csvTarget {
	plan := make([]*csvTarget, len(ix.Fields))
	for i, f := range ix.Fields {
		same := func(c table.Column) bool { return c.Name == f.Name }
		if at := slices.IndexFunc(columns, same); at >= 0 {
			plan[i] = newTarget(columns[at], &rows.Data[at])
		}
	}
	return plan
}

// carefully reads row by row, and leaves bad ones out where that is wanted.
func (d *csvDecoder) carefully(data []byte, b Block, plan []*csvTarget, rows *table.Rows) error {
	room := make([]byte, 0, 256)
	var check *rowCheck
	if d.skip {
		check = newRowCheck(d.ix)
	}
	return rowsOf(data, csvRows(d.ix.Delim), func(row []byte, at int) error {
		row = trimEnd(row)
		if check != nil && check.why(row) != "" {
			return nil
		}
		if why := decodeRow(row, d.ix.Delim, plan, room); why != "" {
			return &BadRow{d.f.Name(), b.First + int64(rows.Count), b.Offset + int64(at), why}
		}
		rows.Count++
		return nil
	})
}

func count(row []byte, delim byte, room []byte) int {
	n := 0
	for pos := 0; pos <= len(row); n++ {
		_, pos, _ = cell(row, pos, delim, room)
	}
	return n
}

func decodeRow(row []byte, delim byte, plan []*csvTarget, room []byte) string {
	pos := 0
	for i, t := range plan {
		if pos > len(row) {
			return raggedRow(i, len(plan))
		}
		if t != nil && t.quick == quickFloat {
			if v, next, ok := fastFloat(row, pos, delim); ok {
				t.into.AddFloat(v)
				pos = next
				continue
			}
		}
		v, next, quoted := cell(row, pos, delim, room)
		pos = next
		if t != nil {
			if why := t.set(v, quoted, t.into); why != "" {
				return why
			}
		}
	}
	if pos <= len(row) {
		return raggedRow(len(plan)+count(row[pos:], delim, room), len(plan))
	}
	return ""
}

// csvTarget is the column that a cell goes to.
type csvTarget struct {
	into  *table.Data
	set   setter
	width int    // bytes of a value; 0: a text
	out   []byte // room for all values of a column of fixed width
	quick byte   // how csvScan reads it
}

// What csvScan reads by itself.
const (
	quickFloat byte = iota + 1
	quickFloat32
	quickInt
	quickText // of JSON
)

func newTarget(c table.Column, into *table.Data) *csvTarget {
	t := &csvTarget{into: into, width: c.Width, out: into.Fixed[:cap(into.Fixed)]}
	switch {
	case c.Kind == table.Text:
		t.set, t.width = setText, 0
	case c.DType == "<f8":
		t.quick, t.set = quickFloat, setFloat(c)
	case c.DType == "<f4":
		t.quick, t.set = quickFloat32, setFloat32(c)
	case c.DType == "|b1":
		t.set = setBool(c)
	default:
		if t.set = setInt(c); c.DType == "<i8" {
			t.quick = quickInt
		}
	}
	return t
}

func setText(v []byte, _ bool, into *table.Data) string {
	if missing(v) {
		into.AddNull()
	} else {
		into.AddBytes(v)
	}
	return ""
}

func wrong(c table.Column, v []byte) string {
	if len(v) > 60 {
		v = append(slices.Clone(v[:60]), "..."...)
	}
	return fmt.Sprintf("column %q: %q is no %s. If that is how the data is, name the type: "+
		"types={%q: \"str\"}", c.Name, v, c.DType, c.Name)
}

func setFloat(c table.Column) setter {
	return func(v []byte, _ bool, into *table.Data) string {
		x, ok := floatCell(v)
		if !ok {
			return wrong(c, v)
		}
		into.AddFloat(x)
		return ""
	}
}

func setFloat32(c table.Column) setter {
	return func(v []byte, _ bool, into *table.Data) string {
		x := math.NaN()
		if !missing(v) {
			// rounded once: through float64 it would be rounded twice
			y, err := strconv.ParseFloat(string(trimSpace(v)), 32)
			if err != nil && !strings.Contains(err.Error(), "range") {
				return wrong(c, v)
			}
			x = y
		}
		into.Fixed = binary.LittleEndian.AppendUint32(into.Fixed, math.Float32bits(float32(x)))
		return ""
	}
}

// floatCell reads a number, a missing value as NaN, a truth value as 1 or 0.
func floatCell(v []byte) (float64, bool) {
	if missing(v) {
		return math.NaN(), true
	}
	if x, err := parseFloat(trimSpace(v)); err == nil {
		return x, true
	}
	if isBool(v) {
		if v[0] == 't' || v[0] == 'T' {
			return 1, true
		}
		return 0, true
	}
	return 0, false
}

func setBool(c table.Column) setter {
	return func(v []byte, _ bool, into *table.Data) string {
		switch string(trimSpace(v)) {
		case "True", "TRUE", "true", "1":
			into.Fixed = append(into.Fixed, 1)
		case "False", "FALSE", "false", "0":
			into.Fixed = append(into.Fixed, 0)
		default:
			return wrong(c, v)
		}
		return ""
	}
}

func setInt(c table.Column) setter {
	bits := 8 * c.Width
	signed := c.DType[1] == 'i'
	return func(v []byte, _ bool, into *table.Data) string {
		text := string(trimSpace(v))
		var x uint64
		var err error
		if signed {
			var y int64
			y, err = strconv.ParseInt(text, 10, bits)
			x = uint64(y)
		} else {
			x, err = strconv.ParseUint(strings.TrimPrefix(text, "+"), 10, bits)
		}
		if err != nil {
			return wrong(c, v)
		}
		var eight [8]byte
		binary.LittleEndian.PutUint64(eight[:], x)
		into.Fixed = append(into.Fixed, eight[:c.Width]...)
		return ""
	}
}
