package diagnose

import (
	"math"
	"testing"

	"pgregory.net/rapid"

	"memroom/event"
)

// anyBytes is a figure of a record that anybody may have written.
func anyBytes(t *rapid.T) event.Bytes {
	return event.Bytes(rapid.OneOf(rapid.Int64(), rapid.Int64Range(-100, 100),
		rapid.SampledFrom([]int64{math.MinInt64, math.MaxInt64, -5, 1 << 62})).Draw(t, "bytes"))
}

func checkAccount(t *rapid.T, a Account) {
	if a.Sum() != a.Limit || a.Limit < 0 || a.Overlap < 0 || a.Over < 0 {
		t.Fatalf("the lines are %d, the limit is %d: %+v", a.Sum(), a.Limit, a)
	}
	for _, line := range a.Lines {
		if line.Bytes < 0 {
			t.Fatalf("a negative line: %+v", a)
		}
	}
}

// TestAccountsOfAnyNumbers: for any record, an account ends, adds up and has no negative line.
func TestAccountsOfAnyNumbers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s event.Sample
		s.Anonymous, s.Shared, s.Held, s.File = anyBytes(t), anyBytes(t), anyBytes(t), anyBytes(t)
		if rapid.Bool().Draw(t, "cgroup") {
			s.Cgroup = &event.CgroupSample{Own: rapid.Bool().Draw(t, "own"), Current: anyBytes(t),
				Limit: anyBytes(t), AtLimit: anyBytes(t), Anon: anyBytes(t), File: anyBytes(t),
				Shmem: anyBytes(t)}
		}
		if rapid.Bool().Draw(t, "machine") {
			s.Machine = &event.MachineSample{Total: anyBytes(t), Available: anyBytes(t)}
		}
		checkAccount(t, Host(s, anyBytes(t)))
		var held []Holding
		for range rapid.IntRange(0, 4).Draw(t, "processes") {
			held = append(held, Holding{anyBytes(t), anyBytes(t), anyBytes(t), anyBytes(t), anyBytes(t),
				anyBytes(t)})
		}
		checkAccount(t, Card(event.DeviceSample{Total: anyBytes(t), Used: anyBytes(t),
			Ours: anyBytes(t), Others: anyBytes(t)}, held))
	})
}
