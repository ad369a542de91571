package api

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

// accepted returns the server's end of a connection that dial makes to a listener of its own.
func accepted(t *testing.T, network, address string, dial func(port int) func()) (net.Conn,
	func()) {
	t.Helper()
	listener, err := net.Listen(network, address)
	if err != nil {
		t.Skipf("needs %s: %v", address, err)
	}
	defer listener.Close()
	hangUp := dial(listener.Addr().(*net.TCPAddr).Port)
	conn, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn, hangUp
}

// by connects with a socket of a family to an address, without the help of package net, which would
// choose another one.
func by(t *testing.T, family int, to func(port int) syscall.Sockaddr) func(port int) func() {
	return func(port int) func() {
		t.Helper()
		fd, err := syscall.Socket(family, syscall.SOCK_STREAM, 0)
		if err == nil {
			err = syscall.Connect(fd, to(port))
		}
		if err != nil {
			t.Fatal(err)
		}
		return func() { _ = syscall.Close(fd) }
	}
}

var (
	v4 = func(port int) syscall.Sockaddr {
		return &syscall.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}
	}
	mapped = func(port int) syscall.Sockaddr {
		return &syscall.SockaddrInet6{Port: port,
			Addr: [16]byte{10: 0xff, 11: 0xff, 12: 127, 13: 0, 14: 0, 15: 1}}
	}
	v6 = func(port int) syscall.Sockaddr {
		return &syscall.SockaddrInet6{Port: port, Addr: [16]byte{15: 1}}
	}
)

// TestWhoseConnection: over each kind of socket the user is found, as long as the other end is
// open. One that was closed is nobody's, and not root's, although the kernel's table has a 0 there.
func TestWhoseConnection(t *testing.T) {
	for name, c := range map[string]struct {
		network, listen string
		family          int
		to              func(int) syscall.Sockaddr
	}{
		"IPv4":                   {"tcp4", "127.0.0.1:0", syscall.AF_INET, v4},
		"IPv6":                   {"tcp6", "[::1]:0", syscall.AF_INET6, v6},
		"IPv4 by an IPv6 socket": {"tcp4", "127.0.0.1:0", syscall.AF_INET6, mapped},
		"IPv4 at an IPv6 socket": {"tcp", "[::]:0", syscall.AF_INET, v4},
		"both by IPv6 sockets":   {"tcp", "[::]:0", syscall.AF_INET6, mapped},
	} {
		t.Run(name, func(t *testing.T) {
			conn, hangUp := accepted(t, c.network, c.listen, by(t, c.family, c.to))
			if uid, known := uidOf(conn); !known || uid != os.Geteuid() {
				t.Errorf("user %d, known %v", uid, known)
			}
			hangUp()
			// the kernel may need a moment to take the socket from its program
			for range 100 {
				if _, known := uidOf(conn); !known {
					return
				}
				time.Sleep(10 * time.Millisecond)
			}
			t.Error("a connection that was closed still has a user")
		})
	}
	if !KnowsPeers("127.0.0.1") && os.Geteuid() != nobodyKnown() {
		t.Error("our own connection is not known")
	}
}

// TestEntriesOfTables: a port that is the beginning of another, sockets that nobody holds or that
// are not connected yet, and lines that are cut.
func TestEntriesOfTables(t *testing.T) {
	own, other := netip.MustParseAddrPort("127.0.0.1:50000"), netip.MustParseAddrPort("127.0.0.1:8000")
	entry := strings.TrimSpace(string(tables(own, other)[0].entry))
	line := func(state string, uid, inode int) string {
		return fmt.Sprintf("   7: %s %s 00000000:00000000 00:00000000 00000000  %d        0 %d 1 0\n",
			entry, state, uid, inode)
	}
	for text, want := range map[string]int{
		line("01", 1000, 55):                1000,
		line("06", 0, 0):                    -1,
		line("05", 0, 0):                    -1,
		line("05", 1000, 55):                1000,
		line("02", 0, 55):                   -1,
		line("06", 0, 0) + line("01", 7, 9): 7,
		strings.Replace(line("01", 1000, 55), entry, "1"+entry[1:], 1):   -1,
		line("01", 1000, 55)[:70]:                                        -1,
		"  sl  local_address rem_address   st tx_queue rx_queue tr tm\n": -1,
	} {
		uid, known := ownerOf([]byte(text), tables(own, other)[0].entry)
		if known != (want >= 0) || known && uid != want {
			t.Errorf("%q: %d %v, want %d", text, uid, known, want)
		}
	}
}

// TestLookingAndSending: with peers, our own connection may look without a token, and send nothing.
func TestLookingAndSending(t *testing.T) {
	if !KnowsPeers("127.0.0.1") {
		t.Skip("needs a system that tells whose connections are")
	}
	s := newSite(t, func(o *Options) { o.Peers = true }, receiving(t, t.TempDir()))
	for _, c := range []struct {
		method, path string
		want         int
	}{{"GET", "/api/runs", 200}, {"GET", "/", 200}, {"GET", "/healthz", 200},
		{"POST", "/api/snapshots", 401}, {"DELETE", "/api/snapshots/x", 401},
		{"POST", "/api/reports/" + reportKey, 401}, {"PUT", "/api/runs", 401}} {
		for _, token := range []string{"", "wrong"} {
			got, text, _ := s.ask(c.method, c.path, strings.NewReader("x"), "Authorization",
				"Bearer "+token, "Content-Type", "application/octet-stream")
			if got != c.want {
				t.Errorf("%s %s: %d, want %d: %s", c.method, c.path, got, c.want, clip(text, 200))
			}
		}
	}
	if status, text := s.hello(reportKey, time.Now()); status != 401 {
		t.Errorf("a report without a token: %d %s", status, text)
	}
	if got, text, _ := s.ask("POST", "/api/snapshots", strings.NewReader("x"), "Content-Type",
		"application/octet-stream", "Authorization", "Bearer "+siteToken); got != 200 {
		t.Errorf("with the token: %d %s", got, text)
	}
	none := newSite(t, func(o *Options) { o.Token = "" })
	for _, token := range []string{"", "x"} {
		if got, _, _ := none.ask("GET", "/api/runs", nil, "Authorization", "Bearer "+token); got != 401 {
			t.Errorf("a server without a token lets anybody in: %d", got)
		}
	}
}
