package fit

import (
	"crypto/sha256"
	"encoding/hex"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"memroom/event"
	"memroom/remedy"
)

// Remembered is what made a job fit, so that its next run begins there.
type Remembered struct {
	Command  []string    `json:"command"` // without its arguments' values that look like secrets
	Card     string      `json:"card,omitempty"`
	Limit    event.Bytes `json:"limit,omitempty"`
	Remedies []Remedy    `json:"remedies"`
	Peak     event.Bytes `json:"peak,omitempty"` // measured with them
	Attempts int         `json:"attempts"`       // that it took
	When     time.Time   `json:"when"`
	// the largest division by the command's own arguments that was too small
	RanOut int `json:"ran_out,omitempty"`
}

// Relaxed returns the remedies that the next run begins with: where less than half of the limit was
// used, the command's own arguments divide the micro-batch by half as much. A division that ran out
// once is never gone back to, so this cannot swing. (What is done inside the process is measured
// anew in every run.)
func (m Remembered) Relaxed(limit event.Bytes) []Remedy {
	half := Factor(m.Remedies) / 2
	if limit == 0 || m.Peak == 0 || half <= m.RanOut || half < 2 || 2*m.Peak > limit*9/10 {
		return m.Remedies
	}
	relaxed := slices.Clone(m.Remedies)
	for i, r := range relaxed {
		if r.ID == remedy.MicroBatch && r.Level == remedy.LevelArgs {
			relaxed[i].Params = remedy.Params{Factor: float64(half)}
		}
	}
	return relaxed
}

// immaterial are arguments that do not change how much memory a job needs.
var immaterial = []string{"--seed", "--lr", "--learning_rate", "--learning-rate", "--weight_decay",
	"--weight-decay", "--epochs",
	"--num_train_epochs", "--max_steps", "--steps", "--output_dir", "--output-dir", "--out",
	"--logging_dir", "--logging_steps",
	"--save_steps", "--run_name", "--name", "--warmup_steps", "--resume",
	"--resume_from_checkpoint", "--ckpt_path", "--momentum"}

// Key names a job by its script, the arguments that matter, the content of the files that describe
// the model (script and configs) and the card with its limit.
func Key(args []string, content map[string][]byte, card string, limit event.Bytes) string {
	sum := sha256.New()
	write := func(s string) { sum.Write([]byte(s)); sum.Write([]byte{0}) }
	skip := false
	for _, a := range args {
		if skip {
			skip = false
			continue
		}
		name, _, joined := strings.Cut(a, "=")
		if isImmaterial(name) {
			skip = !joined
			continue
		}
		write(a)
		if body, ok := content[a]; ok {
			write(string(body))
		}
	}
	write(card)
	write(limit.String())
	return hex.EncodeToString(sum.Sum(nil))[:20]
}

func isImmaterial(flag string) bool {
	for _, f := range immaterial {
		if f == flag {
			return true
		}
	}
	return false
}

// Script returns the argument that is the program: the first Python file, else the command itself.
func Script(args []string) string {
	for _, a := range args {
		if filepath.Ext(a) == ".py" {
			return a
		}
	}
	if len(args) == 0 {
		return ""
	}
	return args[0]
}
