package cli

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"memroom/report"
	"memroom/store"
)

// writeTensorBoard writes a run's memory, steps and findings as an event file into a folder that
// TensorBoard can show. The axis is milliseconds since the run began.
func writeTensorBoard(s *session, folder *store.Folder, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	run, err := folder.Run()
	if err != nil {
		return err
	}
	path := filepath.Join(dir, fmt.Sprintf("events.out.tfevents.%d.memroom.%s", run.Started.Unix(),
		folder.ID))
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	began := float64(run.Started.UnixMilli()) / 1000
	w := bufio.NewWriterSize(file, 1<<16)
	t := report.NewTensorBoard(w, began)
	for sample := range folder.Samples() {
		at := began + float64(sample.AtMS)/1000
		put := func(name string, v float64) { t.Scalar("memroom/"+name, sample.AtMS, at, v) }
		put("host_bytes", float64(sample.Unreclaimable()))
		put("resident_bytes", float64(sample.Resident))
		put("processes", float64(sample.Processes))
		if sample.Cgroup != nil {
			put("cgroup_bytes", float64(sample.Cgroup.Current))
		}
		if sample.Machine != nil && sample.Machine.ShmUsed > 0 {
			put("shm_bytes", float64(sample.Machine.ShmUsed))
		}
		for i, d := range sample.Devices {
			put(fmt.Sprintf("gpu%d_used_bytes", i), float64(d.Used))
		}
	}
	for step := range folder.Steps() {
		at := began + float64(step.AtMS)/1000
		who := fmt.Sprintf("pid%d", step.PID)
		if step.Rank != nil {
			who = fmt.Sprintf("rank%d", *step.Rank)
		}
		put := func(name string, v float64) {
			t.Scalar("memroom/"+who+"/"+name, step.AtMS, at, v)
		}
		put("step_ms", step.Duration.Seconds()*1000)
		if step.Device >= 0 {
			put("allocated_bytes", float64(step.Allocated))
			put("reserved_bytes", float64(step.Reserved))
		}
	}
	for h := range folder.Events() {
		text := h.Text
		if h.Finding != nil {
			text = h.Finding.Title
		}
		if text != "" && strings.Contains(" finding oom action pressure died verdict attempt ",
			" "+h.Kind+" ") {
			t.Text("memroom/"+h.Kind, h.AtMS, began+float64(h.AtMS)/1000, text)
		}
	}
	if err := firstError(t.Err(), w.Flush(), file.Close()); err != nil {
		_ = os.Remove(path)
		return fmt.Errorf("write %s: %w", path, err)
	}
	s.note("wrote %s: tensorboard --logdir %s", path, dir)
	return nil
}
