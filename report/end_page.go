package report

// EndPage is the last screen of a run as data, for pages: each part is a list of sentences, empty
// where there is nothing to say.
type EndPage struct {
	Headline string   `json:"headline"`
	Why      string   `json:"why,omitempty"`
	Done     []string `json:"done,omitempty"`
	Results  string   `json:"results,omitempty"`
	Memory   []string `json:"memory,omitempty"`
	Time     string   `json:"time,omitempty"`
	Found    []string `json:"found,omitempty"`
	Next     []string `json:"next,omitempty"`
}

// Page returns what RunEnd prints, in parts.
func (e End) Page() EndPage {
	found := e.found()
	return EndPage{Headline: e.headline(), Why: e.why(), Done: e.done(), Results: e.results(),
		Memory: e.memory(), Time: e.time(), Found: found, Next: e.next(len(found) > 0)}
}
