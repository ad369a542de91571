package supervise

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestLaunchKeepsBytes: everything of a launch that is a name or a value of the user's arrives as
// it was, whatever bytes it is made of.
func TestLaunchKeepsBytes(t *testing.T) {
	odd := "caf\xe9\xff\xfe\x01"
	want := Launch{Attempt: 2, Path: "/bin/" + odd, Args: []string{odd, ""},
		Env: []string{"A=" + odd},
		Dir: "/" + odd, Command: []string{"sh", odd}, Monitor: []string{"memroom", "_monitor", odd},
		Settings: []byte(odd), Scratch: []byte(odd), Policy: true, HostLimit: 5,
		Streams: Streams{In: Inherit, Out: Pipe, Err: Pipe}}
	data, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	var got Launch
	if err := json.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	// nil means "as before" in a relaunch, empty means none
	data, _ = json.Marshal(Launch{Args: []string{}})
	got = Launch{}
	if err := json.Unmarshal(data, &got); err != nil || got.Args == nil || got.Env != nil {
		t.Errorf("%+v, %v", got, err)
	}
}
