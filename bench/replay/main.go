// Command replay measures how fast snapshots are read and replayed, against Python's pickle.load
// and PyTorch's own _memory_viz.py on the same file in the same run. Nothing is asserted: it prints
// figures.
//
//	go run ./bench/replay                     the big snapshot next to the checkout, and the same tiled to 500 MB
//	go run ./bench/replay -tile 500,2000      other sizes, in MB
//	go run ./bench/replay -file dump.pickle   another snapshot
//
// Tiled files are made in a temporary folder and removed. Each figure is the median of five runs,
// each in a process of its own, alternating with the peer's, from the page cache.
package main

import (
	"bufio"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/ulikunitz/xz"

	"memroom/allocsim"
	"memroom/diagnose"
	"memroom/report"
	"memroom/trace"
)

func main() {
	file := flag.String("file", "",
		"snapshot to measure; default is big.pickle.xz of the shared traces")
	tiles := flag.String("tile", "500",
		"sizes in MB to tile the snapshot to, separated by commas; empty for none")
	python := flag.String("python", envOr("MEMROOM_TEST_PYTHON", "python3"),
		"interpreter to compare with")
	runs := flag.Int("runs", 5, "runs of each")
	read := flag.String("read", "",
		"only read this file and print seconds and peak memory (used by itself)")
	summarise := flag.String("summarise", "",
		"only read, replay and summarise this file and print the same (used by itself)")
	flag.Parse()
	var err error
	switch {
	case *read != "":
		err = readOnce(*read)
	case *summarise != "":
		err = summariseOnce(*summarise)
	default:
		err = measure(*file, *tiles, *python, *runs)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench/replay:", err)
		os.Exit(1)
	}
}

func envOr(name, other string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return other
}

func measure(file, tiles, python string, runs int) error {
	dir, err := os.MkdirTemp("", "memroom-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if file == "" {
		file = filepath.Join("..", "shared", "traces", "big.pickle.xz")
	}
	plain := filepath.Join(dir, "plain.pickle")
	if err := unpackTo(file, plain); err != nil {
		return fmt.Errorf("%w (give a snapshot with -file)", err)
	}
	if err := compare(plain, python, runs, true); err != nil {
		return err
	}
	for _, mb := range strings.FieldsFunc(tiles, func(r rune) bool { return r == ',' }) {
		size, err := strconv.ParseInt(mb, 10, 64)
		if err != nil {
			return fmt.Errorf("-tile: %w", err)
		}
		tiled := filepath.Join(dir, "tiled.pickle")
		if err := tileTo(plain, tiled, size*1e6); err != nil {
			return err
		}
		// Python needs about five times the file; beyond a gigabyte only our own figure is taken.
		if err := compare(tiled, python, runs, size <= 1000); err != nil {
			return err
		}
	}
	return replaySpeed(plain)
}

// unpackTo writes the unpacked file.
func unpackTo(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	var plain io.Reader = in
	if strings.HasSuffix(from, ".xz") {
		if plain, err = xz.NewReader(bufio.NewReader(in)); err != nil {
			return err
		}
	}
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	defer out.Close()
	_, err = io.Copy(out, plain)
	return err
}

// compare prints reading speed and peak memory for one file.
func compare(path, python string, runs int, peer bool) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	fmt.Printf("\n%s, %.1f MB, median of %d\n", filepath.Base(path), float64(info.Size())/1e6, runs)
	subjects := []subject{{name: "memroom trace.Open", command: []string{self, "-read", path}},
		{name: "memroom snapshot, whole report", command: []string{self, "-summarise", path}}}
	if peer {
		subjects = append(subjects,
			subject{name: "pickle.load, gc on (as shipped)",
				command: []string{python, "-c", pickleLoad, path, "on"}},
			subject{name: "pickle.load, gc off", command: []string{python, "-c", pickleLoad, path,
				"off"}})
		if viz := memoryViz(python); viz != "" && info.Size() < 100e6 {
			subjects = append(subjects, subject{name: "_memory_viz.py trace_plot",
				command: []string{python, "-c", vizPlot, viz, path}})
		}
	}
	for range runs {
		for i := range subjects {
			if err := subjects[i].run(); err != nil {
				return err
			}
		}
	}
	ours := subjects[0].median()
	for i := range subjects {
		s := &subjects[i]
		fmt.Printf("  %-34s %8.3f s %8.0f MB/s   peak %7.1f MB", s.name, s.median(),
			float64(info.Size())/1e6/s.median(), s.peak/1e6)
		if !strings.HasPrefix(s.name, "memroom") {
			fmt.Printf("   memroom reads %.1f x faster", s.median()/ours)
		}
		fmt.Println()
	}
	return nil
}

// pickleLoad prints seconds and peak bytes of one pickle.load.
const pickleLoad = `
import gc, pickle, resource, sys, time
if sys.argv[2] == "off": gc.disable()
with open(sys.argv[1], "rb") as f:
    t = time.perf_counter(); s = pickle.load(f); t = time.perf_counter() - t
print(t, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
`

// vizPlot does what PyTorch's own tool does for its memory page.
const vizPlot = `
import importlib.util, pickle, resource, sys, time
spec = importlib.util.spec_from_file_location("_memory_viz", sys.argv[1]); viz = importlib.util.module_from_spec(spec); spec.loader.exec_module(viz)
t = time.perf_counter()
with open(sys.argv[2], "rb") as f: viz.trace_plot(pickle.load(f))
print(time.perf_counter() - t, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
`

// memoryViz finds PyTorch's tool without importing torch.
func memoryViz(python string) string {
	out, err := exec.Command(python, "-c", `
import importlib.util as u, os
s = u.find_spec("torch"); p = s and os.path.join(s.submodule_search_locations[0], "cuda", "_memory_viz.py")
print(p if p and os.path.exists(p) else "", end="")`).Output()
	if err != nil {
		return ""
	}
	return string(out)
}

// readOnce is the child process: it reads a file and prints seconds and its peak memory.
func readOnce(path string) error {
	begin := time.Now()
	s, err := trace.Open(path)
	if err != nil {
		return err
	}
	took := time.Since(begin).Seconds()
	if s.Truncated {
		return fmt.Errorf("truncated: %s", s.Reason)
	}
	fmt.Println(took, peakMemory())
	return nil
}

// summariseOnce is the child process that does what `memroom snapshot --html` does, and prints
// seconds and its peak memory.
func summariseOnce(path string) error {
	debug.SetGCPercent(25) // as the command does for large files
	begin := time.Now()
	s, err := trace.Open(path)
	if err != nil {
		return err
	}
	var devices []report.Device
	for i := range s.Recordings {
		analysis, _ := diagnose.ReplaySnapshot(s, &s.Recordings[i])
		devices = append(devices, report.Device{Snapshot: analysis})
	}
	report.SnapshotText(report.NewText(io.Discard, false), path, nil, devices, 15)
	if err := report.SnapshotHTML(io.Discard, path, nil, devices); err != nil {
		return err
	}
	fmt.Println(time.Since(begin).Seconds(), peakMemory())
	return nil
}

// replaySpeed prints events per second for verification and for replay under other settings.
func replaySpeed(path string) error {
	s, err := trace.Open(path)
	if err != nil {
		return err
	}
	rec := &s.Recordings[0]
	fmt.Printf("\nreplay of %d events on one core\n", rec.History.Len())
	verified, err := allocsim.Replay(rec, allocsim.ReplayOptions{Timeline: true})
	if err != nil {
		return err
	}
	perSecond := func(f func() error) (float64, error) {
		best := 0.0
		for range 5 {
			begin := time.Now()
			if err := f(); err != nil {
				return 0, err
			}
			best = max(best, float64(rec.History.Len())/time.Since(begin).Seconds())
		}
		return best, nil
	}
	rate, err := perSecond(func() error {
		_, err := allocsim.Replay(rec,
			allocsim.ReplayOptions{})
		return err
	})
	if err != nil {
		return err
	}
	fmt.Printf("  verification, every placement compared  %6.2f million events/s (exact: %v)\n",
		rate/1e6, verified.Exact())
	for _, conf := range []string{"", "expandable_segments:True"} {
		c, err := allocsim.ParseConf(conf)
		if err != nil {
			return err
		}
		rate, err := perSecond(func() error {
			_,
				err := verified.Run(allocsim.Options{Config: c})
			return err
		})
		if err != nil {
			return err
		}
		fmt.Printf("  under %-33q %6.2f million events/s\n", conf, rate/1e6)
	}
	return nil
}
