//go:build !linux

package cli

const tuneNeedsLinux = "tune needs Linux (on Windows: WSL2): trials are runs"

// Run returns an error: the command needs Linux.
func (c *tuneNewCmd) Run(s *session) error { return exitWith(exitNotStarted, tuneNeedsLinux) }

// Run returns an error: the command needs Linux.
func (c *tuneResumeCmd) Run(s *session) error { return exitWith(exitNotStarted, tuneNeedsLinux) }

// Run returns an error: the command needs Linux.
func (c *tuneShowCmd) Run(s *session) error { return exitWith(exitNotStarted, tuneNeedsLinux) }

// Run returns an error: the command needs Linux.
func (c *tuneRmCmd) Run(s *session) error { return exitWith(exitNotStarted, tuneNeedsLinux) }

// Run returns an error: the command needs Linux.
func (c *tuneListCmd) Run(s *session) error { return exitWith(exitNotStarted, tuneNeedsLinux) }
