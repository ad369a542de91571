package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
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
	case len(args) == 2 && args[0] == "pack":
		r, err := readResults(args[1])
		if err != nil {
			return err
		}
		return pack(r, os.Stdout)
	case len(args) >= 2 && len(args) <= 3 && args[0] == "table":
		return allTables(args[1:])
	}
	return fmt.Errorf("usage: savings cases | savings pack OUT | savings table OUT [SHARED]")
}

// allTables prints the pairs measured for this purpose and, where the folder of earlier
// measurements is given, those in it.
func allTables(args []string) error {
	r, err := readResults(args[0])
	if err != nil {
		return err
	}
	pairs, err := cases()
	if err != nil {
		return err
	}
	if err := table(r, pairs, os.Stdout); err != nil || len(args) == 1 {
		return err
	}
	fmt.Println("\nAmong the setups that plan is checked on:")
	r, pairs, err = readTruth(filepath.Join(args[1], "groundtruth"))
	if err != nil {
		return err
	}
	if err := table(r, pairs, os.Stdout); err != nil {
		return err
	}
	return recordedTable(filepath.Join(args[1], "traces"), os.Stdout)
}
