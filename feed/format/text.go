package format

import (
	"memroom/feed/source"
	"memroom/feed/table"
)

// Text files: a row is a line, the only column is `text`, without its newline. Blank lines are no
// rows.
func scanText(f source.File, _ Options) (*Index, error) {
	var b blocker
	err := eachRow(f, 0, lineRows, func(row []byte, at int64) error {
		b.add(at, int64(len(row)), int64(len(row))+8)
		return nil
	})
	return &Index{Fields: []Field{{Column: table.Column{Name: "text", Kind: table.Text, From: "line"}}},
		Blocks: b.blocks}, err
}

type textDecoder struct{ f source.File }

func openText(f source.File, _ *Index, _ Options) (Decoder, error) { return &textDecoder{f}, nil }

func (d *textDecoder) Close() error { return nil }

func (d *textDecoder) Decode(b Block, columns []table.Column) (*table.Rows, error) {
	data, err := readBlock(d.f, b)
	if err != nil {
		return nil, err
	}
	defer table.Give(data)
	rows := table.NewRows(columns, int(b.Rows), b.Length)
	err = rowsOf(data, lineRows, func(row []byte, _ int) error {
		rows.Data[0].AddBytes(trimEnd(row))
		rows.Count++
		return nil
	})
	return rows, err
}
