package cli

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"memroom/testenv"
)

// TestLogToRealTrackers: memory of a run arrives in the run of the tracker that the script has
// open, by the tracker's own client, offline.
func TestLogToRealTrackers(t *testing.T) {
	python := testenv.Environment(t, "serve")
	binary := testenv.Binary(t)
	pip := filepath.Join(testenv.Root(t), "python")
	for _, kind := range []string{"tensorboard", "wandb", "mlflow", "trackio"} {
		t.Run(kind, func(t *testing.T) {
			cmd := exec.Command(binary, "run", "--quiet", "--", python,
				filepath.Join("testdata", "export.py"), kind, t.TempDir())
			cmd.Env = append(os.Environ(), "MEMROOM_HOME="+filepath.Join(t.TempDir(), "home"),
				"PYTHONPATH="+pip, "HOME="+t.TempDir())
			out, err := cmd.CombinedOutput()
			if err != nil || !regexp.MustCompile(`(?m)^host \d{6,} at `).Match(out) {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

// TestTensorBoardReadsWhatShowWrites, by TensorBoard's own reader.
func TestTensorBoardReadsWhatShowWrites(t *testing.T) {
	python := testenv.Environment(t, "serve")
	binary := testenv.Binary(t)
	home, logs := filepath.Join(t.TempDir(), "home"), t.TempDir()
	for _, args := range [][]string{{"run", "--quiet", "--", "sleep", "1.5"},
		{"show", "--tensorboard", logs}} {
		cmd := exec.Command(binary, args...)
		cmd.Env = append(os.Environ(), "MEMROOM_HOME="+home)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	script := `import sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
a = EventAccumulator(sys.argv[1]); a.Reload()
s = a.Scalars("memroom/host_bytes")
t = a.Tensors("memroom/attempt")
print(len(s), s[-1].value > 1000, s[-1].step >= 250, t[0].tensor_proto.string_val[0].decode())`
	out, err := exec.Command(python, "-c", script, logs).CombinedOutput()
	if err != nil || !regexp.MustCompile(`(?m)^\d+ True True attempt 1`).Match(out) {
		t.Errorf("%v: %s", err, out)
	}
}

// TestPrometheusReadsMetrics, by its own client, and the dashboard asks for nothing else.
func TestPrometheusReadsMetrics(t *testing.T) {
	python := testenv.Environment(t, "serve")
	binary := testenv.Binary(t)
	home := filepath.Join(t.TempDir(), "home")
	run := exec.Command(binary, "run", "--quiet", "--name", `a "b" \c`, "--", "sleep", "1")
	run.Env = append(os.Environ(), "MEMROOM_HOME="+home)
	if out, err := run.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	script := `import json, re, subprocess, sys, urllib.request
from prometheus_client.parser import text_string_to_metric_families as parse
server = subprocess.Popen([sys.argv[1], "serve", "--port", "0"], stdout=subprocess.PIPE, text=True)
try:
    url = server.stdout.readline().split(": ")[1].strip().split("?")[0]
    families = list(parse(urllib.request.urlopen(url + "metrics").read().decode()))
finally:
    server.terminate(); server.wait()
names = {s.name for f in families for s in f.samples} | {f.name for f in families} | {f.name + "_total" for f in families}
assert all(n.startswith("memroom_") for n in names), names
labels = [s.labels for f in families for s in f.samples if s.name == "memroom_run_info"]
assert labels[0]["name"] == 'a "b" \\c', labels
asked = set(re.findall(r"memroom_\w+", open(sys.argv[2]).read()))
assert asked and asked <= names, asked - names
print("parsed", len(families))`
	cmd := exec.Command(python, "-c", script, binary,
		filepath.Join(testenv.Root(t), "docs", "grafana.json"))
	cmd.Env = append(os.Environ(), "MEMROOM_HOME="+home)
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "parsed") {
		t.Errorf("%v: %s", err, out)
	}
}
