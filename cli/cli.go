// Package cli is the command line: one file a subcommand, each of the shape flags -> options ->
// call -> print. It is the only package that wires the parts together, and the only one that knows
// exit codes. Only cmd/memroom imports it.
//
// Start at [Main]; the commands are the fields of root.
package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"
)

// Streams are the standard streams of the process. Out belongs to the answer (or to the child of
// `run`), Err to all other messages.
type Streams struct {
	In  io.Reader
	Out io.Writer
	Err io.Writer
}

// root is the whole command line. Fields are in the order of the help page.
type root struct {
	Color string `help:"Colours: ${enum}." enum:"auto,always,never" default:"auto"`

	Plan      planCmd      `cmd:"" group:"Before a run" help:"Predict the memory of a training run before it starts."`
	Check     checkCmd     `cmd:"" group:"Before a run" help:"Hold training commands to a budget of memory, and explain what a change added."`
	Lint      lintCmd      `cmd:"" group:"Before a run" help:"Find the known memory mistakes in training code, by line."`
	Doctor    doctorCmd    `cmd:"" group:"Before a run" help:"What memroom can see on this machine, and what is missing."`
	Calibrate calibrateCmd `cmd:"" group:"Before a run" help:"Measure this machine's card, so that plan's answers for it are its own."`

	Run    runCmd    `cmd:"" group:"Run" help:"Run a training command and watch its memory."`
	Tune   tuneCmd   `cmd:"" group:"Run" help:"Search hyperparameters: trials packed by memory, none killing another."`
	Feed   feedCmd   `cmd:"" group:"Run" help:"Stream data that is larger than memory, within a budget of bytes."`
	Top    topCmd    `cmd:"" group:"Run" help:"Show a run live: memory against its limits, steps, findings."`
	Attach attachCmd `cmd:"" group:"Run" help:"Reconnect to a run: its output, keys, exit code."`

	Explain  explainCmd  `cmd:"" group:"After a run" help:"Why a run died: what ran out, who held it, and what to do, from logs, snapshots or run ids."`
	Runs     runsCmd     `cmd:"" group:"After a run" help:"List runs."`
	Show     showCmd     `cmd:"" group:"After a run" help:"Show the record of one run."`
	Serve    serveCmd    `cmd:"" group:"After a run" help:"Serve a page on this machine: runs live and past, snapshots, plans, metrics."`
	Snapshot snapshotCmd `cmd:"" group:"After a run" help:"What a PyTorch memory snapshot holds: peak, composition, growth, fragmentation."`
	Replay   replayCmd   `cmd:"" group:"After a run" help:"Check a snapshot against the model of the allocator, or replay it under other settings."`
	Report   reportCmd   `cmd:"" group:"After a run" help:"Send the records of runs to a central memroom serve."`
	Rm       rmCmd       `cmd:"" group:"After a run" help:"Delete runs."`
	Forget   forgetCmd   `cmd:"" group:"After a run" help:"Delete the remedies that run --fit has remembered."`

	Completion completionCmd `cmd:"" group:"memroom itself" help:"Print a completion script for bash, zsh or fish."`
	Version    versionCmd    `cmd:"" group:"memroom itself" help:"Print the version and how it was built (--version does too)."`
}

// session is what every command's Run method gets.
type session struct {
	Streams
	ctx   context.Context // see putAway
	ended os.Signal       // what a command was ended by, once it has put everything away
	color bool
	model *kong.Application
	given []givenFlag
}

// givenFlag is a flag of the command line with its value.
type givenFlag struct {
	name          string
	target, value reflect.Value
}

// givenFlags lists what the command line gave, whether or not it equals a default.
func givenFlags(parsed *kong.Context) []givenFlag {
	var list []givenFlag
	for _, p := range parsed.Path {
		if p.Flag != nil && p.Flag.Target.IsValid() {
			value := reflect.New(p.Flag.Target.Type()).Elem()
			value.Set(p.Flag.Target)
			list = append(list, givenFlag{p.Flag.Name, p.Flag.Target, value})
		}
	}
	return list
}

// obey puts back the values of the flags that were given, after a file was read over them.
func (s *session) obey() {
	for _, f := range s.given {
		f.target.Set(f.value)
	}
}

// printJSON writes v to standard output, indented, with a final newline.
func (s *session) printJSON(v any) error {
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return err
	}
	_, err := s.Out.Write(bytes.ToValidUTF8(text.Bytes(), []byte("\uFFFD")))
	return err
}

// note writes a line to Err, apart from the answer.
func (s *session) note(format string, args ...any) { fmt.Fprintf(s.Err, format+"\n", args...) }

// Main runs one command line and returns the exit code.
func Main(ctx context.Context, args []string, streams Streams) (code int) {
	if err := checkAddressSpace(); err != nil {
		return finish(streams, false, err)
	}
	if code, yes := inner(args, streams); yes {
		return code
	}
	if len(args) == 1 && args[0] == estimatesWord {
		return finish(streams, false, estimates(streams))
	}
	out, errs := &safeWriter{out: streams.Out}, &safeWriter{out: streams.Err}
	streams.Out, streams.Err = out, errs
	defer func() {
		out.flush()
		if code == exitOK && out.err != nil && !errors.Is(out.err, syscall.EPIPE) {
			fmt.Fprintf(errs, "memroom: the answer could not be written: %v\n", out.err)
			code = exitNotWritten
		}
		errs.flush()
	}()
	var commands root
	exited := -1
	args, all := withoutHelpAll(args)
	parser, err := kong.New(&commands,
		kong.Name("memroom"),
		kong.Description(description),
		kong.UsageOnError(),
		kong.Writers(streams.Out, streams.Err),
		kong.Exit(func(c int) { exited = c; panic(exitNow{}) }),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: 110}),
		kong.Help(helpPrinter(all)),
		kong.KindMapper(reflect.String, kong.MapperFunc(keepBytes)),
	)
	if err != nil {
		panic(err) // the command structs are wrong: a bug of ours that any test shows
	}
	defer func() { // kong leaves --help by exiting; here that is a return
		if r := recover(); r != nil {
			if _, ok := r.(exitNow); !ok {
				panic(r)
			}
			code = exited
		}
	}()
	args = habits(args)
	parsed, err := parser.Parse(args)
	if moved, again := fileLast(args, commands.Tune.New.Command); err == nil && again {
		parsed, err = parser.Parse(moved)
	}
	if err != nil {
		return finish(streams, wantsJSON(args), usageError(err))
	}
	s := &session{ctx: ctx, Streams: streams, color: useColor(commands.Color, streams.Out),
		model: parser.Model, given: givenFlags(parsed)}
	out.color, errs.color = s.color, s.color
	err = parsed.Run(s)
	if s.ended != nil {
		out.flush()
		errs.flush()
		return dieOf(s.ended)
	}
	return finish(streams, wantsJSON(args), err)
}

// keepBytes takes a word of the command line as it is. kong would send it through JSON, which
// changes file names and arguments that are no UTF-8.
func keepBytes(ctx *kong.DecodeContext, target reflect.Value) error {
	token, err := ctx.Scan.PopValue("string")
	if err != nil {
		return err
	}
	target.SetString(fmt.Sprint(token.Value))
	return nil
}

// habits reads what people type out of habit: nothing, --version, and help in front of a command.
func habits(args []string) []string {
	switch {
	case len(args) == 0:
		return []string{"--help"}
	case args[0] == "--version":
		return append([]string{"version"}, args[1:]...)
	case args[0] == "help":
		return append(slices.Clone(args[1:]), "--help")
	case len(args) == 2 && args[1] == "help":
		if _, err := os.Stat("help"); err != nil {
			return []string{args[0], "--help"}
		}
	}
	return args
}

type exitNow struct{}

const description = `Keeps deep-learning training from running out of memory: watches GPU, host and allocator memory, predicts
and explains running out of it, applies the cure and runs the job again.`

// wantsJSON looks for --json among memroom's own arguments, not the child's.
func wantsJSON(args []string) bool {
	for _, a := range args {
		if a == "--" {
			return false
		}
		if a == "--json" || strings.HasPrefix(a, "--json=") {
			return true
		}
	}
	return false
}

// finish prints the final error, also as JSON if the caller asked for JSON, and returns the exit
// code.
func finish(streams Streams, asJSON bool, err error) int {
	code, message := exitCode(err), ""
	if err != nil {
		message = plainWords(err)
	}
	if message == "" {
		return code
	}
	var parse *kong.ParseError
	if errors.As(err, &parse) {
		message = fmt.Sprintf("%s (%s)", usageProblem(parse), helpFor(parse))
	}
	if asJSON {
		_ = json.NewEncoder(streams.Out).Encode(map[string]any{"error": message, "exit_code": code})
	}
	fmt.Fprintf(streams.Err, "memroom: %s\n", message)
	return code
}

// useColor decides once for the process: flag first, then NO_COLOR and whether anybody looks.
func useColor(flag string, out io.Writer) bool {
	switch flag {
	case "always":
		return true
	case "never":
		return false
	}
	f, ok := fileOf(out)
	return ok && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" && isTerminal(f)
}
