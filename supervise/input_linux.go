package supervise

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"memroom/event"
)

// inputBound is how much of a pipe is kept for another attempt. A script or a configuration is far
// smaller; a data set belongs in a file.
const inputBound = 256 * event.MiB

// input is the command's standard input in a run that may have several attempts. Each attempt must
// read the same bytes: a program that comes in over standard input would otherwise be empty the
// second time, and end well without having done anything.
//
// A file is rewound. A pipe or a socket is read by the keeper as far as the command reads it, and
// no further: what the command leaves is there for whoever reads next, as without us. What it read
// is kept in a file without a name. Terminals and devices are handed on: who answers once can
// answer again.
type input struct {
	kind   inputKind
	offset int64 // of a file, where the first attempt began

	mu    sync.Mutex
	kept  *os.File // input that the command has read from a pipe; nil once spent
	size  int64    // bytes that the command has read from it
	spent string   // why another attempt cannot have the same input; empty: it can

	wake int           // event descriptor that ends the feeding
	fed  chan struct{} // closed when the feeding of this attempt has ended; nil: none runs
}

type inputKind int

const (
	handedOn inputKind = iota
	rewound
	keptPipe
	keptSocket
)

// newInput looks at our standard input. dir is where what is read from a pipe can be kept.
func newInput(dir string) *input {
	in := &input{wake: -1}
	var stat unix.Stat_t
	if err := unix.Fstat(0, &stat); err != nil {
		return in
	}
	switch stat.Mode & unix.S_IFMT {
	case unix.S_IFREG, unix.S_IFBLK:
		if at, err := unix.Seek(0, 0, io.SeekCurrent); err == nil {
			in.kind, in.offset = rewound, at
		}
		return in
	case unix.S_IFIFO:
		in.kind = keptPipe
	case unix.S_IFSOCK:
		in.kind = keptSocket
	default:
		return in
	}
	var err error
	if in.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC); err == nil {
		in.kept, err = namelessFile(dir)
	}
	if err != nil {
		in.spend("what the command reads from its standard input cannot be kept: %v", err)
	}
	return in
}

// namelessFile makes a private file that is gone when we are.
func namelessFile(dir string) (*os.File, error) {
	file, err := os.CreateTemp(dir, "stdin-")
	if err != nil {
		return nil, err
	}
	return file, os.Remove(file.Name())
}

// open returns the descriptor that the next attempt reads, and the file to close once it has it.
func (in *input) open() (uintptr, *os.File, error) {
	switch {
	case in.kind == rewound:
		_, err := unix.Seek(0, in.offset, io.SeekStart)
		return 0, nil, err
	case in.kind == handedOn || in.wake < 0:
		return 0, nil, nil
	}
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
		return 0, nil, err
	}
	// With room for one page the pipe can be written to only when it is empty: so we learn that the
	// command has read what it was offered.
	_, err := unix.FcntlInt(uintptr(ends[1]), unix.F_SETPIPE_SZ, os.Getpagesize())
	if err == nil {
		err = unix.SetNonblock(ends[1], true)
	}
	if err != nil {
		unix.Close(ends[0])
		unix.Close(ends[1])
		return 0, nil, err
	}
	in.fed = make(chan struct{})
	go in.feed(ends[1], in.fed)
	return uintptr(ends[0]), os.NewFile(uintptr(ends[0]), "stdin"), nil
}

// ended stops the feeding of an attempt and returns why there cannot be another one with the same
// input, "" if there can.
func (in *input) ended() string {
	if in.fed != nil {
		_, _ = unix.Write(in.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0})
		<-in.fed
		in.fed = nil
		var count [8]byte
		_, _ = unix.Read(in.wake, count[:])
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.size == 0 && in.wake >= 0 {
		return "" // the command has read nothing
	}
	return in.spent
}

// feed sends an attempt the input that the ones before it have read, and then what else there is.
func (in *input) feed(to int, over chan<- struct{}) {
	defer close(over)
	defer unix.Close(to)
	if !in.replay(to) {
		return
	}
	page := make([]byte, os.Getpagesize())
	for {
		if !in.await(to, unix.POLLIN, 0) {
			return
		}
		offered, err := in.offer(to, page)
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || offered == 0 {
			return
		}
		goesOn := in.await(to, 0, unix.POLLOUT)
		left, err := unix.IoctlGetInt(to, unix.TIOCINQ)
		if err != nil || !in.take(page[:offered-min(left, offered)]) || !goesOn {
			return
		}
	}
}

// replay returns an attempt what was kept. It reports whether the attempt read all of it.
func (in *input) replay(to int) bool {
	in.mu.Lock()
	kept, size := in.kept, in.size
	in.mu.Unlock()
	page := make([]byte, os.Getpagesize())
	for at := int64(0); kept != nil && at < size; {
		n, err := kept.ReadAt(page[:min(int64(len(page)), size-at)], at)
		if n == 0 {
			in.spend("what the command read from its standard input is lost: %v", err)
			return false
		}
		for piece := page[:n]; len(piece) > 0; {
			if !in.await(to, 0, unix.POLLOUT) {
				return false
			}
			written, err := unix.Write(to, piece)
			if err != nil && !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
				return false
			}
			piece = piece[max(written, 0):]
		}
		at += int64(n)
	}
	return true
}

// await waits until standard input can be read (from) or the command's pipe be written to (into).
// It is false when the attempt is over or nobody reads the pipe any more.
func (in *input) await(to int, from, into int16) bool {
	source := int32(0)
	if from == 0 {
		source = -1
	}
	for {
		fds := []unix.PollFd{{Fd: int32(in.wake), Events: unix.POLLIN},
			{Fd: int32(to), Events: into},
			{Fd: source, Events: from}}
		_, err := unix.Poll(fds, -1)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil || fds[0].Revents != 0 || fds[1].Revents&unix.POLLERR != 0:
			return false
		default:
			return true
		}
	}
}

// offer copies what comes next into the command's pipe without taking it from the source. 0: there
// is no more.
func (in *input) offer(to int, page []byte) (int, error) {
	if in.kind == keptPipe {
		n, err := unix.Tee(0, to, len(page), unix.SPLICE_F_NONBLOCK)
		return int(n), err
	}
	n, _, err := unix.Recvfrom(0, page, unix.MSG_PEEK|unix.MSG_DONTWAIT)
	if err != nil || n == 0 {
		return n, err
	}
	return unix.Write(to, page[:n])
}

// take moves the input that the command has read from the source into kept.
func (in *input) take(read []byte) bool {
	for len(read) > 0 {
		n, err := unix.Read(0, read)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if n <= 0 {
			return false
		}
		in.keep(read[:n])
		read = read[n:]
	}
	return true
}

func (in *input) keep(data []byte) {
	in.mu.Lock()
	kept, at := in.kept, in.size
	in.size += int64(len(data))
	in.mu.Unlock()
	if kept == nil {
		return
	}
	if at+int64(len(data)) > int64(inputBound) {
		in.spend("the command read more than %s from a pipe, and no more is kept for another attempt; "+
			"give it a file instead (< FILE)", inputBound)
	} else if _, err := kept.WriteAt(data, at); err != nil {
		in.spend("what the command reads from its standard input could not be kept: %v", err)
	}
}

// spend drops the kept input. The run goes on; only another attempt is no longer possible.
func (in *input) spend(why string, args ...any) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.kept != nil {
		in.kept.Close()
	}
	in.kept = nil
	in.spent = fmt.Sprintf(why, args...)
}
