package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"memroom/plan"
	"memroom/testenv"
)

// planned runs `memroom plan` and reads its JSON.
func planned(t *testing.T, args ...string) (p plan.Prediction, message string, code int) {
	t.Helper()
	t.Setenv("MEMROOM_HOME", t.TempDir())
	var out, said bytes.Buffer
	code = Main(context.Background(), append([]string{"plan", "--json"}, args...),
		Streams{In: strings.NewReader(""), Out: &out, Err: &said})
	if out.Len() > 0 {
		if err := json.Unmarshal(out.Bytes(), &p); err != nil {
			t.Fatalf("%v: %s", err, out.String())
		}
	}
	return p, said.String(), code
}

func writeConfig(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.json")
	testenv.Write(t, path, []byte(text))
	return path
}

const seeingModel = `{"model_type": "qwen2_vl", "image_token_id": 1900, "video_token_id": 1901,
 "vision_start_token_id": 1902, "vision_end_token_id": 1903,
 "vision_config": {"depth": 2, "embed_dim": 128, "hidden_size": 256, "num_heads": 4,
  "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2},
 "text_config": {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2,
  "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 2000,
  "rope_parameters": {"rope_type": "default", "rope_theta": 10000, "mrope_section": [8, 12, 12]}}}`

// TestModelsThroughPython: types that are not described are built by Python, with their towers.
func TestModelsThroughPython(t *testing.T) {
	python := testenv.Python(t, "torch", "transformers")
	small, message, code := planned(t, writeConfig(t, seeingModel), "--python", python, "--batch",
		"2", "--seq", "256", "--optimizer", "sgdm", "--precision", "fp32")
	if code != exitOK {
		t.Fatalf("exit %d: %s", code, message)
	}
	if small.Method != "python" || small.Parameters == 0 || small.Trainable != small.Parameters {
		t.Errorf("method %q, %d parameters, %d trained", small.Method, small.Parameters,
			small.Trainable)
	}
	if got, want := int64(small.Categories["weights"]), 4*small.Parameters; got < want ||
		got > want+want/20 {
		t.Errorf("weights %d, want %d", got, want)
	}
	if !slices.ContainsFunc(small.Warnings,
		func(w string) bool { return strings.Contains(w, "came through Python") }) {
		t.Errorf("warnings %q", small.Warnings)
	}
	frozen, message, code := planned(t, writeConfig(t, seeingModel), "--python", python, "--batch",
		"2", "--seq", "256", "--precision", "fp32", "--train-only", "language_model,lm_head")
	if code != exitOK {
		t.Fatalf("exit %d: %s", code, message)
	}
	if frozen.Trainable == 0 || frozen.Trainable >= frozen.Parameters {
		t.Errorf("%d of %d parameters are trained", frozen.Trainable, frozen.Parameters)
	}
}

func TestModelsThatPythonCannotBuild(t *testing.T) {
	python := testenv.Python(t, "torch", "transformers")
	_, message, code := planned(t, writeConfig(t, `{"model_type": "mistrall"}`), "--python", python)
	if code == exitOK || !strings.Contains(message, "does not know the type 'mistrall', did you mean "+
		"'mistral'?") {
		t.Errorf("exit %d: %s", code, message)
	}
}

func TestModelsWithoutPython(t *testing.T) {
	path := writeConfig(t, `{"model_type": "mamba"}`)
	_, message, code := planned(t, path, "--python", "none")
	if code == exitOK || !strings.Contains(message, "--python PATH") {
		t.Errorf("exit %d: %s", code, message)
	}
	_, message, code = planned(t, path, "--python", "/no/such/python")
	if code != exitUsage || !strings.Contains(message, "no Python with torch and transformers") {
		t.Errorf("exit %d: %s", code, message)
	}
}

// TestModelOfTheCache: a model id that was downloaded works like a file.
func TestModelOfTheCache(t *testing.T) {
	hub := t.TempDir()
	folder := filepath.Join(hub, "models--someone--small", "snapshots", "abc")
	refs := filepath.Join(hub, "models--someone--small", "refs")
	for _, dir := range []string{folder, refs} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for path, text := range map[string]string{
		filepath.Join(folder, "config.json"): `{"model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 4}`,
		filepath.Join(refs, "main"):          "abc",
	} {
		testenv.Write(t, path, []byte(text))
	}
	t.Setenv("HF_HUB_CACHE", hub)
	p, message, code := planned(t, "someone/small", "--batch", "1", "--seq", "64")
	if code != exitOK || p.Parameters == 0 {
		t.Errorf("exit %d: %s", code, message)
	}
	if _, message, code = planned(t, "someone/other"); code == exitOK ||
		!strings.Contains(message, "someone/other") {
		t.Errorf("exit %d: %s", code, message)
	}
}
