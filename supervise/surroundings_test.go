//go:build linux && !race

package supervise_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"memroom/event"
	"memroom/store"
	"memroom/supervise"
	"memroom/testenv"
)

// TestSameSurroundings: but for our variables the command finds everything as without us: limits,
// umask, niceness, working folder, signal mask, ignored signals, open files, environment.
func TestSameSurroundings(t *testing.T) {
	w := newWorkshop(t, ourselves)
	look := `ulimit -a; umask; nice; pwd; grep -E 'Sig(Blk|Ign|Cgt)|ShdPnd|CapEff|NoNewPrivs|THP_enabled' /proc/self/status; cat /proc/self/oom_score_adj; ls -1 /proc/self/fd | wc -l; env | grep -v -E '^(MEMROOM_|PYTHONPATH=|_=|SHLVL=|PWD=|OLDPWD=)' | sort`
	script := w.file("look.sh", look)
	through := func(command string) string {
		cmd := exec.Command("bash", "-c", "umask 027; ulimit -n 500; exec nice -n 3 "+command)
		cmd.Env = append(w.memroom().Env, "SPECIAL=a b")
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	without, with := through("bash "+script), through(binary+" run --no-probe -- bash "+script)
	if without != with {
		t.Errorf("without:\n%s\nwith:\n%s", without, with)
	}
}

// TestEnclosingCgroup: an unprivileged user in a container-like cgroup with a limit. memroom cannot
// make a cgroup of its own there; the kernel's kill is read from the enclosing one.
func TestEnclosingCgroup(t *testing.T) {
	if os.Getuid() != 0 {
		testenv.Needs(t, "root", "to make the enclosing cgroup")
	}
	dir := enclose(t, 160*event.MiB)
	w := newWorkshop(t, nobody)
	cmd := w.memroom(append([]string{"run", "--"}, w.script(hog)...)...)
	inside := exec.Command("sh", "-c", `echo 0 > "$0/cgroup.procs"; exec "$@"`, dir, "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
	inside.Args = append(inside.Args, cmd.Args...)
	inside.Env, inside.Dir = cmd.Env, w.home
	got := w.finish(inside)
	v, state := w.verdict(w.folder()), w.state(w.folder())
	if state.Cgroup != "" {
		t.Fatalf("nobody could make %s", state.Cgroup)
	}
	if got.code != 137 || !v.IsOOM || v.KilledBy != "cgroup" || v.Where != event.WhereCgroup {
		t.Errorf("exit %d, %+v\n%s", got.code, v, got.err)
	}
	if !strings.Contains(strings.Join(v.Evidence, "\n"), "enclosing cgroup") {
		t.Errorf("evidence %q", v.Evidence)
	}
}

// enclose makes a cgroup with a limit, of whichever version has the memory controller.
func enclose(t *testing.T, limit event.Bytes) string {
	t.Helper()
	for _, at := range [][2]string{{"/sys/fs/cgroup/memory", "memory.limit_in_bytes"},
		{"/sys/fs/cgroup", "memory.max"}} {
		dir := filepath.Join(at[0], fmt.Sprintf("memroom-test-%d", os.Getpid()))
		if os.Mkdir(dir, 0o755) != nil {
			continue
		}
		t.Cleanup(func() { _ = syscall.Rmdir(dir) })
		// a missing folder is no cgroup: nothing is created
		file, err := os.OpenFile(filepath.Join(dir, at[1]), os.O_WRONLY, 0)
		if err != nil {
			continue
		}
		_, err = file.WriteString(strconv.FormatInt(int64(limit), 10))
		if file.Close(); err == nil {
			return dir
		}
	}
	testenv.Needs(t, "a cgroup with a memory limit", "none could be made")
	return ""
}

// TestFullSharedMemory: a command that writes to a shared memory file system without room dies of a
// bus error.
func TestFullSharedMemory(t *testing.T) {
	if os.Getuid() != 0 {
		testenv.Needs(t, "root", "to mount a small /dev/shm")
	}
	w := newWorkshop(t, ourselves)
	program := w.script(`
import mmap, os, time
f = os.open("/dev/shm/memroom-test", os.O_RDWR | os.O_CREAT)
os.ftruncate(f, 64 << 20)
m = mmap.mmap(f, 64 << 20)
for at in range(0, 64 << 20, 1 << 20):
    m[at:at + (1 << 20)] = b"x" * (1 << 20)
    time.sleep(0.15 if at > (6 << 20) else 0)
`)
	// in a mount namespace of its own the job, and memroom with it, sees a /dev/shm of 12 MiB
	cmd := exec.Command("unshare", "-m", "sh", "-c", `mount -t tmpfs -o size=12m tmpfs /dev/shm && exec "$@"`, "sh")
	cmd.Args = append(cmd.Args, w.memroom(append([]string{"run", "--"}, program...)...).Args...)
	cmd.Env = w.memroom().Env
	got := w.finish(cmd)
	if strings.Contains(got.err, "unshare:") || strings.Contains(got.err, "mount:") {
		testenv.Needs(t, "mount namespaces", got.err)
	}
	if v := w.verdict(w.folder()); got.code != 128+7 || !v.IsOOM || v.Where != event.WhereShm {
		t.Errorf("exit %d, %+v\n%s", got.code, v, got.err)
	}
}

// TestNested: a run inside a run. Both see the exit code; the inner one's limit holds inside the
// outer one's.
func TestNested(t *testing.T) {
	w := newWorkshop(t, ourselves)
	got := w.run("--name", "outer", "--", binary, "run", "--name", "inner", "--", "sh", "-c",
		"echo words; exit 7")
	if got.code != 7 || got.out != "words\n" {
		t.Errorf("%+v", got)
	}
	kept := &store.Store{Home: w.records()}
	for _, name := range []string{"outer", "inner"} {
		folder, err := kept.Find(name)
		if err != nil {
			t.Fatal(err)
		}
		if v := w.verdict(folder); v.ExitCode != 7 || v.IsOOM {
			t.Errorf("%s: %+v", name, v)
		}
	}
}

// TestManyChildren: five hundred processes at once, all of which stay zombies for a while.
func TestManyChildren(t *testing.T) {
	w := newWorkshop(t, ourselves)
	got := w.run(append([]string{"--"}, w.script(waitsForReadings+`
hear, say = os.pipe()
children = []
for _ in range(500):
    pid = os.fork()
    if pid == 0:
        os.close(say); os.read(hear, 1); os._exit(0)
    children.append(pid)
readings(3)
os.close(say)
readings(3)
for pid in children: os.waitpid(pid, 0)
print("done")
`)...)...)
	summary, err := w.folder().Summary()
	if err != nil || got.out != "done\n" || got.code != 0 {
		t.Fatalf("%+v %v", got, err)
	}
	if summary.Peaks.Processes < 500 || summary.Verdict.IsOOM {
		t.Errorf("%d processes seen, verdict %+v", summary.Peaks.Processes, summary.Verdict)
	}
}

// TestForkedWorkersCountOnce: pages that workers share with their parent are memory once, in the
// peak and in the account.
func TestForkedWorkersCountOnce(t *testing.T) {
	w := newWorkshop(t, ourselves)
	got := w.run(append([]string{"--host-mem", "600MiB", "--"}, w.script(waitsForReadings+`
kept = bytearray(150 << 20)
for i in range(0, len(kept), 4096):
    kept[i] = 1
hear, say = os.pipe()
for _ in range(4):
    if os.fork() == 0:
        os.close(say); os.read(hear, 1); os._exit(0)
readings(8)
os.close(say)
readings(4)
`)...)...)
	folder := w.folder()
	if w.state(folder).Cgroup == "" {
		testenv.Needs(t, "a cgroup of the run's own",
			"without one the sum over processes is an upper bound")
	}
	summary, err := folder.Summary()
	if err != nil || got.code != 0 {
		t.Fatalf("%+v, %v", got, err)
	}
	if peak := summary.Peaks.Unreclaimable; peak < 150*event.MiB || peak > 400*event.MiB {
		t.Errorf("peak %s, resident %s: the pages are there once", peak, summary.Peaks.Resident)
	}
	var now supervise.Now
	if err := folder.Progress(&now); err != nil || now.Host == nil ||
		now.Host.Sum() != now.Host.Limit || now.Host.Overlap != 0 {
		t.Errorf("account %+v, %v", now.Host, err)
	}
}
