package cli

import (
	"fmt"
	"strconv"

	"memroom/plan"
)

// rankMargin is by how much more a rehearsed rank may be off than a script on one card: on a card
// the host may be ahead, and collectives keep memory a little longer.
const rankMargin = 0.10

// mostRanks bounds how many ranks of a command are rehearsed.
const mostRanks = 9

// mostCards is how many cards of a machine torch can pretend to have.
const mostCards = 8

// ranks are the ranks of a command that were rehearsed.
type ranks struct {
	cmd     *planCmd
	s       *session
	target  plan.Target
	answers map[int]*plan.Prediction
	refused string // why one could not be rehearsed
}

// otherRanks rehearses further ranks: the last and one in the middle, and others between two that
// need different amounts, until it is known where one kind ends. The answer is that of the rank
// that needs most.
func (c *planCmd) otherRanks(s *session, target plan.Target, first *plan.Prediction) (
	*plan.Prediction, error) {
	r := &ranks{cmd: c, s: s, target: target, answers: map[int]*plan.Prediction{0: first}}
	defer func() { c.rank = 0 }()
	last := c.Ranks - 1
	for _, n := range []int{last, last / 2} {
		if err := r.rehearse(n); err != nil {
			return nil, err
		}
	}
	if err := r.between(0, last/2); err != nil {
		return nil, err
	}
	if err := r.between(last/2, last); err != nil {
		return nil, err
	}
	return plan.OfRanks(r.answers, c.Ranks), nil
}

// between looks for the place between two rehearsed ranks where one kind of rank ends.
func (r *ranks) between(low, high int) error {
	a, b := r.answers[low], r.answers[high]
	if high-low < 2 || a == nil || b == nil || a.SameKind(b) || len(r.answers) >= mostRanks {
		return nil
	}
	middle := (low + high) / 2
	if err := r.rehearse(middle); err != nil || r.answers[middle] == nil {
		return err
	}
	if err := r.between(low, middle); err != nil {
		return err
	}
	return r.between(middle, high)
}

// rehearse plays one rank. A rank that breaks where the first did not leaves a note.
func (r *ranks) rehearse(rank int) error {
	if r.answers[rank] != nil || r.refused != "" {
		return nil
	}
	r.cmd.rank = rank
	record, err := r.cmd.rehearsal(r.s, r.target, r.cmd.Args, "")
	if err == nil && record.Error != "" {
		err = fmt.Errorf("%s", record.Error)
	}
	if err != nil && r.s.ctx.Err() != nil {
		return err
	}
	if err != nil {
		r.refused = err.Error()
		r.answers[0].Warnings = append(r.answers[0].Warnings, fmt.Sprintf("rank %d could not be "+
			"rehearsed (%s): it is taken to need what the others do", rank, r.refused))
		return nil
	}
	p, err := record.Predict(r.target)
	if err == nil {
		r.answers[rank] = p
	}
	return err
}

// rankEnviron returns the environment variables that a launcher sets for one rank.
func (c *planCmd) rankEnviron() []string {
	cards := c.cards()
	node := strconv.Itoa(c.rank / cards)
	env := []string{"RANK=" + strconv.Itoa(c.rank), "WORLD_SIZE=" + strconv.Itoa(c.Ranks),
		"LOCAL_RANK=" + strconv.Itoa(c.rank%cards), "LOCAL_WORLD_SIZE=" + strconv.Itoa(cards),
		"GROUP_RANK=" + node, "NODE_RANK=" + node, "MASTER_ADDR=127.0.0.1", "MASTER_PORT=29500"}
	if c.elastic {
		env = append(env, "TORCHELASTIC_RUN_ID=rehearsal", "TORCHELASTIC_RESTART_COUNT=0")
	}
	return env
}

// cards is how many cards the machine of a rank is said to have: one for each of its ranks.
func (c *planCmd) cards() int {
	if c.perNode > 0 {
		return min(c.perNode, c.Ranks, mostCards)
	}
	return min(max(1, c.Ranks), mostCards)
}
