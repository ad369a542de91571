//go:build !linux

package source

func (l *local) Drop(int64, int64) {}
