package supervise

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"memroom/event"
)

// Front is the front end: it shows a run's output, hands on keys and signals, and learns how the
// run ends. It may be killed at any moment without harm to the run.
type Front struct {
	Files Files
	In    *os.File
	Out   *os.File
	Err   *os.File

	Note   func(text string)   // prints a line for the user; nil: lines are dropped
	Exited func(event.Exit)    // an attempt has ended; nil: dropped
	Found  func(event.Finding) // the monitor learnt something; nil: dropped
	// the keeper's state, at the beginning and at each attempt; nil: dropped
	OnState func(State)
	// takes the output instead of Out and Err (the live view); nil: they do
	Show       func(int, []byte)
	DetachKeys bool                  // Ctrl-P Ctrl-Q leaves without ending the run
	ReadOnly   bool                  // signals end the front end instead of being handed on
	stop       func(signalled error) // set while running
	heldP      bool                  // a Ctrl-P that may be the first of the two

	conn   *net.UnixConn
	sendMu sync.Mutex
	screen *screen
	copied [3]*os.File
	state  State

	unwritten error // the first error in showing output
}

// ErrDetached is returned when the user left the run to itself.
var ErrDetached = errors.New("detached")

// StartKeeper starts the keeper of a run with this process's stdin, in a session of its own, and
// waits until it can be reached. args is its command line. The link is the only one over which the
// keeper takes a first launch.
func StartKeeper(args []string, env []string, in *os.File) (link *Link, err error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	defer w.Close()
	link, theirs, err := newLink()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	stdin := null.Fd()
	if in != nil {
		stdin = in.Fd()
	}
	pid, err := syscall.ForkExec("/proc/self/exe", args, &syscall.ProcAttr{Env: smallRuntime(env),
		Files: []uintptr{stdin, w.Fd(), w.Fd(), theirs.Fd()},
		Sys:   &syscall.SysProcAttr{Setsid: true}})
	if err != nil {
		link.Close()
		return nil, fmt.Errorf("memroom's watching process cannot be started: %w; is "+
			"there room for one more process (ulimit -u, memory)?", err)
	}
	w.Close() // its end is the keeper's alone: without the keeper, reading ends
	line, _ := bufio.NewReader(io.LimitReader(r, 4096)).ReadString('\n')
	if line != "ready\n" {
		var status unix.WaitStatus
		_, _ = unix.Wait4(pid, &status, 0, nil)
		if line == "" {
			line = "it ended at once (" + strconv.Itoa(status.ExitStatus()) + ")"
		}
		link.Close()
		return nil, fmt.Errorf("memroom's watching process cannot be started: %s",
			strings.TrimSpace(line))
	}
	return link, nil
}

// smallRuntime sets the Go runtime of our own processes: two threads are enough for what they do,
// and on a machine with hundreds of cores each spare one costs memory. The command's environment is
// another and travels in Launch.
func smallRuntime(env []string) []string {
	own := slices.DeleteFunc(slices.Clone(env), func(pair string) bool {
		return strings.HasPrefix(pair, "GOMAXPROCS=") || strings.HasPrefix(pair, "GOGC=") ||
			strings.HasPrefix(pair, "GOMEMLIMIT=")
	})
	return append(own, "GOMAXPROCS=2", "GOGC=30")
}

// Join makes this the front end of the keeper that it started.
func (f *Front) Join(link *Link) error {
	f.conn = link.conn
	return f.sendJSON(sayHello, hello{Role: roleFront})
}

// Attach reaches the keeper of a run that somebody started before, asking for output from the given
// offsets on (-1: from now on).
func (f *Front) Attach(out, errs int64) error {
	conn, err := dial(f.Files.Dir)
	if err != nil {
		return err
	}
	f.conn = conn
	return f.sendJSON(sayHello, hello{Role: roleAttach, Out: out, Err: errs})
}

// Launch asks the keeper to start the command.
func (f *Front) Launch(launch Launch) error {
	if launch.Streams.usesTerminal() {
		terminal := f.Out
		if launch.Streams.Out != Terminal {
			terminal = f.Err
		}
		launch.Size = sizeOf(terminal)
		// in the background they are those of the shell's line editor
		if newScreen(terminal).foreground() {
			launch.Modes = modesOf(terminal)
		}
	}
	return f.sendJSON(sayLaunch, launch)
}

// Started waits until the command runs, or could not be started: then the exit has the reason.
func (f *Front) Started() (State, error) {
	r := bufio.NewReaderSize(f.conn, 4096)
	for f.state.Child == 0 && f.state.Exit == nil {
		what, payload, err := readMessage(r)
		if err != nil {
			return f.state, f.gone(err)
		}
		if what == tellExited {
			f.state.Exit = &event.Exit{}
			_ = json.Unmarshal(payload, f.state.Exit)
		} else if _, err := f.hear(what, payload); err != nil {
			return f.state, err
		}
	}
	return f.state, nil
}

// Close leaves the run.
func (f *Front) Close() { f.conn.Close() }

func (f *Front) send(k kind, payload []byte) error {
	f.sendMu.Lock()
	defer f.sendMu.Unlock()
	return writeMessage(f.conn, k, payload)
}

func (f *Front) sendJSON(k kind, v any) error {
	f.sendMu.Lock()
	defer f.sendMu.Unlock()
	return writeJSON(f.conn, k, v)
}

// Follow hears a run to its end and returns the keeper's last word, for a caller that follows many:
// signals are the caller's own business, and so is the output (Show).
func (f *Front) Follow() (State, error) {
	defer f.closeFiles()
	r := bufio.NewReaderSize(f.conn, 4096)
	for {
		what, payload, err := readMessage(r)
		if err != nil {
			return f.state, f.gone(err)
		}
		if over, err := f.hear(what, payload); err != nil || over {
			return f.state, err
		}
	}
}

// Run shows the run until it is over and returns the keeper's last word.
func (f *Front) Run() (State, error) {
	SettleSoon()
	defer f.closeFiles()
	left := make(chan error, 1)
	f.stop = func(err error) {
		select {
		case left <- err:
			_ = f.conn.SetReadDeadline(time.Now())
		default:
		}
	}
	stopSignals := f.handleSignals()
	defer stopSignals()
	defer func() {
		if f.screen != nil {
			f.screen.close()
		}
	}()
	r := bufio.NewReaderSize(f.conn, 4096)
	for {
		what, payload, err := readMessage(r)
		if err != nil {
			select {
			case why := <-left:
				return f.state, why
			default:
				return f.state, f.gone(err)
			}
		}
		over, err := f.hear(what, payload)
		if over && err == nil {
			f.awaitKeeper(r)
		}
		if err != nil || over {
			return f.state, err
		}
	}
}

// gone handles a keeper that has closed the connection. A process that is killed closes its files
// before it is over, and only then is it clear what it left behind. So gone waits for a dying one.
func (f *Front) gone(err error) error {
	const patience = 2 * time.Second
	state, unread := ReadState(f.Files.State)
	for end := time.Now().Add(patience); unread == nil && time.Now().Before(end) &&
		startTicks(state.Keeper) == state.KeeperStart && running(state.Keeper); {
		time.Sleep(5 * time.Millisecond)
	}
	return fmt.Errorf("memroom's watching process is gone, perhaps killed (%w): the "+
		"command may still run: see `memroom show`", err)
}

// awaitKeeper lets the keeper go first, with the run's cgroup: a batch system that cleans up after
// us finds nothing left of the run. Where the command left daemons the keeper stays with them.
func (f *Front) awaitKeeper(r io.Reader) {
	const patience = 250 * time.Millisecond
	_ = f.conn.SetReadDeadline(time.Now().Add(patience))
	_, _ = io.Copy(io.Discard, r)
}

// hear acts on one message; over means that the run has ended.
func (f *Front) hear(what kind, payload []byte) (over bool, err error) {
	switch what {
	case tellState, tellFinished:
		var state State
		if err := json.Unmarshal(payload, &state); err != nil {
			return false, fmt.Errorf("memroom's watching process sent data that cannot be read: "+
				"%w", err)
		}
		f.state = state
		f.takeScreen()
		if f.OnState != nil {
			f.OnState(f.state)
		}
		return what == tellFinished, nil
	case tellMore:
		m, err := decodeMore(payload)
		if err != nil {
			return false, err
		}
		f.copyFile(m)
	case tellOut:
		f.show(1, payload)
	case tellErr:
		f.show(2, payload)
	case tellStopped:
		f.stopped()
	case tellExited:
		var exit event.Exit
		if json.Unmarshal(payload, &exit) == nil && f.Exited != nil {
			f.Exited(exit)
		}
	case tellFinding:
		var finding event.Finding
		if json.Unmarshal(payload, &finding) == nil && f.Found != nil {
			f.Found(finding)
		}
	case tellNote:
		if f.Note != nil {
			f.Note(string(payload))
		}
	}
	return false, nil
}

// takeScreen goes raw once it is known that the command has a terminal and its stdin is on it.
func (f *Front) takeScreen() {
	if f.screen != nil || f.ReadOnly || f.Show != nil || f.state.Streams.In != Terminal ||
		!isTerminal(f.In) {
		return
	}
	f.screen = newScreen(f.In)
	f.screen.enter()
	go f.screen.keys(f.typed)
}

// Raw reports whether the user's terminal shows bytes as they are: lines must then end with a
// return too.
func (f *Front) Raw() bool { return f.screen.isRaw() }

// typed hands keys on. Ctrl-P and then Ctrl-Q leave: so a Ctrl-P waits for the next key.
func (f *Front) typed(keys []byte) bool {
	if !f.DetachKeys {
		return f.send(sayInput, keys) == nil
	}
	const ctrlP, ctrlQ = 'P' - '@', 'Q' - '@'
	if f.heldP {
		keys, f.heldP = append([]byte{ctrlP}, keys...), false
	}
	if i := bytes.Index(keys, []byte{ctrlP, ctrlQ}); i >= 0 {
		_ = f.send(sayInput, keys[:i])
		f.stop(ErrDetached)
		return false
	}
	if len(keys) > 0 && keys[len(keys)-1] == ctrlP {
		keys, f.heldP = keys[:len(keys)-1], true
	}
	return len(keys) == 0 || f.send(sayInput, keys) == nil
}

// copyFile shows output that lies in the file.
func (f *Front) copyFile(m more) {
	if m.Stream != 1 && m.Stream != 2 {
		return
	}
	if f.copied[m.Stream] == nil {
		path := f.Files.Output
		if m.Stream == 2 {
			path = f.Files.Errors
		}
		file, err := os.Open(path)
		if err != nil {
			return
		}
		f.copied[m.Stream] = file
	}
	buf := make([]byte, min(64<<10, m.To-m.From))
	for at := m.From; at < m.To; {
		n, err := f.copied[m.Stream].ReadAt(buf[:min(int64(len(buf)), m.To-at)], at)
		if n == 0 {
			_ = err // the file was cut by somebody: there is nothing to show
			return
		}
		f.show(m.Stream, buf[:n])
		at += int64(n)
	}
}

// show writes output where the user wants it. When that place is closed the command learns of it,
// as from a pipe.
func (f *Front) show(stream int, data []byte) {
	if f.Show != nil {
		f.Show(stream, data)
		return
	}
	target, channel := f.Out, f.state.Streams.Out
	if stream == 2 {
		target, channel = f.Err, f.state.Streams.Err
	}
	if channel == Terminal && !f.screen.isRaw() {
		// the user's terminal adds the return that the command's has added already
		data = bytes.ReplaceAll(data, []byte("\r\n"), []byte("\n"))
	}
	err := writeAll(target, data)
	switch {
	case err == nil:
	case errors.Is(err, syscall.EPIPE):
		if !f.ReadOnly {
			_ = f.send(sayEnd, []byte(strconv.Itoa(stream)))
		}
	case f.unwritten == nil:
		f.unwritten = err
	}
}

// Unwritten is the first error in showing output, nil when all of it was shown. The record has it
// all the same.
func (f *Front) Unwritten() error { return f.unwritten }

// writeAll writes everything, also to a pipe or terminal that somebody has made non-blocking.
func writeAll(file *os.File, data []byte) error {
	for len(data) > 0 {
		n, err := file.Write(data)
		data = data[max(0, n):]
		if errors.Is(err, syscall.EAGAIN) {
			ready := []unix.PollFd{{Fd: int32(file.Fd()), Events: unix.POLLOUT}}
			_, _ = unix.Poll(ready, -1)
			continue
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// stopped follows the command into a stop (Ctrl-Z), so that the user's shell gets its prompt back,
// and out of it again.
func (f *Front) stopped() {
	if f.ReadOnly || f.Show != nil || !hasTerminal() {
		return
	}
	if f.screen != nil {
		f.screen.pause()
	}
	_ = unix.Kill(0, unix.SIGSTOP) // the whole job, as the kernel stops it; here we wait for fg
	f.resume()
}

func (f *Front) resume() {
	if f.screen != nil {
		f.screen.resume()
		f.sendSize()
	}
	_ = f.send(sayContinue, nil)
}

func hasTerminal() bool {
	tty, err := os.Open("/dev/tty")
	if err == nil {
		tty.Close()
	}
	return err == nil
}

func (f *Front) sendSize() {
	terminal := f.Out
	if !isTerminal(terminal) {
		terminal = f.Err
	}
	if isTerminal(terminal) {
		_ = f.sendJSON(saySize, sizeOf(terminal))
	}
}

// forwarded are the signals a user, a batch system or a shell sends to the command by sending them
// to us: all that can be caught, but those of our own faults (SIGSEGV and the like), of our own
// children, and what the Go runtime sends itself.
var forwarded = func() []os.Signal {
	signals := []os.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGABRT, unix.SIGTERM,
		unix.SIGUSR1, unix.SIGUSR2, unix.SIGALRM, unix.SIGVTALRM,
		unix.SIGXCPU, unix.SIGIO, unix.SIGPWR, unix.SIGSTKFLT, unix.SIGTSTP, unix.SIGCONT,
		unix.SIGWINCH, unix.SIGPIPE}
	for n := firstRealTime; n <= lastRealTime; n++ {
		signals = append(signals, syscall.Signal(n))
	}
	return signals
}

// The real-time signals that are for programs: those below are the C library's own, or musl's, and
// Go leaves them alone.
const firstRealTime, lastRealTime = 35, 64

// handleSignals hands signals on until the returned function is called. What was ignored when we
// were started (nohup) stays ignored.
func (f *Front) handleSignals() (stop func()) {
	signals := make(chan os.Signal, 16)
	for _, s := range forwarded() {
		if !signal.Ignored(s) {
			signal.Notify(signals, s)
		}
	}
	over := make(chan struct{})
	go func() {
		for {
			select {
			case s := <-signals:
				f.signalled(s.(syscall.Signal))
			case <-over:
				return
			}
		}
	}()
	return func() { signal.Stop(signals); close(over) }
}

func (f *Front) signalled(s syscall.Signal) {
	switch s {
	case unix.SIGPIPE: // the write that caused it says so
	case unix.SIGWINCH:
		f.sendSize()
	case unix.SIGCONT:
		if f.screen != nil {
			f.screen.resume()
		}
		if !f.ReadOnly {
			_ = f.send(sayContinue, nil)
		}
	default:
		if f.ReadOnly {
			f.stop(ErrDetached)
			return
		}
		// the terminal was closed: everybody on it gets the signal
		hangup := s == unix.SIGHUP && f.screen != nil
		_ = f.sendJSON(saySignal, signalRequest{Number: int(s), Group: hangup || fromTerminal(s)})
	}
}

// fromTerminal guesses whether a signal was typed: those go to the whole group, as the kernel sends
// them.
func fromTerminal(s syscall.Signal) bool {
	if s != unix.SIGINT && s != unix.SIGQUIT && s != unix.SIGTSTP {
		return false
	}
	tty, err := os.Open("/dev/tty")
	if err != nil {
		return false
	}
	defer tty.Close()
	group, err := unix.IoctlGetInt(int(tty.Fd()), unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}

func (f *Front) closeFiles() {
	for _, file := range f.copied {
		if file != nil {
			file.Close()
		}
	}
}

// DieInterrupted ends this process by SIGINT when that is what ended the command of a job at a
// terminal. Shells look at how a job ended to know whether the user wants a loop or a script
// stopped: after an exit code they go on with the next command. Where the key never reached the
// kernel as one, because the terminal was raw, the whole job gets the signal, as from the kernel.
func (f *Front) DieInterrupted(exit event.Exit) {
	if exit.Signal != "SIGINT" || !hasTerminal() {
		return
	}
	target := unix.Getpid()
	if f.screen != nil || f.Show != nil {
		target = 0
	}
	signal.Reset(unix.SIGINT)
	if unix.Kill(target, unix.SIGINT) == nil {
		time.Sleep(time.Second) // it is on its way
	}
}

// Signal sends a signal to the command's process group, as a terminal does.
func (f *Front) Signal(s syscall.Signal) {
	_ = f.sendJSON(saySignal, signalRequest{Number: int(s), Group: true})
}
