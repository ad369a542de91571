package cli

import (
	"memroom/event"
	"memroom/trace"
)

// readFlags bound what a file from a stranger may cost. Every command that reads snapshots or logs
// has them.
type readFlags struct {
	MaxUnpacked event.Bytes `name:"max-unpacked" help:"Read at most this much out of a packed file (.gz, .xz, .zst) or a TensorFlow dump. Default: 64 MiB, or 50 times the packed size where that is more. Memory and time follow the size read: see docs/security.md." placeholder:"SIZE"`
}

func (f readFlags) limits() trace.Limits { return trace.Limits{Unpacked: f.MaxUnpacked} }
