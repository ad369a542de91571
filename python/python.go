// Package python embeds the package that users import as `memroom`. The wheel carries it.
package python

import "embed"

// Python holds the modules by their path below this folder. The patterns name Python files only, so
// that byte code which a test left behind stays out.
//
//go:embed memroom/*.py memroom/*/*.py memroom/*/*/*.py
var Python embed.FS
