package cli

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"memroom/event"
	"memroom/fit/driver"
	"memroom/probe"
	"memroom/report"
	"memroom/store"
	"memroom/supervise"
)

// Run is the front end of a run.
func (c *runCmd) Run(s *session) error {
	if len(c.Command) > 0 && strings.HasPrefix(c.Command[0], "-") && c.Command[0] != "--" {
		return exitWith(exitUsage, "unknown flag %s%s (the command comes after --). See `memroom run "+
			"--help`", c.Command[0], event.DidYouMean(flagName(c.Command[0]), commandFlags(s.model, "run")))
	}
	command := withoutDashes(c.Command)
	if len(command) == 0 {
		return exitWith(exitUsage, "no command: write memroom run -- COMMAND ...")
	}
	if err := c.check(); err != nil {
		return err
	}
	if err := checkOnPressure(c.OnPressure); err != nil {
		return err
	}
	if c.DryRun {
		return c.dryRun(s, command)
	}
	noteNoCard(s, c.GPUMem)
	path, err := findExecutable(command[0])
	if err != nil {
		return err
	}
	in, out, errs, err := files(s)
	if err != nil {
		return err
	}
	c.copies = c.wantedCopies()
	for _, w := range c.copies {
		if err := w.check(); err != nil {
			return err
		}
	}
	if c.Relay != "" {
		return c.relayed(s, out, command, path)
	}
	if _, err := os.Stat("/proc/self/exe"); err != nil {
		return c.alone(s, command, path)
	}
	r, err := c.prepare(s, command)
	if err != nil {
		return exitWith(exitNotStarted, "%w", err)
	}
	launch := supervise.Launch{Attempt: 1, Path: path, Args: r.args, Command: command, Env: r.env,
		Dir:       r.run.Dir,
		HostLimit: c.HostMem,
		Streams:   supervise.PlanStreams(in, out, errs),
		Monitor:   []string{"memroom", monitorWord, r.folder.Dir}, Settings: r.spec,
		Scratch: []byte(r.scratch), Policy: c.fitFlags.wanted()}
	if c.Detach || c.View {
		launch.Streams = supervise.Streams{In: supervise.Null, Out: supervise.Pipe,
			Err: supervise.Pipe, Merged: true}
		in = nil
	}
	link, err := supervise.StartKeeper([]string{"memroom", keeperWord, r.folder.Dir}, os.Environ(),
		in)
	if err != nil {
		_ = os.Remove(r.scratch)
		return exitWith(exitNotStarted, "%w", err)
	}
	front := &supervise.Front{Files: runFiles(r.folder), In: in, Out: out, Err: errs}
	front.Note = func(text string) { besideOutput(s, front, text) }
	front.Found = func(f event.Finding) { c.found(s, front, f) }
	if err := front.Join(link); err != nil {
		return exitWith(exitNotStarted, "%w", err)
	}
	defer front.Close()
	if err := front.Launch(launch); err != nil {
		return exitWith(exitNotStarted, "%w", err)
	}
	sending := c.startReporter(s, r.folder)
	defer sending.wait(s)
	if c.Detach {
		sending.detach()
		defer tidy(s, r.home)
		return leave(s, front, r.folder.ID)
	}
	if c.View {
		defer tidy(s, r.home)
		return c.view(s, front, r.folder)
	}
	state, err := front.Run()
	if err == nil && state.Exit != nil && state.Exit.Signal == "" {
		defer tidy(s, r.home) // whoever interrupted the command wants to leave
	}
	return c.conclude(s, front, r.folder, state, err)
}

// alone runs the command without us where there is no /proc: nothing could be read about it. What
// was asked of memroom beyond watching is not left out in silence.
func (c *runCmd) alone(s *session, command []string, path string) error {
	const why = "there is no /proc here, by which memroom sees processes: mount it (mount -t proc " +
		"proc /proc)"
	if c.fitFlags.wanted() || c.HostMem > 0 || c.GPUMem > 0 || c.Detach || c.View {
		return exitWith(exitNotStarted, why+", or leave out the flags that need it")
	}
	s.note("memroom: " + why + ". The command runs without memroom")
	err := syscall.Exec(path, command, os.Environ())
	return exitWith(exitNotStarted, "%s cannot be started: %w", path, err)
}

// leave prints the ID of a run that goes on without us, once its command runs.
func leave(s *session, front *supervise.Front, id string) error {
	state, err := front.Started()
	if err != nil {
		return exitWith(exitNotStarted, "%w", err)
	}
	if state.Exit != nil && state.Exit.StartError != "" {
		return exitWith(state.Exit.Code, "%s", state.Exit.StartError)
	}
	fmt.Fprintln(s.Out, id)
	return nil
}

// found prints a finding while the command runs. On a terminal it would tear the command's
// progress bar: there the summary and `memroom top` show it, and only what will not get better by
// itself is said at once.
func (c *runCmd) found(s *session, front *supervise.Front, f event.Finding) {
	errs, ok := fileOf(s.Err)
	if c.Quiet || !ok || isTerminal(errs) && (f.Severity != event.SeverityError || c.View) {
		return
	}
	besideOutput(s, front, f.Title)
}

// besideOutput writes a line of ours while the command writes too, perhaps a progress bar to a
// terminal that is raw.
func besideOutput(s *session, front *supervise.Front, text string) {
	if front.Raw() {
		s.note("\r\nmemroom: %s\r", text)
		return
	}
	s.note("memroom: %s", text)
}

// checkOnPressure refuses a word in capitals that is neither a signal nor a program: a misspelt
// signal would be found out at the moment it is needed. Everything else is for the shell to judge.
func checkOnPressure(action string) error {
	shouted := action != "" && strings.Trim(action, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789") == ""
	if !shouted || supervise.SignalNumber(action) != 0 {
		return nil
	}
	if _, err := exec.LookPath(action); err == nil {
		return nil
	}
	return exitWith(exitUsage,
		"--on-pressure %s: neither a signal (USR1, TERM) nor a command that is found: name a signal, "+
			"or give the path of a program", action)
}

// findExecutable returns the path of a program, or the exit code that a shell would give.
func findExecutable(name string) (string, error) {
	path, err := exec.LookPath(name)
	switch {
	case err == nil || errors.Is(err, exec.ErrDot):
		return path, nil
	case isScript(name):
		return "", exitWith(exitNotExecutable, "%s is a script, not a program: write memroom run -- python %s",
			name, name)
	case isDirectory(name):
		return "", exitWith(exitNotExecutable, "%s is a folder: name a program, as in memroom run -- "+
			"python train.py", name)
	case errors.Is(err, fs.ErrPermission):
		return "", exitWith(exitNotExecutable, "run %s: not executable: name a program, as in "+
			"python %s, or make the file one with chmod +x", name, name)
	case isFile(name): // a shell does not look here either
		return "", exitWith(exitNotFound, "run %s: command not found; the file in this folder is ./%s",
			name, name)
	case strings.HasSuffix(name, ".py"):
		return "", &exitError{exitNotFound, &fs.PathError{Op: "run", Path: name, Err: fs.ErrNotExist}}
	case errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist):
		meant := event.DidYouMean(name, []string{"python", "python3", "torchrun", "accelerate",
			"deepspeed"})
		return "", exitWith(exitNotFound, "run %s: command not found%s", name, cmp.Or(meant,
			": is it spelt right, and is the environment active that holds it?"))
	}
	return "", exitWith(exitNotExecutable, "run %s: %w", name, err)
}

func isDirectory(name string) bool {
	info, err := os.Stat(name)
	return err == nil && info.IsDir()
}

func isFile(name string) bool {
	info, err := os.Stat(name)
	return err == nil && info.Mode().IsRegular()
}

// isScript reports whether a name is that of a Python file that is no program by itself.
func isScript(name string) bool { return strings.HasSuffix(name, ".py") && isFile(name) }

// files returns the standard streams as files: the command's streams are decided by what ours are.
func files(s *session) (in, out, errs *os.File, err error) {
	in, ok1 := s.In.(*os.File)
	out, ok2 := fileOf(s.Out)
	errs, ok3 := fileOf(s.Err)
	if !ok1 || !ok2 || !ok3 {
		return nil, nil, nil, exitWith(exitNotStarted, "run needs a terminal, files or pipes "+
			"as standard input, output and error output")
	}
	return in, out, errs, nil
}

// prepared is a run whose folder exists and whose command has not started.
type prepared struct {
	home    *store.Store
	folder  *store.Folder
	run     event.Run
	env     []string
	spec    []byte   // for the monitor
	scratch string   // folder for sockets; empty: none
	args    []string // of the first attempt
}

// newFolder makes the run's folder: in the home that a study has, or where one can be made.
func (c *runCmd) newFolder(s *session) (*store.Store, *store.Folder, error) {
	if c.home == nil {
		return newFolder(s, time.Now())
	}
	folder, err := c.home.Create(time.Now())
	return c.home, folder, err
}

// prepare makes the run's folder and the command's environment.
func (c *runCmd) prepare(s *session, command []string) (*prepared, error) {
	home, folder, err := c.newFolder(s)
	if err != nil {
		return nil, err
	}
	r := &prepared{home: home, folder: folder, run: c.describe(folder.ID, command), args: command}
	if err := folder.SaveRun(r.run); err != nil {
		if c.home != nil {
			return nil, err
		}
		s.note("memroom: the record is incomplete: %v", err)
	}
	socket := c.installProbe(s, home, r)
	fitting, err := c.prepareFit(s, home, r, command)
	if err != nil {
		return nil, err
	}
	spec := monitorSpec{HostMem: c.HostMem, Grace: c.Grace, OnPressure: []byte(c.OnPressure),
		PressureAt: c.PressureAt,
		Report:     []byte(absolute(c.JSON)), Verdict: []byte(absolute(c.Verdict)),
		Socket: []byte(socket), Fit: fitting}
	r.spec, err = json.Marshal(spec)
	return r, err
}

// describe is the run as it is kept.
func (c *runCmd) describe(id string, command []string) event.Run {
	dir, _ := os.Getwd()
	host, _ := os.Hostname()
	run := event.Run{ID: id, Name: c.Name, Tags: c.Tag, Command: store.MaskArguments(command),
		Dir: dir, Host: host, Group: c.Group,
		NodeRank: c.NodeRank, Env: store.KeptEnvironment(os.Environ()), Started: time.Now(),
		Version: readVersion().Version,
		HostMem: c.HostMem, GPUMem: c.GPUMem}
	if u, err := user.Current(); err == nil {
		run.User = u.Username
	}
	return run
}

// installProbe puts the probe into the command's environment. Where that fails the meters go on
// without it.
func (c *runCmd) installProbe(s *session, home *store.Store, r *prepared) (socket string) {
	environ := c.environ
	if environ == nil {
		environ = os.Environ()
	}
	r.env = environ
	if !c.Probe || os.Getenv("MEMROOM_OFF") == "1" {
		return ""
	}
	dir, err := probe.Install(filepath.Join(home.Home, "probe"))
	if err != nil {
		s.note("memroom: %v; the run is watched from outside only", err)
		return ""
	}
	socket = r.probeSocket()
	_ = os.Mkdir(r.folder.Dumps(), 0o700)
	r.env = probe.Setup{Dir: dir, Socket: socket, Run: r.folder.ID, Dumps: r.folder.Dumps(),
		GPUMem: c.GPUMem}.Environ(environ)
	return socket
}

// probeSocket is a path short enough for a socket's address: in the run's folder, or in a private
// one that the keeper removes.
func (r *prepared) probeSocket() string {
	const longest = 100 // an address holds 107 bytes
	if path := r.folder.Path("probe.sock"); len(path) <= longest {
		return path
	}
	dir, err := supervise.MakeScratch()
	if err != nil {
		return ""
	}
	r.scratch = dir
	return filepath.Join(dir, "probe.sock")
}

// endUnknown is said where memroom's own process was killed before it could write the end down.
const endUnknown = "memroom's watching process is gone, and how the command ended " +
	"was not recorded; `memroom show %s` has what was recorded before"

// conclude prints the summary and returns the command's exit code.
func (c *runCmd) conclude(s *session, front *supervise.Front, folder *store.Folder,
	state supervise.State, failure error) error {
	if failure != nil {
		exit, err := folder.Exit()
		if err != nil {
			if words, _, yes := orphanOf(folder); yes {
				return exitWith(exitNotStarted, "run %s: %s", folder.ID, words)
			}
			return exitWith(exitNotStarted, "run %s: %w", folder.ID, failure)
		}
		return exitQuietly(exit.Code)
	}
	if state.Exit == nil {
		return exitWith(exitNotStarted, "run %s: "+endUnknown, folder.ID, folder.ID)
	}
	if state.Exit.StartError != "" {
		return exitWith(state.Exit.Code, "%s", state.Exit.StartError)
	}
	switch end, err := endOf(folder); {
	case err != nil || c.Quiet:
	case c.wantsScreen(s, end):
		report.RunEnd(s.Err, end)
	default:
		s.note("%s", report.RunLine(end))
	}
	for _, w := range c.copies {
		if text := w.missing(folder); text != "" {
			s.note("memroom: %s", text)
		}
	}
	front.DieInterrupted(*state.Exit)
	return exitAs(front, exitCodeOf(folder, *state.Exit), folder.ID)
}

// exitAs returns the command's exit code. A command that succeeded but whose output did not reach
// the user is no success: the command itself cannot have noticed.
func exitAs(front *supervise.Front, code int, id string) error {
	if err := front.Unwritten(); err != nil && code == exitOK {
		return exitWith(exitNotWritten, "the command's output could not be written: %w; "+
			"`memroom show --output %s` prints what was recorded", cause(err), id)
	}
	return exitQuietly(code)
}

// exitCodeOf is the command's exit code. Where its last attempt ended with 0 and trained nothing,
// it is that of the last attempt that failed: a script must not take it for done.
func exitCodeOf(folder *store.Folder, exit event.Exit) int {
	record, err := driver.ReadRecord(folder.Dir)
	if err != nil || record.Hollow == "" || exit.Code != 0 {
		return exit.Code
	}
	for _, t := range slices.Backward(record.Attempts) {
		if t.ExitCode != 0 {
			return t.ExitCode
		}
	}
	return 1
}

// wantsScreen: on a terminal always. Elsewhere stderr is the command's and one line at the end,
// unless memory is what ended it, something was found or something was done.
func (c *runCmd) wantsScreen(s *session, end report.End) bool {
	if f, ok := fileOf(s.Err); ok && isTerminal(f) {
		return true
	}
	return c.Summary || end.Tells()
}

func runFiles(f *store.Folder) supervise.Files {
	return supervise.Files{Dir: f.Dir, Output: f.Output(), Errors: f.Errors(), Exit: f.ExitFile(),
		State: f.StateFile()}
}
