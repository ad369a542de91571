package store

import (
	"bytes"
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// masked stands for a value that is not kept.
const masked = "***"

// MaskArguments returns a command line as it may be kept: values that look like secrets are
// replaced.
func MaskArguments(args []string) []string {
	out := make([]string, len(args))
	for i, arg := range args {
		out[i] = MaskText(arg)
		if i == 0 {
			continue
		}
		before := args[i-1]
		switch {
		case isFlag(before) && !strings.Contains(before, "=") && !isFlag(arg) &&
			isSecret(before, arg):
			out[i] = masked
		case strings.HasSuffix(before, ":") && isSecret(strings.Trim(before, `"':`), arg),
			strings.Contains(before, "_") && kindOfName(before) == strongName && !isFlag(arg) &&
				!strings.Contains(before, "=") && isSecret(before, arg):
			out[i] = masked
		case len(arg) > 2 && strings.HasPrefix(arg, "-p") && isMySQL(args[:i]):
			out[i] = "-p" + masked
		case isUserFlag(before) && userAndPassword().MatchString(arg):
			out[i] = userAndPassword().ReplaceAllString(arg, "${1}:"+masked)
		case slices.Contains(args[:i], "login") && looksRandom(arg, 16),
			strings.EqualFold(before, "bearer") && looksRandom(arg, 8),
			i > 1 && before == "-p" && strings.HasSuffix(args[i-2], "sshpass"):
			out[i] = masked
		}
	}
	return out
}

func isFlag(arg string) bool { return len(arg) > 1 && arg[0] == '-' }

// isMySQL: its clients take the password in one word with the flag.
func isMySQL(before []string) bool {
	return slices.ContainsFunc(before, func(a string) bool {
		name := a[strings.LastIndexByte(a, '/')+1:]
		return strings.HasPrefix(name, "mysql") || strings.HasPrefix(name, "mariadb")
	})
}

func isUserFlag(arg string) bool {
	return arg == "-u" || arg == "--user" || arg == "--proxy-user"
}

// later compiles a pattern when it is first used: the supervisor's processes carry this package and
// never mask anything.
func later(pattern string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(pattern) })
}

// The patterns of MaskText, in the order in which they are applied. Groups that are kept come first
// in each.
var (
	privateKey = later(`(?s)-----BEGIN [A-Z0-9 ]*PRIVATE KEY[A-Z ]*-----.*?` +
		`(-----END [A-Z0-9 ]*PRIVATE KEY[A-Z ]*-----|\z)`)

	// scheme://user:password@host, and scheme://token@host
	passwordInURL = later(`([a-zA-Z][\w+.-]*://)[^/\s:@"']*:[^/\s@"']+@`)
	tokenInURL    = later(`([a-zA-Z][\w+.-]*://)([^/\s:@"']{16,})@`)
	// addresses that are secrets themselves: whoever knows them may post
	webhook = later(`(?i)((?:hooks\.slack\.com/(?:services|workflows|triggers)|` +
		`discord(?:app)?\.com/api/webhooks|webhook\.office\.com)/)[^\s"'<>]+`)
	// parameters whose names are too common elsewhere
	queryValue = later(`([?&](?:key|sig|signature|code|auth|token|password)=)[^&\s"'#]+`)

	header = later(`(?i)\b((?:proxy-)?authorization\\*["']?\s*[:=]\s*\\*["']?\s*` +
		`(?:(?:bearer|basic|token|digest|apikey|negotiate|bot)\s+)?)[^\s"'\\,;}]+`)
	bearer = later(`(?i)\b((?:bearer|basic)\s+)([\w.~+/=-]{8,})`)
	cookie = later(`(?i)\b((?:set-)?cookie\\*["']?\s*:\s*)[^"'\r\n]+`)

	shape = later(`\b(?:` + strings.Join(shapes, "|") + `)`)

	loginCall       = later(`(?i)\b\w*login\([^()]*\)`)
	quoted          = later(`"[^"]*"|'[^']*'`)
	loginWord       = later(`(?i)(\blogin\s+(?:--?\S+\s+)*)([\w.-]{16,})`)
	sshpass         = later(`(\bsshpass\s+-p\s*)\S+`)
	userInText      = later(`(\s(?:-u|--user|--proxy-user)[\s=]+["']?)([^\s:"']+):([^\s"']+)`)
	userAndPassword = later(`^([^\s:/]*[^\s:/\d][^\s:/]*):(.+)$`)

	// name=value, "name": "value", name: value, name => value
	namedValue = later(`(-{0,2}[A-Za-z_][\w.-]*)(\\*["']?\]?\s*(?:=>|:=|==|[:=]|%3[dD])\s*)` + valuePattern)
	// --name value
	flagValue = later(`(--?[A-Za-z][\w.-]*)(\s+)` + valuePattern)
	// ("name", "value")
	pairValue = later(`(["']-{0,2}[A-Za-z_][\w.-]*["'])(\s*,\s*)(["'][^"'\s]+["'])`)
	// <name>value</name>
	taggedValue = later(`(<[A-Za-z][\w.-]*)(>)([^<>]+)`)
	// name value, where the name is not a word of a sentence: aws_secret_access_key
	spacedValue = later(`\b([A-Za-z]+(?:_[A-Za-z]+)+)(\s+)` + valuePattern)
	// in sentences: token 'abc', API key abc123...
	inSentence = later(`(?i)\b((?:token|password|passphrase|secret|api[ _-]?key)\s+(?:is\s+)?)` +
		`(["'][^"'\s]{4,}["']|[\w.+/=-]{16,})`)
	netrc = later(`(\blogin\s+\S+\s+password\s+)\S+`)
	mysql = later(`(\b(?:mysql|mariadb)\w*\s(?:[^|;&\n]*\s)?-p)[^\s-]\S*`)
)

const valuePattern = `(\\+"[^"]*?\\+"|\\+'[^']*?\\+'|[bru]?"(?:[^"\\]|\\.)*"|[bru]?'(?:[^'\\]|\\.)*'|` +
	`[^\s,;&|"'(){}\[\]]+)`

// MaskText replaces what looks like a secret inside a text. Most texts hold none: each group of
// patterns is tried only where a word or a sign that it needs occurs.
func MaskText(text string) string {
	lower := strings.ToLower(text)
	has := func(signs ...string) bool {
		return slices.ContainsFunc(signs, func(s string) bool { return strings.Contains(lower, s) })
	}
	if has("private key") {
		text = privateKey().ReplaceAllString(text, masked)
	}
	if has("://") {
		text = maskAddresses(text)
	}
	if has("?", "&") {
		text = queryValue().ReplaceAllString(text, "${1}"+masked)
	}
	if has("authorization", "bearer", "basic", "cookie") {
		text = maskHeaders(text)
	}
	if longestWord(text) >= 11 {
		text = replace(shape(), text, func(m []string) bool { return longPart(m[0]) },
			func([]string) string { return masked })
	}
	if has("login", "sshpass", "mysql", "mariadb", " -u", " --user", " --proxy-user") {
		text = maskCommands(text)
	}
	if has(nameSigns...) {
		text = maskNamed(text)
	}
	return text
}

// nameSigns are in every name that kindOfName takes for a secret's.
var nameSigns = list(`secret pass pwd cred key tok bearer otp dsn connectionstring hook cookie auth sig
	sas pat login`)

func maskAddresses(text string) string {
	text = passwordInURL().ReplaceAllString(text, "${1}"+masked+"@")
	text = replace(tokenInURL(), text, func(m []string) bool { return looksRandom(m[2], 16) },
		func(m []string) string { return m[1] + masked + "@" })
	return webhook().ReplaceAllString(text, "${1}"+masked)
}

func maskHeaders(text string) string {
	text = header().ReplaceAllString(text, "${1}"+masked)
	text = replace(bearer(), text, func(m []string) bool { return looksRandom(m[2], 8) },
		func(m []string) string { return m[1] + masked })
	return cookie().ReplaceAllString(text, "${1}"+masked)
}

// maskCommands knows programs that take a password without naming it.
func maskCommands(text string) string {
	text = loginCall().ReplaceAllStringFunc(text, func(call string) string {
		return quoted().ReplaceAllString(call, `"`+masked+`"`)
	})
	text = replace(loginWord(), text, func(m []string) bool { return looksRandom(m[2], 16) },
		func(m []string) string { return m[1] + masked })
	for _, pattern := range []func() *regexp.Regexp{sshpass, netrc, mysql} {
		text = pattern().ReplaceAllString(text, "${1}"+masked)
	}
	return replace(userInText(), text, func(m []string) bool { return !isNumber(m[2]) },
		func(m []string) string { return m[1] + m[2] + ":" + masked })
}

func maskNamed(text string) string {
	text = replace(inSentence(), text, func(m []string) bool {
		return m[2][0] == '"' || m[2][0] == '\'' || looksRandom(m[2], 16)
	}, func(m []string) string { return m[1] + requote(m[2]) })
	for _, pattern := range []func() *regexp.Regexp{namedValue, flagValue, pairValue,
		taggedValue, spacedValue} {
		text = replace(pattern(), text, func(m []string) bool {
			return isSecret(strings.Trim(m[1], `"'<`), unquote(m[3]))
		}, func(m []string) string { return m[1] + m[2] + requote(m[3]) })
	}
	return text
}

// longestWord is the length of the longest run of letters, digits and signs that tokens are made
// of.
func longestWord(text string) int {
	longest, run := 0, 0
	for i := range len(text) {
		c := text[i]
		if c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' ||
			strings.IndexByte("_-.:~+/=", c) >= 0 {
			run++
			longest = max(longest, run)
		} else {
			run = 0
		}
	}
	return longest
}

// replace replaces the matches that pass a test. One that does not is looked into again behind its
// first name, so that `a: b=c` is seen as `b=c` too.
func replace(pattern *regexp.Regexp, text string, test func([]string) bool,
	with func([]string) string) string {
	var out strings.Builder
	for {
		at := pattern.FindStringSubmatchIndex(text)
		if at == nil {
			out.WriteString(text)
			return out.String()
		}
		m := make([]string, len(at)/2)
		for i := range m {
			if at[2*i] >= 0 {
				m[i] = text[at[2*i]:at[2*i+1]]
			}
		}
		next := at[1]
		if test(m) {
			out.WriteString(text[:at[0]] + with(m))
		} else {
			// behind the name, which must not begin a match again
			if len(at) >= 6 && at[4] > at[0] {
				next = at[4]
			}
			out.WriteString(text[:next])
		}
		text = text[next:]
	}
}

// unquote and requote: a value with the quotes that it has, escaped or not.
func unquote(value string) string { return strings.Trim(value, `\"'`) }

func requote(value string) string {
	start := strings.IndexAny(value, `"'`)
	if start < 0 || strings.TrimLeft(value[:start], `\bru`) != "" {
		return masked
	}
	mark := strings.TrimLeft(value[:start+1], "bru")
	return value[:start+1] + masked + mark
}

// maskJSON masks the strings of an encoded record, and leaves everything else of it as it is.
func maskJSON(data []byte) []byte {
	var out bytes.Buffer
	name := ""
	for len(data) > 0 {
		start := bytes.IndexByte(data, '"')
		if start < 0 {
			out.Write(data)
			break
		}
		end := start + 1
		for end < len(data) && data[end] != '"' {
			if data[end] == '\\' {
				end++
			}
			end++
		}
		end = min(end+1, len(data))
		if between := bytes.TrimSpace(data[:start]); len(between) != 1 || between[0] != ':' {
			name = "" // what came before was not this value's name
		}
		out.Write(data[:start])
		text, literal := "", data[start:end]
		if json.Unmarshal(literal, &text) == nil {
			clean := MaskText(text)
			if name != "" && isSecret(name, text) {
				clean = masked
			}
			if clean != text {
				literal, _ = json.Marshal(clean)
			}
		}
		out.Write(literal)
		name, data = text, data[end:]
	}
	return out.Bytes()
}

// LineMasker masks a text line by line: a private key goes over several.
type LineMasker struct{ inKey bool }

// Mask returns a line as it may be shown.
func (m *LineMasker) Mask(line string) string {
	begins, ends := strings.Contains(line, "-----BEGIN ") && strings.Contains(line, "PRIVATE KEY"),
		strings.Contains(line, "-----END ")
	switch {
	case m.inKey:
		m.inKey = !ends
		return masked
	case begins:
		m.inKey = !ends
	}
	return MaskText(line)
}

// keptVariables are the environment variables that bear on memory. Everything else stays with the
// user.
var keptVariables = []string{
	"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES",
	"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF",
	"PYTORCH_HIP_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING", "TF_FORCE_GPU_ALLOW_GROWTH",
	"TF_GPU_ALLOCATOR", "XLA_FLAGS",
	"XLA_PYTHON_CLIENT_PREALLOCATE", "XLA_PYTHON_CLIENT_MEM_FRACTION",
	"XLA_PYTHON_CLIENT_ALLOCATOR", "OMP_NUM_THREADS", "MKL_NUM_THREADS",
	"MALLOC_ARENA_MAX", "LD_PRELOAD", "WORLD_SIZE", "RANK", "LOCAL_RANK", "NODE_RANK",
	"SLURM_JOB_ID", "SLURM_MEM_PER_NODE", "SLURM_NNODES",
	"KUBERNETES_SERVICE_HOST", "CONDA_DEFAULT_ENV", "VIRTUAL_ENV", "NCCL_BUFFSIZE",
	"CUBLAS_WORKSPACE_CONFIG",
}

// KeptEnvironment reduces an environment (as os.Environ) to the variables that are kept.
func KeptEnvironment(environ []string) map[string]string {
	kept := map[string]string{}
	for _, pair := range environ {
		name, value, _ := strings.Cut(pair, "=")
		for _, k := range keptVariables {
			if name == k && value != "" {
				kept[name] = MaskText(value)
			}
		}
	}
	return kept
}
