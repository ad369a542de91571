// Package report turns results into what people and other tools read: text for the terminal, pages,
// and the formats of pprof, Perfetto and code scanners. It decides nothing: every figure it shows
// was computed elsewhere.
package report
