package models_test

import (
	_ "embed"
	"strings"
	"testing"

	"memroom/models"
)

// mostUsed are 126 model types of transformers, chosen by us from what is downloaded most; the
// first column of bench/anyarch's table.
//
//go:embed testdata/most_used.txt
var mostUsed string

// TestMostUsedTypesAreDescribed counts the types that are planned without Python.
func TestMostUsedTypesAreDescribed(t *testing.T) {
	var missing []string
	all := strings.Fields(mostUsed)
	for _, name := range all {
		if !models.Known(name) {
			missing = append(missing, name)
		}
	}
	t.Logf("%d of %d are described; not described: %s", len(all)-len(missing), len(all),
		strings.Join(missing, ", "))
	if described := len(all) - len(missing); described < 75 {
		t.Errorf("%d of the %d most used types are described", described, len(all))
	}
}
