// Package nvml reads NVIDIA cards through libnvidia-ml, which is loaded at run time: memroom starts
// where no driver exists, and a missing symbol of an older driver costs one reading, not the
// program. Every call has a timeout, because a driver in trouble may never answer.
//
// [Open] returns a [Library], and [Library.Devices] a reading of every card. Packages that watch
// (supervise) or list (doctor) get readings through package cli. Built with the tag nogpu (or for
// systems without NVML) Open always fails with the reason.
package nvml

import (
	"errors"
	"fmt"
	"time"

	"memroom/event"
)

// Device is one reading of one card. The UUID identifies a card: an index changes with
// CUDA_VISIBLE_DEVICES.
type Device struct {
	Index       int         `json:"index"`
	Name        string      `json:"name"`
	UUID        string      `json:"uuid"`
	Compute     string      `json:"compute_capability,omitempty"` // such as 9.0
	Total       event.Bytes `json:"total_bytes"`
	Used        event.Bytes `json:"used_bytes"` // everybody's, the driver's own share included
	Free        event.Bytes `json:"free_bytes"`
	Utilisation int         `json:"utilisation_percent"` // -1 when the card does not say
	// partitioned: the totals are those of the whole card
	MIG       bool      `json:"mig,omitempty"`
	Processes []Process `json:"processes,omitempty"`
	// NoProcesses is the reason why Processes is empty although the card may be in use; in virtual
	// machines and containers the driver shows none.
	NoProcesses string `json:"no_processes,omitempty"`
}

// Process is a program that holds memory on a card.
type Process struct {
	PID  int         `json:"pid"`
	Used event.Bytes `json:"used_bytes"` // -1 when the driver does not say
}

// Driver names the software under the cards.
type Driver struct {
	Version string `json:"version"`
	CUDA    string `json:"cuda"` // highest CUDA version this driver runs, such as 13.0
}

// ErrHung is returned while an earlier call has not come back. The library is not asked again until
// it has.
var ErrHung = errors.New("an earlier NVML call has not returned: the driver hangs (see " +
	"`nvidia-smi` and the kernel log)")

// guard lets one call at a time into the library and stops waiting after a while. The call itself
// cannot be stopped: its goroutine stays until the driver answers, and until then guard refuses
// further calls.
type guard struct {
	timeout time.Duration
	busy    chan struct{} // holds a token while a call is inside the library
}

func newGuard(timeout time.Duration) *guard {
	return &guard{timeout: timeout, busy: make(chan struct{}, 1)}
}

// do runs call; name is for the error. What call writes must not be read after an error.
func (g *guard) do(name string, call func() error) error {
	timer := time.NewTimer(g.timeout)
	defer timer.Stop()
	select {
	case g.busy <- struct{}{}:
	case <-timer.C:
		return ErrHung
	}
	done := make(chan error, 1)
	go func() {
		err := call()
		<-g.busy
		done <- err
	}()
	select {
	case err := <-done:
		return err
	case <-timer.C:
		return fmt.Errorf("nvml %s: no answer within %v: the driver hangs", name, g.timeout)
	}
}
