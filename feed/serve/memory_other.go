//go:build !linux

package serve

import (
	"context"
	"net"

	"memroom/event"
)

// shared is memory for a batch. Without memfds it is copied through the socket.
type shared struct {
	bytes      []byte
	descriptor int
}

func newShared(size int64, _ bool) (*shared, error) { return &shared{make([]byte, size), -1}, nil }

func (s *shared) close() { s.bytes = nil }

func writeWith(conn *net.UnixConn, head []byte, _ int) error {
	_, err := conn.Write(head)
	return err
}

func samePerson(*net.UnixConn) error { return nil } // the socket's folder is private

type peakMeter struct{}

func newPeakMeter(context.Context) *peakMeter { return &peakMeter{} }

func (*peakMeter) read() (peak, rss event.Bytes) { return 0, 0 }
