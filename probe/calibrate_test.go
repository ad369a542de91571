package probe

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"memroom/testenv"
)

// TestCalibrateSaysWhyNot: without torch, and with torch on a machine without a card, the reason
// comes back as an error.
func TestCalibrateSaysWhyNot(t *testing.T) {
	installed, err := Install(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	never := CardWork{Time: time.Second,
		Stage: func(s CardStage) error {
			t.Errorf("stage %q on a machine without a card",
				s.Stage)
			return nil
		},
		Shape: func(s ShapeBytes) error {
			t.Errorf("shape %+v on a machine without a card",
				s)
			return nil
		}}
	python := testenv.Python(t, "torch")
	t.Setenv("CUDA_VISIBLE_DEVICES", "")
	if err := Calibrate(context.Background(), python, installed, never); err == nil ||
		!strings.Contains(err.Error(), "no CUDA device") {
		t.Errorf("with torch: %v", err)
	}
	if err := Calibrate(context.Background(), "/nonexistent/python", installed,
		never); err == nil || !strings.Contains(err.Error(), "start") {
		t.Errorf("without Python: %v", err)
	}
}

// TestCalibrateKeepsWhatCame: a calibration that is killed, or runs out of time, between two shapes
// has returned the results before, and reports that they are not complete. The interpreter is a
// shell script that prints its lines and exits.
func TestCalibrateKeepsWhatCame(t *testing.T) {
	for name, c := range map[string]struct{ end, want string }{
		"killed":      {"kill -9 $$", "ended early"},
		"out of time": {`echo '{"end": true, "left": 3}'`, "3 were left"},
		"whole":       {`echo '{"end": true, "left": 0}'`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			speaker := filepath.Join(dir, "python")
			lines := "#!/bin/sh\necho a library says hello\n" +
				`echo '{"stage": "context", "name": "card", "total": 1, "reserved": 2}'; read go || exit 0` + "\n" +
				`echo '{"convolutions": 0, "bytes": {"forward": 7}}'` + "\n" + `echo '{"convolutions": 1, "failed": "OutOfMemoryError"}'` + "\n" + c.end + "\n"
			if err := os.WriteFile(speaker, []byte(lines), 0o700); err != nil {
				t.Fatal(err)
			}
			installed, err := Install(filepath.Join(dir, "probe"))
			if err != nil {
				t.Fatal(err)
			}
			stages, shapes := 0, 0
			err = Calibrate(context.Background(), speaker, installed, CardWork{Time: time.Second,
				Stage: func(s CardStage) error { stages++; return nil },
				Shape: func(s ShapeBytes) error { shapes++; return nil }})
			if stages != 1 || shapes != 2 {
				t.Errorf("%d stages and %d shapes came, want 1 and 2", stages, shapes)
			}
			if c.want == "" && err != nil || c.want != "" &&
				(!errors.Is(err, ErrCalibrationCut) || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}
