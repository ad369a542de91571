// Package rehearse embeds the Python that runs a training script on fake tensors. The probe
// installs it as _memroom_probe/rehearse.
package rehearse

import "embed"

// Python holds the modules by their path below this folder. The patterns name Python files only, so
// that byte code which a test left behind stays out.
//
//go:embed *.py
var Python embed.FS
