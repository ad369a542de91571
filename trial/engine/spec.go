package engine

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"memroom/event"
	"memroom/lazyregexp"
	"memroom/trial"
)

// Spec is what a study is: study.json in its folder. Only the number of samples changes later, by
// the journal.
type Spec struct {
	Version int               `json:"version"`
	ID      string            `json:"id,omitempty"` // also in the journal's first line
	Name    string            `json:"name"`
	Created time.Time         `json:"created"`
	Command []string          `json:"command"` // with ${name} where a parameter goes
	Dir     string            `json:"dir"`
	Env     map[string]string `json:"env,omitempty"`   // with ${name} too
	Files   map[string]string `json:"files,omitempty"` // name in the command -> template's text
	Space   trial.Space       `json:"space"`
	Method  trial.Method      `json:"search"`
	Seed    uint64            `json:"seed"`
	Samples int               `json:"samples"`
	Options trial.Options     `json:"options"`
	Pattern string            `json:"metric_pattern,omitempty"`
	ASHA    *ASHASpec         `json:"asha,omitempty"`
	HostMem event.Bytes       `json:"host_mem,omitempty"`
	GPUMem  event.Bytes       `json:"gpu_mem,omitempty"`
	MaxLog  event.Bytes       `json:"max_log,omitempty"`
	MaxTime time.Duration     `json:"max_time,omitempty"` // of a trial, nanoseconds
	Budget  time.Duration     `json:"budget,omitempty"`   // of the study, each time it is worked on
	On      string            `json:"on,omitempty"`       // a cluster; empty: this machine
	Sbatch  []string          `json:"sbatch,omitempty"`
	WorkDir string            `json:"working_dir,omitempty"` // that Ray copies to its nodes
	Probe   bool              `json:"probe"`
	// Rehearse settings before they are started, for so long in all; 0: not at all
	Rehearse time.Duration `json:"rehearse,omitempty"`
	Optuna   *OptunaSpec   `json:"optuna,omitempty"`
}

// OptunaSpec describes how Optuna proposes the points.
type OptunaSpec struct {
	Python  string `json:"python"`
	Sampler string `json:"sampler,omitempty"`
	Pruner  string `json:"pruner,omitempty"`
	Storage string `json:"storage,omitempty"` // empty: a file in the study's folder
}

// ASHASpec are the settings of early stopping.
type ASHASpec struct {
	Grace  int `json:"grace"`
	MaxT   int `json:"max_t"`
	Factor int `json:"factor"`
}

const specVersion = 1

var validName = lazyregexp.New(`^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$`)

// ValidName reports whether a study can have this name.
func ValidName(name string) bool { return validName.MatchString(name) }

// Create makes the folder of a new study below root.
func Create(root string, spec Spec) (dir string, err error) {
	if !validName.MatchString(spec.Name) {
		return "", fmt.Errorf("study name %q: use letters, digits, dots, dashes and underscores, at "+
			"most 100, and begin with a letter or a digit", spec.Name)
	}
	spec.Version, spec.ID = specVersion, rand.Text()
	dir = filepath.Join(root, spec.Name)
	if err := os.MkdirAll(root, 0o700); err != nil {
		return "", err
	}
	taken := fmt.Errorf("study %s exists already: `memroom tune resume %s` goes on with it, "+
		"--name takes another one", spec.Name, spec.Name)
	if _, err := os.Stat(dir); err == nil {
		return "", taken
	}
	// Make the study in a temporary folder and rename it, so that a study that exists is complete.
	fresh, err := os.MkdirTemp(root, ".new-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(fresh)
	data, err := json.MarshalIndent(spec, "", "  ")
	if err == nil {
		err = writeSynced(filepath.Join(fresh, specFile), append(data, '\n'))
	}
	if err == nil {
		data, err = entry{Kind: "study", ID: spec.ID}.line()
	}
	if err == nil {
		err = writeSynced(filepath.Join(fresh, journalFile), data)
	}
	if err != nil {
		return "", err
	}
	if err := os.Rename(fresh, dir); err != nil {
		if _, exists := os.Stat(dir); exists == nil {
			return "", taken
		}
		return "", err
	}
	return dir, nil
}

func writeSynced(path string, data []byte) error {
	file, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	if err == nil {
		err = file.Sync()
	}
	if closed := file.Close(); err == nil {
		err = closed
	}
	if err != nil {
		_ = os.Remove(path + ".new")
		return err
	}
	return os.Rename(path+".new", path)
}

// ReadSpec reads study.json.
func ReadSpec(dir string) (spec Spec, err error) {
	path := filepath.Join(dir, specFile)
	data, err := os.ReadFile(path)
	if err != nil {
		return spec, err
	}
	err = json.Unmarshal(data, &spec)
	if err == nil && spec.Version > specVersion {
		return spec, fmt.Errorf("%s was made by a newer memroom (format %d, this one knows %d): go on "+
			"with that one", path, spec.Version, specVersion)
	}
	if err == nil && (spec.Version < 1 || spec.Name == "" || len(spec.Command) == 0) {
		err = errors.New("it has no version, name or command")
	}
	if err != nil {
		return spec, fmt.Errorf("%s is damaged (%w): mend it, or begin a new study", path, err)
	}
	return spec, nil
}
