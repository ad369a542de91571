package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/term"

	"memroom/diagnose"
	"memroom/event"
	"memroom/report"
	"memroom/store"
	"memroom/supervise"
)

type topCmd struct {
	Record string        `arg:"" optional:"" name:"run" help:"ID, its first or last characters, or name; without it, the last run."`
	Every  time.Duration `help:"Time between two updates." default:"1s"`
	Once   bool          `help:"Print one line and exit."`
	JSON   bool          `name:"json" help:"Print JSON, one object per line."`
}

// shortestEvery keeps a slip from flooding a terminal or a disk.
const shortestEvery = 100 * time.Millisecond

// topLine is a line of --json.
type topLine struct {
	ID        string                      `json:"id"`
	Status    store.Status                `json:"status"`
	HostLimit event.Bytes                 `json:"host_limit,omitempty"`
	Sample    event.Sample                `json:"sample"`
	Step      *event.RankedStep           `json:"step,omitempty"`
	StepRate  float64                     `json:"steps_per_second,omitempty"`
	Findings  []event.Finding             `json:"findings"`
	Forecasts []diagnose.Prediction       `json:"forecasts"`
	Host      *diagnose.Account           `json:"host_account,omitempty"`
	Cards     map[string]diagnose.Account `json:"accounts,omitempty"`
}

func (topCmd) examples() []example {
	return []example{{line: "memroom run -- sleep 0.5 && memroom top --once"},
		{line: "memroom run -- sleep 0.5 && memroom top --once --json"}}
}

// Run follows the files of the run: it needs nothing of the processes that write them.
func (c *topCmd) Run(s *session) error {
	if c.Every < shortestEvery {
		return exitWith(exitUsage, "--every %v is too short; memroom takes four readings a second",
			c.Every)
	}
	kept, err := openStore()
	if err != nil {
		return err
	}
	folder, err := kept.Find(c.Record)
	if err != nil {
		return err
	}
	f := newFollower(folder)
	if f.update(); c.Once {
		return c.print(s, f)
	}
	out, terminal := fileOf(s.Out)
	if terminal = terminal && isTerminal(out) && !c.JSON; !terminal {
		return c.lines(s, f)
	}
	keys := newKeys(s)
	defer keys.close()
	screen := newPicture(s, out)
	defer screen.close()
	for {
		f.update()
		screen.draw(f, nil)
		if f.over() || keys.quit(c.Every) {
			return nil
		}
	}
}

// lines prints a line from time to time until the run is over.
func (c *topCmd) lines(s *session, f *follower) error {
	for {
		f.update()
		over := f.over()
		if c.print(s, f) != nil || over { // or nobody reads any more
			return nil
		}
		time.Sleep(c.Every)
	}
}

// print writes the state of the run, in words or as JSON.
func (c *topCmd) print(s *session, f *follower) error {
	if !c.JSON {
		_, err := fmt.Fprintln(s.Out, f.line())
		return err
	}
	line := topLine{ID: f.folder.ID, Status: f.folder.Row().Status, HostLimit: f.hostWall(),
		Sample: f.last, StepRate: f.stepRate, Findings: f.findings,
		Forecasts: f.now.Forecasts, Host: f.now.Host, Cards: f.now.Accounts}
	if f.step.Step.Step > 0 {
		line.Step = &f.step
	}
	if line.Findings == nil {
		line.Findings = []event.Finding{}
	}
	if line.Forecasts == nil {
		line.Forecasts = []diagnose.Prediction{}
	}
	return json.NewEncoder(s.Out).Encode(line)
}

// follower reads what is appended to a run's files.
type follower struct {
	folder   *store.Folder
	run      event.Run
	samples  *tail
	steps    *tail
	events   *tail
	history  []event.Sample // the last ones, for the graph
	last     event.Sample
	peaks    event.Peaks
	step     event.RankedStep
	stepRate float64
	findings []event.Finding
	notes    []string
	now      supervise.Now
}

// historyKept is how many readings the graph can show: half an hour at four a second, thinned as it
// grows.
const historyKept = 7200

func newFollower(folder *store.Folder) *follower {
	f := &follower{folder: folder, samples: newTail(folder.Path("samples.jsonl")),
		steps:  newTail(folder.Path("steps.jsonl")),
		events: newTail(folder.Path("events.jsonl"))}
	f.run, _ = folder.Run()
	return f
}

func (f *follower) over() bool { return !f.folder.Running() }

// update takes what was written since the last time.
func (f *follower) update() {
	eachLine(f.samples, func(s event.Sample) {
		f.last = s
		f.history = append(f.history, s)
		if len(f.history) > historyKept {
			f.history = slices.Delete(f.history, 0, historyKept/4)
		}
		f.peaks.Unreclaimable = max(f.peaks.Unreclaimable, s.Unreclaimable())
	})
	eachLine(f.steps, func(s event.RankedStep) {
		if s.Duration > 0 {
			f.stepRate = float64(time.Second) / float64(s.Duration)
		}
		f.step = s
	})
	f.now = supervise.Now{}
	_ = f.folder.Progress(&f.now)
	eachLine(f.events, func(h event.Happened) {
		if h.Finding != nil {
			f.findings = append(f.findings, *h.Finding)
		} else if h.Kind == "pressure" || h.Kind == "action" {
			f.notes = append(f.notes, h.Text)
		}
	})
}

// forecasts returns a line for each trend, with the time at which memory will run out.
func (f *follower) forecasts() []string {
	var lines []string
	for _, p := range f.now.Forecasts {
		lines = append(lines, fmt.Sprintf("%s: out of memory in about %s, at step ~%d (%d to %d)",
			p.What, report.Span(p.In.Seconds()), p.Step, p.LowStep, p.HighStep))
	}
	return lines
}

// hostWall is the limit for host memory, as the last reading knows it.
func (f *follower) hostWall() event.Bytes { return wallOf(f.run, f.last) }

func wallOf(run event.Run, s event.Sample) event.Bytes {
	wall := run.HostMem
	if s.Cgroup != nil && s.Cgroup.Limit > 0 && (wall == 0 || s.Cgroup.Limit < wall) {
		wall = s.Cgroup.Limit
	}
	if s.Machine != nil && (wall == 0 || s.Machine.Total < wall) {
		wall = s.Machine.Total
	}
	return wall
}

// line is the state of the run in one line.
func (f *follower) line() string {
	parts := []string{fmt.Sprintf("%s  %s", f.folder.ID, report.Span(float64(f.last.AtMS)/1000))}
	parts = append(parts, fmt.Sprintf("host %s (%s)", f.last.Unreclaimable().Of(f.hostWall()),
		event.Count(f.last.Processes, "process")))
	for _, d := range f.last.Devices {
		parts = append(parts, fmt.Sprintf("%s %s, %d %% busy", clip(d.Name, 80),
			d.Used.Of(d.Total), d.Utilisation))
	}
	if f.step.Step.Step > 0 {
		parts = append(parts, fmt.Sprintf("step %d, %.3g/s", f.step.Step.Step, f.stepRate))
	}
	parts = append(parts, f.forecasts()...)
	if n := len(f.findings); n > 0 {
		parts = append(parts, "found: "+clip(f.findings[n-1].Title, anyLength))
	}
	if f.over() {
		row := f.folder.Row()
		parts = append(parts, row.State())
	}
	return strings.Join(parts, "  ")
}

// tail reads the lines that are appended to a file.
type tail struct {
	path string
	at   int64
	part []byte // a line that is not finished yet
}

func newTail(path string) *tail { return &tail{path: path} }

// next returns what has come since the last time, in whole lines.
func (t *tail) next() []byte {
	file, err := os.Open(t.path)
	if err != nil {
		return nil
	}
	defer file.Close()
	if _, err := file.Seek(t.at, io.SeekStart); err != nil {
		return nil
	}
	const most = 32 << 20 // a run of days is read in pieces
	data, _ := io.ReadAll(io.LimitReader(file, most))
	t.at += int64(len(data))
	data = append(t.part, data...)
	end := strings.LastIndexByte(string(data), '\n') + 1
	t.part = slices.Clone(data[end:])
	return data[:end]
}

// newKeys reads single keys where stdin is a terminal.
func newKeys(s *session) *keys {
	k := &keys{pressed: make(chan byte, 8)}
	in, ok := fileOf(s.In)
	if !ok || !isTerminal(in) {
		return k
	}
	was, err := term.MakeRaw(int(in.Fd()))
	if err != nil {
		return k
	}
	k.restore = func() { _ = term.Restore(int(in.Fd()), was) }
	go func() {
		one := make([]byte, 1)
		for {
			if n, err := in.Read(one); n == 0 || err != nil {
				return
			}
			k.pressed <- one[0]
		}
	}()
	return k
}

type keys struct {
	pressed chan byte
	restore func()
}

func (k *keys) close() {
	if k.restore != nil {
		k.restore()
	}
}

// quit waits and reports whether the user wants to leave: q, Escape, Ctrl-C or Ctrl-D.
func (k *keys) quit(wait time.Duration) bool {
	key, ok := k.next(wait)
	return ok && strings.IndexByte("qQ\x1b\x03\x04", key) >= 0
}

func (k *keys) next(wait time.Duration) (byte, bool) {
	select {
	case key := <-k.pressed:
		return key, true
	case <-time.After(wait):
		return 0, false
	}
}
