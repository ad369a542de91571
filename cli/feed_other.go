//go:build !linux

package cli

import "memroom/feed/serve"

// hostPressure returns nil: only Linux reports memory pressure.
func hostPressure(string) func() serve.Pressure { return nil }
