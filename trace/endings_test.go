package trace

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"memroom/event"
)

var update = flag.Bool("update", false, "write what is read of testdata/endings.txt anew")

// TestEndingsInFull: everything that is read of one message of each kind, and of words that only
// look like one. The messages are those of the programs; the golden file was read line by line
// before it was kept, and a change of it wants the same.
func TestEndingsInFull(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("testdata", "endings.txt"))
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	seen := map[string]bool{}
	for _, one := range strings.Split(string(text), "## ")[1:] {
		name, log, _ := strings.Cut(one, "\n")
		fmt.Fprintf(&got, "## %s\n", name)
		read := readText(t, log)
		for i := range read.Crashes {
			seen[read.Crashes[i].Kind] = true
			if sure := read.Crashes[i].Sure; sure <= 0 || sure > 1 {
				t.Errorf("%s: sure to %g", name, sure)
			}
			mark := " "
			if i == read.First() {
				mark = "*"
			}
			fmt.Fprintf(&got, "%s %s\n", mark, told(read.Crashes[i]))
		}
		if hints := told(read.Hints); hints != "" {
			fmt.Fprintf(&got, "  hints: %s\n", hints)
		}
	}
	golden := filepath.Join("testdata", "endings.golden")
	if *update {
		if err := os.WriteFile(golden, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	diffCases(t, got.String(), string(want))
	if len(seen) < 70 {
		t.Errorf("only %d kinds of endings were read", len(seen))
	}
}

// diffCases reports the cases that differ.
func diffCases(t *testing.T, got, want string) {
	t.Helper()
	gots, wants := strings.Split(got, "## "), strings.Split(want, "## ")
	if len(gots) != len(wants) {
		t.Fatalf("%d cases, the golden file has %d", len(gots)-1, len(wants)-1)
	}
	for i := range gots {
		if gots[i] != wants[i] {
			t.Errorf("read:\n%s\nwant:\n%s", gots[i], wants[i])
		}
	}
}

// told formats the fields of a struct that are not zero, and the beginning of a message.
func told(of any) string {
	var words []string
	v := reflect.ValueOf(of)
	for i := range v.NumField() {
		field := v.Type().Field(i)
		value := v.Field(i)
		if !field.IsExported() || value.IsZero() ||
			field.Name == "Rank" && value.Int() < 0 {
			continue
		}
		said := value.Interface()
		switch p := said.(type) {
		case *event.Bytes:
			said = int64(*p)
		case *int:
			said = *p
		case map[string]bool:
			if len(p) == 0 {
				continue
			}
		case string:
			if field.Name == "Text" {
				said = fmt.Sprintf("%.50q", p)
			}
		}
		words = append(words, fmt.Sprintf("%s=%v", field.Name, said))
	}
	return strings.Join(words, " ")
}
