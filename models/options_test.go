package models_test

import (
	"fmt"
	"hash/fnv"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"memroom/models"
	"memroom/testenv"
)

// optionNames finds the yes-or-no options, the rates and the counts that any model reads from its
// configuration, in the code that reads them.
func optionNames(t *testing.T) map[string]any {
	t.Helper()
	paths, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	read := regexp.MustCompile(`\.(Bool|Float|Count)\(\w[\w.]*, ([^()]*)\)`)
	name := regexp.MustCompile(`"(\w+)"`)
	other := map[string]any{"Bool": true, "Float": 0.25, "Count": 3.0}
	found := map[string]any{}
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		text := testenv.Read(t, path)
		for _, m := range read.FindAllStringSubmatch(string(text), -1) {
			for _, n := range name.FindAllStringSubmatch(m[2], -1) {
				found[n[1]] = other[m[1]]
			}
		}
	}
	return found
}

// TestWhatEveryOptionChanges: for every type, which options change its parameters or what its
// steps ask for, and the sum of all that. Recordings from a card show whether it is right; this
// shows that nothing changes unnoticed.
func TestWhatEveryOptionChanges(t *testing.T) {
	path := filepath.Join("testdata", "options.golden")
	text, err := os.ReadFile(path)
	if err != nil && !*update {
		t.Fatal(err)
	}
	options := optionNames(t)
	names := slices.Sorted(maps.Keys(options))
	if len(names) < 50 {
		t.Fatalf("only %d options were found in the code: %q", len(names), names)
	}
	var now strings.Builder
	for _, kind := range models.Types() {
		plain, changing, sum := optioned(small(kind)), []string{}, fnv.New32a()
		for _, name := range names {
			if !reads(kind, name) {
				continue
			}
			for _, value := range []any{options[name], false} {
				if flag, is := options[name].(bool); value == false && !(is && flag) {
					continue
				}
				config := small(kind)
				config[name] = value
				if got := optioned(config); got != plain {
					changing = append(changing, fmt.Sprintf("%s=%v", name, value))
					fmt.Fprintln(sum, got)
				}
			}
		}
		fmt.Fprintf(&now, "%s: %08x %s\n", kind, sum.Sum32(), strings.Join(changing, " "))
	}
	if *update {
		if err := os.WriteFile(path, []byte(now.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want := strings.Split(string(text), "\n")
	for i, line := range strings.Split(now.String(), "\n") {
		if !*update && (i >= len(want) || line != want[i]) {
			t.Errorf("%s\nwant %s", line, slices.Concat(want, make([]string, i+1))[i])
		}
	}
}

// reads reports whether a type looks at an option: it complains about a value of no use.
func reads(kind, name string) bool {
	config := small(kind)
	before := built(models.ConfigOf(config))
	config[name] = map[string]any{"no": "use"}
	return built(models.ConfigOf(config)) != before
}

// optioned is a configuration's parameters and its requests in training.
func optioned(config map[string]any) string {
	return built(models.ConfigOf(config)) + askedIn(config, models.Run{})
}
