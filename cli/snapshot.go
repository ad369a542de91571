package cli

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"

	"memroom/allocsim"
	"memroom/diagnose"
	"memroom/event"
	"memroom/report"
	"memroom/trace"
)

type snapshotCmd struct {
	File     string `arg:"" help:"Snapshot written by torch.cuda.memory._dump_snapshot(), plain or as .gz, .xz, .zst; or TensorFlow's TF_BFC_MEMORY_DUMP file."`
	Device   int    `help:"Only this device." default:"-1"`
	Top      int    `help:"Call stacks shown at the peak (0: none)." default:"15"`
	HTML     string `name:"html" help:"Write a self-contained page: timeline, segment map and tables." placeholder:"PATH"`
	Pprof    string `help:"Write a profile for go tool pprof." placeholder:"PATH"`
	Perfetto string `help:"Write a trace for ui.perfetto.dev." placeholder:"PATH"`
	JSON     bool   `name:"json" help:"Print JSON."`

	AllocLimit event.Bytes `name:"alloc-limit" help:"Cap on reserved bytes for the comparison of settings; without it, what the recording tells." placeholder:"SIZE"`
	NoWhatIf   bool        `name:"no-what-if" help:"Leave out the comparison of allocator settings."`
	readFlags  `embed:""`
}

func (snapshotCmd) examples() []example {
	return []example{
		{line: "memroom snapshot examples/files/mlp.pickle.gz"},
		{line: "memroom snapshot examples/files/oom.pickle.gz --top 5 --json"},
		{line: "memroom snapshot examples/files/tensorflow.bfcdump"},
		{line: "memroom snapshot examples/files/mlp.pickle.gz --html page.html --pprof peak.pb.gz --perfetto trace.json"},
	}
}

// snapshotResult is what --json prints.
type snapshotResult struct {
	File string `json:"file"`
	// the file broke off; what was read before is reported
	Truncated *truncation      `json:"truncated,omitempty"`
	Warnings  []string         `json:"warnings,omitempty"`
	Devices   []snapshotDevice `json:"devices"`
}

type truncation struct {
	Offset int64  `json:"offset"`
	Reason string `json:"reason"`
}

type snapshotDevice struct {
	*diagnose.Snapshot
	WhatIf *allocsim.Table `json:"what_if,omitempty"`
}

func (c *snapshotCmd) Run(s *session) error {
	if isBFCDump(c.File) {
		return c.runBFC(s)
	}
	defer boundGarbage(c.File, s)()
	read, err := c.limits().Open(c.File)
	if err != nil {
		return err
	}
	devices, err := c.analyse(read)
	if err != nil {
		return err
	}
	result := c.result(read, devices)
	if err := c.writeFiles(s, result, devices); err != nil {
		return err
	}
	if c.JSON {
		return s.printJSON(result)
	}
	t := report.NewText(s.Out, s.color)
	report.SnapshotText(t, c.File, result.notes(), devices, c.Top)
	return t.Err()
}

// boundGarbage trades time for memory on large files, so that two gigabytes are summarised in less
// than one.
func boundGarbage(path string, s *session) (restore func()) {
	const large = 256 << 20
	info, err := os.Stat(path)
	if err != nil || info.Size() < large {
		return func() {}
	}
	if f, ok := fileOf(s.Err); ok && isTerminal(f) {
		s.note("reading %s ...", event.Bytes(info.Size()))
	}
	before := debug.SetGCPercent(25)
	return func() { debug.SetGCPercent(before) }
}

// analyse looks at every device that has something, or at the one asked for.
func (c *snapshotCmd) analyse(read *trace.Snapshot) ([]report.Device, error) {
	var devices []report.Device
	for i := range read.Recordings {
		rec := &read.Recordings[i]
		if c.Device >= 0 && rec.Device != c.Device {
			continue
		}
		analysis, replayed := diagnose.ReplaySnapshot(read, rec)
		devices = append(devices, report.Device{Snapshot: analysis,
			WhatIf: c.compare(rec, analysis, replayed)})
	}
	switch {
	case len(devices) > 0:
		return devices, nil
	case c.Device >= 0:
		return nil,
			fmt.Errorf("%s has nothing about device %d: it has %d devices; leave --device out to see them", c.File, c.Device, len(read.Recordings))
	default:
		return nil,
			fmt.Errorf("%s is an empty snapshot, without memory or history: was it taken "+
				"before the first CUDA tensor?", c.File)
	}
}

// compare replays the requests under other settings, unless that is not wanted.
func (c *snapshotCmd) compare(rec *event.Recording, s *diagnose.Snapshot,
	replayed *allocsim.Replayed) *allocsim.Table {
	if c.NoWhatIf {
		return nil
	}
	return diagnose.CompareSettings(rec, s, replayed, allocsim.Options{Limit: c.AllocLimit})
}

func (c *snapshotCmd) result(read *trace.Snapshot, devices []report.Device) snapshotResult {
	result := snapshotResult{File: c.File, Warnings: read.Warnings, Devices: []snapshotDevice{}}
	if read.Truncated {
		result.Truncated = &truncation{read.Offset, read.Reason}
	}
	for _, d := range devices {
		result.Devices = append(result.Devices, snapshotDevice{d.Snapshot, d.WhatIf})
	}
	return result
}

// notes are the warnings a reader should see first.
func (r snapshotResult) notes() []string {
	if r.Truncated == nil {
		return r.Warnings
	}
	broke := fmt.Sprintf("the file breaks off at byte %d (%s); what follows is about the part "+
		"before", r.Truncated.Offset, r.Truncated.Reason)
	return append([]string{broke}, r.Warnings...)
}

func (c *snapshotCmd) writeFiles(s *session, result snapshotResult, devices []report.Device) error {
	for _, f := range []struct {
		path  string
		write func(io.Writer) error
	}{
		{c.HTML, func(w io.Writer) error {
			return report.SnapshotHTML(w, filepath.Base(c.File),
				result.notes(), devices)
		}},
		{c.Pprof, func(w io.Writer) error { return report.SnapshotPprof(w, devices) }},
		{c.Perfetto, func(w io.Writer) error { return report.SnapshotPerfetto(w, devices) }},
	} {
		if f.path == "" {
			continue
		}
		if err := writeWhole(f.path, f.write); err != nil {
			return err
		}
		s.note("wrote %s", f.path)
	}
	return nil
}

// writeWhole writes a file completely or not at all: a full disk leaves the old one. What is no
// regular file (a pipe, /dev/stdout) is written to directly.
func writeWhole(path string, write func(io.Writer) error) error {
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		return firstError(write(f), f.Close())
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".memroom-*")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, withoutPath(err))
	}
	err = firstError(write(f), f.Chmod(0o644), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return fmt.Errorf("write %s: %w", path, withoutPath(err))
	}
	return nil
}

// withoutPath leaves out the temporary file's name, which means nothing to the user.
func withoutPath(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
