package cli

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"memroom/testenv"
)

// TestDoctorAgreesWithItself: what a Python is shown to have is not called missing below it.
func TestDoctorAgreesWithItself(t *testing.T) {
	pythons := []string{testenv.Python(t, "ray", "keras")}
	checks := checkPythons(context.Background(), pythons, true, func(string) {})
	if len(checks) < 2 || !strings.Contains(checks[1].Value, "keras ") ||
		!strings.Contains(checks[1].Value, "ray ") {
		t.Fatalf("%+v", checks)
	}
	for _, c := range checkClients(context.Background(), checks) {
		if c.ID == "ray" && (c.Status != statusOK || !strings.Contains(c.Value, "a package of")) {
			t.Errorf("%+v", c)
		}
		if strings.Contains(c.Why, "trial") {
			t.Errorf("promises what there is not: %+v", c)
		}
	}
}

// TestDoctorTellsOfAnEnvironmentOnce: two launchers of one Python, as version managers put them
// into PATH, are one; a virtual environment whose python links to the same file is another.
func TestDoctorTellsOfAnEnvironmentOnce(t *testing.T) {
	python := testenv.Python(t)
	folder := t.TempDir()
	launcher := func(name, target string) string {
		path := filepath.Join(folder, name)
		text := "#!/bin/sh\nexec '" + target + "' \"$@\"\n"
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
		return path
	}
	other := filepath.Join(folder, "venv")
	made := exec.Command(python, "-m", "venv", "--without-pip", other)
	if out, err := made.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	pythons := []string{launcher("python3", python), launcher("python", python),
		filepath.Join(other, "bin", "python")}
	var begun, told int
	for _, c := range checkPythons(context.Background(), pythons, true, func(string) { begun++ }) {
		if c.ID == "python" {
			told++
		}
	}
	if begun != 3 || told != 2 {
		t.Errorf("looked into %d, told of %d environments, want 3 and 2", begun, told)
	}
}
