package attack

import (
	"fmt"
	"syscall"
	"testing"

	"memroom/testenv"
)

// smallDisk mounts a disk of so many bytes.
func smallDisk(t testing.TB, size int) string {
	t.Helper()
	root(t)
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d", size)); err != nil {
		testenv.Needs(t, "the right to mount", err.Error())
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	return dir
}

// readOnly mounts a disk again so that nobody can write to it.
func readOnly(t testing.TB, disk string) {
	t.Helper()
	if err := syscall.Mount("", disk, "", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
		testenv.Needs(t, "the right to remount", err.Error())
	}
}
