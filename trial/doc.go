// Package trial thinks about hyperparameter trials: search spaces and samplers, early stopping, how
// much memory a trial will need, which trials run side by side, and what follows when one runs out.
//
// Everything here is a value or a state machine: events in, decisions out. Package trial/engine
// writes the events down and carries the decisions out on a [Backend].
package trial
