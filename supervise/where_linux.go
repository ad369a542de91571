package supervise

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"memroom/diagnose"
	"memroom/event"
	"memroom/probe"
)

// whereabouts learns at which lines of the program host memory grows. Whenever the run holds more
// than ever before, it asks the process that grew most where its main thread stands. After a kill
// this is all that is left of the program.
type whereabouts struct {
	job    *job
	record *record
	ways   map[int]probe.Where // how to ask, by process that said hello

	high     event.Bytes         // held when it last asked
	climbed  time.Time           // when that was, or a Python began
	resident map[int]event.Bytes // of each process then

	asked map[int]time.Duration // a process that has not answered -> how long it had run when asked
	owed  map[string]owed       // a file of answers -> what a late one will be about
	heard map[string]int64      // how much of each file of answers was read
	reads map[string]reading
}

// reading is a large file that a process said it would read in one call of the kernel, during which
// no signal reaches it.
type reading struct {
	stack []event.Frame
	left  event.Bytes // by which memory may still grow for it
}

// owed is a process that has not answered: it had no processor, or is in the kernel.
type owed struct {
	who   *person
	grown diagnose.Grown // while it did not
}

// One ask interrupts the main thread for some 50 microseconds. There are at most asksToLimit on the
// way to the limit and a few close below it, and none where memory does not reach a new height.
const (
	asksToLimit    = 64
	leastGrowth    = 32 * event.MiB
	leastNearLimit = 4 * event.MiB
	climbing       = 2 * time.Second
	climbingTick   = 50 * time.Millisecond
	answerWithin   = 20 * time.Millisecond
	answerEvery    = 200 * time.Microsecond
	firstSteps     = 3       // after which all is there that a training makes once
	mostPlaces     = 40      // at which memory grew
	mostDepth      = 20      // lines of one stack
	mostOfAnswer   = 1 << 16 // bytes
	mostCode       = 120     // characters of a line of source
	mostOfASource  = 4 << 20 // bytes that are read to find a line
)

// reachable remembers how a process can be asked. The file must be one that this run's probes make.
func (w *whereabouts) reachable(pid int, way *probe.Where) {
	if way != nil && filepath.Dir(way.Path) == filepath.Clean(w.job.files.Dir) {
		w.ways[pid] = *way
		w.climbed = time.Now() // a program loads its data first
	}
}

// check asks where the program stands if host memory has reached a new height.
func (w *whereabouts) check(s event.Sample, limit event.Bytes) {
	if len(w.ways) == 0 {
		return
	}
	held := s.Held
	if held == 0 {
		held = s.Anonymous + s.Shared
	}
	grew := held - w.high
	if grew < worthAsking(w.high, limit) {
		return
	}
	who := w.grownMost()
	w.high, w.climbed = held, time.Now()
	if who == nil {
		return
	}
	g := diagnose.Grown{Bytes: grew, Held: held, Worker: w.job.people.startedByPython(who.pid)}
	if w.record.said.Steps >= firstSteps {
		g.Later, g.Rises = grew, 1
	}
	if stack, err := w.ask(who, &g); err == nil {
		w.stood(who, stack, g)
	}
}

// worthAsking returns the growth after which the program is asked where it stands. Near a limit it
// is half of what is left, because no other reading may come.
func worthAsking(high, limit event.Bytes) event.Bytes {
	least := max(leastGrowth, limit/asksToLimit)
	if left := (limit - high) / 2; left > 0 {
		least = min(least, max(left, leastNearLimit))
	}
	return least
}

// stood keeps where a process stood while memory grew.
func (w *whereabouts) stood(who *person, stack []event.Frame, g diagnose.Grown) {
	own, called := diagnose.Stood(stack)
	if len(own) == 0 {
		return
	}
	g.Called = called
	for _, frame := range own[:min(len(own), mostDepth)] {
		line := diagnose.Line{Frame: frame}
		line.Code, line.Frame.Line = w.code(who.pid, frame)
		g.Lines = append(g.Lines, line)
	}
	w.keep(g)
	last := own[len(own)-1]
	w.record.happenedJSON("where", who.pid, who.rank, fmt.Sprintf("%s:%d", last.File, last.Line),
		map[string]any{"held": g.Held, "grew": g.Bytes, "frames": stack[:min(len(stack), mostDepth)]})
}

// pace returns the time until the next reading: shorter while memory climbs, because a program can
// fill a machine between two ordinary ones.
func (w *whereabouts) pace(ordinary time.Duration) time.Duration {
	if time.Since(w.climbed) < climbing {
		return min(ordinary, climbingTick)
	}
	return ordinary
}

// grownMost returns the process whose resident memory grew most since the last time.
func (w *whereabouts) grownMost() (most *person) {
	var best event.Bytes
	now := map[int]event.Bytes{}
	for pid, who := range w.job.people.all {
		if who.gone {
			continue
		}
		now[pid] = who.resident
		if grew := who.resident - w.resident[pid]; grew > best {
			best, most = grew, who
		}
	}
	w.resident = now
	return most
}

// ask returns the stack of a process's main thread, innermost frame first. Where it does not answer
// and had said that it reads a large file, that is where it stands, until memory grew by its size.
func (w *whereabouts) ask(who *person, g *diagnose.Grown) ([]event.Frame, error) {
	pid := who.pid
	way, ok := w.wayTo(pid)
	if !ok {
		return nil, errors.New("it cannot be asked")
	}
	file, err := os.Open(way.Path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	before, err := file.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, err
	}
	w.hear(file, way.Path, before)
	if o, ok := w.owed[way.Path]; ok && o.who == who {
		g.Bytes += o.grown.Bytes
	}
	delete(w.owed, way.Path)
	main := w.thread(pid, pid)
	if _, asked := w.asked[pid]; !asked || !main.awaits(way.Signal) {
		w.asked[pid] = main.ran()
		// To the main thread alone: it reads its own frames, which nobody changes meanwhile.
		if err := unix.Tgkill(pid, pid, unix.Signal(way.Signal)); err != nil {
			return nil, err
		}
	}
	if stack := w.answer(file, way.Path, before); stack != nil {
		delete(w.reads, way.Path)
		return stack, nil
	}
	if r := w.reads[way.Path]; r.left > 0 && way == w.ways[pid] {
		r.left -= g.Bytes
		w.reads[way.Path] = r
		return r.stack, nil
	}
	// It ran, and did not come back to hear the signal: it is in the kernel, and its frames rest.
	if main.awaits(way.Signal) && main.ran()-w.asked[pid] > answerWithin/4 {
		if other := w.waiting(pid, way.Others); other != 0 {
			if err := unix.Tgkill(pid, other, unix.Signal(way.Others)); err != nil {
				return nil, err
			}
			if stack := w.answer(file, way.Path, before); stack != nil {
				return stack, nil
			}
		}
	}
	w.owed[way.Path] = owed{who, *g}
	return nil, errors.New("no answer")
}

// answer waits for a stack that a process writes down behind what its file held before. The main
// thread's is the last where there are several. It returns nil where none comes in time.
func (w *whereabouts) answer(file *os.File, path string, before int64) []event.Frame {
	for end := time.Now().Add(answerWithin); time.Now().Before(end); time.Sleep(answerEvery) {
		answer, err := io.ReadAll(io.NewSectionReader(file, before, mostOfAnswer))
		if err != nil {
			return nil
		}
		// The outermost frame is the last line; a stack that is still being written ends without one.
		if bytes.HasSuffix(answer, []byte("in <module>\n")) ||
			bytes.HasSuffix(answer, []byte("...\n")) ||
			len(answer) > 0 && time.Until(end) < answerWithin/2 {
			w.heard[path] = before + int64(len(answer))
			return parseStack(answer[bytes.LastIndex(answer, []byte("hread 0x"))+1:])
		}
	}
	return nil
}

// waiting returns a thread of a process that waits for another and hears a signal; 0 for none. Such
// a thread goes on to wait when it was interrupted.
func (w *whereabouts) waiting(pid, signal int) int {
	if signal == 0 || !catches(filepath.Join(w.thread(pid, pid).dir, "status"), signal) {
		return 0
	}
	threads, _ := os.ReadDir(filepath.Join(w.job.proc.Root, strconv.Itoa(pid), "task"))
	for _, entry := range threads {
		tid, _ := strconv.Atoi(entry.Name())
		t := w.thread(pid, tid)
		waits, _ := os.ReadFile(filepath.Join(t.dir, "wchan"))
		if tid != pid && bytes.HasPrefix(waits, []byte("futex")) && !t.has("SigBlk", signal) {
			return tid
		}
	}
	return 0
}

// thread is one of a process, by its folder in /proc.
type thread struct{ dir string }

func (w *whereabouts) thread(pid, tid int) thread {
	return thread{filepath.Join(w.job.proc.Root, strconv.Itoa(pid), "task", strconv.Itoa(tid))}
}

// ran returns for how long a processor has worked for it.
func (t thread) ran() time.Duration {
	text, _ := os.ReadFile(filepath.Join(t.dir, "schedstat"))
	first, _, _ := strings.Cut(string(text), " ")
	ns, _ := strconv.ParseInt(first, 10, 64)
	return time.Duration(ns)
}

// awaits reports whether a signal was sent to it that it has not heard yet, and may hear.
func (t thread) awaits(signal int) bool {
	return t.has("SigPnd", signal) && !t.has("SigBlk", signal)
}

func (t thread) has(mask string, signal int) bool {
	return hasSignal(filepath.Join(t.dir, "status"), mask, signal)
}

// hear takes what a process wrote since it was last heard: a late answer, or by itself
// `reads BYTES` and its stack.
func (w *whereabouts) hear(file *os.File, path string, end int64) {
	from := max(w.heard[path], end-mostOfAnswer)
	text, err := io.ReadAll(io.NewSectionReader(file, from, end-from))
	if err != nil {
		return
	}
	w.heard[path] = end
	at := bytes.LastIndex(text, []byte("reads "))
	if at < 0 {
		stack := parseStack(text[bytes.LastIndex(text, []byte("hread 0x"))+1:])
		if late, ok := w.owed[path]; ok && len(stack) > 0 {
			delete(w.owed, path)
			w.stood(late.who, stack, late.grown)
		}
		return
	}
	size, stack, _ := bytes.Cut(text[at+len("reads "):], []byte("\n"))
	if n, err := strconv.ParseInt(string(size), 10, 64); err == nil {
		w.reads[path] = reading{stack: parseStack(stack), left: event.Bytes(n)}
	}
}

// wayTo returns how to ask a process: its own way, or that of the Python that forked it. The
// signal ends a process that has no handler for it. The file may have been closed and its number
// given to another. Both are looked up right before.
func (w *whereabouts) wayTo(pid int) (probe.Where, bool) {
	way, ok := w.ways[pid]
	for parent := pid; !ok; {
		who := w.job.people.all[parent]
		if who == nil || who.parent == parent || who.parent == 0 {
			return way, false
		}
		parent = who.parent
		way, ok = w.ways[parent]
	}
	root := filepath.Join(w.job.proc.Root, strconv.Itoa(pid))
	target, err := os.Readlink(filepath.Join(root, "fd", strconv.Itoa(way.FD)))
	if err != nil || target != way.Path {
		return way, false
	}
	return way, catches(filepath.Join(root, "status"), way.Signal)
}

// catches reports whether a process has a handler for a signal, by its status file.
func catches(status string, signal int) bool { return hasSignal(status, "SigCgt", signal) }

// hasSignal reports whether a mask of a status file has a signal.
func hasSignal(status, mask string, signal int) bool {
	data, err := os.ReadFile(status)
	if err != nil || signal < 1 || signal > 64 {
		return false
	}
	_, rest, found := bytes.Cut(data, []byte("\n"+mask+":\t"))
	if !found {
		return false
	}
	text, _, _ := strings.Cut(string(rest), "\n")
	signals, err := strconv.ParseUint(text, 16, 64)
	return err == nil && signals&(1<<(signal-1)) != 0
}

// parseStack reads what faulthandler wrote: lines such as `  File "train.py", line 12 in load`.
func parseStack(text []byte) []event.Frame {
	var stack []event.Frame
	for line := range strings.Lines(string(text)) {
		line, isFrame := strings.CutPrefix(strings.TrimRight(line, "\n"), `  File "`)
		file, rest, quoted := strings.Cut(line, `", line `)
		number, name, named := strings.Cut(rest, " in ")
		if n, err := strconv.Atoi(number); isFrame && quoted && named && err == nil {
			stack = append(stack, event.Frame{File: file, Line: n, Name: name})
		}
	}
	return stack
}

// keep adds to what is known of a place; the one that matters least goes when there are too many.
func (w *whereabouts) keep(g diagnose.Grown) {
	grown := &w.record.said.Grown
	for i, known := range *grown {
		if slices.Equal(known.Lines, g.Lines) {
			g.Bytes += known.Bytes
			g.Later, g.Rises = g.Later+known.Later, g.Rises+known.Rises
			(*grown)[i] = g
			return
		}
	}
	if *grown = append(*grown, g); len(*grown) > mostPlaces {
		slices.SortStableFunc(*grown, func(a, b diagnose.Grown) int {
			return cmp.Compare(b.Bytes, a.Bytes)
		})
		*grown = (*grown)[:mostPlaces]
	}
}

// code returns a line of the user's source as it is now, empty where it cannot be read, and its
// number. Of a line that only waits it is the one before it in the same function.
func (w *whereabouts) code(pid int, frame event.Frame) (string, int) {
	path := frame.File
	if !filepath.IsAbs(path) {
		path = filepath.Join(w.job.proc.Root, strconv.Itoa(pid), "cwd", path)
	}
	file, err := os.Open(path)
	if err != nil {
		return "", frame.Line
	}
	defer file.Close()
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return "", frame.Line
	}
	lines := bufio.NewScanner(io.LimitReader(file, mostOfASource))
	worked, at := "", frame.Line
	for n := 1; n <= frame.Line; n++ {
		if !lines.Scan() {
			return "", frame.Line
		}
		text, _, _ := strings.Cut(lines.Text(), "  #")
		code := []rune(strings.TrimSpace(text))
		text = string(code[:min(len(code), mostCode)])
		switch waiting := diagnose.Waits(text); {
		case n == frame.Line && (!waiting || worked == ""):
			return text, n
		case strings.HasPrefix(text, "def ") || strings.HasPrefix(text, "async def "):
			worked = ""
		case text != "" && text[0] != '#' && !strings.HasSuffix(text, ":") && !waiting:
			worked, at = text, n
		}
	}
	return worked, at
}

// end hears the late answers of an attempt's processes, forgets them and removes their files.
func (w *whereabouts) end() {
	for path := range w.owed {
		if file, err := os.Open(path); err == nil {
			if end, err := file.Seek(0, io.SeekEnd); err == nil {
				w.hear(file, path, end)
			}
			file.Close()
		}
	}
	for _, way := range w.ways {
		_ = os.Remove(way.Path)
	}
	clear(w.ways)
	clear(w.asked)
	clear(w.owed)
	clear(w.heard)
	clear(w.reads)
}
