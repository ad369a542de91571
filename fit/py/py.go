// Package py embeds the Python of fit: what splits, measures and changes a batch inside the user's
// process. The probe installs it as _memroom_probe/fit.
package py

import "embed"

// Python holds the modules by their path below this folder. The patterns name Python files only, so
// that byte code which a test left behind stays out.
//
//go:embed *.py */*.py
var Python embed.FS
