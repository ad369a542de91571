//go:build linux && !race

package supervise_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"memroom/testenv"
)

// intruder connects to a keeper and asks it to start a command, under every role there is, and to
// end the one that runs. It prints how much was answered.
const intruder = `
import base64, json, socket, struct, sys
address, marker = sys.argv[1], sys.argv[2]
if address.startswith("@"):
    address = "\0" + address[1:]
word = lambda text: base64.b64encode(text.encode()).decode()
launch = {"attempt": 1, "path": word("/bin/sh"), "args": [word(a) for a in ("sh", "-c", "id -u > " + marker)],
          "env": [], "dir": word("/"), "streams": {"in": "null", "out": "null", "err": "null"}, "size": {"rows": 0, "cols": 0}}
def send(s, kind, value):
    payload = json.dumps(value).encode()
    s.sendall(kind + struct.pack(">I", len(payload)) + payload)
for role in ("front", "monitor", "attach", ""):
    s = socket.socket(socket.AF_UNIX)
    try:
        s.connect(address)
        send(s, b"h", {"role": role, "out": 0, "err": 0})
        send(s, b"L", launch)
        send(s, b"d", {})
        send(s, b"s", {"number": 9, "all": True})
        s.settimeout(0.5)
        print(role, "heard", len(s.recv(65536)), "bytes")
    except socket.timeout:
        print(role, "heard 0 bytes")
    except OSError as e:
        print(role, "refused:", e)
    s.close()
`

// intrude runs the intruder as a user against an address, and returns what it printed.
func (w *workshop) intrude(who asUser, address, marker string) string {
	w.Helper()
	cmd := exec.Command(python(w), "-c", intruder, address, marker)
	cmd.Dir = "/"
	if who == nobody {
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		w.Fatalf("intruder: %v\n%s", err, out)
	}
	return string(out)
}

// TestStrangersStartNothing: another user connects to a keeper that runs as root, over its file,
// with all permissions opened. Nothing of what it asks is done, neither now nor when the command
// has ended, and it gets no answer.
func TestStrangersStartNothing(t *testing.T) {
	needsRoot(t)
	w := newWorkshop(t, ourselves)
	marker := markerFor(t)
	cmd, folder := w.waiting()
	for dir := folder.Dir; len(dir) >= len(w.home); dir = filepath.Dir(dir) {
		chmod(t, dir, 0o777)
	}
	socket := folder.Path("keeper.sock")
	chmod(t, socket, 0o777)
	said := w.intrude(nobody, socket, marker)
	w.untouched(cmd, marker)
	if strings.Contains(said, "heard") && !onlyNothing(said) {
		t.Errorf("the stranger was told something:\n%s", said)
	}
}

// TestStrangersAtASocketWithoutAFile: the run's file system has no room for one more file, so the
// keeper's socket has none, and no permissions either.
func TestStrangersAtASocketWithoutAFile(t *testing.T) {
	needsRoot(t)
	for inodes := 4; inodes < 24; inodes++ {
		w := newWorkshopOn(t, "size=4m,nr_inodes="+strconv.Itoa(inodes))
		marker := markerFor(t)
		cmd := w.memroom("run", "--no-probe", "--quiet", "--", "sh", "-c",
			"echo up; read x; exit 6")
		release, up := w.hold(cmd)
		address := abstractSocket(w.newestID())
		if !up || address == "" {
			release()
			_ = cmd.Wait()
			continue
		}
		said := w.intrude(nobody, address, marker)
		if !onlyNothing(said) {
			t.Errorf("the stranger was told something:\n%s", said)
		}
		release()
		_ = cmd.Wait()
		if code := cmd.ProcessState.ExitCode(); code != 6 {
			t.Errorf("exit %d", code)
		}
		if data, err := os.ReadFile(marker); err == nil {
			t.Errorf("the stranger's command ran as user %s", data)
		}
		return
	}
	t.Error("no number of inodes made the keeper listen without a file")
}

// TestOwnProcessesMayNotLaunch: a process of the same user may attach, but only the front end that
// started the keeper and the monitor may start commands.
func TestOwnProcessesMayNotLaunch(t *testing.T) {
	w := newWorkshop(t, ourselves)
	marker := markerFor(t)
	cmd, folder := w.waiting()
	said := w.intrude(ourselves, folder.Path("keeper.sock"), marker)
	if !strings.Contains(said, "attach heard") {
		t.Errorf("our own process could not attach:\n%s", said)
	}
	for _, role := range []string{"front", "monitor"} {
		if strings.Contains(said, role+" heard") && !strings.Contains(said, role+" heard 0") {
			t.Errorf("taken for the %s:\n%s", role, said)
		}
	}
	w.untouched(cmd, marker)
}

// TestStrangersCannotAttach: another user can neither see a run nor leave anything in its terminal.
func TestStrangersCannotAttach(t *testing.T) {
	needsRoot(t)
	w := newWorkshop(t, ourselves)
	cmd, folder := w.waiting()
	for dir := folder.Dir; len(dir) >= len(w.home); dir = filepath.Dir(dir) {
		chmod(t, dir, 0o777)
	}
	chmod(t, folder.Path("keeper.sock"), 0o777)
	stranger := *w
	stranger.who = nobody
	got := stranger.finish(stranger.memroom("attach", folder.ID))
	if got.code == 0 || strings.Contains(got.out, "up") {
		t.Errorf("%+v", got)
	}
	w.untouched(cmd, markerFor(t))
}

// TestOwnCommandLinesTellNothing: what the user wants done under pressure may hold a token. It is
// in no command line but the one the user typed, and neither is it in the command's environment.
func TestOwnCommandLinesTellNothing(t *testing.T) {
	w := newWorkshop(t, ourselves)
	marker := markerFor(t)
	secret := "hf_abcdefghijklmnop"
	hook := "token=" + secret + "; cat /proc/$$/cmdline > " + marker
	cmd := w.memroom(append([]string{"run", "--host-mem", "200MiB", "--pressure-at", "0.3",
		"--on-pressure", hook, "--"}, w.script(`
import os, sys, time
kept = bytearray(120 << 20)
for i in range(0, len(kept), 4096): kept[i] = 1
print([k for k, v in os.environ.items() if "`+"hf_"+`" in v], flush=True)
sys.stdin.readline()
`)...)...)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.waitFolder()
	w.eventually("the hook", func() bool { data, _ := os.ReadFile(marker); return len(data) > 0 })
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range lines {
		data, _ := os.ReadFile(path)
		if bytes.Contains(data, []byte(secret)) && !strings.HasPrefix(path,
			"/proc/"+strconv.Itoa(cmd.Process.Pid)+"/") {
			t.Errorf("%s: %q", path, data)
		}
	}
	if data, _ := os.ReadFile(marker); bytes.Contains(data, []byte(secret)) {
		t.Errorf("the hook's command line: %q", data)
	}
	_ = in.Close()
	_ = cmd.Wait()
	if out.String() != "[]\n" {
		t.Errorf("variables with the token: %s\n%s", out.String(), errs.String())
	}
}

func needsRoot(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		testenv.Needs(t, "root", "to become a second user")
	}
}

// markerFor is a file that everybody may write to, and nobody has.
func markerFor(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "memroom-marker-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	chmod(t, dir, 0o777)
	return filepath.Join(dir, "marker")
}

func chmod(t *testing.T, path string, mode os.FileMode) {
	t.Helper()
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

// onlyNothing reports whether the intruder got no answer under any role.
func onlyNothing(said string) bool {
	for line := range strings.Lines(said) {
		if strings.Contains(line, " heard ") && !strings.Contains(line, " heard 0 ") {
			return false
		}
	}
	return true
}
