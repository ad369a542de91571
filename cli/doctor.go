package cli

import (
	"fmt"
	"strings"

	"memroom/meter/nvml"
)

type doctorCmd struct {
	JSON   bool   `name:"json" help:"Print JSON."`
	Python string `help:"Python to check; without it, python3 and python on PATH." placeholder:"PATH"`
	Quick  bool   `help:"Do not import frameworks: print their versions, do not test CUDA."`
}

func (doctorCmd) Help() string {
	return `Prints what memroom can measure on this machine and what it cannot, with the reason and the fix.
It leaves everything as it was, and imports nothing from the current folder.`
}

func (doctorCmd) examples() []example {
	return []example{{line: "memroom doctor"}, {line: "memroom doctor --quick --json"}}
}

// status of one check. A missing thing is no fault of the machine: a laptop has no Slurm.
type status string

const (
	statusOK      status = "ok"
	statusWarn    status = "warn"    // works, but will hurt
	statusMissing status = "missing" // not there: memroom does without
)

// check is one line of doctor's answer.
type check struct {
	ID     string `json:"id"` // stable, for programs
	Title  string `json:"title"`
	Status status `json:"status"`
	Value  string `json:"value,omitempty"`
	Why    string `json:"why,omitempty"` // why it is missing or will hurt
	Fix    string `json:"fix,omitempty"`
	Data   any    `json:"data,omitempty"`
}

// diagnosis is the whole answer. The cards come first because programs ask for them most.
type diagnosis struct {
	Version buildVersion  `json:"version"`
	Driver  *nvml.Driver  `json:"driver,omitempty"`
	GPUs    []nvml.Device `json:"gpus"`
	Checks  []check       `json:"checks"`
}

func (c *doctorCmd) Run(s *session) error {
	d := diagnosis{Version: readVersion(), GPUs: []nvml.Device{}}
	d.Checks = append(d.Checks, checkCards(&d)...)
	d.Checks = append(d.Checks, checkHost()...)
	d.Checks = append(d.Checks, checkCgroup()...)
	pythons := findPythons(c.Python)
	d.Checks = append(d.Checks, checkPythons(s.ctx, pythons, c.Quick, func(python string) {
		if !c.JSON {
			s.note("checking %s ...", python)
		}
	})...)
	if len(pythons) == 0 {
		d.Checks = append(d.Checks, check{ID: "python", Title: "Python", Status: statusMissing,
			Why: "no python3 or python on PATH",
			Fix: "install Python 3.8 or newer, or name one with --python; only lint and rehearsal need it"})
	}
	d.Checks = append(d.Checks, checkClients(s.ctx, d.Checks)...)
	if c.JSON {
		return s.printJSON(d)
	}
	return s.printChecks(d.Checks)
}

// printChecks writes the table: a mark, the title, the value; below it the reason and the fix where
// there is one.
func (s *session) printChecks(checks []check) error {
	width := 0
	for _, c := range checks {
		width = max(width, len(c.Title))
	}
	marks := map[status]string{statusOK: s.paint(green, "ok  "),
		statusWarn: s.paint(yellow, "warn"), statusMissing: s.paint(dim, "--  ")}
	var text strings.Builder
	for _, c := range checks {
		first := c.Value
		if first == "" {
			first = c.Why
		}
		fmt.Fprintf(&text, "%s  %-*s  %s\n", marks[c.Status], width, c.Title, first)
		if c.Why != "" && first != c.Why {
			fmt.Fprintf(&text, "      %-*s  %s\n", width, "", s.paint(dim, c.Why))
		}
		if c.Fix != "" {
			fmt.Fprintf(&text, "      %-*s  %s\n", width, "", s.paint(dim, "fix: "+c.Fix))
		}
	}
	_, err := fmt.Fprint(s.Out, text.String())
	return err
}

// checkCards asks NVML and fills the cards into d.
func checkCards(d *diagnosis) []check {
	lib, err := nvml.Open()
	if err != nil {
		return []check{{ID: "gpu", Title: "NVIDIA GPU", Status: statusMissing, Why: err.Error(),
			Fix: "plan, explain, snapshot, replay and lint need no GPU; run watches host memory only"}}
	}
	defer lib.Close()
	var checks []check
	if driver, err := lib.Driver(); err == nil {
		d.Driver = &driver
		checks = append(checks, check{ID: "driver", Title: "NVIDIA driver", Status: statusOK,
			Value: fmt.Sprintf("%s, CUDA up to %s", driver.Version, driver.CUDA)})
	}
	devices, err := lib.Devices()
	d.GPUs = append(d.GPUs, devices...)
	for _, card := range devices {
		checks = append(checks, checkCard(card))
	}
	if err != nil {
		checks = append(checks, check{ID: "gpu", Title: "NVIDIA GPU", Status: statusWarn,
			Why: err.Error(), Fix: "see `nvidia-smi` and the kernel log"})
	}
	if err == nil && len(devices) == 0 {
		checks = append(checks, check{ID: "gpu", Title: "NVIDIA GPU", Status: statusMissing,
			Why: "the driver is loaded but reports no GPU",
			Fix: "in a container, start it with --gpus all; check NVIDIA_VISIBLE_DEVICES"})
	}
	return checks
}

func checkCard(card nvml.Device) check {
	c := check{ID: "gpu", Title: fmt.Sprintf("GPU %d", card.Index), Status: statusOK,
		Data: card.UUID,
		Value: fmt.Sprintf("%s, %s total, %s used, %s (compute %s)", card.Name, card.Total,
			card.Used, card.UUID, card.Compute)}
	switch {
	case card.MIG:
		c.Status, c.Why = statusWarn,
			"partitioned (MIG): these totals are for the whole card; a job gets one slice"
	case card.NoProcesses != "":
		c.Why = "memory per process is not available: " + card.NoProcesses +
			"; memroom computes the job's share by difference"
	}
	return c
}
