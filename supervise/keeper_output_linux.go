package supervise

import (
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"memroom/event"
)

const (
	// inlinePatience is how long a front end may take nothing, while output cannot be recorded,
	// before output is dropped.
	inlinePatience = 30 * time.Second
	// inlineRoom bounds the output waiting for a front end in the keeper's memory.
	inlineRoom = 256 << 10
	// lastRoom is the bound once the command has ended. What it wrote last, as much as a pipe can
	// hold, is kept for a front end that pauses: the end of the output is where the traceback is.
	lastRoom = inlineRoom + 2<<20
	// spareDisk is never taken by recorded output: the training needs it more, for its checkpoints.
	// Output that is no log any more leaves more.
	spareDisk, spareOfMuch = 256 << 20, 8 << 30
	muchOutput             = 1 << 30
	// retryRecording is how long recording rests after the file could not be written.
	retryRecording = 5 * time.Second
	// spareCheck is how much is recorded between two looks at the free space.
	spareCheck = 16 << 20
)

// output is one recorded stream of the command.
type output struct {
	keeper  *keeper
	stream  int
	path    string
	source  *os.File
	reading chan struct{} // closed when the source has ended
	busy    atomic.Bool
	taken   atomic.Int64 // bytes read from the command and dealt with

	mu        sync.Mutex
	file      *os.File
	end       int64 // length of the file
	unchecked int64 // bytes since the free space was looked at
	resting   time.Time
}

func newOutput(k *keeper, stream int, path string) *output {
	return &output{keeper: k, stream: stream, path: path}
}

// read copies from the command until it closes its end. The buffer belongs to this goroutine.
func (o *output) read(source *os.File, ended chan struct{}) {
	defer close(ended)
	defer source.Close()
	buf := make([]byte, 64<<10)
	for {
		n, err := source.Read(buf)
		if n > 0 {
			o.busy.Store(true)
			o.take(buf[:n])
			o.taken.Add(int64(n))
			o.busy.Store(false)
		}
		if err != nil {
			return // the end, or EIO when the last process left the pseudo-terminal
		}
	}
}

// take records what the command wrote and lets the front ends know; what cannot be recorded goes to
// them directly.
func (o *output) take(data []byte) {
	o.mu.Lock()
	from := o.end
	n, err := o.record(data)
	to := o.end
	o.mu.Unlock()
	k := o.keeper
	if n > 0 {
		k.mu.Lock()
		for c := range k.clients {
			c.more(more{Stream: o.stream, From: from, To: to})
		}
		k.mu.Unlock()
	}
	if err != nil {
		k.say("output",
			"output is no longer recorded: %v; the training goes on and its output is still shown",
			err)
		o.passOn(data[n:])
	}
}

// record appends to the file as much as can be.
func (o *output) record(data []byte) (int, error) {
	if !o.resting.IsZero() && time.Since(o.resting) < retryRecording {
		return 0, fmt.Errorf("%s could not be written a moment ago", o.path)
	}
	if err := o.ready(len(data)); err != nil {
		o.resting = time.Now()
		return 0, err
	}
	o.resting = time.Time{}
	n, err := o.file.Write(data)
	o.end += int64(n)
	if err != nil {
		o.resting = time.Now()
	}
	return n, err
}

// ready opens the file and looks from time to time whether the disk has room.
func (o *output) ready(size int) error {
	if o.file == nil {
		file, err := os.OpenFile(o.path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
		if err != nil {
			return err
		}
		if info, err := file.Stat(); err == nil {
			o.end = info.Size()
		}
		o.file, o.unchecked = file, spareCheck
	}
	if o.unchecked += int64(size); o.unchecked < spareCheck {
		return nil
	}
	o.unchecked = 0
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(o.file.Fd()), &st); err == nil {
		free, whole := int64(st.Bavail)*st.Bsize, int64(st.Blocks)*st.Bsize
		spare := int64(spareDisk)
		if o.end > muchOutput {
			spare = spareOfMuch
		}
		if free < min(spare, whole/20) {
			o.unchecked = spareCheck
			return fmt.Errorf("%s: only %d MiB are left on the disk", o.path, free>>20)
		}
		// the less is left, the sooner it is looked at again
		o.unchecked = max(0, spareCheck-(free-min(spare, whole/20))/2)
	}
	return nil
}

// passOn hands output to the front ends through their sockets. They may take their time, within
// patience.
func (o *output) passOn(data []byte) {
	k := o.keeper
	k.mu.Lock()
	watchers := make([]*client, 0, len(k.clients))
	for c := range k.clients {
		if c.wants {
			watchers = append(watchers, c)
		}
	}
	k.mu.Unlock()
	shown := false
	for _, c := range watchers {
		shown = c.inline(o.stream, data, k.inlineRoom) || shown
	}
	if !shown {
		k.mu.Lock()
		k.state.OutputLost += int64(len(data))
		k.mu.Unlock()
	}
}

// closed stops reading from the command: the front end's own reader has gone, and the command must
// learn that, as it would without us, by a broken pipe.
func (o *output) closed() {
	o.keeper.mu.Lock()
	source := o.source
	o.keeper.mu.Unlock()
	if source != nil {
		source.Close()
	}
}

// quiet reports whether everything the command wrote so far has been taken.
func (o *output) quiet() bool {
	return o.over() || !o.busy.Load() && o.waiting() == 0
}

// waiting is how many bytes of the command lie unread in the pipe or pseudo-terminal.
func (o *output) waiting() (n int) {
	if o.source == nil || o.over() {
		return 0
	}
	if raw, err := o.source.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { n, _ = unix.IoctlGetInt(int(fd), unix.TIOCINQ) })
	}
	return n
}

// inlineRoom is how much output may wait for a front end now.
func (k *keeper) inlineRoom() int {
	if k.draining.Load() {
		return lastRoom
	}
	return inlineRoom
}

// drain waits until what an ended command wrote is taken. A daemon that it left behind may keep the
// pipe open. If the daemon writes nothing for a moment, the command's own output is complete. If it
// never pauses, draining ends when what lay in the pipe at the command's end has been taken.
func (k *keeper) drain() {
	const pause, rounds = 5 * time.Millisecond, 400 // a daemon gets two seconds to pause
	k.draining.Store(true)
	defer k.draining.Store(false)
	k.mu.Lock()
	if k.pty != nil {
		k.pty.slave.Close() // the last one out ends the reading
	}
	k.mu.Unlock()
	out, errs := k.outputs[1], k.outputs[2]
	outEnd := out.taken.Load() + int64(out.waiting())
	errsEnd := errs.taken.Load() + int64(errs.waiting())
	quiet := 0
	for round := 0; ; round++ {
		if out.quiet() && errs.quiet() {
			if quiet++; quiet >= 3 || out.over() && errs.over() {
				return
			}
		} else {
			quiet = 0
		}
		if round >= rounds && (out.over() || out.taken.Load() >= outEnd) &&
			(errs.over() || errs.taken.Load() >= errsEnd) {
			return
		}
		time.Sleep(pause)
	}
}

// tellLosses reports how much of the output is lost: to each front end what it did not get, and to
// the record what nobody got.
func (k *keeper) tellLosses() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for c := range k.clients {
		c.mu.Lock()
		c.tellDropped()
		c.mu.Unlock()
	}
	if k.state.OutputLost == k.lostTold {
		return
	}
	k.lostTold = k.state.OutputLost
	text := fmt.Sprintf("%s of the command's output are lost: the output could not be recorded, "+
		"and nobody took it for %v", event.Bytes(k.state.OutputLost), inlinePatience)
	k.state.Notes = append(k.state.Notes, text)
	for c := range k.clients {
		if c.role == roleMonitor {
			c.tell(tellNote, []byte(text))
		}
	}
}

// over reports whether the stream has come to its end.
func (o *output) over() bool {
	if o.source == nil {
		return true
	}
	select {
	case <-o.reading:
		return true
	default:
		return false
	}
}

// streams are the two sides of the command's stdin, stdout and stderr while it is being started.
type streams struct {
	child  [3]uintptr
	theirs []*os.File // closed once the command has them
	ours   [3]*os.File
	pty    *pty
}

// connect opens what the launch asks for. It runs under the keeper's lock.
func (k *keeper) connect(launch Launch) (s *streams, err error) {
	s = &streams{}
	defer func() {
		if err != nil {
			s.closeChildSide()
			s.closeOurSide()
		}
	}()
	if launch.Streams.usesTerminal() {
		if s.pty, err = openPTY(launch.Size, launch.Modes); err != nil {
			return s, err
		}
		if err := s.pty.becomeController(); err != nil {
			return s, fmt.Errorf("the command cannot be given a terminal of its own: %w", err)
		}
	}
	k.pty = s.pty
	for i, channel := range [3]Channel{launch.Streams.In, launch.Streams.Out, launch.Streams.Err} {
		if i == 2 && launch.Streams.Merged {
			s.child[2] = s.child[1]
			continue
		}
		if i == 0 && channel == Inherit && k.input != nil {
			if err := s.openInput(k.input); err != nil {
				return s, fmt.Errorf("the command cannot be given its standard input: %w", err)
			}
			continue
		}
		if err := s.open(i, channel); err != nil {
			return s, err
		}
	}
	return s, nil
}

// openInput connects the standard input of one attempt of several.
func (s *streams) openInput(in *input) error {
	descriptor, file, err := in.open()
	s.child[0] = descriptor
	if file != nil {
		s.theirs = append(s.theirs, file)
	}
	return err
}

func (s *streams) open(i int, channel Channel) error {
	switch channel {
	case Inherit:
		s.child[i] = uintptr(i)
	case Terminal:
		s.child[i] = s.pty.slave.Fd()
		if i == 1 || i == 2 && s.ours[1] != s.pty.master { // one terminal is one stream
			s.ours[i] = s.pty.master
		}
	case Pipe:
		r, w, err := os.Pipe()
		if err != nil {
			return err
		}
		s.ours[i], s.theirs, s.child[i] = r, append(s.theirs, w), w.Fd()
	default:
		null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
		if err != nil {
			return err
		}
		s.theirs, s.child[i] = append(s.theirs, null), null.Fd()
	}
	return nil
}

func (s *streams) closeChildSide() {
	for _, f := range s.theirs {
		f.Close()
	}
	s.theirs = nil
}

func (s *streams) closeOurSide() {
	for _, f := range s.ours {
		if f != nil {
			f.Close()
		}
	}
	if s.pty != nil {
		s.pty.master.Close()
		s.pty.slave.Close()
	}
}

// pump starts the goroutines that move bytes.
func (s *streams) pump(k *keeper) {
	for i := 1; i <= 2; i++ {
		o := k.outputs[i]
		o.source = s.ours[i]
		if o.source != nil {
			o.reading = make(chan struct{})
			go o.read(o.source, o.reading)
		}
	}
	if s.pty == nil {
		return
	}
	go k.typeInto(s.pty.master)
}

// typeInto writes what the user types to the terminal until it is closed.
func (k *keeper) typeInto(master *os.File) {
	for data := range k.typed {
		if _, err := master.Write(data); err != nil {
			return
		}
	}
}
