package trace

import (
	"strings"
	"testing"

	"memroom/event"
)

// TestWhoseMemory: a memory is named by words of the shortage itself, not by a card that stands
// somewhere near it.
func TestWhoseMemory(t *testing.T) {
	for text, want := range map[string]event.Where{
		"terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\n" +
			"+ nvidia-smi\nCUDA Version: 12.2": event.WhereHost,
		"terminate called: std::bad_alloc: CUDA error at: rmm/mr/device/pool.hpp":                      event.WhereGPU,
		"import jax\nXlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating 68719476736 bytes.": event.WhereHost,
		"WARNING: No GPU/TPU found, falling back to CPU.\njaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: " +
			"Out of memory while trying to allocate 68719476736 bytes.": event.WhereHost,
		"import jax\nXlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 68719476736 bytes.": event.WhereGPU,
		"Building the features fails\n\nnumpy can not allocate 96 G memory for them. I have a GPU with 8 GB.":        event.WhereHost,
	} {
		log, err := ReadLog(strings.NewReader(text + "\n"))
		if err != nil {
			t.Fatal(err)
		}
		if at := log.First(); at < 0 || log.Crashes[at].Where != want {
			t.Errorf("%q: %+v, want %s", text, log.Crashes, want)
		}
	}
}

// TestSizeOfADisk: a size in the same sentence is what was asked for only where it is memory's.
func TestSizeOfADisk(t *testing.T) {
	for text, asked := range map[string]bool{
		"It wants to allocate 3 TB of memory for the matrix":    true,
		"It runs out of RAM although the node has a 2 TB disk":  false,
		"It runs out of memory with the whole 1.5 TiB data set": false,
	} {
		log, err := ReadLog(strings.NewReader("A report\n\n" + text + "\n"))
		if err != nil || len(log.Crashes) == 0 {
			t.Fatalf("%q: %v, %v", text, log, err)
		}
		if got := log.Crashes[0].Requested; (got != nil) != asked {
			t.Errorf("%q: asked for %v", text, got)
		}
	}
}

// TestFlagsAreNoProse: what a command sets is no word of the person.
func TestFlagsAreNoProse(t *testing.T) {
	log, err := ReadLog(strings.NewReader("Out of memory with four cards\n\n" +
		"I get an out of memory error when I start it with main.py --resume --save-best --workers 8 /data/eval/run.\n"))
	if err != nil {
		t.Fatal(err)
	}
	for _, word := range []string{"resume", "save", "eval"} {
		if strings.Contains(log.Said.Of+log.Said.Near, word) {
			t.Errorf("%q is taken for prose: %s", word, log.Said.Of)
		}
	}
}
