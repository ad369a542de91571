package main

import (
	"encoding/json"
	"fmt"
	"os"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "savings:", err)
		os.Exit(2)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 1 && args[0] == "cases":
		pairs, err := cases()
		if err != nil {
			return err
		}
		enc := json.NewEncoder(os.Stdout)
		enc.SetIndent("", " ")
		return enc.Encode(pairs)
	case len(args) == 2 && (args[0] == "table" || args[0] == "pack"):
		r, err := readResults(args[1])
		if err != nil {
			return err
		}
		if args[0] == "pack" {
			return pack(r, os.Stdout)
		}
		return table(r, os.Stdout)
	}
	if len(args) == 3 && args[0] == "table" {
		if err := run(args[:2]); err != nil {
			return err
		}
		return recordedTable(args[2], os.Stdout)
	}
	return fmt.Errorf("usage: savings cases | savings pack OUT | savings table OUT [RECORDINGS]")
}
