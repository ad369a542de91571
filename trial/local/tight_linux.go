package local

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"memroom/event"
	"memroom/meter"
	"memroom/trial"
)

// alarm reports at once that a cgroup is close to its limit or stands still at it. Reading its
// files a few times a second would leave the attempt standing until the next reading.
type alarm struct {
	group *meter.Cgroup
	tell  func()

	mu     sync.Mutex
	files  []*os.File // version 1: of standing still; version 2: of memory.events
	near   *os.File   // version 1: of a threshold below the limit
	closed bool
}

// newAlarm watches a cgroup; where the kernel refuses, readings a few times a second must do.
func newAlarm(g *meter.Cgroup, tell func()) *alarm {
	a := &alarm{group: g, tell: tell}
	if g.Version == 2 {
		a.watchEvents()
		return a
	}
	if file := a.listen("memory.oom_control", ""); file != nil {
		a.files = append(a.files, file)
		go a.hear(file)
	}
	return a
}

// listen registers for a notification of a cgroup of version 1.
func (a *alarm) listen(name, argument string) *os.File {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil
	}
	file := os.NewFile(uintptr(fd), "eventfd")
	control, err := os.Open(filepath.Join(a.group.Dir, name))
	if err == nil {
		defer control.Close()
		err = os.WriteFile(filepath.Join(a.group.Dir, "cgroup.event_control"),
			fmt.Appendf(nil, "%d %d %s", fd, control.Fd(), argument), 0)
	}
	if err != nil {
		file.Close()
		return nil
	}
	return file
}

// hear passes on the notifications of a file until the alarm is closed.
func (a *alarm) hear(file *os.File) {
	buf := make([]byte, 4096)
	for {
		if n, err := file.Read(buf); err != nil || n == 0 {
			return
		}
		a.mu.Lock()
		closed := a.closed
		a.mu.Unlock()
		if closed {
			return
		}
		a.tell()
		time.Sleep(breath)
	}
}

// breath between two alarms: version 2 counts up for as long as a trial is slowed down.
const breath = 2 * time.Millisecond

// limit moves the threshold to a new limit.
func (a *alarm) limit(limit event.Bytes) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed || a.group.Version == 2 {
		return // memory.high is the threshold there
	}
	if a.near != nil {
		a.near.Close()
	}
	a.near = a.listen("memory.usage_in_bytes", fmt.Sprint(int64(limit-trial.Gap(limit))))
	if a.near != nil {
		go a.hear(a.near)
	}
}

// watchEvents hears of changes of memory.events, which counts how often memory.high was passed.
func (a *alarm) watchEvents() {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return
	}
	if _, err := unix.InotifyAddWatch(fd, filepath.Join(a.group.Dir, "memory.events"),
		unix.IN_MODIFY); err != nil {
		unix.Close(fd)
		return
	}
	file := os.NewFile(uintptr(fd), "inotify")
	a.files = append(a.files, file)
	go a.hear(file)
}

func (a *alarm) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	for _, file := range append(a.files, a.near) {
		if file != nil {
			_ = file.Close()
		}
	}
	a.files, a.near = nil, nil
}
