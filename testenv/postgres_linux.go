package testenv

import (
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// PostgreSQL is a server of a test's own, on a unix socket in a folder of its own.
type PostgreSQL struct {
	Address string // postgres://...

	t      testing.TB
	dir    string
	bin    string
	cred   *syscall.Credential
	server *exec.Cmd
}

// Postgres starts a server from Debian's packages, and skips the test, loudly, where there is none.
func Postgres(t testing.TB) *PostgreSQL {
	t.Helper()
	bin := postgresBin()
	if bin == "" {
		Needs(t, "PostgreSQL", "initdb and postgres are neither on PATH nor in "+
			"/usr/lib/postgresql (apt-get install postgresql)")
	}
	// a socket's path is short, and another user must reach it
	dir, err := os.MkdirTemp("/tmp", "memroom-pg-")
	if err != nil {
		t.Fatal(err)
	}
	p := &PostgreSQL{t: t, dir: dir, bin: bin}
	t.Cleanup(func() { p.Stop(); os.RemoveAll(dir) })
	if os.Geteuid() == 0 { // PostgreSQL refuses to run as root
		p.cred = unprivileged(t)
		if err := os.Chown(dir, int(p.cred.Uid), int(p.cred.Gid)); err != nil {
			t.Fatal(err)
		}
	}
	data := filepath.Join(dir, "data")
	initdb := p.command("initdb", "-D", data, "-U", "memroom", "-A", "trust", "--no-sync",
		"-E", "UTF8", "--locale=C")
	if out, err := initdb.CombinedOutput(); err != nil {
		t.Fatalf("initdb: %v: %s", err, out)
	}
	p.Address = "postgres://memroom@/postgres?host=" + dir
	p.Start()
	return p
}

func postgresBin() string {
	if path, err := exec.LookPath("initdb"); err == nil {
		if real, err := filepath.EvalSymlinks(path); err == nil {
			return filepath.Dir(real)
		}
	}
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if len(found) == 0 {
		return ""
	}
	return filepath.Dir(found[len(found)-1])
}

// unprivileged is the user that Debian's package makes, else nobody.
func unprivileged(t testing.TB) *syscall.Credential {
	t.Helper()
	for _, name := range []string{"postgres", "nobody"} {
		if u, err := user.Lookup(name); err == nil {
			uid, _ := strconv.ParseUint(u.Uid, 10, 32)
			gid, _ := strconv.ParseUint(u.Gid, 10, 32)
			return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		}
	}
	Needs(t, "PostgreSQL", "it does not run as root, and there is no other user")
	return nil
}

func (p *PostgreSQL) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(p.bin, name), args...)
	cmd.Dir = p.dir
	// it dies with the test, whatever becomes of that
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: p.cred, Pdeathsig: syscall.SIGQUIT}
	return cmd
}

// Start starts the server, the first time or again, and waits until it answers.
func (p *PostgreSQL) Start() {
	p.t.Helper()
	p.server = p.command("postgres", "-D", filepath.Join(p.dir, "data"), "-k", p.dir,
		"-c", "listen_addresses=", "-c", "fsync=off", "-c", "logging_collector=off")
	log, err := os.OpenFile(filepath.Join(p.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		p.t.Fatal(err)
	}
	defer log.Close()
	p.server.Stderr = log
	if err := p.server.Start(); err != nil {
		p.t.Fatal(err)
	}
	for begin := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		if p.command("pg_isready", "-q", "-h", p.dir).Run() == nil {
			return
		}
		if time.Since(begin) > time.Minute {
			text, _ := os.ReadFile(filepath.Join(p.dir, "log"))
			p.t.Fatalf("PostgreSQL does not answer: %s", text)
		}
	}
}

// Stop ends the server at once, as a machine that goes down would.
func (p *PostgreSQL) Stop() {
	if p.server != nil {
		_ = p.server.Process.Signal(syscall.SIGQUIT)
		_ = p.server.Wait()
		p.server = nil
	}
}
