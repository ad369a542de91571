package cli

import (
	"context"
	"strings"
	"testing"

	"memroom/testenv"
)

// TestDoctorAgreesWithItself: what a Python is shown to have is not called missing below it.
func TestDoctorAgreesWithItself(t *testing.T) {
	checks := checkPython(context.Background(), testenv.Python(t, "ray", "keras"), true)
	if len(checks) < 2 || !strings.Contains(checks[1].Value, "keras ") ||
		!strings.Contains(checks[1].Value, "ray ") {
		t.Fatalf("%+v", checks)
	}
	for _, c := range checkClients(context.Background(), checks) {
		if c.ID == "ray" && (c.Status != statusOK || !strings.Contains(c.Value, "a package of")) {
			t.Errorf("%+v", c)
		}
		if strings.Contains(c.Why, "trial") {
			t.Errorf("promises what there is not: %+v", c)
		}
	}
}
