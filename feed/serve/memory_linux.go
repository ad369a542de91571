package serve

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"memroom/event"
)

// shared is memory for a batch: a memfd, which the consumer maps, or memory of our own that is
// copied through the socket.
type shared struct {
	bytes      []byte
	descriptor int // -1: not shared
}

func newShared(size int64, sharing bool) (*shared, error) {
	if !sharing {
		return &shared{make([]byte, size), -1}, nil
	}
	fd, err := unix.MemfdCreate("memroom-feed", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("no shared memory (%w): ask for transport=\"copy\"", err)
	}
	if err = unix.Ftruncate(fd, size); err == nil {
		var data []byte
		if data, err = unix.Mmap(fd, 0, int(size), unix.PROT_READ|unix.PROT_WRITE,
			unix.MAP_SHARED); err == nil {
			return &shared{data, fd}, nil
		}
	}
	unix.Close(fd)
	return nil, fmt.Errorf("no shared memory of %s (%w): ask for transport=\"copy\", or smaller "+
		"batches",
		event.Bytes(size), err)
}

func (s *shared) close() {
	if s.descriptor >= 0 {
		// The consumer may still have it mapped: its pages are given back all the same.
		_ = unix.Fallocate(s.descriptor, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0,
			int64(len(s.bytes)))
		_ = unix.Munmap(s.bytes)
		_ = unix.Close(s.descriptor)
	}
	s.bytes = nil
}

// writeWith writes a message with a descriptor attached to its first bytes.
func writeWith(conn *net.UnixConn, head []byte, descriptor int) error {
	var beside []byte
	if descriptor >= 0 {
		beside = unix.UnixRights(descriptor)
	}
	n, _, err := conn.WriteMsgUnix(head, beside, nil)
	if err != nil || n == len(head) {
		return err
	}
	_, err = conn.Write(head[n:])
	return err
}

// samePerson refuses other users: an abstract socket has no permissions of its own.
func samePerson(conn *net.UnixConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var peer *unix.Ucred
	var found error
	if err := raw.Control(func(fd uintptr) {
		peer, found = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return err
	}
	if found != nil {
		return found
	}
	if int(peer.Uid) != os.Getuid() {
		return fmt.Errorf("process %d belongs to user %d: only the user who started the server may "+
			"read from it", peer.Pid, peer.Uid)
	}
	return nil
}

// peakMeter watches what this process uses.
type peakMeter struct {
	mu   sync.Mutex
	peak event.Bytes
}

const meterEvery = 25 * time.Millisecond

func newPeakMeter(ctx context.Context) *peakMeter {
	m := &peakMeter{}
	go func() {
		tick := time.NewTicker(meterEvery)
		defer tick.Stop()
		for {
			m.look()
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
	}()
	return m
}

// look reads the status of this process: anonymous and shared memory now, and the most that was
// resident.
func (m *peakMeter) look() event.Bytes {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	now := statusField(text, "RssAnon:") + statusField(text, "RssShmem:")
	m.mu.Lock()
	defer m.mu.Unlock()
	m.peak = max(m.peak, now)
	return statusField(text, "VmHWM:")
}

func (m *peakMeter) read() (peak, rss event.Bytes) {
	rss = m.look()
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.peak, rss
}

func statusField(text []byte, name string) event.Bytes {
	_, rest, found := bytes.Cut(text, []byte("\n"+name))
	if !found {
		return 0
	}
	fields := bytes.Fields(rest)
	n, _ := strconv.ParseInt(string(fields[0]), 10, 64)
	return event.Bytes(n << 10)
}
