package cli

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"time"
)

// client is a tool of a cluster in whose jobs memroom may find itself: run and explain know how
// each of them ends a job.
type client struct {
	id, title, command string
	version            []string
	inside             string // environment variable that is set inside one of its jobs
}

var clients = []client{
	{"slurm", "Slurm", "sbatch", []string{"--version"}, "SLURM_JOB_ID"},
	{"ray", "Ray", "ray", []string{"--version"}, "RAY_JOB_ID"},
	{"kubernetes", "Kubernetes", "kubectl", []string{"version", "--client=true"},
		"KUBERNETES_SERVICE_HOST"},
}

// checkClients looks for each tool, among the packages of the interpreters that were looked into as
// well.
func checkClients(ctx context.Context, pythons []check) []check {
	var checks []check
	for _, c := range clients {
		checks = append(checks, checkClient(ctx, c, pythons))
	}
	return checks
}

func checkClient(ctx context.Context, c client, pythons []check) check {
	result := check{ID: c.id, Title: c.title, Status: statusOK}
	if os.Getenv(c.inside) != "" {
		result.Why = "this shell is inside one of its jobs (" + c.inside + " is set)"
	}
	for _, p := range pythons {
		if look, ok := p.Data.(pythonLook); ok && look.Packages[c.id] != "" {
			result.Value = look.Packages[c.id] + ", a package of " + look.Executable
			return result
		}
	}
	path, err := exec.LookPath(c.command)
	if err != nil {
		result.Status = statusMissing
		if result.Why == "" {
			result.Why = c.command +
				" is not on PATH; memroom still notices when it runs inside such a job"
		}
		return result
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, c.version...)
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	if err != nil {
		result.Status, result.Value, result.Why, result.Fix = statusWarn, path,
			c.command+" does not answer: "+err.Error(), "run it by hand"
		return result
	}
	first, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	result.Value = first
	return result
}
