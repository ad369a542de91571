package explain

import (
	"slices"
	"testing"

	"memroom/remedy"
)

// TestCuresOfATraining: where nothing names the cause and a model is trained, checkpointing stands
// before offloading; what a finding names is taken as it is.
func TestCuresOfATraining(t *testing.T) {
	x := Explanation{Detail: "open", job: remedy.Job{Work: remedy.Training}}
	list := x.cures()
	at := func(id remedy.ID) int { return slices.Index(list, id) }
	if at(remedy.Checkpointing) < 0 || at(remedy.Checkpointing) > at(remedy.OptimizerOffload) {
		t.Errorf("%v", list)
	}
	x.found = []string{string(remedy.KeepLess)}
	if list = x.cures(); !slices.Equal(list, []remedy.ID{remedy.KeepLess}) {
		t.Errorf("%v", list)
	}
}
