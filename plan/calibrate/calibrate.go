// Package calibrate embeds the Python that measures a card in stages. The probe installs it as
// _memroom_probe/calibrate.
package calibrate

import "embed"

// Python holds the modules by their path below this folder. The patterns name Python files only, so
// that byte code which a test left behind stays out.
//
//go:embed *.py
var Python embed.FS
