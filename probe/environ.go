package probe

import (
	"os"
	"strconv"
	"strings"

	"memroom/event"
)

// Setup is the configuration that a job's environment passes to its probes.
type Setup struct {
	Dir      string      // what Install returned
	Socket   string      // the listener's path; empty: nothing is reported
	Run      string      // the run's ID
	Apply    string      // path of the JSON file with the remedies to apply; may be empty
	Rehearse string      // path the rehearsal is written to; may be empty
	Dumps    string      // folder for snapshots; empty: none are written
	GPUMem   event.Bytes // device bytes the process may use on each card; 0: no limit
}

// Environ returns a copy of base (as os.Environ) with the probe in it. The user's PYTHONPATH stays,
// behind ours.
func (s Setup) Environ(base []string) []string {
	set := map[string]string{"PYTHONPATH": s.Dir}
	for name, value := range map[string]string{"MEMROOM_PROBE": s.Socket, "MEMROOM_RUN": s.Run,
		"MEMROOM_APPLY":    s.Apply,
		"MEMROOM_REHEARSE": s.Rehearse, "MEMROOM_DUMPS": s.Dumps} {
		set[name] = value
	}
	if s.GPUMem > 0 {
		set["MEMROOM_GPU_MEM"] = strconv.FormatInt(int64(s.GPUMem), 10)
	}
	out := make([]string, 0, len(base)+len(set))
	for _, pair := range base {
		name, value, _ := strings.Cut(pair, "=")
		if name == "PYTHONPATH" && value != "" {
			set["PYTHONPATH"] = s.Dir + string(os.PathListSeparator) + withoutProbe(value)
		}
		if _, ours := set[name]; !ours && name != "MEMROOM_GPU_MEM" {
			out = append(out, pair)
		}
	}
	for _, name := range []string{"PYTHONPATH", "MEMROOM_PROBE", "MEMROOM_RUN", "MEMROOM_APPLY",
		"MEMROOM_REHEARSE", "MEMROOM_DUMPS", "MEMROOM_GPU_MEM"} {
		if set[name] != "" {
			out = append(out, name+"="+set[name])
		}
	}
	return out
}

// withoutProbe drops the folder of an outer memroom: a run inside a run reports to the inner one.
func withoutProbe(path string) string {
	var kept []string
	for _, dir := range strings.Split(path, string(os.PathListSeparator)) {
		if _, err := os.Stat(dir + "/_memroom_probe/wire.py"); err != nil {
			kept = append(kept, dir)
		}
	}
	return strings.Join(kept, string(os.PathListSeparator))
}
