package mapping

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
)

// version hashes what a mapping means: everything that decides a result, in
// one spelling and order. Connections and the pace of epochs are left out.
//
// The first line numbers this encoding: a build that reads the same file in
// another way must count it up.
func version(p *Plan) string {
	h := sha256.New()
	writeFact(h, "mapping", 1)
	writeFact(h, "pipeline", p.Pipeline)
	writeFact(h, "clock", p.Epoch.Clock)
	if p.Epoch.Clock == ClockLog {
		writeFact(h, "step", p.Epoch.Step.Microseconds())
	}
	for _, s := range p.Streams {
		s.describe(h)
	}
	for _, t := range p.Types {
		for _, d := range t.Properties {
			writeFact(h, "property", t.Name, d.Name, uint8(d.Kind), d.LinkTo, d.Windowed)
		}
	}
	for _, put := range p.Puts {
		writeFact(h, "put", put.Type, put.Stream.Name, canonical(put.Where), canonical(put.ID), put.Snapshot)
		for _, v := range put.Values {
			writeFact(h, "set", v.Property, uint8(v.Kind), canonical(v.Value))
		}
	}
	for _, a := range p.Aggregates {
		writeFact(h, "aggregate", a.Type, a.Name, a.Stream.Name, canonical(a.Where), canonical(a.ID), a.Assigner, a.Fused)
		for i, v := range a.Values {
			writeFact(h, "value", v.Name, a.Layout.Funcs[i], canonical(v.Input))
		}
	}
	return hex.EncodeToString(h.Sum(nil))[:16]
}

func (s *Stream) describe(w io.Writer) {
	writeFact(w, "stream", s.Rank, s.Name, s.Topic, "json", s.EachPath)
	writeFact(w, "key", canonical(s.Key), s.PartitionedByKey)
	switch id := s.Identity; {
	case id == nil:
	case id.Sequence != nil:
		writeFact(w, "sequence", canonical(id.Sequence))
	default:
		writeFact(w, "identity", canonical(id.EventID), id.Horizon)
	}
	writeFact(w, "time", canonical(s.EventTime), uint8(s.EventTimeFormat), s.MaxAhead)
	writeFact(w, "progress", s.OutOfOrderness, s.IdleAfter, s.AllowedLateness, s.Halt)
}

// writeFact writes one line; texts are quoted, so that no two facts look alike.
func writeFact(w io.Writer, name string, facts ...any) {
	_, _ = io.WriteString(w, name) // a hash takes everything
	for _, f := range facts {
		if s, ok := f.(fmt.Stringer); ok {
			f = s.String()
		}
		_, _ = fmt.Fprintf(w, " %#v", f)
	}
	_, _ = io.WriteString(w, "\n")
}

func canonical(e *Expr) string {
	if e == nil {
		return ""
	}
	return e.canon
}
