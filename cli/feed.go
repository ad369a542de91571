package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"time"

	"memroom/event"
	"memroom/feed"
	"memroom/feed/convert"
	"memroom/feed/format"
	"memroom/feed/serve"
	"memroom/feed/source"
	"memroom/feed/table"
)

type feedCmd struct {
	Serve   feedServeCmd   `cmd:"" help:"Serve batches of files to training processes, within a budget of bytes."`
	Inspect feedInspectCmd `cmd:"" help:"What files hold: rows, columns and what each becomes, blocks, the shuffle's quality."`
	Index   feedIndexCmd   `cmd:"" help:"Index files now, so that the first stream starts at once."`
	Bench   feedBenchCmd   `cmd:"" help:"Read one epoch and report its speed and memory."`
	Convert feedConvertCmd `cmd:"" help:"Write the rows into another file, within a budget of bytes."`

	ServeStream feedServeStreamCmd `cmd:"" hidden:"" help:"What memroom.Stream starts."`
}

func (feedCmd) Help() string {
	return `Streams data that is larger than memory: shuffled batches within a hard budget of bytes, in an order
that is a function of the seed, the epoch and the position, so that a stream resumes anywhere at once.
Python uses it as memroom.Stream(...), which starts and stops the server by itself. Files: CSV, TSV,
JSON lines, text, .npy, Parquet, Arrow IPC, TFRecord, WebDataset's tar; each may be compressed as a whole
with gzip or zstd. Names may be folders, globs (** for any folders), numbers in braces
(train-{000..127}.tar), http:// addresses or s3://bucket/key.`
}

// feedFiles are the flags that say which data.
type feedFiles struct {
	Files     []string          `arg:"" name:"file" help:"Files, folders, globs, http:// or s3:// addresses."`
	Columns   []string          `name:"column" sep:"none" help:"A column to read, in this order; may be repeated. All otherwise." placeholder:"NAME"`
	Format    string            `help:"Format, where the name does not tell it." placeholder:"NAME"`
	Delimiter string            `help:"What separates the cells of a CSV file." placeholder:"CHAR"`
	NoHeader  bool              `help:"The first line of a CSV file is data."`
	Types     map[string]string `help:"Types of CSV and JSON columns." placeholder:"NAME=TYPE" mapsep:","`
	SkipBad   bool              `help:"Skip and count rows that cannot be read, instead of failing."`
}

func (f *feedFiles) options() format.Options {
	o := format.Options{Format: f.Format, Delimiter: f.Delimiter, NoHeader: f.NoHeader,
		Types: f.Types, Skip: f.SkipBad}
	if f.Delimiter == `\t` {
		o.Delimiter = "\t"
	}
	return o
}

func (f *feedFiles) open(s *session) (*feed.Dataset, error) {
	d, err := feed.Open(f.Files, f.Columns, f.options(), feedProgress(s))
	if err != nil {
		return nil, feedFailed(err)
	}
	return d, nil
}

// feedProgress prints the file that is being indexed, on a terminal and if it takes long.
func feedProgress(s *session) func(string) {
	if f, ok := fileOf(s.Err); !ok || !isTerminal(f) {
		return nil
	}
	last := time.Now()
	return func(text string) {
		if time.Since(last) > time.Second {
			last = time.Now()
			s.note("%s", text)
		}
	}
}

type feedServeCmd struct {
	feedFiles
	Budget   event.Bytes `default:"256MiB" help:"Memory for everything: batches, rows, reading, the server itself."`
	Socket   string      `required:"" placeholder:"PATH" help:"Unix socket to listen on; @NAME is one without a file."`
	ExitIdle bool        `help:"End when the last consumer has gone."`
	JSON     bool        `name:"json" help:"Print the socket as JSON, once it answers."`
}

func (feedServeCmd) examples() []example { return nil }

func (c *feedServeCmd) Run(s *session) error {
	listener, err := net.Listen("unix", c.Socket)
	if err != nil {
		return feedFailed(err)
	}
	if c.JSON {
		if err := s.printJSON(map[string]any{"socket": c.Socket, "budget": c.Budget}); err != nil {
			return err
		}
	}
	return serveFeed(s, serve.Config{Sources: c.Files, Columns: c.Columns, Options: c.options(),
		Budget: c.Budget, ExitIdle: c.ExitIdle}, listener)
}

// feedFailed is the end of a command. Addresses in it are shown without their secrets.
func feedFailed(err error) error {
	return exitWith(exitUsage, "feed: %s", source.ShownText(plainWords(err)))
}

func serveFeed(s *session, config serve.Config, listener net.Listener) error {
	if config.Budget < 32<<20 {
		listener.Close()
		return exitWith(exitUsage, "feed: a budget of %s is too small: the server itself takes about "+
			"24 MiB; give 64MiB or more", config.Budget)
	}
	ctx, stop := signal.NotifyContext(s.ctx, endSignals()...)
	defer stop()
	defer listener.Close()
	config.Log, config.Host = s.note, hostPressure("/proc")
	if err := serve.Serve(ctx, config, listener); err != nil {
		return feedFailed(err)
	}
	return nil
}

// feedServeStreamCmd serves one memroom.Stream. What to serve comes over standard input, because
// addresses may hold secrets and every user can read arguments. The socket is one that the client
// has made and this process has inherited.
type feedServeStreamCmd struct{}

// feedOrder is what a client writes to standard input.
type feedOrder struct {
	Sources  [][]byte       `json:"sources"` // names of files need not be UTF-8
	Columns  []string       `json:"columns"`
	Options  format.Options `json:"options"`
	Budget   event.Bytes    `json:"budget"`
	Listener uintptr        `json:"listener"` // the descriptor
	Socket   string         `json:"socket"`   // its path, to be removed at the end
}

func (feedServeStreamCmd) examples() []example { return nil }

func (c *feedServeStreamCmd) Run(s *session) error {
	var order feedOrder
	if err := json.NewDecoder(s.In).Decode(&order); err != nil {
		return exitWith(exitUsage, "feed: this command is started by memroom.Stream, which says on "+
			"standard input what to serve: use `memroom feed serve` (%w)", err)
	}
	inherited := os.NewFile(order.Listener, "listener")
	if inherited == nil {
		return exitWith(exitUsage, "feed: descriptor %d is not a socket", order.Listener)
	}
	listener, err := net.FileListener(inherited)
	inherited.Close()
	if err != nil {
		return exitWith(exitUsage, "feed: the inherited socket cannot be used: %w", err)
	}
	sources := make([]string, len(order.Sources))
	for i, name := range order.Sources {
		sources[i] = string(name)
	}
	return serveFeed(s, serve.Config{Sources: sources, Columns: order.Columns,
		Options: order.Options, Budget: order.Budget, ExitIdle: true},
		&namedListener{listener, order.Socket})
}

// namedListener removes the socket's name while it still listens: whoever comes later makes a
// socket and a server of its own.
type namedListener struct {
	net.Listener
	path string
}

func (l *namedListener) Close() error {
	os.Remove(l.path)
	return l.Listener.Close()
}

type feedInspectCmd struct {
	feedFiles
	Window event.Bytes `default:"32MiB" help:"The shuffle window; this one is that of a budget of 256 MiB."`
	JSON   bool        `name:"json" help:"Print JSON."`
}

func (feedInspectCmd) examples() []example {
	return []example{{line: "memroom feed inspect examples/files/people.csv"},
		{line: "memroom feed inspect --json examples/files/people.csv"}}
}

// feedInspection is the JSON answer.
type feedInspection struct {
	Files   []string       `json:"files"`
	Rows    int64          `json:"rows"`
	Columns []table.Column `json:"columns"`
	Decoded event.Bytes    `json:"decoded_bytes"`
	Skipped int64          `json:"skipped_rows"`
	Windows int            `json:"windows"`
	Blocks  int            `json:"blocks"`
	Quality feed.Quality   `json:"shuffle_quality"`
}

func (c *feedInspectCmd) Run(s *session) error {
	d, err := c.open(s)
	if err != nil {
		return err
	}
	defer d.Close()
	spec := feed.Spec{Shuffle: true, Seed: 1, Window: int64(c.Window), Batch: 1}
	epoch := d.Epoch(spec, 0)
	found := feedInspection{Files: d.Files, Rows: d.Rows, Columns: d.Columns,
		Decoded: event.Bytes(d.DecodedBytes()), Skipped: d.Skipped, Windows: len(epoch.Windows),
		Blocks: d.Blocks(), Quality: feed.MeasureQuality(d, epoch)}
	if c.JSON {
		return s.printJSON(found)
	}
	fmt.Fprintf(s.Out, "%s in %s, about %s decoded\n", event.Count(found.Rows, "row"),
		event.Count(len(found.Files), "file"), found.Decoded)
	if found.Skipped > 0 {
		fmt.Fprintf(s.Out, "%s skipped\n", event.Count(found.Skipped, "bad row"))
	}
	fmt.Fprintf(s.Out, "%-24s %-22s %s\n", "column", "in NumPy", "in the file")
	for _, column := range found.Columns {
		fmt.Fprintf(s.Out, "%-24s %-22s %s\n", column.Name, numpyName(column), column.From)
	}
	if found.Rows == 0 {
		return nil
	}
	fmt.Fprintf(s.Out, "shuffle: %s in %s of %s; %s\n", event.Count(found.Blocks, "block"),
		event.Count(found.Windows, "window"), c.Window, found.Quality)
	return nil
}

func numpyName(c table.Column) string {
	switch c.Kind {
	case table.Text:
		return "object (str)"
	case table.Binary:
		return "object (bytes)"
	case table.List:
		return "object (" + c.DType + "[])"
	}
	if len(c.Shape) > 0 {
		return c.DType + strings.ReplaceAll(fmt.Sprint(c.Shape), " ", ",")
	}
	return c.DType
}

type feedIndexCmd struct {
	feedFiles
	JSON bool `name:"json" help:"Print JSON."`
}

func (feedIndexCmd) examples() []example { return nil }

func (c *feedIndexCmd) Run(s *session) error {
	start := time.Now()
	d, err := c.open(s)
	if err != nil {
		return err
	}
	defer d.Close()
	if c.JSON {
		return s.printJSON(map[string]any{"files": d.Files, "rows": d.Rows, "blocks": d.Blocks(),
			"seconds": time.Since(start).Seconds()})
	}
	fmt.Fprintf(s.Out, "%s in %s indexed in %.1f s\n", event.Count(d.Rows, "row"),
		event.Count(len(d.Files), "file"), time.Since(start).Seconds())
	return nil
}

func windowOf(window, budget event.Bytes) int64 {
	if window > 0 {
		return int64(window)
	}
	return serve.WindowFor(budget)
}

type feedBenchCmd struct {
	feedFiles
	Budget  event.Bytes `default:"256MiB" help:"Memory for everything."`
	Batch   int         `default:"1024" help:"Rows of a batch."`
	Shuffle bool        `default:"true" negatable:"" help:"Mix the rows."`
	Window  event.Bytes `help:"The shuffle window; by the budget otherwise."`
	JSON    bool        `name:"json" help:"Print JSON."`
}

func (feedBenchCmd) examples() []example {
	return []example{{line: "memroom feed bench examples/files/people.csv --batch 2"}}
}

// feedBenchmark is the JSON answer.
type feedBenchmark struct {
	Rows    int64        `json:"rows"`
	Bytes   event.Bytes  `json:"batch_bytes"`
	Index   float64      `json:"index_seconds"`
	Seconds float64      `json:"seconds"`
	First   float64      `json:"first_batch_seconds"`
	Report  serve.Report `json:"report"`
}

func (c *feedBenchCmd) Run(s *session) error {
	defer s.putAway()()
	start := time.Now()
	o := c.options()
	spec := feed.Spec{Shuffle: c.Shuffle, Seed: 1, Window: windowOf(c.Window, c.Budget), Batch: c.Batch}
	var found feedBenchmark
	var err error
	found.Report, err = serve.Epoch(s.ctx, serve.Config{Sources: c.Files, Columns: c.Columns,
		Options: o, Budget: c.Budget}, spec, func(*feed.Dataset) error {
		found.Index, start = time.Since(start).Seconds(), time.Now()
		return nil
	}, func(rows int, _ []table.Span, data []byte) error {
		if found.Rows == 0 {
			found.First = time.Since(start).Seconds()
		}
		found.Rows += int64(rows)
		found.Bytes += event.Bytes(len(data))
		return nil
	})
	if err != nil {
		return feedFailed(err)
	}
	found.Seconds = time.Since(start).Seconds()
	if c.JSON {
		return s.printJSON(found)
	}
	fmt.Fprintf(s.Out, "%s, %s of batches in %.2f s (%s/s); index %.2f s, first batch after "+
		"%.3f s\n", event.Count(found.Rows, "row"), found.Bytes, found.Seconds,
		event.Bytes(float64(found.Bytes)/found.Seconds), found.Index, found.First)
	fmt.Fprintf(s.Out, "peak %s of a budget of %s (resident with the program's own pages: %s)\n",
		found.Report.Peak, found.Report.Budget, found.Report.PeakRSS)
	return nil
}

type feedConvertCmd struct {
	feedFiles
	To      string      `required:"" placeholder:"FILE" help:"The file to write: .arrow, .parquet, .csv, .tsv, .jsonl or .npy."`
	Budget  event.Bytes `default:"256MiB" help:"Memory for everything."`
	Batch   int         `default:"8192" help:"Rows of a record batch of Arrow."`
	Shuffle bool        `help:"Mix the rows, as a stream with the same seed and window does."`
	Seed    uint64      `default:"1" help:"Of the shuffle."`
	Window  event.Bytes `help:"The shuffle window; by the budget otherwise."`
	JSON    bool        `name:"json" help:"Print JSON."`
}

func (feedConvertCmd) examples() []example {
	return []example{{line: "memroom feed convert examples/files/people.csv --to people.arrow"}}
}

// feedConversion is the JSON answer.
type feedConversion struct {
	File    string       `json:"file"`
	Rows    int64        `json:"rows"`
	Bytes   event.Bytes  `json:"bytes"`
	Seconds float64      `json:"seconds"`
	Report  serve.Report `json:"report"`
}

func (c *feedConvertCmd) Run(s *session) error {
	defer s.putAway()()
	o := c.options()
	if c.Batch < 1 {
		return exitWith(exitUsage, "feed: --batch must be at least 1")
	}
	start := time.Now()
	found := feedConversion{File: c.To}
	var err error
	if found.Report, err = c.write(s, o, &found); err != nil {
		return feedFailed(err)
	}
	found.Seconds = time.Since(start).Seconds()
	if info, err := os.Stat(c.To); err == nil {
		found.Bytes = event.Bytes(info.Size())
	}
	if c.JSON {
		return s.printJSON(found)
	}
	fmt.Fprintf(s.Out, "%s: %s, %s in %.1f s; peak %s of a budget of %s\n", found.File,
		event.Count(found.Rows, "row"), found.Bytes, found.Seconds, found.Report.Peak, found.Report.Budget)
	return nil
}

// notAnInput refuses to put the result in the place of a file that is read: rows that were not
// chosen would be lost.
func notAnInput(to string, files []string) error {
	target, err := os.Stat(to)
	if err != nil {
		return nil // it is not there yet
	}
	for _, name := range files {
		if info, err := os.Stat(name); err == nil && os.SameFile(info, target) {
			return fmt.Errorf("%s is one of the files that are read: write to another name", to)
		}
	}
	return nil
}

// write writes a temporary file in the same folder and renames it when it is whole.
func (c *feedConvertCmd) write(s *session, o format.Options, found *feedConversion) (
	serve.Report, error) {
	out, err := os.CreateTemp(filepath.Dir(c.To), ".memroom-convert-")
	if err != nil {
		return serve.Report{}, err
	}
	defer os.Remove(out.Name())
	defer out.Close()
	progress, total := feedProgress(s), int64(0)
	var columns []table.Column
	var w convert.Writer
	spec := feed.Spec{Shuffle: c.Shuffle, Seed: c.Seed, Window: windowOf(c.Window, c.Budget),
		Batch: c.Batch}
	report, err := serve.Epoch(s.ctx, serve.Config{Sources: c.Files, Columns: c.Columns, Options: o,
		Budget: c.Budget}, spec, func(d *feed.Dataset) error {
		columns, total = d.Columns, d.Rows
		if err := notAnInput(c.To, d.Files); err != nil {
			return err
		}
		if len(columns) == 0 {
			return errors.New("the files have no columns, so there is nothing to write: " +
				"look at them with `memroom feed inspect`")
		}
		w, err = convert.New(c.To, out, columns, d.Rows)
		return err
	}, func(rows int, spans []table.Span, data []byte) error {
		found.Rows += int64(rows)
		if progress != nil {
			progress(fmt.Sprintf("%d of %s", found.Rows, event.Count(total, "row")))
		}
		return w.Write(convert.Batch{Columns: columns, Rows: rows, Spans: spans, Data: data})
	})
	if err == nil {
		err = w.Close()
	}
	if err == nil {
		err = out.Chmod(0o644)
	}
	if closed := out.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = os.Rename(out.Name(), c.To)
	}
	return report, err
}
