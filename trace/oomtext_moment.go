package trace

// When it failed, as a person says it: in a sentence that tells of the failure, in a clause that
// does not say that this part went well. The words alone name settings, scripts and plans as often.
var (
	inEvaluation = later(`(?i)\b(?:in|during|at|when(?:ever)?|while|whilst|on|upon|after|before|once|only) (?:the |my |an? |every |each |first |running |doing |performing |starting |it |i |we )*(?:[\w'-]+ ){0,2}?` +
		`(?:evaluat\w*|validat\w*|eval|inference|predicting|prediction|testing (?:phase|stage|step|time|loop|set|on|the model|process)|testing$|test (?:phase|stage|step|loop|time|set|epoch)|test_step|validation_step)\b|` +
		`^\W*(?:the |my |during |then |and |so )*(?:[\w'-]+ ){0,2}?(?:evaluation|validation|evaluating|validating|inference|prediction|eval)\b|` +
		`\.(?:test|validate|evaluate|predict)\(`)
	inLoading = later(`(?i)\b(?:when(?:ever)?|while|during|at|on|upon|before|as soon as|in) (?:the |my |an? |it |i |we |trying to |is )*(?:[\w'-]+ ){0,1}?load(?:s|ing|ed)? (?:the |a |an |my |of |up )*(?:[\w.'-]+ ){0,2}?` +
		`(?:model|weights|checkpoint|[\w.]+-\d+(?:\.\d+)?[bm])\b`)
	wentWell = later(`(?i)\b(?:works?|worked|fine|ok|okay|smooth\w*|normal\w*|success\w*|no problem|well|finish\w*|complet\w*|passes|goes through|without)\b`)
	// ofMoments is a quick look: most sentences have none of their words
	ofMoments = later(`(?i)eval|valid|infer|predict|test|load`)
	notThen   = later(`(?i)\b(?:no|not|without|never|or|train\w*)\b`)
	happens   = later(`(?i)\b(?:happen|occur|appear)\w*\b`)
	failureIn = anyOf(`[EkROPx]`, `M`)
)

// saidMoments are signs that a person's clause about the failure puts.
var saidMoments = []struct {
	sign string
	is   *expression
}{{SignEvalSaid, inEvaluation}, {SignLoadSaid, inLoading}}

// saidWhen returns the words of a sentence about the failure that say when it came.
func (s *sentence) saidWhen(is *expression) string {
	if !ofMoments.MatchString(s.text) || !s.claims(failureIn) && !s.states(happens) {
		return ""
	}
	from := 0
	for i := 0; i <= len(s.row); i++ {
		if i < len(s.row) && s.row[i] != '|' {
			continue
		}
		to := len(s.text)
		if i < len(s.row) {
			to = s.places[i][0]
		}
		clause := s.text[min(from, to):to]
		if words := is.FindString(clause); words != "" && !notThen.MatchString(words) &&
			!wentWell.MatchString(clause) {
			return words
		}
		if i < len(s.row) {
			from = s.places[i][1]
		}
	}
	return ""
}

// sayWhen puts what sentences about the failure tell of its moment.
func sayWhen(log *Log, prose []sentence) {
	for i := range prose {
		for _, m := range saidMoments {
			words := prose[i].saidWhen(m.is)
			if words == "" {
				continue
			}
			for c := range log.Crashes {
				if crash := &log.Crashes[c]; crash.Class == Exhausted && crash.Signs[m.sign] == "" {
					crash.Signs.put(m.sign, cut(words, 60))
				}
			}
		}
	}
}
