package format

import (
	"bytes"
	"encoding/base64"
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/parquet/metadata"
	"github.com/apache/arrow-go/v18/parquet/schema"

	"memroom/feed/table"
)

// Parquet has no durations and no lists of fixed size. Arrow's writers note the original type of a
// column in the metadata, so that it can be read as such again.

// originals returns the types that columns had when they were written, by name; none where nothing
// is noted.
func originals(meta *metadata.FileMetaData) map[string]arrow.DataType {
	noted := meta.KeyValueMetadata().FindValue("ARROW:schema")
	if noted == nil {
		return nil
	}
	raw, err := base64.StdEncoding.DecodeString(*noted)
	if err != nil {
		return nil
	}
	r, err := ipc.NewReader(bytes.NewReader(raw))
	if err != nil {
		return nil // it is only a note
	}
	defer r.Release()
	types := map[string]arrow.DataType{}
	for _, f := range r.Schema().Fields() {
		types[f.Name] = f.Type
	}
	return types
}

// asWritten sets a field to the type that its column had.
func asWritten(f Field, types map[string]arrow.DataType) Field {
	switch t := types[f.Name].(type) {
	case *arrow.DurationType:
		if f.Kind == table.Fixed && f.DType == "<i8" {
			f.Column = table.FixedOf(f.Name, "<m8["+t.Unit.String()+"]", 8, f.From+" duration")
		}
	case *arrow.FixedSizeListType:
		size := int(t.Len())
		if f.Kind == table.List && !f.Null && size > 0 {
			f.Kind, f.Shape, f.Width = table.Fixed, []int{size}, size*f.Width
			f.From += fmt.Sprintf(" list of %d", size)
		}
	}
	return f
}

// leafNames returns the names of all leaves. One that occurs again gets a number, as in CSV.
func leafNames(leaves *schema.Schema) []string {
	names := make([]string, leaves.NumColumns())
	seen := map[string]int{}
	for i := range names {
		name := leafName(leaves.Column(i))
		if n := seen[name]; n > 0 {
			names[i] = fmt.Sprintf("%s.%d", name, n)
		} else {
			names[i] = name
		}
		seen[name]++
	}
	return names
}

// matrix makes rows of one shape of lists.
func matrix(into *table.Data, c table.Column, lists table.Data) error {
	start := int64(0)
	for row, end := range lists.Ends {
		if end-start != int64(c.Width) {
			return fmt.Errorf("row %d has %d values, where %d are noted for all", row,
				(end-start)*int64(c.Shape[0])/int64(c.Width), c.Shape[0])
		}
		start = end
	}
	into.Fixed = append(into.Fixed, lists.Bytes...)
	return nil
}
