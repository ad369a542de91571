package plan

import (
	"bytes"
	"encoding/json"
	"slices"
	"testing"

	"memroom/models"
	"memroom/testenv"
)

var (
	smallDecoder = map[string]any{"hidden_size": 128, "num_hidden_layers": 3,
		"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 352,
		"vocab_size": 500, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
	smallEncoder = map[string]any{"hidden_size": 128, "num_hidden_layers": 2,
		"num_attention_heads": 4, "intermediate_size": 256, "vocab_size": 500}
	smallSeq2Seq = map[string]any{"d_model": 64, "encoder_layers": 2, "decoder_layers": 3,
		"encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 128,
		"decoder_ffn_dim": 96, "vocab_size": 500, "pad_token_id": 1}
)

// with returns a configuration with some fields changed; nil removes one.
func with(base map[string]any, fields ...any) map[string]any {
	out := map[string]any{}
	for k, v := range base {
		out[k] = v
	}
	for i := 0; i+1 < len(fields); i += 2 {
		if fields[i+1] == nil {
			delete(out, fields[i].(string))
		} else {
			out[fields[i].(string)] = fields[i+1]
		}
	}
	return out
}

// counted are the models whose parameters are compared: every known family, in more than one shape
// where it has switches.
func counted() [][3]any {
	const causal, masked, seq2seq, image = "AutoModelForCausalLM", "AutoModelForMaskedLM",
		"AutoModelForSeq2SeqLM", "AutoModelForImageClassification"
	var list [][3]any
	add := func(kind string, config map[string]any, heads ...string) {
		for _, h := range heads {
			list = append(list, [3]any{kind, config, h})
		}
	}
	for _, kind := range []string{"llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2",
		"gemma3_text", "phi3", "olmo", "olmo2", "olmo3", "granite", "cohere", "cohere2",
		"smollm3", "starcoder2", "stablelm", "glm", "glm4", "nemotron", "exaone4", "seed_oss",
		"helium", "arcee", "ernie4_5", "hunyuan_v1_dense", "mixtral", "qwen2_moe", "qwen3_moe",
		"olmoe", "granitemoe"} {
		config := smallDecoder
		switch kind {
		case "glm", "glm4", "seed_oss", "helium", "qwen3", "gemma", "gemma2", "gemma3_text",
			"cohere2", "ernie4_5", "hunyuan_v1_dense", "nemotron", "arcee", "mistral":
			config = with(config, "head_dim", 32)
		}
		add(kind, config, causal)
	}
	add("llama", with(smallDecoder, "head_dim", 48, "attention_bias", true, "mlp_bias", true,
		"tie_word_embeddings", true), causal, "AutoModelForSequenceClassification",
		"AutoModelForTokenClassification", "AutoModelForQuestionAnswering")
	add("cohere", with(smallDecoder, "use_qk_norm", true), causal)
	add("stablelm", with(smallDecoder, "use_parallel_residual", true, "qk_layernorm", true,
		"use_qkv_bias", true), causal)
	add("phi", with(smallDecoder, "num_key_value_heads", nil), causal)
	add("gpt_neox", with(smallDecoder, "num_key_value_heads", nil), causal,
		"AutoModelForSequenceClassification")
	add("falcon", map[string]any{"hidden_size": 128, "num_hidden_layers": 2,
		"num_attention_heads": 4, "vocab_size": 500}, causal)
	add("falcon", map[string]any{"hidden_size": 128, "num_hidden_layers": 2,
		"num_attention_heads": 4, "vocab_size": 500, "new_decoder_architecture": true,
		"num_kv_heads": 2, "bias": true}, causal)
	add("falcon", map[string]any{"hidden_size": 128, "num_hidden_layers": 2,
		"num_attention_heads": 4, "vocab_size": 500, "alibi": true, "multi_query": false,
		"parallel_attn": false, "bias": true}, causal)
	add("gpt2", map[string]any{"n_embd": 128, "n_layer": 2, "n_head": 4, "vocab_size": 500}, causal,
		"AutoModelForSequenceClassification")
	add("gpt_bigcode", map[string]any{"n_embd": 128, "n_layer": 2, "n_head": 4, "vocab_size": 500},
		causal)
	add("gpt_bigcode", map[string]any{"n_embd": 128, "n_layer": 2, "n_head": 4, "vocab_size": 500,
		"multi_query": false}, causal)
	add("mpt", map[string]any{"d_model": 128, "n_layers": 2, "n_heads": 4, "vocab_size": 500},
		causal)
	add("gptj", map[string]any{"n_embd": 128, "n_layer": 2, "n_head": 4, "vocab_size": 500,
		"rotary_dim": 16}, causal)
	add("codegen", map[string]any{"n_embd": 128, "n_layer": 2, "n_head": 4, "vocab_size": 500,
		"rotary_dim": 16}, causal)
	add("gpt_neo", map[string]any{"hidden_size": 128, "num_layers": 2,
		"attention_types": []any{[]any{[]any{"global", "local"}, 1}}, "num_heads": 4,
		"vocab_size": 500}, causal)
	add("opt", map[string]any{"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
		"ffn_dim": 256, "vocab_size": 500, "word_embed_proj_dim": 64,
		"do_layer_norm_before": false}, causal)
	add("bloom", map[string]any{"hidden_size": 128, "n_layer": 2, "n_head": 4, "vocab_size": 500},
		causal)
	for _, kind := range []string{"bert", "roberta", "xlm-roberta", "camembert", "electra",
		"albert", "deberta-v2"} {
		add(kind, smallEncoder, masked, "AutoModelForSequenceClassification",
			"AutoModelForTokenClassification", "AutoModelForQuestionAnswering")
	}
	add("electra", with(smallEncoder, "embedding_size", 32), "AutoModelForPreTraining")
	add("deberta-v2", with(smallEncoder, "relative_attention", true, "position_buckets", 32,
		"norm_rel_ebd", "layer_norm", "share_att_key", true, "pos_att_type", []any{"p2c", "c2p"},
		"position_biased_input", false, "type_vocab_size", 0), masked,
		"AutoModelForSequenceClassification")
	add("deberta-v2", with(smallEncoder, "relative_attention", true, "pos_att_type",
		[]any{"p2c", "c2p"}, "conv_kernel_size", 3, "type_vocab_size", 2), masked)
	add("modernbert", with(smallEncoder, "num_hidden_layers", 4, "pad_token_id", 0, "cls_token_id",
		1, "sep_token_id", 2, "bos_token_id", 1, "eos_token_id", 2), masked,
		"AutoModelForSequenceClassification", "AutoModelForTokenClassification",
		"AutoModelForQuestionAnswering")
	add("distilbert", map[string]any{"dim": 128, "n_layers": 2, "n_heads": 4, "hidden_dim": 256,
		"vocab_size": 500}, masked, "AutoModelForSequenceClassification",
		"AutoModelForTokenClassification", "AutoModelForQuestionAnswering")
	for _, kind := range []string{"esm", "mpnet"} {
		add(kind, with(smallEncoder, "pad_token_id", 1, "mask_token_id", 4), masked)
	}
	add("nomic_bert", smallEncoder, masked)
	add("glm4_moe", with(smallDecoder, "head_dim", 32, "moe_intermediate_size", 48,
		"n_routed_experts", 8, "num_experts_per_tok", 2, "first_k_dense_replace", 1,
		"use_qk_norm", true), causal)
	latent := with(smallDecoder, "num_key_value_heads", 4, "moe_intermediate_size", 48,
		"n_routed_experts", 8, "num_experts_per_tok", 2, "first_k_dense_replace", 1, "n_group", 2,
		"topk_group", 1, "q_lora_rank", 48, "kv_lora_rank", 32, "qk_nope_head_dim", 24,
		"qk_rope_head_dim", 16, "v_head_dim", 20)
	for _, kind := range []string{"deepseek_v2", "deepseek_v3"} {
		add(kind, latent, causal)
		add(kind, with(latent, "attention_bias", true, "n_shared_experts", 3), causal)
	}
	add("lfm2", with(smallDecoder, "layer_types", []any{"conv", "full_attention", "conv"}), causal)
	add("gpt_oss", with(smallDecoder, "head_dim", 32, "num_local_experts", 8,
		"num_experts_per_tok", 2), causal)
	t5 := map[string]any{"d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 2, "num_heads": 4,
		"vocab_size": 500}
	add("t5", t5, seq2seq)
	add("t5", with(t5, "feed_forward_proj", "gated-gelu"), seq2seq)
	add("mt5", t5, seq2seq)
	add("umt5", t5, seq2seq)
	for _, kind := range []string{"bart", "mbart", "pegasus", "marian", "blenderbot", "m2m_100"} {
		add(kind, smallSeq2Seq, seq2seq)
	}
	add("whisper", map[string]any{"d_model": 64, "encoder_layers": 2, "decoder_layers": 2,
		"encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 128,
		"decoder_ffn_dim": 128}, "AutoModelForSpeechSeq2Seq")
	speech := map[string]any{"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
		"intermediate_size": 128, "conv_dim": []any{32, 32}, "conv_kernel": []any{10, 3},
		"conv_stride": []any{5, 2}, "num_feat_extract_layers": 2, "layerdrop": 0.0}
	for _, kind := range []string{"wav2vec2", "hubert"} {
		add(kind, speech, "AutoModelForCTC", "AutoModelForAudioClassification")
		add(kind, with(speech, "do_stable_layer_norm", true, "feat_extract_norm", "layer",
			"conv_bias", true), "AutoModelForCTC")
	}
	add("audio-spectrogram-transformer", map[string]any{"hidden_size": 64, "num_hidden_layers": 2,
		"num_attention_heads": 4, "intermediate_size": 128, "num_labels": 10},
		"AutoModelForAudioClassification")
	vision := map[string]any{"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
		"intermediate_size": 128, "image_size": 64, "num_labels": 10}
	add("vit", vision, image)
	add("deit", vision, "DeiTForImageClassification")
	add("dinov3_vit", with(vision, "num_register_tokens", 4), "DINOv3ViTModel")
	add("dinov3_vit", with(vision, "use_gated_mlp", true, "key_bias", true), "DINOv3ViTModel")
	add("dinov2", with(vision, "image_size", 56), image)
	add("dinov2", with(vision, "image_size", 56, "use_swiglu_ffn", true), image)
	add("dinov2_with_registers", vision, image)
	add("swin", map[string]any{"image_size": 224, "num_labels": 10}, image)
	add("swinv2", map[string]any{"image_size": 256, "window_size": 16, "num_labels": 10}, image)
	add("swinv2", map[string]any{"num_labels": 10}, image)
	add("convnext", map[string]any{"num_labels": 10}, image)
	add("convnextv2", map[string]any{"num_labels": 10}, image)
	add("resnet", map[string]any{"num_labels": 10}, image)
	add("resnet", map[string]any{"num_labels": 10, "layer_type": "basic",
		"hidden_sizes": []any{64, 128, 256, 512}, "depths": []any{2, 2, 2, 2}}, image)
	add("clip", map[string]any{}, "CLIPModel")
	add("clip", map[string]any{"num_labels": 10}, "CLIPForImageClassification")
	add("siglip", map[string]any{}, "SiglipModel")
	add("siglip", map[string]any{"num_labels": 10}, "SiglipForImageClassification")
	for _, name := range []string{"resnet18", "resnet50", "resnext50_32x4d", "wide_resnet50_2",
		"vgg11", "vgg16_bn", "alexnet", "mobilenet_v2", "mobilenet_v3_small", "mobilenet_v3_large",
		"efficientnet_b0", "efficientnet_b3", "densenet121", "convnext_tiny", "regnet_y_400mf",
		"regnet_x_800mf", "vit_b_16", "vit_l_32", "swin_t", "swin_b",
		"squeezenet1_0", "squeezenet1_1", "mnasnet0_5", "mnasnet1_3", "shufflenet_v2_x0_5",
		"shufflenet_v2_x2_0", "efficientnet_v2_s", "efficientnet_v2_m"} {
		add("torchvision", map[string]any{"name": name}, "")
	}
	return list
}

// TestParametersEqualRealModels builds every family in the real library, without memory for its
// weights, and compares.
func TestParametersEqualRealModels(t *testing.T) {
	python := testenv.Python(t, "torch", "torchvision", "transformers")
	list := counted()
	for _, kind := range models.Types() {
		// no model of a library, or one whose defaults do not build
		own := kind == "lstm" || kind == "gru" || kind == "bilstm" || kind == "mlp" ||
			kind == "ministral"
		if !own && !slices.ContainsFunc(list, func(c [3]any) bool { return c[0] == kind }) {
			t.Errorf("%s is known and not compared", kind)
		}
	}
	in, err := json.Marshal(list)
	if err != nil {
		t.Fatal(err)
	}
	out := testenv.Program{Python: python, Args: []string{"testdata/params.py"},
		Stdin: in}.MustAsk(t).Out
	n := 0
	for dec := json.NewDecoder(bytes.NewReader(out)); dec.More(); n++ {
		var real struct {
			Type, Head string
			Params     int64
			Config     map[string]any
		}
		if err := dec.Decode(&real); err != nil {
			t.Fatal(err)
		}
		m, err := models.New(models.ConfigOf(real.Config), models.Run{Batch: 1, Seq: 32,
			Attn: "sdpa"})
		if err != nil {
			t.Errorf("%s %s: %v", real.Type, real.Head, err)
			continue
		}
		if got := m.Root.Count(); got != real.Params {
			t.Errorf("%s %s %v: %d parameters, want %d", real.Type, real.Head, real.Config["name"],
				got, real.Params)
		}
		if len(m.Notes) > 0 && real.Type != "dinov3_vit" { // whose note is about its loss
			t.Errorf("%s %s: %v", real.Type, real.Head, m.Notes)
		}
	}
	if n != len(list) {
		t.Errorf("%d models of %d", n, len(list))
	}
}
