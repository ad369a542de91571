// Package remedy is the catalogue of cures: what can be changed so that a training job needs less
// memory.
//
// A [Remedy] is data plus a rewrite. It knows which walls it helps against, when it is already on,
// what it costs in speed, whether it changes the mathematics and what a user would type in their
// own framework. It knows no bytes: the caller runs the engine on a [Setup] (or a timeline) before
// and after the rewrite and subtracts. Where there is neither, the saving is unknown and said to
// be.
//
// Start at [Catalogue]; a caller with a job in hand asks each remedy [Remedy.For].
package remedy
