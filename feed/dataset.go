// Package feed streams data that is larger than memory: files are indexed once, read in blocks,
// mixed within windows by an order that is a function, and handed out in batches, all inside one
// budget of bytes. Package feed/serve hands the batches to other processes.
package feed

import (
	"crypto/sha256"
	"encoding/gob"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"memroom/feed/format"
	"memroom/feed/order"
	"memroom/feed/source"
	"memroom/feed/table"
)

// Spec describes which data is read, and in which order.
type Spec struct {
	Sources []string       `json:"sources"`
	Columns []string       `json:"columns,omitempty"`
	Shuffle bool           `json:"shuffle"`
	Seed    uint64         `json:"seed"`
	Window  int64          `json:"window"` // bytes of decoded rows that are mixed with each other
	Batch   int            `json:"batch"`
	Drop    bool           `json:"drop_last,omitempty"`
	Options format.Options `json:"options"`
	Part    *order.Part    `json:"part,omitempty"` // of the rows; nil: all of them
}

// Dataset is the indexed files.
type Dataset struct {
	Columns  []table.Column
	Rows     int64
	Skipped  int64    // bad rows that were left out
	BadFiles []string // files that were left out whole, and why
	Files    []string // as they may be printed
	names    []string // as they are opened: addresses may hold secrets
	files    []*openFile
	blocks   []place
	sizes    []order.Block
	options  format.Options
	patterns []string
	parts    partCounts
}

type openFile struct {
	source.File
	ix      *format.Index
	options format.Options
	folders map[string]folderValue // columns that its folders hold
	mu      sync.Mutex
	decoder format.Decoder
}

// place is a block of the whole data set.
type place struct {
	file  int
	block format.Block
	first int64 // row of the file
}

// Open indexes the files, or takes their indexes from the cache.
func Open(sources, columns []string, o format.Options, progress func(string)) (*Dataset, error) {
	names, err := namesOf(sources, o)
	if err != nil {
		return nil, err
	}
	d := &Dataset{options: o, names: names, patterns: sources}
	for _, name := range names {
		d.Files = append(d.Files, source.Shown(name))
	}
	var fields []format.Field
	folders, folderColumns := foldersOf(names, o)
	for i, name := range names {
		if progress != nil {
			progress(fmt.Sprintf("index %d of %d: %s", i+1, len(names), d.Files[i]))
		}
		f, err := openPlain(name, o)
		if err != nil {
			d.Close()
			return nil, err
		}
		ix, err := indexOf(f, name, o)
		if err != nil && o.Skip && len(names) > 1 && f.Check() == nil {
			// A file that cannot be read at all, such as Parquet that was cut off, is left out
			// whole.
			d.BadFiles = append(d.BadFiles, err.Error())
			ix, err = &format.Index{}, nil
		}
		if err != nil {
			f.Close()
			d.Close()
			return nil, err
		}
		d.files = append(d.files, &openFile{File: f, ix: ix, options: o,
			folders: lacking(ix.Fields, folders[i])})
		all := withFolders(ix.Fields, folderColumns[i])
		if own := chosen(all, columns); len(ix.Fields) > 0 && len(own) > 0 {
			if fields == nil {
				fields = own
			} else if fields, err = format.Merge(fields, own, f.Name(), format.Loose(ix.Format)); err != nil {
				d.Close()
				return nil, err
			}
		}
		d.Skipped += ix.Skipped
		first := int64(0)
		for _, b := range ix.Blocks {
			b.Bytes += b.Rows * folderBytes(folders[i])
			d.blocks = append(d.blocks, place{i, b, first})
			first += b.Rows
			d.sizes = append(d.sizes, order.Block{Rows: b.Rows, Bytes: b.Bytes})
			d.Rows += b.Rows
		}
	}
	if len(d.BadFiles) == len(names) {
		d.Close()
		return nil, fmt.Errorf("none of the files can be read: %s", d.BadFiles[0])
	}
	if len(fields) == 0 {
		d.Close()
		return nil, fmt.Errorf("%s is empty: it has neither rows nor a line of column names. Is it "+
			"still being written?",
			strings.Join(d.Files[:min(len(names), 3)], ", "))
	}
	var opened []source.File
	for _, f := range d.files {
		opened = append(opened, f.File)
	}
	source.Keep(opened)
	all := format.Columns(fields)
	places, err := table.Select(all, columns)
	if err != nil {
		d.Close()
		return nil, err
	}
	for _, p := range places {
		d.Columns = append(d.Columns, all[p])
	}
	return d, nil
}

// chosen returns the fields of a file that the user wants, so that others may differ between files.
// Where one is missing it returns all, so that the error lists them.
func chosen(fields []format.Field, columns []string) []format.Field {
	if len(columns) == 0 {
		return fields
	}
	var wanted []format.Field
	for _, f := range fields {
		if slices.Contains(columns, f.Name) {
			wanted = append(wanted, f)
		}
	}
	if len(wanted) < len(columns) {
		return fields
	}
	return wanted
}

// Changed returns an error if files are no longer what was indexed.
func (d *Dataset) Changed() error {
	names, err := namesOf(d.patterns, d.options)
	if err != nil {
		return err
	}
	if !slices.Equal(names, d.names) {
		return fmt.Errorf("files were added or removed since the data was indexed: start the " +
			"stream again")
	}
	for i, name := range names {
		if source.Remote(name) {
			continue // every range is asked for by its tag
		}
		var f source.File
		if imagesIn(name, d.options) {
			f, err = source.OpenImages(name)
		} else {
			f, err = source.Open(name)
		}
		if err != nil {
			return err
		}
		f.Close()
		if f.Identity() != d.files[i].Identity() {
			return fmt.Errorf("%s has changed since it was indexed: start the stream again", name)
		}
	}
	return nil
}

// Fingerprint distinguishes one dataset from another by the files' names without their folders,
// their rows and where blocks lie. It stays the same when files are copied to another place, or
// when an address is signed anew.
func (d *Dataset) Fingerprint() string {
	sum := sha256.New()
	var text []byte // no fmt: large sets have tens of thousands of blocks, and resuming waits for it
	for i, f := range d.files {
		text = fmt.Appendf(text[:0], "%s %d %d\n", filepath.Base(d.Files[i]), f.Size(), len(f.ix.Blocks))
		for _, b := range f.ix.Blocks {
			text = append(strconv.AppendInt(text, b.Rows, 10), ' ')
			text = append(strconv.AppendInt(text, b.Offset, 10), ' ')
			text = append(strconv.AppendInt(text, b.Length, 10), '\n')
		}
		sum.Write(text)
	}
	return hex.EncodeToString(sum.Sum(nil)[:12])
}

// Close lets go of the files.
func (d *Dataset) Close() {
	for _, f := range d.files {
		f.Close()
	}
}

// Epoch returns the order of one epoch.
func (d *Dataset) Epoch(s Spec, number uint64) *order.Epoch {
	sizes := d.sizes
	if s.Part != nil {
		sizes = d.partSizes(*s.Part)
	}
	return order.NewEpoch(sizes, s.Window, s.Shuffle, s.Seed, number)
}

// LargestBlock is the decoded size of the largest block, and where it is.
func (d *Dataset) LargestBlock() (int64, string) {
	var size int64
	where := ""
	for _, p := range d.blocks {
		if p.block.Bytes > size {
			size = p.block.Bytes
			where = fmt.Sprintf("%s, row %d", d.Files[p.file], p.block.First)
		}
	}
	return size, where
}

// unchanged returns an error if the files of some blocks are no longer what was indexed.
func (d *Dataset) unchanged(blocks []int32) error {
	last := -1
	for _, b := range blocks {
		if file := d.blocks[b].file; file != last {
			if err := d.files[file].Check(); err != nil {
				return err
			}
			last = file
		}
	}
	return nil
}

// decode reads one block.
func (d *Dataset) decode(b int32) (*table.Rows, error) {
	p := d.blocks[b]
	f := d.files[p.file]
	decoder, err := d.decoderOf(p.file)
	if err != nil {
		return nil, err
	}
	rows, err := decoder.Decode(p.block, d.Columns)
	if err == nil && int64(rows.Count) != p.block.Rows {
		err = fmt.Errorf("%s: %d rows where the index has %d: the file has changed: start the "+
			"stream again",
			f.Name(), rows.Count, p.block.Rows)
	}
	return rows, err
}

// decoderOf returns the decoder of a file that has not changed.
func (d *Dataset) decoderOf(file int) (format.Decoder, error) {
	f := d.files[file]
	if err := f.Check(); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.decoder == nil {
		var err error
		if f.decoder, err = format.Open(f.File, f.ix, f.options); err != nil {
			return nil, err
		}
		if len(f.folders) > 0 {
			f.decoder = &folderDecoder{f.decoder, f.folders}
		}
	}
	return f.decoder, nil
}

// indexOf returns the index of a file, from the cache if the file is the same.
func indexOf(f source.File, name string, o format.Options) (*format.Index, error) {
	path := cachePath(name, o)
	if ix := readIndex(path); ix != nil && ix.Identity == f.Identity() {
		return ix, nil
	}
	ix, err := format.Scan(f, o)
	if err != nil {
		return nil, err
	}
	if o.Skip {
		if err := format.LeaveOut(f, ix, o); err != nil {
			return nil, err
		}
	}
	if err := f.Check(); err != nil {
		return nil, err
	}
	writeIndex(path, ix)
	return ix, nil
}

const indexVersion = 6

func cachePath(name string, o format.Options) string {
	cache, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	text, _ := json.Marshal(o)
	sum := sha256.Sum256(fmt.Appendf(nil, "%d\x00%s\x00%s", indexVersion, name, text))
	return filepath.Join(cache, "memroom", "feed", hex.EncodeToString(sum[:16])+".index")
}

func readIndex(path string) *format.Index {
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	var ix format.Index
	if gob.NewDecoder(f).Decode(&ix) != nil {
		return nil // damaged: it is made again
	}
	return &ix
}

// writeIndex keeps an index. It is a cache: where it cannot be written, the next stream makes it
// again.
func writeIndex(path string, ix *format.Index) {
	if path == "" || os.MkdirAll(filepath.Dir(path), 0o700) != nil {
		return
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".new-")
	if err != nil {
		return
	}
	err = gob.NewEncoder(f).Encode(ix)
	if closed := f.Close(); err != nil || closed != nil || os.Rename(f.Name(), path) != nil {
		os.Remove(f.Name())
	}
}

// DecodedBytes is about what all rows take when decoded.
func (d *Dataset) DecodedBytes() int64 {
	var total int64
	for _, s := range d.sizes {
		total += s.Bytes
	}
	return total
}
