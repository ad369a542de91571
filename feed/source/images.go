package source

import (
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Images is a folder of images, read as one file in which their contents follow each other.
type Images struct {
	name, root string
	paths      []byte  // below the root, one after another: there may be millions
	ends       []int64 // of each path
	starts     []int64 // of each image, and the size of all
	identity   string
	keep       bool
}

var imageEndings = []string{".jpg", ".jpeg", ".jpe", ".png", ".webp", ".gif", ".bmp", ".ppm",
	".pgm", ".tif", ".tiff"}

// IsImage reports whether a file's name is that of an image.
func IsImage(name string) bool {
	return slices.Contains(imageEndings, strings.ToLower(filepath.Ext(name)))
}

// OpenImages opens the images below a folder, or those that a pattern matches.
func OpenImages(name string) (*Images, error) {
	all, isFolder, err := Folder(name)
	m := &Images{name: name, root: strings.TrimPrefix(name, "file://"), starts: []int64{0}}
	if err == nil && !isFolder {
		m.root = filepath.Dir(m.root)
		for strings.ContainsAny(m.root, "*?[") {
			m.root = filepath.Dir(m.root)
		}
		all, err = Expand([]string{name})
	}
	if err != nil {
		return nil, err
	}
	sum := sha256.New()
	for _, path := range all {
		if !IsImage(path) {
			continue
		}
		info, err := os.Stat(path)
		if err != nil {
			return nil, unreadable(path, err)
		}
		within, err := filepath.Rel(m.root, path)
		if err != nil {
			return nil, err
		}
		m.paths = append(m.paths, within...)
		m.ends = append(m.ends, int64(len(m.paths)))
		m.starts = append(m.starts, m.Size()+info.Size())
		fmt.Fprintf(sum, "%s\x00%s\n", within, identityOf(info))
	}
	m.identity = fmt.Sprintf("%d images %x", m.Count(), sum.Sum(nil)[:12])
	return m, nil
}

// Count is how many images there are.
func (m *Images) Count() int { return len(m.ends) }

// Path returns the path of an image below the folder.
func (m *Images) Path(i int) string {
	start := int64(0)
	if i > 0 {
		start = m.ends[i-1]
	}
	return string(m.paths[start:m.ends[i]])
}

// Bounds returns where an image begins and ends.
func (m *Images) Bounds(i int) (start, end int64) { return m.starts[i], m.starts[i+1] }

// ReadAt reads the images that lie at an offset, each of which is opened for that.
func (m *Images) ReadAt(p []byte, offset int64) (n int, err error) {
	i, exact := slices.BinarySearch(m.starts, offset)
	if !exact {
		i--
	}
	for ; n < len(p); i++ {
		if i >= m.Count() {
			return n, io.EOF
		}
		start, end := m.Bounds(i)
		from := offset + int64(n)
		got, err := m.read(i, p[n:n+int(min(end-from, int64(len(p)-n)))], from-start, end-start)
		if n += got; err != nil {
			return n, err
		}
	}
	return n, nil
}

func (m *Images) read(i int, p []byte, at, size int64) (int, error) {
	f, err := openLocal(filepath.Join(m.root, m.Path(i)))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	if f.Size() != size {
		return 0, fmt.Errorf("%s has changed since it was indexed: start the stream again", f.Name())
	}
	n, err := f.ReadAt(p, at)
	if !m.keep {
		f.Drop(at, int64(n))
	}
	return n, err
}

func (m *Images) Name() string      { return m.name }
func (m *Images) Size() int64       { return m.starts[len(m.starts)-1] }
func (m *Images) Identity() string  { return m.identity }
func (m *Images) Drop(int64, int64) {}
func (m *Images) Close() error      { return nil }

// Check finds nothing: each image is looked at when it is read, and all of them before a pass.
func (m *Images) Check() error { return nil }
