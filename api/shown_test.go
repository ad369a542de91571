package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"memroom/central"
	"memroom/diagnose"
	"memroom/event"
	"memroom/fit"
	"memroom/store"
)

const mib = event.MiB

// asJSON is a value as the page gets it.
func asJSON(t *testing.T, v any) string {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// TestRoomOfPeaks: one entry for each kind of memory that was measured, none for the others.
func TestRoomOfPeaks(t *testing.T) {
	for _, c := range []struct {
		peaks event.Peaks
		want  string
	}{
		{event.Peaks{}, "null"},
		{event.Peaks{Unreclaimable: 5}, `[{"kind":"host","name":"host memory","peak":5}]`},
		{event.Peaks{HostLimit: 9}, `[{"kind":"host","name":"host memory","peak":0,"limit":9}]`},
		{event.Peaks{Shm: 3}, "null"}, {event.Peaks{ShmTotal: 3}, "null"},
		{event.Peaks{Shm: 3, ShmTotal: 8},
			`[{"kind":"shm","name":"shared memory","peak":3,"limit":8}]`},
		{event.Peaks{Shm: 3, ShmTotal: 800}, "null"}, // others'
		{event.Peaks{Devices: []event.DevicePeak{{Name: "L4", Total: 24, Used: 7, Reserved: 5},
			{Total: 16, Used: 2, Reserved: 6}}},
			`[{"kind":"gpu","name":"L4 0","peak":7,"limit":24},` +
				`{"kind":"gpu","name":"card 1","peak":6,"limit":16}]`},
	} {
		if got := asJSON(t, roomOf(c.peaks)); got != c.want {
			t.Errorf("%s, want %s", got, c.want)
		}
	}
}

// TestRoomOfARunThatGoesOn: what is used now is the last reading; free is what limit and machine
// both leave.
func TestRoomOfARunThatGoesOn(t *testing.T) {
	peaks := event.Peaks{Unreclaimable: 50, HostLimit: 100, Shm: 4, ShmTotal: 8,
		Devices: []event.DevicePeak{{Name: "a", Total: 9}, {Name: "b", Total: 9}, {Name: "c"}}}
	for name, c := range map[string]struct {
		last event.Sample
		want string // now of each, free of the host
	}{
		"the limit is nearer": {event.Sample{Anonymous: 30, Shared: 10,
			Machine: &event.MachineSample{Available: 900, ShmUsed: 3},
			Devices: []event.DeviceSample{{Used: 6}, {Used: 7}}}, "[40 3 6 7 0] 60"},
		"the machine is nearer": {event.Sample{Anonymous: 30,
			Machine: &event.MachineSample{Available: 20}}, "[30 0 0 0 0] 20"},
		"beyond the limit": {event.Sample{Anonymous: 130,
			Machine: &event.MachineSample{Available: 20}}, "[130 0 0 0 0] 0"},
		"no machine": {event.Sample{Anonymous: 30}, "[30 0 0 0 0] unknown"},
	} {
		s := newSite(t)
		folder := s.addRun("", 2)
		if err := folder.AppendSamples([]event.Sample{c.last}); err != nil {
			t.Fatal(err)
		}
		var now []event.Bytes
		free := "unknown"
		for _, r := range (&Server{}).roomNow(t.Context(), folder, roomOf(peaks)) {
			if now = append(now, r.Now); r.Free != nil {
				free = fmt.Sprint(int64(*r.Free))
			}
		}
		if got := fmt.Sprintf("%d %s", now, free); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// TestTwoRunsSideBySide: every row with its unit; what neither has is left out, what one has not
// is null.
func TestTwoRunsSideBySide(t *testing.T) {
	var a, b Record
	a.State, a.Command, a.Seconds, a.Steps, a.Attempts = "ok", "x", 10, 5, 1
	a.Room = []Room{{Name: "host memory", Peak: 40, Limit: 100}, {Name: "L4 0", Peak: 7}}
	a.All = make([]event.Finding, 2)
	a.Summary = &event.Summary{StepMS: 1.5, Peaks: event.Peaks{Devices: []event.DevicePeak{
		{Allocated: 3}, {Allocated: 9}, {Allocated: 4}}}}
	a.Fit = &fit.Record{Attempts: []fit.Tried{{Title: "smaller batch"}}}
	b.State = "lost"
	b.Room = []Room{{Name: "host memory", Peak: 30, Limit: 20}}
	var lines []string
	of := func(v *float64) string {
		if v == nil {
			return "-"
		}
		return fmt.Sprint(*v)
	}
	for _, r := range compare(a, b) {
		lines = append(lines, fmt.Sprintf("%s|%s|%s%s|%s%s", r.Name, r.Unit, of(r.A), r.TA, of(r.B),
			r.TB))
	}
	want := []string{"state|text|-ok|-lost", "command|text|-x|-", "took|seconds|10|-",
		"steps|count|5|-", "step, median|ms|1.5|-", "host memory, peak|bytes|40|30",
		"host memory, headroom|bytes|60|-10", "L4 0, peak|bytes|7|-", "allocated, peak|bytes|9|-",
		"attempts|count|1|-", "findings|count|2|0", "remedies|text|-smaller batch|-"}
	if got := strings.Join(lines, "\n"); got != strings.Join(want, "\n") {
		t.Errorf("%s\nwant\n%s", got, strings.Join(want, "\n"))
	}
	if rows := compare(Record{}, Record{}); len(rows) != 1 || rows[0].Name != "findings" {
		t.Errorf("of nothing: %+v", rows)
	}
}

// TestAccountOfAMoment: the last reading and the last step of each process before it; what a probe
// said counts until its process is gone.
func TestAccountOfAMoment(t *testing.T) {
	s := newSite(t)
	folder := s.addRun("", 0)
	card := func(used event.Bytes) []event.DeviceSample {
		return []event.DeviceSample{{UUID: "u", Name: "L4", Total: 1000 * mib, Used: used * mib,
			Ours: used * mib}}
	}
	machine := &event.MachineSample{Total: 64 * mib, Available: 60 * mib}
	step := func(at int64, pid, device int, allocated event.Bytes) event.RankedStep {
		return event.RankedStep{AtMS: at, PID: pid, Step: event.Step{Device: device,
			Allocated: allocated * mib, Reserved: (allocated + 5) * mib, InactiveSplit: 2 * mib}}
	}
	say := func(at int64, kind string, pid int, data string) event.Happened {
		return event.Happened{AtMS: at, Kind: kind, PID: pid, Data: json.RawMessage(data)}
	}
	for _, err := range []error{
		folder.AppendSamples([]event.Sample{
			{AtMS: 100, Anonymous: mib, Machine: machine, Devices: card(300)},
			{AtMS: 300, Processes: 1, Anonymous: 2 * mib, Machine: machine, Devices: card(400)},
			{AtMS: 350, Machine: machine, Devices: card(0)}}), // the program has ended
		folder.AppendSteps([]event.RankedStep{step(50, 9, 0, 100), step(60, 7, 0, 30),
			step(61, 7, -1, 900), step(90, 9, 0, 200), step(250, 7, 0, 40)}),
		folder.AppendEvent(say(10, "account", 9, `{"Device":0,"Weights":52428800,"Gradients":10485760,`+
			`"Optimizer":20971520,"Allocated":1,"Reserved":1,"inactive_split":1}`)),
		folder.AppendEvent(say(11, "account", 9, `{"Device":-1,"Weights":1048576}`)),
		folder.AppendEvent(say(12, "note", 9, `{"Device":0}`)),
		folder.AppendEvent(say(200, "died", 9, `{}`)),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	cases := []struct {
		at   int64
		want string
	}{
		{20, "at 20, steps [], host 0B, card []"},
		{100, "at 100, steps [7/-1:900MiB 7/0:30MiB 9/0:200MiB], host 64MiB, card [weights 50MiB, " +
			"gradients 10MiB, optimizer 20MiB, activations 150MiB, cache 6MiB, " +
			"fragmentation 4MiB, context and libraries 60MiB, free 700MiB]"},
		{400, "at 300, steps [7/-1:900MiB 7/0:40MiB 9/0:200MiB], host 64MiB, card [" +
			"activations 40MiB, cache 3MiB, fragmentation 2MiB, context and libraries 355MiB, " +
			"free 600MiB]"},
	}
	for _, c := range cases {
		var m Moment
		status, text, _ := s.ask("GET", fmt.Sprintf("/api/runs/%s/account?at_ms=%d", folder.ID, c.at),
			nil)
		if err := json.Unmarshal([]byte(text), &m); err != nil || status != 200 {
			t.Fatalf("%d %s: %v", status, text, err)
		}
		if got := momentWords(m); got != c.want {
			t.Errorf("%d: %s\nwant %s", c.at, got, c.want)
		}
	}
}

func momentWords(m Moment) string {
	steps, lines := []string{}, []string{}
	for _, s := range m.Steps {
		steps = append(steps, fmt.Sprintf("%d/%d:%s", s.PID, s.Device, s.Allocated))
	}
	for _, c := range m.Cards {
		for _, l := range c.Lines {
			if l.Bytes != 0 {
				lines = append(lines, fmt.Sprintf("%s %s", l.Name, l.Bytes))
			}
		}
	}
	limit := event.Bytes(0)
	if m.Host != nil {
		limit = m.Host.Limit
	}
	return fmt.Sprintf("at %d, steps %s, host %s, card [%s]", m.AtMS, steps, limit,
		strings.Join(lines, ", "))
}

// TestWallIsTheLowestLimit of those that are known.
func TestWallIsTheLowestLimit(t *testing.T) {
	for _, c := range []struct{ run, cgroup, machine, want event.Bytes }{
		{0, 0, 0, 0}, {5, 0, 0, 5}, {5, 3, 9, 3}, {5, 7, 9, 5}, {5, 7, 4, 4}, {0, 7, 9, 7},
		{0, 0, 9, 9}, {0, 9, 7, 7}, {5, 5, 5, 5}} {
		s := event.Sample{Cgroup: &event.CgroupSample{Limit: c.cgroup}}
		if c.machine > 0 {
			s.Machine = &event.MachineSample{Total: c.machine}
		}
		if got := wallOf(event.Run{HostMem: c.run}, s); got != c.want {
			t.Errorf("%+v: %d", c, got)
		}
	}
}

func TestCommandsToType(t *testing.T) {
	code := func(n int) *int { return &n }
	for name, c := range map[string]struct {
		row    store.Row
		output int64
		want   string
	}{
		"running": {store.Row{Status: store.Running}, 0, "show,attach,top,show"},
		"well":    {store.Row{Status: store.Ended, ExitCode: code(0)}, 5, "show,show --output,show"},
		"badly":   {store.Row{Status: store.Ended, ExitCode: code(1)}, 0, "show,explain,show"},
		"lost":    {store.Row{Status: store.Lost}, 0, "show,show"},
	} {
		rec := Record{Overview: Overview{Row: c.row}, Output: map[string]int64{"output": c.output}}
		rec.ID = "X"
		var got []string
		for _, x := range commandsFor(rec) {
			line := strings.TrimPrefix(strings.Replace(x.Line, " X", "", 1), "memroom ")
			got = append(got, strings.TrimSuffix(line, " --html run.html --share"))
			if !strings.Contains(x.Line, " X") || x.Does == "" {
				t.Errorf("%s: %+v", name, x)
			}
		}
		if strings.Join(got, ",") != c.want {
			t.Errorf("%s: %q, want %s", name, got, c.want)
		}
	}
}

func TestNewerRecordsSaySo(t *testing.T) {
	for _, c := range []struct {
		wrote, reads string
		newer        bool
	}{{"0.2.0", "0.1.0", true}, {"0.1.1", "0.1.0", true}, {"1.0", "0.9.9", true},
		{"0.1.0", "0.1.0", false}, {"0.1.0", "0.2.0", false}, {"0.9.9", "1.0", false},
		{"", "0.1.0", false}, {"0.2.0", "", false}, {"dev", "0.1.0", false}, {"3", "0.1.0", false},
		{"0.10.0", "0.9.0", true}} {
		text := newerThan(c.wrote, c.reads)
		if (text != "") != c.newer || c.newer && (!strings.Contains(text, "memroom "+c.wrote+",") ||
			!strings.Contains(text, "("+c.reads+")")) {
			t.Errorf("%s read by %s: %q", c.wrote, c.reads, text)
		}
	}
}

func TestStatesOfMetrics(t *testing.T) {
	zero, one := 0, 1
	for want, row := range map[string]store.Row{
		"running": {Status: store.Running, ExitCode: &one},
		"lost":    {Status: store.Lost, ExitCode: &zero},
		"oom":     {Status: store.Ended, ExitCode: &one, IsOOM: true},
		"ok":      {Status: store.Ended, ExitCode: &zero},
		"failed":  {Status: store.Ended, ExitCode: &one}} {
		if got := stateClass(row); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	if got := stateClass(store.Row{Status: store.Ended}); got != "lost" {
		t.Errorf("without an exit code: %s", got)
	}
}

// TestMetricsOfRuns: known lines; a run that is over uses nothing now, and memory without a limit
// has no headroom.
func TestMetricsOfRuns(t *testing.T) {
	live := Overview{Room: []Room{{Kind: "gpu", Name: "L4 0", Now: 3, Peak: 4, Limit: 10},
		{Kind: "host", Name: "host memory", Now: 1, Peak: 2}},
		Forecasts: []diagnose.Prediction{{What: "host", In: 90 * time.Second}}}
	live.ID, live.Status, live.Seconds, live.Steps, live.Findings = "a", store.Running, 1.5, 7, 2
	over := Overview{Room: []Room{{Kind: "host", Name: "host memory", Now: 8, Peak: 9, Limit: 5}}}
	over.ID, over.Name, over.Status = "b", `n"\`, store.Ended
	m := &metrics{}
	m.runs([]Overview{live, over})
	var lines []string
	for line := range strings.Lines(m.text.String()) {
		if !strings.HasPrefix(line, "#") && !strings.HasPrefix(line, "memroom_run_info") {
			lines = append(lines, strings.TrimPrefix(strings.TrimSpace(line), "memroom_run_"))
		}
	}
	const a, b = `{run="a",name=""`, `{run="b",name="n\"\\"`
	const host = `,kind="host",device=""} `
	const gpu = `,kind="gpu",device="L4 0"} `
	want := []string{"running" + a + "} 1", "running" + b + "} 0", "duration_seconds" + a + "} 1.5",
		"duration_seconds" + b + "} 0", "steps_total" + a + "} 7", "steps_total" + b + "} 0",
		"findings" + a + "} 2", "findings" + b + "} 0", "used_bytes" + a + gpu + "3",
		"used_bytes" + a + host + "1", "peak_bytes" + a + gpu + "4", "peak_bytes" + a + host + "2",
		"peak_bytes" + b + host + "9", "limit_bytes" + a + gpu + "10", "limit_bytes" + b + host + "5",
		"headroom_bytes" + a + gpu + "6", "headroom_bytes" + b + host + "-4",
		"forecast_seconds" + a + `,what="host"} 90`}
	if got := strings.Join(lines, "\n"); got != strings.Join(want, "\n") {
		t.Errorf("%s\nwant\n%s", got, strings.Join(want, "\n"))
	}
}

// TestNumbersOfAQuery: limits on each side, and the course between two moments.
func TestNumbersOfAQuery(t *testing.T) {
	s := newSite(t)
	folder := s.addRun("", 40)
	if err := folder.AppendEvent(event.Happened{Kind: "oom"}); err != nil {
		t.Fatal(err)
	}
	run := "/api/runs/" + folder.ID
	for path, want := range map[string]int{
		run + "/events?limit=1": 200, run + "/events?limit=0": 400, run + "/events?limit=20000": 200,
		run + "/events?limit=20001": 400, run + "/events?cursor=-1": 400,
		run + "/series?points=1": 200, run + "/series?points=0": 400,
		run + "/series?points=10000": 200, run + "/series?points=10001": 400,
		run + "/series?from=5&to=5": 200, run + "/series?from=6&to=5": 400,
		run + "/series?from=-1": 400, run + "/account?at_ms=x": 400, run + "/account?at_ms=0": 200,
		run + "/log?bytes=0": 400, run + "/log?bytes=4194304": 200, run + "/log?bytes=4194305": 400,
		run + "/log?from=-1": 400, "/api/runs?limit=0": 400, "/api/runs?limit=500": 200,
		"/api/runs?limit=501": 400, "/api/runs?limit=1.5": 400,
	} {
		if status, text, _ := s.ask("GET", path, nil); status != want {
			t.Errorf("%s: %d %.200s, want %d", path, status, text, want)
		}
	}
	var got struct {
		Samples struct {
			Count   int64
			At      []int64
			Columns map[string]struct{ High []float64 }
		}
	}
	_, text, _ := s.ask("GET", run+"/series?from=1000&to=2000", nil)
	if err := json.Unmarshal([]byte(text), &got); err != nil {
		t.Fatal(err)
	}
	at := got.Samples.At
	if len(at) < 5 || at[0] > 1000 || at[len(at)-1] < 2000 || len(at) > 8 {
		t.Errorf("from second 1 to 2: %v", at)
	}
	if high := got.Samples.Columns["resident"].High; len(high) != len(at) || high[0] != 5000 {
		t.Errorf("resident: %v in %.300s", high, text)
	}
}

// TestPartsOfALog: its end by default, what follows a place when asked.
func TestPartsOfALog(t *testing.T) {
	s := newSite(t)
	folder := s.addRun("", 0)
	for name, text := range map[string]string{"output": "0123456789", "output.err": "oops"} {
		if err := os.WriteFile(folder.Path(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for query, want := range map[string]string{
		"":                       `{"from":0,"next":10,"size":10,"text":"0123456789"}`,
		"?bytes=4":               `{"from":6,"next":10,"size":10,"text":"6789"}`,
		"?from=2&bytes=3":        `{"from":2,"next":5,"size":10,"text":"234"}`,
		"?from=8&bytes=9":        `{"from":8,"next":10,"size":10,"text":"89"}`,
		"?from=99":               `{"from":99,"next":99,"size":10,"text":""}`,
		"?stream=errors":         `{"from":0,"next":4,"size":4,"text":"oops"}`,
		"?stream=errors&bytes=1": `{"from":3,"next":4,"size":4,"text":"s"}`,
	} {
		if _, got, _ := s.ask("GET", "/api/runs/"+folder.ID+"/log"+query, nil); got != want {
			t.Errorf("%s: %s, want %s", query, got, want)
		}
	}
	_ = os.Remove(folder.Path("output"))
	_, got, _ := s.ask("GET", "/api/runs/"+folder.ID+"/log", nil)
	if got != `{"from":0,"next":0,"size":0,"text":""}` {
		t.Errorf("nothing printed: %s", got)
	}
}

// TestWholeLinesOfAFile: the half line at the end is left, however long it is.
func TestWholeLinesOfAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	half := strings.Repeat("x", 200<<10)
	for text, want := range map[string]int64{"": 0, "a": 0, "\n": 1, "a\n": 2, "a\nb": 2, "a\nbc\n": 5,
		half: 0, "a\n" + half: 2, half + "\n": 200<<10 + 1, half + "\ny": 200<<10 + 1} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := wholeLines(path); got != want {
			t.Errorf("%.9q, %d bytes: %d, want %d", text, len(text), got, want)
		}
	}
	if got := wholeLines(path + "-not-there"); got != 0 {
		t.Errorf("no file: %d", got)
	}
}

// TestCoursesAreKeptForTheLast: the one that was not looked at for longest is forgotten first.
func TestCoursesAreKeptForTheLast(t *testing.T) {
	s := newSite(t)
	var c seriesCache
	var folders []*store.Folder
	for range cachedCourses + 1 {
		folders = append(folders, s.addRun("", 0))
	}
	first, second := c.of(folders[0]), c.of(folders[1])
	for _, f := range folders[2:cachedCourses] {
		c.of(f)
	}
	if c.of(folders[0]) != first || len(c.byID) != cachedCourses {
		t.Errorf("%d courses are kept, want %d", len(c.byID), cachedCourses)
	}
	c.of(folders[cachedCourses])
	if len(c.byID) != cachedCourses || c.of(folders[0]) != first {
		t.Error("one that was looked at again is forgotten")
	}
	if c.of(folders[1]) == second {
		t.Error("the oldest is kept")
	}
}

// TestErrorsAsAnswers: each error becomes the right HTTP status for a sender or a viewer.
func TestErrorsAsAnswers(t *testing.T) {
	odd := errors.New("odd")
	for _, c := range []struct {
		err  error
		want int
	}{
		{reportFailure(fmt.Errorf("x: %w", central.ErrFull)), 507},
		{reportFailure(central.ErrAway), 503}, {reportFailure(central.ErrUnknown), 410},
		{reportFailure(central.ErrBad), 400}, {reportFailure(odd), 0},
		{readable(fmt.Errorf("x: %w", os.ErrNotExist)), 404}, {readable(os.ErrPermission), 403},
		{readable(odd), 0},
	} {
		var f failure
		if errors.As(c.err, &f); f.status != c.want || c.want == 0 && c.err != odd {
			t.Errorf("%v: %d, want %d", c.err, f.status, c.want)
		}
	}
	if _, err := (&Server{}).receiver(); !strings.Contains(err.Error(), "takes no reports") {
		t.Error(err)
	}
}

func TestAddressesOfThisMachine(t *testing.T) {
	for address, want := range map[string]bool{"127.0.0.1:80": true, "127.9.9.9:1": true,
		"[::1]:80": true, "localhost:80": true, "LocalHost": true, "::1": true, "[::1]": true,
		":80": false, "0.0.0.0:80": false, "192.0.2.1:80": false, "host:80": false, "": false} {
		if Loopback(address) != want {
			t.Errorf("%q: %v", address, !want)
		}
	}
}

func TestWordsAreClipped(t *testing.T) {
	for _, c := range []struct {
		text string
		most int
		want string
	}{{"abc", 3, "abc"}, {"abcd", 3, "abc..."}, {"", 3, ""}, {"aé", 2, "a..."}, {"aé", 3, "aé"}} {
		if got := clip(c.text, c.most); got != c.want {
			t.Errorf("%q: %q, want %q", c.text, got, c.want)
		}
	}
}

// TestCommandOfAPlan: the form's settings become the command that a user would type, quoted where a
// shell would split it.
func TestCommandOfAPlan(t *testing.T) {
	for query, want := range map[string]string{
		"preset=gpt2&batch=4": "memroom plan --preset gpt2 --batch 4",
		"batch=4":             "memroom plan --batch 4 config.json",
		"preset=a&fit=true&checkpointing=false&padded=true": "memroom plan --preset a --padded --fit",
		"preset=a&gpu=RTX 4090":                             "memroom plan --preset a --gpu 'RTX 4090'",
		"preset=a'b":                                        `memroom plan --preset 'a'\''b'`,
	} {
		r, err := http.NewRequest("GET", "/?"+strings.ReplaceAll(query, " ", "+"), nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := planCommand(r.URL.Query()); got != want {
			t.Errorf("%s: %s, want %s", query, got, want)
		}
	}
}

// TestDumpsAreListed: plain files with their sizes, newest run first; what is open comes with it.
func TestDumpsAreListed(t *testing.T) {
	s := newSite(t)
	older, newer := s.addRun("", 0), s.addRun("", 0)
	for _, f := range []*store.Folder{older, newer} {
		if err := os.MkdirAll(filepath.Join(f.Dumps(), "folder"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(f.Dumps(), "a.pickle"), []byte("12345"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got := dumpsOf(newer); len(got) != 1 || got[0].Size != 5 ||
		got[0].ID != newer.ID+dumpMark+"a.pickle" {
		t.Errorf("%+v", got)
	}
	var list struct {
		Runs []struct {
			Run  string
			Dump Dump
		}
		Limit event.Bytes `json:"upload_limit"`
	}
	_, text, _ := s.ask("GET", "/api/snapshots", nil)
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		t.Fatal(err)
	}
	if len(list.Runs) != 2 || list.Runs[0].Run != newer.ID || list.Runs[1].Run != older.ID ||
		list.Runs[1].Dump.Name != "a.pickle" || list.Limit != DefaultUploadLimit {
		t.Errorf("%s", text)
	}
}

func TestDefaultsOfAServer(t *testing.T) {
	s := New(Options{})
	if s.options.Poll != 250*time.Millisecond || s.options.UploadLimit != 8*event.GiB ||
		s.options.Log == nil || cap(s.plans) != 2 {
		t.Errorf("%+v", s.options)
	}
	s = New(Options{Poll: 1, UploadLimit: 1})
	if s.options.Poll != 1 || s.options.UploadLimit != 1 {
		t.Errorf("what was set is replaced: %+v", s.options)
	}
}

// TestFoundAreTheNewestThatMatter: three titles at most, the newest first, no remarks.
func TestFoundAreTheNewestThatMatter(t *testing.T) {
	s := newSite(t)
	folder := s.addRun("", 0)
	var findings []event.Finding
	for i, severity := range []event.Severity{"warning", "warning", "error", "info", "warning"} {
		findings = append(findings, event.Finding{Title: fmt.Sprint(i), Severity: severity})
	}
	if err := folder.SaveSummary(event.Summary{Findings: findings, Steps: 4, Notes: []string{"n"},
		Samples: 6}); err != nil {
		t.Fatal(err)
	}
	o := (&Server{options: Options{Store: s.home}}).overview(t.Context(), folder.Row())
	if fmt.Sprint(o.Found) != "[4 2 1]" || o.Findings != 5 || o.Steps != 4 || o.State != "ok" {
		t.Errorf("%+v", o)
	}
	if known := knownOf(folder); known.Samples != 6 || known.Steps != 4 || len(known.Notes) != 1 {
		t.Errorf("%+v", known)
	}
}

func TestEachLineIsCleaned(t *testing.T) {
	upper := func(line string) string { return "<" + line + ">" }
	for text, want := range map[string]string{"": "", "a": "<a>\n", "a\nb\r\n": "<a>\n<b>\n",
		"\n": "<>\n"} {
		if got := eachOf(text, upper); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

// TestPagesOfRuns: as many as asked for, and where to go on only if there are more.
func TestPagesOfRuns(t *testing.T) {
	s := newSite(t)
	for range 3 {
		s.addRun("", 0)
	}
	for limit, want := range map[int]string{1: "1 of 3, more true", 2: "2 of 3, more true",
		3: "3 of 3, more false", 4: "3 of 3, more false"} {
		var page struct {
			Runs  []struct{ ID string }
			Next  string
			Total int
		}
		_, text, _ := s.ask("GET", fmt.Sprintf("/api/runs?limit=%d", limit), nil)
		if err := json.Unmarshal([]byte(text), &page); err != nil {
			t.Fatal(err)
		}
		got := fmt.Sprintf("%d of %d, more %v", len(page.Runs), page.Total, page.Next != "")
		if got != want || page.Next != "" && page.Next != page.Runs[limit-1].ID {
			t.Errorf("%d asked for: %s, want %s", limit, got, want)
		}
	}
}
