package plan

import (
	"fmt"
	"slices"
	"strings"

	"memroom/remedy"
)

// flagTrainers are the trainers whose words a ladder is written in.
var flagTrainers = []remedy.Trainer{remedy.Transformers, remedy.Accelerate, remedy.Lightning,
	remedy.DeepSpeed, remedy.Axolotl}

// flags writes the chosen remedies in each trainer's own words, and as arguments of `memroom run`.
// Every row has the whole set. A remedy for which the row's trainer has no flag stands there as a
// comment.
func flags(s Setup, best *candidate) map[string]string {
	words := map[string]string{"memroom": best.memroomWords(s)}
	for _, trainer := range flagTrainers {
		var row typed
		best.each(s, func(r *remedy.Remedy, at remedy.Setup) {
			row.apply(r, r.HowTo(remedy.Job{Framework: remedy.PyTorch, Trainer: trainer,
				Setup: &at}))
		})
		words[string(trainer)] = row.String()
	}
	if best.setup.AllocConf != s.AllocConf {
		words["env"] = "PYTORCH_CUDA_ALLOC_CONF=" + best.setup.AllocConf
	}
	return words
}

// each calls fn with every remedy that is in effect at the end, and with the setup before its last
// notch: several halvings are one change of the flags.
func (c *candidate) each(s Setup, fn func(*remedy.Remedy, remedy.Setup)) {
	at := s.Setup
	for _, id := range c.ids {
		r, _ := remedy.Find(id)
		if id == remedy.MicroBatch {
			for range c.halvings - 1 {
				at, _ = r.Rewrite(at)
			}
		}
		// a later optimizer takes the place of an earlier one
		if id == remedy.MicroBatch || r.IsOn(c.setup.Setup) {
			fn(r, at)
		}
		at, _ = r.Rewrite(at)
	}
}

// memroomWords is the set as arguments of `memroom run`.
func (c *candidate) memroomWords(s Setup) string {
	row := typed{launch: "memroom run --fit"}
	c.each(s, func(r *remedy.Remedy, at remedy.Setup) {
		how := r.HowTo(remedy.Job{Framework: remedy.PyTorch, Setup: &at})
		if len(r.Levels) == 0 {
			row.note(r.ID, "memroom cannot apply it, in code:", how.Code)
			return
		}
		if r.Consent != "" && !slices.Contains(row.flags, "--allow "+r.Consent) {
			row.flags = append(row.flags, "--allow "+r.Consent)
		}
		word := "--remedy " + string(r.ID)
		if r.ID == remedy.MicroBatch {
			word += fmt.Sprintf("=%d", c.setup.Batch)
		}
		row.flags = append(row.flags, word)
		if c.setup.LoadIn != "" && at.LoadIn == "" && at.LoRARank == 0 &&
			strings.HasPrefix(string(r.ID), "quantize") {
			row.note(r.ID,
				fmt.Sprintf("the script itself must train LoRA adapters of rank %d on such weights",
					c.setup.LoRARank), "")
		}
	})
	row.flags = append(row.flags, "-- YOUR COMMAND")
	return row.String()
}

// typed is what a user types for one trainer: a line of flags, and below it lines of configuration,
// of code and comments.
type typed struct {
	launch string // the program whose flags they are, where the trainer has one
	flags  []string
	lines  []string
}

const accelerateLaunch = "accelerate launch"

// apply adds a remedy: the trainer's own words, else where it stands instead.
func (t *typed) apply(r *remedy.Remedy, how remedy.How) {
	switch {
	case how.Args != "":
		for line := range strings.SplitSeq(how.Args, "\n") {
			t.add(r.ID, line)
		}
	case how.Env != "":
		t.note(r.ID, "in the environment, see env", "")
	default:
		t.note(r.ID, "no flag, in code:", how.Code)
	}
}

// add puts one line of a trainer's words where it belongs. A comment behind flags would swallow
// those that follow.
func (t *typed) add(id remedy.ID, line string) {
	words, comment, commented := strings.Cut(line, "   # ")
	if rest, ok := strings.CutPrefix(words, accelerateLaunch+" "); ok {
		t.launch, words = accelerateLaunch, rest
	}
	if !strings.HasPrefix(words, "--") {
		if !slices.Contains(t.lines, line) {
			t.lines = append(t.lines, line)
		}
		return
	}
	if words = strings.TrimSpace(words); !slices.Contains(t.flags, words) {
		t.flags = append(t.flags, words)
	}
	if commented {
		t.note(id, strings.TrimSpace(comment), "")
	}
}

// note adds a comment about a remedy, with one line of code behind it or several lines below.
func (t *typed) note(id remedy.ID, text, code string) {
	line := fmt.Sprintf("# %s: %s", id, text)
	if strings.Contains(code, "\n") {
		t.lines = append(t.lines, line)
		for part := range strings.SplitSeq(code, "\n") {
			t.lines = append(t.lines, "#     "+part)
		}
		return
	}
	t.lines = append(t.lines, strings.TrimSpace(line+" "+code))
}

func (t *typed) String() string {
	first := strings.TrimSpace(t.launch + " " + strings.Join(t.flags, " "))
	if first == "" {
		return strings.Join(t.lines, "\n")
	}
	return strings.Join(append([]string{first}, t.lines...), "\n")
}
