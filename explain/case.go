package explain

// situationCase is one situation that facts and sums show. The cases are asked in order before the
// stages of work: they rest on figures and on the person's own words.
type situationCase func(*Facts, Sums) (judged, bool)

var situationCases = []situationCase{
	otherCardMeant, allPairs, loadedToCard, pairsOfRows, commitLimit,
	serverCopies, ranksOnCard, launchedOnCard, idleSecondCard, emptyBeside,
	poolInPieces, largeTensor, largeNode, pointsTrained, arrayByShape, darknetParts, cacheBlocks,
	offloadedStates, longContext, weightsBeyond, statesBeyond, arrayWritten,
}

// byCase returns the judgement of the first case that matches.
func byCase(f *Facts, s Sums) (judged, bool) {
	for _, match := range situationCases {
		if j, ok := match(f, s); ok {
			j.cased = true
			return j, true
		}
	}
	return judged{}, false
}
