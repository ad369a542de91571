package main

import (
	"fmt"
	"strconv"
	"strings"

	"memroom/plan"
)

// setup is the row's setup: its flags, and what flags can say since then.
func (r *row) setup() (s plan.Setup, gpu string, err error) {
	words := strings.Fields(r.Flags)
	for i := 0; i < len(words); i++ {
		switch words[i] {
		case "--checkpointing":
			s.Checkpointing = true
			continue
		case "--clip":
			s.Clip = true
			continue
		case "--keep-grads":
			s.KeepGrads = true
			continue
		}
		if i+1 == len(words) {
			return s, gpu, fmt.Errorf("flag %s has no value", words[i])
		}
		if err := setFlag(&s, &gpu, words[i], words[i+1]); err != nil {
			return s, gpu, err
		}
		i++
	}
	r.express(&s)
	return s, gpu, nil
}

// setFlag sets one flag with a value.
func setFlag(s *plan.Setup, gpu *string, flag, value string) error {
	texts := map[string]*string{"--precision": &s.Precision, "--optimizer": &s.Optimizer,
		"--attn": &s.Attention, "--shard": &s.Shard, "--load-in": &s.LoadIn, "--gpu": gpu}
	numbers := map[string]*int{"--batch": &s.Batch, "--seq": &s.Seq, "--shortest": &s.Shortest,
		"--accumulate": &s.Accumulate, "--ranks": &s.Ranks, "--lora-rank": &s.LoRARank}
	if text, ok := texts[flag]; ok {
		*text = value
		return nil
	}
	if flag == "--offload" {
		s.Offload = append(s.Offload, value)
		return nil
	}
	number, ok := numbers[flag]
	if !ok {
		return fmt.Errorf("flag %s is not known here", flag)
	}
	n, err := strconv.Atoi(value)
	*number = n
	return err
}

// sayable are the row's remarks that flags can say today, and what they set.
var sayable = []struct {
	remark string
	set    func(*plan.Setup)
}{
	{"lora targets q,k,v,o", func(s *plan.Setup) {
		s.LoRATargets = []string{"q_proj", "k_proj", "v_proj", "o_proj"}
	}},
	{"lora targets all linear", func(s *plan.Setup) { s.LoRATargets = []string{"all-linear"} }},
	{"lora dropout 0.1", func(s *plan.Setup) { s.LoRADropout = 0.1 }},
	{"fp32 upcast", func(s *plan.Setup) { s.NoUpcast = true }},
	{"double quantisation", func(s *plan.Setup) { s.DoubleQuant = true }},
	{"Liger", func(s *plan.Setup) { s.ChunkedLoss = true }},
	{"chunked cross-entropy", func(s *plan.Setup) { s.ChunkedLoss = true }},
}

// express sets what the row's remarks say and flags can say today.
func (r *row) express(s *plan.Setup) {
	for _, remark := range r.Beyond {
		for _, known := range sayable {
			if strings.Contains(remark, known.remark) {
				known.set(s)
			}
		}
	}
	if s.LoadIn == "" {
		s.NoUpcast = false
	}
	if s.LoRARank == 0 {
		s.LoRATargets, s.LoRADropout = nil, 0
	}
}

// left is what the row does differently and no flag can say; "" if nothing.
func (r *row) left() string {
	var list []string
	for _, remark := range r.Beyond {
		said := false
		for _, known := range sayable {
			said = said || strings.Contains(remark, known.remark)
		}
		if !said || strings.Contains(remark, "litgpt") || strings.Contains(remark, "+ head") ||
			strings.Contains(remark, "kernels") {
			list = append(list, remark)
		}
	}
	return strings.Join(list, "; ")
}
