package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"syscall"

	"memroom/diagnose"
	"memroom/event"
	"memroom/fit/driver"
	"memroom/meter/nvml"
	"memroom/probe"
	"memroom/store"
	"memroom/supervise"
)

// The words by which memroom starts itself. They are looked at before the command line is parsed:
// both processes live as long as the training, and the parser's memory with them.
const (
	keeperWord  = "_keeper"
	monitorWord = "_monitor"
	outsideWord = "_outside" // of the Python package, in a notebook
	reportWord  = "_report"  // sends a run's record to a server
)

// inner runs one of our own processes if that is what the arguments ask for.
func inner(args []string, streams Streams) (code int, yes bool) {
	if len(args) == 2 && args[0] == keeperWord {
		return innerCode(streams, keep(args[1], streams)), true
	}
	if len(args) == 2 && args[0] == monitorWord {
		return innerCode(streams, watch(args[1])), true
	}
	if len(args) == 2 && args[0] == reportWord {
		return innerCode(streams, sendRun(args[1], streams)), true
	}
	if len(args) == 3 && args[0] == outsideWord {
		return innerCode(streams, outside(args[1], args[2], streams)), true
	}
	if len(args) == 1 && args[0] == forecastWord {
		return innerCode(streams, forecast(streams)), true
	}
	return 0, false
}

func innerCode(streams Streams, err error) int {
	if err != nil {
		fmt.Fprintln(streams.Err, err)
		return exitNotStarted
	}
	return exitOK
}

func keep(dir string, streams Streams) error {
	supervise.ProtectSelf()
	ready := streams.Out.(*os.File)
	return supervise.Keep(runFiles(folderAt(dir)), readyPipe{ready})
}

// readyPipe is written to once and then closed for us and for everybody who inherits from us: the
// front end waits for its end.
type readyPipe struct{ file *os.File }

func (r readyPipe) Write(p []byte) (int, error) {
	n, err := r.file.Write(p)
	if null, failed := os.OpenFile(os.DevNull, os.O_RDWR, 0); failed == nil {
		_ = syscall.Dup3(int(null.Fd()), 1, 0)
		_ = syscall.Dup3(int(null.Fd()), 2, 0)
		null.Close()
	}
	return n, err
}

func folderAt(dir string) *store.Folder { return &store.Folder{ID: filepath.Base(dir), Dir: dir} }

func watch(dir string) error {
	debug.SetGCPercent(30)
	debug.SetMemoryLimit(24 << 20)
	link, err := supervise.Inherited()
	if err != nil {
		return err
	}
	settings, err := link.Settings()
	if err != nil {
		return err
	}
	var spec monitorSpec
	if err := json.Unmarshal(settings, &spec); err != nil {
		return fmt.Errorf("the monitor's settings: %w", err)
	}
	folder := folderAt(dir)
	defer folder.Close()
	run, err := folder.Run()
	if err != nil {
		run.ID = folder.ID // the disk was full when the run began; it is watched all the same
	}
	m := &supervise.Monitor{Run: run, Files: runFiles(folder), Keeper: link, Record: folder,
		Options: supervise.DefaultOptions(),
		Detect:  supervise.NewJudgement(diagnose.DefaultThresholds(), spec.HostMem),
		Report:  string(spec.Report), Verdict: string(spec.Verdict)}
	m.Options.Grace, m.Options.OnPressure, m.Options.PressureAt = spec.Grace,
		string(spec.OnPressure),
		spec.PressureAt
	if run.Group != "" {
		home := store.Store{Home: filepath.Dir(filepath.Dir(dir))}
		m.Companions = home.Companions(run)
	}
	if len(spec.Socket) > 0 {
		listener, err := probe.Listen(string(spec.Socket))
		if err == nil {
			defer listener.Close()
			m.Probe = listener
		} else {
			fmt.Fprintln(os.Stderr, err)
		}
	}
	var used func() map[string]event.Bytes
	if cards := openCards(); cards != nil {
		m.Devices, used = cards, cards.used
	}
	if spec.Fit != nil {
		m.Policy = driver.New(*spec.Fit, folder.Dir, run.Started, used)
	}
	return m.Watch()
}

// cards reads the GPUs for the monitor.
type cards struct{ library *nvml.Library }

// openCards returns nil where there is no driver. The library is loaded only where there is one: it
// is large.
func openCards() *cards {
	if _, err := os.Stat("/proc/driver/nvidia/version"); err != nil &&
		os.Getenv("MEMROOM_NVML") == "" {
		if _, err := os.Stat("/dev/nvidiactl"); err != nil {
			return nil
		}
	}
	library, err := nvml.Open()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return nil
	}
	return &cards{library}
}

func (c *cards) Read() ([]supervise.Device, error) {
	found, err := c.library.Devices() // a card that does not answer is in the error
	devices := make([]supervise.Device, len(found))
	for i, d := range found {
		out := &devices[i]
		out.UUID, out.Name, out.Total, out.Used, out.Utilisation = d.UUID, d.Name, d.Total, d.Used,
			max(0, d.Utilisation)
		if d.NoProcesses == "" {
			out.Processes = map[int]event.Bytes{}
		}
		for _, p := range d.Processes {
			if p.Used > 0 {
				out.Processes[p.PID] += p.Used
			}
		}
	}
	return devices, err
}
