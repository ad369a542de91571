//go:build linux && !nogpu && (amd64 || arm64)

package nvml

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"
	"unsafe"

	"github.com/ebitengine/purego"

	"memroom/event"
)

// Library is a loaded and initialised libnvidia-ml. Its methods may be called from several
// goroutines.
type Library struct {
	guard   *guard
	path    string
	symbols map[string]uintptr // 0: this driver does not have it
	handle  uintptr
}

// candidates are tried in order. The bare name asks the system's loader; the others are where
// containers and WSL put it.
var candidates = []string{"libnvidia-ml.so.1", "/usr/lib/wsl/lib/libnvidia-ml.so.1",
	"/usr/local/nvidia/lib64/libnvidia-ml.so.1",
	"/run/nvidia/driver/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"}

// Open loads the driver's library. MEMROOM_NVML names another file to load.
func Open() (*Library, error) {
	paths := candidates
	if own := os.Getenv("MEMROOM_NVML"); own != "" {
		paths = []string{own}
	}
	return open(paths, 5*time.Second)
}

func open(paths []string, timeout time.Duration) (*Library, error) {
	l := &Library{guard: newGuard(timeout), symbols: map[string]uintptr{}}
	err := l.guard.do("load", func() error { return l.load(paths) })
	if err != nil {
		return nil, err
	}
	if err := l.call("nvmlInit_v2"); err != nil {
		return nil, err
	}
	return l, nil
}

func (l *Library) load(paths []string) error {
	var problems []string
	for _, path := range paths {
		handle, err := purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_LOCAL)
		if err == nil {
			l.handle, l.path = handle, path
			return nil
		}
		problems = append(problems, err.Error())
	}
	if _, err := os.Stat("/proc/driver/nvidia/version"); err == nil {
		return fmt.Errorf("the NVIDIA kernel driver is loaded but libnvidia-ml is not in this "+
			"environment (%s): "+
			"in a container, start it with the NVIDIA runtime (docker run --gpus all)", problems[0])
	}
	return errors.New("no NVIDIA driver on this machine (libnvidia-ml.so.1 not found)")
}

// call runs one NVML function and turns its code into an error.
func (l *Library) call(name string, args ...uintptr) error {
	return l.guard.do(name, func() error {
		symbol, known := l.symbols[name] // only ever touched inside the guard
		if !known {
			symbol, _ = purego.Dlsym(l.handle, name)
			l.symbols[name] = symbol
		}
		if symbol == 0 {
			return &Error{Call: name, Code: codeFunctionNotFound}
		}
		code, _, _ := purego.SyscallN(symbol, args...)
		if code := int32(code); code != 0 {
			return &Error{Call: name, Code: int(code)}
		}
		return nil
	})
}

// out is the address of memory that NVML writes to. Each such buffer is handed to keep as well,
// which moves it to the heap (a goroutine's stack may move) and holds it for as long as the driver
// may write to it.
func out[T any](v *T) uintptr { return uintptr(unsafe.Pointer(v)) }

var leaked struct {
	sync.Mutex
	buffers []any
}

// keep returns err and ends the use of buffer. After anything but an answer of NVML itself the call
// may still be inside the driver, which may write to the buffer much later: then it is leaked on
// purpose. That happens once a hang, because guard lets no further call in.
func keep(err error, buffer any) error {
	var answered *Error
	if err != nil && !errors.As(err, &answered) && !errors.Is(err, ErrHung) {
		leaked.Lock()
		leaked.buffers = append(leaked.buffers, buffer)
		leaked.Unlock()
	}
	runtime.KeepAlive(buffer)
	return err
}

// Error is an NVML status other than success.
type Error struct {
	Call string
	Code int
}

const (
	codeNotSupported     = 3
	codeNoPermission     = 4
	codeInsufficientSize = 7
	codeDriverNotLoaded  = 9
	codeFunctionNotFound = 13
	codeGPULost          = 15
	codeNotFound         = 6
)

var codeText = map[int]string{
	1: "not initialised", 2: "invalid argument",
	codeNotSupported: "not supported on this card or in this virtual machine",
	codeNoPermission: "no permission", codeNotFound: "not found",
	codeInsufficientSize: "buffer too small",
	codeDriverNotLoaded: "the NVIDIA kernel driver is not loaded: check `dmesg`, reboot after a " +
		"driver update",
	10: "timeout", codeFunctionNotFound: "this driver is too old for it",
	12:          "libnvidia-ml or the driver is incomplete",
	codeGPULost: "the card has fallen off the bus: see `dmesg`, a reboot is needed",
	18:          "libnvidia-ml and the kernel driver differ in version: reboot after a driver update",
	20:          "not enough memory", 999: "unknown error of the driver",
}

func (e *Error) Error() string {
	text, ok := codeText[e.Code]
	if !ok {
		text = fmt.Sprintf("status %d", e.Code)
	}
	return fmt.Sprintf("nvml %s: %s", e.Call, text)
}

// Path is the file that was loaded.
func (l *Library) Path() string { return l.path }

// Driver returns the versions of the driver.
func (l *Library) Driver() (Driver, error) {
	var d Driver
	text := new([96]byte)
	if err := l.call("nvmlSystemGetDriverVersion", out(text), uintptr(len(text))); err != nil {
		return d, keep(err, text)
	}
	d.Version = cString(text[:])
	version := new(int32)
	if err := l.call("nvmlSystemGetCudaDriverVersion_v2", out(version)); err != nil {
		return d, keep(err, version)
	}
	d.CUDA = fmt.Sprintf("%d.%d", *version/1000, *version%1000/10)
	return d, nil
}

// Devices reads every card. A card that cannot be read is left out and named in the error, which
// may come along with the readings of the others.
func (l *Library) Devices() ([]Device, error) {
	count := new(uint32)
	if err := l.call("nvmlDeviceGetCount_v2", out(count)); err != nil {
		return nil, keep(err, count)
	}
	var devices []Device
	var problems []error
	for i := range int(*count) {
		d, err := l.device(i)
		if err != nil {
			problems = append(problems, fmt.Errorf("card %d: %w", i, err))
			continue
		}
		devices = append(devices, d)
	}
	return devices, errors.Join(problems...)
}

func (l *Library) device(index int) (Device, error) {
	d := Device{Index: index, Utilisation: -1}
	handle := new(uintptr)
	if err := l.call("nvmlDeviceGetHandleByIndex_v2", uintptr(index), out(handle)); err != nil {
		return d, keep(err, handle)
	}
	text := new([96]byte)
	if err := l.call("nvmlDeviceGetName", *handle, out(text), uintptr(len(text))); err != nil {
		return d, keep(err, text)
	}
	d.Name = cString(text[:])
	uuid := new([96]byte)
	if err := l.call("nvmlDeviceGetUUID", *handle, out(uuid), uintptr(len(uuid))); err != nil {
		return d, keep(err, uuid)
	}
	d.UUID = cString(uuid[:])
	memory := new(struct{ Total, Free, Used uint64 })
	if err := l.call("nvmlDeviceGetMemoryInfo", *handle, out(memory)); err != nil {
		return d, keep(err, memory)
	}
	d.Total, d.Free, d.Used = event.Bytes(memory.Total), event.Bytes(memory.Free),
		event.Bytes(memory.Used)
	l.extras(&d, *handle)
	return d, nil
}

// extras fills in what a card may decline to say.
func (l *Library) extras(d *Device, handle uintptr) {
	capability := new([2]int32)
	if err := l.call("nvmlDeviceGetCudaComputeCapability", handle, out(&capability[0]),
		out(&capability[1])); keep(err, capability) == nil {
		d.Compute = fmt.Sprintf("%d.%d", capability[0], capability[1])
	}
	rates := new([2]uint32) // of the GPU, of its memory bus
	if err := l.call("nvmlDeviceGetUtilizationRates", handle, out(rates)); keep(err, rates) == nil {
		d.Utilisation = int(rates[0])
	}
	mig := new([2]uint32) // current, pending
	if err := l.call("nvmlDeviceGetMigMode", handle, out(&mig[0]), out(&mig[1])); keep(err,
		mig) == nil {
		d.MIG = mig[0] == 1
	}
	processes, err := l.processes(handle)
	switch {
	case err != nil:
		d.NoProcesses = err.Error()
	case len(processes) == 0 && d.Used > d.Total/50:
		d.NoProcesses = "the driver lists no process although memory is in use (usual in virtual " +
			"machines and containers)"
	}
	d.Processes = processes
}

// processInfo is nvmlProcessInfo_t as the _v2 and _v3 calls fill it.
type processInfo struct {
	pid  uint32
	_    uint32
	used uint64
	_, _ uint32 // instances of a partitioned card
}

func (l *Library) processes(handle uintptr) ([]Process, error) {
	for size := 64; size <= 1<<16; size *= 8 {
		count, list := new(uint32), make([]processInfo, size)
		*count = uint32(size)
		err := l.call("nvmlDeviceGetComputeRunningProcesses_v3", handle, out(count), out(&list[0]))
		var status *Error
		if errors.As(err, &status) && status.Code == codeInsufficientSize {
			continue
		}
		if err != nil {
			return nil, keep(keep(err, count), list)
		}
		runtime.KeepAlive(list)
		found := make([]Process, 0, *count)
		for _, p := range list[:min(int(*count), size)] {
			used := event.Bytes(p.used)
			if p.used == ^uint64(0) {
				used = -1
			}
			found = append(found, Process{PID: int(p.pid), Used: used})
		}
		return found, nil
	}
	return nil, errors.New("more than 65536 processes on one card")
}

// Close lets go of the driver.
func (l *Library) Close() error { return l.call("nvmlShutdown") }

func cString(b []byte) string {
	text, _, _ := strings.Cut(string(b), "\x00")
	return text
}
