// Command logs writes a training log of a given size to standard output, with a crash near its end:
// food for bench/logs/run, which times `memroom explain` on it.
package main

import (
	"bufio"
	"fmt"
	"os"

	"memroom/event"
)

func main() {
	size := 2 * event.GiB
	if len(os.Args) > 1 {
		var err error
		if size, err = event.ParseBytes(os.Args[1]); err != nil {
			fmt.Fprintln(os.Stderr, "logs:", err)
			os.Exit(2)
		}
	}
	out := bufio.NewWriterSize(os.Stdout, 1<<20)
	defer out.Flush()
	var written event.Bytes
	for step := 0; written < size; step++ {
		n, err := fmt.Fprintf(out,
			"[2025-03-01 10:00:00,123][train][INFO] - Train step %d/%d loss=2.%05d lr=1.25e-05 "+
				"grad_norm=0.981 tok/s=91834.2 mem=62.1\n", step, 1<<30, step%100000)
		if err != nil {
			return // the reader has gone
		}
		written += event.Bytes(n)
	}
	fmt.Fprintln(out,
		"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "+
			"capacity of 23.69 GiB of which 1.01 GiB is free. "+
			"Of the allocated memory 21.00 GiB is allocated by PyTorch, and 312.00 MiB is reserved by "+
			"PyTorch but unallocated.")
}
