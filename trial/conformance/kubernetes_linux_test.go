package conformance

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"memroom/event"
	"memroom/testenv"
	"memroom/trial/relay"
)

// container is what the example's Job runs.
type container struct {
	Command []string `json:"command"`
	Args    []string `json:"args"`
	Message string   `json:"terminationMessagePath"`
	Env     []struct {
		Name  string `json:"name"`
		Value string `json:"value"`
	} `json:"env"`
	Resources struct {
		Limits map[string]string `json:"limits"`
	} `json:"resources"`
}

// exampleJob checks the example strictly against Kubernetes' own schema, and returns its container.
func exampleJob(t *testing.T) container {
	t.Helper()
	check := exec.Command(testenv.Environment(t, "kubernetes"), "-c", `
import json, sys, yaml, kubernetes_validate
job = yaml.safe_load(open(sys.argv[1]))
for version in ("1.31", "1.35"):
    kubernetes_validate.validate(job, version, strict=True)
broken = json.loads(json.dumps(job))
broken["spec"]["template"]["spec"]["containers"][0]["argz"] = []
try:
    kubernetes_validate.validate(broken, "1.35", strict=True)
    sys.exit("the schema takes anything")
except kubernetes_validate.ValidationError:
    pass
json.dump(job["spec"]["template"]["spec"]["containers"][0], sys.stdout)
`, filepath.Join(testenv.Root(t), "examples", "kubernetes-job.yaml"))
	check.Stderr = os.Stderr
	out, err := check.Output()
	var c container
	if err == nil {
		err = json.Unmarshal(out, &c)
	}
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return c
}

// TestKubernetesExample checks that the manifest is a Job, and that its command line does what its
// comments promise.
func TestKubernetesExample(t *testing.T) {
	c := exampleJob(t)
	words := append(append([]string{}, c.Command...), c.Args...)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "train.py"), []byte(`
import sys
print("loss=0.5", sys.argv[1:])
block = b"x" * (3 << 30)
`), 0o644); err != nil {
		t.Fatal(err)
	}
	// The kubelet mounts a file of its own at the path of the message.
	message := filepath.Join(dir, "message")
	if err := os.WriteFile(message, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 && syscall.Mount(message, message, "", syscall.MS_BIND, "") == nil {
		defer syscall.Unmount(message, syscall.MNT_DETACH)
	}
	named := false
	for i, w := range words {
		if w == "--verdict="+c.Message {
			words[i], named = "--verdict="+message, true
		}
	}
	if !named {
		t.Fatalf("the verdict does not go to %s: %v", c.Message, words)
	}
	cmd := exec.Command(filepath.Join(filepath.Dir(testenv.Binary(t)), words[0]), words[1:]...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "MEMROOM_HOME="+filepath.Join(dir, "home"))
	cmd.Stderr = os.Stderr
	out, _ := cmd.Output()
	p := relay.Parser{ID: "train"}
	text := ""
	for _, h := range p.Feed(out) {
		text += string(h.Output)
	}
	if p.End == nil || !p.End.OOM || !strings.Contains(text, "loss=0.5 ['--lr=0.001']") {
		t.Fatalf("end %+v, output %q", p.End, text)
	}
	var verdict event.Verdict
	data, err := os.ReadFile(message)
	if err == nil {
		err = json.Unmarshal(data, &verdict)
	}
	if err != nil || !verdict.IsOOM || len(data) > 4096 {
		t.Errorf("%v: the pod's message is %s", err, data)
	}
	if code := cmd.ProcessState.ExitCode(); code == 0 || code != p.End.ExitCode {
		t.Errorf("exit %d, told %d", code, p.End.ExitCode)
	}
}
