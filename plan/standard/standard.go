// Package standard embeds the Python that trains any model from its configuration, for a rehearsal.
// The probe installs it as _memroom_probe/standard.
package standard

import "embed"

// Python holds the modules by their path below this folder. The patterns name Python files only, so
// that byte code which a test left behind stays out.
//
//go:embed *.py
var Python embed.FS
