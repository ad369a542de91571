package supervise

import "memroom/diagnose"

// Now is the part of the progress that a live view shows and that is not in the samples.
type Now struct {
	Forecasts []diagnose.Prediction       `json:"forecasts,omitempty"`
	Accounts  map[string]diagnose.Account `json:"accounts,omitempty"`
	Host      *diagnose.Account           `json:"host_account,omitempty"`
}
