package cli

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"memroom/event"
	"memroom/guard"
	"memroom/testenv"
)

// repository is a folder that git keeps, and one for temporary files.
type repository struct {
	t         *testing.T
	dir, temp string
	env       []string
}

func newRepository(t *testing.T) *repository {
	t.Helper()
	r := &repository{t: t, dir: t.TempDir(), temp: t.TempDir()}
	r.env = append(os.Environ(), "MEMROOM_HOME="+t.TempDir(), "GIT_CONFIG_GLOBAL="+os.DevNull,
		"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@b", "GIT_COMMITTER_NAME=a",
		"GIT_COMMITTER_EMAIL=a@b", "TMPDIR="+r.temp)
	r.do("git", "init", "-q", "-b", "main")
	return r
}

// commit writes files, an empty one for nil, and keeps them.
func (r *repository) commit(files map[string]string) {
	r.t.Helper()
	r.write(files)
	r.do("git", "add", "-A")
	r.do("git", "commit", "-qm", "change")
}

func (r *repository) write(files map[string]string) {
	r.t.Helper()
	for name, text := range files {
		path := filepath.Join(r.dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			r.t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			r.t.Fatal(err)
		}
	}
}

func (r *repository) do(name string, args ...string) string {
	r.t.Helper()
	out, code := r.run(name, args...)
	if code != 0 {
		r.t.Fatalf("%s %v: exit %d\n%s", name, args, code, out)
	}
	return out
}

func (r *repository) run(name string, args ...string) (string, int) {
	r.t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Env = r.dir, r.env
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		r.t.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// check runs memroom check and returns its JSON.
func (r *repository) check(code int, args ...string) *guard.Report {
	r.t.Helper()
	file := filepath.Join(r.t.TempDir(), "out.json")
	args = append([]string{"check", "--format", "text", "--format", "json=" + file}, args...)
	out, got := r.run(testenv.Binary(r.t), args...)
	if got != code {
		r.t.Fatalf("exit %d, want %d\n%s", got, code, out)
	}
	r.t.Log(out)
	data, err := os.ReadFile(file)
	if err != nil {
		r.t.Fatal(err)
	}
	report := &guard.Report{}
	if err := json.Unmarshal(data, report); err != nil {
		r.t.Fatal(err)
	}
	return report
}

const plannedChecks = `
[[check]]
name = "fine-tuning"
plan = "config.json --batch 8 --seq 512"
gpu = "RTX4090"
growth = "0%"
`

func describedRepository(t *testing.T) *repository {
	t.Helper()
	r := newRepository(t)
	config := testenv.Read(t, filepath.Join(testenv.Root(t), "examples", "files", "config.json"))
	small := strings.Replace(string(config), `"n_layer": 12`, `"n_layer": 6`, 1)
	if small == string(config) {
		t.Fatal("config.json has no twelve layers")
	}
	r.commit(map[string]string{"config.json": small, "memroom.toml": plannedChecks})
	r.commit(map[string]string{"config.json": string(config)})
	return r
}

// TestCheckComparesPlans checks a setup at two revisions, from a hook too, and leaves nothing.
func TestCheckComparesPlans(t *testing.T) {
	r := describedRepository(t)
	killed, long := filepath.Join(r.temp, "memroom-check-1"), time.Now().Add(-time.Hour)
	r.do("git", "worktree", "add", "--detach", "--quiet", filepath.Join(killed, "code"))
	if err := os.Chtimes(killed, long, long); err != nil {
		t.Fatal(err)
	}
	one := r.check(3, "--against", "HEAD~").Results[0]
	if one.Difference.Device < event.GiB || len(one.Difference.Changes) != 1 ||
		one.Difference.Changes[0].File != "config.json" {
		t.Errorf("%+v", one.Difference)
	}
	r.env = append(r.env, "GIT_INDEX_FILE="+filepath.Join(r.dir, ".git", "index"),
		"GIT_DIR="+filepath.Join(r.dir, ".git"))
	r.check(0, "--against", "HEAD")
	r.check(3, "--against", "HEAD~")
	if out := r.do("git", "status", "--porcelain") + r.do("git", "worktree", "prune", "-v"); out != "" {
		t.Errorf("left behind: %s", out)
	}
	if list := strings.TrimSpace(r.do("git", "worktree", "list")); strings.Contains(list, "\n") {
		t.Errorf("worktrees left: %s", list)
	}
	if left, _ := os.ReadDir(r.temp); len(left) > 0 {
		t.Errorf("folders left: %v", left)
	}
	if out, code := r.run(testenv.Binary(t), "check", "--against", "nowhere"); code != 2 ||
		!strings.Contains(out, "git fetch --depth 1 origin nowhere") {
		t.Errorf("exit %d: %s", code, out)
	}
}

// TestCheckInCI runs what the GitHub action, the GitLab job and the hook of pre-commit run.
func TestCheckInCI(t *testing.T) {
	r, root := describedRepository(t), testenv.Root(t)
	base := strings.TrimSpace(r.do("git", "rev-parse", "HEAD~"))
	r.env = append(r.env, "PATH="+filepath.Dir(testenv.Binary(t))+":"+os.Getenv("PATH"))
	t.Run("github", func(t *testing.T) {
		var action struct {
			Runs struct {
				Steps []struct {
					ID, Run string
					Env     map[string]string
				}
			}
		}
		readYAML(t, filepath.Join(root, "action.yml"), &action)
		step := action.Runs.Steps[len(action.Runs.Steps)-1]
		temp := t.TempDir()
		env := map[string]string{"CONFIG": "memroom.toml", "AGAINST": base, "INSTALL": "memroom",
			"COMMENT": "false", "GH_TOKEN": "", "PULL": "7"}
		for name := range step.Env {
			if _, given := env[name]; !given {
				t.Errorf("the action sets %s, which this test does not", name)
			}
		}
		old := r.env
		defer func() { r.env = old }()
		r.env = append(slices.Clone(old), "RUNNER_TEMP="+temp, "GITHUB_STEP_SUMMARY="+temp+"/summary",
			"GITHUB_OUTPUT="+temp+"/output")
		for name, value := range env {
			r.env = append(r.env, name+"="+value)
		}
		// as GitHub runs it
		out, code := r.run("bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", step.Run)
		if code != 3 || !strings.Contains(out, "::error file=config.json,line=") {
			t.Errorf("exit %d: %s", code, out)
		}
		summary, _ := os.ReadFile(temp + "/summary")
		if !strings.Contains(string(summary), "| :x: | fine-tuning |") ||
			!strings.Contains(string(summary), `+  "n_layer": 12`) {
			t.Errorf("summary: %s", summary)
		}
		if output, _ := os.ReadFile(temp + "/output"); !strings.Contains(string(output), "sarif=") {
			t.Errorf("output: %s", output)
		}
	})
	t.Run("gitlab", func(t *testing.T) {
		var jobs map[string]struct {
			BeforeScript []string `yaml:"before_script"`
			Script       []string
		}
		readYAML(t, filepath.Join(root, "examples", "ci", "gitlab.yml"), &jobs)
		r.do("git", "remote", "add", "origin", r.dir)
		old := r.env
		defer func() { r.env = old }()
		r.env = append(slices.Clone(old), "CI_MERGE_REQUEST_DIFF_BASE_SHA="+base)
		job := jobs["memroom"]
		out, code := r.run("bash", "-e", "-c", strings.Join(append(job.BeforeScript, job.Script...),
			"\n"))
		if code != 3 {
			t.Errorf("exit %d: %s", code, out)
		}
		if junit, err := os.ReadFile(filepath.Join(r.dir, "memroom.xml")); err != nil ||
			!strings.Contains(string(junit), "<failure message=") {
			t.Errorf("%v %s", err, junit)
		}
	})
	t.Run("pre-commit", func(t *testing.T) {
		var hooks []struct{ Entry string }
		readYAML(t, filepath.Join(root, ".pre-commit-hooks.yaml"), &hooks)
		if out, code := r.run("bash", "-c", hooks[0].Entry); code != 0 {
			t.Errorf("exit %d: %s", code, out)
		}
	})
}

func readYAML(t *testing.T, path string, into any) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err == nil {
		err = yaml.Unmarshal(data, into)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestCheckAgainst rehearses a package that is installed in place at two revisions.
func TestCheckAgainst(t *testing.T) {
	python := testenv.Python(t, "torch")
	r := newRepository(t)
	r.env = append(r.env, "PATH="+filepath.Dir(python)+":"+os.Getenv("PATH"))
	r.commit(map[string]string{
		".gitignore":              "data\n",
		"src/nets/__init__.py":    "",
		"src/nets/net.py":         checkedNet,
		"src/nets/unrelated.py":   "LR = 0.1\n",
		"scripts/train.py":        checkedTrain,
		"scripts/memroom.toml":    checkedTrainToml,
		"scripts/never_read.py":   "x = 1\n",
		"scripts/requirements.in": "torch\n",
	})
	r.write(map[string]string{"scripts/data/width": "2048",
		"src/nets/net.py": strings.Replace(checkedNet, "        x = torch.relu(x)\n",
			"        x = torch.nn.functional.gelu(x)\n        x = torch.relu(x)\n", 1),
		"src/nets/unrelated.py": "# slower\nLR = 0.01\n", "scripts/never_read.py": "x = 2\n"})
	r.env = append(r.env, "PYTHONPATH="+filepath.Join(r.dir, "src"), "OMP_NUM_THREADS=1")
	config := filepath.Join("scripts", "memroom.toml")
	one := r.check(3, "--config", config, "--against", "HEAD").Results[0]
	if one.Difference == nil {
		t.Fatal(one.NotCompared)
	}
	d := one.Difference
	if d.Allocated < 128*event.MiB || d.Changes[0].File != "src/nets/net.py" ||
		!strings.HasPrefix(d.Lines[0].Place(), "src/nets/net.py:1") {
		t.Errorf("%+v", d)
	}
	if len(d.Effects) != 2 || d.Effects[0].Device != d.Device || d.Effects[1].Device != 0 {
		t.Errorf("effects %+v", d.Effects)
	}
	again := r.check(3, "--config", config, "--against", "HEAD").Results[0]
	if !again.Cached || again.Difference.Device != d.Device {
		t.Errorf("not from the cache: %+v", again)
	}
	r.write(map[string]string{"scripts/data/width": "4096"})
	if wider := r.check(3, "--config", config).Results[0]; wider.Cached ||
		wider.Now.AllocatedPeak <= one.Now.AllocatedPeak {
		t.Errorf("a file that the run reads has changed: %+v", wider)
	}
	// a script that comes to its end is one of its files, though Python then forgets its name
	short := strings.Replace(checkedTrain, "range(5)", "range(2)", 1)
	r.write(map[string]string{"scripts/train.py": short})
	r.check(3, "--config", config)
	r.write(map[string]string{"scripts/train.py": strings.Replace(short, "16384", "32768", 1)})
	if longer := r.check(3, "--config", config).Results[0]; longer.Cached {
		t.Errorf("the script has changed: %+v", longer)
	}
}

const (
	checkedNet = `import torch


class Net(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first = torch.nn.Linear(512, width)
        self.last = torch.nn.Linear(width, 10)

    def forward(self, x):
        x = self.first(x)
        x = torch.relu(x)
        return self.last(x)
`
	checkedTrain = `import torch
from nets.net import Net
from nets.unrelated import LR

model = Net(int(open("data/width").read())).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=LR)
for _ in range(5):
    model(torch.randn(16384, 512).cuda()).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
`
	checkedTrainToml = `link = ["data"]
[[check]]
name = "train"
command = "python train.py"
gpu = "RTX4090"
budget = "1GiB"
growth = "1MiB"
`
)
