package source

import "golang.org/x/sys/unix"

func (l *local) Drop(offset, length int64) {
	_ = unix.Fadvise(int(l.Fd()), offset, length, unix.FADV_DONTNEED) // advice: nothing depends on it
}
