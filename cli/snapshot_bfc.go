package cli

import (
	"bufio"
	"fmt"
	"os"

	"memroom/diagnose"
	"memroom/report"
)

// isBFCDump distinguishes a TF_BFC_MEMORY_DUMP file from a pickle by its first byte, which is the
// tag of the allocator's name.
func isBFCDump(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	var first [1]byte
	n, _ := f.Read(first[:])
	return n == 1 && first[0] == 0x0a
}

// runBFC reports on TensorFlow's own dump, which has a state but no history.
func (c *snapshotCmd) runBFC(s *session) error {
	if c.HTML != "" || c.Pprof != "" || c.Perfetto != "" {
		return usageError(fmt.Errorf("%s is a TensorFlow dump: it has no history for --html, --pprof or "+
			"--perfetto", c.File))
	}
	f, err := os.Open(c.File)
	if err != nil {
		return err
	}
	defer f.Close()
	dump, err := c.limits().ReadBFCDump(bufio.NewReader(f))
	if err != nil {
		return fmt.Errorf("read %s: %w", c.File, err)
	}
	state := diagnose.AnalyseBFC(dump)
	if c.JSON {
		return s.printJSON(state)
	}
	t := report.NewText(s.Out, s.color)
	report.BFCText(t, state, c.Top)
	return t.Err()
}
