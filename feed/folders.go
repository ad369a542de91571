package feed

import (
	"math"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"memroom/feed/format"
	"memroom/feed/table"
)

// Folders named key=value, as Hive, Spark and pyarrow write them around Parquet files, hold a
// column: all rows below year=2024 have 2024 in `year`, which is not in the file itself.

// hiveMissing is the name of a folder whose rows miss the value.
const hiveMissing = "__HIVE_DEFAULT_PARTITION__"

// folderValue is the value that one folder's name stands for.
type folderValue struct {
	name, value string
	missing     bool
}

// folderValues returns the values in the names of a file's folders, the outermost first.
func folderValues(file string) []folderValue {
	parts := strings.Split(filepath.ToSlash(file), "/")
	var found []folderValue
	for _, part := range parts[:len(parts)-1] {
		name, value, is := strings.Cut(part, "=")
		if !is || name == "" || value == "" {
			continue
		}
		if plain, err := url.PathUnescape(value); err == nil {
			value = plain
		}
		found = append(found, folderValue{name, value, value == hiveMissing})
	}
	return found
}

// foldersOf returns what the folders of Parquet files hold, and the columns that makes.
func foldersOf(names []string, o format.Options) ([][]folderValue, [][]format.Field) {
	values := make([][]folderValue, len(names))
	for i, name := range names {
		if kind, err := format.Of(name, o); err == nil && kind == "parquet" {
			values[i] = folderValues(name)
		}
	}
	return values, folderFields(values)
}

// lacking returns the values of folders whose columns a file does not hold itself.
func lacking(fields []format.Field, values []folderValue) map[string]folderValue {
	left := map[string]folderValue{}
	for _, v := range values {
		if !slices.ContainsFunc(fields, func(f format.Field) bool { return f.Name == v.name }) {
			left[v.name] = v
		}
	}
	return left
}

// folderFields returns the fields of each file's folders. They are whole numbers where all values
// of that name are, otherwise texts.
func folderFields(values [][]folderValue) [][]format.Field {
	text := map[string]bool{}
	for _, file := range values {
		for _, v := range file {
			if _, err := strconv.ParseInt(v.value, 10, 64); err != nil && !v.missing {
				text[v.name] = true
			}
		}
	}
	fields := make([][]format.Field, len(values))
	for i, file := range values {
		for _, v := range file {
			c := table.FixedOf(v.name, "<i8", 8, "folder")
			if text[v.name] {
				c = table.Column{Name: v.name, Kind: table.Text, From: "folder"}
			}
			fields[i] = append(fields[i], format.Field{Column: c, Null: v.missing})
		}
	}
	return fields
}

// withFolders returns the fields of a file and of its folders. The file's own fields win.
func withFolders(own, folders []format.Field) []format.Field {
	all := slices.Clone(own)
	for _, f := range folders {
		if !slices.ContainsFunc(all, func(o format.Field) bool { return o.Name == f.Name }) {
			all = append(all, f)
		}
	}
	return all
}

// folderBytes is about what the values of the folders take in one row.
func folderBytes(values []folderValue) int64 {
	total := int64(0)
	for _, v := range values {
		total += 8 + int64(len(v.value))
	}
	return total
}

// folderDecoder adds the columns of folders to those that a file's own decoder returns.
type folderDecoder struct {
	format.Decoder
	values map[string]folderValue // of columns that the file does not hold
}

func (f *folderDecoder) Decode(b format.Block, columns []table.Column) (*table.Rows, error) {
	return f.add(columns, int(b.Rows), func(own []table.Column) (*table.Rows, error) {
		return f.Decoder.Decode(b, own)
	})
}

// DecodeSome is Decode for some rows of the block.
func (f *folderDecoder) DecodeSome(b format.Block, want []int32, columns []table.Column) (
	*table.Rows, error) {
	sparse, ok := f.Decoder.(format.Sparse)
	if !ok {
		return nil, errNotSparse
	}
	return f.add(columns, len(want), func(own []table.Column) (*table.Rows, error) {
		return sparse.DecodeSome(b, want, own)
	})
}

// add decodes the file's own columns and puts those of the folders where they belong.
func (f *folderDecoder) add(columns []table.Column, count int,
	decode func([]table.Column) (*table.Rows, error)) (*table.Rows, error) {
	var own []table.Column
	for _, c := range columns {
		if _, folder := f.values[c.Name]; !folder {
			own = append(own, c)
		}
	}
	decoded := &table.Rows{Count: count}
	if len(own) > 0 {
		var err error
		if decoded, err = decode(own); err != nil {
			return nil, err
		}
	}
	all := &table.Rows{Count: decoded.Count, Data: make([]table.Data, 0, len(columns))}
	for _, c := range columns {
		if v, folder := f.values[c.Name]; folder {
			all.Data = append(all.Data, repeated(c, v, decoded.Count))
			continue
		}
		all.Data, decoded.Data = append(all.Data, decoded.Data[0]), decoded.Data[1:]
	}
	return all, nil
}

// repeated returns a column that has the same value in every row.
func repeated(c table.Column, v folderValue, count int) table.Data {
	d := &table.NewRows([]table.Column{c}, count, int64(count*len(v.value))).Data[0]
	number, _ := strconv.ParseInt(v.value, 10, 64)
	for range count {
		switch {
		case c.Kind == table.Text && v.missing:
			d.AddNull()
		case c.Kind == table.Text:
			d.AddBytes([]byte(v.value))
		case v.missing:
			d.AddFloat(math.NaN())
		case c.DType == "<f8":
			d.AddFloat(float64(number))
		default:
			d.AddInt(number)
		}
	}
	return *d
}
