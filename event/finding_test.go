package event

import "testing"

// TestRestates: a finding replaces an earlier one only if kind, step and bytes are the same, and
// only if it belongs to a step.
func TestRestates(t *testing.T) {
	leak := Finding{Kind: "leak", Step: 40, Bytes: MiB}
	for name, c := range map[string]struct {
		other Finding
		want  bool
	}{
		"with its line":       {Finding{Kind: "leak", Step: 40, Bytes: MiB, Title: "now"}, true},
		"another kind":        {Finding{Kind: "spike", Step: 40, Bytes: MiB}, false},
		"another step":        {Finding{Kind: "leak", Step: 41, Bytes: MiB}, false},
		"other bytes":         {Finding{Kind: "leak", Step: 40, Bytes: 2 * MiB}, false},
		"outside of any step": {Finding{Kind: "leak", Bytes: MiB}, false},
	} {
		if got := c.other.Restates(leak); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
	none := Finding{Kind: "shm"}
	if none.Restates(none) {
		t.Error("two findings without a step are two findings")
	}
}

// TestLeakAfterItsWithdrawal: a leak in the same memory replaces "no leak"; a withdrawal, another
// memory or another kind do not.
func TestLeakAfterItsWithdrawal(t *testing.T) {
	withdrawn := Finding{Kind: "leak", Severity: SeverityInfo, Step: 20, Memory: "host memory"}
	again := Finding{Kind: "leak", Severity: SeverityWarning, Step: 90, Memory: "host memory"}
	if !again.Restates(withdrawn) {
		t.Error("the leak stands beside its withdrawal")
	}
	if withdrawn.Restates(again) {
		t.Error("an old withdrawal replaces the leak")
	}
	for _, change := range []func(*Finding){
		func(f *Finding) { f.Memory = "GPU 0 memory" },
		func(f *Finding) { f.Kind = "spike" },
		func(f *Finding) { f.Severity = SeverityInfo },
		func(f *Finding) { f.Memory = "" },
	} {
		other := again
		change(&other)
		if other.Restates(withdrawn) {
			t.Errorf("%+v replaces what it is not about", other)
		}
	}
}

// TestLeakedAtItsPace: a leak of 10 MiB by step 5 has taken 40 MiB by step 20, of its own memory
// only. What is no leak, or not known to a step, has taken nothing.
func TestLeakedAtItsPace(t *testing.T) {
	leak := Finding{Kind: "leak", Severity: SeverityWarning, Step: 5, Bytes: 10 * MiB,
		Memory: "GPU 1 memory"}
	with := func(change func(*Finding)) Finding {
		f := leak
		change(&f)
		return f
	}
	onHost := with(func(f *Finding) { f.Memory = "host memory" })
	for name, c := range map[string]struct {
		f     Finding
		where Where
		want  Bytes
	}{
		"the card's":        {leak, WhereGPU, 40 * MiB},
		"not the host's":    {leak, WhereHost, 0},
		"the host's":        {onHost, WhereHost, 40 * MiB},
		"also of a cgroup":  {onHost, WhereCgroup, 40 * MiB},
		"not the card's":    {onHost, WhereGPU, 0},
		"an error as well":  {with(func(f *Finding) { f.Severity = SeverityError }), WhereGPU, 40 * MiB},
		"withdrawn":         {with(func(f *Finding) { f.Severity = SeverityInfo }), WhereGPU, 0},
		"another kind":      {with(func(f *Finding) { f.Kind = "spike" }), WhereGPU, 0},
		"of no step":        {with(func(f *Finding) { f.Step = 0 }), WhereGPU, 0},
		"from the first on": {with(func(f *Finding) { f.Step = 1 }), WhereGPU, 200 * MiB},
	} {
		if got := c.f.Leaked(c.where, 20); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}
