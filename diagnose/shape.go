package diagnose

// shape holds the constants that distinguish the shapes of memory growth: leaks, caches that fill,
// jumps, teeth, noise. They were chosen on made courses (package courses, seeds below 1000) so that
// caches which fill for 30 steps pass and leaks are named within 40; docs/measurements.md has the
// result on other seeds. Thresholds holds the limits that a user would recognise.
var shape = struct {
	// A steady rise, judged rise by rise.
	Falls       float64 // falls up to this share of all rises are noise: counters round
	Jump        float64 // a rise so many times the usual one is a jump: a workspace
	FirstJump   float64 // where the other rises are alike, the first needs to be only so much larger
	Alike       float64 // rises and gaps that differ by less than this share are alike
	ClockSlip   float64 // steps by which a clock may be off: a step is counted whole
	Equal       float64 // rises within this share are the same tensor each time
	Hidden      int64   // steps before a rise that a jump right before it may have hidden
	LateStart   float64 // a first rise below this share of the usual rate began between two readings
	Burst       float64 // rises at most so many steps apart belong together: one evaluation
	Pause       float64 // a pause of more usual gaps than this ends a rise ...
	PauseSteps  float64 // ... plus so many steps: short gaps vary by a step or two
	OtherGrew   float64 // share of the mean the last rise must have next to a full cache
	StairHeight float64 // stairs read at some steps stay within so many of the smallest rise
	StairRate   float64 // and their last rise reaches this share of the mean rate
	StairBulge  float64 // and their middle lies this close to the line: a filling cache bulges
	SpikeOver   float64 // a point so many usual rises above the floor is a spike at the end
	SpikeHigh   float64 // share of the highest spike from which a point counts as one
	BendPoints  float64 // steps from which a change of pace differs from chance
	BendErrors  float64 // standard errors by which the pace must change to be used
	BendLeast   float64 // and the share of the pace by which it must: less does not matter
	Gaining     float64 // share of the steps that gain; below it a cache fills by chance
	Stalled     float64 // share of the mean that the last quarter must gain
	StalledRead float64 // the same where few steps are read
	ReadMost    float64 // share of the steps that must be read for the first of the two
	EverErrors  float64 // standard errors by which a whole series must slacken
	EverSlack   float64 // and the share of the mean its pace falls to
	// A rise under noise, judged by statistics.
	LevelJump    float64 // a change so many times the usual one that stays is a jump between levels
	JumpsMany    int     // one in so many points: jumps are then the way it grows
	JumpAround   int     // points on either side that must stay apart
	Quick        float64 // standard errors between first and last third for a closer look
	FasterBefore float64 // a pace so many times as high right before: a cache that fills
	FasterNoise  float64 // noise above which that must stand out
	FewPoints    int     // the least that statistics are done on
	MostPoints   int     // bounds the cost of one window: longer ones are thinned to medians
	Outlier      float64 // deviations from which a point is drawn towards the line
	OutlierAt    float64 // quantile the deviation is read at: spikes must not widen it
	Lost         float64 // share of the growth whose loss at the last point ends the rise
	SlopeMargin  float64 // the slope's error is stated this much wider: points are not independent
	NoiseTop     float64 // quantile of what noise adds to the level
	EndNoise     float64 // noise that the last points must show the rise through
	EndPoints    int     // and how many they are at least
	EndSlope     float64 // share of the slope the last points must have
	// What went before and what comes after.
	Climb      float64 // variance a line must take away for values to climb rather than jump
	HalfLost   float64 // share of the gain below which a leak has fallen back
	FarBelow   float64 // share of the gain below its start from which something else was freed
	LowPoints  int     // readings that must be low: a program that ends frees all in one step
	LevelShare float64 // share of the slope below which the floor is level
	LevelPart  int64   // a pause must last the rise's length divided by this
	Quarter    float64 // part of the growth a quarter must gain to count as rising
	Spread     float64 // deviations of a forecast's interval
	Slack      float64 // share of the steps ahead added to it
}{
	Falls: 0.05, Jump: 8, FirstJump: 1.5, Alike: 0.1, ClockSlip: 0.5, Equal: 0.005, Hidden: 3,
	LateStart: 0.75, Burst: 2, Pause: 4, PauseSteps: 3, OtherGrew: 0.1, StairHeight: 1.05,
	StairRate: 0.7, StairBulge: 0.55, SpikeOver: 4, SpikeHigh: 0.8, BendPoints: 12, BendErrors: 3,
	BendLeast: 0.02, Gaining: 0.9, Stalled: 0.1, StalledRead: 0.4, ReadMost: 0.7, EverErrors: 3,
	EverSlack: 0.5,
	LevelJump: 12, JumpsMany: 5, JumpAround: 5, Quick: 2, FasterBefore: 1.5, FasterNoise: 3,
	FewPoints: 14, MostPoints: 48, Outlier: 2.5, OutlierAt: 0.85, Lost: 0.5, SlopeMargin: 1.1,
	NoiseTop: 0.98, EndNoise: 20, EndPoints: 8, EndSlope: 0.4,
	Climb: 0.4, HalfLost: 0.5, FarBelow: 0.25, LowPoints: 3, LevelShare: 0.25, LevelPart: 8,
	Quarter: 1.0 / 6, Spread: 2.2, Slack: 0.02,
}
