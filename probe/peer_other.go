//go:build !linux

package probe

import "net"

// peer knows nothing of the other end here: the socket's file keeps other users out.
func peer(*net.UnixConn) (pid int, allowed bool) { return 0, true }
