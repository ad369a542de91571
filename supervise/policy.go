package supervise

import (
	"memroom/event"
	"memroom/probe"
)

// Attempt is one launch that has ended, with what is known about it.
type Attempt struct {
	Number   int
	Launch   Launch // as it was started; its Env and Args are what a next launch changes
	Exit     event.Exit
	Verdict  event.Verdict
	Peaks    event.Peaks // of this attempt alone
	Findings []event.Finding
	OOMs     []ProbeOOM   // what the probes saw of running out, in order
	Deaths   []Death      // Pythons that ended by an exception, in order
	Said     []probe.Said // what parts inside the processes said they did or declined
	LastStep int64        // highest step any process reached, 0 when none was reported
	// Libraries is the host memory of its Pythons once their framework was loaded; 0: not known.
	Libraries event.Bytes
	// Frameworks are those that its Pythons imported: torch, tensorflow, jax.
	Frameworks []string
	StepMS     float64 // median duration of its last steps, 0 when none was reported
	ToldToEnd  bool    // by a signal through memroom, as it ran or after
}

// ProbeOOM is one allocator that gave up, as the probe in that process saw it.
type ProbeOOM struct {
	Rank *int
	PID  int
	probe.OOM
}

// Decision is what follows an attempt. The zero value ends the run.
type Decision struct {
	Again   bool
	Args    []string // of the next launch; nil: as before
	Env     []string // whole environment of the next launch; nil: as before
	Changed []string // what is different now, in words: a retry that changes nothing is pointless
	Note    string   // a line for whoever watches
}

// Policy decides, in the monitor, what follows an attempt. It may take its time: the front end
// waits, and nothing of the run is alive while it thinks. Without one every attempt is the last.
type Policy interface {
	After(Attempt) Decision
}
