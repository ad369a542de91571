package conformance

import (
	"crypto/rand"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"memroom/testenv"
)

// slurm is a cluster of one node on the loopback interface, in a folder of its own.
type slurm struct {
	dir  string
	skip string // why there is none
}

var theSlurm slurm
var slurmOnce sync.Once

// startedSlurm returns the tests' Slurm, or skips with the reason.
func startedSlurm(t *testing.T) *slurm {
	t.Helper()
	slurmOnce.Do(theSlurm.start)
	if theSlurm.skip != "" {
		testenv.Needs(t, "a real Slurm", theSlurm.skip)
	}
	return &theSlurm
}

func (s *slurm) start() {
	for _, name := range []string{"sbatch", "slurmctld", "slurmd", "munged"} {
		if _, err := exec.LookPath(name); err != nil {
			s.skip = name + " is not installed (apt-get install slurm-wlm)"
			return
		}
	}
	if os.Geteuid() != 0 {
		s.skip = "slurmd keeps jobs in cgroups, which needs root"
		return
	}
	dir, err := os.MkdirTemp("/tmp", "mrs")
	if err != nil {
		s.skip = err.Error()
		return
	}
	s.dir = dir
	if err := s.write(); err != nil {
		s.skip = err.Error()
		return
	}
	for _, words := range [][]string{
		{"munged", "--force", "--key-file=" + dir + "/key", "--socket=" + dir + "/munge.sock",
			"--pid-file=" + dir + "/munge.pid", "--log-file=" + dir + "/munge.log",
			"--seed-file=" + dir + "/munge.seed"},
		{"slurmctld", "-c", "-i"}, {"slurmd", "-c"}} {
		if out, err := s.command(words...).CombinedOutput(); err != nil {
			s.skip = fmt.Sprintf("%s: %v: %s", words[0], err, out)
			return
		}
	}
	for began := time.Now(); ; time.Sleep(200 * time.Millisecond) {
		out, _ := s.command("sinfo", "-h", "-o", "%T").Output()
		if strings.HasPrefix(string(out), "idle") {
			return
		}
		if time.Since(began) > 10*time.Minute {
			s.skip = "its node does not become idle: " + string(out)
			return
		}
	}
}

func (s *slurm) write() error {
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	host, _, _ = strings.Cut(host, ".")
	key := make([]byte, 1024)
	_, _ = rand.Read(key)
	conf := fmt.Sprintf(`ClusterName=memroom
SlurmctldHost=%[1]s(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthInfo=socket=%[2]s/munge.sock
SlurmctldPort=%[3]d
SlurmdPort=%[4]d
SlurmctldPidFile=%[2]s/slurmctld.pid
SlurmdPidFile=%[2]s/slurmd.pid
SlurmctldLogFile=%[2]s/slurmctld.log
SlurmdLogFile=%[2]s/slurmd.log
StateSaveLocation=%[2]s/state
SlurmdSpoolDir=%[2]s/spool
SlurmdParameters=config_overrides
ReturnToService=2
ProctrackType=proctrack/cgroup
TaskPlugin=task/cgroup
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0
JobAcctGatherType=jobacct_gather/cgroup
MpiDefault=none
KillWait=5
NodeName=%[1]s NodeAddr=127.0.0.1 CPUs=8 RealMemory=2000 State=UNKNOWN
PartitionName=all Nodes=%[1]s Default=YES MaxTime=INFINITE State=UP
`, host, s.dir, freePort(), freePort())
	for name, text := range map[string]string{"slurm.conf": conf, "key": string(key),
		"cgroup.conf": "CgroupMountpoint=/sys/fs/cgroup\nConstrainRAMSpace=yes\n"} {
		if err := os.WriteFile(filepath.Join(s.dir, name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	for _, name := range []string{"state", "spool"} {
		if err := os.Mkdir(filepath.Join(s.dir, name), 0o755); err != nil {
			return err
		}
	}
	return os.Chmod(s.dir, 0o755)
}

func (s *slurm) env() []string { return []string{"SLURM_CONF=" + s.dir + "/slurm.conf"} }

func (s *slurm) command(words ...string) *exec.Cmd {
	cmd := exec.Command(words[0], words[1:]...)
	cmd.Env = append(os.Environ(), s.env()...)
	return cmd
}

// outage takes the controller away for some seconds.
func (s *slurm) outage(t *testing.T) {
	s.end("slurmctld")
	time.Sleep(3 * time.Second)
	if out, err := s.command("slurmctld").CombinedOutput(); err != nil {
		t.Fatalf("start slurmctld again: %v: %s", err, out)
	}
}

// end ends one of our daemons and waits for it.
func (s *slurm) end(name string) {
	data, err := os.ReadFile(filepath.Join(s.dir, name+".pid"))
	if err != nil {
		return
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil || pid <= 1 {
		return
	}
	_ = syscall.Kill(pid, syscall.SIGTERM)
	for range 100 {
		if syscall.Kill(pid, 0) != nil {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	_ = syscall.Kill(pid, syscall.SIGKILL)
}

func (s *slurm) stop() {
	if s.dir == "" {
		return
	}
	_ = s.command("scancel", "--me").Run()
	for _, name := range []string{"slurmd", "slurmctld", "munge"} {
		s.end(name)
	}
	_ = os.RemoveAll(s.dir)
}
