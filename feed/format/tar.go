package format

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"memroom/feed/source"
	"memroom/feed/table"
)

// Tar files as WebDataset writes them: members that follow each other and have the same name up to
// the first dot are one sample; what comes after the dot names the column. Contents come as bytes;
// decoding stays in the trainer's own library. `__key__` is the name.

const keyColumn = "__key__"

// sampleName splits a member's path into the sample's key and the column. Folders, hidden files and
// names without a dot belong to no sample.
func sampleName(name string) (key, column string, ok bool) {
	folder, base := path.Split(name)
	stem, column, found := strings.Cut(base, ".")
	if !found || stem == "" {
		return "", "", false
	}
	return folder + stem, strings.ToLower(column), true
}

// eachMember walks a tar file. visit gets where a member begins, headers included, and where its
// content does. whole is set if the mark at the end of a tar file is there.
func eachMember(r io.Reader, at func() int64,
	visit func(h *tar.Header, start, content int64) error) (end int64, whole bool, err error) {
	members := tar.NewReader(r)
	for {
		h, err := members.Next()
		if err == io.EOF {
			return end, at()-end >= 512, nil
		}
		if err != nil {
			return end, false, fmt.Errorf("offset %d: %w (damaged or cut off)", end, err)
		}
		content := at()
		if err := visit(h, end, content); err != nil {
			return end, false, err
		}
		end = padded(content + h.Size)
	}
}

func scanTar(f source.File, o Options) (*Index, error) {
	key := table.Column{Name: keyColumn, Kind: table.Text, From: "name"}
	ix := &Index{Fields: []Field{{Column: key}}}
	at := &offsets{f: f}
	columns := map[string]bool{}
	var current string
	var begin, sampleBytes int64
	var rows int64
	open := false
	closeSample := func(end int64) {
		if !open {
			return
		}
		last := len(ix.Blocks) - 1
		if last < 0 || end-ix.Blocks[last].Offset > plainBlock {
			ix.Blocks = append(ix.Blocks, Block{Offset: begin, First: rows})
			last++
		}
		b := &ix.Blocks[last]
		b.Rows++
		b.Bytes += sampleBytes
		b.Length = end - b.Offset
		rows++
		open, sampleBytes = false, 0
	}
	position := func() int64 { return at.at }
	end, whole, err := eachMember(at, position, func(h *tar.Header, start, content int64) error {
		key, column, ok := sampleName(h.Name)
		if content+h.Size > f.Size() {
			return fmt.Errorf("offset %d: %q is cut off: %d of %d bytes are there", content, h.Name,
				f.Size()-content, h.Size)
		}
		if h.Typeflag != tar.TypeReg || !ok {
			return nil
		}
		if key != current || !open {
			closeSample(start)
			current, begin, open = key, start, true
		}
		columns[column] = true
		sampleBytes += h.Size + 64
		return nil
	})
	if err == nil && !whole {
		err = fmt.Errorf("offset %d: the file ends without a tar file's end marker: it was "+
			"cut off", end)
	}
	if err != nil && !o.Skip {
		return nil, fmt.Errorf("%s: row %d: %w", f.Name(), rows, err)
	}
	if err != nil { // the sample it was cut off in is left out
		open = false
		ix.Skipped++
		ix.Notes = append(ix.Notes, err.Error())
	}
	closeSample(end)
	var names []string
	for c := range columns {
		names = append(names, c)
	}
	slices.Sort(names)
	for _, c := range names {
		member := table.Column{Name: c, Kind: table.Binary, From: "member"}
		ix.Fields = append(ix.Fields, Field{Column: member})
	}
	f.Drop(0, f.Size())
	return ix, nil
}

// padded rounds up to the 512 bytes that tar is made of.
func padded(n int64) int64 { return (n + 511) &^ 511 }

type tarDecoder struct{ f source.File }

func openTar(f source.File, _ *Index, _ Options) (Decoder, error) { return &tarDecoder{f}, nil }

func (d *tarDecoder) Close() error { return nil }

func (d *tarDecoder) Decode(b Block, columns []table.Column) (*table.Rows, error) {
	data, err := readBlock(d.f, b)
	if err != nil {
		return nil, err
	}
	defer table.Give(data)
	rows := table.NewRows(columns, int(b.Rows), b.Length)
	sample := map[string][]byte{}
	current := ""
	add := func() {
		if current == "" {
			return
		}
		for i, c := range columns {
			content, there := sample[c.Name]
			switch {
			case c.Name == keyColumn:
				rows.Data[i].AddBytes([]byte(current))
			case there:
				rows.Data[i].AddBytes(content)
			default:
				rows.Data[i].AddNull()
			}
		}
		rows.Count++
		clear(sample)
	}
	r := bytes.NewReader(data)
	position := func() int64 { return int64(len(data)) - int64(r.Len()) }
	_, _, err = eachMember(r, position, func(h *tar.Header, _, content int64) error {
		key, column, ok := sampleName(h.Name)
		if h.Typeflag != tar.TypeReg || !ok {
			return nil
		}
		if key != current {
			add()
			current = key
		}
		sample[column] = data[content : content+h.Size]
		return nil
	})
	if err != nil && err != io.EOF {
		return nil, fmt.Errorf("%s: from offset %d: %w", d.f.Name(), b.Offset, err)
	}
	add()
	if int64(rows.Count) != b.Rows {
		return nil, changedSince(d.f.Name(), b, rows.Count)
	}
	return rows, nil
}
