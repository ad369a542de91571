package cli

import (
	"bytes"
	"context"
	"os"
	"strings"
	"testing"
)

// TestFullOutput: no command may claim success when its answer did not arrive.
func TestFullOutput(t *testing.T) {
	t.Setenv("MEMROOM_HOME", t.TempDir()+"/records")
	for _, line := range []string{"--help", "run --help", "version", "version --json",
		"runs --json",
		"doctor --json", "completion bash", "plan --help", "--version"} {
		t.Run(line, func(t *testing.T) {
			full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
			if err != nil {
				t.Skip("needs /dev/full:", err)
			}
			defer full.Close()
			var said bytes.Buffer
			code := Main(context.Background(), strings.Fields(line),
				Streams{In: strings.NewReader(""), Out: full, Err: &said})
			if code == 0 || !strings.Contains(said.String(), "no space left on device") {
				t.Errorf("exit %d, said %q", code, said.String())
			}
		})
	}
}
