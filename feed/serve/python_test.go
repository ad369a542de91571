package serve_test

import (
	"os"
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
// else than their name implies, and in loops that people write.
func TestStreamInputsInPython(t *testing.T) {
	python := testenv.Environment(t, "feed")
	binary := testenv.Binary(t)
	for _, class := range []string{"Names", "Contents", "Loops"} {
		t.Run(class, func(t *testing.T) {
			runStreamTests(t, python, binary, []string{"test_stream_inputs." + class})
		})
	}
}

// TestStreamImagesInPython reads folders of images, and rows by their numbers.
func TestStreamImagesInPython(t *testing.T) {
	python := testenv.Environment(t, "feed")
	binary := testenv.Binary(t)
	runStreamTests(t, python, binary, []string{"test_stream_images"})
}

// TestStreamSafetyInPython reads while a second user does, from servers that stop, stall and send
// elsewhere, and from addresses that hold secrets.
func TestStreamSafetyInPython(t *testing.T) {
	python := testenv.Environment(t, "feed")
	binary := testenv.Binary(t)
	for _, class := range []string{"SecondUser", "Servers", "Web"} {
		t.Run(class, func(t *testing.T) {
			if class == "SecondUser" && os.Geteuid() != 0 {
				testenv.Needs(t, "root", "a second user cannot be tried")
			}
			runStreamTests(t, python, binary, []string{"test_stream_safety." + class})
		})
	}
}

// TestStreamPassesInPython reads as frameworks' loops do, with real ranks, and counts how well rows
// are mixed.
func TestStreamPassesInPython(t *testing.T) {
	python := testenv.Environment(t, "feed")
	binary := testenv.Binary(t)
	for _, class := range []string{"Passes", "Parts", "Ranks", "Mixing"} {
		t.Run(class, func(t *testing.T) {
			runStreamTests(t, python, binary, []string{"test_stream_passes." + class})
		})
	}
}
