// Package convert writes batches into files: Arrow IPC, which streams fastest, Parquet, CSV, JSON
// lines and .npy. One batch is held at a time, of Parquet one row group.
package convert

import (
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"memroom/feed/table"
)

// Batch is rows as package table lays them out.
type Batch struct {
	Columns []table.Column
	Rows    int
	Spans   []table.Span
	Data    []byte
}

// Writer writes batches.
type Writer interface {
	Write(Batch) error
	Close() error
}

// New returns a writer for a file of that name. rows is how many will come.
func New(name string, out io.WriteSeeker, columns []table.Column, rows int64) (Writer, error) {
	switch strings.ToLower(filepath.Ext(name)) {
	case ".arrow", ".feather", ".ipc":
		return newArrow(out, columns)
	case ".parquet":
		return newParquet(out, columns)
	case ".csv":
		return newCSV(out, columns, ",")
	case ".tsv":
		return newCSV(out, columns, "\t")
	case ".jsonl", ".ndjson":
		return newJSONL(out, columns), nil
	case ".npy":
		return newNPY(out, columns, rows)
	}
	return nil, fmt.Errorf("%s: the name must end in .arrow, .parquet, .csv, .tsv, .jsonl or "+
		".npy", name)
}

// column is one column of a batch.
type column struct {
	table.Column
	rows  int
	fixed []byte
	ends  []byte // 8 bytes a row
	bytes []byte
	null  []byte // empty if no row is missing
}

// split returns the columns of a batch.
func split(b Batch) []column {
	part := func(s table.Span) []byte { return b.Data[s.Offset : s.Offset+s.Size] }
	var out []column
	spans := b.Spans
	for _, c := range b.Columns {
		own := column{Column: c, rows: b.Rows}
		if c.Kind == table.Fixed {
			own.fixed, spans = part(spans[0]), spans[1:]
		} else {
			own.ends, own.bytes, own.null = part(spans[0]), part(spans[1]), part(spans[2])
			spans = spans[3:]
		}
		out = append(out, own)
	}
	return out
}
