package trace

import (
	"strings"
	"testing"
)

// TestClauses reads sentences that people write about memory: each row is one kind, whatever words
// fill its places.
func TestClauses(t *testing.T) {
	for _, kind := range []struct {
		name  string
		is    *expression
		texts []string
	}{
		{"it ran out", saysShort, []string{
			"My laptop runs out of RAM halfway through", "the job went out of the available GPU memory",
			"we hit OOM on the second node", "It crashed due to low RAM", "the runtime died because of insufficient system memory",
			"I don't have enough VRAM for this", "there isn't sufficient memory on the card",
			"GPU memory is not enough",
			"the memory gets exhausted in minutes", "RAM is full after loading the files", "my GPU is full",
			"no more memory on the device", "no memory left for the second model",
			"can not allocate 96 G memory",
			"Unable to allocate 12.5 GiB for the array", "couldn't allocate the buffer: 40GB",
			"memory usage explodes", "it blows up the memory of the node", "the VRAM overflows",
			"it consumes RAM until the machine freezes", "memory keeps growing and then the process gets killed",
			"usage grows with every file until the node crashes, memory is not given back",
			"exceeding the memory of my card", "fails because of memory",
			"we need 2.3 TB of memory for the matrix",
			"a memory allocation error in the third epoch", "the machine is short on memory",
			"ran over memory at once",
			"we hit the memory limit", "allocation on device failed", "swap thrashing",
		}},
		{"it grows", saysGrown, []string{
			"memory keeps increasing", "The RAM usage slowly climbs",
			"GPU memory is not released after each fold",
			"it never frees the memory", "there is a memory leak in the loader", "steady growth of host memory",
			"memory goes up with every epoch", "does not release any GPU memory", "leaking VRAM",
			"the occupied memory increases after each epoch", "it keeps eating more RAM",
			"an odd increase of the memory",
			"RSS grew from 2GB to 40GB", "memory usage of the worker processes grows over time",
		}},
		{"it takes much", saysTakes, []string{
			"it uses all my memory", "Excessive memory usage of the metric",
			"why does a 3B model require 60GB of VRAM",
			"takes more than 90 GB RAM", "memory consumption is very high", "consumes a lot of memory",
			"a problem with GPU memory", "Memory issue", "RAM usage reaches 99%", "can't train on a 8GB card",
		}},
		{"it was killed", saysKilled, []string{
			"The training process is suddenly killed", "it keeps getting killed", "Python was killed",
			"all it prints is \"Killed\"", "the output ends with: Killed48213", "the script just gets killed",
			"the terminal returns 'killed'", "SIGKILL after some minutes",
		}},
	} {
		for _, text := range kind.texts {
			if s := (&sentence{text: text}); !s.claims(kind.is) {
				t.Errorf("%s: not read in %q (%s)", kind.name, text, s.row)
			}
		}
	}
}

// TestClausesTakenBack reads sentences with the same words that claim nothing.
func TestClausesTakenBack(t *testing.T) {
	for _, text := range []string{
		"Could you reduce the memory usage of the loader?", "Is it out of memory?",
		"it does not run out of memory",
		"If you run out of memory, use a smaller batch", "this avoids out of memory errors",
		"the OOM of last week is fixed now",
		"I increased the memory setting to 64G", "try increasing the memory of the pod",
		"low-memory mode is on",
		"a long short-term memory network", "memory mapped files are read", "OOMKilled: 0",
		"no more memory leaks since 1.3",
		"GPU utilization is full", "the loss grows over time", "the disk is full", "I killed the process",
		"handle OOM in the sampler", "memory is released after each step", "illegal memory access",
		"pin_memory is true", "the memory bank has 4096 keys", "When you get `torch.OutOfMemoryError: CUDA out of memory`, go smaller",
		"It worked without running out of memory", "add an option to limit the memory",
		"maybe it runs out of memory", "I guess the memory is insufficient",
	} {
		s := &sentence{text: text}
		for name, is := range map[string]*expression{"short": saysShort, "grown": saysGrown,
			"killed": saysKilled} {
			if s.claims(is) {
				t.Errorf("%s: read in %q (%s)", name, text, s.row)
			}
		}
	}
}

// TestLexicon: a word has one class, so that a sentence is read in one way only.
func TestLexicon(t *testing.T) {
	seen := map[string]byte{}
	for class, list := range lexicon {
		for _, word := range strings.Fields(list) {
			if other := seen[word]; other != 0 {
				t.Errorf("%q is of class %c and of %c", word, class, other)
			}
			seen[word] = class
		}
	}
}
