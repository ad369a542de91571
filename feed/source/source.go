// Package source opens what data lies in: local files, and files on HTTP and S3 servers by ranges.
// Whatever it is, it is read at offsets, and a change since it was opened is noticed.
package source

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
)

// File is an opened source.
type File interface {
	io.ReaderAt
	io.Closer
	Name() string
	Size() int64
	// Identity changes when the content does: size and time of the last change, or the server's
	// tag.
	Identity() string
	// Check returns an error if the file is no longer the one that was opened.
	Check() error
	// Drop advises the kernel that these bytes will not be read again soon, so that pages of a file
	// do not crowd a container.
	Drop(offset, length int64)
}

// Open opens a path or an address.
func Open(name string) (File, error) {
	switch {
	case strings.HasPrefix(name, "http://"), strings.HasPrefix(name, "https://"):
		return openHTTP(name)
	case strings.HasPrefix(name, "s3://"):
		return openS3(name)
	}
	if scheme, _, is := strings.Cut(name, "://"); is {
		return nil, fmt.Errorf("%s: memroom cannot read %s:// addresses: use http://, "+
			"https:// or s3://, or copy the files to this machine", Shown(name), scheme)
	}
	return openLocal(name)
}

// Remote reports whether the name is an address.
func Remote(name string) bool { return strings.Contains(name, "://") }

// Expand turns paths, globs and addresses into names in a fixed order. Braces are spelt out as a
// shell does: train-{000..127}.tar.
func Expand(patterns []string) ([]string, error) {
	var names []string
	single := len(patterns) == 1
	patterns, err := spellOut(patterns)
	if err != nil {
		return nil, err
	}
	for _, p := range patterns {
		if strings.HasPrefix(p, "s3://") && strings.ContainsAny(p, "*?[") {
			found, err := globS3(p)
			if err != nil {
				return nil, err
			}
			names = append(names, found...)
			continue
		}
		if Remote(p) {
			names = append(names, p)
			continue
		}
		found := []string{p}
		if _, err := os.Stat(p); err != nil && strings.ContainsAny(p, "*?[") {
			if found, err = glob(p); err != nil {
				return nil, fmt.Errorf("%s: %w", p, err)
			}
			if len(found) == 0 {
				return nil, fmt.Errorf("no file matches %s: is it spelt right, seen from this folder?", p)
			}
		}
		for _, f := range found {
			full, err := filepath.Abs(f)
			if err != nil {
				return nil, err
			}
			names = append(names, full)
		}
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("no file was named: give files, patterns such as data/*.parquet, or " +
			"addresses")
	}
	if single {
		slices.Sort(names)
	}
	return names, nil
}

// local is a file of this machine. The first ones stay open; there may be more files than a process
// may have open, so that the others are opened for each reading.
type local struct {
	name     string
	held     *os.File // nil: it is opened for each reading
	size     int64
	identity string
	keep     bool // its pages stay in the kernel's cache
}

const mostHeld = 256

var held atomic.Int64 // how many stay open

// Keep leaves the pages of files in the kernel's cache where all of them together take less than a
// quarter of the memory that may be used here: the next epoch then needs no disk. Pages that are
// kept are the first that the kernel drops when memory is short.
func Keep(files []File) {
	const share = 4
	var total int64
	for _, f := range files {
		total += f.Size()
	}
	keep := total < room()/share
	for _, f := range files {
		if l, ok := f.(*local); ok {
			l.keep = keep
		}
	}
}

func openLocal(name string) (File, error) {
	// Looked at before it is opened: opening a pipe waits for somebody to write into it.
	info, err := os.Stat(name)
	switch {
	case err != nil:
		return nil, unreadable(name, err)
	case info.IsDir():
		return nil, fmt.Errorf("%s is a folder: name the files in it, such as %s", name,
			filepath.Join(name, "*"))
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is not a regular file: a stream reads it many times and from any "+
			"place, which a pipe or a device cannot give. Write its content to a file first", name)
	}
	l := &local{name: name, size: info.Size(), identity: identityOf(info)}
	f, _, err := l.open()
	if err != nil {
		return nil, err
	}
	if held.Add(1) <= mostHeld {
		l.held = f
		return l, nil
	}
	held.Add(-1)
	return l, f.Close()
}

// unreadable returns why a file cannot be opened, in words of our own.
func unreadable(name string, err error) error {
	var path *fs.PathError
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("there is no file %s: is it spelt right?", name)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%s may not be read by user %d, who reads here", name, os.Geteuid())
	case errors.As(err, &path):
		return fmt.Errorf("%s cannot be opened: %w", name, path.Err)
	}
	return err
}

func identityOf(info os.FileInfo) string {
	return fmt.Sprintf("%d bytes, changed %d", info.Size(), info.ModTime().UnixNano())
}

// open returns the file, and what is called when it was read.
func (l *local) open() (f *os.File, done func(), err error) {
	if l.held != nil {
		return l.held, func() {}, nil
	}
	if f, err = os.Open(l.name); err != nil {
		return nil, nil, unreadable(l.name, err)
	}
	if err := l.same(f.Stat()); err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, func() { f.Close() }, nil
}

func (l *local) ReadAt(p []byte, offset int64) (int, error) {
	f, done, err := l.open()
	if err != nil {
		return 0, err
	}
	defer done()
	return f.ReadAt(p, offset)
}

func (l *local) Name() string     { return l.name }
func (l *local) Size() int64      { return l.size }
func (l *local) Identity() string { return l.identity }

func (l *local) Close() error {
	if l.held == nil {
		return nil
	}
	held.Add(-1)
	return l.held.Close()
}

func (l *local) Check() error {
	if l.held != nil {
		return l.same(l.held.Stat())
	}
	return l.same(os.Stat(l.name))
}

// same returns an error if this is no longer the file that was opened.
func (l *local) same(info os.FileInfo, err error) error {
	if err != nil {
		return unreadable(l.name, err)
	}
	if now := identityOf(info); now != l.identity {
		return fmt.Errorf("%s has changed since it was indexed (was %s, is %s): start the stream again",
			l.name, l.identity, now)
	}
	return nil
}
