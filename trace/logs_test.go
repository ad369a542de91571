package trace

import (
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestLogsInFull: everything that is read of whole logs, of about a quarter of those that diagnose
// has and of those that alone reach a rule of this package: the crashes, which of them counts, and
// what stands around them. endings.txt has one message of each kind; here they stand between the
// lines that programs print. A log that is not in the record yet is passed over; one whose title
// is put there is read from then on. After a change that is meant:
//
//	go test ./trace -run TestLogsInFull -update
func TestLogsInFull(t *testing.T) {
	golden := filepath.Join("testdata", "logs.golden")
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	for _, folder := range []string{"kinds", "logs", "reports", "situations"} {
		files, err := filepath.Glob(filepath.Join("..", "explain", "testdata", folder, "*.txt"))
		if err != nil || len(files) < 50 {
			t.Fatalf("%d logs in %s, %v", len(files), folder, err)
		}
		for _, path := range files {
			title := fmt.Sprintf("## %s/%s\n", folder, strings.TrimSuffix(filepath.Base(path), ".txt"))
			known := strings.Contains(string(want), title)
			if *update { // by name, so that new logs do not change which others are read
				known = known || crc32.ChecksumIEEE([]byte(title))%4 == 0
			}
			if !known {
				continue
			}
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			got.WriteString(title)
			read := readText(t, string(text))
			for i := range read.Crashes {
				mark := " "
				if i == read.First() {
					mark = "*"
				}
				crash := read.Crashes[i]
				crash.Code = nil // lines of the log itself
				fmt.Fprintf(&got, "%s %s\n", mark, told(crash))
			}
			if hints := told(read.Hints); hints != "" {
				fmt.Fprintf(&got, "  hints: %s\n", hints)
			}
		}
	}
	if *update {
		want = []byte(got.String())
		if err := os.WriteFile(golden, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	diffCases(t, got.String(), string(want))
}
