package cli

import (
	"path/filepath"
	"strings"
	"testing"

	"memroom/testenv"
)

// TestExplainPointsToLintForScripts: code is not what a program printed.
func TestExplainPointsToLintForScripts(t *testing.T) {
	path := filepath.Join(t.TempDir(), "train.py")
	testenv.Write(t, path, []byte("for x in range(3):\n    print(x)\n"))
	code, _, errs := memroom("explain", path)
	if code != exitNotRecognised || !strings.Contains(errs, "memroom lint "+path) {
		t.Errorf("exit %d: %s", code, errs)
	}
}
