package driver

import "encoding/json"

// wireSpec is a spec as it travels to the monitor. JSON has no room for bytes that are no UTF-8,
// and paths and arguments may hold any: they travel as bytes.
type wireSpec struct {
	plainSpec
	Map         []byte   `json:"map,omitempty"`
	ResumeWith  []byte   `json:"resume_with,omitempty"`
	Checkpoints []byte   `json:"checkpoints,omitempty"`
	Memory      []byte   `json:"memory,omitempty"`
	Command     [][]byte `json:"command,omitempty"`
}

type plainSpec Spec // without its methods

// MarshalJSON keeps every byte.
func (s Spec) MarshalJSON() ([]byte, error) {
	wire := wireSpec{plainSpec: plainSpec(s), Map: []byte(s.Map), ResumeWith: []byte(s.ResumeWith),
		Checkpoints: []byte(s.Checkpoints), Memory: []byte(s.Memory)}
	for _, word := range s.Command {
		wire.Command = append(wire.Command, []byte(word))
	}
	return json.Marshal(wire)
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (s *Spec) UnmarshalJSON(data []byte) error {
	var wire wireSpec
	if err := json.Unmarshal(data, &wire); err != nil {
		return err
	}
	*s = Spec(wire.plainSpec)
	s.Map, s.ResumeWith = string(wire.Map), string(wire.ResumeWith)
	s.Checkpoints, s.Memory = string(wire.Checkpoints), string(wire.Memory)
	s.Command = nil
	for _, word := range wire.Command {
		s.Command = append(s.Command, string(word))
	}
	return nil
}
