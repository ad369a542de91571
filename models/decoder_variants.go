package models

import "slices"

// llama is LlamaForCausalLM and those that differ by a switch.
func llama(c *Config, r Run) (*Model, error) {
	s := readDecoder(c, r)
	switch c.Type() {
	case "qwen2":
		s.qkvBias = true
	case "qwen3":
		s.headNorm = beforeHeads
		s.qkvBias = c.Bool(false, "attention_bias")
		s.outBias = s.qkvBias
	case "ministral":
		s.bothMasks = true
	default:
		s.qkvBias = c.Bool(false, "attention_bias")
		s.outBias = s.qkvBias
		s.mlpBias = c.Bool(false, "mlp_bias")
	}
	return s.checked(c, r)
}

func (s *decoder) checked(c *Config, r Run) (*Model, error) {
	if s.rot < 0 || s.rot > s.d || s.rot%2 != 0 {
		c.complain("the rotated part of a head is %d of %d elements: expected an even number of at most "+
			"all", s.rot, s.d)
	}
	if err := c.Err(); err != nil {
		return nil, err
	}
	return s.model(r), nil
}

// gemma is Gemma, Gemma 2 and Gemma 3 for causal language modelling.
func gemma(c *Config, r Run) (*Model, error) {
	s := readDecoder(c, r)
	s.norms, s.embedScale = gemmaRMS, byTensor
	s.tied = c.Bool(true, "tie_word_embeddings")
	s.act = c.Str("gelu_pytorch_tanh", "hidden_activation", "hidden_act")
	if c.Type() == "gemma" {
		s.act = c.Str("gelu_pytorch_tanh", "hidden_act")
	}
	s.qkvBias = c.Bool(false, "attention_bias")
	s.outBias = s.qkvBias
	if c.Type() != "gemma" {
		s.layout = sandwich
		s.window = c.Count(4096, "sliding_window")
		s.sliding = slidingLayers(c, s.layers)
		s.softcap = c.Has("attn_logit_softcapping") || c.Type() == "gemma2" && !c.Has("layer_types")
		s.finalCap = c.Has("final_logit_softcapping") || c.Type() == "gemma2" &&
			!c.Has("layer_types")
	}
	if c.Type() == "gemma3_text" || c.Type() == "gemma3" {
		s.headNorm, s.twoTables = afterHeads, true
	}
	return s.checked(c, r)
}

// slidingLayers reads layer_types, or alternates as the library does.
func slidingLayers(c *Config, layers int64) []bool {
	out := make([]bool, layers)
	types := c.Strings("layer_types")
	every := int64(6)
	switch c.Type() {
	case "gemma2":
		every = 2
	case "olmo3", "cohere2", "exaone4":
		every = 4
	}
	if c.Type() != "gemma2" {
		every = c.Int(every, "sliding_window_pattern", "_sliding_window_pattern")
	}
	for i := range out {
		if i < len(types) {
			out[i] = types[i] == "sliding_attention"
		} else {
			out[i] = (int64(i)+1)%every != 0
		}
	}
	return out
}

// phi3 is Phi3ForCausalLM.
func phi3(c *Config, r Run) (*Model, error) {
	s := readDecoder(c, r)
	s.fusedQKV, s.fusedMLP, s.rotation = true, true, partOfHead
	s.resDrop = c.Float(0, "resid_pdrop")
	s.window = c.Count(0, "sliding_window")
	s.rot = int64(float64(s.d) * ropeFactor(c, 1))
	return s.checked(c, r)
}

// olmo is OLMo, OLMo 2 and OLMo 3.
func olmo(c *Config, r Run) (*Model, error) {
	s := readDecoder(c, r)
	s.qkvBias = c.Bool(false, "attention_bias")
	s.outBias = s.qkvBias
	s.rotation, s.wideTable = byHalvesCast, true
	if c.Type() == "olmo" {
		s.norms, s.lateHeads = bareLayer, true
		if c.Has("clip_qkv") {
			c.complain("clip_qkv is not described")
		}
		return s.checked(c, r)
	}
	s.norms, s.layout, s.headNorm = rmsWide, postNorm, wholeWidth
	if c.Type() == "olmo3" {
		s.window = c.Count(4096, "sliding_window")
		s.sliding = slidingLayers(c, s.layers)
		s.twoTables = slices.Contains(s.sliding, true) && slices.Contains(s.sliding, false)
	}
	return s.checked(c, r)
}

// granite is GraniteForCausalLM: Llama with four constant factors.
func granite(c *Config, r Run) (*Model, error) {
	s := readDecoder(c, r)
	s.qkvBias = c.Bool(false, "attention_bias")
	s.outBias, s.mlpBias = s.qkvBias, c.Bool(false, "mlp_bias")
	s.embedScale, s.resScale, s.logitScale = byConstant, true, true
	return s.checked(c, r)
}

// cohere is Command-R: attention and MLP side by side; its second version slides in three layers of
// four.
func cohere(c *Config, r Run) (*Model, error) {
	s := readDecoder(c, r)
	s.tied = c.Bool(true, "tie_word_embeddings")
	s.qkvBias = c.Bool(false, "attention_bias")
	s.outBias = s.qkvBias
	s.norms, s.layout, s.rotation, s.logitScale = cohereNorm, sideBySide, byPairs, true
	if c.Type() == "cohere" {
		if c.Bool(false, "use_qk_norm") {
			s.headNorm = perHead
		}
		return s.checked(c, r)
	}
	s.window = c.Count(4096, "sliding_window")
	s.sliding = slidingLayers(c, s.layers)
	s.turned = s.sliding
	return s.checked(c, r)
}

// smollm3 is SmolLM3ForCausalLM: every fourth layer does without positions.
func smollm3(c *Config, r Run) (*Model, error) {
	s := readDecoder(c, r)
	s.tied = c.Bool(true, "tie_word_embeddings")
	s.qkvBias = c.Bool(false, "attention_bias")
	s.outBias, s.mlpBias = s.qkvBias, c.Bool(false, "mlp_bias")
	s.turned = c.Flags("no_rope_layers")
	if len(s.turned) != int(s.layers) {
		every := c.Int(4, "no_rope_layer_interval")
		s.turned = nil
		for i := range s.layers {
			s.turned = append(s.turned, (i+1)%every != 0)
		}
	}
	return s.checked(c, r)
}

// starcoder2 is Starcoder2ForCausalLM: layer norms and an MLP without a gate.
func starcoder2(c *Config, r Run) (*Model, error) {
	s := readDecoder(c, r)
	s.tied = c.Bool(true, "tie_word_embeddings")
	s.act = c.Str("gelu_pytorch_tanh", "hidden_act")
	s.qkvBias = c.Bool(true, "use_bias")
	s.outBias, s.mlpBias = s.qkvBias, s.qkvBias
	s.norms, s.plainMLP, s.mlpNames = layerKind, true, [2]string{"c_fc", "c_proj"}
	s.innerDrop, s.embDrop = c.Float(0, "residual_dropout"), c.Float(0, "embedding_dropout")
	s.window = c.Count(0, "sliding_window")
	return s.checked(c, r)
}

// stablelm is StableLmForCausalLM.
func stablelm(c *Config, r Run) (*Model, error) {
	s := readDecoder(c, r)
	s.d = s.h / max(s.heads, 1)
	s.norms, s.layout, s.rotation, s.lateHeads = layerKind, stablePre, partNamed, true
	s.qkvBias, s.resDrop = c.Bool(false, "use_qkv_bias"), c.Float(0, "hidden_dropout")
	s.rot = int64(float64(s.d) * ropeFactor(c, 0.25))
	if c.Bool(false, "use_parallel_residual") {
		s.layout = stableInLine
	}
	if c.Bool(false, "qk_layernorm") {
		s.headNorm = oneEach
	}
	return s.checked(c, r)
}

// glm is GLM and GLM-4: neighbouring elements of the first part of each head are rotated.
func glm(c *Config, r Run) (*Model, error) {
	s := readDecoder(c, r)
	s.d = c.Int(128, "head_dim")
	s.qkvBias, s.fusedMLP, s.rotation = c.Bool(true, "attention_bias"), true, byPairsPart
	s.rot = int64(float64(s.d) * ropeFactor(c, 0.5))
	if c.Type() == "glm4" {
		s.layout = sandwich
	}
	return s.checked(c, r)
}

// nemotron is NemotronForCausalLM.
func nemotron(c *Config, r Run) (*Model, error) {
	s := readDecoder(c, r)
	s.act = c.Str("relu2", "hidden_act")
	s.qkvBias = c.Bool(false, "attention_bias")
	s.outBias, s.mlpBias = s.qkvBias, c.Bool(false, "mlp_bias")
	s.norms, s.plainMLP, s.rotation = onePlus, true, partReturned
	s.rot = int64(float64(s.d) * ropeFactor(c, 0.5))
	return s.checked(c, r)
}

// exaone4 is Exaone4ForCausalLM: norms after attention and MLP, positions only where a window
// slides.
func exaone4(c *Config, r Run) (*Model, error) {
	s := readDecoder(c, r)
	s.layout, s.headNorm = postNorm, afterHeads
	s.window = c.Count(0, "sliding_window")
	if s.window > 0 {
		s.sliding = slidingLayers(c, s.layers)
		s.turned = s.sliding
	}
	return s.checked(c, r)
}

// lesser are decoders that differ from Llama in a line or two: Seed-OSS, Helium, Arcee, ERNIE 4.5,
// Hunyuan.
func lesser(c *Config, r Run) (*Model, error) {
	s := readDecoder(c, r)
	s.qkvBias = c.Bool(false, "attention_bias")
	s.outBias, s.mlpBias = s.qkvBias, c.Bool(false, "mlp_bias")
	switch c.Type() {
	case "seed_oss":
		s.qkvBias, s.outBias = c.Bool(true, "attention_bias"), c.Bool(false, "attention_out_bias")
		s.attnDrop, s.innerDrop = c.Float(0.1, "attention_dropout"),
			c.Float(0.1, "residual_dropout")
	case "helium":
		s.norms, s.rotation, s.outBias = rmsWidest, byPairsWhole, false
	case "arcee":
		s.plainMLP, s.act = true, c.Str("relu2", "hidden_act")
	case "ernie4_5":
		s.rotation, s.wideTable, s.tied = byPairsCast, true, c.Bool(true, "tie_word_embeddings")
		s.qkvBias = c.Bool(false, "use_bias")
		s.outBias, s.mlpBias, s.attnDrop = s.qkvBias, s.qkvBias, 0
	case "hunyuan_v1_dense":
		s.headNorm, s.mlpBias = afterRotation, false
	}
	return s.checked(c, r)
}
