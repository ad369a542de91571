package probe

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestInstallRepairsAndReuses(t *testing.T) {
	home := t.TempDir()
	dir, err := Install(home)
	if err != nil {
		t.Fatal(err)
	}
	entries, _ := os.ReadDir(dir)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if !slices.Equal(names, []string{"_memroom_probe", "sitecustomize.py"}) {
		t.Errorf("a user could import what the folder holds: %v", names)
	}
	broken := filepath.Join(dir, "_memroom_probe", "wire.py")
	if err := os.WriteFile(broken, []byte("syntax error("), 0o644); err != nil {
		t.Fatal(err)
	}
	again, err := Install(home)
	if err != nil || again != dir {
		t.Fatalf("%s, %v", again, err)
	}
	if data, _ := os.ReadFile(broken); strings.Contains(string(data), "syntax error(") {
		t.Error("a damaged copy was used")
	}
	if left, _ := os.ReadDir(home); len(left) != 1 {
		t.Errorf("left behind: %v", left)
	}
}

// TestCheckoutShowsTheInstalledLayout: the links below py and the rooms that are installed are the
// same modules, so that a test which runs from the checkout tests what users get.
func TestCheckoutShowsTheInstalledLayout(t *testing.T) {
	files, _, err := embedded()
	if err != nil {
		t.Fatal(err)
	}
	here := 0
	var walk func(dir string)
	walk = func(dir string) {
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			full := filepath.Join(dir, e.Name())
			info, err := os.Stat(full) // follows the link
			if err != nil {
				t.Fatal(err)
			}
			if info.IsDir() {
				walk(full)
				continue
			}
			if ext := filepath.Ext(full); ext != ".py" && ext != ".json" {
				continue
			}
			here++
			path, _ := filepath.Rel("py", full)
			text, _ := os.ReadFile(full)
			if want, there := files[path]; !there || string(want) != string(text) {
				t.Errorf("%s is not installed as it stands in the checkout", path)
			}
		}
	}
	walk("py")
	if here != len(files) {
		t.Errorf("%d modules are installed, the checkout shows %d", len(files), here)
	}
}

func TestInstallSaysWhy(t *testing.T) {
	if _, err := Install("/tmp/a:b"); err == nil || !strings.Contains(err.Error(), "PYTHONPATH") {
		t.Errorf("got %v", err)
	}
	file := filepath.Join(t.TempDir(), "file")
	os.WriteFile(file, nil, 0o644)
	if _, err := Install(file); err == nil || !strings.Contains(err.Error(), "Python part cannot "+
		"be put into") {
		t.Errorf("got %v", err)
	}
}

func TestEnviron(t *testing.T) {
	outer, err := Install(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	got := Setup{Dir: "/d", Socket: "/s", GPUMem: 5}.Environ([]string{"A=1",
		"PYTHONPATH=/x:" + outer + ":/y", "MEMROOM_PROBE=/old", "MEMROOM_APPLY=/old"})
	want := []string{"A=1", "PYTHONPATH=/d:/x:/y", "MEMROOM_PROBE=/s", "MEMROOM_GPU_MEM=5"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := (Setup{Dir: "/d"}).Environ([]string{"PYTHONPATH="}); !slices.Equal(got,
		[]string{"PYTHONPATH=/d"}) {
		t.Errorf("got %q", got)
	}
}

func TestListenSaysWhy(t *testing.T) {
	if _, err := Listen("/tmp/" + strings.Repeat("x", 120)); err == nil ||
		!strings.Contains(err.Error(), "shorter") {
		t.Errorf("got %v", err)
	}
	if _, err := Listen("/nonexistent/s"); err == nil {
		t.Error("listened nowhere")
	}
}
