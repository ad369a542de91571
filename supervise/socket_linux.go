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

// abstractName is the address used where the folder cannot hold a socket (a full disk, some network
// and FUSE file systems). Everybody may connect to it and anybody may take it first, so both ends
// ask the kernel who the other one is.
func abstractName(dir, name string) string {
	return fmt.Sprintf("@memroom-%d-%s-%s", ownerOf(dir), filepath.Base(dir), name)
}

// ownerOf is the user that a folder belongs to; ourselves when that cannot be read.
func ownerOf(dir string) int {
	var st unix.Stat_t
	if unix.Stat(dir, &st) != nil {
		return os.Geteuid()
	}
	return int(st.Uid)
}

// Listen makes a socket in the run's folder, or without a file where that cannot be. Whoever
// accepts from it must look at the peer: see checkPeer.
func Listen(dir, name string) (*net.UnixListener, error) {
	var listener *net.UnixListener
	err := inFolder(dir, name, func(path string) error {
		_ = os.Remove(path)
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		if err != nil {
			return err
		}
		l.SetUnlinkOnClose(false) // by then the number in the path names another folder
		if err := os.Chmod(path, 0o600); err != nil {
			l.Close()
			return err
		}
		listener = l
		return nil
	})
	if err == nil {
		return listener, nil
	}
	l, second := net.ListenUnix("unix", &net.UnixAddr{Name: abstractName(dir, name), Net: "unix"})
	if second != nil {
		return nil, errors.Join(err, second)
	}
	return l, nil
}

// dial connects to a run's keeper. The other end must be ours, or root's; root may also attach to
// the run of the user that its folder belongs to.
func dial(dir string) (*net.UnixConn, error) {
	var conn *net.UnixConn
	err := inFolder(dir, socketName, func(path string) error {
		c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
		conn = c
		return err
	})
	if err != nil {
		c, second := net.DialUnix("unix", nil, &net.UnixAddr{Name: abstractName(dir, socketName),
			Net: "unix"})
		if second != nil {
			return nil, err
		}
		conn = c
	}
	user := os.Geteuid()
	if user == 0 {
		user = ownerOf(dir)
	}
	if err := checkPeer(conn, user); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// checkPeer refuses a peer that is neither the user nor root.
func checkPeer(conn *net.UnixConn, user int) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var peer *unix.Ucred
	var failure error
	if err := raw.Control(func(fd uintptr) {
		peer, failure = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return err
	}
	if failure != nil {
		return failure
	}
	if peer.Uid != uint32(user) && peer.Uid != 0 {
		return fmt.Errorf("the other end of the socket belongs to user %d, not to user %d",
			peer.Uid, user)
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
