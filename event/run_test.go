package event

import (
	"os/exec"
	"strings"
	"testing"
)

// TestAgainIsTheLineToType: under the same limits, unless another one is given; what cannot be
// copied stays for the user to fill in.
func TestAgainIsTheLineToType(t *testing.T) {
	train := []string{"python", "train.py", "--lr=1e-3"}
	for name, c := range map[string]struct {
		run   Run
		flags []string
		want  string
	}{
		"plain":          {Run{Command: train}, nil, "memroom run -- python train.py --lr=1e-3"},
		"nothing known":  {Run{}, []string{"--fit"}, "memroom run --fit -- YOUR COMMAND"},
		"host limit":     {Run{Command: train, HostMem: GiB}, []string{"--fit"}, "memroom run --fit --host-mem 1GiB -- python train.py --lr=1e-3"},
		"both limits":    {Run{Command: train, HostMem: GiB, GPUMem: 3 * GiB}, nil, "memroom run --host-mem 1GiB --gpu-mem 3GiB -- python train.py --lr=1e-3"},
		"a larger limit": {Run{Command: train, HostMem: GiB}, []string{"--host-mem", "2GiB"}, "memroom run --host-mem 2GiB -- python train.py --lr=1e-3"},
		"a secret": {Run{Command: []string{"python", "--token=***"}}, nil,
			"memroom run -- YOUR COMMAND"},
		"as long as can be read": {Run{Command: []string{strings.Repeat("x", 160)}}, nil,
			"memroom run -- " + strings.Repeat("x", 160)},
		"longer":            {Run{Command: []string{strings.Repeat("x", 161)}}, nil, "memroom run -- YOUR COMMAND"},
		"words with spaces": {Run{Command: []string{"sh", "-c", "a 'b' $c"}}, nil, `memroom run -- sh -c 'a '\''b'\'' $c'`},
		"an empty word":     {Run{Command: []string{"a", ""}}, nil, "memroom run -- a ''"},
	} {
		if got := c.run.Again(c.flags...); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// TestPlainWordsStayPlain: what needs no quotes gets none.
func TestPlainWordsStayPlain(t *testing.T) {
	for _, word := range []string{"0", "9", "a", "z", "A", "Z", "a-b_c.d/e=f:g,h@i%j+k", "größe"} {
		if got := quoted(word); got != word {
			t.Errorf("%q became %s", word, got)
		}
	}
}

// TestAShellReadsTheLineBack: whatever the words are, a shell splits the line into the same ones.
func TestAShellReadsTheLineBack(t *testing.T) {
	for _, command := range [][]string{
		{"a b", "c"}, {"$HOME", "`id`", "$(id)"}, {`\`, `"`, "'"}, {"a;b", "c|d", "e&f", "g>h", "i*j"},
		{"~", "#x", "!y", "{1,2}", "[z]"}, {"line\nbreak", "tab\there"}, {"größe", "数据", "-", "--x=y"},
		{"plain", "a/b.c", "k=v", "1e-3", "u@h:p", "50%", "a+b", "0", "9", "a", "z", "A", "Z"},
	} {
		typed := Run{Command: command}.typed()
		out, err := exec.Command("sh", "-c", `printf '%s\0' `+typed).Output()
		if err != nil {
			t.Fatal(err)
		}
		got := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
		if strings.Join(got, "\x00") != strings.Join(command, "\x00") {
			t.Errorf("%q typed as %s is read as %q", command, typed, got)
		}
	}
}
