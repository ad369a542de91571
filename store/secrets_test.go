package store

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"memroom/event"
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

// Values for the forms below, so that no line of this file looks like a real secret.
const (
	random  = "Zx81kQp0vTrL3mNs9Yw4"
	random2 = "b7Jq" + random + "Wd52"
	hex32   = "0f1e2d3c4b5a69788796a5b4c3d2e1f0"
	hex40   = hex32 + "89abcdef"
)

// secretForms are texts with a secret in them: of the second word nothing may be left.
var secretForms = []struct{ text, secret string }{
	// named by a flag
	{"train.py --hf-token " + random, random},
	{"train.py --hf_token=" + random, random},
	{"train.py --wandb_key " + hex40, hex40},
	{"train.py --wandb-api-key=" + hex40, hex40},
	{"train.py --password=hunter2", "hunter2"},
	{"train.py --password hunter2", "hunter2"},
	{"train.py --db-passwd 'two words'", "two words"},
	{"train.py --api_key 123456", "123456"},
	{"train.py -token " + random, random},
	{"train.py --client-secret=s3cr3t", "s3cr3t"},
	{"train.py --comet_api_key abcdef", "abcdef"},
	{"train.py --neptune-api-token abcdef", "abcdef"},
	{"train.py --pass hunter2", "hunter2"},
	{"train.py --auth=" + random, random},
	{"train.py --key " + random2, random2},
	{"train.py --hubToken abc", "abc"},
	{"train.py +trainer.logger.api_key=" + random, random},
	{"train.py wandb.key=" + hex40, hex40},
	{"train.py ++env.HF_TOKEN=abcdef", "abcdef"},
	{"docker login -u me --password=geheim", "geheim"},
	{"sshpass -p geheim ssh host", "geheim"},
	{"curl -u me:geheim host", "geheim"},
	{"curl --user me:geheim host", "geheim"},
	{"wandb login " + hex40, hex40},
	{"wandb login --relogin " + hex40, hex40},
	// variables
	{"FOO_TOKEN=abc123 python t.py", "abc123"},
	{"export AWS_SECRET_ACCESS_KEY=" + random2 + "; python t.py", random2},
	{"env WANDB_API_KEY='" + hex40 + "' python", hex40},
	{"PGPASSWORD=geheim psql", "geheim"},
	{"os.environ['OPENAI_API_KEY'] = 'abcdef'", "abcdef"},
	{"KAGGLE_KEY=" + hex32, hex32},
	{"set_env(\"HF_TOKEN\", \"abcdef\")", "abcdef"},
	{"AZURE_STORAGE_KEY: " + random2, random2},
	// headers
	{"curl -H 'Authorization: Bearer " + random + "' host", random},
	{"Authorization: Basic bWU6Z2VoZWlt", "bWU6Z2VoZWlt"},
	{"authorization: token abcdef", "abcdef"},
	{"{'Authorization': 'Bearer " + random + "'}", random},
	{"X-Api-Key: abcdef", "abcdef"},
	{"PRIVATE-TOKEN: abcdef", "abcdef"},
	{"Cookie: session=abc; other=def", "abc"},
	{"sent bearer " + random + " to the hub", random},
	// JSON, YAML and code
	{`{"token": "abcdef", "lr": 1}`, "abcdef"},
	{`{"hf_token":"abcdef"}`, "abcdef"},
	{`{\"api_key\": \"abcdef\"}`, "abcdef"},
	{`{'password': 'two words', 'x': 1}`, "two words"},
	{"password: geheim", "geheim"},
	{"Namespace(lr=0.1, token='abcdef', seed=1)", "abcdef"},
	{"login('" + "hf_" + random + "')", random},
	{`huggingface_hub.login("anything at all")`, "anything at all"},
	{`login(token="abcdef")`, "abcdef"},
	{`wandb.login(key="` + hex40 + `")`, hex40},
	{`server.login("me", "geheim")`, "geheim"},
	{`comet_ml.init(api_key="abcdef")`, "abcdef"},
	// addresses
	{"postgres://me:geheim@host:5432/db", "geheim"},
	{"mongodb+srv://me:geheim@host/db", "geheim"},
	{"redis://:geheim@host", "geheim"},
	{"git clone https://" + random + "@host/x.git", random},
	{"https://host/data?access_token=abcdef&x=1", "abcdef"},
	{"https://host/data?x=1&token=abcdef", "abcdef"},
	{"https://host/data?sv=2020&sig=abc%2Bdef%3D", "abc%2Bdef"},
	{"https://host/?X-Amz-Signature=" + hex32 + "&X-Amz-Expires=60", hex32},
	{"https://host/v1?key=abcdef", "abcdef"},
	{"https://hooks.slack.com/services/T000/B000/abcdef", "abcdef"},
	{"https://discord.com/api/webhooks/123/abcdef", "abcdef"},
	{"AccountName=me;AccountKey=" + random2 + "==;EndpointSuffix=x", random2},
	{"Server=h;User=me;Pwd=geheim;", "geheim"},
	{"SLACK_WEBHOOK_URL=https://host/abcdef", "abcdef"},
	// in files of settings and in sentences
	{"machine host login me password geheim", "geheim"},
	{"aws configure set aws_secret_access_key abcdef", "abcdef"},
	{"<password>geheim</password>", "geheim"},
	{"mysql -u me -pgeheim db", "geheim"},
	{"args: ['--hf_token', 'abcdef']", "abcdef"},
	{"ERROR: invalid token 'abcdef'", "abcdef"},
	{"Using API key " + random, random},
	{"callback=token%3Dabcdef", "abcdef"},
	{"--hftoken abcdef", "abcdef"},
	{"WANDBKEY=abcdef", "abcdef"},
	{`--credentials '{"a":"abcdef"}'`, "abcdef"},
	// by their shape
	{"t hf_" + random + " x", random},
	{"t api_org_" + random, random},
	{"t sk-" + random2, random2},
	{"t sk-ant-api03-" + random2, random2},
	{"t sk-proj-" + random2, random2},
	{"t gsk_" + random2, random2},
	{"t nvapi-" + random2, random2},
	{"t r8_" + random2, random2},
	{"t ghp_" + random2, random2},
	{"t gho_" + random2, random2},
	{"t ghs_" + random2, random2},
	{"t github_pat_11AB_" + random2, random2},
	{"t glpat-" + random, random},
	{"t npm_" + random2, random2},
	{"t pypi-AgEIcHlwaS5vcmc" + random2, random2},
	{"t dckr_pat_" + random2, random2},
	{"t AKIA" + "IOSFODNN7EXAMPLE", "IOSFODNN7EXAMPLE"},
	{"t ASIA" + "IOSFODNN7EXAMPLE", "IOSFODNN7EXAMPLE"},
	{"t AIza" + random2 + "abcdef", random2},
	{"t ya29." + random2, random2},
	{"t GOCSPX-" + random2, random2},
	{"t dapi" + hex32, hex32},
	{"t hvs." + random2, random2},
	{"t xoxb-123456789012-" + random, random},
	{"t xoxp-123456789012-" + random, random},
	{"t xapp-1-A000-" + random, random},
	{"t SG." + random + "." + random2, random2},
	{"t sk_live_" + random, random},
	{"t 123456789:" + random2 + "abcdefg", random2},
	{"t eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0." + random, random},
	{"t eyJhcGlfYWRkcmVzcyI6Imh0dHBz" + random2, random2},
	{"t wandb_v1_" + random2, random2},
	{"-----BEGIN RSA PRIVATE KEY-----\nabcdef\n-----END RSA PRIVATE KEY-----", "abcdef"},
	{"-----BEGIN OPENSSH PRIVATE KEY-----\nabcdef", "abcdef"},
}

func TestSecretsAreMasked(t *testing.T) {
	for _, c := range secretForms {
		if got := MaskText(c.text); strings.Contains(got, c.secret) ||
			!strings.Contains(got, masked) {
			t.Errorf("text %q became %q", c.text, got)
		}
		args := append([]string{"sh", "-c"}, c.text)
		if got := MaskArguments(args); strings.Contains(got[2], c.secret) {
			t.Errorf("argument %q became %q", c.text, got)
		}
		// as separate arguments, where a shell would make them so
		sentence := strings.HasPrefix(c.text, "Using") || strings.HasPrefix(c.text, "machine")
		if !sentence && !strings.ContainsAny(c.text, "'\"\n;:{(") {
			got := strings.Join(MaskArguments(strings.Fields(c.text)), " ")
			if strings.Contains(got, c.secret) {
				t.Errorf("arguments of %q became %q", c.text, got)
			}
		}
		if once := MaskText(c.text); MaskText(once) != once {
			t.Errorf("%q masked twice: %q, then %q", c.text, once, MaskText(once))
		}
	}
	t.Logf("%d forms", len(secretForms))
}

// lookAlikes are common in training commands and their logs. Nothing in them is a secret.
var lookAlikes = []string{
	"python train.py --token-dropout 0.1 --max_tokens 512 --tokenizer gpt2",
	"--pad_token 0 --eos_token </s> --bos-token=<s> --num-tokens=7",
	"--tokens-per-batch 4096 --max-new-tokens 128 --min_tokens 1",
	"--tokenizer_name bert-base-uncased --tokenizer-path /data/tokenizer.json",
	"--image_token <image> --cls_token true --class-token=mean",
	"--token_embedding_dim 768 --token-type-ids 2 --pad_token_id 50256",
	"--use_auth_token True",
	"--token true", "--hf_token $HF_TOKEN", "--hf-token=${HF_TOKEN}", "token: null",
	"--password-file /run/secrets/db", "--api-key-file key.txt", "--token_path ./token",
	"--key-size 64 --key_dim=64 --num-keys 8 --sort-key loss --key embedding",
	"--author=me --authors you", "--passes 3 --num-pass 2 --forward-pass=1",
	"--secret-name db", "--auth basic", "--auth-type oauth2",
	"--monkey 3 --turkey=4 --keyboard us", "--keys input_ids,labels",
	"--resume checkpoints/epoch=12-step=34000.ckpt",
	"--ckpt " + hex40 + ".pt", "--revision " + hex40, "commit " + hex40,
	"sha256:" + hex32 + hex32, "md5 = " + hex32, "--model-hash " + hex32 + hex32,
	"/home/ana/.cache/huggingface/hub/models--gpt2/snapshots/" + hex40 + "/config.json",
	"s3://bucket/key/prefix/part-0001.parquet", "gs://bucket@x/data",
	"ssh://git@github.com/org/repo.git", "https://host:8080/path?page=2&size=10",
	"hf_transfer", "hf_model=gpt2", "HF_HUB_ENABLE_HF_TRANSFER=1", "HF_HOME=/data/hf",
	"sk-learn", "from sklearn import svm", "sk-learn-pipelines",
	"torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
	"tokens: 512 tokens/s: 1200.5 total_tokens=99999999",
	"step 10 loss 2.31 lr 1e-4 grad_norm 0.3", "basic training of the model",
	"--lr 1e-3 --batch-size 32 --seed 12345678901234567890",
	"Special tokens have been added in the vocabulary", "key: value", "keys: 3",
	"--run-id 2f3a9c81b7d64e55", "GPU-8f6d2a1c-3b4e-4f5a-9c7d-0123456789ab",
	"--layers 12 --heads 12 --passthrough yes", "--pass 2",
	"PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", "CUDA_VISIBLE_DEVICES=0,1",
	"def f(token: str, password: Optional[str] = None)",
	"token = os.environ['HF_TOKEN']", "docker run -u 1000:1000 image",
	"pad_token is not set", "the token budget is 4096", "use_cache False", "max_tokens 512",
	"a secret sauce for training", "key frames 12", "<token>", "{{ token }}",
	"python -u train.py --data a:b", "--user me", "12:34:56 01-02-2026 host:1234",
}

func TestLookAlikesAreKept(t *testing.T) {
	for _, text := range lookAlikes {
		if got := MaskText(text); got != text {
			t.Errorf("%q became %q", text, got)
		}
		words := strings.Fields(text)
		if got := MaskArguments(words); !slices.Equal(got, words) {
			t.Errorf("arguments of %q became %q", text, got)
		}
	}
	t.Logf("%d look-alikes", len(lookAlikes))
}

// TestMaskingKeepsTheRest: only the secret goes.
func TestMaskingKeepsTheRest(t *testing.T) {
	for text, want := range map[string]string{
		`{"token": "abcdef", "lr": 1}`:         `{"token": "***", "lr": 1}`,
		`{\"api_key\": \"abcdef\", \"n\": 1}`:  `{\"api_key\": \"***\", \"n\": 1}`,
		"a --password x --lr 1":                "a --password *** --lr 1",
		"postgres://me:pw@host/db?x=1":         "postgres://***@host/db?x=1",
		"curl -H 'Authorization: Bearer abc1'": "curl -H 'Authorization: Bearer ***'",
		"env: HF_TOKEN=abc lr=1":               "env: HF_TOKEN=*** lr=1",
		"https://h/?token=abc&page=2":          "https://h/?token=***&page=2",
	} {
		if got := MaskText(text); got != want {
			t.Errorf("%q became %q, want %q", text, got, want)
		}
	}
}

// TestRecordsAreMasked: what memroom quotes of the output, wherever it is kept.
func TestRecordsAreMasked(t *testing.T) {
	s := testStore(t)
	f, err := s.Create(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	v := event.Verdict{IsOOM: true, Evidence: []string{"output: password=geheim \"x\" <b>"}}
	finding := event.Finding{Kind: "leak", Title: "HF_TOKEN=geheim", Bytes: 1 << 60,
		Evidence: []string{"Authorization: Bearer geheim"}}
	for _, err := range []error{f.SaveVerdict(v), f.SaveSummary(event.Summary{Verdict: &v,
		Findings: []event.Finding{finding}, Notes: []string{"redis://:geheim@h"}}),
		f.AppendEvent(event.Happened{Kind: "died", Text: "api_key: geheim", Finding: &finding,
			Data: []byte(`{"n": 9007199254740993, "token": "geheim", "why": ["--password geheim"]}`)}),
		f.AppendAttempt(event.Attempt{Command: []string{"x", "--hf_token", "geheim"},
			Verdict: &v})} {
		if err != nil {
			t.Fatal(err)
		}
	}
	f.Close()
	for _, name := range []string{verdictFile, summaryFile, eventsFile, attemptsFile} {
		data, err := os.ReadFile(f.Path(name))
		if err != nil || strings.Contains(string(data), "geheim") || !json.Valid(data) {
			t.Errorf("%s: %s, %v", name, data, err)
		}
	}
	if got, err := f.Verdict(); err != nil || got.Evidence[0] != `output: password=*** "x" <b>` {
		t.Errorf("%+v, %v", got, err)
	}
	for h := range f.Events() {
		if !strings.Contains(string(h.Data), "9007199254740993") || h.Finding.Bytes != 1<<60 {
			t.Errorf("numbers changed: %s", h.Data)
		}
	}
}

func TestLineMasker(t *testing.T) {
	var m LineMasker
	var out []string
	for _, line := range []string{"a", "-----BEGIN EC PRIVATE KEY-----", "abc", "def",
		"-----END EC PRIVATE KEY-----", "b", "password=x",
		"-----BEGIN PRIVATE KEY-----abc-----END PRIVATE KEY-----", "c"} {
		out = append(out, m.Mask(line))
	}
	want := []string{"a", "***", "***", "***", "***", "b", "password=***", "***", "c"}
	if !slices.Equal(out, want) {
		t.Errorf("%q, want %q", out, want)
	}
}

// FuzzMask: any text is masked without a crash, and masking is stable.
func FuzzMask(f *testing.F) {
	for _, c := range secretForms {
		f.Add(c.text)
	}
	for _, text := range lookAlikes {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		_ = MaskText(text)
		if data, err := json.Marshal(text); err == nil && !json.Valid(maskJSON(data)) {
			t.Errorf("%s became %s", data, maskJSON(data))
		}
		_ = MaskArguments(strings.Fields(text))
	})
}
