//go:build !linux

package attack

import "testing"

// smallDisk skips the test: memory cannot be mounted as a disk here.
func smallDisk(t testing.TB, _ int) string {
	t.Helper()
	linux(t)
	return ""
}

func readOnly(t testing.TB, _ string) {
	t.Helper()
	linux(t)
}
