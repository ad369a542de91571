package fit

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"memroom/event"
	"memroom/remedy"
)

// TestRemediesOnTheWire: the probe and older records read this JSON. A key that is not sent means
// something else than 0: no workers is not "as many as before".
func TestRemediesOnTheWire(t *testing.T) {
	none := 0
	for want, r := range map[string]Remedy{
		`{"id":"set_to_none","level":"process"}`: inProcess(remedy.SetToNone, remedy.Params{}),
		`{"id":"micro_batch","level":"process","params":{"failed":true,"limit":1024,"factor":0.75}}`: inProcess(
			remedy.MicroBatch, remedy.Params{Failed: true, Limit: 1024, Factor: 0.75}),
		`{"id":"micro_batch","level":"args","params":{"factor":4}}`: {ID: remedy.MicroBatch,
			Level: remedy.LevelArgs, Params: remedy.Params{Factor: 4}},
		`{"id":"micro_batch","level":"process","params":{"size":8}}`: inProcess(remedy.MicroBatch,
			remedy.Params{Size: 8}),
		`{"id":"micro_batch","level":"process","params":{"pieces":16}}`: inProcess(remedy.MicroBatch,
			remedy.Params{Pieces: 16}),
		`{"id":"micro_batch","level":"process","params":{"worst":true}}`: inProcess(remedy.MicroBatch,
			remedy.Params{Worst: true}),
		`{"id":"dataloader_workers","level":"process","params":{"workers":0}}`: inProcess(
			remedy.DataLoaderWorkers, remedy.Params{Workers: &none}),
		`{"id":"activation_offload","level":"process","params":{"measured":true,"untried":true}}`: inProcess(
			remedy.ActivationOffload, remedy.Params{Measured: true, Untried: true}),
		`{"id":"activation_offload","level":"process","params":{"above":4194304}}`: inProcess(
			remedy.ActivationOffload, remedy.Params{Above: 4 * event.MiB}),
		`{"id":"optimizer_fused","level":"process","params":{"slices":true}}`: inProcess(
			remedy.OptimizerFused, remedy.Params{Slices: true}),
		`{"id":"mixed_precision","level":"process","params":{"dtype":"fp16"}}`: inProcess(
			remedy.MixedPrecision, remedy.Params{DType: "fp16"}),
		`{"id":"max_split_size","level":"env","params":{"mb":256}}`: {ID: remedy.MaxSplitSize,
			Level: remedy.LevelEnv, Params: remedy.Params{SplitMB: 256}},
		`{"id":"roundup","level":"env","params":{"divisions":8}}`: {ID: remedy.Roundup,
			Level: remedy.LevelEnv, Params: remedy.Params{Divisions: 8}},
		`{"id":"gc_threshold","level":"env","params":{"threshold":0.7}}`: {ID: remedy.GCThreshold,
			Level: remedy.LevelEnv, Params: remedy.Params{Threshold: 0.7}},
	} {
		data, err := json.Marshal(r)
		if err != nil || string(data) != want {
			t.Errorf("written %s, want %s (%v)", data, want, err)
		}
		var back Remedy
		if err := json.Unmarshal([]byte(want), &back); err != nil || !cmp.Equal(back, r) {
			t.Errorf("%s is read as %+v (%v)", want, back, err)
		}
	}
	// As a memory of an older build holds it: what is unknown is passed over.
	var old Remedy
	if err := json.Unmarshal([]byte(`{"id":"micro_batch","level":"args","params":{"factor":4.0,"keep":2}}`),
		&old); err != nil || Factor([]Remedy{old}) != 4 {
		t.Errorf("an older record is read as %+v (%v)", old, err)
	}
}
