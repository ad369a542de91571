//go:build !linux

package source

import "os"

// Map returns nothing: files are read in pieces here.
func Map(File) []byte { return nil }

// Unmap ends what Map began.
func Unmap([]byte) {}

// Forget lets the kernel drop the pages of some bytes of mapped memory.
func Forget([]byte, int64, int64) {}

// Scratch makes a file without a name.
func Scratch() (*os.File, error) {
	f, err := os.CreateTemp("", "memroom-feed-")
	if err != nil {
		return nil, err
	}
	os.Remove(f.Name())
	return f, nil
}

// MapRange returns nothing: see Map.
func MapRange(*os.File, int64, int64) []byte { return nil }
