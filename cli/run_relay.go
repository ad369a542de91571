package cli

import "errors"

// check: a relayed run has nobody watching.
func (c *runCmd) checkRelay() error {
	if c.Relay == "" {
		return nil
	}
	if c.View || c.Detach {
		return errors.New("--relay writes to stdout until the command ends: leave out --view " +
			"and --detach")
	}
	return nil
}
