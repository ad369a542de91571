package trial

import (
	"memroom/event"
)

// Backend runs trials somewhere: on this machine, on a Ray cluster, through Slurm. It starts,
// observes and ends; what to start and what follows an end is decided by [Study].
type Backend interface {
	// Capacity returns the memory and processors there are, and how much of them is free now.
	Capacity() (Capacity, error)
	// Prepare makes the record of an attempt and returns the name under which it can be found
	// again.
	Prepare(Launch) (run string, err error)
	// Start begins a prepared attempt. Its end is an event, also when it cannot be started.
	Start(run string) error
	// Rejoin takes up an attempt that an earlier process started. begun is false if it never ran.
	Rejoin(run string, l Launch) (begun bool, err error)
	// Usage reads a running attempt's memory; ok is false where nobody can know now.
	Usage(run string) (u Usage, ok bool)
	// Resize changes the limit of a running attempt.
	Resize(run string, host event.Bytes) error
	// Release lets an attempt that is held at its limit run into it.
	Release(run string)
	// Stop ends an attempt: gently, then not.
	Stop(run string)
	// Events are what happens, in order for each attempt; the end comes last.
	Events() <-chan Happening
	// Close leaves the attempts to themselves.
	Close()
}

// DeviceResizer is a backend that can change what a running attempt may take of its cards.
type DeviceResizer interface {
	ResizeDevice(run string, device event.Bytes) error
}

// Pauser is a backend that can let a running attempt stand still, and go on.
type Pauser interface {
	Pause(run string, on bool)
}

// Slacker is a backend that can let every running attempt go some way beyond its reservation before
// it meets the limit: there is time to give it more.
type Slacker interface {
	Slack(event.Bytes)
}

// Happening is something that a running attempt did.
type Happening struct {
	Run    string
	Output []byte             // what it printed
	Values map[string]float64 // what it reported
	Step   int                // of Values; -1 unknown
	Final  bool               // Values are the objective's result
	// Tight: it is close to its limit or stands still there. Told at once, because standing still
	// costs its time; what it holds is read with Usage.
	Tight bool
	// Gone: its processes have ended and their memory is back. A later event reports how it ended.
	Gone bool
	End  *Outcome // it has ended
}
