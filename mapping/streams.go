package mapping

import (
	"slices"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/forge-platform/strom/formats"
)

func (l *loader) allStreams(top *section) {
	s := top.sub("streams", nil)
	if s == nil {
		return
	}
	if len(s.order) == 0 {
		top.fault("streams", "a pipeline reads at least one stream", "there is no stream")
	}
	topics := map[string]string{}
	for rank, name := range s.order {
		s.nameOf(name, "a stream")
		// A stream with faults is known all the same: what reads it is checked.
		e := &streamEntry{stream: &Stream{Name: name, Rank: int32(rank)}}
		l.streams[name] = e
		l.names = append(l.names, name)
		sub := s.sub(name, streamKeys())
		if sub == nil {
			continue
		}
		l.stream(e, sub)
		if topic := e.stream.Topic; topic != "" {
			if other, taken := topics[topic]; taken {
				sub.fault("topic", "a topic has one stream; tell its events apart with where", "the stream %s reads the topic %s already", other, topic)
			}
			topics[topic] = name
		}
	}
}

func (l *loader) stream(e *streamEntry, s *section) {
	st := e.stream
	if s.require("topic", "name the topic to read, as in topic: "+st.Name) {
		st.Topic, _ = s.text("topic")
		if st.Topic != "" && (!topicName.MatchString(st.Topic) || st.Topic == "." || st.Topic == "..") {
			s.fault("topic", "letters, digits and . _ -, at most 249", "%s is not the name of a topic", quoteShort(st.Topic))
		}
	}
	s.format()
	s.each(e)
	if s.require("key", "name what belongs together, as in key: order_id") {
		st.Key = s.idExpr("key", e)
	}
	st.PartitionedByKey = s.oneOf("partitioned_by", "", "key") == "key"
	if id := s.sub("identity", identityKeys()); id != nil {
		st.Identity = id.identity(e)
	}
	s.eventTime(e)
	st.IdleAfter = defaultIdleAfter.Microseconds()
	if w := s.sub("watermark", watermarkKeys()); w != nil {
		st.OutOfOrderness = w.durationFrom("out_of_orderness", 0, 0).Microseconds()
		st.IdleAfter = w.durationFrom("idle_after", defaultIdleAfter, 0).Microseconds()
	}
	st.AllowedLateness = s.durationFrom("allowed_lateness", 0, 0).Microseconds()
	if v, ok := s.text("on_error"); ok {
		switch v {
		case "dead_letter":
		case "halt":
			s.fault("on_error", "use dead_letter", "halt is not supported by this version yet")
		default:
			s.fault("on_error", l.r.adviseOneOf(v, []string{"dead_letter"}), "%s is not a value of on_error", quoteShort(v))
		}
	}
}

func (s *section) format() {
	v, ok := s.text("format")
	switch {
	case !ok || v == "json":
	case slices.Contains(laterFormats(), v):
		s.fault("format", "use json", "%s is not supported by this version yet", v)
	default:
		s.fault("format", s.r.adviseOneOf(v, []string{"json"}), "%s is not a format", quoteShort(v))
	}
}

func (s *section) each(e *streamEntry) {
	text, ok := s.text("each")
	if !ok {
		return
	}
	path, err := formats.ParsePath(text)
	if err != nil || path.Parent {
		s.fault("each", "write the path of an array, as in items or order.items", "%s is not a path", quoteShort(text))
		return
	}
	e.paths.each = &path
	e.stream.Each, e.stream.EachPath = true, path.String()
}

// identity reads {event_id, horizon} or {sequence}.
func (s *section) identity(e *streamEntry) *Identity {
	out := &Identity{}
	if !s.has("sequence") {
		if s.require("event_id", "name the field that is different in every event, or sequence: the field that counts the events of each key") {
			out.EventID = s.idExpr("event_id", e)
		}
		out.Horizon = s.durationFrom("horizon", defaultHorizon, time.Second).Microseconds()
		return out
	}
	for _, key := range []string{"event_id", "horizon"} {
		if s.has(key) {
			s.faultAtKey(key, "leave it out, or leave sequence out", "%s does not go with sequence", key)
		}
	}
	if !e.stream.PartitionedByKey {
		s.faultAtKey("sequence", "declare partitioned_by: key, where the producer partitions so", "sequence numbers are those of a key, and all events of a key must come in one partition")
	}
	out.Sequence = s.numeric("sequence", s.expr("sequence", e))
	return out
}

// eventTime reads event_time: a field, or {field, format, max_ahead}.
func (s *section) eventTime(e *streamEntry) {
	st := e.stream
	st.MaxAhead = defaultMaxAhead.Microseconds()
	if !s.require("event_time", "name the field that says when the event happened, as in event_time: occurred_at") {
		return
	}
	if s.value["event_time"].Kind == yaml.ScalarNode {
		st.EventTime = s.timeExpr("event_time", e)
		return
	}
	t := s.sub("event_time", eventTimeKeys())
	if t == nil {
		return
	}
	if t.require("field", "name the field that says when the event happened") {
		st.EventTime = t.timeExpr("field", e)
	}
	switch t.oneOf("format", "", timeFormats()...) {
	case "rfc3339":
		st.EventTimeFormat = TimeRFC3339
	case "s":
		st.EventTimeFormat = TimeEpochSeconds
	case "ms":
		st.EventTimeFormat = TimeEpochMillis
	case "us":
		st.EventTimeFormat = TimeEpochMicros
	case "ns":
		st.EventTimeFormat = TimeEpochNanos
	}
	st.MaxAhead = t.durationFrom("max_ahead", defaultMaxAhead, 0).Microseconds()
}

// timeExpr compiles the value of name, which must be a time: a text or a number.
func (s *section) timeExpr(name string, e *streamEntry) *Expr {
	x := s.expr(name, e)
	if x != nil && x.static == typeBool {
		s.fault(name, "a time is a text or a number", "this is a boolean and not a time")
		return nil
	}
	return x
}

// buildDecoder makes the decoder of the fields that the stream's expressions read.
func (e *streamEntry) buildDecoder(r *reader) {
	d, err := formats.NewJSON(e.paths.paths, e.paths.each, formats.JSONOptions{})
	if err != nil {
		r.fault(nil, "streams."+e.stream.Name, "", "%v", err)
		return
	}
	e.stream.Decode = d
}
