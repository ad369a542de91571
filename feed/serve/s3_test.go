package serve_test

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"memroom/testenv"
)

// TestStreamFromS3 reads from a real S3 server, which checks signatures: Versity's gateway over a
// folder. `make test` builds it once (testenv/ensure-s3: about a minute of processor time, cached).
// MEMROOM_S3_SERVER names another one.
func TestStreamFromS3(t *testing.T) {
	server := os.Getenv("MEMROOM_S3_SERVER")
	if server == "" {
		server = builtS3Server(t)
	}
	if server == "" {
		testenv.Needs(t, "an S3 server", "`make test` builds it; or name one in MEMROOM_S3_SERVER")
	}
	folder := t.TempDir()
	address := startS3Server(t, server, folder)
	python := testenv.Environment(t, "feed")
	runStreamTests(t, python, testenv.Binary(t), []string{"test_stream.S3"},
		"MEMROOM_TEST_BUCKETS="+folder, "AWS_ENDPOINT_URL=http://"+address, "AWS_ACCESS_KEY_ID=reader",
		"AWS_SECRET_ACCESS_KEY=of-the-test", "AWS_REGION=us-east-1")
}

// startS3Server starts the gateway over a folder and returns its address. If another process takes
// the port first, the gateway ends, and another port is tried.
func startS3Server(t *testing.T, server, folder string) string {
	t.Helper()
	for range 10 {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		address := listener.Addr().String()
		listener.Close()
		gateway := exec.Command(server, "--access", "reader", "--secret", "of-the-test", "--port",
			address, "posix", folder)
		if err := gateway.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan struct{})
		go func() { _ = gateway.Wait(); close(ended) }()
		t.Cleanup(func() { _ = gateway.Process.Kill(); <-ended })
		if answers(address, ended) {
			return address
		}
	}
	t.Fatal("the S3 server ends at once")
	return ""
}

// answers waits until something listens at an address, or until the server has ended.
func answers(address string, ended <-chan struct{}) bool {
	for {
		select {
		case <-ended:
			return false
		case <-time.After(50 * time.Millisecond):
		}
		if c, err := net.Dial("tcp", address); err == nil {
			c.Close()
			return true
		}
	}
}

// builtS3Server is what testenv/ensure-s3 builds under `make test`, or one on PATH; "" where there
// is none.
func builtS3Server(t *testing.T) string {
	if os.Getenv("MEMROOM_TEST_ENSURE") != "" {
		out, err := exec.Command(filepath.Join(testenv.Root(t), "testenv", "ensure-s3")).Output()
		if path := strings.TrimSpace(string(out)); err == nil && path != "" {
			return path
		}
	}
	server, _ := exec.LookPath("versitygw")
	return server
}

// runStreamTests runs classes of a file of python/pytests in one Python.
func runStreamTests(t *testing.T, python, binary string, classes []string, environment ...string) {
	root := testenv.Root(t)
	cmd := exec.Command(python, append([]string{"-B", "-W", "ignore", "-m", "unittest"},
		classes...)...)
	cmd.Dir = filepath.Join(root, "python", "pytests")
	cmd.Env = append(os.Environ(), "PYTHONPATH="+filepath.Join(root, "python"),
		"MEMROOM_BINARY="+binary, "XDG_CACHE_HOME="+t.TempDir(), "OMP_NUM_THREADS=1",
		"TF_CPP_MIN_LOG_LEVEL=3")
	cmd.Env = append(cmd.Env, environment...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}
