//go:build linux

package meter

import (
	"golang.org/x/sys/unix"

	"memroom/event"
)

// SharedMemory returns the size and use of a tmpfs, as a rule /dev/shm, where DataLoader workers
// and Ray put their data.
func SharedMemory(path string) (total, used event.Bytes, err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return 0, 0, err
	}
	block := event.Bytes(st.Bsize)
	return event.Bytes(st.Blocks) * block, event.Bytes(st.Blocks-st.Bfree) * block, nil
}
