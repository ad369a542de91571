package plan

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

var several = regexp.MustCompile(`^(\d+)\s*[xX*]\s*(.+)$`)

// maxDevices bounds the devices of one map.
const maxDevices = 1024

// ParseCards reads a list of cards: 2x24GiB, 1x12GiB or 4xA100-80 each.
func ParseCards(list []string) ([]Card, error) {
	var cards []Card
	for _, text := range list {
		count, name := 1, strings.TrimSpace(text)
		if m := several.FindStringSubmatch(name); m != nil {
			n, err := strconv.Atoi(m[1])
			if err != nil || n < 1 || len(cards)+n > maxDevices {
				return nil, fmt.Errorf("--devices %q: between 1 and %d devices", text, maxDevices)
			}
			count, name = n, m[2]
		}
		card, err := FindCard(name)
		if err != nil {
			return nil, fmt.Errorf("--devices %q: %w", text, err)
		}
		for range count {
			cards = append(cards, card)
		}
	}
	return cards, nil
}
