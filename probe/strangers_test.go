//go:build linux

package probe

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"memroom/testenv"
)

// asNobody prepares a Python program that another user runs.
func asNobody(t *testing.T, program string, args ...string) *exec.Cmd {
	t.Helper()
	if os.Getuid() != 0 {
		testenv.Needs(t, "root", "to become a second user")
	}
	if _, err := os.Stat("/usr/bin/python3"); err != nil {
		testenv.Needs(t, "/usr/bin/python3", "a Python that every user may run")
	}
	cmd := exec.Command("/usr/bin/python3", append([]string{"-c", program}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	cmd.Dir = "/"
	return cmd
}

// TestStrangerFeedsNothing: another user reaches the monitor's socket, because somebody has opened
// its permissions. Nothing it sends is heard.
func TestStrangerFeedsNothing(t *testing.T) {
	path := socketPath(t)
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, open := range []string{filepath.Dir(path), path} {
		if err := os.Chmod(open, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	stranger := asNobody(t, `
import socket, sys
s = socket.socket(socket.AF_UNIX)
s.connect(sys.argv[1])
try:
    s.sendall(b'{"type":"died","where":"gpu","text":"CUDA out of memory","exception":"OutOfMemoryError"}\n')
    print(s.recv(1))  # ends when the monitor hangs up
except OSError:
    print("refused")
`, path)
	out, err := stranger.CombinedOutput()
	if err != nil || !strings.Contains("b''\nrefused\n", string(out)) {
		t.Errorf("the stranger was not sent away: %v, %s", err, out)
	}
	done := make(chan []Heard)
	go func() {
		var all []Heard
		for h := range l.Messages() {
			all = append(all, h)
		}
		done <- all
	}()
	l.Close()
	if heard := <-done; len(heard) != 0 {
		t.Errorf("heard %+v", heard)
	}
}

// TestStrangerCommandsNothing: another user has put a socket in the monitor's place. The probe
// sends nothing to it and takes no command.
func TestStrangerCommandsNothing(t *testing.T) {
	python, dir := testenv.Python(t), installed(t)
	place, err := os.MkdirTemp("", "mr")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(place) })
	if err := os.Chmod(place, 0o777); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(place, "s")
	stranger := asNobody(t, `
import os, socket, sys
s = socket.socket(socket.AF_UNIX)
s.bind(sys.argv[1]); os.chmod(sys.argv[1], 0o777); s.listen(8)
print("ready", flush=True)
conn, _ = s.accept()
try:
    conn.sendall(b'{"id":1,"do":"collect"}\n')
    print("heard", conn.recv(100), flush=True)
except OSError:
    print("heard nothing", flush=True)
`, path)
	out, err := stranger.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := stranger.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stranger.Process.Kill(); _ = stranger.Wait() }()
	line := make([]byte, 6)
	if _, err := io.ReadFull(out, line); err != nil || string(line) != "ready\n" {
		t.Fatalf("%q %v", line, err)
	}
	cmd := exec.Command(python, "-c", `
from _memroom_probe import link
link.send("said", {"kind": "note", "text": "secret"})
print(link.state.sock, link.commands() if hasattr(link, "commands") else "")
`)
	cmd.Env = Setup{Dir: dir, Socket: path}.Environ(os.Environ())
	said, err := cmd.CombinedOutput()
	if err != nil || !strings.HasPrefix(string(said), "None") {
		t.Errorf("the probe kept the connection: %v\n%s", err, said)
	}
	var rest bytes.Buffer
	if _, err := rest.ReadFrom(out); err != nil {
		t.Fatal(err)
	}
	if s := rest.String(); s != "heard b''\n" && s != "heard nothing\n" {
		t.Errorf("the stranger %s", s)
	}
}
