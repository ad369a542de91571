package api

import (
	"context"
	"net"
	"net/netip"
	"os"
	"sync"
)

// peer is who opened a connection, looked up when a request first needs it. Whoever opened it is
// asked for on all of its requests.
type peer struct {
	conn  net.Conn
	once  sync.Once
	ours  bool
	alien bool // another user's, without doubt
}

type peerKey struct{}

// ConnContext keeps the connection of a request with its context. The http.Server that serves s
// must call it.
func (s *Server) ConnContext(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, peerKey{}, &peer{conn: conn})
}

// peerOf looks up whether the other end of a request's connection is a socket of this process's
// user, or of root.
func peerOf(ctx context.Context) (ours, alien bool) {
	p, ok := ctx.Value(peerKey{}).(*peer)
	if !ok {
		return false, false
	}
	p.once.Do(func() {
		if uid, known := uidOf(p.conn); known {
			p.ours = uid == 0 || uid == os.Geteuid()
			p.alien = !p.ours
		}
	})
	return p.ours, p.alien
}

// uidOf is the user of a connection's other end, on this machine.
func uidOf(conn net.Conn) (uid int, known bool) {
	here, ok := addressOf(conn.LocalAddr())
	there, ok2 := addressOf(conn.RemoteAddr())
	if !ok || !ok2 || !there.Addr().IsLoopback() {
		return 0, false
	}
	return socketUser(there, here)
}

func addressOf(a net.Addr) (netip.AddrPort, bool) {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}, false
	}
	at := tcp.AddrPort()
	return netip.AddrPortFrom(at.Addr().Unmap().WithZone(""), at.Port()), true
}

// KnowsPeers reports whether the system can name the owner of a connection to an address of this
// machine. It tries with a connection of its own.
func KnowsPeers(host string) bool {
	listener, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return false
	}
	defer listener.Close()
	dialled, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		return false
	}
	defer dialled.Close()
	conn, err := listener.Accept()
	if err != nil {
		return false
	}
	defer conn.Close()
	uid, known := uidOf(conn)
	return known && uid == os.Geteuid() && uid != nobodyKnown()
}
