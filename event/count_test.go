package event

import "testing"

func TestCount(t *testing.T) {
	for want, got := range map[string]string{
		"1 run": Count(1, "run"), "0 runs": Count(0, "run"), "2 runs": Count(int64(2), "run"),
		"3 processes": Count(3, "process"), "4 micro-batches": Count(4, "micro-batch"),
		"5 entries": Count(5, "entry"), "6 days": Count(6, "day"), "1 entry": Count(1, "entry"),
		"7 bad rows": Count(7, "bad row"), "8 indexes": Count(8, "index"),
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
