package cli

import (
	"fmt"
	"strings"
	"sync"
	"syscall"
	"time"

	"memroom/store"
	"memroom/supervise"
)

// view shows the live picture while the command runs; its output is kept, and the end of it shown
// below the picture. On something that is no terminal it prints a line every ten seconds instead.
func (c *runCmd) view(s *session, front *supervise.Front, folder *store.Folder) error {
	end := &lastLines{}
	front.Show = func(_ int, data []byte) { end.add(data) }
	type ended struct {
		state supervise.State
		err   error
	}
	over := make(chan ended, 1)
	go func() {
		state, err := front.Run()
		over <- ended{state, err}
	}()
	f := newFollower(folder)
	out, ok := fileOf(s.Out)
	if !ok || !isTerminal(out) {
		for {
			select {
			case e := <-over:
				return c.conclude(s, front, folder, e.state, e.err)
			case <-time.After(10 * time.Second):
				f.update()
				fmt.Fprintln(s.Err, "memroom: "+f.line())
			}
		}
	}
	keys, screen := newKeys(s), newPicture(s, out)
	restore := sync.OnceFunc(func() { screen.close(); keys.close() })
	defer restore()
	for {
		select {
		case e := <-over:
			restore()
			for _, line := range end.last(20) {
				fmt.Fprintln(s.Out, line)
			}
			return c.conclude(s, front, folder, e.state, e.err)
		default:
		}
		f.update()
		screen.draw(f, end.last(40))
		switch key, pressed := keys.next(500 * time.Millisecond); {
		case pressed && key == 'C'-'@':
			front.Signal(syscall.SIGINT)
		case pressed && (key == 'q' || key == 'Q'):
			restore()
			s.note("memroom: left %s running; memroom attach %s comes back", folder.ID, folder.ID)
			return nil
		}
	}
}

// lastLines keeps the end of an output.
type lastLines struct {
	mu   sync.Mutex
	text string
}

func (l *lastLines) add(data []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text += string(data)
	if len(l.text) > 64<<10 {
		l.text = l.text[len(l.text)-32<<10:]
	}
}

// last returns the last lines. A progress bar's earlier states, before a carriage return, are left
// out.
func (l *lastLines) last(n int) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	lines := strings.Split(strings.TrimRight(l.text, "\r\n"), "\n")
	lines = lastOf(lines, n)
	out := make([]string, len(lines))
	for i, line := range lines {
		line = strings.TrimRight(line, "\r")
		out[i] = line[strings.LastIndexByte(line, '\r')+1:]
	}
	return out
}
