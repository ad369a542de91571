package serve_test

import (
	"strings"
	"testing"

	"memroom/testenv"
)

// TestStreamInPython runs memroom.Stream against what pandas, pyarrow and NumPy read from the same
// files: values, order, resuming, budgets, bad input; and in torch, torchdata, TensorFlow, Keras
// and datasets.
func TestStreamInPython(t *testing.T) {
	python := testenv.Environment(t, "feed")
	binary := testenv.Binary(t)
	for _, classes := range [][]string{{"Formats"}, {"Order"}, {"Budget"}, {"BadInput"}, {"Web"},
		{"Convert"}, {"Docs", "Frameworks"}} { // the last two import the same frameworks
		t.Run(strings.Join(classes, "And"), func(t *testing.T) {
			for i, class := range classes {
				classes[i] = "test_stream." + class
			}
			runStreamTests(t, python, binary, classes)
		})
	}
}

// TestStreamInputsInPython reads files under the names people give them, files that hold something
// else than their name says, and in loops that people write.
func TestStreamInputsInPython(t *testing.T) {
	python := testenv.Environment(t, "feed")
	binary := testenv.Binary(t)
	for _, class := range []string{"Names", "Contents", "Loops"} {
		t.Run(class, func(t *testing.T) {
			runStreamTests(t, python, binary, []string{"test_stream_inputs." + class})
		})
	}
}
