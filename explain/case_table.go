package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"memroom/event"
	"memroom/lazyregexp"
	"memroom/trace"
)

// cardRow is a card in nvidia-smi's table.
type cardRow struct {
	number     string
	used, size event.Bytes
}

// processRow is a process in it.
type processRow struct {
	card, pid, name string
	bytes           event.Bytes
}

// The lines of nvidia-smi's table, and of tables with one line for a card.
var (
	cardLine   = lazyregexp.New(`^\W{0,4}(?:GPU ?)?(\d{1,2})\b[^\d\n]?.{0,80}?\b(\d+) ?(?:M|MB|MiB)? ?/ ?(\d{4,6}) ?(?:M|MB|MiB)\b`)
	smiCard    = lazyregexp.New(`^\s*\|\s+(\d+)\s+\S.*(?:On|Off)\s*\|`)
	smiMemory  = lazyregexp.New(`(\d+)MiB\s*/\s*(\d+)MiB`)
	smiProcess = lazyregexp.New(`^\s*\|\s+(\d+)\s+(?:\S+\s+\S+\s+)?(\d+)\s+(?:C|G|C\+G|M\+C)\s+(\S.*?)\s+(\d+)MiB\s*\|`)
)

func mebibytes(digits string) event.Bytes {
	n, _ := strconv.ParseInt(digits, 10, 64)
	return event.Bytes(n) * event.MiB
}

// cardRows reads the cards of such a table.
func cardRows(lines []trace.Line) []cardRow {
	var rows []cardRow
	number := ""
	for _, l := range lines {
		if m := smiCard.FindStringSubmatch(l.Text); m != nil {
			number = m[1]
		} else if m := cardLine.FindStringSubmatch(l.Text); m != nil && number == "" {
			rows = append(rows, cardRow{m[1], mebibytes(m[2]), mebibytes(m[3])})
			continue
		}
		if m := smiMemory.FindStringSubmatch(l.Text); m != nil && number != "" {
			rows = append(rows, cardRow{number, mebibytes(m[1]), mebibytes(m[2])})
			number = ""
		}
	}
	return rows
}

func processRows(lines []trace.Line) []processRow {
	var rows []processRow
	for _, l := range lines {
		if m := smiProcess.FindStringSubmatch(l.Text); m != nil {
			rows = append(rows, processRow{m[1], m[2], strings.TrimSpace(m[3]), mebibytes(m[4])})
		}
	}
	return rows
}

// explainTable answers nvidia-smi's own output: who holds each card. It is nil where the text is
// none.
func explainTable(logs []*trace.Log) *Explanation {
	if len(logs) == 0 {
		return nil
	}
	lines := logs[0].Kept
	cards := cardRows(lines)
	if len(cards) == 0 {
		return nil
	}
	x := NothingFound()
	x.Framework = frameworkOf(logs)
	processes := processRows(lines)
	slices.SortStableFunc(processes, func(a, b processRow) int { return cmp.Compare(b.bytes, a.bytes) })
	full := slices.MaxFunc(cards, func(a, b cardRow) int { return cmp.Compare(a.used, b.used) })
	x.Verdict = fmt.Sprintf("Card %s has %s of %s in use", full.number, full.used, full.size)
	var listed event.Bytes
	for _, p := range processes {
		if p.card == full.number {
			if listed == 0 {
				x.Verdict += fmt.Sprintf("; process %s (%s) holds %s of it", p.pid, p.name, p.bytes)
			}
			listed += p.bytes
		}
		x.Evidence = append(x.Evidence, fmt.Sprintf("card %s: process %s (%s) holds %s", p.card, p.pid,
			p.name, p.bytes))
	}
	if rest := full.used - listed; rest > event.GiB {
		x.Evidence = append([]string{fmt.Sprintf("%s of card %s belong to processes that the table does not list: those of "+
			"other users or containers, or ones that ended without giving it back", rest, full.number)}, x.Evidence...)
		x.Next = "sudo fuser -v /dev/nvidia" + full.number + "   # every process that has the card open"
	} else if listed > 0 {
		x.Next = "ps -o pid,user,lstart,cmd -p PID   # whose it is and since when; end it only if it is yours"
	}
	x.Verdict += ". Memory did not run out in this text."
	x.NotMemory, x.Certainty = "a table of the cards, no end of a program", 0.9
	for _, c := range cards {
		x.Account = append(x.Account, AccountLine{fmt.Sprintf("in use on card %s, of %s", c.number,
			c.size), c.used})
	}
	return x
}
