package api

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"slices"

	"memroom/event"
	"memroom/report"
	"memroom/store"
	"memroom/web"
)

// How much of a run goes into one file: enough for every pixel of a wide screen, and accounts close
// enough to each other.
const (
	filePoints  = 3000
	fileMoments = 150
	fileEvents  = 5000
	fileLog     = 64 << 10
)

// RunFile writes the page of one run as one file that needs no server and asks no network. clean
// goes over everything in it (the JSON as a tree), cleanLine over each line of the log; nil leaves
// all as it is.
func RunFile(out io.Writer, o Options, folder *store.Folder, clean func(tree any) any,
	cleanLine func(string) string) error {
	s := &Server{options: o, plans: make(chan struct{}, 1)}
	data, err := s.runPayload(folder, clean, cleanLine)
	if err != nil {
		return err
	}
	return report.Page{Title: "run " + folder.ID + " · memroom", Body: web.Text("run.html"),
		Modules: []string{"payload.js", "runfile.js"},
		Start: `const data = document.getElementById("data").textContent;
await modules["runfile.js"].showRunFile(await modules["payload.js"].decodeJSON(data));`,
		Data: func(w io.Writer) error {
			_, err := w.Write(data)
			return err
		}}.Write(out)
}

func (s *Server) runPayload(folder *store.Folder, clean func(any) any,
	cleanLine func(string) string) ([]byte, error) {
	ctx := context.Background() // the user waits, and can interrupt
	course := courseOf(folder)
	series, err := course.json(0, 1<<60, filePoints)
	if err != nil {
		return nil, err
	}
	events, _, _ := readEvents(ctx, folder, 0, fileEvents, wanted(""))
	logs := map[string]any{}
	for name, path := range map[string]string{"output": folder.Output(), "errors": folder.Errors()} {
		text, from, _, err := readLog(path, -1, fileLog)
		if err != nil {
			continue
		}
		if cleanLine != nil {
			text = eachOf(text, cleanLine)
		}
		logs[name] = map[string]any{"text": text, "from": from, "next": from}
	}
	reason, _ := s.reason(ctx, folder) // the page is as good without one
	payload := map[string]any{"record": s.record(ctx, folder), "events": events, "logs": logs,
		"explanation": reason, "reports": numbersOf(ctx, folder, course),
		"moments": moments(ctx, folder, course), "series": json.RawMessage(series)}
	data, err := json.Marshal(payload)
	if err != nil || clean == nil {
		return data, err
	}
	var tree any
	reader := json.NewDecoder(bytes.NewReader(data))
	reader.UseNumber()
	if err := reader.Decode(&tree); err != nil {
		return nil, err
	}
	return json.Marshal(clean(tree))
}

func eachOf(text string, do func(string) string) string {
	var b bytes.Buffer
	for line := range bytes.Lines([]byte(text)) {
		b.WriteString(do(string(bytes.TrimRight(line, "\r\n"))))
		b.WriteByte('\n')
	}
	return b.String()
}

// moments are accounts spread over the run, and at what ended it.
func moments(ctx context.Context, folder *store.Folder, c *course) []Moment {
	piece, err := c.samples.Between(0, 1<<60, fileMoments, func(string) bool { return false })
	if err != nil {
		return nil
	}
	at := slices.Clone(piece.At)
	for h := range folder.Events() {
		if (h.Kind == "oom" || h.Kind == "died" || h.Kind == "finding") && len(at) < 2*fileMoments {
			at = append(at, h.AtMS)
		}
	}
	slices.Sort(at)
	run, _ := folder.Run()
	list := []Moment{}
	for _, ms := range slices.Compact(at) {
		m := momentOf(ctx, c, accountsBefore(ctx, folder, ms), run, ms)
		if m.Sample != nil { // the page shows only how many processes there were
			m.Sample = &event.Sample{AtMS: m.Sample.AtMS, Processes: m.Sample.Processes}
		}
		list = append(list, m)
	}
	return list
}
