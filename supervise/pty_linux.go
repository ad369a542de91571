package supervise

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// pty is a pseudo-terminal: bytes written to the slave side are read from the master.
type pty struct {
	master *os.File
	slave  *os.File
}

func noTerminal(err error) error {
	return fmt.Errorf("no terminal can be made for the command: %w; with its input and output "+
		"redirected it needs none", err)
}

// openPTY makes a pseudo-terminal with the given size and, where known, the settings of the user's
// terminal.
func openPTY(size Size, modes []byte) (*pty, error) {
	master, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK,
		0)
	if err != nil {
		return nil, noTerminal(err)
	}
	number, err := unix.IoctlGetInt(master, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(master, unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		unix.Close(master)
		return nil, noTerminal(err)
	}
	name := fmt.Sprintf("/dev/pts/%d", number)
	slave, err := unix.Open(name, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		unix.Close(master)
		return nil, noTerminal(fmt.Errorf("%s: %w", name, err))
	}
	setSize(slave, size)
	if t, ok := decodeModes(modes); ok {
		_ = unix.IoctlSetTermios(slave, unix.TCSETS, &t)
	}
	return &pty{master: os.NewFile(uintptr(master), "/dev/ptmx"),
		slave: os.NewFile(uintptr(slave), name)}, nil
}

// becomeController makes the terminal the controlling one of this process's session. The keeper
// does so itself, and not the command: only then has the command's process group a parent in its
// session, without which the kernel ignores Ctrl-Z.
func (p *pty) becomeController() error {
	return unix.IoctlSetInt(int(p.slave.Fd()), unix.TIOCSCTTY, 0)
}

func setSize(fd int, size Size) {
	if size.Rows > 0 && size.Columns > 0 {
		_ = unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: size.Rows,
			Col: size.Columns})
	}
}

func (p *pty) resize(size Size) {
	raw, err := p.master.SyscallConn()
	if err == nil {
		_ = raw.Control(func(fd uintptr) { setSize(int(fd), size) })
	}
}

// encodeModes and decodeModes carry terminal settings between two processes of one machine.
func encodeModes(t *unix.Termios) []byte {
	return append([]byte(nil), (*[unsafe.Sizeof(*t)]byte)(unsafe.Pointer(t))[:]...)
}

func decodeModes(b []byte) (t unix.Termios, ok bool) {
	if len(b) != int(unsafe.Sizeof(t)) {
		return t, false
	}
	copy((*[unsafe.Sizeof(t)]byte)(unsafe.Pointer(&t))[:], b)
	return t, true
}
