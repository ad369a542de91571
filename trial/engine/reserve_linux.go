package engine

import (
	"errors"
	"fmt"
	"io"

	"golang.org/x/sys/unix"
)

// endRoom is kept in the journal for the end of each trial that runs, in bytes: its history has at
// most 500 points.
const endRoom = 64 << 10

// reserve keeps room on the disk for the start of a trial and the ends of so many, so that what was
// started can be written down also when the disk is full by then. A file system without a way to do
// that is written to as it is.
func (j *journal) reserve(trials int) error {
	at, err := j.file.Seek(0, io.SeekCurrent)
	if err != nil {
		return err
	}
	err = unix.Fallocate(int(j.file.Fd()), unix.FALLOC_FL_KEEP_SIZE, at, int64(trials+1)*endRoom)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("the study's record cannot be written: %w", err)
	}
	return nil
}
