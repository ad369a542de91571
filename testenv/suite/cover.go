package main

import (
	"errors"
	"fmt"
	"os"
	"strings"
)

// covered returns the share of statements that any of several runs reached. A line of a profile is
// "FILE:FROM,TO STATEMENTS COUNT".
func covered(profiles []string) (float64, error) {
	statements, reached := map[string]int{}, map[string]bool{}
	for _, path := range profiles {
		text, err := os.ReadFile(path)
		if errors.Is(err, os.ErrNotExist) {
			continue // a test that died wrote none
		}
		if err != nil {
			return 0, err
		}
		for _, line := range strings.Split(string(text), "\n") {
			var where string
			var size, count int
			if n, _ := fmt.Sscan(line, &where, &size, &count); n == 3 {
				statements[where] = size
				reached[where] = reached[where] || count > 0
			}
		}
	}
	all, some := 0, 0
	for where, size := range statements {
		all += size
		if reached[where] {
			some += size
		}
	}
	if all == 0 {
		return 0, errors.New("no statement")
	}
	return float64(some) / float64(all), nil
}
