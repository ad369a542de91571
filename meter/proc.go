package meter

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"memroom/event"
)

// Proc reads a /proc file system.
type Proc struct {
	Root string // "/proc", or a fixture tree
	buf  []byte
}

// NewProc reads the /proc mounted at root. It reuses one buffer and is for one goroutine.
func NewProc(root string) *Proc { return &Proc{Root: root, buf: make([]byte, 16<<10)} }

// read returns the content of a small file. The bytes are valid until the next call.
func (p *Proc) read(parts ...string) ([]byte, error) {
	data, err := readInto(p.buf, filepath.Join(append([]string{p.Root}, parts...)...))
	if cap(data) > cap(p.buf) {
		p.buf = data[:cap(data)]
	}
	return data, err
}

// readInto reads a file of a kernel's file system into buf, or a larger one. These files are read
// several times a second, for every process: the plain calls cost half of what os.ReadFile does,
// which first asks whether they can be polled.
func readInto(buf []byte, path string) ([]byte, error) {
	fd, err := syscall.Open(path, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer syscall.Close(fd)
	n := 0
	for {
		if n == len(buf) {
			buf = append(buf, make([]byte, max(n, 4096))...)
		}
		m, err := syscall.Read(fd, buf[n:])
		switch {
		case err == syscall.EINTR:
		case err != nil:
			return nil, &os.PathError{Op: "read", Path: path, Err: err}
		case m == 0:
			return buf[:n], nil
		}
		if n += max(0, m); n > mostRead {
			return nil, fmt.Errorf("%s is larger than 4 MiB", path)
		}
	}
}

// mostRead bounds a file of a kernel's file system.
const mostRead = 4 << 20

// pageSize is the unit of statm.
var pageSize = event.Bytes(os.Getpagesize())

// Statm is the cheap reading of a process: it takes no lock of the process and costs some ten
// microseconds.
type Statm struct {
	Resident  event.Bytes
	Anonymous event.Bytes // resident without file and shared pages
}

// Statm reads /proc/PID/statm.
func (p *Proc) Statm(pid int) (Statm, error) {
	data, err := p.read(strconv.Itoa(pid), "statm")
	if err != nil {
		return Statm{}, err
	}
	fields := bytes.Fields(data)
	if len(fields) < 3 {
		return Statm{}, fmt.Errorf("statm of process %d: %q has %d fields, want at least 3", pid,
			data, len(fields))
	}
	resident, err1 := strconv.ParseInt(string(fields[1]), 10, 64)
	shared, err2 := strconv.ParseInt(string(fields[2]), 10, 64)
	if err := errors.Join(err1, err2); err != nil {
		return Statm{}, fmt.Errorf("statm of process %d: %w", pid, err)
	}
	r, s := event.Bytes(resident)*pageSize, event.Bytes(shared)*pageSize
	return Statm{Resident: r, Anonymous: max(0, r-s)}, nil
}

// Status is what /proc/PID/status holds about memory, and which process it is.
type Status struct {
	Name                          string
	Anonymous, File, Shared, Swap event.Bytes
	HighWater                     event.Bytes // largest resident size so far
	Parent, Threads               int
	Zombie                        bool
}

// Status reads /proc/PID/status.
func (p *Proc) Status(pid int) (Status, error) {
	data, err := p.read(strconv.Itoa(pid), "status")
	if err != nil {
		return Status{}, err
	}
	var s Status
	for line := range bytes.Lines(data) {
		key, value, _ := strings.Cut(string(line), ":")
		value = strings.TrimSpace(value)
		switch key {
		case "Name":
			s.Name = value
		case "State":
			s.Zombie = strings.HasPrefix(value, "Z") || strings.HasPrefix(value, "X")
		case "PPid":
			s.Parent, _ = strconv.Atoi(value)
		case "Threads":
			s.Threads, _ = strconv.Atoi(value)
		case "RssAnon":
			s.Anonymous = kilobytes(value)
		case "RssFile":
			s.File = kilobytes(value)
		case "RssShmem":
			s.Shared = kilobytes(value)
		case "VmSwap":
			s.Swap = kilobytes(value)
		case "VmHWM":
			s.HighWater = kilobytes(value)
		}
	}
	return s, nil
}

// kilobytes reads "123 kB"; what is not a number counts as nothing.
func kilobytes(value string) event.Bytes {
	number, _, _ := strings.Cut(value, " ")
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n < 0 {
		return 0
	}
	return event.Bytes(n) * event.KiB
}

// Proportional reads the proportional set size of a process. It walks the process's page tables
// under its memory lock, which on a large trainer takes tens of milliseconds: call it seldom.
func (p *Proc) Proportional(pid int) (s Shares, err error) {
	data, err := p.read(strconv.Itoa(pid), "smaps_rollup")
	if err != nil {
		return s, err
	}
	for line := range strings.Lines(string(data)) {
		name, value, _ := strings.Cut(line, ":")
		switch name {
		case "Pss":
			s.All = kilobytes(strings.TrimSpace(value))
		case "Rss":
			s.Resident = kilobytes(strings.TrimSpace(value))
		case "Private_Dirty", "Private_Clean":
			s.Private += kilobytes(strings.TrimSpace(value))
		case "Pss_Anon", "Pss_Shmem":
			s.Held += kilobytes(strings.TrimSpace(value))
		}
	}
	if s.All == 0 {
		return s, fmt.Errorf("smaps_rollup of process %d has no Pss line", pid)
	}
	return s, nil
}

// Shares is memory in which a page that n processes map counts as an nth of it in each.
type Shares struct {
	All  event.Bytes
	Held event.Bytes // of it: what the kernel cannot drop; 0 before Linux 5.4, which does not say

	Resident event.Bytes
	Private  event.Bytes // pages that no other process maps
}

// Environ returns the environment a process was started with. Later changes are not
// in it.
func (p *Proc) Environ(pid int) (map[string]string, error) {
	data, err := p.read(strconv.Itoa(pid), "environ")
	if err != nil {
		return nil, err
	}
	env := map[string]string{}
	for entry := range strings.SplitSeq(string(data), "\x00") {
		if k, v, ok := strings.Cut(entry, "="); ok {
			env[k] = v
		}
	}
	return env, nil
}

// CommandLine returns a process's arguments.
func (p *Proc) CommandLine(pid int) ([]string, error) {
	data, err := p.read(strconv.Itoa(pid), "cmdline")
	if err != nil {
		return nil, err
	}
	return strings.Split(strings.TrimRight(string(data), "\x00"), "\x00"), nil
}

// Machine reads the host: /proc/meminfo, /proc/vmstat and /proc/pressure/memory.
func (p *Proc) Machine() (event.MachineSample, error) {
	var m event.MachineSample
	data, err := p.read("meminfo")
	if err != nil {
		return m, err
	}
	for line := range strings.Lines(string(data)) {
		key, value, _ := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		switch key {
		case "MemTotal":
			m.Total = kilobytes(value)
		case "MemAvailable":
			m.Available = kilobytes(value)
		case "SwapTotal":
			m.SwapTotal = kilobytes(value)
		case "SwapFree":
			m.SwapFree = kilobytes(value)
		}
	}
	m.OOMKill, _ = p.OOMKills()
	m.PressureSome, m.PressureFull, _ = p.Pressure()
	return m, nil
}

// OOMKills is how many processes the kernel has killed for memory since boot, in any cgroup.
func (p *Proc) OOMKills() (int64, error) {
	data, err := p.read("vmstat")
	if err != nil {
		return 0, err
	}
	i := bytes.Index(data, []byte("\noom_kill "))
	if i < 0 {
		return 0, errors.New("vmstat has no oom_kill line (kernel older than 4.13)")
	}
	line, _, _ := bytes.Cut(data[i+len("\noom_kill "):], []byte("\n"))
	return strconv.ParseInt(string(line), 10, 64)
}

// Pressure is the share of the last ten seconds, in percent, in which some and in which all tasks
// waited for memory.
func (p *Proc) Pressure() (some, full float64, err error) {
	data, err := p.read("pressure", "memory")
	if err != nil {
		return 0, 0, err
	}
	some, full = parsePressure(string(data))
	return some, full, nil
}

func parsePressure(text string) (some, full float64) {
	for line := range strings.Lines(text) {
		kind, rest, _ := strings.Cut(line, " ")
		value, _, _ := strings.Cut(strings.TrimPrefix(rest, "avg10="), " ")
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			continue
		}
		switch kind {
		case "some":
			some = v
		case "full":
			full = v
		}
	}
	return some, full
}
