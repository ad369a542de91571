package api

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"memroom/diagnose"
	"memroom/event"
	"memroom/fit"
	"memroom/report"
	"memroom/store"
)

// Overview is a run in a list: what it is, how it stands, and how much of each kind of memory is
// left.
type Overview struct {
	store.Row
	State     string                `json:"state"` // in a word or two, as `memroom runs` prints it
	Room      []Room                `json:"room"`
	Forecasts []diagnose.Prediction `json:"forecasts,omitempty"`
	// the newest important findings, one sentence each
	Found []string `json:"found,omitempty"`
	// the one that matters most, in about five words
	FoundShort string `json:"found_short,omitempty"`
	// what people know a run by: the program's file, and what the command names as its model
	Script string `json:"script,omitempty"`
	Model  string `json:"model,omitempty"`
	// the study of which the run is a trial
	Study string `json:"study,omitempty"`
	// memory over time as shares of the limit, or of the peak where there is none
	Spark []float64 `json:"spark,omitempty"`
}

// Room is one kind of memory: how much of it is used, was used at most, and may be used.
type Room struct {
	Kind  string      `json:"kind"` // host, shm, gpu
	Name  string      `json:"name"`
	Now   event.Bytes `json:"now,omitempty"` // 0: the run is over
	Peak  event.Bytes `json:"peak"`
	Limit event.Bytes `json:"limit,omitempty"`
	// Free is what can be had now, which others on the machine may make less than the limit
	// leaves; nil where the run is over or that is not known.
	Free *event.Bytes `json:"free,omitempty"`
}

// learnt is the part of watch.json that is shown: what the monitor knows of a run that goes on.
type learnt struct {
	Peaks     event.Peaks                 `json:"peaks"`
	Findings  []event.Finding             `json:"findings"`
	Notes     []string                    `json:"notes"`
	Steps     int64                       `json:"steps"`
	Samples   int64                       `json:"samples"`
	Forecasts []diagnose.Prediction       `json:"forecasts"`
	Accounts  map[string]diagnose.Account `json:"accounts"`
	Host      *diagnose.Account           `json:"host_account"`
}

// page sizes of lists.
const (
	runsDefault = 50
	runsMost    = 500
)

// listRuns answers with runs, newest first. The cursor is the ID of the last run sent, so runs that
// begin in the meantime shift nothing.
func (s *Server) listRuns(w http.ResponseWriter, r *http.Request) error {
	limit, err := number(r, "limit", runsDefault, 1, runsMost)
	if err != nil {
		return err
	}
	q := r.URL.Query()
	filter := store.Filter{Name: q.Get("name"), Tag: q.Get("tag"), Group: q.Get("group"),
		OOM: q.Get("oom") == "true", Failed: q.Get("failed") == "true",
		Active: q.Get("active") == "true"}
	rows, err := s.list(r.Context(), filter)
	if err != nil {
		return err
	}
	total := len(rows)
	if cursor := q.Get("cursor"); cursor != "" {
		if rows, err = s.after(rows, cursor); err != nil {
			return err
		}
	}
	next := ""
	if len(rows) > int(limit) {
		rows = rows[:limit]
		next = rows[limit-1].ID
	}
	list, err := s.overviews(r.Context(), rows)
	if err != nil {
		return err
	}
	return answer(w, map[string]any{"runs": list, "next": next, "total": total,
		"home": s.options.Store.Home, "now": time.Now()})
}

// after returns the runs that follow the one whose ID is the cursor. That run may have left the
// list in the meantime: a run that ends is not active any more. Its place in the order stays.
func (s *Server) after(rows []store.Row, cursor string) ([]store.Row, error) {
	at := slices.IndexFunc(rows, func(row store.Row) bool { return row.ID == cursor })
	if at >= 0 {
		return rows[at+1:], nil
	}
	folder, ok := s.lookup(cursor)
	if !ok {
		return nil, failed(http.StatusBadRequest, "cursor=%s is not a run: leave the cursor "+
			"out to begin again", clip(cursor, 40))
	}
	last := folder.Row()
	at = slices.IndexFunc(rows, func(row store.Row) bool { return newestFirst(last, row) < 0 })
	if at < 0 {
		return nil, nil
	}
	return rows[at:], nil
}

// overviews are runs as a list holds them, each as JSON of its own: one that cannot be written is
// shown as damaged, and the others are as they are.
func (s *Server) overviews(ctx context.Context, rows []store.Row) ([]json.RawMessage, error) {
	list := make([]json.RawMessage, 0, len(rows))
	for _, row := range rows {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		text, err := json.Marshal(s.overview(ctx, row))
		if err != nil {
			text, err = json.Marshal(Overview{Row: store.Row{ID: row.ID, Status: row.Status,
				Reported: row.Reported, Damaged: err.Error()}, State: "damaged", Room: []Room{}})
		}
		if err != nil {
			return nil, err
		}
		list = append(list, text)
	}
	return list, nil
}

func (s *Server) overview(ctx context.Context, row store.Row) Overview {
	folder := s.folderOf(row)
	if row.Status == store.Lost && s.options.Left != nil && !row.Reported {
		_, row.Unwatched = s.options.Left(folder)
	}
	o := Overview{Row: row, State: row.State(), Room: []Room{}}
	known := knownOf(folder)
	o.Room = roomOf(known.Peaks)
	if row.Status == store.Running {
		o.Forecasts = known.Forecasts
		o.Steps = max(o.Steps, known.Steps)
		o.Seconds = time.Since(row.Started).Seconds()
		o.Room = s.roomNow(ctx, folder, o.Room)
	}
	o.name()
	o.Spark = s.spark(folder, o)
	o.Findings = max(o.Findings, len(known.Findings))
	for _, f := range slices.Backward(known.Findings) {
		if f.Severity != event.SeverityInfo && len(o.Found) < 3 {
			o.Found = append(o.Found, f.Title)
			o.FoundShort = cmp.Or(o.FoundShort, shortly(f))
		}
	}
	return o
}

// knownOf is what is known of a run: its final report, else what its monitor has learnt so far.
func knownOf(folder *store.Folder) learnt {
	var known learnt
	_ = folder.Progress(&known)
	if summary, err := folder.Summary(); err == nil {
		known.Peaks, known.Findings, known.Steps = summary.Peaks, summary.Findings, summary.Steps
		known.Notes, known.Samples = summary.Notes, summary.Samples
	}
	return known
}

func roomOf(p event.Peaks) []Room {
	var list []Room
	if p.Unreclaimable > 0 || p.HostLimit > 0 {
		list = append(list, Room{Kind: "host", Name: "host memory", Peak: p.Unreclaimable,
			Limit: p.HostLimit})
	}
	// less is others' on the machine, and fills nothing
	if p.Shm > 0 && p.ShmTotal > 0 && p.Shm >= p.ShmTotal/100 {
		list = append(list, Room{Kind: "shm", Name: "shared memory", Peak: p.Shm, Limit: p.ShmTotal})
	}
	for i, d := range p.Devices {
		list = append(list, Room{Kind: "gpu", Name: cmp.Or(d.Name, "card") + fmt.Sprintf(" %d", i),
			Peak: max(d.Used, d.Reserved), Limit: d.Total})
	}
	return list
}

// roomNow adds the last reading of a run that goes on.
func (s *Server) roomNow(ctx context.Context, folder *store.Folder, room []Room) []Room {
	var last event.Sample
	s.series.of(folder).samples.Before(ctx, 1<<62, func(line []byte) {
		if sample, err := store.Decode[event.Sample](line); err == nil {
			last = sample
		}
	})
	card := 0
	for i := range room {
		switch r := &room[i]; {
		case r.Kind == "host":
			r.Now = last.Unreclaimable()
			if last.Machine != nil && r.Limit > 0 {
				free := max(0, min(r.Limit-r.Now, last.Machine.Available))
				r.Free = &free
			}
		case r.Kind == "shm" && last.Machine != nil:
			r.Now = last.Machine.ShmUsed
		case r.Kind == "gpu" && card < len(last.Devices):
			r.Now = last.Devices[card].Used
			card++
		}
		room[i].Peak = max(room[i].Peak, room[i].Now)
	}
	return room
}

// Record is everything about one run but its course.
type Record struct {
	Overview
	Run      event.Run         `json:"run"`
	Summary  *event.Summary    `json:"summary,omitempty"`
	Verdict  *event.Verdict    `json:"verdict,omitempty"`
	Tries    []event.Attempt   `json:"tries,omitempty"`
	Fit      *fit.Record       `json:"fit,omitempty"`
	All      []event.Finding   `json:"all_findings"`
	Cures    map[string]string `json:"cures,omitempty"` // the findings' remedies in words
	Notes    []string          `json:"notes,omitempty"`
	Left     string            `json:"left,omitempty"`
	End      *report.EndPage   `json:"end,omitempty"`
	Dumps    []Dump            `json:"dumps"`
	Commands []Command         `json:"commands"`
	Account  map[string]any    `json:"account,omitempty"`
	Output   map[string]int64  `json:"output"` // bytes of stdout and stderr
	// Newer is a notice if a part of the record was written by a newer memroom, else empty
	Newer string `json:"newer,omitempty"`
}

// mostTries is how many attempts of a run are shown. A fit makes some dozens.
const mostTries = 1000

// Dump is a snapshot that a run left.
type Dump struct {
	ID   string      `json:"id"`
	Name string      `json:"name"`
	Size event.Bytes `json:"size"`
}

// Command is something to type, with what it does.
type Command struct {
	Line string `json:"line"`
	Does string `json:"does"`
}

func (s *Server) showRun(w http.ResponseWriter, r *http.Request) error {
	folder, err := s.run(r)
	if err != nil {
		return err
	}
	return answer(w, s.record(r.Context(), folder))
}

func (s *Server) record(ctx context.Context, folder *store.Folder) Record {
	rec := Record{Overview: s.overview(ctx, folder.Row()), All: []event.Finding{}}
	rec.Run, _ = folder.Run()
	if summary, err := folder.Summary(); err == nil {
		rec.Summary = &summary
	}
	if verdict, err := folder.Verdict(); err == nil {
		rec.Verdict = &verdict
	}
	for attempt := range folder.Attempts() {
		if rec.Tries = append(rec.Tries, attempt); len(rec.Tries) >= mostTries || ctx.Err() != nil {
			break
		}
	}
	known := knownOf(folder)
	rec.All = append(rec.All, known.Findings...)
	rec.Cures = curesOf(rec.All)
	rec.Notes = known.Notes
	if known.Host != nil || len(known.Accounts) > 0 {
		rec.Account = map[string]any{"host": known.Host, "cards": known.Accounts}
	}
	if story, err := store.ReadRecord[fit.Record](folder, "fit.json"); err == nil {
		rec.Fit = &story
	}
	if s.options.Left != nil && rec.Status == store.Lost && !rec.Reported {
		rec.Left, _ = s.options.Left(folder)
	}
	if s.options.End != nil && rec.Summary != nil {
		if end, err := s.options.End(folder); err == nil {
			page := end.Page()
			rec.End = &page
		}
	}
	rec.Dumps = dumpsOf(folder)
	rec.Commands = commandsFor(rec)
	if from, yes := folder.Reported(); yes {
		rec.Commands = []Command{{"memroom show " + from.ID, "on " + from.Host +
			", which sends this record: the record as text"}}
	}
	rec.Output = map[string]int64{}
	for name, path := range map[string]string{"output": folder.Output(),
		"errors": folder.Errors()} {
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			rec.Output[name] = info.Size()
		}
	}
	rec.Newer = newerThan(rec.Run.Version, s.options.Version)
	return rec
}

// newerThan returns a notice if a record was written by a newer memroom than this one.
func newerThan(wrote, reads string) string {
	var a, b [3]int
	if n, _ := fmt.Sscanf(wrote, "%d.%d.%d", &a[0], &a[1], &a[2]); n < 2 {
		return ""
	}
	if n, _ := fmt.Sscanf(reads, "%d.%d.%d", &b[0], &b[1], &b[2]); n < 2 {
		return ""
	}
	if slices.Compare(a[:], b[:]) > 0 {
		return fmt.Sprintf("this run was recorded by memroom %s, which is newer than this one (%s): "+
			"what it wrote in a new way is not shown", wrote, reads)
	}
	return ""
}

// dumpsOf lists the snapshots in a run's folder: plain files only.
func dumpsOf(folder *store.Folder) []Dump {
	dumps := []Dump{}
	entries, err := os.ReadDir(folder.Dumps())
	if err != nil {
		return dumps
	}
	for _, e := range entries {
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() && len(dumps) < 1000 {
			dumps = append(dumps, Dump{ID: folder.ID + dumpMark + e.Name(), Name: e.Name(),
				Size: event.Bytes(info.Size())})
		}
	}
	return dumps
}

func commandsFor(rec Record) []Command {
	list := []Command{{"memroom show " + rec.ID, "the record as text"}}
	switch {
	case rec.Status == store.Running:
		list = append(list, Command{"memroom attach " + rec.ID, "its output and keys"},
			Command{"memroom top " + rec.ID, "watch it in the terminal"})
	case rec.ExitCode != nil && *rec.ExitCode != 0:
		list = append(list, Command{"memroom explain " + rec.ID, "why it died and what to do"})
	}
	if rec.Output["output"] > 0 {
		list = append(list, Command{"memroom show " + rec.ID + " --output", "all it printed"})
	}
	return append(list, Command{"memroom show " + rec.ID + " --html run.html --share",
		"this page as one file for others, without names and paths"})
}

// showEvents answers with the events of a run. The cursor is the place in the file where the next
// event begins.
func (s *Server) showEvents(w http.ResponseWriter, r *http.Request) error {
	folder, err := s.run(r)
	if err != nil {
		return err
	}
	cursor, err := number(r, "cursor", 0, 0, 1<<60)
	if err != nil {
		return err
	}
	limit, err := number(r, "limit", 2000, 1, 20_000)
	if err != nil {
		return err
	}
	kinds := r.URL.Query().Get("kinds")
	events, next, more := readEvents(r.Context(), folder, cursor, int(limit), wanted(kinds))
	return answer(w, map[string]any{"events": events, "next": next, "more": more})
}

// wanted chooses events by kind; an empty list means those that a timeline marks.
func wanted(kinds string) func(string) bool {
	switch kinds {
	case "all":
		return func(string) bool { return true }
	case "":
		kinds = "attempt,phase,finding,action,pressure,oom,died,remedy,verdict"
	}
	list := strings.Split(kinds, ",")
	return func(kind string) bool { return slices.Contains(list, kind) }
}

func readEvents(ctx context.Context, folder *store.Folder, from int64, limit int,
	want func(string) bool) (events []event.Happened, next int64, more bool) {
	events = []event.Happened{}
	next = store.LinesFrom(folder.Path("events.jsonl"), from, func(line []byte) bool {
		if h, err := store.Decode[event.Happened](line); err == nil && want(h.Kind) {
			if h.Kind != "phase" && h.Kind != "remedy" {
				h.Data = nil // messages of probes: long, and not shown
			}
			events = append(events, h)
		}
		more = len(events) >= limit
		return !more && ctx.Err() == nil
	})
	return events, next, more
}

// showLog answers with the end of the command's output, or with what follows a place in it.
func (s *Server) showLog(w http.ResponseWriter, r *http.Request) error {
	folder, err := s.run(r)
	if err != nil {
		return err
	}
	path := folder.Output()
	if r.URL.Query().Get("stream") == "errors" {
		path = folder.Errors()
	}
	from, err := number(r, "from", -1, 0, 1<<60)
	if err != nil {
		return err
	}
	most, err := number(r, "bytes", 64<<10, 1, 4<<20)
	if err != nil {
		return err
	}
	text, from, size, err := readLog(path, from, most)
	if err != nil {
		return err
	}
	return answer(w, map[string]any{"text": text, "from": from, "next": from + int64(len(text)),
		"size": size})
}

// readLog reads a part of a log as text; from -1 means its end.
func readLog(path string, from, most int64) (text string, begin, size int64, err error) {
	file, err := os.Open(path)
	if err != nil {
		if isAbsent(err) {
			return "", 0, 0, nil
		}
		return "", 0, 0, readable(err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return "", 0, 0, err
	}
	if !info.Mode().IsRegular() {
		return "", 0, 0, failed(http.StatusConflict, "the log is not a plain file")
	}
	size = info.Size()
	if from < 0 {
		from = max(0, size-most)
	}
	data := make([]byte, max(0, min(most, size-from)))
	n, err := file.ReadAt(data, from)
	if err != nil && err != io.EOF {
		return "", 0, 0, err
	}
	return string(data[:n]), from, size, nil
}

func isAbsent(err error) bool { return err != nil && os.IsNotExist(err) || err == fs.ErrNotExist }

// compareRuns answers with a comparison of two runs.
func (s *Server) compareRuns(w http.ResponseWriter, r *http.Request) error {
	var both []Record
	for _, name := range []string{"a", "b"} {
		folder, err := s.runByID(r.URL.Query().Get(name))
		if err != nil {
			return err
		}
		both = append(both, s.record(r.Context(), folder))
	}
	return answer(w, map[string]any{"a": both[0], "b": both[1], "rows": compare(both[0], both[1])})
}

// Compared is one line of a comparison. Numbers are bytes unless Unit names another unit.
type Compared struct {
	Name string   `json:"name"`
	Unit string   `json:"unit"` // bytes, seconds, ms, count, text
	A    *float64 `json:"a"`
	B    *float64 `json:"b"`
	TA   string   `json:"text_a,omitempty"`
	TB   string   `json:"text_b,omitempty"`
}

func compare(a, b Record) []Compared {
	var rows []Compared
	value := func(x float64, known bool) *float64 {
		if !known {
			return nil
		}
		return &x
	}
	add := func(name, unit string, get func(Record) (float64, bool)) {
		x, okA := get(a)
		y, okB := get(b)
		if okA || okB {
			rows = append(rows, Compared{Name: name, Unit: unit, A: value(x, okA), B: value(y, okB)})
		}
	}
	text := func(name string, get func(Record) string) {
		if x, y := get(a), get(b); x != "" || y != "" {
			rows = append(rows, Compared{Name: name, Unit: "text", TA: x, TB: y})
		}
	}
	text("state", func(r Record) string { return r.State })
	text("command", func(r Record) string { return r.Command })
	add("took", "seconds", func(r Record) (float64, bool) { return r.Seconds, r.Seconds > 0 })
	add("steps", "count", func(r Record) (float64, bool) { return float64(r.Steps), r.Steps > 0 })
	add("step, median", "ms", func(r Record) (float64, bool) {
		return summaryOf(r).StepMS, summaryOf(r).StepMS > 0
	})
	most := max(len(a.Room), len(b.Room))
	for i := range most {
		name := ""
		for _, r := range []Record{a, b} {
			if i < len(r.Room) && name == "" {
				name = r.Room[i].Name
			}
		}
		at := func(r Record) (Room, bool) {
			j := slices.IndexFunc(r.Room, func(x Room) bool { return x.Name == name })
			if j < 0 {
				return Room{}, false
			}
			return r.Room[j], true
		}
		add(name+", peak", "bytes", func(r Record) (float64, bool) {
			x, ok := at(r)
			return float64(x.Peak), ok
		})
		add(name+", headroom", "bytes", func(r Record) (float64, bool) {
			x, ok := at(r)
			return float64(x.Limit - x.Peak), ok && x.Limit > 0
		})
	}
	add("allocated, peak", "bytes", func(r Record) (float64, bool) {
		top := event.Bytes(0)
		for _, d := range summaryOf(r).Peaks.Devices {
			top = max(top, d.Allocated)
		}
		return float64(top), top > 0
	})
	add("attempts", "count", func(r Record) (float64, bool) {
		return float64(r.Attempts), r.Attempts > 0
	})
	add("findings", "count", func(r Record) (float64, bool) { return float64(len(r.All)), true })
	text("remedies", func(r Record) string {
		if r.Fit == nil || r.Fit.Last() == nil {
			return ""
		}
		return r.Fit.Last().Title
	})
	return rows
}

func summaryOf(r Record) event.Summary {
	if r.Summary == nil {
		return event.Summary{}
	}
	return *r.Summary
}
