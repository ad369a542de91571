package format

import (
	"archive/tar"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	arrowdecimal "github.com/apache/arrow-go/v18/arrow/decimal"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/arrow-go/v18/arrow/decimal256"
	"github.com/apache/arrow-go/v18/arrow/extensions"
	"github.com/apache/arrow-go/v18/arrow/float16"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/compress"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/schema"

	"memroom/feed/source"
	"memroom/feed/table"
)

// absent is how a missing row is shown, where a column can say so.
const absent = "missing"

// shown returns a row of a column as a person would write it.
func shown(t *testing.T, c table.Column, d *table.Data, row int) string {
	t.Helper()
	if c.Kind == table.Fixed {
		return shownValues(t, c.DType, d.Fixed[row*c.Width:(row+1)*c.Width])
	}
	start := int64(0)
	if row > 0 {
		start = d.Ends[row-1]
	}
	if d.Null != nil && d.Null[row] {
		return absent
	}
	if own := d.Bytes[start:d.Ends[row]]; c.Kind == table.List {
		return "[" + shownValues(t, c.DType, own) + "]"
	} else {
		return string(own)
	}
}

func shownValues(t *testing.T, dtype string, b []byte) string {
	t.Helper()
	var all []string
	for len(b) > 0 {
		var v any
		width := 8
		switch dtype {
		case "|b1":
			v, width = b[0] == 1, 1
		case "|i1":
			v, width = int8(b[0]), 1
		case "|u1":
			v, width = b[0], 1
		case "<i2":
			v, width = int16(binary.LittleEndian.Uint16(b)), 2
		case "<u2":
			v, width = binary.LittleEndian.Uint16(b), 2
		case "<f2":
			v, width = float16.FromBits(binary.LittleEndian.Uint16(b)).Float32(), 2
		case "<i4":
			v, width = int32(binary.LittleEndian.Uint32(b)), 4
		case "<u4":
			v, width = binary.LittleEndian.Uint32(b), 4
		case "<f4":
			v, width = math.Float32frombits(binary.LittleEndian.Uint32(b)), 4
		case "<u8":
			v = binary.LittleEndian.Uint64(b)
		case "<f8":
			v = math.Float64frombits(binary.LittleEndian.Uint64(b))
		default:
			if v = int64(binary.LittleEndian.Uint64(b)); dtype != "<i8" && v == int64(notATime) {
				v = absent
			}
		}
		all, b = append(all, fmt.Sprint(v)), b[width:]
	}
	return strings.Join(all, " ")
}

// decoded reads a whole file: a row of shown values for each row.
func decoded(t *testing.T, f source.File, o Options) (columns []table.Column, rows [][]string,
	blocks int) {
	t.Helper()
	ix, err := Scan(f, o)
	if err != nil {
		t.Fatal(err)
	}
	columns = Columns(ix.Fields)
	d, err := Open(f, ix, o)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for _, b := range ix.Blocks {
		got, err := d.Decode(b, columns)
		if err != nil {
			t.Fatal(err)
		}
		if int64(got.Count) != b.Rows {
			t.Errorf("a block of %d rows gave %d", b.Rows, got.Count)
		}
		for i := range got.Count {
			row := make([]string, len(columns))
			for c := range columns {
				row[c] = shown(t, columns[c], &got.Data[c], i)
			}
			rows = append(rows, row)
		}
	}
	return columns, rows, len(ix.Blocks)
}

// knownColumn is a column that another library writes, and what is read back.
type knownColumn struct {
	kind  arrow.DataType
	dtype string                          // what it becomes without missing rows
	add   func(b array.Builder, row int)  // its value
	want  func(row int, null bool) string // how that value is shown; null: the column has holes
}

// number makes a column of numbers. Those of whole numbers are shown as float64 where rows are
// missing.
func number[T any](kind arrow.DataType, dtype string, value func(int) T,
	add func(array.Builder, T)) knownColumn {
	return knownColumn{kind, dtype, func(b array.Builder, row int) { add(b, value(row)) },
		func(row int, null bool) string {
			v := any(value(row))
			switch x := v.(type) {
			case uint32:
				if null {
					v = float64(x)
				}
			case uint64:
				if null {
					v = float64(x)
				}
			case int64:
				if null && !strings.Contains(dtype, "8[") {
					v = float64(x)
				}
			case bool:
				if null && x {
					v = 1.0
				} else if null {
					v = 0.0
				}
			}
			return fmt.Sprint(v)
		}}
}

func knownColumns() map[string]knownColumn {
	odd := func(row int) int64 { return int64(row)*2654435761%1000003 - 500000 }
	words := func(row int) string { return strings.Repeat("wörter ", row%7) + fmt.Sprint(row) }
	repeated := func(row int) string { return fmt.Sprint("class ", row%5) }
	day := int64(24 * time.Hour / time.Millisecond)
	list := func(row int) (values []int32) {
		for i := range row % 4 {
			values = append(values, int32(row*10+i))
		}
		return values
	}
	return map[string]knownColumn{
		"bool": number(arrow.FixedWidthTypes.Boolean, "|b1", func(r int) bool { return r%3 == 0 },
			func(b array.Builder, v bool) { b.(*array.BooleanBuilder).Append(v) }),
		"i8": number(arrow.PrimitiveTypes.Int8, "|i1", func(r int) int8 { return int8(odd(r)) },
			func(b array.Builder, v int8) { b.(*array.Int8Builder).Append(v) }),
		"u8": number(arrow.PrimitiveTypes.Uint8, "|u1", func(r int) uint8 { return uint8(odd(r)) },
			func(b array.Builder, v uint8) { b.(*array.Uint8Builder).Append(v) }),
		"i16": number(arrow.PrimitiveTypes.Int16, "<i2", func(r int) int16 { return int16(odd(r)) },
			func(b array.Builder, v int16) { b.(*array.Int16Builder).Append(v) }),
		"u16": number(arrow.PrimitiveTypes.Uint16, "<u2", func(r int) uint16 { return uint16(odd(r)) },
			func(b array.Builder, v uint16) { b.(*array.Uint16Builder).Append(v) }),
		"i32": number(arrow.PrimitiveTypes.Int32, "<i4", func(r int) int32 { return int32(odd(r)) },
			func(b array.Builder, v int32) { b.(*array.Int32Builder).Append(v) }),
		"u32": number(arrow.PrimitiveTypes.Uint32, "<u4",
			func(r int) uint32 { return math.MaxUint32 - uint32(r) },
			func(b array.Builder, v uint32) { b.(*array.Uint32Builder).Append(v) }),
		"i64": number(arrow.PrimitiveTypes.Int64, "<i8", func(r int) int64 { return odd(r) << 20 },
			func(b array.Builder, v int64) { b.(*array.Int64Builder).Append(v) }),
		"u64": number(arrow.PrimitiveTypes.Uint64, "<u8",
			func(r int) uint64 { return 1<<63 + uint64(r)<<12 },
			func(b array.Builder, v uint64) { b.(*array.Uint64Builder).Append(v) }),
		"f16": number(arrow.FixedWidthTypes.Float16, "<f2",
			func(r int) float32 { return float32(r%64) / 4 }, func(b array.Builder, v float32) {
				b.(*array.Float16Builder).Append(float16.New(v))
			}),
		"f32": number(arrow.PrimitiveTypes.Float32, "<f4",
			func(r int) float32 { return float32(odd(r)) / 3 },
			func(b array.Builder, v float32) { b.(*array.Float32Builder).Append(v) }),
		"f64": number(arrow.PrimitiveTypes.Float64, "<f8",
			func(r int) float64 { return math.Sqrt(float64(r)) },
			func(b array.Builder, v float64) { b.(*array.Float64Builder).Append(v) }),
		"day": number(arrow.FixedWidthTypes.Date32, "<M8[D]", func(r int) int64 { return odd(r) / 50 },
			func(b array.Builder, v int64) { b.(*array.Date32Builder).Append(arrow.Date32(v)) }),
		"moment": number(arrow.FixedWidthTypes.Timestamp_us, "<M8[us]",
			func(r int) int64 { return 1700000000000000 + odd(r) }, func(b array.Builder, v int64) {
				b.(*array.TimestampBuilder).Append(arrow.Timestamp(v))
			}),
		"clock": number(arrow.FixedWidthTypes.Time32ms, "<m8[ms]",
			func(r int) int64 { return (odd(r)*odd(r)%day + day) % day },
			func(b array.Builder, v int64) { b.(*array.Time32Builder).Append(arrow.Time32(v)) }),
		"decimal": {&arrow.Decimal128Type{Precision: 12, Scale: 2}, "<f8", func(b array.Builder, r int) {
			b.(*array.Decimal128Builder).Append(decimal128.FromI64(odd(r)))
		}, func(r int, _ bool) string { return fmt.Sprint(float64(odd(r)) / 100) }},
		"date": number(arrow.FixedWidthTypes.Date64, "<M8[ms]", func(r int) int64 { return odd(r) * day },
			func(b array.Builder, v int64) { b.(*array.Date64Builder).Append(arrow.Date64(v)) }),
		"nanoseconds": number(arrow.FixedWidthTypes.Time64ns, "<m8[ns]",
			func(r int) int64 { return int64(r) * 123456789 },
			func(b array.Builder, v int64) { b.(*array.Time64Builder).Append(arrow.Time64(v)) }),
		"small decimal": {&arrow.Decimal32Type{Precision: 9, Scale: 3}, "<f8",
			func(b array.Builder, r int) {
				b.(*array.Decimal32Builder).Append(arrowdecimal.Decimal32(odd(r)))
			}, func(r int, _ bool) string { return fmt.Sprint(float64(odd(r)) / 1000) }},
		"middle decimal": {&arrow.Decimal64Type{Precision: 12, Scale: 1}, "<f8",
			func(b array.Builder, r int) {
				b.(*array.Decimal64Builder).Append(arrowdecimal.Decimal64(odd(r)))
			}, func(r int, _ bool) string { return fmt.Sprint(float64(odd(r)) / 10) }},
		"large decimal": {&arrow.Decimal256Type{Precision: 50, Scale: 2}, "<f8",
			func(b array.Builder, r int) {
				b.(*array.Decimal256Builder).Append(decimal256.FromI64(odd(r)))
			}, func(r int, _ bool) string { return fmt.Sprint(float64(odd(r)) / 100) }},
		"large text": number(arrow.BinaryTypes.LargeString, "", words,
			func(b array.Builder, v string) { b.(*array.LargeStringBuilder).Append(v) }),
		"text view": number(arrow.BinaryTypes.StringView, "", words,
			func(b array.Builder, v string) { b.(*array.StringViewBuilder).Append(v) }),
		"large bytes": number(arrow.BinaryTypes.LargeBinary, "", words,
			func(b array.Builder, v string) { b.(*array.BinaryBuilder).Append([]byte(v)) }),
		"bytes view": number(arrow.BinaryTypes.BinaryView, "", words,
			func(b array.Builder, v string) { b.(*array.BinaryViewBuilder).Append([]byte(v)) }),
		"bytes of one size": number(&arrow.FixedSizeBinaryType{ByteWidth: 7}, "", repeated,
			func(b array.Builder, v string) { b.(*array.FixedSizeBinaryBuilder).Append([]byte(v)) }),
		"identities": {extensions.NewUUIDType(), "", func(b array.Builder, r int) {
			b.(*extensions.UUIDBuilder).AppendBytes([16]byte{byte(r), 'x', 15: byte(r / 256)})
		}, func(r int, _ bool) string {
			return string([]byte{byte(r), 'x', 15: byte(r / 256)})
		}},
		"numbered classes": {&arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int8,
			ValueType: arrow.PrimitiveTypes.Float32}, "<f4", func(b array.Builder, r int) {
			if err := b.(*array.Float32DictionaryBuilder).Append(float32(r%9) / 2); err != nil {
				panic(err)
			}
		}, func(r int, _ bool) string { return fmt.Sprint(float32(r%9) / 2) }},
		"named classes": {&arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int16,
			ValueType: arrow.BinaryTypes.String}, "", func(b array.Builder, r int) {
			if err := b.(*array.BinaryDictionaryBuilder).AppendString(repeated(r)); err != nil {
				panic(err)
			}
		}, func(r int, _ bool) string { return repeated(r) }},
		"text": number(arrow.BinaryTypes.String, "", words,
			func(b array.Builder, v string) { b.(*array.StringBuilder).Append(v) }),
		"class": number(arrow.BinaryTypes.String, "", repeated,
			func(b array.Builder, v string) { b.(*array.StringBuilder).Append(v) }),
		"bytes": number(arrow.BinaryTypes.Binary, "", words,
			func(b array.Builder, v string) { b.(*array.BinaryBuilder).Append([]byte(v)) }),
		"list": {arrow.ListOf(arrow.PrimitiveTypes.Int32), "<i4", func(b array.Builder, r int) {
			l := b.(*array.ListBuilder)
			l.Append(true)
			l.ValueBuilder().(*array.Int32Builder).AppendValues(list(r), nil)
		}, func(r int, _ bool) string { return fmt.Sprint(list(r)) }},
	}
}

// knownRecord returns rows of a column; every 11th is missing where there are holes.
func knownRecord(c knownColumn, name string, rows int, holes bool) arrow.RecordBatch {
	schema := arrow.NewSchema([]arrow.Field{{Name: name, Type: c.kind, Nullable: holes}}, nil)
	b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	for row := range rows {
		if holes && row%11 == 3 {
			b.Field(0).AppendNull()
		} else {
			c.add(b.Field(0), row)
		}
	}
	return b.NewRecordBatch()
}

// checkKnown compares a file with the column it holds.
func checkKnown(t *testing.T, f source.File, c knownColumn, rows int, holes bool) {
	t.Helper()
	columns, got, _ := decoded(t, f, Options{})
	if len(columns) != 1 || !holes && columns[0].DType != c.dtype {
		t.Fatalf("columns %+v, want dtype %q", columns, c.dtype)
	}
	if len(got) != rows {
		t.Fatalf("%d rows, want %d", len(got), rows)
	}
	for row := range rows {
		want := c.want(row, holes)
		if holes && row%11 == 3 {
			want = absent
			if strings.Contains(columns[0].DType, "f") && columns[0].Kind == table.Fixed {
				want = "NaN"
			}
		}
		if got[row][0] != want {
			t.Fatalf("row %d is %q, want %q (%+v)", row, got[row][0], want, columns[0])
		}
	}
}

func TestKnownColumnsInArrow(t *testing.T) {
	const rows = 500
	packings := map[string][]ipc.Option{"plain": nil, "lz4": {ipc.WithLZ4()}, "zstd": {ipc.WithZstd()}}
	for name, c := range knownColumns() {
		for packing, options := range packings {
			for _, holes := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s %s holes %v", name, packing, holes), func(t *testing.T) {
					var file bytes.Buffer
					record := knownRecord(c, name, rows, holes)
					w, err := ipc.NewFileWriter(&file, append(options, ipc.WithSchema(record.Schema()))...)
					if err != nil {
						t.Fatal(err)
					}
					// Several record batches, the last one shorter.
					for from := int64(0); from < rows; from += 150 {
						if err := w.Write(record.NewSlice(from, min(rows, from+150))); err != nil {
							t.Fatal(err)
						}
					}
					if err := w.Close(); err != nil {
						t.Fatal(err)
					}
					checkKnown(t, open(t, "known.arrow", file.Bytes()), c, rows, holes)
				})
			}
		}
	}
}

// leafColumn is a column of a Parquet file: how it is declared, and values to write.
type leafColumn struct {
	node  func(name string, r parquet.Repetition) (schema.Node, error)
	dtype string
	write func(w file.ColumnChunkWriter, rows []int, levels []int16) error
	want  func(row int, null bool) string
}

// leaf makes a column of values of one physical type. Whole numbers are shown as float64 where rows
// are missing.
func leaf[T any](kind parquet.Type, logical schema.LogicalType, length int, dtype string,
	value func(row int) T, show func(v T, null bool) string,
	write func(w file.ColumnChunkWriter, values []T, levels []int16) error) leafColumn {
	return leafColumn{func(name string, r parquet.Repetition) (schema.Node, error) {
		if logical == nil {
			return schema.NewPrimitiveNode(name, r, kind, -1, int32(length))
		}
		return schema.NewPrimitiveNodeLogical(name, r, logical, kind, length, -1)
	}, dtype, func(w file.ColumnChunkWriter, rows []int, levels []int16) error {
		var values []T
		for _, row := range rows {
			values = append(values, value(row))
		}
		return write(w, values, levels)
	}, func(row int, null bool) string { return show(value(row), null) }}
}

// instant returns nanoseconds since 1970 as old writers do: those of the day, and its Julian
// number.
func instant(ns int64) (v parquet.Int96) {
	day := int64(24 * time.Hour)
	binary.LittleEndian.PutUint64(v[:], uint64(ns%day))
	binary.LittleEndian.PutUint32(v[8:], uint32(2440588+ns/day))
	return v
}

func leafColumns() map[string]leafColumn {
	odd := func(row int) int64 { return int64(row)*2654435761%1000003 - 500000 }
	type chunk = file.ColumnChunkWriter
	int32s := func(w chunk, v []int32, levels []int16) error {
		_, err := w.(*file.Int32ColumnChunkWriter).WriteBatch(v, levels, nil)
		return err
	}
	int64s := func(w chunk, v []int64, levels []int16) error {
		_, err := w.(*file.Int64ColumnChunkWriter).WriteBatch(v, levels, nil)
		return err
	}
	texts := func(w chunk, v []parquet.ByteArray, levels []int16) error {
		_, err := w.(*file.ByteArrayColumnChunkWriter).WriteBatch(v, levels, nil)
		return err
	}
	fixed := func(w chunk, v []parquet.FixedLenByteArray, levels []int16) error {
		_, err := w.(*file.FixedLenByteArrayColumnChunkWriter).WriteBatch(v, levels, nil)
		return err
	}
	// shows a number as another type has it
	plain32 := func(v int32, null bool) string {
		if null {
			return fmt.Sprint(float64(v))
		}
		return fmt.Sprint(v)
	}
	plain64 := func(v int64, null bool) string {
		if null {
			return fmt.Sprint(float64(v))
		}
		return fmt.Sprint(v)
	}
	always := func(v int64, _ bool) string { return fmt.Sprint(v) }
	small := func(row int) int32 { return int32(odd(row)) % 100 }
	types := parquet.Types
	return map[string]leafColumn{
		"bool": leaf(types.Boolean, nil, -1, "|b1", func(r int) bool { return r%3 == 0 },
			func(v bool, null bool) string {
				if !null {
					return fmt.Sprint(v)
				}
				return map[bool]string{true: "1", false: "0"}[v]
			}, func(w chunk, v []bool, levels []int16) error {
				_, err := w.(*file.BooleanColumnChunkWriter).WriteBatch(v, levels, nil)
				return err
			}),
		"i32": leaf(types.Int32, nil, -1, "<i4", func(r int) int32 { return int32(odd(r)) }, plain32,
			int32s),
		"i8": leaf(types.Int32, schema.NewIntLogicalType(8, true), -1, "|i1", small, plain32, int32s),
		"u16": leaf(types.Int32, schema.NewIntLogicalType(16, false), -1, "<u2",
			func(r int) int32 { return 65535 - int32(r) }, plain32, int32s),
		"u32": leaf(types.Int32, schema.NewIntLogicalType(32, false), -1, "<u4",
			func(r int) int32 { return -1 - int32(r) }, func(v int32, null bool) string {
				if null {
					return fmt.Sprint(float64(uint32(v)))
				}
				return fmt.Sprint(uint32(v))
			}, int32s),
		"i64": leaf(types.Int64, nil, -1, "<i8", func(r int) int64 { return odd(r) << 20 }, plain64,
			int64s),
		"day": leaf(types.Int32, schema.DateLogicalType{}, -1, "<M8[D]", small,
			func(v int32, _ bool) string { return fmt.Sprint(v) }, int32s),
		"moment": leaf(types.Int64, schema.NewTimestampLogicalType(true, schema.TimeUnitMicros), -1,
			"<M8[us]", func(r int) int64 { return 1700000000000000 + odd(r) }, always, int64s),
		"clock": leaf(types.Int32, schema.NewTimeLogicalType(true, schema.TimeUnitMillis), -1, "<m8[ms]",
			func(r int) int32 { return int32(r * 1000) }, func(v int32,
				_ bool) string {
				return fmt.Sprint(v)
			},
			int32s),
		"u64": leaf(types.Int64, schema.NewIntLogicalType(64, false), -1, "<u8",
			func(r int) int64 { return -1 - int64(r)<<12 }, func(v int64, null bool) string {
				if null {
					return fmt.Sprint(float64(uint64(v)))
				}
				return fmt.Sprint(uint64(v))
			}, int64s),
		"old moment": leaf(types.Int96, nil, -1, "<M8[ns]", func(r int) parquet.Int96 {
			return instant(1_600_000_000_000_000_000 + int64(r)*1_000_000_007)
		}, func(v parquet.Int96, _ bool) string {
			return fmt.Sprint(int64(binary.LittleEndian.Uint64(v[:])) +
				(int64(binary.LittleEndian.Uint32(v[8:]))-2440588)*int64(24*time.Hour))
		},
			func(w chunk, v []parquet.Int96, levels []int16) error {
				_, err := w.(*file.Int96ColumnChunkWriter).WriteBatch(v, levels, nil)
				return err
			}),
		"half": leaf(types.FixedLenByteArray, schema.Float16LogicalType{}, 2, "<f2",
			func(r int) parquet.FixedLenByteArray {
				return binary.LittleEndian.AppendUint16(nil, float16.New(float32(r%64)/4).Uint16())
			}, func(v parquet.FixedLenByteArray, _ bool) string {
				return fmt.Sprint(float16.FromBits(binary.LittleEndian.Uint16(v)).Float32())
			}, fixed),
		"large decimal": leaf(types.FixedLenByteArray, schema.NewDecimalLogicalType(20, 3), 9, "<f8",
			func(r int) parquet.FixedLenByteArray {
				high := byte(0)
				if odd(r) < 0 {
					high = 0xFF
				}
				return binary.BigEndian.AppendUint64([]byte{high}, uint64(odd(r)))
			}, func(v parquet.FixedLenByteArray, _ bool) string {
				return fmt.Sprint(float64(int64(binary.BigEndian.Uint64(v[1:]))) / 1000)
			}, fixed),
		"decimal": leaf(types.Int64, schema.NewDecimalLogicalType(12, 2), -1, "<f8", odd,
			func(v int64, _ bool) string { return fmt.Sprint(float64(v) / 100) }, int64s),
		"f32": leaf(types.Float, nil, -1, "<f4", func(r int) float32 { return float32(odd(r)) / 3 },
			func(v float32, _ bool) string { return fmt.Sprint(v) },
			func(w chunk, v []float32, levels []int16) error {
				_, err := w.(*file.Float32ColumnChunkWriter).WriteBatch(v, levels, nil)
				return err
			}),
		"f64": leaf(types.Double, nil, -1, "<f8", func(r int) float64 { return math.Sqrt(float64(r)) },
			func(v float64, _ bool) string { return fmt.Sprint(v) },
			func(w chunk, v []float64, levels []int16) error {
				_, err := w.(*file.Float64ColumnChunkWriter).WriteBatch(v, levels, nil)
				return err
			}),
		"text": leaf(types.ByteArray, schema.StringLogicalType{}, -1, "", func(r int) parquet.ByteArray {
			return []byte(strings.Repeat("wörter ", r%7) + fmt.Sprint(r))
		}, func(v parquet.ByteArray, _ bool) string { return string(v) }, texts),
		"class": leaf(types.ByteArray, schema.StringLogicalType{}, -1, "", func(r int) parquet.ByteArray {
			return []byte(fmt.Sprint("class ", r%5))
		}, func(v parquet.ByteArray, _ bool) string { return string(v) }, texts),
		"bytes": leaf(types.FixedLenByteArray, nil, 4, "", func(r int) parquet.FixedLenByteArray {
			return binary.BigEndian.AppendUint32(nil, uint32(r)*77777777)
		}, func(v parquet.FixedLenByteArray, _ bool) string { return string(v) }, fixed),
	}
}

// writeParquet writes rows of one column in row groups of `group` rows; every 11th row is missing
// where there are holes.
func writeParquet(t *testing.T, c leafColumn, rows, group int, holes bool,
	properties []parquet.WriterProperty) []byte {
	t.Helper()
	repetition := parquet.Repetitions.Required
	if holes {
		repetition = parquet.Repetitions.Optional
	}
	node, err := c.node("known", repetition)
	if err != nil {
		t.Fatal(err)
	}
	root, err := schema.NewGroupNode("schema", parquet.Repetitions.Required,
		schema.FieldList{node}, -1)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	w := file.NewParquetWriter(&out, root,
		file.WithWriterProps(parquet.NewWriterProperties(properties...)))
	for from := 0; from < rows; from += group {
		written, err := w.AppendRowGroupChecked()
		if err != nil {
			t.Fatal(err)
		}
		column, err := written.NextColumn()
		if err != nil {
			t.Fatal(err)
		}
		var present []int
		var levels []int16
		for row := from; row < min(rows, from+group); row++ {
			if holes && row%11 == 3 {
				levels = append(levels, 0)
				continue
			}
			present = append(present, row)
			levels = append(levels, 1)
		}
		if !holes {
			levels = nil
		}
		if err := c.write(column, present, levels); err != nil {
			t.Fatal(err)
		}
		if err := column.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// otherEncodings are those that the quick way leaves to the library.
var otherEncodings = map[string]parquet.Encoding{
	"i32": parquet.Encodings.DeltaBinaryPacked, "i64": parquet.Encodings.DeltaBinaryPacked,
	"moment": parquet.Encodings.DeltaBinaryPacked, "f32": parquet.Encodings.ByteStreamSplit,
	"f64": parquet.Encodings.ByteStreamSplit, "text": parquet.Encodings.DeltaByteArray,
}

// TestKnownColumnsInParquet: every type, over pages and row groups that end inside each other, in
// the encodings and packings that the other library writes.
func TestKnownColumnsInParquet(t *testing.T) {
	const rows = 700
	ways := map[string][]parquet.WriterProperty{
		"plain": {parquet.WithDictionaryDefault(false)},
		"dictionary": {parquet.WithDictionaryDefault(true),
			parquet.WithCompression(compress.Codecs.Snappy)},
		"pages of version 2": {parquet.WithDataPageVersion(parquet.DataPageV2),
			parquet.WithDictionaryDefault(false), parquet.WithCompression(compress.Codecs.Zstd)},
		"small pages": {parquet.WithDataPageSize(300), parquet.WithBatchSize(16),
			parquet.WithDictionaryDefault(true), parquet.WithCompression(compress.Codecs.Gzip)},
		"pages of version 2 with a dictionary": {parquet.WithDataPageVersion(parquet.DataPageV2),
			parquet.WithDataPageSize(300), parquet.WithBatchSize(16)},
		"small plain pages": {parquet.WithDataPageSize(300), parquet.WithBatchSize(16),
			parquet.WithDictionaryDefault(false)},
	}
	for name, c := range leafColumns() {
		own := maps.Clone(ways)
		if encoding, ok := otherEncodings[name]; ok {
			own["another encoding"] = []parquet.WriterProperty{parquet.WithDictionaryDefault(false),
				parquet.WithEncoding(encoding), parquet.WithDataPageSize(500), parquet.WithBatchSize(16)}
		}
		for way, properties := range own {
			for _, holes := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s %s holes %v", name, way, holes), func(t *testing.T) {
					content := writeParquet(t, c, rows, 300, holes, properties)
					f := open(t, "known.parquet", content)
					checkKnown(t, f, knownColumn{dtype: c.dtype, want: c.want}, rows, holes)
					checkParts(t, content)
				})
			}
		}
	}
}

// npyFile writes an array of version 1.0, as numpy.save does.
func npyFile(descr, shape string, fortran bool, data []byte) []byte {
	order := "False"
	if fortran {
		order = "True"
	}
	header := fmt.Sprintf("{'descr': '%s', 'fortran_order': %s, 'shape': (%s), }", descr, order, shape)
	for (len(header)+11)%64 != 0 {
		header += " "
	}
	file := append([]byte("\x93NUMPY\x01\x00"), byte((len(header)+1)%256), byte((len(header)+1)/256))
	return append(append(append(file, header...), '\n'), data...)
}

func TestKnownArrays(t *testing.T) {
	var data []byte
	const rows = 70000 // of 24 bytes: more than one block
	random := rand.New(rand.NewPCG(1, 2))
	for range rows * 6 {
		data = binary.LittleEndian.AppendUint32(data, math.Float32bits(random.Float32()))
	}
	columns, got, blocks := decoded(t, open(t, "a.npy", npyFile("<f4", "70000, 2, 3", false, data)),
		Options{})
	c := columns[0]
	if len(columns) != 1 || c.Name != "data" || c.DType != "<f4" || fmt.Sprint(c.Shape) != "[2 3]" ||
		c.Width != 24 || len(got) != rows || blocks < 2 {
		t.Fatalf("%+v: %d rows in %d blocks", columns, len(got), blocks)
	}
	for row := range rows {
		if want := shownValues(t, "<f4", data[row*24:row*24+24]); got[row][0] != want {
			t.Fatalf("row %d is %s, want %s", row, got[row][0], want)
		}
	}
	_, got, _ = decoded(t, open(t, "b.npy", npyFile("<i8", "3,", false,
		[]byte("\x01\x00\x00\x00\x00\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00"+
			"\xff\xff\xff\xff\xff\xff\xff\xff"))), Options{})
	if fmt.Sprint(got) != "[[1] [2] [-1]]" {
		t.Errorf("%v", got)
	}
	for name, c := range map[string]struct {
		file []byte
		want string
	}{
		"cut off": {npyFile("<f4", "3, 2", false, data[:20]), "cut off"},
		"no axis": {npyFile("<f4", "", false, data[:4]), "no dimension"},
		"objects": {npyFile("|O", "3,", false, data[:24]), "Python objects"},
		"damaged": {npyFile("<fx", "3,", false, data[:24]), "damaged"},
	} {
		_, err := Scan(open(t, "c.npy", c.file), Options{})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want one that says %q", name, err, c.want)
		}
	}
	// An array in Fortran order with one axis is the same as in C order.
	if _, got, _ := decoded(t, open(t, "d.npy", npyFile("|u1", "2,", true, []byte{7, 9})),
		Options{}); fmt.Sprint(got) != "[[7] [9]]" {
		t.Errorf("%v", got)
	}
	// Its rows with more axes are gathered from all over the file: element (row, i, j) lies at
	// row + 2*i + 6*j.
	if _, got, _ := decoded(t, open(t, "e.npy", npyFile("|u1", "2, 3, 2", true,
		[]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11})), Options{}); fmt.Sprint(got) !=
		"[[0 6 2 8 4 10] [1 7 3 9 5 11]]" {
		t.Errorf("%v", got)
	}
}

// TestKnownTar: members that share a key are a sample, a folder is part of the key, and what is no
// sample is passed over.
func TestKnownTar(t *testing.T) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	add := func(name, content string) {
		t.Helper()
		if err := w.WriteHeader(&tar.Header{Name: name, Size: int64(len(content)), Mode: 0o644,
			Typeflag: tar.TypeReg}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(content)); err != nil {
			t.Fatal(err)
		}
	}
	var want [][]string
	large := strings.Repeat("x", 300_000)
	for i := range 12 { // of 300 kB: more than one block
		key := fmt.Sprintf("train/%03d", i)
		add(key+".CLS", fmt.Sprint(i%3))
		add(fmt.Sprintf("train/.hidden%d.cls", i), "not a sample")
		add("LICENSE", "not a sample")
		add(key+".seg.png", large+fmt.Sprint(i))
		want = append(want, []string{key, fmt.Sprint(i % 3), large + fmt.Sprint(i)})
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	columns, got, blocks := decoded(t, open(t, "a.tar", out.Bytes()), Options{})
	if len(columns) != 3 || columns[0].Name != "__key__" || columns[1].Name != "cls" ||
		columns[2].Name != "seg.png" || blocks < 2 || !slices.EqualFunc(got, want, slices.Equal) {
		t.Errorf("%+v, %d blocks, %d rows", columns, blocks, len(got))
	}
	cut := open(t, "b.tar", out.Bytes()[:out.Len()-2_000_000])
	if _, err := Scan(cut, Options{}); err == nil || !strings.Contains(err.Error(), "cut off") {
		t.Errorf("a file without its end: %v", err)
	}
	_, got, _ = decoded(t, cut, Options{Skip: true})
	if len(got) == 0 || len(got) >= len(want) || !slices.EqualFunc(got, want[:len(got)],
		slices.Equal) {
		t.Errorf("%d whole samples of a file without its end", len(got))
	}
}

// message encodes a field of a protocol buffer that has a length.
func message(number int, content []byte) []byte {
	out := binary.AppendUvarint(nil, uint64(number)<<3|2)
	return append(binary.AppendUvarint(out, uint64(len(content))), content...)
}

// example encodes a tf.train.Example of features that are encoded lists: kind 1 holds bytes, 2
// floats, 3 whole numbers.
func example(features map[string][]byte) []byte {
	var all []byte
	for name, feature := range features {
		all = append(all, message(1, append(message(1, []byte(name)), message(2, feature)...))...)
	}
	return message(1, all)
}

func record(content []byte) []byte {
	out := binary.LittleEndian.AppendUint64(nil, uint64(len(content)))
	out = binary.LittleEndian.AppendUint32(out, maskedCRC(out))
	return binary.LittleEndian.AppendUint32(append(out, content...), maskedCRC(content))
}

func TestKnownRecords(t *testing.T) {
	var file []byte
	var want [][]string
	const rows = 6000
	for i := range rows {
		var floats, ints, one []byte
		for j := range i % 3 {
			floats = binary.LittleEndian.AppendUint32(floats, math.Float32bits(float32(i)+float32(j)/2))
		}
		ints = binary.AppendUvarint(ints, uint64(i))
		one = append(binary.AppendUvarint(one, 1<<3), binary.AppendUvarint(nil, ^uint64(i))...) // -1-i
		name := strings.Repeat("n", i%200)
		file = append(file, record(example(map[string][]byte{
			"packed": message(3, message(1, ints)), "single": message(3, one),
			"floats": message(2, message(1, floats)), "name": message(1, message(1, []byte(name))),
		}))...)
		shownFloats := "[" + shownValues(t, "<f4", floats) + "]"
		want = append(want, []string{shownFloats, name, fmt.Sprint(i), fmt.Sprint(-1 - i)})
	}
	columns, got, blocks := decoded(t, open(t, "a.tfrecord", file), Options{})
	if blocks < 2 || len(got) != rows || len(columns) != 4 || columns[0].Kind != table.List ||
		columns[1].Kind != table.Binary || columns[2].DType != "<i8" || columns[2].Kind != table.Fixed {
		t.Fatalf("%+v, %d blocks, %d rows", columns, blocks, len(got))
	}
	for i := range want {
		if !slices.Equal(got[i], want[i]) {
			t.Fatalf("row %d: %q, want %q", i, got[i], want[i])
		}
	}
	whole := record(example(map[string][]byte{"a": message(3, message(1, []byte{7}))}))
	wrong := func(at int) []byte {
		b := slices.Clone(whole)
		b[at] ^= 1
		return b
	}
	for name, c := range map[string]struct {
		file []byte
		want string
	}{
		"length":     {wrong(2), "checksum of its length"},
		"content":    {wrong(recordHead + 1), "checksum of its content"},
		"cut off":    {whole[:len(whole)-1], "cut off"},
		"no example": {record([]byte{0xff}), "not a tf.train.Example"},
		"two texts": {record(example(map[string][]byte{"a": message(1,
			append(message(1, []byte("x")), message(1, []byte("y"))...))})), "2 byte strings"},
	} {
		_, err := Scan(open(t, "b.tfrecord", append(slices.Clone(whole), c.file...)), Options{})
		var bad *BadRow
		if !errors.As(err, &bad) || !strings.Contains(err.Error(), c.want) ||
			!strings.Contains(err.Error(), "row 1") {
			t.Errorf("%s: %v, want one about row 1 that says %q", name, err, c.want)
		}
		_, got, _ := decoded(t, open(t, "c.tfrecord", append(slices.Clone(whole), c.file...)),
			Options{Skip: true})
		if fmt.Sprint(got) != "[[7]]" {
			t.Errorf("%s: %v is left", name, got)
		}
	}
}

func TestKnownLines(t *testing.T) {
	_, got, _ := decoded(t, open(t, "a.txt", []byte("first\r\n\nsecond line\nlast")), Options{})
	if fmt.Sprint(got) != "[[first] [second line] [last]]" {
		t.Errorf("%q", got)
	}
}

// TestFilesOfOneStream: what the fields of two files become together.
func TestFilesOfOneStream(t *testing.T) {
	fixed := func(dtype string, width int) Field {
		return Field{Column: table.FixedOf("a", dtype, width, "")}
	}
	list := func(dtype string, width int) Field {
		return Field{Column: table.Column{Name: "a", Kind: table.List, DType: dtype, Width: width}}
	}
	text := Field{Column: table.Column{Name: "a", Kind: table.Text}}
	empty := fixed("<f8", 8) // of a file without rows
	empty.Any = true
	holes := func(f Field) Field { f.Null = true; return f }
	any := holes(empty)
	for _, c := range []struct {
		x, y Field
		want string // dtype and whether rows are missing; "" is an error
	}{
		{fixed("<i4", 4), fixed("<i4", 4), "<i4 false"},
		{fixed("<i4", 4), holes(fixed("<i4", 4)), "<i4 true"},
		{holes(fixed("<i4", 4)), fixed("<i8", 8), "<i8 true"},
		{fixed("<i4", 4), fixed("|i1", 1), "<i8 false"},
		{fixed("<i4", 4), fixed("<f4", 4), "<f8 false"},
		{fixed("<i8", 8), fixed("<u8", 8), "<f8 false"},
		{fixed("<i4", 4), any, "<i4 true"},
		{fixed("<i4", 4), empty, "<i4 false"},
		{any, text, " true"},
		{list("<i8", 8), list("<f8", 8), "<f8 false"},
		{list("<i4", 4), list("<f8", 8), ""},
		{text, fixed("<i4", 4), ""},
		{fixed("<M8[D]", 8), fixed("<i8", 8), ""},
	} {
		for range 2 {
			merged, err := Merge([]Field{c.x}, []Field{c.y}, "second.csv", false)
			got := ""
			if err == nil {
				got = fmt.Sprint(merged[0].DType, " ", merged[0].Null)
			} else if !strings.Contains(err.Error(), "second.csv") {
				t.Errorf("%v does not name the file", err)
			}
			if got != c.want {
				t.Errorf("%+v and %+v: %q, want %q", c.x, c.y, got, c.want)
			}
			c.x, c.y = c.y, c.x
		}
	}
	b := fixed("<i4", 4)
	b.Name = "b"
	for _, other := range [][]Field{{text, b}, {b}} {
		if _, err := Merge([]Field{text}, other, "second.csv", false); err == nil {
			t.Errorf("%+v has other columns", other)
		}
	}
	if m, err := Merge([]Field{text, b}, []Field{b, text}, "",
		false); err != nil || m[0].Name != "a" ||
		m[1].Name != "b" {
		t.Errorf("another order of columns: %+v, %v", m, err)
	}
}

func TestFormatsByName(t *testing.T) {
	for name, want := range map[string]string{"a/b.CSV": "csv", "x.tsv.gz": "csv",
		"x.jsonl.zst": "jsonl", "http://h/x.parquet?token=a.csv": "parquet",
		"train.tfrecord-00000-of-00010": "tfrecord", "x.feather": "arrow", "x": "", "x.gz": ""} {
		if got, err := Of(name, Options{}); got != want || (err == nil) != (want != "") {
			t.Errorf("%s: %q, %v, want %q", name, got, err, want)
		}
	}
	if got, err := Of("x.csv", Options{Format: "text"}); got != "text" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := Of("x.csv", Options{Format: "xml"}); err == nil {
		t.Error("xml is no format")
	}
}

// checkRows compares a small file with its known rows: "name dtype" of each column, then its rows.
func checkRows(t *testing.T, name, content string, o Options, columns []string, want ...[]string) {
	t.Helper()
	got, rows, _ := decoded(t, open(t, name, []byte(content)), o)
	var kinds []string
	for _, c := range got {
		kinds = append(kinds, strings.TrimSpace(fmt.Sprintf("%s %s", c.Name, c.DType)))
	}
	if !slices.Equal(kinds, columns) {
		t.Errorf("%q: columns %q, want %q", content, kinds, columns)
	}
	if !slices.EqualFunc(rows, want, slices.Equal) {
		t.Errorf("%q: rows %q, want %q", content, rows, want)
	}
}

func TestKnownCells(t *testing.T) {
	checkRows(t, "a.csv", "n,x,name,yes\n1,0.5,Ann,true\n-2,1e3,\"a \"\"b\"\", c\",false\n", Options{},
		[]string{"n <i8", "x <f8", "name", "yes |b1"},
		[]string{"1", "0.5", "Ann", "true"}, []string{"-2", "1000", `a "b", c`, "false"})
	// Missing cells: numbers become NaN, texts are missing.
	checkRows(t, "b.csv", "n,x,name\n1,,Ann\n,2,\n", Options{}, []string{"n <f8", "x <f8", "name"},
		[]string{"1", "NaN", "Ann"}, []string{"NaN", "2", absent})
	// Another delimiter, Windows' line ends, a byte order mark, no end of the last line.
	checkRows(t, "c.tsv", "\xEF\xBB\xBFa\tb\r\n1\tx,y\r\n2\tz", Options{}, []string{"a <i8", "b"},
		[]string{"1", "x,y"}, []string{"2", "z"})
	checkRows(t, "d.csv", "1;2\n3;4\n", Options{Delimiter: ";", NoHeader: true},
		[]string{"0 <i8", "1 <i8"}, []string{"1", "2"}, []string{"3", "4"})
	types := Options{Types: map[string]string{"a": "int8", "b": "uint16", "c": "float32", "d": "bool",
		"e": "str", "f": "uint64"}}
	checkRows(t, "e.csv", "a,b,c,d,e,f\n-128,65535,0.1,1,007,18446744073709551615\n"+
		"127,0,-2.5,False, x ,0\n", types,
		[]string{"a |i1", "b <u2", "c <f4", "d |b1", "e", "f <u8"},
		[]string{"-128", "65535", "0.1", "true", "007", "18446744073709551615"},
		[]string{"127", "0", "-2.5", "false", " x ", "0"})
	for content, why := range map[string]string{"a\n128\n": "128", "a\n-129\n": "-129",
		"a\nx\n": "x", "a\n1,2\n": "2 cells"} {
		f := open(t, "f.csv", []byte(content))
		o := Options{Types: map[string]string{"a": "int8"}}
		_, _, err := readAll(f, o)
		if err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%q: %v, want an error that says %q", content, err, why)
		}
	}
	if _, err := Scan(open(t, "g.csv", []byte("a\n1\n")),
		Options{Types: map[string]string{"b": "int8"}}); err == nil {
		t.Error("a type for a column that is not there")
	}
	if _, err := Scan(open(t, "g.csv", []byte("a\n1\n")),
		Options{Types: map[string]string{"a": "complex"}}); err == nil {
		t.Error("a type that is not known")
	}
}

func TestKnownObjects(t *testing.T) {
	checkRows(t, "a.jsonl", `{"n": 1, "x": 0.5, "s": "a\"\u00e4\n", "b": true}`+"\n\n"+
		`{"b":false,"s":"","x":-1e2 ,"n":-9007199254740993	}`, Options{},
		[]string{"n <i8", "x <f8", "s", "b |b1"},
		[]string{"1", "0.5", "a\"ä\n", "true"}, []string{"-9007199254740993", "-100", "", "false"})
	checkRows(t, "b.jsonl", `{"n": 1, "s": null}`+"\n"+`{"s": "x"}`+"\n", Options{},
		[]string{"n <f8", "s"}, []string{"1", absent}, []string{"NaN", "x"})
	checkRows(t, "c.jsonl", `{"l": [1, 2], "f": [0.5], "d": {"a": [1]}, "m": 1}`+"\n"+
		`{"l": [], "f": [2], "d": {}, "m": "one"}`+"\n", Options{},
		[]string{"l <i8", "f <f8", "d", "m"}, []string{"[1 2]", "[0.5]", `{"a": [1]}`, "1"},
		[]string{"[]", "[2]", "{}", `"one"`})
	checkRows(t, "d.jsonl", `{"a": -Infinity}`+"\n"+`{"a": NaN}`+"\n"+`{"a": Infinity}`+"\n"+
		`{"a": 12}`, Options{}, []string{"a <f8"}, []string{"-Inf"}, []string{"NaN"},
		[]string{"+Inf"}, []string{"12"})
	checkRows(t, "e.jsonl", `{"a": 3, "b": 4}`, Options{Types: map[string]string{"a": "float32",
		"b": "uint8"}}, []string{"a <f4", "b |u1"}, []string{"3", "4"})
	for _, content := range []string{`{"a": 1`, `{"a": }`, `{"a": -}`, `{"a" 1}`, `[1]`, `{"a": 1} x`,
		`{"a": "x}`, `{"a": tru}`, `{"a": 1,}`} {
		if _, _, err := readAll(open(t, "f.jsonl", []byte(content)), Options{}); err == nil {
			t.Errorf("%s was read", content)
		}
		fields, rows, err := readAll(open(t, "g.jsonl", []byte(content+"\n"+`{"a": "x"}`+"\n")),
			Options{Skip: true})
		if err != nil || len(fields) != 1 || len(rows) != 1 || rows[0][0] != "x" {
			t.Errorf("%s beside a good row: %v, %q, %v", content, fields, rows, err)
		}
	}
}
