package probe

import (
	"strings"
	"testing"

	"memroom/testenv"
)

// TestOldestAndNewestTorch watches a real loop under the oldest and the newest PyTorch we promise
// to support: steps arrive, and nothing the program prints changes.
func TestOldestAndNewestTorch(t *testing.T) {
	for _, which := range []string{"old", "new"} {
		t.Run(which, func(t *testing.T) {
			t.Parallel()
			python := testenv.Torch(t, which)
			j := runJob(t, python, Setup{}, nil, script(t, "torch_loop.py"), "30")
			if j.failed != nil {
				t.Fatalf("%v\n%s", j.failed, j.err)
			}
			if want := bare(t, python, script(t, "torch_loop.py"), "30"); j.out != want {
				t.Errorf("the losses differ with the probe:\n%s\nwithout:\n%s", j.out, want)
			}
			if rows := allRows(t, j); len(rows) == 0 || rows[len(rows)-1].Step > 30 {
				t.Errorf("%d steps: %+v", len(rows), rows)
			}
		})
	}
}

// TestFitUnderTheNewestTorch runs the tests of micro-batching and of single remedies. Under the
// oldest PyTorch the reason why nothing is done is printed.
func TestFitUnderTheNewestTorch(t *testing.T) {
	fitFiles(t, testenv.Torch(t, "new"), "test_microbatch", "test_remedies", "test_host")
	t.Run("declined by the oldest", func(t *testing.T) {
		old := fitTest(t, testenv.Torch(t, "old"), "test_declines")
		if out, err := old.CombinedOutput(); err == nil ||
			!strings.Contains(string(out), "needs torch 2.1 or newer") {
			t.Errorf("%v\n%s", err, out)
		}
	})
}
