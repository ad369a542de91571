package driver

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestSpecKeepsBytes: the monitor gets the paths and arguments that the user wrote, whatever bytes
// they are made of.
func TestSpecKeepsBytes(t *testing.T) {
	odd := "caf\xe9/\xff\xfe\x01"
	want := Spec{MaxAttempts: 3, Map: "micro_batch=--" + odd,
		ResumeWith:  "--from " + odd + "{latest}",
		Checkpoints: odd + "/*.pt", Memory: "/home/" + odd, Command: []string{"python", odd},
		Allow: []string{"precision"}, Card: "H200", GPULimit: 7, Remembered: true}
	data, err := json.Marshal(&want)
	if err != nil {
		t.Fatal(err)
	}
	var got Spec
	if err := json.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
