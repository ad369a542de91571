package api

import (
	"bytes"
	"os"
)

// wholeLines is where the last whole line of a file ends.
func wholeLines(path string) int64 {
	file, err := os.Open(path)
	if err != nil {
		return 0
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return 0
	}
	buffer := make([]byte, 64<<10)
	for end := info.Size(); end > 0; {
		begin := max(0, end-int64(len(buffer)))
		n, err := file.ReadAt(buffer[:end-begin], begin)
		if at := bytes.LastIndexByte(buffer[:n], '\n'); at >= 0 {
			return begin + int64(at) + 1
		}
		if err != nil && n == 0 {
			return 0
		}
		end = begin
	}
	return 0
}
