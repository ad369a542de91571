package conformance

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"memroom/testenv"
)

// withMemoryScript is a Ray Tune study as people write it. One trial runs out of memory, once.
const withMemoryScript = `
import json, os, time
import ray
from memroom.ray import MemoryCallback, with_memory
from ray import tune

def train(config):
    block = bytearray(config["model"]["bs"] << 20)
    for i in range(0, len(block), 4096):
        block[i] = 1
    if config["model"]["bs"] == 120 and not os.path.exists(SECOND):
        open(SECOND, "w").close()
        raise MemoryError("the host is full")
    time.sleep(0.3)
    tune.report({"loss": config["lr"]})

SECOND = os.path.abspath("second")
ray.init("local", num_cpus=8, _memory=2 << 30, include_dashboard=False,
         object_store_memory=80 << 20, log_to_driver=False)
tuner = tune.Tuner(
    with_memory(tune.with_resources(train, {"cpu": 2})),
    param_space={"lr": tune.uniform(0.1, 1),
                 "model": {"bs": tune.grid_search([100, 150, 60, 120, 80])}},
    tune_config=tune.TuneConfig(metric="loss", mode="min"),
    run_config=tune.RunConfig(callbacks=[MemoryCallback()], verbose=0,
                              storage_path=os.path.abspath("results"),
                              failure_config=tune.FailureConfig(max_failures=1)),
)
trials = tuner.fit()._experiment_analysis.trials
print("RESULT", json.dumps([{
    "bs": t.config["model"]["bs"], "status": t.status, "failures": t.num_failures,
    "asked": t.placement_group_factory.bundles[0], "peak": t.last_result["memroom/peak_host_bytes"],
} for t in trials]))
for wrong in (tune.Tuner, 3, int):
    try:
        with_memory(wrong)
        print("TAKEN", wrong)
    except TypeError:
        pass
`

// TestWithMemoryInsideRayTune: later trials of a study that stays Ray's ask for what they will
// need, more than their peak and far less than the node.
func TestWithMemoryInsideRayTune(t *testing.T) {
	python := testenv.Python(t, "ray", "pyarrow")
	dir, err := os.MkdirTemp("/tmp", "mrw") // Ray's sockets want a short path
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	script := filepath.Join(dir, "study.py")
	if err := os.WriteFile(script, []byte(withMemoryScript), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(python, "study.py")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "MEMROOM_BINARY="+testenv.Binary(t), "RAY_TMPDIR="+dir,
		"RAY_AUTH_MODE=disabled", "RAY_USAGE_STATS_ENABLED=0",
		"PYTHONPATH="+filepath.Join(testenv.Root(t), "python"))
	out, err := cmd.CombinedOutput()
	if err != nil || strings.Contains(string(out), "TAKEN") {
		t.Fatalf("%v\n%s", err, out)
	}
	_, text, _ := strings.Cut(string(out), "RESULT ")
	text, _, _ = strings.Cut(text, "\n")
	var trials []struct {
		BS       int                `json:"bs"`
		Status   string             `json:"status"`
		Failures int                `json:"failures"`
		Asked    map[string]float64 `json:"asked"`
		Peak     float64            `json:"peak"`
	}
	if err := json.Unmarshal([]byte(text), &trials); err != nil || len(trials) != 5 {
		t.Fatalf("%v in %s", err, out)
	}
	const node = 2 << 30
	for i, one := range trials {
		if one.Status != "TERMINATED" || one.Asked["CPU"] != 2 || one.Peak < float64(one.BS<<20) {
			t.Errorf("trial %d: %+v", i, one)
		}
		if i == 0 && one.Asked["memory"] != node {
			t.Errorf("the first trial asked for %v, not for a node", one.Asked)
		}
		if i >= 2 && (one.Asked["memory"] < one.Peak || one.Asked["memory"] > node*0.9) {
			t.Errorf("trial %d took %v and asked for %v", i, one.Peak, one.Asked["memory"])
		}
		if one.BS == 120 && one.Failures != 1 {
			t.Errorf("the trial that ran out failed %d times", one.Failures)
		}
	}
}
