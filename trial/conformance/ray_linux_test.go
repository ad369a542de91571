package conformance

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"memroom/testenv"
)

// ray is a cluster of one node, behind a wire that can be cut.
type ray struct {
	dir  string
	head *exec.Cmd
	port int // of the dashboard
	gcs  int // where further nodes join
	bin  string
	wire *wire
	skip string
	log  bytes.Buffer
}

var theRay ray
var rayOnce sync.Once

const rayToken = "of-this-test-alone-0123456789abcdef"

func startedRay(t *testing.T) *ray {
	t.Helper()
	python := testenv.Environment(t, "ray")
	rayOnce.Do(func() { theRay.start(filepath.Dir(python)) })
	if theRay.skip != "" {
		testenv.Needs(t, "a real Ray cluster", theRay.skip)
	}
	return &theRay
}

func (r *ray) env() []string {
	return []string{"RAY_AUTH_MODE=token", "RAY_AUTH_TOKEN=" + rayToken, "RAY_USAGE_STATS_ENABLED=0"}
}

func (r *ray) start(bin string) {
	dir, err := os.MkdirTemp("/tmp", "mrr") // a socket's address is short
	if err != nil {
		r.skip = err.Error()
		return
	}
	r.dir, r.port, r.gcs, r.bin = dir, freePort(), freePort(), bin
	args := []string{"start", "--head", "--block", "--num-cpus=8", "--num-gpus=2",
		"--memory=2000000000", "--object-store-memory=80000000", "--temp-dir=" + dir,
		"--dashboard-host=127.0.0.1", fmt.Sprintf("--dashboard-port=%d", r.port),
		fmt.Sprintf("--port=%d", r.gcs)}
	for _, name := range []string{"ray-client-server-port", "dashboard-agent-listen-port",
		"metrics-export-port"} {
		args = append(args, fmt.Sprintf("--%s=%d", name, freePort()))
	}
	r.head = exec.Command(filepath.Join(bin, "ray"), args...)
	r.head.Env = append(append(os.Environ(), r.env()...), "PATH="+bin+":"+os.Getenv("PATH"))
	r.head.Stdout, r.head.Stderr = &r.log, &r.log
	r.head.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	if err := r.head.Start(); err != nil {
		r.skip = err.Error()
		return
	}
	for began := time.Now(); !r.answers(); time.Sleep(300 * time.Millisecond) {
		if time.Since(began) > 10*time.Minute {
			r.skip = "it does not answer: " + r.log.String()
			return
		}
	}
	if r.wire, err = newWire(fmt.Sprintf("127.0.0.1:%d", r.port)); err != nil {
		r.skip = err.Error()
	}
}

// answers reports whether the cluster knows its node and takes jobs.
func (r *ray) answers() bool {
	text, err := r.get("/api/v0/nodes?detail=1")
	return err == nil && strings.Contains(text, `"ALIVE"`)
}

func (r *ray) get(path string) (string, error) {
	request, err := http.NewRequest(http.MethodGet,
		fmt.Sprintf("http://127.0.0.1:%d%s", r.port, path), nil)
	if err != nil {
		return "", err
	}
	request.Header.Set("Authorization", "Bearer "+rayToken)
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	data, err := io.ReadAll(answer.Body)
	return string(data), err
}

func (r *ray) outage(*testing.T) {
	r.wire.cut(true)
	time.Sleep(3 * time.Second)
	r.wire.cut(false)
}

func (r *ray) stop() {
	if r.head != nil && r.head.Process != nil {
		_ = r.head.Process.Signal(syscall.SIGTERM)
		done := make(chan struct{})
		go func() { _ = r.head.Wait(); close(done) }()
		select {
		case <-done:
		case <-time.After(20 * time.Second):
		}
		_ = syscall.Kill(-r.head.Process.Pid, syscall.SIGKILL)
	}
	if r.dir != "" {
		_ = os.RemoveAll(r.dir)
	}
}

// wire hands connections on, unless it is cut.
type wire struct {
	address string
	mu      sync.Mutex
	broken  bool
	open    map[net.Conn]bool
}

func newWire(to string) (*wire, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	w := &wire{address: listener.Addr().String(), open: map[net.Conn]bool{}}
	go func() {
		for {
			from, err := listener.Accept()
			if err != nil {
				return
			}
			go w.carry(from, to)
		}
	}()
	return w, nil
}

func (w *wire) carry(from net.Conn, address string) {
	defer from.Close()
	to, err := net.Dial("tcp", address)
	if err != nil {
		return
	}
	defer to.Close()
	w.mu.Lock()
	broken := w.broken
	w.open[from], w.open[to] = true, true
	w.mu.Unlock()
	if broken {
		return
	}
	go func() { _, _ = io.Copy(to, from); to.Close() }()
	_, _ = io.Copy(from, to)
	w.mu.Lock()
	delete(w.open, from)
	delete(w.open, to)
	w.mu.Unlock()
}

func (w *wire) cut(broken bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.broken = broken
	if broken {
		for c := range w.open {
			c.Close()
		}
	}
}
