package trace

import (
	"slices"
	"strings"
)

// sourceLine is a line of a program rather than of its output: people quote the handler they wrote
// (`except torch.cuda.OutOfMemoryError:`), and tracebacks print the line that raised. What happened
// stands on a line of its own.
var sourceLine = later(`^[\s>|+]*(?:\d+[:|]?\s+)?(?:` +
	`except\b[^:]*:\s*(?:#.*|pass|continue|break|return\b.*|raise\b.*|print\(.*)?$|` +
	`print\(|raise\s+[A-Za-z_][\w.]*(?:\(|$|\s+from\b)|` +
	`(?:self\.)?_?log(?:ger|ging)?\.\w+\(|warnings\.warn\(|` +
	`(?:if|elif|while)\s.*(?:["'].*["']|\bisinstance\(|Error\b).*:\s*(?:#.*)?$|` +
	`(?:def|class)\s+\w+.*:\s*(?:#.*)?$|` +
	`[a-z_][\w.]*\s?=\s?["'rf]+[^"']*["']\s?(?:in\s.*)?$|` +
	`(?:from\s+[\w.]+\s+)?import\s+[\w., ]+$|` +
	`return\s+["'(]?.*\bin\s+str\()`)

// raisedBehind is a line that raises with the message behind it, as titles of reports have it.
var raisedBehind = later(`\braise\s+\w+\(.*\) ?\w*Error: \S`)

// longestSource bounds the lines that are taken for source code, in bytes. Nobody writes longer
// ones, and a log of megabytes on one line would be read from its start at every telling word.
const longestSource = 600

// raisesTitle heads the part of a docstring that lists exceptions; raisesField lists one.
var (
	raisesTitle = later(`^\s*(?:Raises|Throws|Exceptions?|Errors)\s*:?\s*$`)
	figured     = later(`(?i)total capacity|already allocated|is allocated by`)
	raisesField = later(`^\s*(?::raises?|:exception|@throws|@raise)\s`)
)

// isDocumented reports whether the line describes an exception in documentation: below a title
// "Raises", with no traceback between.
func (p *passage) isDocumented() bool {
	if figured.MatchString(p.line()) { // documentation names no sizes
		return false
	}
	if raisesField.MatchString(p.line()) {
		return true
	}
	for _, line := range p.above(6) {
		if strings.Contains(line, "Traceback (most recent") {
			return false
		}
		if raisesTitle.MatchString(line) {
			return true
		}
	}
	return false
}

// isSource reports whether the telling word of a passage stands in source code.
func (p *passage) isSource() bool {
	if p.isDocumented() {
		return true
	}
	line := p.line()
	if len(p.window.lineAround(p.at)) > longestSource {
		return false
	}
	return sourceLine.MatchString(line) && !raisedBehind.MatchString(line) ||
		testVerdict.MatchString(line) && !testRaised.MatchString(line)
}

// A remark is a comment of a program: on a line of its own, or behind code.
var (
	remarkLine   = later(`^\s*(?:\d+[:|]?\s+)?(?:#|//|/\*|\*\s|<!--)`)
	remarkBehind = later(`^\s*(?:[\w.\[\]'"]+\s?[-+*/]?=\s?\S|[\w.]+\(|return\b|[\w* ]+;|[{}]).*?\s(?:#|//|/\*)\s*`)
	quotedError  = later(`\b\w*(?:Error|Exception)\b(?:: |$)|Traceback|\bterminate called|what\(\):`)
	codeLine     = later(`^\s*(?:import\s+\w|from\s+[\w.]+\s+import\b|(?:async\s+)?def\s+\w|class\s+\w|(?:if|elif|else|for|` +
		`while|with|try|except|finally)\b.*[:{]\s*$|return\b|[A-Za-z_][\w.\[\]'"]*\s?[-+*/]?=\s?[^=]|[A-Za-z_][\w.]*\(.*\);?\s*$|` +
		`[{}][;,]?\s*$|.*[;{]\s*$|#include\b|func\s+\w|raise\s+\w)`)
)

// isRemark reports whether the telling word stands in a comment of a program that is shown around
// it. An exception by its name is what somebody got there, and counts; so does a whole log behind
// comment marks on lines without code.
func (p *passage) isRemark() bool {
	line := p.line()
	at := strings.Index(strings.ToLower(line), p.word)
	if at < 0 || len(line) > longestSource || quotedError.MatchString(line) {
		return false
	}
	if remarkBehind.MatchString(line[:at]) {
		return true
	}
	if !remarkLine.MatchString(line) {
		return false
	}
	return slices.ContainsFunc(append(p.above(2), p.below(2)[1:]...), func(near string) bool {
		return codeLine.MatchString(near) && !remarkLine.MatchString(near)
	})
}

// testRaised is the exception that a test runner prints behind the name of a test that failed.
var testRaised = later(`\bFAILED\b[^\n]{0,300} - (?:[\w.]+\.)?\w*(?:Error|Exception)\b: `)

// testVerdict matches the line on which a test runner prints a test's result. The name contains the
// word "test".
var testVerdict = later(`(?i:::\w*test\w*|^\s*(?:---\s)?\w*test\w*\b)[^\n]{0,200}\b(?:PASSED|FAILED|SKIPPED|` +
	`XFAIL|XPASS|ERROR|ok|PASS|FAIL)\b(?:\s|$)|\b(?:PASSED|FAILED|SKIPPED|XFAIL|XPASS|ERROR|PASS|FAIL):? ` +
	`(?:[\w./-]+::)?\S*test_\w+`)
