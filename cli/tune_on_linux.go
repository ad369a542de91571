package cli

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"memroom/event"
	"memroom/trial"
	"memroom/trial/engine"
	"memroom/trial/ray"
	"memroom/trial/remote"
	"memroom/trial/slurm"
)

// cluster is somebody else's scheduler, opened.
type cluster interface {
	remote.Engine
	Open() error
	// Take receives the study's folder for jobs, once the study exists.
	Take(dir string) error
}

// openCluster runs trials as jobs of Ray or Slurm.
func (t *tuning) openCluster(spec *engine.Spec) error {
	if spec.On == "slurm" {
		t.cluster = &slurm.Engine{JobName: jobName(spec), Args: spec.Sbatch}
	} else {
		t.cluster = &ray.Engine{Address: strings.Replace(spec.On, "ray+https://", "https://", 1),
			Folder: spec.WorkDir, GPUMem: spec.GPUMem, Token: rayToken()}
	}
	if err := t.cluster.Open(); err != nil {
		return err
	}
	b := &remote.Backend{Engine: t.cluster, Host: spec.HostMem, GPU: spec.GPUMem,
		New:  func(l trial.Launch) (remote.Job, error) { return t.remoteJob(l) },
		Note: func(text string) { t.engine.Note(text) }}
	if err := b.Open(); err != nil {
		return err
	}
	t.backend = b
	return nil
}

// rayToken is what Ray's own command line would send: from the environment, a file that it names,
// or the file in the user's home.
func rayToken() string {
	if token := os.Getenv("RAY_AUTH_TOKEN"); token != "" {
		return strings.TrimSpace(token)
	}
	path := os.Getenv("RAY_AUTH_TOKEN_PATH")
	if path == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return ""
		}
		path = filepath.Join(home, ".ray", "auth_token")
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

// jobName is the study's name on a cluster. Studies of other people, homes and days have the same
// name easily, so it carries a mark of this one.
func jobName(spec *engine.Spec) string {
	host, _ := os.Hostname()
	sum := sha256.Sum256([]byte(fmt.Sprint(host, spec.Dir, spec.Created.UnixNano(), spec.Name)))
	return fmt.Sprintf("memroom-%s-%x", spec.Name, sum[:4])
}

// remoteJob describes an attempt as a job: memroom run with the trial's caps around its command.
func (t *tuning) remoteJob(l trial.Launch) (remote.Job, error) {
	spec := t.engine.Spec
	command, err := t.commandOf(l)
	if err != nil {
		return remote.Job{}, err
	}
	job := remote.Job{ID: fmt.Sprintf("%s-t%d-a%d", jobName(&spec), l.Trial, l.Attempt), Launch: l,
		Env: t.variables(l), Dir: spec.Dir}
	if home := os.Getenv("MEMROOM_HOME"); home != "" && spec.WorkDir == "" {
		job.Env["MEMROOM_HOME"] = home // the nodes see our folders
	}
	words := []string{"run", "--relay", job.ID, "--quiet",
		"--name", fmt.Sprintf("%s/%d", spec.Name, l.Trial), "--tag", "study:" + spec.Name,
		"--host-mem", bytesArgument(l.Host)}
	if t.capsCards(l) {
		words = append(words, "--gpu-mem", bytesArgument(l.Device))
	}
	if l.Fit {
		words = append(words, "--fit")
	}
	if !spec.Probe {
		words = append(words, "--no-probe")
	}
	job.Command = append(append(memroomThere(), words...), "--")
	job.Command = append(job.Command, command...)
	return job, nil
}

// capsCards reports whether a trial shares its card: one that has a whole card of unknown size may
// take all of it, unless the user said how much.
func (t *tuning) capsCards(l trial.Launch) bool {
	capacity, err := t.backend.Capacity()
	if err != nil || len(l.Cards) == 0 || len(capacity.Cards) == 0 || l.Device <= 0 {
		return false
	}
	known := capacity.Cards[0].Budget < remote.UnknownCard
	return l.Device < remote.UnknownCard && (known || t.engine.Spec.Options.TrialDevice > 0)
}

func bytesArgument(b event.Bytes) string { return fmt.Sprintf("%dB", int64(b)) }

// memroomThere starts memroom on a node: the file that runs here where the node sees it, else the
// one on its PATH.
func memroomThere() []string {
	own, err := os.Executable()
	if err != nil {
		own = "memroom"
	}
	if found, err := exec.LookPath("memroom"); err == nil && !strings.Contains(own, "/") {
		own = found
	}
	return []string{"/bin/sh", "-c", `if [ -x "$0" ]; then exec "$0" "$@"; fi
command -v memroom > /dev/null && exec memroom "$@"
echo "memroom: it is not installed on this node ($(hostname)): put it on PATH there" >&2
exit 127`, own}
}
