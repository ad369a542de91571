package source

import (
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Map returns a local file as memory that the kernel reads when it is touched and may drop again;
// nil where that cannot be done. The caller must expect a fault where the file becomes shorter.
func Map(f File) []byte {
	l, ok := f.(*local)
	if !ok || l.size == 0 || l.size != int64(int(l.size)) {
		return nil
	}
	file, done, err := l.open()
	if err != nil {
		return nil
	}
	defer done()
	return MapRange(file, 0, l.size)
}

// MapRange maps some bytes of a file. start is a multiple of the size of a page.
func MapRange(f *os.File, start, size int64) []byte {
	data, err := unix.Mmap(int(f.Fd()), start, int(size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil
	}
	_ = unix.Madvise(data, unix.MADV_RANDOM) // advice: parts are read, not the whole
	return data
}

// Unmap ends what Map began.
func Unmap(data []byte) {
	if data != nil {
		_ = unix.Munmap(data)
	}
}

// Forget lets the kernel drop the pages of some bytes of mapped memory.
func Forget(data []byte, from, to int64) {
	const page = 4096
	from = from &^ (page - 1)
	if to = min(to, int64(len(data))); from < to {
		_ = unix.Madvise(data[from:to], unix.MADV_DONTNEED) // advice: nothing depends on it
	}
}

// Scratch makes a file without a name, on disk: in the temporary folder, or in the cache folder
// where the temporary one is memory.
func Scratch() (*os.File, error) {
	folder := os.TempDir()
	var about unix.Statfs_t
	if unix.Statfs(folder, &about) == nil && about.Type == unix.TMPFS_MAGIC {
		if cache, err := os.UserCacheDir(); err == nil {
			other := filepath.Join(cache, "memroom", "feed")
			if os.MkdirAll(other, 0o700) == nil {
				folder = other
			}
		}
	}
	f, err := os.CreateTemp(folder, "memroom-feed-")
	if err != nil {
		return nil, err
	}
	os.Remove(f.Name())
	return f, nil
}
