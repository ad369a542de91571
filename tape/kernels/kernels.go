// Package kernels holds what was measured of GPU libraries, in bytes, for Go and for Python: both
// read kernels.json. The probe installs the folder as _memroom_probe/kernels.
package kernels

import (
	"embed"
	"encoding/json"
)

// Python holds the data and the module that reads it.
//
//go:embed *.py kernels.json
var Python embed.FS

// Facts are the measurements. cuDNN keeps DropoutState for random numbers from the first call on,
// and takes RNNLayer of scratch for each layer and direction of a recurrent network.
var Facts = func() (f struct {
	DropoutState int64 `json:"cudnn_dropout_state"`
	RNNLayer     int64 `json:"cudnn_rnn_layer"`
}) {
	data, err := Python.ReadFile("kernels.json")
	if err == nil {
		err = json.Unmarshal(data, &f)
	}
	if err != nil {
		panic("kernels.json is part of the program: " + err.Error())
	}
	return f
}()
