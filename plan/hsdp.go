package plan

import (
	"fmt"
	"strings"

	"memroom/event"
)

// fromShard fills in the groups of HSDP: one a machine, or two on a single one.
func (s *Setup) fromShard() {
	if s.Shard != "hsdp" && s.Shard != "fsdp1" { // FSDP over all ranks has no groups
		s.Replicas = 0
	}
	if s.Shard != "hsdp" || s.Replicas > 0 {
		return
	}
	s.Replicas = 2
	if n := s.dataRanks(); n > nodeRanks && n%nodeRanks == 0 {
		s.Replicas = n / nodeRanks
	}
}

// checkReplicas refuses groups that cannot be made.
func (s *Setup) checkReplicas() error {
	switch {
	case s.Replicas == 0:
		return nil
	case s.Ranks > 1 && s.dataRanks()%s.Replicas != 0:
		return fmt.Errorf("%d data-parallel ranks cannot be divided into %d equal groups: "+
			"choose one of %s for --replicas", s.dataRanks(), s.Replicas, divisors(s.dataRanks()))
	case s.Shard == "hsdp" && s.Ranks > 1 && s.cut() == 1:
		return fmt.Errorf("%d groups of one rank each shard nothing: choose fewer --replicas, or "+
			"--shard ddp", s.Replicas)
	}
	return nil
}

// cut is over how many ranks FSDP cuts the states: all that have the same part of the model, or
// those of one group.
func (s *Setup) cut() int { return max(1, s.spreadRanks()/max(1, s.Replicas)) }

// groups is in how many groups a rank communicates beyond the first.
func (s *Setup) groups() int {
	n := 0
	for _, on := range []bool{s.spreadRanks() > 1, s.fullyShards() && s.Replicas > 1, s.Tensor > 1,
		s.Context > 1, s.Pipeline > 1, s.Expert > 1} {
		if on {
			n++
		}
	}
	return max(0, n-1)
}

// collectives is what the communication library is assumed to take of a card.
func (s *Setup) collectives() event.Bytes {
	return collectiveBytes + event.Bytes(s.groups())*groupBytes
}

// shardWords describes how the ranks share the work.
func (s *Setup) shardWords() string {
	var list []string
	add := func(on bool, format string, args ...any) {
		if on {
			list = append(list, fmt.Sprintf(format, args...))
		}
	}
	add(s.Shard != "" && s.spreadRanks() > 1, "%s", s.Shard)
	add(s.Replicas > 1, "%d groups", s.Replicas)
	add(s.Tensor > 1, "tensor %d", s.Tensor)
	add(s.Tensor > 1 && s.Sequence, "sequence")
	add(s.Context > 1, "context %d", s.Context)
	add(s.Pipeline > 1, "pipeline %d with %d micro-batches", s.Pipeline, s.Microbatches)
	add(s.Expert > 1, "expert %d", s.Expert)
	return strings.Join(list, ", ")
}
