package serve

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"memroom/feed/table"
)

// TestEndsBesideAStuckConsumer: the second consumer never comes back from the file that it opens.
func TestEndsBesideAStuckConsumer(t *testing.T) {
	var all sync.WaitGroup
	left := false
	all.Go(func() { left = true })
	waitFor(&all, nil, time.Hour) // not waited for when all have left
	if !left {
		t.Error("did not wait for a consumer that leaves")
	}
	all.Add(1)
	defer all.Done()
	waitFor(&all, nil, time.Millisecond)
}

// TestSaysThatItWorks: work that ends only when the consumer has heard of it ends, and nothing is
// said afterwards.
func TestSaysThatItWorks(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	ends := make([]net.Conn, 2)
	for i, fd := range fds {
		file := os.NewFile(uintptr(fd), "")
		if ends[i], err = net.FileConn(file); err != nil {
			t.Fatal(err)
		}
		file.Close()
		defer ends[i].Close()
	}
	columns := []table.Column{table.FixedOf("a", "<f4", 4, ""), {Name: "t", Kind: table.Text}}
	done := errors.New("done")
	err = whileMaking(ends[0].(*net.UnixConn), request{Version: hearsStill}, columns, func() error {
		heard := make([]byte, 40+4*16) // four spans: one for the numbers, three for the text
		if _, err := io.ReadFull(ends[1], heard); err != nil || heard[0] != kindStill {
			t.Errorf("heard %d, %v", heard[0], err)
		}
		return done
	})
	if !errors.Is(err, done) {
		t.Errorf("got %v", err)
	}
	ends[0].Close()
	if rest, err := io.ReadAll(ends[1]); err != nil || len(rest)%104 != 0 {
		t.Errorf("%d more bytes, %v", len(rest), err)
	}
}
