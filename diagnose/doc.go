// Package diagnose says what is wrong, or what there is, in the memory of a job: what a recorded allocator history holds
// at its peak and why a request failed ([AnalyseSnapshot]), what grows and what is fragmented. It judges values that
// others measured and touches nothing itself.
package diagnose
