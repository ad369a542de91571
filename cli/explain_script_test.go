package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestExplainPointsToLintForScripts: code is not what a program printed.
func TestExplainPointsToLintForScripts(t *testing.T) {
	path := filepath.Join(t.TempDir(), "train.py")
	if err := os.WriteFile(path, []byte("for x in range(3):\n    print(x)\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	code, _, errs := memroom("explain", path)
	if code != exitNotRecognised || !strings.Contains(errs, "memroom lint "+path) {
		t.Errorf("exit %d: %s", code, errs)
	}
}
