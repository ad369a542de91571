package cli

import (
	"errors"
	"fmt"

	"github.com/alecthomas/kong"
)

// Exit codes. `run` passes the child's own code through and uses 125 to 127 as env(1) and docker
// do.
const (
	exitOK            = 0
	exitFindings      = 1 // lint found something
	exitUsage         = 2 // wrong usage, or the input could not be read
	exitDoesNotFit    = 3 // plan
	exitNotRecognised = 4 // explain
	exitDiverged      = 5 // replay
	exitNotWritten    = 6 // the answer could not be written
	exitNotStarted    = 125
	exitNotExecutable = 126
	exitNotFound      = 127
)

// ownCodes are the exit codes that only one command gives.
var ownCodes = map[string]string{
	"lint": "1 findings", "plan": "3 does not fit", "explain": "4 nothing recognised",
	"replay": "5 diverged",
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
	for _, name := range []string{"lint", "plan", "explain", "replay", "run"} {
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
