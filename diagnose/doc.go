// Package diagnose finds faults in the memory of a job and names what fills it. It judges values
// that others measured and touches nothing itself: no clocks, files or processes.
//
// While a job runs, [Watch] takes its steps and samples and returns findings as they arise: a floor
// that rises ([Series], [TrendOf]) and when it will reach its limit, fragmentation, thrash, spikes,
// pressure on the host, neighbours. [Card] makes an account that adds up. All limits are in
// [Thresholds]. After a crash, [AnalyseSnapshot] finds what a recorded allocator history holds at
// its peak and why a request failed, and the explanation ranks causes and cures.
package diagnose
