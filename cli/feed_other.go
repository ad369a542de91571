//go:build !linux

package cli

import "memroom/feed/serve"

// hostPressure is told by Linux alone.
func hostPressure(string) func() serve.Pressure { return nil }
