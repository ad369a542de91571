package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"memroom/event"
	"memroom/meter/nvml"
	"memroom/plan"
	"memroom/probe"
	"memroom/store"
)

type calibrateCmd struct {
	JSON   bool   `name:"json" help:"Print JSON."`
	Python string `placeholder:"PATH" help:"Interpreter with PyTorch; python3 on PATH otherwise."`
	Forget bool   `help:"Drop what was measured on this machine's cards."`
}

func (calibrateCmd) Help() string {
	return `Measures what the first card of this machine gives up beyond PyTorch's allocator (context, kernels, libraries), in half a minute, and
keeps it for plan: answers for this card are then its own. It needs a card with nothing else running on it, and PyTorch. Workspaces
that cuDNN chooses by shape are not measured: plan covers them by its interval.`
}

func (calibrateCmd) examples() []example { return []example{{line: "memroom calibrate --forget"}} }

// calibration is the record of one card, in $MEMROOM_HOME/cards.json.
type calibration struct {
	plan.Card
	UUID   string    `json:"uuid"`
	Driver string    `json:"driver"`
	Torch  string    `json:"torch"`
	When   time.Time `json:"when"`
}

func (c *calibrateCmd) Run(s *session) error {
	if c.Forget {
		return c.forget(s)
	}
	lib, err := nvml.Open()
	if err != nil {
		return exitWith(exitUsage, "calibrate: %w", err)
	}
	defer lib.Close()
	pythons := findPythons(c.Python)
	if len(pythons) == 0 {
		return exitWith(exitUsage, "calibrate: no python3 on PATH: name the one you train with by --python")
	}
	found, err := measureCard(s, lib, pythons[0])
	if err != nil {
		return exitWith(exitUsage, "calibrate: %w", err)
	}
	if err := keepCalibration(found); err != nil {
		return exitWith(exitUsage, "calibrate: %w", err)
	}
	if c.JSON {
		return s.printJSON(found)
	}
	_, err = fmt.Fprintf(s.Out, "%s (%s): %s beyond the allocator, %s more once cuDNN is used; %d multiprocessors, %s usable\nplan uses this from now on\n",
		found.Name, found.UUID, found.Context, found.DNN, found.SMs, found.Total)
	return err
}

// measureCard runs the calibration and reads the driver at each stage.
func measureCard(s *session, lib *nvml.Library, python string) (calibration, error) {
	var found calibration
	dir, err := os.MkdirTemp("", "memroom-calibrate-")
	if err != nil {
		return found, err
	}
	defer os.RemoveAll(dir)
	installed, err := probe.Install(dir)
	if err != nil {
		return found, err
	}
	before, err := firstCard(lib)
	if err != nil {
		return found, err
	}
	beyond := map[string]event.Bytes{}
	err = probe.Calibrate(s.ctx, python, installed, func(stage probe.CardStage) error {
		s.note("measuring: %s ...", stage.Stage)
		now, err := firstCard(lib)
		if err != nil {
			return err
		}
		beyond[stage.Stage] = now.Used - before.Used - stage.Reserved
		if stage.Name != "" {
			found.Card = plan.Card{Name: stage.Name, Total: stage.Total, SMs: stage.SMs, Capability: stage.Capability, Measured: true}
			found.UUID, found.Torch = now.UUID, stage.Torch
		}
		return nil
	})
	if err != nil {
		return found, err
	}
	if beyond["kernels"] <= 0 || beyond["cudnn"] < beyond["kernels"] {
		return found, fmt.Errorf("the readings make no sense (%v): is something else running on the card?", beyond)
	}
	found.Context, found.DNN = beyond["kernels"], beyond["cudnn"]-beyond["kernels"]
	if driver, err := lib.Driver(); err == nil {
		found.Driver = driver.Version
	}
	found.When = time.Now().UTC().Truncate(time.Second)
	return found, nil
}

func firstCard(lib *nvml.Library) (nvml.Device, error) {
	devices, err := lib.Devices()
	if len(devices) == 0 {
		return nvml.Device{}, fmt.Errorf("no card answers: %w", errors.Join(err, errors.New("see `memroom doctor`")))
	}
	return devices[0], nil
}

func calibrationPath() (string, error) {
	home, err := store.DefaultHome()
	return filepath.Join(home, "cards.json"), err
}

// calibrations reads what was measured here; nothing if there is nothing.
func calibrations() ([]calibration, error) {
	path, err := calibrationPath()
	if err != nil {
		return nil, nil // no home, no record
	}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var list []calibration
	if err := json.Unmarshal(data, &list); err != nil {
		return nil, fmt.Errorf("%s is damaged (%w): run `memroom calibrate` again, or `memroom calibrate --forget`", path, err)
	}
	return list, nil
}

// keepCalibration replaces the record of this card.
func keepCalibration(found calibration) error {
	path, err := calibrationPath()
	if err != nil {
		return err
	}
	list, err := calibrations()
	if err != nil {
		list = nil // a damaged record is replaced
	}
	kept := []calibration{found}
	for _, c := range list {
		if c.UUID != found.UUID {
			kept = append(kept, c)
		}
	}
	data, err := json.MarshalIndent(kept, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	fresh := path + ".new"
	if err := os.WriteFile(fresh, append(data, '\n'), 0o600); err != nil {
		return err
	}
	return os.Rename(fresh, path)
}

func (c *calibrateCmd) forget(s *session) error {
	path, err := calibrationPath()
	if err != nil {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if c.JSON {
		return s.printJSON(map[string]any{"forgotten": true})
	}
	_, err = fmt.Fprintln(s.Out, "nothing is kept about this machine's cards")
	return err
}

// calibrated gives a card the constants measured here, if it was.
func calibrated(card plan.Card) (plan.Card, error) {
	list, err := calibrations()
	if err != nil {
		return card, err
	}
	for _, c := range list {
		if sameCard(c.Name, card.Name) {
			own := c.Card
			own.Name = card.Name
			return own, nil
		}
	}
	return card, nil
}

// sameCard compares names as the driver and our table write them: "NVIDIA H200" is H200.
func sameCard(seen, known string) bool {
	fold := func(s string) string {
		return strings.NewReplacer("nvidia", "", "geforce", "", "tesla", "", " ", "", "-", "").Replace(strings.ToLower(s))
	}
	return fold(seen) == fold(known)
}
