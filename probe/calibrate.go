package probe

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"memroom/event"
)

// CardStage is the calibration's report at one stage. The fields from Name to CUDNN are set at the
// first stage, the library workspaces at the second.
type CardStage struct {
	Stage    string      `json:"stage"`
	Reserved event.Bytes `json:"reserved"` // by PyTorch's allocator
	Name     string      `json:"name"`
	// as torch writes it, without NVML's "GPU-"; empty where torch does not know
	UUID       string      `json:"uuid"`
	Total      event.Bytes `json:"total"`
	SMs        int64       `json:"sms"`
	Capability int         `json:"capability"`
	Torch      string      `json:"torch"`
	CUDNN      int         `json:"cudnn"`
	BLAS       event.Bytes `json:"blas"`
	BLASLt     event.Bytes `json:"blaslt"`
}

// ShapeBytes is what was measured for one of the shapes: its place in its list, and its sizes or
// why there are none.
type ShapeBytes struct {
	Conv   *int            `json:"convolutions"`
	RNN    *int            `json:"recurrent"`
	Bytes  json.RawMessage `json:"bytes"`
	Failed string          `json:"failed"`
}

// CardWork is what a calibration shall do and who hears of it.
type CardWork struct {
	Shapes any           // marshals to an object with the lists "convolutions" and "recurrent"
	Time   time.Duration // no shape is begun after that
	// called while the process holds still, so that the driver can be read
	Stage func(CardStage) error
	Shape func(ShapeBytes) error
}

// The stages may take long: a first CUDA context on a slow disk takes a minute. The shapes have
// their own time, and the last of them may take that much longer before the process is taken for
// hung.
const (
	stagesPatience = 3 * time.Minute
	shapePatience  = 30 * time.Second
)

// ErrCalibrationCut reports a calibration that ended before all shapes were measured; the results
// before it are good.
var ErrCalibrationCut = errors.New("not every shape was measured")

// Calibrate trains a little on the card, stage by stage, then runs the shapes. installed is what
// Install gave.
func Calibrate(ctx context.Context, python, installed string, w CardWork) error {
	patience := stagesPatience + w.Time + shapePatience
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	list, err := w.write(installed)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, python, "-B", filepath.Join(installed, "_memroom_probe",
		"calibrate", "run.py"), list)
	cmd.WaitDelay = 5 * time.Second
	if err := Isolate(cmd); err != nil {
		return err
	}
	// Settings of the user's own runs would change what is counted, and by whom.
	cmd.Env = append(cmd.Env, "PYTORCH_CUDA_ALLOC_CONF=", "PYTORCH_ALLOC_CONF=")
	var complaints strings.Builder
	cmd.Stderr = &complaints
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", python, err)
	}
	heard, err := w.follow(in, out)
	if err != nil {
		cancel() // it may be waiting for a word that will not come
	}
	in.Close()
	waited := cmd.Wait()
	if err == nil && !heard.end {
		err = heard.death(ctx, python, waited, complaints.String(), patience)
	}
	return err
}

// write puts the shapes where the script reads them, inside the folder of the installed probe.
func (w *CardWork) write(installed string) (string, error) {
	data, err := json.Marshal(w.Shapes)
	if err != nil {
		return "", err
	}
	var object map[string]any
	if err := json.Unmarshal(data, &object); err != nil || object == nil {
		object = map[string]any{}
	}
	object["seconds"] = w.Time.Seconds()
	if data, err = json.Marshal(object); err != nil {
		return "", err
	}
	path := filepath.Join(installed, "shapes.json")
	return path, os.WriteFile(path, data, 0o600)
}

// heard is how far a calibration came.
type heard struct{ shapes, end bool }

// follow reads the script's lines until they end.
func (w *CardWork) follow(in io.Writer, out io.Reader) (heard, error) {
	var h heard
	for lines := bufio.NewScanner(out); lines.Scan(); {
		var line struct {
			CardStage
			ShapeBytes
			Error string `json:"error"`
			End   bool   `json:"end"`
			Left  int    `json:"left"`
		}
		if json.Unmarshal(lines.Bytes(), &line) != nil {
			continue // libraries print too
		}
		switch {
		case line.Error != "":
			return h, errors.New(line.Error)
		case line.Stage != "":
			if err := w.Stage(line.CardStage); err != nil {
				return h, err
			}
			if _, err := io.WriteString(in, "\n"); err != nil {
				return h, nil // it died: the caller reports why
			}
		case line.Conv != nil || line.RNN != nil:
			h.shapes = true
			if err := w.Shape(line.ShapeBytes); err != nil {
				return h, err
			}
		case line.End:
			h.end = true
			if line.Left > 0 {
				return h,
					fmt.Errorf("%w: %d were left when %v were over; give it more by --time, or run it again for "+
						"them", ErrCalibrationCut, line.Left, w.Time)
			}
		}
	}
	return h, nil
}

// death explains why the script ended without a last line.
func (h heard) death(ctx context.Context, python string, waited error, complaints string,
	patience time.Duration) error {
	lines := strings.Split(strings.TrimSpace(complaints), "\n")
	why := fmt.Errorf("%s ended early (%v): %s", python, waited, lines[len(lines)-1])
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		why = fmt.Errorf("%s did not finish within %v", python, patience)
	case ctx.Err() != nil:
		why = ctx.Err()
	}
	if h.shapes {
		return fmt.Errorf("%w: %w", ErrCalibrationCut, why)
	}
	return why
}
