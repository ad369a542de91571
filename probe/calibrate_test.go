package probe

import (
	"context"
	"strings"
	"testing"
	"time"

	"memroom/testenv"
)

// TestCalibrateSaysWhyNot: without torch, and with torch on a machine without a card, the reason comes back as an error.
func TestCalibrateSaysWhyNot(t *testing.T) {
	installed, err := Install(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	never := CardWork{Time: time.Second,
		Stage: func(s CardStage) error { t.Errorf("stage %q on a machine without a card", s.Stage); return nil },
		Shape: func(s ShapeBytes) error { t.Errorf("shape %+v on a machine without a card", s); return nil }}
	python := testenv.Python(t, "torch")
	t.Setenv("CUDA_VISIBLE_DEVICES", "")
	if err := Calibrate(context.Background(), python, installed, never); err == nil || !strings.Contains(err.Error(), "no CUDA device") {
		t.Errorf("with torch: %v", err)
	}
	if err := Calibrate(context.Background(), "/nonexistent/python", installed, never); err == nil || !strings.Contains(err.Error(), "start") {
		t.Errorf("without Python: %v", err)
	}
}
