package cli

import (
	"testing"
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

// TestTuneTrialsSurviveTheirLimits: memory that grows through system calls, beside neighbours, and
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
