package store

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestMaskArguments(t *testing.T) {
	for _, c := range []struct{ in, want []string }{
		{[]string{"python", "train.py", "--lr", "1e-3"}, []string{"python", "train.py", "--lr",
			"1e-3"}},
		{[]string{"t", "--hf-token", "abc123"}, []string{"t", "--hf-token", "***"}},
		{[]string{"t", "--hf_token=abc123", "--api-key=k"}, []string{"t", "--hf_token=***",
			"--api-key=***"}},
		{[]string{"t", "--password", "--verbose"}, []string{"t", "--password", "--verbose"}},
		{[]string{"env", "WANDB_API_KEY=0123", "python"}, []string{"env", "WANDB_API_KEY=***",
			"python"}},
		{[]string{"sh", "-c", "export HF_TOKEN=abc; train --token xyz --max_tokens 5"},
			[]string{"sh", "-c", "export HF_TOKEN=***; train --token *** --max_tokens 5"}},
		{[]string{"t", "hf_abcdefghijklmnop"}, []string{"t", "***"}},
		{[]string{"t", "s3://user:pass@host/data"}, []string{"t", "s3://***@host/data"}},
		{[]string{"t", "--max_tokens", "512", "--tokenizer", "gpt2", "--pad_token", "0",
			"--num-tokens=7"},
			[]string{"t", "--max_tokens", "512", "--tokenizer", "gpt2", "--pad_token", "0",
				"--num-tokens=7"}},
		{[]string{"t", "--author=me", "--auth=x"}, []string{"t", "--author=me", "--auth=***"}},
	} {
		if diff := cmp.Diff(c.want, MaskArguments(c.in)); diff != "" {
			t.Errorf("%q: %s", c.in, diff)
		}
	}
}

func TestKeptEnvironment(t *testing.T) {
	got := KeptEnvironment([]string{"CUDA_VISIBLE_DEVICES=0", "AWS_SECRET_ACCESS_KEY=x",
		"PYTORCH_CUDA_ALLOC_CONF=a:b", "EMPTY=", "HOME=/h"})
	want := map[string]string{"CUDA_VISIBLE_DEVICES": "0", "PYTORCH_CUDA_ALLOC_CONF": "a:b"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
