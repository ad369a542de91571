package plan

import (
	"fmt"
	"slices"
	"strings"

	"memroom/event"
	"memroom/models"
	"memroom/tape"
)

// Trainers are the ways to train a language model beyond the next token, by TRL's names.
var Trainers = []string{"sft", "dpo", "orpo", "kto", "reward", "grpo", "rloo", "ppo"}

// References are what answers are compared with: weights of their own, or nothing on this card.
var References = []string{"copy", "none"}

// paired reports whether a sample is two sequences, one chosen and one rejected.
func (s *Setup) paired() bool {
	return slices.Contains([]string{"dpo", "orpo", "reward"}, s.Trainer)
}

// generates reports whether answers are written before they are learnt from.
func (s *Setup) generates() bool {
	return s.Trainer == "grpo" || s.Trainer == "rloo" || s.Trainer == "ppo"
}

// refers reports whether a forward pass of a reference model is part of the step.
func (s *Setup) refers() bool {
	return s.Reference != "none" && slices.Contains(
		[]string{"dpo", "kto", "grpo", "rloo", "ppo"}, s.Trainer)
}

// copies is how many frozen models of the same size stand next to the one that is trained: the
// reference, which adapters need not (they are switched off), and PPO's judge of answers.
func (s *Setup) copies() int {
	n := 0
	if s.refers() && s.LoRARank == 0 {
		n++
	}
	if s.Trainer == "ppo" {
		n++
	}
	return n
}

// fromTrainer fills in what TRL does by default.
func (s *Setup) fromTrainer() {
	if s.Trainer == "" {
		return
	}
	if s.Reference == "" {
		s.Reference = "copy"
		if s.Trainer == "grpo" { // beta is 0
			s.Reference = "none"
		}
	}
	if s.Model != nil && s.Model.DefaultSeq() > 0 {
		setDefault(&s.Seq, int(s.Model.DefaultSeq()))
	}
	if s.scoresAnswers() && s.Completion == 0 {
		s.say("the loss is taken of all %d tokens; set --completion to the answer's tokens, which "+
			"makes the tile of logits smaller below 4,096 a batch", s.Seq)
	}
	if s.generates() && s.Completion == 0 {
		s.Completion = max(s.Seq/2, 1)
		s.say("half of the %d tokens are taken for the answer that is generated; --completion says "+
			"how many are", s.Seq)
	}
	// answers differ in length
	s.Padded = s.Padded || s.Attention != "flash"
}

// scoresAnswers reports whether the trainer works on the tokens of answers alone.
func (s *Setup) scoresAnswers() bool {
	return s.Trainer == "sft" || s.Trainer == "dpo" || s.Trainer == "kto"
}

// fusedHead reports whether the trainer makes no whole logits.
func (s *Setup) fusedHead() bool {
	o, _ := s.objective()
	return o.FusedHead(s.trl())
}

// trl is the release of TRL that is planned, 0 for the newest. PPO ended with 1.12.
func (s *Setup) trl() int {
	if s.Trainer == "ppo" && s.TRL == "" {
		return 112
	}
	return release(s.TRL)
}

// checkTrainer refuses what a trainer cannot do.
func (s *Setup) checkTrainer() error {
	for _, w := range []struct {
		wrong bool
		says  string
	}{
		{s.Trainer == "" && s.Completion > 0, "--completion is for answers that are learnt or " +
			"generated: add --trainer, such as sft, dpo or grpo"},
		{s.Trainer == "" && s.TRL != "", "--trl is for one of its trainers: add --trainer"},
		{s.Trainer == "" && s.Reference != "", "--reference is for preference training: add --trainer"},
		{s.Engine > 0 && !s.generates(), "--engine-share is for answers that are generated: add " +
			"--trainer grpo or ppo"},
		{s.Engine < 0 || s.Engine >= 1, "--engine-share must be at least 0 and less than 1"},
		{s.Trainer != "" && s.Completion > s.Seq, fmt.Sprintf("--completion %d is more than --seq %d, "+
			"which counts prompt and answer", s.Completion, s.Seq)},
		{s.Trainer == "ppo" && s.Ranks > 1 && s.Shard != "ddp",
			"PPO trains two models: sharding both is not planned; leave out --shard, or use --shard ddp"},
		{s.Trainer != "" && s.ChunkedLoss,
			"--trainer " + s.Trainer + " has a loss of its own: leave out --loss fused"},
		{s.Trainer != "" && s.Shortest > 0, "--trainer plans its longest sequences: leave out --shortest"},
		{s.Trainer != "" && s.EvalBatch > 0, "--trainer plans training steps: leave out --eval-batch"},
		{s.Trainer != "" && s.Model != nil && !models.Decodes(s.Model.Type()),
			"--trainer " + s.Trainer + " is for models that write text"},
	} {
		if w.wrong {
			return fmt.Errorf("%s", w.says)
		}
	}
	return nil
}

// objective is what the model's loss is, and the tokens whose logits it needs.
func (s *Setup) objective() (o models.Objective, keep int64) {
	switch s.Trainer {
	case "sft":
		return models.Tokens, int64(s.Completion)
	case "dpo", "kto":
		return models.Pairs, int64(s.Completion)
	case "orpo":
		return models.PairsAlso, 0
	case "grpo", "rloo", "ppo":
		return models.Answers, int64(s.Completion)
	}
	return "", 0
}

// trainerNotes describes how the trainer was planned.
func (s *Setup) trainerNotes() []string {
	if s.Trainer == "" {
		return nil
	}
	how := map[string]string{
		"sft":  "each sample is one sequence",
		"dpo":  "each sample is a pair, so a batch is twice as many sequences",
		"orpo": "each sample is a pair, so a batch is twice as many sequences; there is no reference",
		"kto": "each sample is one answer, which is also read with the prompt of another for the " +
			"estimate of divergence",
		"reward": "each sample is a pair, so a batch is twice as many sequences; the head has one score",
		"grpo": "the batch counts answers; those of a whole optimizer step are generated at once, and " +
			"logits are made for the answers alone",
		"rloo": "the batch counts answers; those of a whole optimizer step are generated at once, and " +
			"logits are made for the answers alone",
		"ppo": "the batch counts answers; a second model of the same size learns their value, a third " +
			"judges them; TRL has no PPO since 1.13",
	}[s.Trainer]
	list := []string{how, s.headNote()}
	switch {
	case s.refers() && s.LoRARank > 0:
		list = append(list, "the reference is the same model with its adapters switched off")
	case s.refers():
		list = append(list, "the reference is a frozen copy on the same card; --reference none where its "+
			"answers were computed before")
	}
	if s.generates() && s.Engine > 0 {
		list = append(list, fmt.Sprintf("an inference engine takes %.0f %% of the card "+
			"(vllm_gpu_memory_utilization) and keeps it", 100*s.Engine))
	} else if s.generates() {
		list = append(list, "answers are generated by the model itself with a cache that grows token by "+
			"token; --engine-share plans an engine on the same card")
	}
	return list
}

// headNote describes how the planned release of TRL computes logits.
func (s *Setup) headNote() string {
	switch older := s.trl(); {
	case s.Trainer == "reward":
		return "TRL's own default is gradient checkpointing (add --checkpointing unless it is off)"
	case s.fusedHead():
		return "logits are made in tiles of 4,096 tokens and 32,768 words, never whole, as TRL does since " +
			"1.15; --trl VERSION plans an older one, and TRL's own default is gradient checkpointing"
	case s.Trainer == "sft" && older >= 106:
		return "TRL 1.6 to 1.14 make logits in chunks of tokens: planned as the tiles of 1.15"
	case s.Trainer == "orpo" && older == 0:
		return "logits are whole, as in TRL's ORPO of 1.16; gradient checkpointing is TRL's own default"
	}
	return "logits are whole; gradient checkpointing is TRL's own default since 0.20"
}

// trainerWords is the trainer in the line of assumptions.
func (s *Setup) trainerWords() string {
	what := s.Trainer
	if s.paired() {
		what += " (pairs)"
	}
	if s.generates() {
		what += fmt.Sprintf(", answers of %d tokens", s.Completion)
	}
	return what
}

// aside is what a trainer does next to the step itself.
type aside struct {
	copies  int    // frozen models of the same size
	kind    string // the trainer, "" is none
	refers  bool
	value   *models.Model // PPO: trained too
	answers generation
}

// generation is the memory of writing answers.
type generation struct {
	batch, prompt, length   int64 // answers at once, tokens before and after
	layers, perToken, vocab int64
	as                      tape.DType
	read                    inputs // the prompts; nil where an engine writes the answers
}

// aside is what the setup's trainer adds to a plain loop.
func (s *Setup) aside() (a aside, err error) {
	if s.Trainer == "" {
		return a, nil
	}
	a = aside{copies: s.copies(), kind: s.Trainer, refers: s.refers()}
	if s.Trainer == "ppo" {
		r := s.run(s.Batch, s.Seq)
		r.Objective, r.Keep, r.HeadName = "", 0, "ForTokenClassification"
		if a.value, err = models.New(s.Model, r); err != nil {
			return a, err
		}
	}
	if !s.generates() || s.Engine > 0 {
		return a, nil
	}
	g := &a.answers
	g.batch, g.length = int64(s.Batch), int64(s.Seq)
	if s.Trainer != "ppo" {
		g.batch *= int64(s.Accumulate)
	}
	g.prompt = max(g.length-int64(s.Completion), 1)
	g.layers, g.perToken = models.CachePerToken(s.Model)
	g.vocab = s.Model.Int(1, "vocab_size")
	g.as = weightType(strings.TrimPrefix(s.Precision, "amp_"))
	g.read, err = s.batchOf(int(g.batch), int(g.prompt))
	return a, err
}

// load puts frozen copies on the card: as many bytes as the model's own weights have taken there.
func (a *aside) load(g *tape.Graph) {
	if a.copies == 0 {
		return
	}
	sizes := g.Weights()
	for range a.copies {
		g.Forever("reference", event.CategoryWeights, sizes...)
	}
}

// write is the generation of answers: the prompts are read, then the cache grows. At its end it is
// whole, one layer's part stands twice, and the scores of the next token exist in three forms.
func (a *aside) write(g *tape.Graph, m *models.Model, step int) {
	w := &a.answers
	if w.read == nil {
		return
	}
	g.Mark(step, "generation")
	a.reading(g, m, w.read)
	layer := w.batch * w.length * w.perToken * w.as.Size()
	sizes := []int64{4 * w.batch * w.vocab, 4 * w.batch * w.vocab, 4 * w.batch * w.vocab}
	for range w.layers + 1 {
		sizes = append(sizes, layer/2, layer/2)
	}
	g.Scratch("generation", sizes...)
}

// reference is a forward pass of what answers are compared with: a copy's, or that of the model
// itself without its adapters.
func (a *aside) reference(g *tape.Graph, m *models.Model, batch inputs) {
	g.AdaptersOff = true
	a.reading(g, m, batch)
	g.AdaptersOff = false
}

// reading is a forward pass without gradients, of which a few numbers stay.
func (a *aside) reading(g *tape.Graph, m *models.Model, batch inputs) {
	f := g.Enter()
	in := batch(g)
	for _, t := range in {
		f.Keep(t)
	}
	g.NoGrad(func() { f.Keep(g.Whole(func() *tape.Tensor { return m.Loss(g, in) })) })
	f.Leave()
	g.EndAutocast()
}

// before is what happens ahead of a micro-batch's own forward pass.
func (a *aside) before(g *tape.Graph, m *models.Model, batch inputs, step int) {
	switch a.kind {
	case "kto": // answers to the prompts of others
		g.Mark(step, "reference")
		a.reading(g, m, batch)
	case "grpo", "rloo", "ppo":
		if a.refers {
			g.Mark(step, "reference")
			a.reference(g, m, batch)
		}
		if a.kind == "ppo" { // the policy's own, the judge's
			a.reading(g, m, batch)
			a.reading(g, a.value, a.value.Inputs)
		}
	}
}

// after is what happens between a micro-batch's forward and backward pass: TRL asks the reference
// when the activations of the policy are there.
func (a *aside) after(g *tape.Graph, m *models.Model, batch inputs, step int) {
	if !a.refers || a.kind != "dpo" && a.kind != "kto" {
		return
	}
	g.Mark(step, "reference")
	a.reference(g, m, batch)
	if a.kind == "kto" {
		a.reference(g, m, batch)
	}
}
