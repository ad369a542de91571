package supervise

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"memroom/event"
	"memroom/meter"
)

const (
	// waitingKeys is how many readings of the keyboard, of up to 4 KiB, may wait for a command that
	// does not read. What a user pastes fits; waiting for room here would hold up signals.
	waitingKeys = 1024
	// for the monitor to judge an attempt, when no policy waits on it
	verdictPatience = 10 * time.Second
)

// keeper owns the command. One lock guards everything; nothing is awaited while it is held.
type keeper struct {
	files    Files
	listener *net.UnixListener // nil: nobody can attach

	mu       sync.Mutex
	state    State
	launch   Launch
	room     room
	pty      *pty
	input    *input // nil: handed on as it is, there is one attempt only
	clients  map[*client]bool
	outputs  [3]*output // 1 and 2
	typed    chan []byte
	began    time.Time // of the attempt, monotonic
	launches chan Launch
	launched bool          // the front end has sent its launch; it may send one
	done     chan struct{} // the monitor has judged the attempt
	exited   chan event.Exit
	alone    chan struct{} // closed when no process of the run is left
	draining atomic.Bool   // the command has ended and its last output is being taken
	lostTold int64         // of State.OutputLost, what the record knows

	frontGone chan struct{} // closed when the front end that started us has gone

	monitorBorn   time.Time
	monitorPause  time.Duration
	monitorDeaths int  // since the command ended
	noMonitor     bool // no further one will be started

	end *os.File // room for the exit; nil: none was asked for
}

// Keep is the main function of the keeper: it serves the run in files.Dir until the command and
// everything it left behind have ended. It writes a line to ready when clients may connect.
func Keep(files Files, ready io.Writer) error {
	link, err := Inherited()
	if err != nil {
		return err
	}
	SettleSoon()
	ignoreSignals()
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("the kernel does not let memroom look after the command's children: %w",
			err)
	}
	k := &keeper{files: files, clients: map[*client]bool{}, frontGone: make(chan struct{}),
		typed:    make(chan []byte, waitingKeys),
		launches: make(chan Launch, 1), done: make(chan struct{}, 1),
		exited: make(chan event.Exit, 1), alone: make(chan struct{})}
	k.state = State{Keeper: os.Getpid(), KeeperStart: startTicks(os.Getpid()), Began: time.Now(),
		BeganBootMS: bootClock().Milliseconds()}
	k.outputs[1], k.outputs[2] = newOutput(k, 1, files.Output), newOutput(k, 2, files.Errors)
	k.listen()
	k.saveState() // from here on the run lives, for everybody who looks
	fmt.Fprintln(ready, "ready")
	go func() {
		k.serve(newClient(link.conn), roleFront)
		close(k.frontGone)
	}()
	select {
	case launch := <-k.launches:
		k.run(launch)
		return nil
	case <-k.frontGone:
	}
	select {
	case launch := <-k.launches: // the front end was killed right after it sent its launch
		k.run(launch)
		return nil
	default:
		return errors.New("memroom was ended before the command could be started")
	}
}

// listen opens the socket for those who attach. The run does without where none can be made.
func (k *keeper) listen() {
	listener, err := Listen(k.files.Dir, socketName)
	if err != nil {
		k.state.Notes = append(k.state.Notes, "memroom attach cannot reach this run: "+err.Error())
		return
	}
	k.listener = listener
	go k.accept()
}

// ignoreSignals keeps the keeper alive through whatever is sent to the terminal or the session.
// Handlers, unlike ignored signals, are not inherited by the command; what was ignored before us
// (nohup) stays so and is.
func ignoreSignals() {
	sink := make(chan os.Signal, 1)
	for _, s := range []os.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM,
		unix.SIGUSR1, unix.SIGUSR2,
		unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU, unix.SIGPIPE, unix.SIGALRM} {
		if !signal.Ignored(s) {
			signal.Notify(sink, s)
		}
	}
}

// run goes through the attempts of the run and ends when no process is left.
func (k *keeper) run(launch Launch) {
	k.mu.Lock()
	k.launch, k.state.Scratch = launch, launch.Scratch
	var notes []string
	// before the reaper: it asks a child of its own
	k.room, notes = makeRoom(filepath.Base(k.files.Dir), launch.HostLimit)
	k.state.Notes = append(k.state.Notes, notes...)
	if launch.Policy && launch.Streams.In == Inherit {
		k.input = newInput(k.files.Dir)
	}
	k.mu.Unlock()
	go k.reap()
	if launch.Bound {
		go k.endWithFront()
	}
	k.startMonitor()
	k.awaitMonitor()
	for {
		k.attempt(launch)
		next, again := k.afterExit()
		if !again {
			break
		}
		k.clear()
		if k.toldToEnd() {
			k.afterExit() // the monitor is told, and closes its record
			break
		}
		launch = k.following(next)
	}
	k.finish()
	k.linger()
}

// toldToEnd reports whether the run was asked to end since its last attempt began, also where that
// was over already, and tells the monitor.
func (k *keeper) toldToEnd() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.state.toldToEnd() {
		return false
	}
	for c := range k.clients {
		if c.role == roleMonitor {
			c.tell(tellOver, nil)
		}
	}
	return true
}

// endWithFront ends every process of the run once the front end has gone: gently, then not.
func (k *keeper) endWithFront() {
	<-k.frontGone
	const gentle = time.Second
	k.endAll(unix.SIGTERM)
	for wait := gentle; ; wait = 50 * time.Millisecond {
		select {
		case <-k.alone:
			return
		case <-time.After(wait):
			k.endAll(unix.SIGKILL)
		}
	}
}

func (k *keeper) endAll(sig unix.Signal) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.launch.Policy = false // no further attempt
	k.signalAll(sig)
}

// following completes the next launch with what only the first one knew.
func (k *keeper) following(next Launch) Launch {
	k.mu.Lock()
	defer k.mu.Unlock()
	before := k.launch
	next.Attempt = before.Attempt + 1
	next.Streams, next.Size, next.Modes = before.Streams, before.Size, before.Modes
	next.Monitor, next.Settings, next.Policy = before.Monitor, before.Settings, before.Policy
	next.Command = before.Command
	if next.Command == nil {
		next.Command = before.Args // of the first attempt
	}
	if next.Note != "" {
		k.broadcast(tellNote, []byte(next.Note))
	}
	if next.Env == nil {
		next.Env = before.Env
	}
	if next.Dir == "" {
		next.Dir = before.Dir
	}
	if next.Args == nil {
		next.Args = before.Args
	}
	if next.Path == "" {
		next.Path = before.Path
	}
	return next
}

// attempt starts the command and waits until it has ended and its output is in the file.
func (k *keeper) attempt(launch Launch) {
	if err := k.start(launch); err != nil {
		k.exited <- notStarted(launch, err)
	}
	exit := <-k.exited
	exit.CgroupPeak = k.cgroupPeak()
	k.drain()
	k.tellLosses()
	if k.input != nil {
		exit.InputSpent = k.input.ended()
	}
	k.mu.Lock()
	exit.Attempt = launch.Attempt
	k.state.Exit = &exit
	k.saveState()
	k.saveEnd(exit)
	err := writeAtomically(k.files.Exit, exit)
	k.broadcastJSON(tellExited, exit)
	k.mu.Unlock()
	if err != nil {
		k.say("exit.json", "the exit code could not be recorded: %v", err)
	}
}

// notStarted is the exit of a command that could not be executed, with the same code as from
// env(1).
func notStarted(launch Launch, err error) event.Exit {
	code := 126
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		code = 127
	}
	if errors.Is(err, errOurs) {
		code = 125
	}
	name := launch.Path
	switch {
	case !errors.Is(err, unix.ENOENT):
	case launch.Dir != "" && !fileExists(launch.Dir):
		code, name = 125, name+" in "+launch.Dir
	case fileExists(launch.Path):
		name += " (its interpreter is missing)"
	}
	return event.Exit{Code: code, At: time.Now(), StartError: fmt.Sprintf("execute %s: %v", name,
		err)}
}

// errOurs marks what failed before the command was to be executed.
var errOurs = errors.New("not started")

func fileExists(path string) bool { _, err := os.Stat(path); return err == nil }

// start connects the streams, makes room and forks.
func (k *keeper) start(launch Launch) error {
	k.mu.Lock()
	defer k.mu.Unlock() // until the process is known: the reaper must not see it before
	k.launch = launch
	streams, err := k.connect(launch)
	if err != nil {
		return fmt.Errorf("%w: %w", errOurs, err)
	}
	k.state.Attempt, k.state.Streams, k.state.Exit = launch.Attempt, launch.Streams, nil
	k.state.Limit, k.state.HostLimit = k.room.limit, launch.HostLimit
	k.state.Base = k.counters()
	k.state.AttemptMS = bootClock().Milliseconds() - k.state.BeganBootMS
	k.began = time.Now()
	if err := k.commit(launch); err != nil {
		streams.closeChildSide()
		streams.closeOurSide()
		return fmt.Errorf("%w: %s: %w", errOurs, NotRecorded, err)
	}
	pid, err := k.fork(launch, streams)
	streams.closeChildSide()
	if err != nil {
		streams.closeOurSide()
		return err
	}
	k.state.Child, k.state.ChildStart = pid, startTicks(pid)
	if !launch.Policy {
		// only the command reads it; whoever writes to it must notice when the command stops
		// reading
		releaseInput()
	}
	k.noteRoom(pid)
	k.saveState()
	for c := range k.clients {
		if c.role == roleMonitor {
			c.tellJSON(tellLaunch, launch)
		}
	}
	k.broadcastJSON(tellState, k.state)
	streams.pump(k)
	return nil
}

// releaseInput lets go of the front end's stdin, which the command has by now.
func releaseInput() {
	if null, err := unix.Open(os.DevNull, unix.O_RDWR|unix.O_CLOEXEC, 0); err == nil {
		_ = unix.Dup3(null, 0, 0)
		_ = unix.Close(null)
	}
}

func (k *keeper) fork(launch Launch, streams *streams) (int, error) {
	attr := &syscall.ProcAttr{Dir: launch.Dir, Env: launch.Env, Files: streams.child[:],
		Sys: &syscall.SysProcAttr{Setpgid: true}}
	if streams.pty != nil {
		attr.Sys.Foreground, attr.Sys.Ctty = true, int(streams.pty.slave.Fd())
	}
	path, args := launch.Path, launch.Args
	if k.room.unit != "" {
		path, args = scopeArguments(k.room.unit+"-"+strconv.Itoa(launch.Attempt), launch.HostLimit,
			path, args)
	}
	pid, err := startIn(k.room.group, path, args, attr)
	if errors.Is(err, unix.ENOEXEC) && isText(launch.Path) {
		path, args = "/bin/sh", append([]string{"sh", launch.Path}, args[1:]...)
		pid, err = startIn(k.room.group, path, args, attr)
	}
	if err == nil || k.room.group == nil {
		return pid, err
	}
	attr.Sys.UseCgroupFD = false
	pid, second := syscall.ForkExec(path, args, attr)
	if second != nil {
		return 0, second
	}
	k.state.Notes = append(k.state.Notes, "the run's cgroup could not be entered: "+err.Error())
	removeCgroup(k.room.group.Dir)
	k.room.group = nil
	if k.room.limit != LimitNone {
		k.room.limit, k.state.Limit = LimitSoft, LimitSoft
	}
	return pid, nil
}

// isText reports whether a file that the kernel cannot execute may be a script without a first line
// that names its interpreter: execvp(3) and shells hand such a file to sh.
func isText(path string) bool {
	file, err := os.Open(path)
	if err != nil {
		return false
	}
	defer file.Close()
	head := make([]byte, 256)
	n, _ := file.Read(head)
	return bytes.IndexByte(head[:n], 0) < 0
}

// noteRoom records which cgroup the command is in, and restores the command's OOM score, which we
// may have lowered for ourselves.
func (k *keeper) noteRoom(pid int) {
	_ = os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid), []byte(inheritedScore), 0)
	group := k.room.group
	if k.room.unit != "" {
		var why string
		if group, why = findScope(pid, k.room.unit, k.state.HostLimit); why != "" {
			k.room.unit, k.room.limit, k.state.Limit = "", LimitSoft, LimitSoft
			k.state.Notes = append(k.state.Notes, why+"; memroom itself holds the limit")
		}
	}
	k.state.Cgroup, k.state.CgroupV = "", 0
	if group != nil {
		k.state.Cgroup, k.state.CgroupV = group.Dir, group.Version
	}
	if group != nil && k.room.limit == LimitScope {
		k.state.Base.Above = killsAbove(group.Dir, group.Version)
	}
}

// inheritedScore is the OOM score adjustment we were started with, read before protectSelf changes
// it.
var inheritedScore = "0"

// ProtectSelf makes the kernel prefer anything else to our processes when memory runs out. Only
// root may.
func ProtectSelf() {
	if data, err := os.ReadFile("/proc/self/oom_score_adj"); err == nil {
		inheritedScore = strings.TrimSpace(string(data))
	}
	if os.Geteuid() == 0 {
		_ = os.WriteFile("/proc/self/oom_score_adj", []byte("-500"), 0)
	}
}

// counters reads the kill counters as they are now.
func (k *keeper) counters() Counters {
	var c Counters
	c.Machine, _ = meter.NewProc("/proc").OOMKills()
	if around, err := meter.FindCgroup("/proc", "self"); err == nil {
		_, c.Enclosing = around.OOMCounts()
	}
	if k.room.group != nil {
		_, c.Own = k.room.group.OOMCounts()
	}
	return c
}

// reap waits for every child: the command, the monitor, and the orphans we adopted.
func (k *keeper) reap() {
	for {
		var status unix.WaitStatus
		var usage unix.Rusage
		pid, err := unix.Wait4(-1, &status, unix.WUNTRACED, &usage)
		switch {
		case err == unix.EINTR:
		case err != nil: // no children: all has ended, or nothing was started yet
			if k.nothingToCome() {
				close(k.alone)
				return
			}
			time.Sleep(10 * time.Millisecond)
		default:
			k.ended(pid, status, usage)
		}
	}
}

func (k *keeper) nothingToCome() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.state.Finished
}

func (k *keeper) ended(pid int, status unix.WaitStatus, usage unix.Rusage) {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case pid == k.state.Child && status.Stopped():
		k.broadcast(tellStopped, []byte(strconv.Itoa(int(status.StopSignal()))))
	case status.Stopped():
	case pid == k.state.Monitor:
		k.monitorEnded()
	case pid == k.state.Child:
		k.state.Child = 0
		k.exited <- exitOf(status, usage, time.Since(k.began))
	}
}

// ownPeak is the keeper's own largest resident size. The kernel counts it as the command's until
// the command has executed its program, so that a smaller command's size is not known.
func ownPeak() event.Bytes {
	status, err := meter.NewProc("/proc").Status(os.Getpid())
	if err != nil {
		return 0
	}
	return status.HighWater
}

// cgroupPeak is the most that the command's cgroup held, as the kernel counted it; 0 without one.
// The monitor reads it too, but a short command is over before the monitor has looked.
func (k *keeper) cgroupPeak() event.Bytes {
	if k.room.group == nil {
		return 0
	}
	reading, err := k.room.group.Read()
	if err != nil {
		return 0
	}
	return reading.Peak
}

func exitOf(status unix.WaitStatus, usage unix.Rusage, took time.Duration) event.Exit {
	exit := event.Exit{Code: status.ExitStatus(), At: time.Now(), Seconds: took.Seconds(),
		MaxResident: event.Bytes(usage.Maxrss) * event.KiB,
		CPUSeconds:  time.Duration(usage.Utime.Nano() + usage.Stime.Nano()).Seconds()}
	if exit.MaxResident <= ownPeak() {
		exit.MaxResident = 0
	}
	if status.Signaled() {
		exit.Code, exit.Signal = 128+int(status.Signal()), unix.SignalName(status.Signal())
	}
	return exit
}

// afterExit waits for the monitor's judgement: another launch, or none.
func (k *keeper) afterExit() (Launch, bool) {
	k.mu.Lock()
	policy := k.launch.Policy
	k.mu.Unlock()
	deadline := time.Now().Add(verdictPatience)
	for {
		select {
		case next := <-k.launches:
			return next, true
		case <-k.done:
			return Launch{}, false
		case <-time.After(20 * time.Millisecond):
		}
		k.mu.Lock()
		gone := k.noMonitor
		k.mu.Unlock()
		if gone || (!policy && time.Now().After(deadline)) {
			return Launch{}, false
		}
	}
}

// finish announces to all clients that nothing follows.
func (k *keeper) finish() {
	k.mu.Lock()
	k.state.Finished = true
	k.saveState()
	k.broadcastJSON(tellFinished, k.state)
	k.mu.Unlock()
}

// linger stays for what the command left behind: daemons it started write to our pipes, and are
// ours to reap. Then it stays until the clients have received everything.
func (k *keeper) linger() {
	<-k.alone
	k.drain() // the last words of a daemon may still lie in the pipe when it has been reaped
	k.tellLosses()
	if k.listener != nil {
		k.listener.Close()
		_ = os.Remove(filepath.Join(k.files.Dir, socketName))
	}
	if k.room.group != nil {
		removeCgroup(k.room.group.Dir)
	}
	removeScratch(string(k.state.Scratch))
	k.mu.Lock()
	clients := slices.Collect(maps.Keys(k.clients))
	k.mu.Unlock()
	for _, c := range clients {
		c.flush()
	}
}

// signal sends a signal to the command, its group, or everything in the run.
func (k *keeper) signal(r signalRequest) {
	k.mu.Lock()
	defer k.mu.Unlock()
	sig := unix.Signal(r.Number)
	if !r.All {
		k.state.UserSignal, k.state.UserSignalMS = unix.SignalName(sig),
			bootClock().Milliseconds()-k.state.BeganBootMS
	}
	if r.All {
		k.signalAll(sig)
	}
	if k.state.Child <= 0 {
		k.saveState()
		return
	}
	target := k.state.Child
	if r.Group {
		target = -target
	}
	_ = unix.Kill(target, sig)
}

// signalAll reaches every process of the run, the adopted ones too.
func (k *keeper) signalAll(sig unix.Signal) {
	tree := meter.Tree{Proc: meter.NewProc("/proc"), Keeper: os.Getpid(),
		Except: []int{k.state.Monitor}, Cgroup: k.room.group}
	tree.Refresh(time.Now())
	for _, pid := range tree.Processes() {
		_ = unix.Kill(pid, sig)
	}
}

// endRoom is kept on the disk for how a recorded command ends, in bytes.
const endRoom = 4096

// commit puts the state of a recorded launch on the disk, with room for how it ends: the disk may
// be full by then.
func (k *keeper) commit(launch Launch) error {
	if !launch.Recorded {
		return nil
	}
	room, err := os.OpenFile(k.files.State+endSuffix, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	if k.end != nil {
		k.end.Close()
	}
	k.end = room
	if _, err := room.Write(make([]byte, endRoom)); err != nil {
		return err
	}
	if err := room.Sync(); err != nil {
		return err
	}
	if err := writeAtomically(k.files.State, k.state); err != nil {
		return err
	}
	state, err := os.Open(k.files.State)
	if err != nil {
		return err
	}
	defer state.Close()
	return state.Sync()
}

// saveEnd writes the exit into the room that was kept for it.
func (k *keeper) saveEnd(exit event.Exit) {
	if k.end == nil {
		return
	}
	if data, err := json.Marshal(exit); err == nil && len(data) <= endRoom {
		_, _ = k.end.WriteAt(data, 0)
		_ = k.end.Sync()
	}
}

// saveState keeps the state for those who come when the keeper is gone.
func (k *keeper) saveState() { _ = writeAtomically(k.files.State, k.state) }

// say sends the user a note, once for each subject.
func (k *keeper) say(about, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, n := range k.state.Notes {
		if strings.HasPrefix(n, about+": ") {
			return
		}
	}
	k.state.Notes = append(k.state.Notes, about+": "+text)
	k.broadcast(tellNote, []byte(text))
	k.saveState()
}

// writeAtomically replaces a JSON file so that a reader sees the old or the new one, whole.
func writeAtomically(path string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	temporary := path + ".new"
	if err := os.WriteFile(temporary, append(data, '\n'), 0o600); err != nil {
		_ = os.Remove(temporary)
		return err
	}
	return os.Rename(temporary, path)
}

// statFields returns the fields of /proc/PID/stat from the state on: the name before them may hold
// anything.
func statFields(stat string) []string {
	at := strings.LastIndex(stat, ") ")
	if at < 0 {
		return nil
	}
	return strings.Fields(stat[at+2:])
}
