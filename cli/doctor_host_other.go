//go:build !linux

package cli

import "runtime"

// checkHost has nothing to read here: `run` and its meters are for Linux.
func checkHost() []check {
	return []check{{ID: "host", Title: "host meters", Status: statusMissing,
		Why: "memroom watches memory on Linux; this is " + runtime.GOOS,
		Fix: "plan, explain, snapshot, replay and lint work here"}}
}

func checkCgroup() []check { return nil }
