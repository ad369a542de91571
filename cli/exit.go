package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"

	"memroom/event"
)

// Exit codes. `run` passes the child's own code through and uses 125 to 127 as env(1) and docker
// do.
const (
	exitOK            = 0
	exitFindings      = 1 // lint found something
	exitUsage         = 2 // wrong usage, or the input could not be read
	exitDoesNotFit    = 3 // plan, check
	exitNotRecognised = 4 // explain
	exitDiverged      = 5 // replay
	exitNotWritten    = 6 // the answer could not be written
	exitNotStarted    = 125
	exitNotExecutable = 126
	exitNotFound      = 127
)

// ownCodes are the exit codes that only one command uses.
var ownCodes = map[string]string{
	"lint": "1 findings", "plan": "3 does not fit, or is not sure to",
	"check":   "3 above a budget",
	"explain": "4 nothing recognised",
	"replay":  "5 diverged",
	"run": "the command's own, 128+n when signal n ended it, 125 when memroom failed before " +
		"the start,\n126 when the command cannot be executed, 127 when it is not found",
}

// exitHelp lists the exit codes of a command, or of all.
func exitHelp(node *kong.Node) string {
	text := "Exit codes: 0 done · 2 wrong usage or unreadable input · 6 the answer could not be written"
	if node != nil {
		own := ownCodes[node.Name]
		switch {
		case node.Name == "run":
			return "Exit codes: " + own
		case own != "":
			return text + " · " + own
		}
		return text
	}
	for _, name := range []string{"lint", "plan", "check", "explain", "replay", "run"} {
		text += "\n" + name + ": " + ownCodes[name]
	}
	return text
}

// exitError ends the process with a code. With a nil cause the answer has been printed already and
// only the code is left to say.
type exitError struct {
	code  int
	cause error
}

func (e *exitError) Error() string {
	if e.cause == nil {
		return ""
	}
	return e.cause.Error()
}

func (e *exitError) Unwrap() error { return e.cause }

// exitWith makes an error that ends the process with code and prints the message.
func exitWith(code int, format string, args ...any) error {
	return &exitError{code, fmt.Errorf(format, args...)}
}

// exitQuietly ends the process with code; the command has said what there is to say.
func exitQuietly(code int) error { return &exitError{code: code} }

func usageError(err error) error { return &exitError{exitUsage, err} }

// exitCode is the one place where errors become exit codes.
func exitCode(err error) int {
	var exit *exitError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &exit):
		return exit.code
	default:
		return exitUsage
	}
}

// plainWords returns an error's message. It rewords a system call's error about a file in plain
// English.
func plainWords(err error) string {
	message := err.Error()
	var path *fs.PathError
	if !errors.As(err, &path) {
		return message
	}
	said := ""
	switch {
	case errors.Is(path.Err, fs.ErrNotExist):
		said = fmt.Sprintf("there is no file %s%s", path.Path, event.DidYouMean(filepath.Base(path.Path),
			filesIn(filepath.Dir(path.Path))))
	case errors.Is(path.Err, syscall.EISDIR):
		said = path.Path + " is a folder: name a file in it"
	case errors.Is(path.Err, syscall.ENOTDIR):
		said = fmt.Sprintf("there is no file %s: a part of its path is no folder", path.Path)
	case errors.Is(path.Err, fs.ErrPermission):
		said = path.Path + " is not yours to read or write: ask its owner, or chmod it"
	default:
		return message
	}
	// a caller's own words about the same file stay only where they say more
	before, after, _ := strings.Cut(message, path.Error())
	if before = strings.TrimSuffix(before, ": "); strings.Contains(said, before) {
		before = ""
	}
	return strings.TrimPrefix(before+": "+said+after, ": ")
}

// filesIn lists the names in a folder, for suggestions.
func filesIn(dir string) []string {
	entries, _ := os.ReadDir(dir)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}
