package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"memroom/event"
	"memroom/plan"
	"memroom/store"
)

// What was measured on this machine's cards lies in $MEMROOM_HOME/cards.json.
func calibrationPath() (string, error) {
	home, err := store.DefaultHome()
	return filepath.Join(home, "cards.json"), err
}

// mostCalibrations bounds the record: a card takes about a mebibyte.
const mostCalibrations = 64 << 20

// calibrations reads what was measured here; nothing if there is nothing.
func calibrations() ([]*plan.Calibration, error) {
	kept, err := openStore()
	if err != nil {
		return nil, nil // no home of ours, no record
	}
	path := filepath.Join(kept.Home, "cards.json")
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > mostCalibrations {
		return nil, fmt.Errorf("%s is not a record of calibrations: expected a plain file of at "+
			"most %s; `memroom calibrate --forget` removes it", path, event.Bytes(mostCalibrations))
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var list []*plan.Calibration
	if err := json.Unmarshal(data, &list); err != nil {
		return nil, fmt.Errorf("%s is damaged (%w): run `memroom calibrate` again, or `memroom calibrate "+
			"--forget`", path, err)
	}
	for _, c := range list {
		if c == nil || !c.Plausible() {
			return nil, fmt.Errorf("%s is damaged (impossible sizes): run `memroom "+
				"calibrate` again, or `memroom calibrate --forget`", path)
		}
	}
	return list, nil
}

// keepCalibration replaces the record of this card; what an earlier one knows beyond it, for the
// same versions, is kept.
func keepCalibration(found *plan.Calibration) error {
	path, err := calibrationPath()
	if err != nil {
		return err
	}
	list, err := calibrations()
	if err != nil {
		list = nil // a damaged record is replaced
	}
	kept := []*plan.Calibration{found}
	for _, c := range list {
		if c.UUID != found.UUID {
			kept = append(kept, c)
		} else {
			found.Merge(c)
		}
	}
	data, err := json.Marshal(kept)
	if err != nil {
		return err
	}
	if _, err := store.Open(filepath.Dir(path)); err != nil {
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

// calibrated returns a target what was measured here on a card of its name, if it was.
func calibrated(t *plan.Target) error {
	list, err := calibrations()
	if err != nil {
		return err
	}
	for _, c := range list {
		if sameCard(c.Name, t.Card.Name) {
			t.Calibrate(c)
			return nil
		}
	}
	return nil
}

// sameCard compares names as the driver and our table write them: "NVIDIA H200" is H200.
func sameCard(seen, known string) bool {
	fold := func(s string) string {
		return strings.NewReplacer("nvidia", "", "geforce", "", "tesla", "", " ", "", "-",
			"").Replace(strings.ToLower(s))
	}
	return fold(seen) == fold(known)
}
