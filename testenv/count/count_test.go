package main

import (
	"strings"
	"testing"
)

// TestNoSecondTry: a failure fails the run, unless its test is in quarantine by name.
func TestNoSecondTry(t *testing.T) {
	const words = "what the file is\n"
	list, err := quarantined(words + "memroom/cli TestOne: the kernel may swap")
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	tally := newTally(&out, list)
	for _, e := range []testEvent{
		{Action: "run", Package: "memroom/cli", Test: "TestOne/a"},
		{Action: "fail", Package: "memroom/cli", Test: "TestOne/a"},
		{Action: "fail", Package: "memroom/cli", Test: "TestOne"},
		{Action: "fail", Package: "memroom/cli", Test: "TestTwo"},
		{Action: "fail", Package: "memroom/cli"},
		{Action: "fail", Package: "memroom/fit", Test: "TestOne"},
		{Action: "pass", Package: "memroom/fit", Test: "TestTwo"},
	} {
		tally.add(e)
	}
	tally.close()
	if tally.failed != 2 || tally.passed != 1 {
		t.Errorf("%d failed, %d passed; want 2 and 1", tally.failed, tally.passed)
	}
	if said := out.String(); !strings.Contains(said, "memroom/cli TestOne (the kernel may swap)") ||
		strings.Contains(said, "again") {
		t.Errorf("said %s", said)
	}
	for _, text := range []string{"memroom/cli TestOne", "memroom/cli TestOne: ",
		strings.Repeat("x", 3) + ": why"} {
		if _, err := quarantined(words + text); err == nil {
			t.Errorf("%q was taken", text)
		}
	}
	many := words
	for _, c := range "abcdef" {
		many += "memroom/cli Test" + string(c) + ": why\n"
	}
	if _, err := quarantined(many); err == nil {
		t.Error("six tests were quarantined")
	}
	if _, err := quarantined(quarantineText); err != nil {
		t.Error(err)
	}
}

// TestReasonIsOfTheSkipCall: what a test logged before it was skipped is not why.
func TestReasonIsOfTheSkipCall(t *testing.T) {
	var out strings.Builder
	tally := newTally(&out, nil)
	const name, test = "memroom/cli", "TestOne"
	for _, line := range []string{"    one_test.go:9: began\n", "    one_test.go:12: needs a card\n",
		"--- SKIP: TestOne (0.00s)\n"} {
		tally.add(testEvent{Action: "output", Package: name, Test: test, Output: line})
	}
	tally.add(testEvent{Action: "skip", Package: name, Test: test})
	tally.close()
	if said := out.String(); !strings.Contains(said, "1 x needs a card") {
		t.Errorf("said %s", said)
	}
}
