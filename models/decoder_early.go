package models

import (
	"fmt"
	"strings"

	"memroom/tape"
)

// early is the decoders whose families began before Llama's: GPT-2, GPTBigCode (SantaCoder,
// StarCoder), GPT-Neo, GPT-J, CodeGen, GPT-NeoX (Pythia), Phi, Falcon, OPT, Bloom and MPT. A row of
// earlyRows names their modules; the rest of what differs is in switches.
type early struct {
	earlyRow
	family                                                  string // its model_type
	h, inner, heads, kv, d, rot, layers, vocab, npos, embed int64
	act                                                     string
	tied, headBias, qkvBias, outBias, mlpBias               bool
	drop, embDrop, attnDrop                                 float64
	parallel                                                bool  // attention and MLP read one input
	grouped                                                 bool  // Falcon 40B and 180B
	norms                                                   int64 // Falcon: in a parallel block
	alibi                                                   bool
	first                                                   bool // norms stand before what they feed
	bare                                                    bool // no norm after the last layer
	post, clip, qkNorm, noNormWeights                       bool
}

// earlyRow lists the modules of a model and of a layer as role=path, in the order in which the
// library registers them.
type earlyRow struct{ model, layer string }

const (
	gptModel    = "words=transformer.wte layers=transformer.h final=transformer.ln_f"
	placedModel = "words=transformer.wte places=transformer.wpe layers=transformer.h " +
		"final=transformer.ln_f"
	gpt2Layer = "norm1=ln_1 qkv=attn.c_attn out=attn.c_proj norm2=ln_2 up=mlp.c_fc " +
		"down=mlp.c_proj"
	gptjEnd   = " out=attn.out_proj sines=attn.embed_positions up=mlp.fc_in down=mlp.fc_out"
	fourTimes = " up=mlp.dense_h_to_4h down=mlp.dense_4h_to_h"
	neoxQKV   = " qkv=attention.query_key_value out=attention.dense"
	phiNorms  = " qnorm=self_attn.q_layernorm knorm=self_attn.k_layernorm"
	optFinal  = " final=model.decoder.final_layer_norm"
	bloomQKV  = "qkv=self_attention.query_key_value out=self_attention.dense"
)

var earlyRows = map[string]earlyRow{
	"gpt2":        {placedModel, gpt2Layer},
	"gpt_bigcode": {placedModel + " mask=transformer.bias", gpt2Layer},
	"gpt_neo": {placedModel, "norm1=ln_1 k=attn.attention.k_proj v=attn.attention.v_proj " +
		"q=attn.attention.q_proj out=attn.attention.out_proj mask=attn.attention.bias " +
		"norm2=ln_2 up=mlp.c_fc down=mlp.c_proj"},
	"gptj":    {gptModel, "norm1=ln_1 k=attn.k_proj v=attn.v_proj q=attn.q_proj" + gptjEnd},
	"codegen": {gptModel, "norm1=ln_1 qkv=attn.qkv_proj" + gptjEnd},
	"gpt_neox": {"words=gpt_neox.embed_in layers=gpt_neox.layers " +
		"final=gpt_neox.final_layer_norm rotary=gpt_neox.rotary_emb",
		"norm1=input_layernorm norm2=post_attention_layernorm" + neoxQKV + fourTimes},
	"phi": {"words=model.embed_tokens layers=model.layers rotary=model.rotary_emb " +
		"final=model.final_layernorm", "q=self_attn.q_proj k=self_attn.k_proj " +
		"v=self_attn.v_proj out=self_attn.dense" + phiNorms + " up=mlp.fc1 down=mlp.fc2 " +
		"norm1=input_layernorm"},
	"falcon": {"words=transformer.word_embeddings layers=transformer.h " +
		"final=transformer.ln_f rotary=transformer.rotary_emb", bloomQKV + fourTimes},
	"opt": {"words=model.decoder.embed_tokens places=model.decoder.embed_positions " +
		"out=model.decoder.project_out in=model.decoder.project_in" + optFinal +
		" layers=model.decoder.layers",
		"k=self_attn.k_proj v=self_attn.v_proj q=self_attn.q_proj out=self_attn.out_proj " +
			"norm1=self_attn_layer_norm up=fc1 down=fc2 norm2=final_layer_norm"},
	"bloom": {"words=transformer.word_embeddings first=transformer.word_embeddings_layernorm " +
		"layers=transformer.h final=transformer.ln_f", "norm1=input_layernorm " + bloomQKV +
		" norm2=post_attention_layernorm" + fourTimes},
	"mpt": {"words=transformer.wte layers=transformer.blocks final=transformer.norm_f",
		"norm1=norm_1 qkv=attn.Wqkv out=attn.out_proj norm2=norm_2 up=ffn.up_proj " +
			"down=ffn.down_proj"},
}

func newEarly(c *Config, h, heads, layers, vocab int64) *early {
	return &early{earlyRow: earlyRows[c.Type()], family: c.Type(), h: h, heads: heads, kv: heads,
		d: h / max(heads, 1), layers: layers, vocab: vocab, embed: h, inner: 4 * h, qkvBias: true,
		outBias: true, mlpBias: true}
}

// gpt2 is GPT2LMHeadModel and GPTBigCodeForCausalLM, which has plain linear layers and may share
// one key head.
func gpt2(c *Config, r Run) (*Model, error) {
	s := newEarly(c, c.Int(768, "n_embd", "hidden_size"), c.Int(12, "n_head",
		"num_attention_heads"), c.Int(12, "n_layer", "num_hidden_layers"),
		c.Int(50257, "vocab_size"))
	s.npos = c.Int(1024, "n_positions", "max_position_embeddings")
	s.tied = c.Bool(true, "tie_word_embeddings")
	s.embDrop, s.attnDrop = c.Float(0.1, "embd_pdrop"), c.Float(0.1, "attn_pdrop")
	s.drop = c.Float(0.1, "resid_pdrop")
	s.inner = c.Int(s.inner, "n_inner")
	s.act = "gelu_new"
	if s.family == "gpt_bigcode" {
		s.act = "gelu_pytorch_tanh"
		if c.Bool(true, "multi_query") {
			s.kv = 1
		}
		if c.Bool(false, "add_cross_attention") {
			c.complain("add_cross_attention is not described")
		}
	}
	s.act = c.Str(s.act, "activation_function")
	return s.checked(c, r, "n_embd by n_head")
}

// gptj is GPTJForCausalLM and CodeGenForCausalLM.
func gptj(c *Config, r Run) (*Model, error) {
	s := newEarly(c, c.Int(4096, "n_embd", "hidden_size"), c.Int(16, "n_head",
		"num_attention_heads"), c.Int(28, "n_layer", "num_hidden_layers"),
		c.Int(50400, "vocab_size"))
	s.npos = c.Int(2048, "n_positions", "max_position_embeddings")
	s.rot, s.act = c.Int(64, "rotary_dim"), c.Str("gelu_new", "activation_function")
	s.drop, s.embDrop = c.Float(0, "resid_pdrop"), c.Float(0, "embd_pdrop")
	s.attnDrop, s.tied = c.Float(0, "attn_pdrop"), c.Bool(false, "tie_word_embeddings")
	s.inner, s.parallel = c.Int(s.inner, "n_inner"), true
	s.qkvBias, s.outBias, s.headBias = false, false, true
	return s.checked(c, r, "")
}

func gptNeo(c *Config, r Run) (*Model, error) {
	s := newEarly(c, c.Int(2048, "hidden_size"), c.Int(16, "num_heads", "num_attention_heads"),
		c.Int(24, "num_layers", "num_hidden_layers"), c.Int(50257, "vocab_size"))
	s.npos, s.act = c.Int(2048, "max_position_embeddings"), c.Str("gelu_new",
		"activation_function")
	s.drop, s.embDrop = c.Float(0, "resid_dropout"), c.Float(0, "embed_dropout")
	s.attnDrop, s.tied = c.Float(0, "attention_dropout"), c.Bool(true, "tie_word_embeddings")
	s.inner, s.qkvBias = c.Int(s.inner, "intermediate_size"), false
	return s.checked(c, r, "")
}

func neox(c *Config, r Run) (*Model, error) {
	s := newEarly(c, c.Int(6144, "hidden_size"), c.Int(64, "num_attention_heads"),
		c.Int(44, "num_hidden_layers"), c.Int(50432, "vocab_size"))
	s.inner, s.act = c.Int(24576, "intermediate_size"), c.Str("gelu", "hidden_act")
	s.qkvBias = c.Bool(true, "attention_bias")
	s.outBias, s.parallel = s.qkvBias, c.Bool(true, "use_parallel_residual")
	s.tied, s.drop = c.Bool(false, "tie_word_embeddings"), c.Float(0, "hidden_dropout")
	s.embDrop, s.attnDrop = s.drop, c.Float(0, "attention_dropout")
	s.rot = int64(float64(s.d) * ropeFactor(c, 0.25, "rotary_pct"))
	return s.checked(c, r, "")
}

func phi(c *Config, r Run) (*Model, error) {
	s := newEarly(c, c.Int(2048, "hidden_size"), c.Int(32, "num_attention_heads"),
		c.Int(24, "num_hidden_layers"), c.Int(51200, "vocab_size"))
	s.inner, s.act = c.Int(8192, "intermediate_size"), c.Str("gelu_new", "hidden_act")
	s.tied, s.drop = c.Bool(false, "tie_word_embeddings"), c.Float(0, "resid_pdrop")
	s.embDrop, s.attnDrop = c.Float(0, "embd_pdrop"), c.Float(0, "attention_dropout")
	s.qkNorm, s.kv = c.Bool(false, "qk_layernorm"), c.Int(s.heads, "num_key_value_heads")
	s.parallel, s.headBias = true, true
	if !s.qkNorm {
		s.layer = strings.Replace(s.layer, phiNorms, "", 1)
	}
	s.rot = int64(float64(s.d) * ropeFactor(c, 0.5))
	return s.checked(c, r, "")
}

// falcon is FalconForCausalLM: the layout of 7B (one key head), of 40B and 180B (grouped heads),
// and of RW (ALiBi).
func falcon(c *Config, r Run) (*Model, error) {
	s := newEarly(c, c.Int(4544, "hidden_size"), c.Int(71, "num_attention_heads", "n_head"),
		c.Int(32, "num_hidden_layers", "n_layer"), c.Int(65024, "vocab_size"))
	s.act, s.grouped = c.Str("gelu", "activation"), c.Bool(false, "new_decoder_architecture")
	s.parallel, s.qkvBias = c.Bool(true, "parallel_attn"), c.Bool(false, "bias")
	s.outBias, s.mlpBias = s.qkvBias, s.qkvBias
	s.alibi, s.tied = c.Bool(false, "alibi"), c.Bool(true, "tie_word_embeddings")
	s.drop, s.attnDrop = c.Float(0, "hidden_dropout"), c.Float(0, "attention_dropout")
	s.inner, s.rot = c.Int(s.inner, "ffn_hidden_size"), s.d
	kv := c.Int(s.heads, "num_kv_heads", "n_head_kv")
	switch one := c.Bool(true, "multi_query"); {
	case s.grouped:
		s.kv = kv
		c.divides(s.heads, s.kv, "num_attention_heads by num_kv_heads")
		s.norms = c.Int(2, "num_ln_in_parallel_attn")
	case one:
		s.kv = 1
		fallthrough
	default:
		s.norms = c.Int(1, "num_ln_in_parallel_attn")
	}
	switch {
	case !s.parallel:
		s.layer += " norm2=post_attention_layernorm norm1=input_layernorm"
	case s.norms == 2:
		s.layer += " norm1=ln_attn norm2=ln_mlp"
	default:
		s.layer += " norm1=input_layernorm"
	}
	return s.checked(c, r, "")
}

// opt is OPTForCausalLM.
func opt(c *Config, r Run) (*Model, error) {
	s := newEarly(c, c.Int(768, "hidden_size"), c.Int(12, "num_attention_heads"),
		c.Int(12, "num_hidden_layers"), c.Int(50272, "vocab_size"))
	s.inner, s.npos = c.Int(3072, "ffn_dim"), c.Int(2048, "max_position_embeddings")
	s.act, s.first = c.Str("relu", "activation_function"), c.Bool(true, "do_layer_norm_before")
	s.qkvBias = c.Bool(true, "enable_bias")
	s.outBias, s.mlpBias = s.qkvBias, s.qkvBias
	s.noNormWeights = !c.Bool(true, "layer_norm_elementwise_affine")
	s.tied, s.drop = c.Bool(true, "tie_word_embeddings"), c.Float(0.1, "dropout")
	s.attnDrop, s.embed = c.Float(0, "attention_dropout"), c.Int(s.h, "word_embed_proj_dim")
	if !s.first || c.Bool(false, "_remove_final_layer_norm") {
		s.bare, s.model = true, strings.Replace(s.model, optFinal, "", 1)
	}
	return s.checked(c, r, "")
}

// bloom is BloomForCausalLM. It has no fused attention: scores are whole.
func bloom(c *Config, r Run) (*Model, error) {
	s := newEarly(c, c.Int(64, "hidden_size", "n_embed"), c.Int(8, "n_head",
		"num_attention_heads"), c.Int(2, "n_layer", "num_hidden_layers"),
		c.Int(250880, "vocab_size"))
	s.drop, s.attnDrop = c.Float(0, "hidden_dropout"), c.Float(0, "attention_dropout")
	s.post = c.Bool(false, "apply_residual_connection_post_layernorm")
	s.tied = c.Bool(true, "tie_word_embeddings")
	return s.checked(c, r, "hidden_size by n_head")
}

// mpt is MptForCausalLM: ALiBi, no biases, scores written out in Python.
func mpt(c *Config, r Run) (*Model, error) {
	s := newEarly(c, c.Int(2048, "d_model", "hidden_size"), c.Int(16, "n_heads",
		"num_attention_heads"), c.Int(24, "n_layers", "num_hidden_layers"),
		c.Int(50368, "vocab_size"))
	attention := c.Sub("attn_config")
	s.npos = c.Int(2048, "max_seq_len")
	s.drop, s.clip = attention.Float(0, "attn_pdrop"), attention.Has("clip_qkv")
	s.tied = c.Bool(true, "tie_word_embeddings")
	s.qkvBias, s.outBias, s.mlpBias = false, false, false
	return s.checked(c, r, "d_model by n_heads")
}

// checked builds the model where its numbers agree; heads names the fields that must divide.
func (s *early) checked(c *Config, r Run, heads string) (*Model, error) {
	if heads == "" {
		heads = "hidden_size by num_attention_heads"
	}
	c.divides(s.h, s.heads, heads)
	switch s.family {
	case "codegen":
		c.divides(s.heads, logicalCores, "num_attention_heads by the parts of the projection")
		fallthrough
	case "gptj":
		if s.rot > s.d || s.rot%2 != 0 {
			c.complain("rotary_dim %d: expected an even number of at most the %d elements of a head",
				s.rot, s.d)
		}
	}
	switch {
	case s.family == "mpt" && r.Seq > s.npos: // its biases end there: it has no positions
		c.complain("the sequence of %d tokens is longer than max_seq_len %d", r.Seq, s.npos)
	case s.family != "mpt" && s.npos > 0:
		c.longEnough(r.Seq, s.npos)
	}
	if err := c.Err(); err != nil {
		return nil, err
	}
	if s.writtenOut() || s.tuple() {
		r.Attn = "eager"
	}
	return s.build(r), nil
}

// writtenOut reports whether attention is written out in Python, with scores in fp32.
func (s *early) writtenOut() bool {
	return s.family == "gpt_neo" || s.family == "gptj" || s.family == "codegen"
}

// tuple reports whether a block is Bloom's or MPT's, with positions added to the scores.
func (s *early) tuple() bool { return s.family == "bloom" || s.family == "mpt" }

// earlyModel is an early decoder's modules.
type earlyModel struct {
	*early
	list          string // the name of the list of layers
	words, places *tape.Param
	before, final norm
	in, out       lin
	blocks        []*earlyBlock
}

type earlyBlock struct {
	*early
	norm1, norm2, qnorm, knorm norm
	qkv, q, k, v, proj         lin
	up, down                   lin
}

// build makes the modules.
func (s *early) build(r Run) *Model {
	root := tape.NewModule()
	m := &earlyModel{early: s}
	roles(s.model, root, func(role string, at *tape.Module, name string) {
		switch role {
		case "words":
			m.words = embedding(at, name, s.vocab, s.embed)
		case "places":
			rows := s.npos
			if s.family == "opt" {
				rows += 2
			}
			m.places = embedding(at, name, rows, s.h)
		case "first":
			m.before = s.norm(at, name)
		case "final":
			m.final = s.norm(at, name)
		case "layers":
			m.list = name
			list := at.Child(name)
			for i := range s.layers {
				m.blocks = append(m.blocks, s.block(list.Child(fmt.Sprint(i))))
			}
		case "rotary":
			table := at.Child(name)
			table.Buffer(tape.F32, s.rot/2)
			table.Buffer(tape.F32, s.rot/2)
		case "mask":
			at.Buffer(tape.Bool, s.npos*s.npos)
		case "in":
			m.in = s.between(at, name, s.embed, s.h)
		case "out":
			m.out = s.between(at, name, s.h, s.embed)
		}
	})
	head := causalHead(root, r, m.words, s.tied, s.vocab, s.embed)
	if s.headBias && !isClassifier(r.arch) {
		head.b = root.Last().Param("bias", s.vocab)
	}
	return causalModel(root, r, head, s.layers, !s.writtenOut(), func(x *ctx,
		ids *tape.Tensor) *tape.Tensor {
		return m.run(x, ids)
	})
}

func (s *early) block(m *tape.Module) *earlyBlock {
	b := &earlyBlock{early: s}
	roles(s.layer, m, func(role string, at *tape.Module, name string) {
		switch role {
		case "norm1":
			b.norm1 = s.norm(at, name)
		case "norm2":
			b.norm2 = s.norm(at, name)
		case "qnorm":
			b.qnorm = layerNorm(at, name, s.d)
		case "knorm":
			b.knorm = layerNorm(at, name, s.d)
		case "qkv":
			b.qkv = s.linear(at, name, s.h, (s.heads+2*s.kv)*s.d, s.qkvBias)
		case "q":
			b.q = s.linear(at, name, s.h, s.h, s.qkvBias)
		case "k":
			b.k = s.linear(at, name, s.h, s.kv*s.d, s.qkvBias)
		case "v":
			b.v = s.linear(at, name, s.h, s.kv*s.d, s.qkvBias)
		case "out":
			b.proj = s.linear(at, name, s.h, s.h, s.outBias)
		case "up":
			b.up = s.linear(at, name, s.h, s.inner, s.mlpBias)
		case "down":
			b.down = s.linear(at, name, s.inner, s.h, s.mlpBias)
		case "mask":
			at.Buffer(tape.Bool, s.npos*s.npos)
		case "sines":
			at.Buffer(tape.F32, s.npos*s.rot)
		}
	})
	return b
}

// roles finds the places of a row: fn gets the module above each, made when first named.
func roles(row string, root *tape.Module, fn func(role string, at *tape.Module, name string)) {
	made := map[string]*tape.Module{}
	for _, word := range strings.Fields(row) {
		role, path, _ := strings.Cut(word, "=")
		at, names := root, strings.Split(path, ".")
		for i, name := range names[:len(names)-1] {
			key := strings.Join(names[:i+1], ".")
			if made[key] == nil {
				made[key] = at.Child(name)
			}
			at = made[key]
		}
		fn(role, at, names[len(names)-1])
	}
}

func (s *early) linear(m *tape.Module, name string, in, out int64, bias bool) lin {
	if s.family == "gpt2" {
		return conv1d(m, name, in, out)
	}
	l := linear(m, name, in, out, bias)
	l.apart = s.family == "falcon"
	return l
}

// between is a projection between the width of the words and that of the model, where they differ.
func (s *early) between(m *tape.Module, name string, in, out int64) lin {
	if s.embed == s.h {
		return lin{}
	}
	return linear(m, name, in, out, false)
}

func (s *early) norm(m *tape.Module, name string) norm {
	switch {
	case s.noNormWeights:
		m.Child(name)
		return norm{}
	case s.family == "mpt":
		return rmsNorm(m, name, s.h)
	}
	return layerNorm(m, name, s.h)
}

// ropeFactor is the part of each head that is rotated.
func ropeFactor(c *Config, def float64, names ...string) float64 {
	if r := c.Sub("rope_parameters"); r.Has("partial_rotary_factor") {
		return r.Float(def, "partial_rotary_factor")
	}
	return c.Float(def, append(names, "partial_rotary_factor")...)
}
