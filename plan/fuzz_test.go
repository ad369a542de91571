package plan

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"memroom/allocsim"
	"memroom/models"
	"memroom/remedy"
)

// FuzzPredict plans models that anybody may have described. An answer or a reason must come, and
// the work must not follow a number in the file.
func FuzzPredict(f *testing.F) {
	for _, text := range []string{
		`{"model_type":"llama","hidden_size":64,"num_hidden_layers":2,"num_attention_heads":4,"vocab_size":100,"intermediate_size":64}`,
		`{"model_type":"gpt2","n_embd":64,"n_layer":2,"n_head":4,"vocab_size":100,"n_positions":64}`,
		`{"model_type":"bert","hidden_size":64,"num_hidden_layers":999999,"num_attention_heads":4,"vocab_size":100,"intermediate_size":64}`,
		`{"model_type":"vit","hidden_size":64,"image_size":1000000,"patch_size":1}`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		config, err := models.ParseConfig(data)
		if err != nil {
			return
		}
		p, err := Predict(Setup{Model: config, Setup: remedy.Setup{Batch: 1, Seq: 8}}, testTarget())
		if err == nil && p.ReservedPeak < p.AllocatedPeak {
			t.Errorf("allocated %s, reserved %s", p.AllocatedPeak, p.ReservedPeak)
		}
	})
}

// FuzzReadRehearsal reads records that a script may have tampered with.
func FuzzReadRehearsal(f *testing.F) {
	f.Add([]byte(record(goodHead, `["t",1,"weights","_to_copy","layers.0"]`, `["a",7,1000,1]`,
		`["m",0,"forward"]`, `["a",8,512,1,3]`, `["f",8]`, `["e"]`, goodEnd)))
	f.Add([]byte(record(goodHead, `["a",1,9223372036854775807,0]`, `["f",1]`, goodEnd)))
	f.Add([]byte(record(goodHead, `["a",1,-1,0]`, `["a",1,1,0]`, goodEnd)))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := ReadRehearsal(bytes.NewReader(data))
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("an error of several lines: %q", err)
			}
			return
		}
		_, _ = r.Predict(Target{Card: DefaultCard(), Alloc: allocsim.DefaultConfig(),
			Torch: "2.11"})
	})
}

// FuzzCalibration reads the record of a card's measurements and plans with what is plausible.
func FuzzCalibration(f *testing.F) {
	f.Add([]byte(`[{"total":85899345920,"sms":132,"capability":90,"context":500000000}]`))
	f.Add([]byte(`[{"total":-1},null]`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var list []*Calibration
		if json.Unmarshal(data, &list) != nil {
			return
		}
		for _, c := range list {
			if c != nil && c.Plausible() {
				target := testTarget()
				target.Calibrate(c)
				c.Merge(c)
			}
		}
	})
}
