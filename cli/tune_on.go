package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"memroom/trial/engine"
)

// addCluster keeps where the trials run. The address is fixed now: a study that is taken up again
// finds its jobs there.
func (c *tuneNewCmd) addCluster(spec *engine.Spec) error {
	spec.On = c.On
	switch {
	case c.On == "" || c.On == "local":
		spec.On = ""
	case c.On == "ray":
		spec.On = rayAddress(os.Getenv("RAY_API_SERVER_ADDRESS"), os.Getenv("RAY_ADDRESS"))
	case strings.HasPrefix(c.On, "ray://") && c.On != "ray://":
	case strings.HasPrefix(c.On, "ray+https://") && c.On != "ray+https://":
	case c.On == "slurm":
	default:
		return fmt.Errorf("--on %s is not known: ray://HOST:PORT, ray or slurm; on Kubernetes make "+
			"`memroom run` the command of a Job (examples/kubernetes-job.yaml)", c.On)
	}
	if len(c.Sbatch) > 0 && spec.On != "slurm" {
		return errors.New("--sbatch goes with --on slurm")
	}
	if c.WorkingDir == "" {
		return nil
	}
	if !strings.HasPrefix(spec.On, "ray") {
		return errors.New("--working-dir goes with --on ray")
	}
	spec.WorkDir = c.WorkingDir
	if strings.Contains(c.WorkingDir, "://") {
		return nil
	}
	if info, err := os.Stat(c.WorkingDir); err != nil || !info.IsDir() {
		return fmt.Errorf("--working-dir %s is not a folder", c.WorkingDir)
	}
	absolute, err := filepath.Abs(c.WorkingDir)
	spec.WorkDir = absolute
	return err
}

// rayAddress is the first that names a cluster, in our form; empty ones mean this machine's.
func rayAddress(given ...string) string {
	for _, address := range given {
		if address == "" || address == "auto" || address == "local" {
			continue
		}
		if _, rest, ok := strings.Cut(address, "://"); ok {
			if strings.HasPrefix(address, "https://") {
				return "ray+https://" + rest
			}
			address = rest
		}
		return "ray://" + strings.TrimRight(address, "/")
	}
	return "ray://127.0.0.1:8265"
}
