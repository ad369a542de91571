package supervise

import (
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// Link is a private connection between the keeper and a process that belongs to its run: the front
// end that started the keeper, or a monitor that the keeper started. It is one end of a socket
// pair. The other process inherits its end when it is started, so no third process can hold one.
//
// Only what comes over a link may start a command. A connection to the keeper's named socket may
// watch, type and send signals.
type Link struct{ conn *net.UnixConn }

// linkFD is the descriptor at which a process finds the end of the link it inherited.
const linkFD = 3

// newLink makes a link. The first end is ours; the second is for a process about to be started.
func newLink() (ours *Link, theirs *os.File, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("memroom's two processes cannot be connected: %w; is the limit "+
			"of open files "+
			"reached (ulimit -n)?", err)
	}
	theirs = os.NewFile(uintptr(pair[1]), "link")
	ours, err = linkOf(os.NewFile(uintptr(pair[0]), "link"))
	if err != nil {
		theirs.Close()
		return nil, nil, err
	}
	return ours, theirs, nil
}

// Inherited returns the link that this process was started with. The descriptor is closed to what
// this process starts: the user's command must not find it.
func Inherited() (*Link, error) {
	unix.CloseOnExec(linkFD)
	var st unix.Stat_t
	if err := unix.Fstat(linkFD, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return nil, errors.New("this command is memroom's own: only memroom run can start it")
	}
	return linkOf(os.NewFile(linkFD, "link"))
}

// linkOf takes over the file.
func linkOf(file *os.File) (*Link, error) {
	defer file.Close()
	conn, err := net.FileConn(file)
	if err != nil {
		return nil, fmt.Errorf("use the inherited socket: %w", err)
	}
	unixConn, ok := conn.(*net.UnixConn)
	if !ok {
		conn.Close()
		return nil, errors.New("the inherited socket is not a unix socket")
	}
	return &Link{unixConn}, nil
}

// Settings reads what the front end wants the monitor to know. It is the first message on a
// monitor's link. Settings hold commands of the user's, so they are in no command line.
func (l *Link) Settings() ([]byte, error) {
	what, payload, err := readMessage(l.conn)
	if err != nil {
		return nil, fmt.Errorf("read the monitor's settings: %w", err)
	}
	if what != tellSettings {
		return nil, fmt.Errorf("read the monitor's settings: the keeper sent a message of kind %q",
			string(what))
	}
	return payload, nil
}

// Close ends the link.
func (l *Link) Close() { l.conn.Close() }
