// Package py embeds the Python of lint: the rules and the walk over a script's syntax tree. The
// probe installs it as _memroom_probe/lint.
package py

import "embed"

// Python holds the modules by their path below this folder. The patterns name Python files only, so
// that byte code which a test left behind stays out.
//
//go:embed *.py rules/*.py
var Python embed.FS
