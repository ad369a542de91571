package event

import (
	"fmt"
	"strings"
)

// Count writes a number with its noun: 1 run, 2 runs, 3 processes, 4 batches, 5 entries.
func Count[N ~int | ~int64](n N, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %s", n, plural(noun))
}

func plural(noun string) string {
	for _, hiss := range []string{"s", "x", "ch", "sh"} {
		if strings.HasSuffix(noun, hiss) {
			return noun + "es"
		}
	}
	if stem, ok := strings.CutSuffix(noun, "y"); ok && !strings.ContainsAny(stem[len(stem)-1:],
		"aeiou") {
		return stem + "ies"
	}
	return noun + "s"
}
