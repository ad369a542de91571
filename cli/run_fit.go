package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"memroom/event"
	"memroom/fit"
	"memroom/fit/driver"
	"memroom/remedy"
	"memroom/store"
)

// fitFlags are the flags of `run` that make a job fit.
type fitFlags struct {
	Fit           bool     `help:"When memory runs out, launch the command again with remedies that keep the effective batch. No code is edited."`
	RehearseFirst bool     `help:"With --fit: do not wait for memory to run out. At the first step, measure the longest batch of the data, an evaluation and the saving of a checkpoint. Keep only the remedies that are needed." aliases:"prevent" group:"Fit"`
	DryRun        bool     `help:"Show which remedies --fit would try, in which order, and start nothing."`
	Allow         []string `help:"Remedies that change the mathematics, by kind: precision, quantize." placeholder:"KIND" group:"Fit"`
	Remedy        []string `help:"Apply this remedy from the start; may be repeated. micro_batch=8 means micro-batches of 8 samples." placeholder:"NAME[=VALUE]" group:"Fit" sep:"none"`
	MaxAttempts   int      `help:"Launches at the most, the first included." default:"4" group:"Fit"`
	Map           string   `help:"The command's own arguments for true accumulation: micro_batch=--bs,accumulate=--accum." placeholder:"MAP" group:"Fit"`
	ResumeWith    string   `help:"Arguments that make the command go on from a checkpoint, with {latest} for its path." placeholder:"TEMPLATE" group:"Fit"`
	Checkpoints   string   `help:"Where the command writes checkpoints, for --resume-with. Default: .pt, .pth, .ckpt, .tar and .safetensors files and checkpoint-* up to two folders down." placeholder:"GLOB" group:"Fit"`
	Forgetful     bool     `help:"Ignore the remedies that made an earlier run of the same command fit, and do not remember those of this run." group:"Fit"`
}

// defaultAttempts repeats the default in the tag of MaxAttempts.
const defaultAttempts = 4

// wanted reports whether any of it was asked for.
func (c *fitFlags) wanted() bool { return c.Fit || len(c.Remedy) > 0 }

// forced reads --remedy.
func (c *fitFlags) forced() ([]fit.Remedy, error) {
	var forced []fit.Remedy
	for _, text := range c.Remedy {
		r, err := fit.Force(text)
		if err != nil {
			return nil, exitWith(exitUsage, "%w", err)
		}
		if known, _ := remedy.Find(r.ID); known.Consent != "" &&
			!slices.Contains(c.Allow, known.Consent) {
			return nil, exitWith(exitUsage, "--remedy %s changes the mathematics: add --allow %s",
				r.ID, known.Consent)
		}
		forced = append(forced, r)
	}
	return forced, nil
}

// check refuses flags that make no sense before anything is started.
func (c *fitFlags) check() error {
	if useless := c.withoutFit(); useless != "" {
		return exitWith(exitUsage, "%s does nothing without --fit: add --fit", useless)
	}
	if c.MaxAttempts < 1 {
		return exitWith(exitUsage, "--max-attempts %d: at least one", c.MaxAttempts)
	}
	for _, a := range c.Allow {
		if kinds := fit.Consents(); !slices.Contains(kinds, a) {
			return exitWith(exitUsage, "--allow %s: the kinds are %s", a, strings.Join(kinds, ", "))
		}
	}
	if err := fit.CheckTemplate(c.ResumeWith); err != nil {
		return exitWith(exitUsage, "%w", err)
	}
	if c.Map != "" {
		if _, err := fit.ParseMapping(c.Map); err != nil {
			return exitWith(exitUsage, "%w", err)
		}
	}
	_, err := c.forced()
	return err
}

// withoutFit names a flag that does nothing because --fit is not there. --remedy works alone, and
// --allow with it.
func (c *fitFlags) withoutFit() string {
	if c.Fit {
		return ""
	}
	for _, f := range []struct {
		name  string
		given bool
	}{{"--rehearse-first", c.RehearseFirst}, {"--dry-run", c.DryRun},
		{"--allow", len(c.Allow) > 0 && len(c.Remedy) == 0},
		{"--max-attempts", c.MaxAttempts != defaultAttempts}, {"--map", c.Map != ""},
		{"--resume-with", c.ResumeWith != ""},
		{"--checkpoints", c.Checkpoints != ""}, {"--forgetful", c.Forgetful}} {
		if f.given {
			return f.name
		}
	}
	return ""
}

// describe returns what the policy needs. home is where memories are kept.
func (c *fitFlags) describe(home string, command []string, card string,
	gpuLimit event.Bytes) (*driver.Spec, error) {
	forced, err := c.forced()
	if err != nil {
		return nil, err
	}
	spec := &driver.Spec{Allow: c.Allow, Forced: forced, First: forced, MaxAttempts: c.MaxAttempts,
		Map: c.Map, ResumeWith: c.ResumeWith, Checkpoints: c.Checkpoints,
		Command: store.MaskArguments(command), Card: card, GPULimit: gpuLimit,
		Patience: 30 * time.Second}
	if !c.Fit {
		spec.MaxAttempts = 1
	}
	if c.Forgetful || !c.Fit {
		return spec, nil
	}
	spec.Memory = driver.MemoryOf(home, command, card, gpuLimit)
	if before, err := driver.ReadMemory(spec.Memory); err == nil && len(forced) == 0 {
		spec.First, spec.Remembered = before.Remedies, true
	} else if c.RehearseFirst {
		spec.First = append(fit.Prevention(), forced...)
	}
	return spec, nil
}

// dryRun prints what every attempt would have from the start, and the ladder.
func (c *runCmd) dryRun(s *session, command []string) error {
	forced, err := c.forced()
	if err != nil {
		return err
	}
	found, err := driver.Mapping("", command, c.Map)
	if err != nil {
		return exitWith(exitUsage, "%w", err)
	}
	options := fit.Options{Allow: c.Allow, Forced: forced, Mapping: found}
	ladders := map[string][]fit.Stage{}
	if len(forced) > 0 {
		ladders["start"] = []fit.Stage{{Why: "demanded with --remedy", Remedies: forced}}
	}
	for _, where := range []event.Where{event.WhereGPU, event.WhereHost} {
		ladders[string(where)] = fit.Ladder(fit.Facts{Where: where, Limit: c.HostMem,
			Framework: driver.Framework("", command)}, options)
	}
	if c.JSON != "" {
		return writeJSONFile(c.JSON, ladders)
	}
	if len(forced) > 0 {
		printStages(s, "from the start:", ladders["start"])
	}
	for _, where := range []event.Where{event.WhereGPU, event.WhereHost} {
		printStages(s, fmt.Sprintf("when %s memory runs out:", strings.ToUpper(string(where))),
			ladders[string(where)])
	}
	if found.Possible() {
		if rewritten, err := driver.Rewrite(command, found, 2); err == nil {
			fmt.Fprintf(s.Out, "the command's own arguments: %s\n", rewritten.Words)
		}
	}
	return nil
}

func printStages(s *session, title string, stages []fit.Stage) {
	fmt.Fprintln(s.Out, title)
	for i, stage := range stages {
		fmt.Fprintf(s.Out, "  %d. %s\n", i+1, stage.Why)
		for _, r := range stage.Remedies {
			fmt.Fprintf(s.Out, "       %-20s %-8s %-9s %s\n", r.ID, r.Level,
				fit.Equivalence([]fit.Remedy{r}), r.Words())
		}
	}
}

func writeJSONFile(path string, v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(data, '\n'), 0o644)
}
