// Package source opens what data lies in: local files, and files on HTTP and S3 servers by ranges.
// Whatever it is, it is read at offsets, and a change since it was opened is noticed.
package source

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
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

type local struct {
	*os.File
	size     int64
	identity string
	keep     bool // its pages stay in the kernel's cache
}

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
		return nil, err
	case info.IsDir():
		return nil, fmt.Errorf("%s is a folder: name the files in it, such as %s", name,
			filepath.Join(name, "*"))
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is not a regular file: a stream reads it many times and from any "+
			"place, which a pipe or a device cannot give. Write its content to a file first", name)
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	if info, err = f.Stat(); err != nil {
		f.Close()
		return nil, err
	}
	return &local{File: f, size: info.Size(), identity: identityOf(info)}, nil
}

func identityOf(info os.FileInfo) string {
	return fmt.Sprintf("%d bytes, changed %d", info.Size(), info.ModTime().UnixNano())
}

func (l *local) Size() int64      { return l.size }
func (l *local) Identity() string { return l.identity }

func (l *local) Check() error {
	info, err := l.Stat()
	if err != nil {
		return err
	}
	if now := identityOf(info); now != l.identity {
		return fmt.Errorf("%s has changed since it was indexed (was %s, is %s): start the stream again",
			l.Name(), l.identity, now)
	}
	return nil
}
