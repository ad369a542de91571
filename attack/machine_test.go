package attack

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"memroom/testenv"
)

// linux skips tests that need Linux.
func linux(t testing.TB) {
	t.Helper()
	if runtime.GOOS != "linux" {
		testenv.Needs(t, "Linux", "runs are watched there only")
	}
}

// job starts memroom with a command, in a home of its own.
type job struct {
	*exec.Cmd
	out, errs bytes.Buffer
	home      string
	dir       string
}

func start(t testing.TB, home string, args ...string) *job {
	t.Helper()
	j := &job{home: home, dir: t.TempDir()}
	j.Cmd = exec.Command(memroom(t), append([]string{"run"}, args...)...)
	j.Env = append(os.Environ(), "MEMROOM_HOME="+home)
	j.Stdout, j.Stderr, j.Dir = &j.out, &j.errs, j.dir
	if err := j.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = j.Process.Kill(); _ = j.Wait() })
	return j
}

// parts lists memroom's own processes of a kind ("_keeper", "_monitor") for one home.
func parts(home, kind string) (pids []int) {
	dirs, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range dirs {
		line, err := os.ReadFile(path)
		if err == nil && bytes.Contains(line, []byte("\x00"+kind+"\x00"+home)) {
			pid, _ := strconv.Atoi(strings.Split(path, "/")[2])
			pids = append(pids, pid)
		}
	}
	return pids
}

// TestKills kills the front end, or the monitor, at any moment. The command must go on to its end.
func TestKills(t *testing.T) {
	linux(t)
	r := seeded("kills")
	for i := range times(6, 60) {
		home := filepath.Join(t.TempDir(), "home")
		j := start(t, home, "--", "sh", "-c", "echo $$ > pid; sleep 0.7; echo done > done; exit 7")
		eventually(t, "the command starts", func() bool {
			_, err := os.Stat(filepath.Join(j.dir, "pid"))
			return err == nil
		})
		time.Sleep(time.Duration(r.IntN(400)) * time.Millisecond)
		victim := "the front end"
		if i%2 == 0 {
			_ = j.Process.Kill()
		} else {
			victim = "the monitor"
			for _, pid := range parts(home, "_monitor") {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
		err := j.Wait()
		eventually(t, "the command ends after "+victim+" was killed", func() bool {
			_, err := os.Stat(filepath.Join(j.dir, "done"))
			return err == nil
		})
		if i%2 == 1 && (err == nil || j.ProcessState.ExitCode() != 7) {
			t.Errorf("the monitor was killed: exit code %d, want the command's 7\n%s",
				j.ProcessState.ExitCode(), j.errs.String())
		}
		eventually(t, "the keeper goes", func() bool { return len(parts(home, "_keeper")) == 0 })
		tally.add("kills", false, 0)
	}
}

// TestSecondUserAtAStudy: another user sees nothing of a study and cannot take it up.
func TestSecondUserAtAStudy(t *testing.T) {
	linux(t)
	root(t)
	home := filepath.Join(t.TempDir(), "home")
	env := []string{"MEMROOM_HOME=" + home}
	o := run(t, env, "", "tune", "--name", "mine", "--samples", "2", "--metric", "loss", "--mode",
		"min", "--", "sh", "-c", "echo loss=$0", "uniform(0.1,0.2)")
	if o.code != 0 {
		t.Fatalf("code %d: %s", o.code, o.stderr)
	}
	for _, args := range [][]string{{"tune", "list"}, {"tune", "show", "mine"},
		{"tune", "resume", "mine"}, {"tune", "rm", "mine"}} {
		cmd := exec.Command(memroom(t), args...)
		cmd.Env = append(os.Environ(), env...)
		cmd.Dir = "/"
		o := finish(t, asNobody(cmd))
		tally.add("looks of another user", o.code != 0, 0)
		if strings.Contains(o.stdout, "best") || crash.MatchString(o.stderr) || o.code == 0 &&
			strings.Contains(o.stdout, "mine") {
			t.Errorf("another user's memroom %v: code %d, %s %s", args, o.code, o.stdout, o.stderr)
		}
	}
	if o := run(t, env, "", "tune", "show", "mine"); o.code != 0 ||
		!strings.Contains(o.stdout, "best: trial") {
		t.Errorf("afterwards: code %d, %s %s", o.code, o.stdout, o.stderr)
	}
}

// TestWithoutProc: where there is no /proc a command runs without us, and we say why. What needs us
// is refused.
func TestWithoutProc(t *testing.T) {
	linux(t)
	root(t)
	for _, c := range []struct {
		flags []string
		code  int
	}{{nil, 7}, {[]string{"--host-mem", "1GiB"}, 125}, {[]string{"--fit"}, 125}} {
		cmd := exec.Command("unshare", append(append([]string{"-m", "sh", "-c",
			`umount -l /proc && exec "$@"`, "sh", memroom(t), "run"}, c.flags...), "--", "sh", "-c",
			"echo it ran; exit 7")...)
		cmd.Env = append(os.Environ(), "MEMROOM_HOME="+filepath.Join(t.TempDir(), "home"))
		o := finish(t, cmd)
		tally.add("machines without /proc", o.code != 7, 0)
		if o.code != c.code || strings.Contains(o.stdout, "it ran") != (c.code == 7) ||
			!strings.Contains(o.stderr, "/proc") || strings.Contains(o.stderr, "ulimit") {
			t.Errorf("%q: code %d, %q, %s", c.flags, o.code, o.stdout, o.stderr)
		}
	}
}

// copyOfSelf puts this test's binary where another user may run it.
func copyOfSelf(t testing.TB) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	data := testenv.Read(t, self)
	dir, err := os.MkdirTemp("", "memroom-attack-") // folders of t.TempDir admit their owner only
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "knock")
	if err := errors.Join(os.Chmod(dir, 0o755), os.WriteFile(path, data, 0o755)); err != nil {
		t.Fatal(err)
	}
	return path
}

// asNobody runs a program as another user.
func asNobody(cmd *exec.Cmd) *exec.Cmd {
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	cmd.Env = append(cmd.Environ(), "HOME=/proc/nowhere") // where not even root can make a folder
	return cmd
}

// TestSecondUser lets another user knock on every socket of a run, and look into its home.
func TestSecondUser(t *testing.T) {
	linux(t)
	root(t)
	self := copyOfSelf(t)
	before := sockets(t)
	home := filepath.Join(t.TempDir(), "home")
	j := start(t, home, "--", "sh", "-c", "echo started > started; sleep 3; exit 5")
	eventually(t, "the command starts", func() bool {
		_, err := os.Stat(filepath.Join(j.dir, "started"))
		return err == nil
	})
	var found int
	owned := filepath.Join(os.TempDir(), fmt.Sprintf("memroom-owned-%d", os.Getpid()))
	for name := range sockets(t) {
		if before[name] {
			continue
		}
		found++
		for range times(3, 30) {
			cmd := exec.Command(self, owned)
			cmd.Env = []string{knockEnv + "=" + name}
			cmd.Dir = "/"
			o := finish(t, asNobody(cmd))
			refused := strings.Contains(o.stdout, "refused")
			tally.add("knocks of another user", refused, 0)
			if strings.Contains(o.stdout, "answered") {
				t.Errorf("another user got an answer from %s: %s", name, o.stdout)
			}
		}
	}
	if found == 0 {
		t.Log("the run has no socket with a name")
	}
	for _, args := range [][]string{{"runs"}, {"show", "last"}, {"top"}, {"explain"}} {
		cmd := exec.Command(memroom(t), args...)
		cmd.Env = append(os.Environ(), "MEMROOM_HOME="+home)
		cmd.Dir = "/"
		o := finish(t, asNobody(cmd))
		tally.add("looks of another user", o.code == 2, 0)
		if o.code == 0 && strings.Contains(o.stdout, "started") || crash.MatchString(o.stderr) {
			t.Errorf("another user's memroom %v: code %d, %s %s", args, o.code, o.stdout, o.stderr)
		}
	}
	if err := j.Wait(); j.ProcessState.ExitCode() != 5 {
		t.Errorf("the run ended with %v, want 5: %s", err, j.errs.String())
	}
	if _, err := os.Stat(owned); err == nil {
		os.Remove(owned)
		t.Error("another user had a command run")
	}
}

// knockEnv makes this test's binary knock on the socket it names, and nothing else.
const knockEnv = "MEMROOM_ATTACK_KNOCK"

// knock connects to a socket and sends what a front end might send, then nonsense.
func knock(name, owned string) string {
	c, err := net.Dial("unix", name) // a name that begins with @ is an abstract one
	if err != nil {
		return "refused: " + err.Error()
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(2 * time.Second)) // whoever keeps quiet has not answered
	var said bytes.Buffer
	for _, launch := range []string{`{"argv": ["touch", %q]}`, `{"Args": ["touch", %q]}`,
		`{"command": ["touch", %q], "dir": "/"}`} {
		body := fmt.Appendf(nil, launch, owned)
		for kind := range byte(128) {
			said.WriteByte(kind)
			said.Write(binary.LittleEndian.AppendUint32(nil, uint32(len(body))))
			said.Write(body)
		}
		fmt.Fprintf(&said, "%s\n", body)
	}
	said.Write(bytes.Repeat([]byte{0xff}, 4096))
	_, _ = c.Write(said.Bytes())
	answer := make([]byte, 80)
	if n, _ := c.Read(answer); n > 0 {
		return fmt.Sprintf("answered %q", answer[:n])
	}
	return "refused: nothing came back"
}

// sockets lists the named unix sockets that somebody listens on.
func sockets(t testing.TB) map[string]bool {
	t.Helper()
	data := testenv.Read(t, "/proc/net/unix")
	names := map[string]bool{}
	for _, line := range strings.Split(string(data), "\n") {
		if f := strings.Fields(line); len(f) == 8 && f[3] == "00010000" {
			names[f[7]] = true
		}
	}
	return names
}

// TestFullDisks runs commands with a home on a disk that is full, or fills while they print. The
// command's output and exit code must come through.
func TestFullDisks(t *testing.T) {
	linux(t)
	for i := range times(4, 24) {
		disk := smallDisk(t, 4096*(1+i*i))
		j := start(t, filepath.Join(disk, "home"), "--", "sh", "-c",
			"for i in 1 2 3 4 5 6 7 8; do head -c 20000 /dev/zero | tr '\\0' x; done; echo; echo end; exit 3")
		_ = j.Wait()
		code := j.ProcessState.ExitCode()
		tally.add("full disks", code != 3, 0)
		switch {
		case crash.MatchString(j.errs.String()):
			t.Errorf("%d bytes of disk: it crashed: %s", 4096*(1+i*i), j.errs.String())
		case code == 3 && !strings.HasSuffix(j.out.String(), "\nend\n"):
			t.Errorf("%d bytes of disk: the end of the output is lost: %d bytes came", 4096*(1+i*i),
				j.out.Len())
		case code != 3 && (code != 125 || !strings.Contains(j.errs.String(), "no space left")):
			t.Errorf("%d bytes of disk: exit code %d: %s", 4096*(1+i*i), code, j.errs.String())
		}
	}
	full := filepath.Join(smallDisk(t, 64<<10), "page.html")
	filler := filepath.Join(filepath.Dir(full), "filler")
	_ = os.WriteFile(filler, make([]byte, 1<<20), 0o600) // takes all there is
	snapshot := filepath.Join(testenv.Root(t), "cli", "testdata", "mlp.pickle.gz")
	for _, args := range [][]string{{"snapshot", snapshot, "--html", full},
		{"snapshot", snapshot, "--pprof", full}, {"snapshot", snapshot, "--perfetto", full}} {
		o := run(t, nil, "", args...)
		tally.add("full disks", true, 0)
		if o.code != 2 || !strings.Contains(o.stderr, "no space left") {
			t.Errorf("memroom %v: code %d, %s", args, o.code, o.stderr)
		}
		if left, _ := os.ReadDir(filepath.Dir(full)); len(left) != 1 {
			t.Errorf("memroom %v left %v", args, left)
		}
	}
}

// TestNobodyListens prints into a full device: a success would be a lie.
func TestNobodyListens(t *testing.T) {
	linux(t)
	testdata := filepath.Join(testenv.Root(t), "cli", "testdata")
	for _, args := range [][]string{{"snapshot", testdata + "/mlp.pickle.gz"},
		{"replay", testdata + "/mlp.pickle.gz"}, {"explain", testdata + "/train.log"},
		{"plan", testdata + "/config.json"}, {"version"}, {"--help"}, {"snapshot",
			testdata + "/mlp.pickle.gz", "--json"}, {"plan", testdata + "/config.json", "--json"}} {
		full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
		if err != nil {
			testenv.Needs(t, "/dev/full", err.Error())
		}
		cmd := exec.Command(memroom(t), args...)
		cmd.Env = append(os.Environ(), "MEMROOM_HOME="+t.TempDir())
		cmd.Stdout = full
		var errs bytes.Buffer
		cmd.Stderr = &errs
		_ = cmd.Run()
		full.Close()
		tally.add("full standard outputs", true, 0)
		if code := cmd.ProcessState.ExitCode(); code == 0 || crash.MatchString(errs.String()) {
			t.Errorf("memroom %v > /dev/full: exit code %d, %s", args, code, errs.String())
		}
	}
}

// TestReadOnlyHome reads runs from a home that cannot be written, and changes nothing in it.
func TestReadOnlyHome(t *testing.T) {
	linux(t)
	disk := smallDisk(t, 8<<20)
	home := filepath.Join(disk, "home")
	j := start(t, home, "--name", "first", "--", "true")
	if err := j.Wait(); err != nil {
		t.Fatal(err, j.errs.String())
	}
	readOnly(t, disk)
	for _, args := range [][]string{{"runs"}, {"show", "first"}, {"explain", "first"},
		{"snapshot", filepath.Join(testenv.Root(t), "cli", "testdata", "mlp.pickle.gz")},
		{"plan", filepath.Join(testenv.Root(t), "cli", "testdata", "config.json")}} {
		o := run(t, []string{"MEMROOM_HOME=" + home}, "", args...)
		tally.add("read-only homes", o.code == 2, 0)
		if o.code != 0 && o.code != 4 || crash.MatchString(o.stderr) {
			t.Errorf("memroom %v: code %d, %s", args, o.code, o.stderr)
		}
	}
}

// TestEscapes puts what a terminal obeys into every text that memroom prints back.
func TestEscapes(t *testing.T) {
	linux(t)
	evil := "\x1b]0;owned\x07\x1b[2J\x9b31m\u009b31m\r\x7f"
	name := strings.ReplaceAll(evil, "/", "")
	dir := t.TempDir()
	home := filepath.Join(t.TempDir(), "home")
	j := start(t, home, "--name", "n"+name, "--tag", "t"+name, "--", "sh", "-c", "exit 1", evil)
	_ = j.Wait()
	file := filepath.Join(dir, "f"+name)
	testenv.Write(t, file, []byte("nothing "+evil))
	outs := []outcome{{stdout: j.out.String(), stderr: j.errs.String()}}
	commands := [][]string{{"runs"}, {"show", "last"}, {"explain"}, {"explain", file},
		{"snapshot", file},
		{"replay", file}, {"plan", file}, {"lint", file}, {"show", "x" + evil}, {"runs", evil},
		{"snapshot", file + evil}, {"plan", "--preset", evil},
		{"replay", file, "--alloc-conf", evil},
		{evil}, {"--" + evil}, {"rm", evil}, {"snapshot", file, "--html", evil + "/x"},
		{"run", "--", "/x" + evil}, {"show", "last", "--share"}}
	for _, args := range commands {
		outs = append(outs, run(t, []string{"MEMROOM_HOME=" + home}, "", args...))
	}
	for i, o := range outs {
		tally.add("escapes", o.code == 2, 0)
		if control.MatchString(o.stdout + o.stderr) {
			what := "run"
			if i > 0 {
				what = fmt.Sprintf("%.20q", commands[i-1])
			}
			t.Errorf("memroom %s prints control characters: %q %q", what, shorten(o.stdout),
				shorten(o.stderr))
		}
	}
}

// secrets are forms in which people hand over tokens. SECRET stands for the token itself.
var secrets = [][]string{
	{"--api-key", "SECRET"}, {"--api-key=SECRET"}, {"--wandb_key", "SECRET"}, {"--token=SECRET"},
	{"--hf-token", "SECRET"}, {"password=SECRET"}, {"WANDB_API_KEY=SECRET"},
	{"Authorization: Bearer SECRET"}, {`{"token": "SECRET"}`}, {"https://user:SECRET@example.com/x"},
	{"https://example.com/?token=SECRET"}, {"login('hf_SECRET')"}, {"--secret", "SECRET"},
}

// TestSecrets runs commands with tokens in their arguments and looks for them in everything that is
// meant to be shown to others.
func TestSecrets(t *testing.T) {
	linux(t)
	for i, form := range secrets {
		token := fmt.Sprintf("zQ8%dkLmNpRsTuVwXyZaBcDeFgHiJkLmN%d", i, i)
		home := filepath.Join(t.TempDir(), "home")
		args := []string{"--name", "secret", "--", "sh", "-c", "exit 1", "train.py"}
		for _, a := range form {
			args = append(args, strings.ReplaceAll(a, "SECRET", token))
		}
		j := start(t, home, args...)
		_ = j.Wait()
		o := run(t, []string{"MEMROOM_HOME=" + home}, "", "show", "secret", "--share")
		tally.add("secrets", !strings.Contains(o.stdout, token), 0)
		if strings.Contains(o.stdout+o.stderr, token) {
			t.Errorf("%q: `show --share` prints the token", form)
		}
		for _, file := range filesWith(t, home, token) {
			t.Errorf("%q: the token is in %s", form, file)
		}
	}
}

// filesWith lists the files below a folder that contain a text.
func filesWith(t testing.TB, dir, text string) (found []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		if err == nil && bytes.Contains(data, []byte(text)) {
			found = append(found, strings.TrimPrefix(path, dir))
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	return found
}

// TestHostileHome has run folders whose records are damaged or somebody else's. They are named or
// passed over; nothing is deleted.
func TestHostileHome(t *testing.T) {
	linux(t)
	home := filepath.Join(t.TempDir(), "home")
	j := start(t, home, "--name", "good", "--", "true")
	if err := j.Wait(); err != nil {
		t.Fatal(err, j.errs.String())
	}
	folders, _ := filepath.Glob(filepath.Join(home, "runs", "*"))
	if len(folders) != 1 {
		t.Fatal(folders)
	}
	r := seeded("home")
	for range times(8, 300) {
		var files []string
		good, _ := filepath.Glob(filepath.Join(folders[0], "*"))
		for _, f := range good {
			if info, err := os.Lstat(f); err == nil && info.Mode().IsRegular() && info.Size() > 0 {
				files = append(files, f)
			}
		}
		path := files[r.IntN(len(files))]
		kept := testenv.Read(t, path)
		testenv.Write(t, path, damage(r, kept))
		for _, args := range [][]string{{"runs"}, {"show", filepath.Base(folders[0])},
			{"explain", filepath.Base(folders[0])}} {
			o := run(t, []string{"MEMROOM_HOME=" + home}, "", args...)
			tally.add("damaged records", o.code == 2, o.resident)
			if w := o.wrong("04", path, 300<<20); w != "" {
				t.Errorf("%s damaged, memroom %v: %s: %s", filepath.Base(path), args, w,
					shorten(o.stderr))
			}
		}
		if err := os.WriteFile(path, kept, 0o600); err != nil {
			t.Fatal("a damaged record was deleted: ", err)
		}
	}
}
