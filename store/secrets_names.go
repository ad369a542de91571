package store

import (
	"slices"
	"strings"
	"unicode"
)

// shapes are the forms that services give their secrets, by what they begin with.
var shapes = []string{
	// model hubs and services of language models
	`hf_[A-Za-z0-9]{8,}`, `api_org_[A-Za-z0-9]{8,}`, `sk-[\w-]{16,}`, `gsk_\w{16,}`, `r8_\w{16,}`,
	`xai-[\w-]{16,}`, `pplx-\w{16,}`, `nvapi-[\w-]{16,}`, `tgp_v1_[\w-]{16,}`, `rpa_\w{16,}`,
	`fw_\w{20,}`, `pcsk_\w{16,}`, `tvly-[\w-]{16,}`, `lsv2_\w{16,}`, `wandb_v\d_\w{16,}`,
	`KGAT_\w{16,}`,
	// code hosts and package indexes
	`gh[pousr]_\w{8,}`, `github_pat_\w{8,}`, `gl(?:pat|dt|rt|cbt|ptt|ft|soat|agent)-[\w.-]{8,}`,
	`npm_\w{16,}`, `pypi-[\w-]{16,}`, `dckr_(?:pat|oat)_[\w-]{16,}`, `ATATT3[\w=-]{16,}`,
	`ATBB\w{16,}`, `rubygems_\w{16,}`,
	// clouds
	`(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{12,}`, `AIza[\w-]{30,}`, `ya29\.[\w-]{16,}`,
	`GOCSPX-[\w-]{16,}`, `dop_v1_\w{16,}`, `dapi[a-f0-9]{32}`, `hv[sbr]\.[\w-]{16,}`,
	`[\w~.-]{3}8Q~[\w~.-]{31,}`, `LTAI\w{12,}`, `AGE-SECRET-KEY-1\w{16,}`,
	// messages, money and the rest
	`xox[abceoprs]-[\w-]{8,}`, `xapp-[\w-]{16,}`, `\d{8,10}:[\w-]{35}`, `SG\.[\w-]{16,}\.[\w-]{16,}`,
	`key-[a-f0-9]{32}`, `(?:sk|rk|pk)_(?:live|test)_\w{10,}`, `shp(?:at|ca|pa|ss)_\w{16,}`,
	`sq0[a-z]{3}-[\w-]{16,}`, `PMAK-[\w-]{16,}`, `lin_api_\w{16,}`, `ntn_\w{16,}`,
	`figd_[\w-]{16,}`, `glc_[\w+/=]{16,}`, `glsa_\w{16,}`, `NRAK-\w{16,}`, `phc_\w{16,}`,
	// JSON in base64: JSON web tokens, and the keys of Neptune and others
	`eyJ[\w-]{8,}\.eyJ[\w-]{4,}(?:\.[\w-]*)?`, `eyJ[\w+/=-]{40,}`,
}

// longPart distinguishes a random word from ordinary ones that begin the same: hf_transfer,
// sk-learn.
func longPart(text string) bool {
	for _, part := range strings.FieldsFunc(text, func(r rune) bool { return !isWordRune(r) }) {
		if len(part) >= 16 || looksRandom(part, 8) {
			return true
		}
	}
	return false
}

func isWordRune(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }

// looksRandom: at least so long, no path and no plain word. Digits between letters, or capitals
// inside a word, are what random strings have.
func looksRandom(text string, least int) bool {
	if len(text) < least || strings.ContainsAny(text, "/\\ ") && !strings.HasSuffix(text, "=") {
		return false
	}
	digits, upper, lower := 0, 0, 0
	for i, r := range text {
		switch {
		case unicode.IsDigit(r):
			digits++
		case unicode.IsUpper(r) && i > 0:
			upper++
		case unicode.IsLower(r):
			lower++
		}
	}
	return digits >= 2 && upper+lower >= 2 || upper >= 3 && lower >= 3
}

var number = later(`^[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?[kKmMgG]?$`)

func isNumber(text string) bool { return number().MatchString(text) }

// How sure a name is.
type nameKind int

const (
	plainName  nameKind = iota
	weakName            // key, auth: a secret if the value looks like one
	tokenName           // token, pass: a secret unless the value is a number or a method
	headerName          // authorization: a secret unless the value is a scheme, which comes first
	strongName          // password, hf_token: a secret whatever the value
)

// isSecret reports whether the value of a flag or variable of that name is to be masked.
func isSecret(name, value string) bool {
	kind := kindOfName(name)
	if kind == plainName || notAValue(value) {
		return false
	}
	switch kind {
	case weakName:
		return looksRandom(value, 20)
	case headerName:
		return !slices.Contains(schemes, strings.ToLower(value))
	case tokenName:
		return !isNumber(value) && !slices.Contains(methods, strings.ToLower(value))
	}
	return true
}

// schemes precede the secret in a header.
var schemes = []string{"bearer", "basic", "token", "digest", "apikey", "negotiate", "bot"}

// methods are values of --auth that name a method.
var methods = []string{"basic", "oauth", "oauth2", "kerberos", "ldap", "digest", "ntlm", "saml",
	"jwt", "token", "password", "key", "iam", "auto", "default", "interactive", "anonymous", "read",
	"write", "ok", "mean", "first", "last", "max", "cls", "avg"}

// notAValue: words that stand for a value that is elsewhere, or for none.
func notAValue(value string) bool {
	if strings.Trim(value, "*=:>,.") == "" || strings.HasPrefix(value, masked) ||
		strings.IndexByte("$<%@", value[0]) >= 0 {
		return true
	}
	if reference().MatchString(value) {
		return true
	}
	return slices.Contains([]string{"true", "false", "none", "null", "nil", "yes", "no", "on",
		"off",
		"str", "string", "bool", "int", "optional", "required", "missing", "invalid", "expired",
		"not", "is", "was", "the", "enabled", "disabled", "unset", "empty", "undefined"},
		strings.ToLower(strings.Trim(value, ",.)")))
}

// reference is code or a template that fetches the value.
var reference = later(`^(\{\{?[\w. ]*\}?\}?$|\[|os\.|getenv|env\b|environ|args\.|self\.|cfg\.|config\.|getpass|Optional|typing\.)`)

// words splits a name: WANDB_API_KEY, --api-key, hfToken, trainer.logger.key.
func words(name string) []string {
	name = camel().ReplaceAllString(name, "${1}_${2}")
	return strings.FieldsFunc(strings.ToLower(name), func(r rune) bool { return !isWordRune(r) })
}

var camel = later(`([a-z0-9])([A-Z])`)

func list(text string) []string { return strings.Fields(text) }

var (
	// strong words make a name a secret's wherever they stand.
	strong = list(`secret secrets password passwords passwd passphrase passcode passwort pwd
		credential credentials creds apikey apikeys apitoken authtoken accesstoken accesskey
		secretkey privatekey bearer totp otp dsn connectionstring webhook cookie userpass
		pgpassword`)
	// endings that say that the value is something about the secret.
	about = list(`file path dir folder name length len count limit size type policy manager store
		version arn prompt required field column header env var format hint expiry ttl timeout
		expires id ids url uri host scope scopes endpoint provider class strategy method mode enabled
		check hash algorithm rotation`)
	// owners of a key or token that is a secret
	owners = list(`api access private secret wandb comet neptune hf huggingface hub openai anthropic
		aws azure gcp google account storage subscription license licence signing encryption ssh auth
		service kaggle mlflow clearml datadog dd app client master shared deploy sentry stripe github
		gitlab slack cohere mistral groq replicate together pinecone weaviate tavily serpapi twilio
		sendgrid session rsa hmac jwt fernet swanlab dagshub lightning polyaxon ngc nvidia runpod
		modal databricks minio user bot refresh id oauth personal pypi npm docker registry login
		deepseek gemini claude tensorboard weights langchain langsmith telegram discord admin`)
	// what precedes the token of a text
	ofText = list(`pad eos bos unk mask cls sep special image img video audio num n max min next start
		end stop prompt first last class patch begin add use with per prefix suffix think eot eod eom
		soft virtual register dist distill global query text sos go blank new each cost price space
		word sub extra separator padding unknown sentence document decoder encoder forced return
		replace skip ignore mean pool pooler total single multi`)
)

// kindOfName goes by the words of a name.
func kindOfName(name string) nameKind {
	parts := words(name)
	if len(parts) == 0 {
		return plainName
	}
	last := parts[len(parts)-1]
	has := func(set []string) bool {
		return slices.ContainsFunc(parts[:len(parts)-1],
			func(p string) bool { return slices.Contains(set, p) })
	}
	switch {
	case slices.Contains(about, last) && !slices.Contains(parts, "webhook"):
		return plainName
	case slices.Contains(parts, "public"):
		return plainName
	case last == "authorization":
		return headerName
	case slices.ContainsFunc(parts, func(p string) bool { return slices.Contains(strong, p) }):
		return strongName
	case strings.HasSuffix(last, "apikey") || strings.HasSuffix(last, "password") ||
		strings.HasSuffix(last, "passwd") || strings.HasSuffix(last, "secret"):
		return strongName
	case last == "token" || last == "tokens" && has(owners), last == "pat",
		strings.HasSuffix(last, "authtoken"), strings.HasSuffix(last, "accesstoken"):
		switch {
		case has(owners):
			return strongName
		case has(ofText):
			return plainName
		}
		return tokenName
	case last == "key" || last == "keys":
		if has(owners) {
			return strongName
		}
		return weakName
	case ownedBy(last, "token"), ownedBy(last, "key"), last == "tok" && has(owners):
		return strongName
	case last == "pass" && !has(ofText), last == "auth":
		return tokenName
	case last == "signature" || last == "sig" || last == "sas" ||
		last == "credential" || last == "login":
		return weakName
	}
	return plainName
}

// ownedBy: hftoken, wandbkey.
func ownedBy(word, thing string) bool {
	owner, ok := strings.CutSuffix(word, thing)
	return ok && slices.Contains(owners, owner)
}
