package supervise

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// socketName lies in the run's folder, which only its owner may enter.
const socketName = "keeper.sock"

// inFolder calls do with a short path for a name in a folder. A socket's address holds 107 bytes,
// and homes are deeper than that; the kernel's own name for an open folder never is.
func inFolder(dir, name string, do func(path string) error) error {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", dir, err)
	}
	defer unix.Close(fd)
	return do(fmt.Sprintf("/proc/self/fd/%d/%s", fd, name))
}

// abstractName is the address used where the file system has no sockets (some network and FUSE file
// systems).
func abstractName(dir string) string {
	return fmt.Sprintf("@memroom-%d-%s", os.Getuid(), filepath.Base(dir))
}

// Listen makes a socket in the run's folder.
func Listen(dir, name string) (*net.UnixListener, error) {
	var listener *net.UnixListener
	err := inFolder(dir, name, func(path string) error {
		_ = os.Remove(path)
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		if err == nil {
			l.SetUnlinkOnClose(false) // by then the number in the path names another folder
			err = os.Chmod(path, 0o600)
		}
		listener = l
		return err
	})
	if err == nil {
		return listener, nil
	}
	l, second := net.ListenUnix("unix", &net.UnixAddr{Name: abstractName(dir) + "-" + name,
		Net: "unix"})
	if second != nil {
		return nil, errors.Join(err, second)
	}
	return l, nil
}

// dial connects to a run's keeper.
func dial(dir string) (*net.UnixConn, error) {
	var conn *net.UnixConn
	err := inFolder(dir, socketName, func(path string) error {
		c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
		conn = c
		return err
	})
	if err != nil {
		c, second := net.DialUnix("unix", nil, &net.UnixAddr{Name: abstractName(dir) + "-" +
			socketName, Net: "unix"})
		if second != nil {
			return nil, err
		}
		conn = c
	}
	if err := sameUser(conn); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// sameUser refuses a peer that belongs to somebody else; root may talk to everybody.
func sameUser(conn *net.UnixConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var peer *unix.Ucred
	var failure error
	if err := raw.Control(func(fd uintptr) {
		peer, failure = unix.GetsockoptUcred(int(fd),
			unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return err
	}
	if failure != nil {
		return failure
	}
	if me := uint32(os.Getuid()); peer.Uid != me && peer.Uid != 0 && me != 0 {
		return fmt.Errorf("the other end of the socket belongs to user %d, not to us", peer.Uid)
	}
	return nil
}

// bootClock is the time since boot, sleep included. No one can set it.
func bootClock() time.Duration { return clock(unix.CLOCK_BOOTTIME) }

// monotonicClock is the time since boot without sleep.
func monotonicClock() time.Duration { return clock(unix.CLOCK_MONOTONIC) }

func clock(id int32) time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(id, &ts); err != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}
