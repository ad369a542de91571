package diagnose

import "testing"

// TestEveryClaimHasARule: what may be claimed, and what takes it back, stands in one table.
func TestEveryClaimHasARule(t *testing.T) {
	for detail := range situations {
		rule, ok := claims[detail]
		if !ok || rule.needs == "" {
			t.Errorf("the situation %q has no rule", detail)
		}
	}
	for detail := range claims {
		if _, ok := situations[detail]; !ok && detail != "limit" {
			t.Errorf("the rule %q is about no situation", detail)
		}
	}
	for cause := range cures {
		if rule, ok := causeClaims[cause]; cause != CauseUnknown && (!ok || rule.needs == "") {
			t.Errorf("the cause %q has no rule", cause)
		}
	}
}
