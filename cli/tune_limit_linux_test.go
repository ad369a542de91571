package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"memroom/testenv"
)

// Scripts whose memory grows through system calls. At the limit of a cgroup that waits, a thread
// that touches fresh memory stands still, but a system call that writes into it fails.
var throughCalls = map[string]string{
	"reads a file": `
import os, sys, tempfile
mb = int(sys.argv[1])
os.chdir(tempfile.mkdtemp(dir="."))
kept = []
with open("data", "wb") as f:
    f.write(bytes(4 << 20))
for i in range(mb // 4):
    with open("data", "rb", buffering=0) as f:
        kept.append(f.read(4 << 20))
    assert len(kept[-1]) == 4 << 20
print("loss=%d" % mb)
`,
	"reads from a pipe": `
import os, subprocess, sys
mb = int(sys.argv[1])
child = subprocess.Popen(["head", "-c", str(mb << 20), "/dev/zero"], stdout=subprocess.PIPE)
data = child.stdout.read()
assert len(data) == mb << 20, len(data)
print("loss=%d" % mb)
`,
	"gets signals": `
import mmap, signal, sys
mb = int(sys.argv[1])
seen = 0
def beat(*_):
    global seen
    seen += 1
signal.signal(signal.SIGALRM, beat)
signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
kept = []
for i in range(mb):
    block = mmap.mmap(-1, 1 << 20)
    for at in range(0, 1 << 20, 4096):
        block[at] = 1
    kept.append(block)
signal.setitimer(signal.ITIMER_REAL, 0)
print("loss=%d" % mb)
`,
}

// TestTuneTrialsSurviveTheirLimits: memory that grows through system calls, next to neighbours, and
// with a first reservation that is far too small. All must finish; none is a failure of its own.
func TestTuneTrialsSurviveTheirLimits(t *testing.T) {
	needCgroup(t)
	for name, script := range throughCalls {
		t.Run(name, func(t *testing.T) {
			r := newTune(t)
			r.file("grow.py", script)
			result, text, code := r.tune("--search", "grid", "--host-mem", "700MiB", "--no-probe",
				"--cpus-per-trial", "0.1", "--", "python", "grow.py", "choice(16,24,48,96,160,220,300,400)")
			if code != 0 || len(result.Trials) != 8 {
				t.Fatalf("exit %d\n%s", code, text)
			}
			for _, one := range result.Trials {
				if one.State != "finished" {
					t.Errorf("%s: %s after %d attempts\n%s", one.Params, one.State, one.Attempts, text)
				}
			}
		})
	}
}

// TestTuneOnAFullDisk: a trial fills the disk that the study is on. Nothing that was acknowledged
// is lost, the trouble is said, and with room again the study goes on to its end.
func TestTuneOnAFullDisk(t *testing.T) {
	if os.Getuid() != 0 {
		testenv.Needs(t, "root", "to mount a small file system")
	}
	r := newTune(t)
	home := filepath.Join(r.dir, "home")
	if err := os.Mkdir(home, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", home, "tmpfs", 0, "size=6m,mode=700"); err != nil {
		testenv.Needs(t, "mount", err.Error())
	}
	t.Cleanup(func() { _ = syscall.Unmount(home, syscall.MNT_DETACH) })
	r.file("fill.sh", `echo "$MEMROOM_TRIAL" >> ran
echo loss=1
if [ "$MEMROOM_TRIAL" = 3 ]; then cat /dev/zero > "$MEMROOM_HOME/fill"; fi
true
`)
	_, text, code := r.tune("--samples", "8", "--name", "full", "--no-probe", "--concurrent", "1",
		"--host-mem", "256MiB", "--", "sh", "fill.sh", "uniform(0,1)")
	if code == 0 || !strings.Contains(text, "no space left on device") {
		t.Errorf("exit %d\n%s", code, text)
	}
	if err := os.Remove(filepath.Join(home, "fill")); err != nil {
		t.Fatalf("the trial filled nothing: %v\n%s", err, text)
	}
	out := filepath.Join(r.dir, "out.json")
	again := r.command("tune", "resume", "--json", out, "full")
	if said, err := again.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s\nbefore that:\n%s", err, said, text)
	}
	data, err := os.ReadFile(out)
	if n := strings.Count(string(data), `"finished"`); err != nil || n != 8 {
		t.Errorf("%d of 8 finished: %v\n%s", n, err, data)
	}
	ran, _ := os.ReadFile(filepath.Join(r.dir, "ran"))
	count := map[string]int{}
	for _, id := range strings.Fields(string(ran)) {
		count[id]++
	}
	for id := range 8 { // an end that could not be written down was not acknowledged
		if n := count[strconv.Itoa(id)]; n != 1 &&
			strings.Contains(text, fmt.Sprintf("trial %d finished", id)) {
			t.Errorf("trial %d was told as finished and ran %d times", id, n)
		}
	}
}
