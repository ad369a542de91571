//go:build !linux

package cli

// Run returns an error that names the missing parts: cgroups, subreapers and /proc are Linux.
func (c *runCmd) Run(s *session) error {
	return exitWith(exitNotStarted,
		"run needs Linux (on Windows: WSL2); plan, explain, snapshot and replay work here")
}

// inner processes exist on Linux only.
func inner([]string, Streams) (int, bool) { return 0, false }

// Run returns an error: there is nothing to attach to.
func (c *attachCmd) Run(s *session) error {
	return exitWith(exitNotStarted, "attach needs Linux: runs live there")
}
