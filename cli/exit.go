package cli

import (
	"errors"
	"fmt"
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

const exitHelp = `Exit codes: 0 done · 1 lint: findings · 2 wrong usage or unreadable input · 3 plan: does not fit ·
4 explain: nothing recognised · 5 replay: diverged · 6 the answer could not be written · run gives the child's code, 128+n for signal n, 125 when memroom
failed before the start, 126 not executable, 127 not found`

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
