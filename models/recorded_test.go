package models_test

import (
	"math"
	"testing"

	"memroom/testenv/recorded"
)

// TestModelsAskForWhatTheCardWasAsked: the parameters and every request for memory of real training
// on an H200, in order.
func TestModelsAskForWhatTheCardWasAsked(t *testing.T) {
	for _, r := range recorded.Plain(t) {
		t.Run(r.ID, func(t *testing.T) {
			model := r.Model(t)
			if got := model.Root.Count(); got != r.Params {
				t.Errorf("%d parameters, want %d", got, r.Params)
			}
			if wrong := recorded.Difference(r.Trained(model), r.Asked(t)); wrong != "" {
				t.Error(wrong)
			}
		})
	}
}

// TestPeaksOfVision: parameters of convolutional and recurrent networks, and the allocated peak of
// three steps on an H200 without cuDNN's workspaces, whose sizes package plan brings. Where they
// decide the peak, more is allowed.
func TestPeaksOfVision(t *testing.T) {
	workspaces := map[string]bool{"p-tv-mobilenet_v2-amp_bf16": true,
		"p-tv-efficientnet_b0-amp_bf16": true, "d-efficientnet_b3-b16-i300-amp_bf16": true,
		"c-mobilenet_v3_large-b64-amp_bf16": true, "d-resnet50-b40-i256-fp32": true}
	for _, r := range recorded.Vision(t) {
		t.Run(r.ID, func(t *testing.T) {
			model := r.Model(t)
			if got := model.Root.Count(); got != r.Params {
				t.Errorf("%d parameters, want %d", got, r.Params)
			}
			most := 0.015
			if workspaces[r.ID] {
				most = 0.045
			}
			got := r.TrainedPeak(model)
			if off := float64(got)/float64(r.Peak) - 1; math.Abs(off) > most {
				t.Errorf("peak %d, measured %d: %+.2f %%", got, r.Peak, 100*off)
			}
		})
	}
}
