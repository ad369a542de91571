package cli

import (
	"path/filepath"
	"strings"
	"testing"

	"memroom/event"
	"memroom/plan"
	"memroom/tape"
	"memroom/testenv"
)

// TestCalibrationsAreKept: what was measured on one card stays when another one is measured; what
// an earlier record of the same card knows beyond the new one is kept; a damaged record is named,
// and replaced by the next.
func TestCalibrationsAreKept(t *testing.T) {
	home := filepath.Join(t.TempDir(), "home")
	t.Setenv("MEMROOM_HOME", home)
	measured := func(uuid, torch string, batch int64, context event.Bytes) *plan.Calibration {
		c := &plan.Calibration{UUID: uuid, Torch: torch}
		c.Card = plan.Card{Name: "NVIDIA H200", Total: 140 * event.GiB, Context: context, SMs: 132,
			Capability: 90}
		c.RNN = []plan.RNNSizes{{Recurrent: tape.Recurrent{Batch: batch}}}
		return c
	}
	if list, err := calibrations(); list != nil || err != nil {
		t.Fatalf("nothing is measured: %v, %v", list, err)
	}
	for _, c := range []*plan.Calibration{measured("a", "2.11", 1, event.GiB),
		measured("b", "2.11", 1, event.GiB), measured("a", "2.11", 2, event.GiB/2)} {
		if err := keepCalibration(c); err != nil {
			t.Fatal(err)
		}
	}
	list, err := calibrations()
	if err != nil || len(list) != 2 || list[0].UUID != "a" || list[1].UUID != "b" ||
		list[0].Context != event.GiB/2 || len(list[0].RNN) != 2 || len(list[1].RNN) != 1 {
		t.Fatalf("%+v, %v", list, err)
	}
	if err := keepCalibration(measured("a", "2.12", 3, event.GiB)); err != nil {
		t.Fatal(err)
	}
	if list, err = calibrations(); err != nil || len(list) != 2 || len(list[0].RNN) != 1 {
		t.Errorf("of another PyTorch: %+v, %v", list, err)
	}
	card, err := plan.FindCard("H200")
	if err != nil {
		t.Fatal(err)
	}
	target := plan.Target{Card: card}
	if err := calibrated(&target); err != nil || target.Card.Context != event.GiB {
		t.Errorf("%+v, %v", target.Card, err)
	}
	for name, same := range map[string]bool{"NVIDIA H200": true, "h200": true, "H100": false,
		"NVIDIA GeForce RTX 4090": false} {
		if sameCard(name, "H200") != same {
			t.Errorf("%s is an H200: %v", name, !same)
		}
	}
	path := filepath.Join(home, "cards.json")
	for _, text := range []string{"{", "[null]"} {
		testenv.Write(t, path, []byte(text))
		if _, err := calibrations(); err == nil || !strings.Contains(err.Error(), "--forget") ||
			!strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", text, err)
		}
		if err := calibrated(&target); err == nil {
			t.Errorf("%s: planned with it", text)
		}
		if err := keepCalibration(measured("c", "2.11", 1, event.GiB)); err != nil {
			t.Errorf("%s: %v", text, err)
		}
		if list, err := calibrations(); err != nil || len(list) != 1 || list[0].UUID != "c" {
			t.Errorf("after %s: %+v, %v", text, list, err)
		}
	}
	if code, out, _ := memroom("calibrate", "--forget"); code != exitOK || !strings.Contains(out,
		"nothing") {
		t.Errorf("%d %s", code, out)
	}
	if list, err := calibrations(); list != nil || err != nil {
		t.Errorf("%v, %v", list, err)
	}
	if code, out, _ := memroom("calibrate", "--forget", "--json"); code != exitOK ||
		!strings.Contains(out, `"forgotten": true`) && !strings.Contains(out, `"forgotten":true`) {
		t.Errorf("%d %s", code, out)
	}
}
