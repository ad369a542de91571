package engine

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"memroom/event"
	"memroom/trial"
)

// saying is a rehearser whose answers are scripted.
type saying func(p trial.Params) (trial.Rehearsed, time.Duration, error)

func (s saying) Rehearse(ctx context.Context, _ int, p trial.Params) (trial.Rehearsed, error) {
	said, took, err := s(p)
	select {
	case <-time.After(took):
		return said, err
	case <-ctx.Done():
		return said, ctx.Err()
	}
}

// TestTheSearcherHearsOfMisfitsFirst: settings whose tensors cannot fit never run. A program that
// cannot be rehearsed, or takes too long for it, runs all the same.
func TestTheSearcherHearsOfMisfitsFirst(t *testing.T) {
	size := func(p trial.Params) event.Bytes { return event.Bytes(knob(p, "bs")) * 100 * event.MiB }
	for name, c := range map[string]struct {
		says       saying
		infeasible int
	}{
		"rehearsed": {func(p trial.Params) (trial.Rehearsed, time.Duration, error) {
			return trial.Rehearsed{Tensors: size(p)}, time.Second, nil
		}, 2},
		"not a training": {func(trial.Params) (trial.Rehearsed, time.Duration, error) {
			return trial.Rehearsed{}, time.Second, errors.New("no torch")
		}, 0},
		"too slow": {func(p trial.Params) (trial.Rehearsed, time.Duration, error) {
			return trial.Rehearsed{Tensors: size(p)}, time.Hour, nil
		}, 0},
		"one setting breaks": {func(p trial.Params) (trial.Rehearsed, time.Duration, error) {
			if knob(p, "bs") == 64 {
				return trial.Rehearsed{}, time.Second, errors.New("64 is no multiple of 3")
			}
			return trial.Rehearsed{Tensors: size(p)}, time.Second, nil
		}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			dir, err := Create(t.TempDir(), Spec{Name: "s", Command: []string{"true"},
				Space: spaceOf(t, "bs", "choice(1,2,32,64)"), Method: trial.Grid, Samples: 4,
				Rehearse: time.Minute,
				Options:  trial.Options{Metric: "loss", Mode: "min", CPUs: 1}})
			if err != nil {
				t.Fatal(err)
			}
			synctest.Test(t, func(t *testing.T) {
				e, err := Load(dir)
				if err != nil {
					t.Fatal(err)
				}
				defer e.Close()
				var ran []int
				e.Backend = newScripted(2*event.GiB, func(l trial.Launch) curve {
					ran = append(ran, l.Trial)
					return curve{2, shapeOf(0, 100*event.MiB)}
				})
				e.Rehearser = c.says
				if err := e.Run(context.Background()); err != nil {
					t.Fatal(err)
				}
				n := e.Study.Count()
				if n[trial.Infeasible] != c.infeasible || n[trial.Finished] != 4-c.infeasible {
					t.Errorf("states %v, want %d infeasible", n, c.infeasible)
				}
				for _, one := range e.Study.Trials {
					if one.State == trial.Infeasible && slices.Contains(ran, one.ID) {
						t.Errorf("trial %d ran", one.ID)
					}
				}
				synctest.Wait()
			})
		})
	}
}
