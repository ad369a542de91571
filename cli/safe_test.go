package cli

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"memroom/testenv"
)

// hostile is a name with what a terminal would obey: escape sequences, a clipboard command, a
// carriage return, C1 controls, bidirectional overrides, bytes that are no UTF-8.
const hostile = "x\x1b[2J\x1b]52;c;aGk=\x07\rfake\u009b31m\u202eevil\u2066\x7f\x08\xff\xfe"

// obeyed finds what must not reach a terminal.
func obeyed(out []byte) string {
	for i := 0; i < len(out); {
		r, n := utf8.DecodeRune(out[i:])
		if r == utf8.RuneError && n == 1 || isUnsafe(r) && r != '\n' && r != '\t' {
			return string(out[max(0, i-20):min(len(out), i+20)])
		}
		i += n
	}
	return ""
}

// TestSafeWriter: whatever is written, in whatever portions, nothing of it is obeyed; plain text
// stays as it is, and our own colours pass where there are colours.
func TestSafeWriter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.SliceOf(rapid.OneOf(rapid.SampledFrom([]string{"a", "\n", "\x1b", "\x1b[31m",
			"\x1b[8m", "\r", "\r\n", "ü", "\u202e", "\xff", "\xe2\x80", "[", "m", "0", ";", "日本"}),
			rapid.String())).Draw(t, "text")
		whole := strings.Join(text, "")
		var once, parts, coloured bytes.Buffer
		a, b := &safeWriter{out: &once}, &safeWriter{out: &parts}
		c := &safeWriter{out: &coloured, color: true}
		_, _ = a.Write([]byte(whole))
		for _, part := range []byte(whole) {
			if n, err := b.Write([]byte{part}); n != 1 || err != nil {
				t.Fatal(n, err)
			}
		}
		_, _ = c.Write([]byte(whole))
		a.flush()
		b.flush()
		c.flush()
		if once.String() != parts.String() {
			t.Fatalf("%q: at once %q, in bytes %q", whole, &once, &parts)
		}
		plain := strings.ReplaceAll(once.String(), "\r\n", "\n")
		if bad := obeyed([]byte(plain)); bad != "" {
			t.Fatalf("%q passes %q", whole, bad)
		}
		rest := coloured.String()
		for _, code := range []string{"\x1b[31m", "\r\n"} {
			rest = strings.ReplaceAll(rest, code, "")
		}
		for strings.Contains(rest, "\x1b[") { // other attributes that are ours
			at := strings.Index(rest, "\x1b[")
			end := strings.IndexByte(rest[at:], 'm')
			if end < 0 || !isOurColour(rest[at:at+end+1]) {
				t.Fatalf("%q passes %q", whole, rest)
			}
			rest = rest[:at] + rest[at+end+1:]
		}
		if bad := obeyed([]byte(rest)); bad != "" {
			t.Fatalf("%q passes %q", whole, bad)
		}
	})
	for text, want := range map[string]string{"plain ü 日本\t1\n": "plain ü 日本\t1\n",
		"\x1b[31m": `\x1b[31m`, "\u202e": `\u202e`, "\xff": `\xff`, "a\rb": `a\x0db`,
		"\x7f": `\u007f`, "\U000e0041": `\udb40\udc41`} {
		var out bytes.Buffer
		w := &safeWriter{out: &out}
		_, _ = w.Write([]byte(text))
		w.flush()
		if out.String() != want {
			t.Errorf("%q is printed as %q, want %q", text, &out, want)
		}
	}
}

// TestHostileNames runs every command with hostile names: as arguments, file names, file contents,
// tags, and in the record of a run.
func TestHostileNames(t *testing.T) {
	binary := testenv.Binary(t)
	dir := t.TempDir()
	for name, text := range map[string]string{hostile + ".py": "x = " + hostile,
		hostile +
			".log": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB " +
			hostile,
		hostile + ".json": `{"model_type": "` + hostile + `"}`, hostile + ".pickle": hostile} {
		if err := os.WriteFile(filepath.Join(dir, strings.ReplaceAll(name, "/", "")), []byte(text),
			0o600); err != nil {
			t.Fatal(err)
		}
	}
	memroom := func(args ...string) []byte {
		cmd := exec.Command(binary, args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "MEMROOM_HOME="+filepath.Join(dir, "home"))
		out, _ := cmd.CombinedOutput()
		return out
	}
	memroom("run", "--name", hostile, "--tag", hostile, "--group", hostile, "--", "sh", "-c",
		"echo 'CUDA out of memory. "+hostile+"' >&2; exit 1", hostile)
	if out := memroom("show", "--output"); !strings.Contains(string(out), hostile) {
		t.Errorf("show --output changed the output: %q", out)
	}
	tried := map[string]bool{}
	for _, args := range [][]string{
		{hostile}, {"--" + hostile}, {"runs"}, {"runs", "--json"}, {"runs", "--tag", hostile},
		{"runs", "--name", hostile + "?"}, {"show"}, {"show", "--json"}, {"show", "--events"},
		{"show", "--events", "--json"}, {"show", "--share"}, {"show", "--share", "--errors"},
		{"show", hostile + "?"}, {"rm", hostile + "?"}, {"rm", "--older", hostile},
		{"rm", "--dry-run", hostile}, {"top", "--once"}, {"top", "--once", "--json"},
		{"top", hostile + "?"}, {"attach", hostile + "?"}, {"forget", hostile},
		{"explain", hostile + ".log"}, {"explain", "last"}, {"explain", hostile + "?"},
		{"lint", hostile + ".py"}, {"lint", hostile}, {"snapshot", hostile + ".pickle"},
		{"snapshot", hostile}, {"replay", hostile + ".pickle"}, {"replay", hostile},
		{"plan", hostile + ".json"}, {"plan", hostile}, {"check", hostile}, {"check", "--config",
			hostile}, {"check", "--config", "memroom.toml"}, {"run", hostile}, {"run", "--", hostile},
		{"run", "--host-mem", hostile, "--", "true"}, {"doctor", "--quick", "--python", hostile},
		{"calibrate", "--python", hostile}, {"completion", hostile}, {"version", hostile},
		{"tune", "new", hostile}, {"tune", "new", hostile + ".json"},
		{"tune", "new", "--dry-run", "--samples", "1", "--metric", hostile, "--name", hostile,
			"--param", hostile + "=uniform(0,1)", "--", "echo", hostile},
		{"tune", "--samples", "1", "--metric", "loss", "--quiet", "--name", "n" + hostile, "--",
			"sh", "-c", "echo '" + hostile + "'; exit 1", "uniform(0,1)"},
		{"tune", "resume", hostile}, {"tune", "show", hostile}, {"tune", "list"},
		{"tune", "rm", hostile},
		{"serve", "--listen", hostile}, {"serve", "--token-file", hostile},
		{"serve", "--db", hostile}, {"report", hostile}, {"report", "--to", hostile},
		{"run", "--report-to", hostile, "--", "true"},
		{"run", "--report-to", "http://127.0.0.1:1", "--report-token-file", hostile, "--", "true"},
		{"feed", "inspect", hostile + ".log"}, {"feed", "inspect", hostile + ".json"},
		{"feed", "index", hostile}, {"feed", "bench", hostile + ".log"},
		{"feed", "convert", hostile + ".log", "--to", hostile + ".csv"},
		{"feed", "serve", hostile, "--budget", "1MiB", "--socket", hostile},
	} {
		out := memroom(args...)
		if bad := obeyed(out); bad != "" {
			t.Errorf("memroom %q lets pass %q", args, bad)
		}
		if args[len(args)-1] == "--json" && args[1] != "--events" {
			if !json.Valid(out) {
				t.Errorf("memroom %q: no JSON: %q", args, out)
			}
		}
		tried[args[0]] = true
		if len(args) > 1 {
			tried[args[0]+" "+args[1]] = true
		}
	}
	eachCommand(t, func(name string, _ any) {
		if !tried[name] {
			t.Errorf("memroom %s is not tried", name)
		}
	})
	// the command's own output is the user's, byte for byte
	if out := memroom("run", "--quiet", "--", "printf", "%s", hostile); string(out) != hostile {
		t.Errorf("run changed the output: %q", out)
	}
}

// TestAnswerThatCannotBeWritten: a full disk is an error, not a success.
func TestAnswerThatCannotBeWritten(t *testing.T) {
	binary := testenv.Binary(t)
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skipf("needs /dev/full: %v", err)
	}
	defer full.Close()
	for _, args := range [][]string{{"version"}, {"runs", "--json"}, {"doctor", "--quick"},
		{"--help"}, {"completion", "bash"}} {
		cmd := exec.Command(binary, args...)
		cmd.Env = append(os.Environ(), "MEMROOM_HOME="+t.TempDir())
		var errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = full, &errs
		if err := cmd.Run(); err == nil || !strings.Contains(errs.String(), "no space left") {
			t.Errorf("memroom %v: %v, says %q", args, err, &errs)
		}
	}
}
