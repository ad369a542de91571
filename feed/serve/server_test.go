package serve

import (
	"sync"
	"testing"
	"time"
)

// TestEndsBesideAStuckConsumer: the second consumer never comes back from the file that it opens.
func TestEndsBesideAStuckConsumer(t *testing.T) {
	var all sync.WaitGroup
	left := false
	all.Go(func() { left = true })
	waitFor(&all, nil, time.Hour) // not waited for when all have left
	if !left {
		t.Error("did not wait for a consumer that leaves")
	}
	all.Add(1)
	defer all.Done()
	waitFor(&all, nil, time.Millisecond)
}
