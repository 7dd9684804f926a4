package gen

import (
	"garboard/tools/conformance/internal/ops"
)

// fuzz sends random bytes to a method whose effects, if the bytes happen to parse, are the same on both servers.
func (g *Generator) fuzz() Step {
	payload := make([]byte, 1+g.dice.IntN(16))
	for i := range payload {
		payload[i] = byte(g.dice.IntN(256))
	}
	if g.chance(60) {
		// A plausible first field makes the bytes get further.
		payload = append(ops.Bytes(1, g.key()), payload...)
	}
	method := pick(g, []string{"KV/Range", "KV/Put", "KV/DeleteRange", "Maintenance/HashKV", "Lease/LeaseTimeToLive"})
	return Step{Op: &ops.Raw{Method: "/etcdserverpb." + method, Payload: payload, Label: "random bytes"}}
}
