// Package plan predicts the device memory of a training run before it starts: a [Setup] becomes a
// timeline of allocations (package models describes the models, tape runs them without
// numbers), the timeline goes through the exact allocator of package allocsim, and the card's
// constants are added.
//
// Start at [Predict].
package plan
