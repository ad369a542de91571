package trace

import (
	"strconv"
	"strings"
)

// trialMark is the number of a trial or fold, trialEnded matches the end of one of them.
var (
	trialMark  = later(`(?i)\b(trial|fold)[ _#:]{0,2}(\d{1,5})\b`)
	trialEnded = later(`(?i)\b(?:trial|fold)[ _#:]{0,2}\d{1,5}\b[^\n]{0,40}\b(?:finished|done|complete|` +
		`pruned|failed|fail\b|TrialState|score|best)`)
)

// trialNumber returns the number of the last trial or fold if an earlier one is mentioned too: a
// single number is often just the name of a split.
func trialNumber(text string) string {
	seen, last := map[string]bool{}, 0
	for _, m := range trialMark.FindAllStringSubmatch(text, 64) {
		n, err := strconv.Atoi(m[2])
		if err != nil {
			continue
		}
		seen[strings.ToLower(m[1])+m[2]] = true
		last = max(last, n)
	}
	if last < 1 || len(seen) < 2 && !trialEnded.MatchString(text) {
		return ""
	}
	return strconv.Itoa(max(last, 2))
}

// epochMark is the number of an epoch as loops print it, epochPassed what people say of epochs
// that went well.
var (
	epochMark   = later(`(?i)\bepochs?\b["']?\s?[:=#]?\s?\[?\(?(\d{1,6})\b(\s?(?:/|of)\s?\d+)?`)
	epochPassed = later(`(?i)\b(?:after|runs? for|ran for|trained for)\s+(?:the |about |around |running |training )*(?:a |one |first |` +
		`two |three |four |five |ten |several |some |many |few |a few |\d{1,5} ?(?:th|st|nd|rd)? )+` +
		`(?:\w+ )?epochs?\b|\b(?:second|third|fourth|fifth|\d{1,4}(?:th|nd|rd)|\d{1,3}1st) epoch\b`)
	epochCount = later(`(?i)(?:num_?|n_?|max_?|total |number of |--)(?:train_?)?epochs?|epochs? ?= ?\d+ ?[,)]`)
	epochSet   = later(`(?i)^\W*epochs?["']?\s?[:=]\s?\d+\W*$`)
	notEpochs  = later(`(?i)checkpoint|resum|restor|\bload(?:ed|ing)\b|\bsaved?\b|warm-?up|\.(?:pth?|ckpt|bin)\b`)
)

// epochs returns the epoch a program had reached, empty where the log names none or none had
// passed.
func (p *passage) epochs() string {
	first, most, set := -1, 0, 0
	for _, line := range append(p.above(120), p.following(8)...) {
		line = line[max(0, len(line)-signsLine):]
		if m := epochPassed.FindStringSubmatch(line); m != nil && !epochCount.MatchString(line) {
			return strings.TrimSpace(strings.TrimPrefix(m[0], "after "))
		}
		if epochCount.MatchString(line) || notEpochs.MatchString(line) {
			continue
		}
		for _, m := range epochMark.FindAllStringSubmatch(line, 4) {
			n, err := strconv.Atoi(m[1])
			if err != nil {
				continue
			}
			if epochSet.MatchString(line) { // a number by itself is how many there shall be
				set = max(set, n)
				continue
			}
			most = max(most, n)
			if first < 0 || n < first {
				first = n
			}
		}
	}
	if most > 0 && set > most { // the loop prints its epochs in the same form
		most = set
	}
	if most >= 2 || first == 0 && most == 1 {
		return "epoch " + strconv.Itoa(most)
	}
	return ""
}
