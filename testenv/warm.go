package testenv

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Warm returns a program that runs scripts as the Python does, in processes that have imported the
// modules already (see warm.py). It is for tests that run several scripts and say nothing about
// how Python starts: importing PyTorch takes longer than most of the scripts.
func Warm(t testing.TB, python string, modules ...string) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "warm-") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	program, address := filepath.Join(Root(t), "testenv", "warm.py"), filepath.Join(dir, "socket")
	server := exec.Command(python, append([]string{"-W", "ignore", program, "serve", address},
		modules...)...)
	server.Env = append(os.Environ(), "OMP_NUM_THREADS=1", "CUDA_VISIBLE_DEVICES=")
	server.Stderr = os.Stderr
	end, err := server.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	said, err := server.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { end.Close(); _ = server.Wait() })
	if line, _ := bufio.NewReader(said).ReadString('\n'); line != "ready\n" {
		t.Fatalf("a Python with %v did not start", modules)
	}
	warm := filepath.Join(dir, "python")
	text := fmt.Sprintf("#!/bin/sh\nexec '%s' -I -S '%s' ask '%s' \"$@\"\n", python, program, address)
	if err := os.WriteFile(warm, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	return warm
}
