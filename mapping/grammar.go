package mapping

import "time"

// The defaults and least values of the grammar; docs/mapping.md gives them too.
const (
	defaultInterval  = 200 * time.Millisecond
	minInterval      = time.Millisecond
	defaultStep      = time.Second
	minStep          = time.Millisecond
	defaultMaxAhead  = 5 * time.Minute
	defaultIdleAfter = time.Minute
	defaultHorizon   = 24 * time.Hour
	minWindow        = time.Millisecond
	maxKeyBytes      = 1024
)

// The keys of every section, in the order in which documents show them.

func topKeys() []string {
	return []string{"pipeline", "kafka", "ontology", "epoch", "streams", "objects"}
}

func kafkaKeys() []string { return []string{"brokers", "tls", "sasl"} }

func tlsKeys() []string { return []string{"ca", "cert", "key", "server_name"} }

func saslKeys() []string { return []string{"mechanism", "username", "password"} }

func secretKeys() []string { return []string{"env", "file"} }

func ontologyKeys() []string { return []string{"postgres", "password"} }

func epochKeys() []string { return []string{"interval", "clock", "step"} }

func streamKeys() []string {
	return []string{
		"topic", "format", "each", "key", "partitioned_by", "identity", "event_time", "watermark",
		"allowed_lateness", "on_error",
	}
}

func identityKeys() []string { return []string{"event_id", "horizon", "sequence"} }

func eventTimeKeys() []string { return []string{"field", "format", "max_ahead"} }

func watermarkKeys() []string { return []string{"out_of_orderness", "idle_after"} }

func objectKeys() []string {
	return []string{"from", "id", "where", "mode", "properties", "aggregates"}
}

func propertyKeys() []string { return []string{"value", "kind", "to"} }

func aggregateKeys() []string { return []string{"from", "where", "id", "window", "values"} }

func windowKeys() []string {
	return []string{"tumbling", "hopping", "every", "offset", "calendar", "zone"}
}

func functionNames() []string {
	return []string{"count", "sum", "min", "max", "avg", "first", "last", "any", "all"}
}

func timeFormats() []string { return []string{"rfc3339", "s", "ms", "us", "ns"} }

func kindList() []string {
	return []string{"text", "integer", "decimal", "boolean", "timestamp", "link"}
}

// laterKeys are keys and values of the whole design that this version does not
// have yet: they get a better answer than "unknown".
func laterKinds() []string { return []string{"money", "geo", "json"} }

func laterFormats() []string { return []string{"json_schema", "avro", "protobuf", "cloudevents"} }

func laterFunctions() []string {
	return []string{"distinct", "quantile", "quantiles", "top_k", "topk"}
}

func laterWindows() []string { return []string{"session"} }
