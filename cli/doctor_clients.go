package cli

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"time"
)

// client is a cluster tool that memroom can work with.
type client struct {
	id, title, command string
	version            []string
	inside             string // environment variable that is set inside one of its jobs
	use                string
}

var clients = []client{
	{"slurm", "Slurm", "sbatch", []string{"--version"}, "SLURM_JOB_ID", "trials as Slurm jobs"},
	{"ray", "Ray", "ray", []string{"--version"}, "RAY_JOB_ID", "trials on a Ray cluster"},
	{"kubernetes", "Kubernetes", "kubectl", []string{"version", "--client=true"}, "KUBERNETES_SERVICE_HOST", "trials as Kubernetes jobs"},
}

func checkClients(ctx context.Context) []check {
	var checks []check
	for _, c := range clients {
		checks = append(checks, checkClient(ctx, c))
	}
	return checks
}

func checkClient(ctx context.Context, c client) check {
	result := check{ID: c.id, Title: c.title, Status: statusOK}
	if os.Getenv(c.inside) != "" {
		result.Why = "this shell is inside one of its jobs (" + c.inside + " is set)"
	}
	path, err := exec.LookPath(c.command)
	if err != nil {
		result.Status = statusMissing
		if result.Why == "" {
			result.Why = c.command + " is not on PATH: no " + c.use
		}
		return result
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, c.version...)
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	if err != nil {
		result.Status, result.Value, result.Why, result.Fix = statusWarn, path, c.command+" does not answer: "+err.Error(), "run it by hand"
		return result
	}
	first, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	result.Value = first
	return result
}
