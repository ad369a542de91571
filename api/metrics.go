package api

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"

	"memroom/store"
)

// metricRuns bounds how many runs have metrics of their own: those that go on, and the newest.
const metricRuns = 20

// showMetrics answers in Prometheus' text format, version 0.0.4.
func (s *Server) showMetrics(w http.ResponseWriter, r *http.Request) error {
	rows, err := s.list(r.Context(), store.Filter{})
	if err != nil {
		return err
	}
	m := &metrics{}
	m.family("memroom_build_info", "gauge", "Version of memroom that serves this.")
	m.value("memroom_build_info", 1, "version", s.options.Version)
	states := map[string]int{"running": 0, "ok": 0, "failed": 0, "oom": 0, "lost": 0}
	var shown []Overview
	for i, row := range rows {
		states[stateClass(row)]++
		if row.Status == store.Running || i < metricRuns {
			shown = append(shown, s.overview(r.Context(), row))
		}
	}
	m.family("memroom_runs", "gauge", "Runs in the store by how they stand.")
	for _, state := range []string{"running", "ok", "failed", "oom", "lost"} {
		m.value("memroom_runs", float64(states[state]), "state", state)
	}
	m.runs(shown)
	m.family("memroom_http_requests_total", "counter", "Requests since the server began.")
	m.value("memroom_http_requests_total", float64(s.requests.Load()))
	m.family("memroom_http_refused_total", "counter", "Requests refused by Host, Origin or token.")
	m.value("memroom_http_refused_total", float64(s.refused.Load()))
	m.family("memroom_viewers", "gauge", "Open streams of server-sent events.")
	m.value("memroom_viewers", float64(s.viewers.Load()))
	m.family("memroom_process_resident_bytes", "gauge", "Resident memory of the server itself.")
	m.value("memroom_process_resident_bytes", float64(ownResident()))
	m.family("memroom_process_start_time_seconds", "gauge", "When the server began.")
	m.value("memroom_process_start_time_seconds", float64(s.started.UnixMilli())/1000)
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	_, _ = w.Write(m.text.Bytes())
	return nil
}

func stateClass(r store.Row) string {
	switch {
	case r.Status == store.Running:
		return "running"
	case r.Status == store.Lost || r.ExitCode == nil:
		return "lost"
	case r.IsOOM:
		return "oom"
	case *r.ExitCode == 0:
		return "ok"
	}
	return "failed"
}

// metrics collects lines; each family must be complete before the next.
type metrics struct{ text bytes.Buffer }

func (m *metrics) family(name, kind, help string) {
	fmt.Fprintf(&m.text, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
}

var labelEscape = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

// value writes one line; labels are names and values in turn.
func (m *metrics) value(name string, v float64, labels ...string) {
	m.text.WriteString(name)
	for i := 0; i+1 < len(labels); i += 2 {
		sep := ","
		if i == 0 {
			sep = "{"
		}
		fmt.Fprintf(&m.text, `%s%s="%s"`, sep, labels[i],
			labelEscape.Replace(strings.ToValidUTF8(labels[i+1], "\uFFFD")))
	}
	if len(labels) > 0 {
		m.text.WriteByte('}')
	}
	m.text.WriteByte(' ')
	m.text.WriteString(strconv.FormatFloat(v, 'g', -1, 64))
	m.text.WriteByte('\n')
}

func (m *metrics) runs(shown []Overview) {
	each := func(name, kind, help string, say func(o Overview)) {
		m.family(name, kind, help)
		for _, o := range shown {
			say(o)
		}
	}
	each("memroom_run_info", "gauge", "What a run is; 1 while it is known.", func(o Overview) {
		m.value("memroom_run_info", 1, "run", o.ID, "name", o.Name, "host", o.Host, "group", o.Group,
			"state", stateClass(o.Row))
	})
	each("memroom_run_running", "gauge", "1 while the run goes on.", func(o Overview) {
		v := 0.0
		if o.Status == store.Running {
			v = 1
		}
		m.value("memroom_run_running", v, "run", o.ID, "name", o.Name)
	})
	each("memroom_run_duration_seconds", "gauge", "How long the run has taken.", func(o Overview) {
		m.value("memroom_run_duration_seconds", o.Seconds, "run", o.ID, "name", o.Name)
	})
	each("memroom_run_steps_total", "counter", "Optimizer steps made.", func(o Overview) {
		m.value("memroom_run_steps_total", float64(o.Steps), "run", o.ID, "name", o.Name)
	})
	each("memroom_run_findings", "gauge", "Findings so far.", func(o Overview) {
		m.value("memroom_run_findings", float64(o.Findings), "run", o.ID, "name", o.Name)
	})
	room := func(name, help string, of func(r Room, live bool) (float64, bool)) {
		each(name, "gauge", help, func(o Overview) {
			for _, r := range o.Room {
				if v, ok := of(r, o.Status == store.Running); ok {
					m.value(name, v, "run", o.ID, "name", o.Name, "kind", r.Kind, "device",
						deviceLabel(r))
				}
			}
		})
	}
	room("memroom_run_used_bytes", "Memory in use now, of runs that go on.",
		func(r Room, live bool) (float64, bool) { return float64(r.Now), live })
	room("memroom_run_peak_bytes", "Most memory in use so far.",
		func(r Room, _ bool) (float64, bool) { return float64(r.Peak), true })
	room("memroom_run_limit_bytes", "The lowest limit that applies.",
		func(r Room, _ bool) (float64, bool) { return float64(r.Limit), r.Limit > 0 })
	room("memroom_run_headroom_bytes", "Limit minus peak.",
		func(r Room, _ bool) (float64, bool) { return float64(r.Limit - r.Peak), r.Limit > 0 })
	each("memroom_run_forecast_seconds", "gauge", "Seconds until memory runs out, where that is "+
		"foreseen.", func(o Overview) {
		for _, p := range o.Forecasts {
			m.value("memroom_run_forecast_seconds", p.In.Seconds(), "run", o.ID, "name", o.Name,
				"what", p.What)
		}
	})
}

func deviceLabel(r Room) string {
	if r.Kind != "gpu" {
		return ""
	}
	return r.Name
}

// ownResident is the resident memory of this process; 0 where the system does not say.
func ownResident() int64 {
	data, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(data))
	if len(fields) < 2 {
		return 0
	}
	pages, _ := strconv.ParseInt(fields[1], 10, 64)
	return pages * int64(os.Getpagesize())
}
