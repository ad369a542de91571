package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"memroom/probe"
)

// lookScript prints what an interpreter has. It reads versions from package metadata, which is
// quick and cannot fail, and imports torch only to ask whether CUDA works. The first entry of the
// path is the current folder, from which nothing may be imported.
const lookScript = `
import sys
sys.path[:] = [p for p in sys.path if p]
import json
try:
    from importlib import metadata
except ImportError:
    metadata = None
found = {}
for n in sys.argv[1].split():
    try:
        found[n] = metadata.version(n)
    except Exception:
        pass
answer = {"version": "%d.%d.%d" % sys.version_info[:3], "executable": sys.executable, "prefix": sys.prefix,
          "packages": found}
if "torch" in found and "--quick" not in sys.argv:
    try:
        import torch
        answer["cuda_build"] = torch.version.cuda
        answer["cuda_works"] = torch.cuda.is_available()
        if not answer["cuda_works"] and torch.version.cuda:
            try:
                torch.cuda.init()
            except Exception as e:
                answer["cuda_why"] = str(e).splitlines()[0]
    except Exception as e:
        answer["cuda_works"] = False
        answer["cuda_why"] = "import torch: %s: %s" % (type(e).__name__, str(e).splitlines()[0] if str(e) else "")
print("\n" + json.dumps(answer))
`

// packages are those whose versions are printed, in this order.
var packages = []string{"torch", "tensorflow", "tensorflow-cpu", "keras", "jax", "transformers",
	"lightning", "pytorch-lightning", "ray", "accelerate", "bitsandbytes", "deepspeed"}

// pythonLook is what lookScript prints.
type pythonLook struct {
	Version    string            `json:"version"`
	Executable string            `json:"executable"`
	Prefix     string            `json:"prefix"` // the environment's folder, whatever its name
	Packages   map[string]string `json:"packages"`
	CUDABuild  *string           `json:"cuda_build"`
	CUDAWorks  *bool             `json:"cuda_works"`
	CUDAWhy    string            `json:"cuda_why"`
}

// findPythons returns the interpreters to look into: the named one, else python3 and python. Two
// names in one folder for one file are one; a virtual environment's link to the system's file is
// not the system's.
func findPythons(named string) []string {
	if named != "" {
		return []string{named}
	}
	var found []string
	seen := map[string]bool{}
	for _, name := range []string{"python3", "python"} {
		path, err := exec.LookPath(name)
		if err != nil {
			continue
		}
		real, err := filepath.EvalSymlinks(path)
		if err != nil {
			real = path
		}
		if one := filepath.Dir(path) + "\x00" + real; !seen[one] {
			seen[one] = true
			found = append(found, path)
		}
	}
	return found
}

// checkPythons inspects each interpreter and reports each environment once: version managers put
// launchers into PATH that are different files but start the same Python.
func checkPythons(ctx context.Context, pythons []string, quick bool, begin func(string)) []check {
	var all []check
	seen := map[string]bool{}
	for _, python := range pythons {
		begin(python)
		look, err := lookInto(ctx, python, quick)
		if err == nil && seen[look.Prefix] {
			continue
		}
		seen[look.Prefix] = err == nil
		all = append(all, checkPython(python, look, err)...)
	}
	return all
}

// checkPython reports the result of lookInto, or why it has none.
func checkPython(python string, look pythonLook, err error) []check {
	if err != nil {
		return []check{{ID: "python", Title: "Python", Status: statusWarn, Value: python,
			Why: err.Error(), Fix: "name another interpreter with --python"}}
	}
	first := check{ID: "python", Title: "Python", Status: statusOK,
		Value: look.Version + ", " + look.Executable, Data: look}
	if tooOld(look.Version) {
		first.Status, first.Why, first.Fix = statusWarn,
			"older than 3.8: memroom cannot look into it", "train with Python 3.8 or newer"
	}
	var found []string
	for _, name := range packages {
		if v := look.Packages[name]; v != "" {
			found = append(found, name+" "+v)
		}
	}
	second := check{ID: "frameworks", Title: "  frameworks", Status: statusOK,
		Value: strings.Join(found, ", ")}
	if len(found) == 0 {
		second.Status, second.Why, second.Fix = statusMissing,
			"torch, tensorflow, keras, jax, transformers, lightning and ray are not installed in it",
			"activate the environment you train in, or name its interpreter with --python"
	}
	checks := []check{first, second}
	if look.CUDAWorks != nil {
		checks = append(checks, checkTorchCUDA(look))
	}
	return checks
}

func checkTorchCUDA(look pythonLook) check {
	c := check{ID: "torch_cuda", Title: "  CUDA in torch", Status: statusOK, Data: *look.CUDAWorks}
	switch {
	case *look.CUDAWorks:
		c.Value = "works (built for CUDA " + *look.CUDABuild + ")"
	case look.CUDABuild == nil && look.CUDAWhy == "":
		c.Status, c.Why, c.Fix = statusMissing, "this torch is a CPU build",
			"install a CUDA build if this machine has a card"
	default:
		c.Status, c.Why = statusMissing, "does not work: "+look.CUDAWhy
		c.Fix = "without a GPU there is nothing to do; with one, compare the driver's CUDA version with " +
			"torch's"
	}
	return c
}

func tooOld(version string) bool {
	var major, minor int
	if _, err := fmt.Sscanf(version, "%d.%d", &major, &minor); err != nil {
		return false
	}
	return major < 3 || major == 3 && minor < 8
}

// lookInto runs the script. The timeout covers a first import of torch from a slow disk.
func lookInto(ctx context.Context, python string, quick bool) (pythonLook, error) {
	ctx, cancel := context.WithTimeout(ctx, 90*time.Second)
	defer cancel()
	args := []string{"-c", lookScript, strings.Join(packages, " ")}
	if quick {
		args = append(args, "--quick")
	}
	cmd := exec.CommandContext(ctx, python, args...)
	if err := probe.Isolate(cmd); err != nil {
		return pythonLook{}, err
	}
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	if ctx.Err() != nil {
		return pythonLook{}, fmt.Errorf("%s did not answer within 90 s: does "+
			"`%s -c \"import torch\"` end?", python, python)
	}
	if err != nil {
		return pythonLook{}, fmt.Errorf("%s cannot be asked (%w): does `%s --version` answer?", python,
			err, python)
	}
	// Packages may print while they are imported: the answer is the last line.
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	var look pythonLook
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &look); err != nil {
		return pythonLook{}, fmt.Errorf("%s gave no answer that can be read (%w): it is not a "+
			"Python that works", python, err)
	}
	return look, nil
}
