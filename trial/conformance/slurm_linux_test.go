package conformance

import (
	"crypto/rand"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"memroom/testenv"
)

// slurm is a cluster on the loopback interface, in a folder of its own: one node, and a smaller one
// that a test may start. Its State is not DOWN: a controller that starts again believes the file,
// and would end what runs there.
type slurm struct {
	dir  string
	skip string // why there is none
}

// small is the name of the second node. Its daemon believes that it runs on a host of that name.
const small = "memroom-small"

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
		out, _ := s.command("sinfo", "-h", "-t", "idle", "-o", "%T").Output()
		if strings.HasPrefix(string(out), "idle") {
			return
		}
		if time.Since(began) > 10*time.Minute {
			out, _ = s.command("sinfo").Output()
			s.skip = "its node does not become idle: " + string(out)
			return
		}
	}
}

// secondNode starts the smaller node and returns how it dies: its daemon, and all that runs there.
func (s *slurm) secondNode(t *testing.T) (kill func()) {
	t.Helper()
	if out, err := s.command("unshare", "--uts", "hostname", small).CombinedOutput(); err != nil {
		testenv.Needs(t, "a namespace for another host name", fmt.Sprintf("%v: %s", err, out))
	}
	node := s.command("unshare", "--uts", "sh", "-c",
		"hostname "+small+"; exec slurmd -D -c -N "+small)
	node.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	if err := node.Start(); err != nil {
		t.Fatal(err)
	}
	kill = func() {
		jobs, _ := s.command("squeue", "-h", "-w", small, "-o", "%A").Output()
		_ = node.Process.Kill()
		_ = node.Wait()
		for _, job := range strings.Fields(string(jobs)) {
			procs, _ := filepath.Glob("/sys/fs/cgroup/freezer/slurm*/uid_*/job_" + job +
				"/step_*/cgroup.procs")
			for _, path := range procs {
				pids, _ := os.ReadFile(path)
				for _, word := range strings.Fields(string(pids)) {
					if pid, err := strconv.Atoi(word); err == nil && pid > 1 {
						_ = syscall.Kill(pid, syscall.SIGKILL)
					}
				}
			}
		}
	}
	for began := time.Now(); ; time.Sleep(300 * time.Millisecond) {
		out, _ := s.command("sinfo", "-h", "-n", small, "-o", "%T").Output()
		if strings.TrimSpace(string(out)) == "idle" {
			return kill
		}
		if time.Since(began) > 10*time.Minute {
			kill()
			t.Fatalf("no second node after ten minutes: %s", out)
		}
	}
}

// jobsOfNodes counts the jobs that run on each node, the fewest first.
func (s *slurm) jobsOfNodes() ([]int, error) {
	out, err := s.command("squeue", "-h", "-r", "-t", "running", "-o", "%N").Output()
	each := map[string]int{}
	for _, node := range strings.Fields(string(out)) {
		each[node]++
	}
	return slices.Sorted(maps.Values(each)), err
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
SlurmdPidFile=%[2]s/slurmd.%%n.pid
SlurmctldLogFile=%[2]s/slurmctld.log
SlurmdLogFile=%[2]s/slurmd.%%n.log
StateSaveLocation=%[2]s/state
SlurmdSpoolDir=%[2]s/spool.%%n
SlurmdTimeout=10
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
NodeName=%[5]s NodeAddr=127.0.0.1 Port=%[6]d CPUs=8 RealMemory=1000 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
`, host, s.dir, freePort(), freePort(), small, freePort())
	for name, text := range map[string]string{"slurm.conf": conf, "key": string(key),
		"cgroup.conf": "CgroupMountpoint=/sys/fs/cgroup\nConstrainRAMSpace=yes\n"} {
		if err := os.WriteFile(filepath.Join(s.dir, name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	for _, name := range []string{"state", "spool." + host, "spool." + small} {
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
	host, _ := os.Hostname()
	host, _, _ = strings.Cut(host, ".")
	for _, name := range []string{"slurmd." + host, "slurmctld", "munge"} {
		s.end(name)
	}
	_ = os.RemoveAll(s.dir)
}
