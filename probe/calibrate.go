package probe

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"memroom/event"
)

// CardStage is what the calibration says at one stage. Name to Torch are given at the first one.
type CardStage struct {
	Stage      string      `json:"stage"`
	Reserved   event.Bytes `json:"reserved"` // by PyTorch's allocator
	Name       string      `json:"name"`
	UUID       string      `json:"uuid"`
	Total      event.Bytes `json:"total"`
	SMs        int64       `json:"sms"`
	Capability int         `json:"capability"`
	Torch      string      `json:"torch"`
	Error      string      `json:"error"`
}

// calibratePatience bounds the whole calibration: a first CUDA context on a slow disk takes a minute.
const calibratePatience = 5 * time.Minute

// Calibrate trains a little on the card and calls at with each stage while the process holds still, so that the caller
// can read the driver. installed is what Install gave.
func Calibrate(ctx context.Context, python, installed string, at func(CardStage) error) error {
	ctx, cancel := context.WithTimeout(ctx, calibratePatience)
	defer cancel()
	cmd := exec.CommandContext(ctx, python, "-B", filepath.Join(installed, "_memroom_probe", "calibrate", "run.py"))
	cmd.WaitDelay = 5 * time.Second
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
	err = eachStage(in, out, at)
	in.Close()
	waited := cmd.Wait()
	switch {
	case err != nil:
		return err
	case ctx.Err() != nil:
		return fmt.Errorf("calibration took longer than %v", calibratePatience)
	case waited != nil:
		lines := strings.Split(strings.TrimSpace(complaints.String()), "\n")
		return fmt.Errorf("calibration with %s: %w: %s", python, waited, lines[len(lines)-1])
	}
	return nil
}

func eachStage(in io.Writer, out io.Reader, at func(CardStage) error) error {
	for lines := bufio.NewScanner(out); lines.Scan(); {
		var stage CardStage
		if json.Unmarshal(lines.Bytes(), &stage) != nil {
			continue // libraries print too
		}
		if stage.Error != "" {
			return errors.New(stage.Error)
		}
		if err := at(stage); err != nil {
			return err
		}
		if _, err := io.WriteString(in, "\n"); err != nil {
			return nil // it died: Wait says why
		}
	}
	return nil
}
