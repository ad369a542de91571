package cli

import (
	"encoding/json"
	"fmt"
	"io"

	"memroom/event"
	"memroom/trial"
)

// forecastWord asks what a trial will need, for memroom.ray: one model of memory learns for every
// engine.
const forecastWord = "_forecast"

// forecastQuestion is one JSON object on standard input.
type forecastQuestion struct {
	Seen []struct {
		Params  trial.Params `json:"params"`
		Bytes   event.Bytes  `json:"bytes"`
		AtLeast bool         `json:"at_least"`
	} `json:"seen"`
	Params trial.Params `json:"params"`
	Fixed  bool         `json:"fixed"` // a reservation cannot grow
}

func forecast(streams Streams) error {
	var q forecastQuestion
	if err := json.NewDecoder(io.LimitReader(streams.In, 64<<20)).Decode(&q); err != nil {
		return fmt.Errorf("read the record of earlier trials: %w", err)
	}
	m := trial.Memory{Fixed: q.Fixed}
	for _, o := range q.Seen {
		m.Learn(trial.Observation{Params: o.Params, Bytes: o.Bytes, AtLeast: o.AtLeast})
	}
	f := m.Forecast(q.Params)
	return json.NewEncoder(streams.Out).Encode(struct {
		Bytes event.Bytes `json:"bytes"`
		Known bool        `json:"known"`
		Why   string      `json:"why"`
	}{f.Bytes, f.Known, f.Why})
}
