package probe

import (
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// peer is the connecting process as the kernel sees it from here: its number is right even if it
// lives in another pid namespace. Only processes of our own user, and root's, are allowed to speak.
func peer(conn *net.UnixConn) (pid int, allowed bool) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, false
	}
	_ = raw.Control(func(fd uintptr) {
		cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		if err == nil {
			pid, allowed = int(cred.Pid), cred.Uid == 0 || cred.Uid == uint32(os.Geteuid())
		}
	})
	return pid, allowed
}
