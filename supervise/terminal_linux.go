package supervise

import (
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// PlanStreams decides the kinds of the command's streams from ours: terminals become a
// pseudo-terminal, everything else a pipe, stdin is handed on as it is, and two outputs that are
// the same file stay one stream.
func PlanStreams(in, out, errs *os.File) Streams {
	s := Streams{In: Inherit, Out: Pipe, Err: Pipe}
	if isTerminal(out) {
		s.Out = Terminal
	}
	if isTerminal(errs) {
		s.Err = Terminal
	}
	if isTerminal(in) && s.usesTerminal() {
		s.In = Terminal
	}
	s.Merged = s.Out == Pipe && s.Err == Pipe && sameFile(out, errs)
	return s
}

func isTerminal(f *os.File) bool { return f != nil && term.IsTerminal(int(f.Fd())) }

func sameFile(a, b *os.File) bool {
	ia, err1 := a.Stat()
	ib, err2 := b.Stat()
	return err1 == nil && err2 == nil && os.SameFile(ia, ib)
}

// screen is the user's terminal while a command with a pseudo-terminal runs: raw, so that every key
// reaches the command's terminal, which turns Ctrl-C into a signal there.
type screen struct {
	file *os.File
	mu   sync.Mutex
	raw  bool
	was  *unix.Termios
	held bool // stopped, or about to be: the terminal is the shell's
	over bool
}

func newScreen(file *os.File) *screen { return &screen{file: file} }

// foreground reports whether the terminal is ours now. A background job that changes or reads it is
// stopped by the kernel.
func (s *screen) foreground() bool {
	group, err := unix.IoctlGetInt(int(s.file.Fd()), unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}

// enter makes the terminal raw if it is ours.
func (s *screen) enter() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.raw || s.over || s.held || !s.foreground() {
		return
	}
	was, err := unix.IoctlGetTermios(int(s.file.Fd()), unix.TCGETS)
	if err != nil {
		return
	}
	raw := *was
	raw.Iflag &^= unix.IGNBRK | unix.BRKINT | unix.PARMRK | unix.ISTRIP | unix.INLCR |
		unix.IGNCR | unix.ICRNL | unix.IXON
	raw.Oflag &^= unix.OPOST
	raw.Lflag &^= unix.ECHO | unix.ECHONL | unix.ICANON | unix.ISIG | unix.IEXTEN
	raw.Cflag = raw.Cflag&^(unix.CSIZE|unix.PARENB) | unix.CS8
	raw.Cc[unix.VMIN], raw.Cc[unix.VTIME] = 1, 0
	if unix.IoctlSetTermios(int(s.file.Fd()), unix.TCSETS, &raw) == nil {
		s.was, s.raw = was, true
	}
}

// isRaw reports whether bytes reach the terminal as they are. Without a screen it never was made
// so.
func (s *screen) isRaw() bool {
	if s == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.raw
}

// restore restores the terminal's settings.
func (s *screen) restore() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.raw {
		_ = unix.IoctlSetTermios(int(s.file.Fd()), unix.TCSETSW, s.was)
		s.raw = false
	}
}

// pause restores the terminal's settings until resume.
func (s *screen) pause() {
	s.mu.Lock()
	s.held = true
	s.mu.Unlock()
	s.restore()
}

func (s *screen) resume() {
	s.mu.Lock()
	s.held = false
	s.mu.Unlock()
	s.enter()
}

// close restores for good.
func (s *screen) close() {
	s.restore()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
}

// keys reads what the user types and hands it on, while we are in the foreground.
func (s *screen) keys(take func([]byte) bool) {
	buf := make([]byte, 4096)
	for {
		if over := s.awaitForeground(); over {
			return
		}
		ready := []unix.PollFd{{Fd: int32(s.file.Fd()), Events: unix.POLLIN}}
		if _, err := unix.Poll(ready, -1); err != nil || !s.foreground() {
			if !s.foreground() {
				s.restoreForgotten()
			}
			continue
		}
		n, err := unix.Read(int(s.file.Fd()), buf)
		if err == unix.EINTR || err == unix.EAGAIN {
			continue
		}
		if err != nil || n <= 0 || !take(append([]byte(nil), buf[:n]...)) {
			return
		}
	}
}

// awaitForeground waits until the terminal is ours, or no longer needed. A shell that brings a
// background job to the foreground does not notify it: one has to look.
func (s *screen) awaitForeground() (over bool) {
	for {
		s.enter()
		s.mu.Lock()
		raw, over := s.raw, s.over
		s.mu.Unlock()
		if raw || over {
			return over
		}
		time.Sleep(lookForTerminal)
	}
}

// lookForTerminal is how often a job in the background looks whether it is in the foreground: one
// system call.
const lookForTerminal = 100 * time.Millisecond

// restoreForgotten notes that the shell took the terminal away from us; it has set its own modes.
func (s *screen) restoreForgotten() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.raw = false
}

// sizeOf returns the size of a terminal, zero when it has none.
func sizeOf(f *os.File) Size {
	ws, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return Size{}
	}
	return Size{Rows: ws.Row, Columns: ws.Col}
}

// modesOf returns a terminal's settings, nil when it is none.
func modesOf(f *os.File) []byte {
	t, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	if err != nil {
		return nil
	}
	return encodeModes(t)
}
