package format

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"memroom/feed/source"
	"memroom/feed/table"
)

// Folders of images: a row is an image, its bytes as they are in the file; decoding stays in the
// trainer's own library. Where all images lie in folders, the first folder is the class, numbered
// as torchvision numbers them.

func scanImages(f source.File, _ Options) (*Index, error) {
	images, is := f.(*source.Images)
	if !is {
		return nil, fmt.Errorf("%s: images are read by folders: name the one that it lies in", f.Name())
	}
	label := table.FixedOf("label", "<i8", 8, "folder")
	label.Classes = classesOf(images)
	content := table.Column{Name: "image", Kind: table.Binary, From: "file"}
	path := table.Column{Name: "path", Kind: table.Text, From: "name"}
	ix := &Index{Fields: []Field{{Column: content}, {Column: label}, {Column: path}}}
	if label.Classes == nil {
		ix.Fields = slices.Delete(ix.Fields, 1, 2)
	}
	for i := range images.Count() {
		start, end := images.Bounds(i)
		last := len(ix.Blocks) - 1
		if last < 0 || end-ix.Blocks[last].Offset > plainBlock {
			ix.Blocks = append(ix.Blocks, Block{Offset: start, First: int64(i)})
			last++
		}
		b := &ix.Blocks[last]
		b.Rows, b.Length = b.Rows+1, end-b.Offset
		b.Bytes += end - start + int64(len(images.Path(i))) + 64
	}
	return ix, nil
}

// classesOf returns the names of the folders that hold images, sorted; nil where any lies in none.
func classesOf(images *source.Images) (classes []string) {
	for i := range images.Count() {
		class, _, inside := strings.Cut(filepath.ToSlash(images.Path(i)), "/")
		if !inside {
			return nil
		}
		if at, known := slices.BinarySearch(classes, class); !known {
			classes = slices.Insert(classes, at, class)
		}
	}
	return classes
}

type imageDecoder struct{ f *source.Images }

func openImages(f source.File, _ *Index, _ Options) (Decoder, error) {
	return &imageDecoder{f.(*source.Images)}, nil
}

func (d *imageDecoder) Close() error { return nil }

func (d *imageDecoder) Decode(b Block, columns []table.Column) (*table.Rows, error) {
	var data []byte
	if slices.ContainsFunc(columns, func(c table.Column) bool { return c.Name == "image" }) {
		var err error
		if data, err = readBlock(d.f, b); err != nil {
			return nil, err
		}
	}
	rows := table.NewRows(columns, int(b.Rows), 0)
	for i, c := range columns {
		own := &rows.Data[i]
		if c.Name == "image" {
			own.Bytes = data // images follow each other in a block, as rows do in a column
		}
		for n := int(b.First); n < int(b.First+b.Rows); n++ {
			path := filepath.ToSlash(d.f.Path(n))
			switch _, end := d.f.Bounds(n); c.Name {
			case "image":
				own.Ends = append(own.Ends, end-b.Offset)
			case "label":
				class, _, _ := strings.Cut(path, "/")
				at, _ := slices.BinarySearch(c.Classes, class)
				own.AddInt(int64(at))
			default:
				own.AddBytes([]byte(path))
			}
		}
	}
	rows.Count = int(b.Rows)
	return rows, nil
}
