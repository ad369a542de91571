//go:build !linux

package cli

const tuneNeedsLinux = "tune needs Linux (on Windows: WSL2): trials are runs"

// Run says what is missing.
func (c *tuneNewCmd) Run(s *session) error { return exitWith(exitNotStarted, tuneNeedsLinux) }

// Run says what is missing.
func (c *tuneResumeCmd) Run(s *session) error { return exitWith(exitNotStarted, tuneNeedsLinux) }

// Run says what is missing.
func (c *tuneShowCmd) Run(s *session) error { return exitWith(exitNotStarted, tuneNeedsLinux) }

// Run says what is missing.
func (c *tuneRmCmd) Run(s *session) error { return exitWith(exitNotStarted, tuneNeedsLinux) }

// Run says what is missing.
func (c *tuneListCmd) Run(s *session) error { return exitWith(exitNotStarted, tuneNeedsLinux) }
