package probe

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

const (
	// of a message: a probe keeps at most 256 KiB, so a longer line is not a probe's
	maxLine     = 4 << 20
	maxPath     = 107 // bytes in a unix socket's address
	sendTimeout = 2 * time.Second
)

// Listener is the monitor's end: the socket the probes of one run connect to.
type Listener struct {
	socket *net.UnixListener
	heard  chan Heard
	closed chan struct{}
	once   sync.Once
	wait   sync.WaitGroup

	mu    sync.Mutex
	conns map[*Conn]bool
}

// Heard is one thing that came in over a connection: a message, a line that could not be read, or
// its end.
type Heard struct {
	Conn    *Conn
	Message Message // nil for an error or the end
	Err     error   // io.EOF: the probe is gone
}

// Conn is one Python process.
type Conn struct {
	PID  int // as this machine's kernel knows it, from the socket's credentials; 0 unknown
	conn *net.UnixConn
	mu   sync.Mutex
}

// Listen opens the socket at path, which only the user may use. A socket left behind by a dead
// monitor is replaced.
func Listen(path string) (*Listener, error) {
	if len(path) > maxPath {
		return nil,
			fmt.Errorf("no socket can be made for the command's Python: %s has %d bytes, at most %d are "+
				"possible: set TMPDIR or MEMROOM_HOME to a shorter path", path, len(path), maxPath)
	}
	if info, err := os.Lstat(path); err == nil && info.Mode()&os.ModeSocket != 0 {
		os.Remove(path)
	}
	socket, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("no socket can be made for the command's Python: %w; set TMPDIR to a "+
			"folder "+
			"of your own", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		socket.Close()
		return nil, fmt.Errorf("no socket can be made for the command's Python: %w; set TMPDIR to a "+
			"folder "+
			"of your own", err)
	}
	l := &Listener{socket: socket, heard: make(chan Heard, 256), closed: make(chan struct{}),
		conns: map[*Conn]bool{}}
	l.wait.Add(1)
	go l.accept()
	return l, nil
}

// Messages returns what the probes say, in the order of each connection. It is closed by Close.
func (l *Listener) Messages() <-chan Heard { return l.heard }

// Close ends all connections. The probes go on without us.
func (l *Listener) Close() error {
	var err error
	l.once.Do(func() {
		close(l.closed)
		err = l.socket.Close()
		l.mu.Lock()
		for c := range l.conns {
			c.conn.Close()
		}
		l.mu.Unlock()
		l.wait.Wait()
		close(l.heard)
	})
	return err
}

func (l *Listener) accept() {
	defer l.wait.Done()
	for {
		conn, err := l.socket.AcceptUnix()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			select { // out of descriptors, for instance: wait rather than spin
			case <-l.closed:
				return
			case <-time.After(100 * time.Millisecond):
				continue
			}
		}
		pid, allowed := peer(conn)
		if !allowed { // another user's process must not be able to make up a run's story
			conn.Close()
			continue
		}
		c := &Conn{conn: conn, PID: pid}
		l.mu.Lock()
		l.conns[c] = true
		l.mu.Unlock()
		select {
		case <-l.closed: // Close may have walked the table before we entered this one
			conn.Close()
		default:
		}
		l.wait.Add(1)
		go l.read(c)
	}
}

func (l *Listener) read(c *Conn) {
	defer l.wait.Done()
	defer func() {
		c.conn.Close()
		l.mu.Lock()
		delete(l.conns, c)
		l.mu.Unlock()
	}()
	lines := bufio.NewScanner(c.conn)
	lines.Buffer(make([]byte, 0, 16<<10), maxLine)
	for lines.Scan() {
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 {
			continue
		}
		m, err := Decode(line)
		if !l.tell(Heard{Conn: c, Message: m, Err: err}) {
			return
		}
	}
	end := lines.Err()
	if end == nil || errors.Is(end, net.ErrClosed) || errors.Is(end, syscall.ECONNRESET) {
		end = io.EOF
	}
	l.tell(Heard{Conn: c, Err: end})
}

func (l *Listener) tell(h Heard) bool {
	select {
	case l.heard <- h:
		return true
	case <-l.closed:
		return false
	}
}

// Do sends a command. It does not wait for the answer, which comes as Done.
func (c *Conn) Do(command Command) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.conn.SetWriteDeadline(time.Now().Add(sendTimeout)); err != nil {
		return fmt.Errorf("tell probe of pid %d: %w", c.PID, err)
	}
	if _, err := c.conn.Write(command.encode()); err != nil {
		return fmt.Errorf("tell probe of pid %d: %w", c.PID, err)
	}
	return nil
}
