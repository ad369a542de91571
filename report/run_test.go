package report

import (
	"bytes"
	"strings"
	"testing"

	"memroom/event"
)

func TestRunSummary(t *testing.T) {
	rank := 2
	s := event.Summary{Run: event.Run{ID: "r1"}, Exit: &event.Exit{Code: 1, Seconds: 200},
		Verdict: &event.Verdict{ExitCode: 1, IsOOM: true, Where: event.WhereGPU, KilledBy: "itself",
			Rank: &rank},
		Peaks: event.Peaks{Resident: 2 * event.GiB, Unreclaimable: event.GiB,
			HostLimit: 8 * event.GiB, Processes: 3,
			Devices: []event.DevicePeak{{Name: "NVIDIA H200", Total: 140 * event.GiB,
				Used: 139 * event.GiB, Allocated: 130 * event.GiB, Reserved: 138 * event.GiB}}},
		Steps: 12, StepMS: 3.25}
	var out bytes.Buffer
	RunSummary(&out, s)
	for _, want := range []string{"OUT OF MEMORY: GPU memory, rank 2 after 3 min 20 s",
		"peak 1GiB (2GiB with file pages)", "7GiB of 8GiB left",
		"peak 139GiB of 140GiB, 1GiB left (allocated 130GiB, reserved 138GiB)",
		"12, 3.25 ms each"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in\n%s", want, out.String())
		}
	}
}

func TestSpan(t *testing.T) {
	for seconds, want := range map[float64]string{0.81: "0.8 s", 12.3: "12 s", 200: "3 min 20 s",
		7800: "2 h 10 min"} {
		if got := Span(seconds); got != want {
			t.Errorf("%v: %q, want %q", seconds, got, want)
		}
	}
}

// TestHostLineKnowsOthers: memory of other processes is not left over.
func TestHostLineKnowsOthers(t *testing.T) {
	p := event.Peaks{Resident: 2 * event.GiB, Unreclaimable: event.GiB, HostLimit: 62 * event.GiB,
		HostOthers: 58 * event.GiB, Processes: 1}
	for name, lines := range map[string][]string{
		"summary": hostLine(event.Summary{Peaks: p}),
		"end":     End{Summary: event.Summary{Peaks: p}}.memory(),
	} {
		text := strings.Join(lines, "\n")
		if !strings.Contains(text, "3GiB") || !strings.Contains(text, "other processes held 58GiB") ||
			strings.Contains(text, "61GiB") {
			t.Errorf("%s: %s", name, text)
		}
	}
}
