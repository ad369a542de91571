package event

import (
	"cmp"
	"strings"
	"unicode"
)

// Nearest returns the known word that was probably meant, empty where none is close: a third of the
// letters may differ. Case and whatever is neither letter nor digit do not count.
func Nearest(typed string, known []string) string {
	letters := func(s string) string {
		return strings.Map(func(r rune) rune {
			if unicode.IsLetter(r) || unicode.IsDigit(r) {
				return unicode.ToLower(r)
			}
			return -1
		}, s)
	}
	typed = letters(typed)
	best, least := "", 1+len(typed)/3
	for _, word := range known {
		if d := distance(typed, letters(word)); d < least {
			best, least = word, d
		}
	}
	return best
}

// DidYouMean is the question to add to a message about a word that is not known, empty where no
// known one is near.
func DidYouMean(typed string, known []string) string {
	if best := Nearest(typed, known); best != "" {
		return ", did you mean \"" + best + "\"?"
	}
	return ""
}

// DidYouMeanOf is DidYouMean for a word of a short list: without a near one it has the list.
func DidYouMeanOf(typed string, known []string) string {
	return cmp.Or(DidYouMean(typed, known), ": use one of "+strings.Join(known, ", "))
}

// distance is how many letters must be changed, added or dropped to make b of a.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		corner := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := corner
			if a[i] != b[j] {
				change++
			}
			corner = row[j+1]
			row[j+1] = min(change, corner+1, row[j]+1)
		}
	}
	return row[len(b)]
}
