// Command memroom keeps deep-learning training from running out of memory. This file only hands the
// arguments and the standard streams to package cli and turns its answer into the exit code.
package main

import (
	"context"
	"os"

	"memroom/cli"
)

func main() {
	os.Exit(cli.Main(context.Background(), os.Args[1:], cli.Streams{In: os.Stdin, Out: os.Stdout,
		Err: os.Stderr}))
}
