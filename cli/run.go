package cli

import (
	"time"

	"memroom/event"
	"memroom/fit/driver"
	"memroom/store"
)

type runCmd struct {
	Name       string        `help:"A name for the run, to find it by." placeholder:"TEXT"`
	Tag        []string      `group:"Records and reports" help:"A tag for the run; may be repeated." placeholder:"TEXT"`
	HostMem    event.Bytes   `help:"Limit on the host memory of all its processes together, swap included." placeholder:"SIZE"`
	GPUMem     event.Bytes   `name:"gpu-mem" help:"Limit on the device memory of each of its Python processes." placeholder:"SIZE"`
	OnPressure string        `group:"Limits" help:"When host memory comes close to its limit: send this signal (USR1) to the command, or run this shell command. Only host memory counts: an allocator may fill a card at any time." placeholder:"SIGNAL|CMD"`
	PressureAt float64       `group:"Limits" help:"How full host memory must be for --on-pressure, as a share of its limit. Default: 0.92." default:"0.92" placeholder:"SHARE"`
	Grace      time.Duration `group:"Limits" help:"How long the other ranks may take to end after one ran out of memory; ten times as long if it caught the error and no rank makes a step." default:"20s"`
	Verdict    string        `group:"Records and reports" help:"Write how the command ended (exit code, what ran out, evidence) to this file, as JSON." placeholder:"PATH"`
	JSON       string        `name:"json" help:"Write the final report to this file; stdout belongs to the command." placeholder:"PATH"`
	View       bool          `help:"Show a live view instead of the command's output, which is kept (memroom show --output)."`
	Detach     bool          `help:"Start the command, print the run's ID and leave (memroom attach RUN comes back)."`
	Quiet      bool          `help:"No summary at the end."`
	Summary    bool          `group:"Records and reports" help:"Print the summary at the end in every case, also without a terminal and without findings."`
	Probe      bool          `group:"Records and reports" help:"Look into Python processes. Without it, memroom only reads the machine's meters." default:"true" negatable:""`
	Relay      string        `group:"Schedulers and nodes" help:"For a scheduler that sees only output: add records with this name to it. They hold reports, memory and how the command ended (docs/format/relay.md). The command ends when memroom does." placeholder:"NAME"`
	Group      string        `group:"Schedulers and nodes" help:"Common name of the runs of one job on several nodes. When one runs out of memory, the others are ended after --grace. The nodes must share MEMROOM_HOME." placeholder:"ID"`
	NodeRank   int           `group:"Schedulers and nodes" help:"Rank of this node in the group, for the record." default:"0"`

	reportFlags `embed:""`
	fitFlags    `embed:""`

	copies  []wantedCopy // files that --json and --verdict ask for
	environ []string     // of the command; nil: ours
	home    *store.Store // that must hold the record; nil: any will do

	Command []string `arg:"" passthrough:"" help:"The command and its arguments, after --, as in -- python train.py."`
}

func (runCmd) examples() []example {
	return []example{
		{line: "memroom run -- sh -c 'echo training'"},
		{line: "memroom run --fit --dry-run --map micro_batch=--bs,accumulate=--accum -- python " +
			"examples/batch_too_large.py --bs 32"},
		{line: "memroom run --name baseline --host-mem 2GiB --verdict verdict.json -- sh -c 'exit 3'", code: 3},
	}
}

// check refuses what makes no sense before anything is started.
func (c *runCmd) check() error {
	for _, limit := range []struct {
		flag string
		size event.Bytes
	}{{"--host-mem", c.HostMem}, {"--gpu-mem", c.GPUMem}} {
		if err := checkLimit(limit.flag, limit.size); err != nil {
			return err
		}
	}
	// One would be enough: at 1 the memory has run out, and percents are a slip.
	if c.PressureAt <= 0 || c.PressureAt >= 1 {
		return exitWith(exitUsage,
			"--pressure-at %v: a share of the limit between 0 and 1, such as 0.92", c.PressureAt)
	}
	if c.Grace < 0 || c.NodeRank < 0 {
		return exitWith(exitUsage, "--grace %v, --node-rank %d: neither can be negative: "+
			"give 0 or more", c.Grace, c.NodeRank)
	}
	if err := c.checkRelay(); err != nil {
		return exitWith(exitUsage, "%w", err)
	}
	if c.View && c.Detach {
		return exitWith(exitUsage, "--view watches and --detach leaves: take one; `memroom top RUN` "+
			"shows a detached run live")
	}
	if err := c.reportFlags.check(); err != nil {
		return err
	}
	return c.fitFlags.check()
}

// leastLimit is below what any program needs: memory of the C library and its own pages.
const leastLimit = 4 * event.MiB

// checkLimit refuses a limit that nothing can live in. 0: no limit.
func checkLimit(flag string, size event.Bytes) error {
	switch {
	case size == 0 || size >= leastLimit:
		return nil
	case size < 1024:
		return exitWith(exitUsage, "%s %s is too small for any process; did you mean %dMiB or %dGiB?",
			flag, size, int64(size), int64(size))
	}
	return exitWith(exitUsage, "%s %s is too small for any process; the least is %s", flag, size,
		leastLimit)
}

// monitorSpec holds the monitor's settings. They go over the link that it inherits: everybody can
// read a command line, and --on-pressure and paths are private to the user.
type monitorSpec struct {
	HostMem    event.Bytes   `json:"host_mem,omitempty"` // here too: the record may be on a full disk
	Grace      time.Duration `json:"grace"`
	OnPressure []byte        `json:"on_pressure,omitempty"`
	PressureAt float64       `json:"pressure_at"`
	// paths are bytes: JSON would change those that are no UTF-8
	Report  []byte       `json:"report,omitempty"`
	Verdict []byte       `json:"verdict,omitempty"`
	Socket  []byte       `json:"socket,omitempty"` // of the probes
	Fit     *driver.Spec `json:"fit,omitempty"`
}

// withoutDashes drops the -- that separates the command from our flags.
func withoutDashes(args []string) []string {
	if len(args) > 0 && args[0] == "--" {
		return args[1:]
	}
	return args
}
