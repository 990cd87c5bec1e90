package mapping

// What to do about a change that cannot be made in place.
const (
	// A replay would do it; there is none yet.
	doOtherName = "undo it, or give the file another pipeline name: that pipeline reads everything again, and writes properties of other names or types beside the old ones; a replay that does it under the same name is not supported yet"
	doRestart   = "start each replica again with the new file"
)

// ChangeRules is the table of all changes that a mapping can make, in the order
// of the grammar. docs/changes.md shows it, held by a test.
func ChangeRules() []ChangeRule {
	var out []ChangeRule
	for _, rules := range [][]ChangeRule{operationalRules(), streamRules(), objectRules(), aggregateRules()} {
		out = append(out, rules...)
	}
	return out
}

func operationalRules() []ChangeRule {
	const connection = "how to connect, which means nothing for results; it holds for a replica from its start on, without a barrier"
	rules := []ChangeRule{
		{
			"pipeline", actChanged, Refused, "another name is another pipeline: it begins with no state, and the old one does not know of it",
			"compare files of one pipeline; to run both, give their properties different types or names",
		},
		{"kafka.brokers", actChanged, InPlace, connection + "; they must be brokers of the same cluster: local state refuses another one", doRestart},
	}
	for _, key := range []string{"kafka.tls", "kafka.sasl"} {
		rules = append(rules, ChangeRule{key, actAdded, InPlace, connection, doRestart}, ChangeRule{key, actRemoved, InPlace, connection, doRestart})
	}
	for _, key := range []string{
		"kafka.tls.ca", "kafka.tls.cert", "kafka.tls.key", "kafka.tls.server_name",
		"kafka.sasl.mechanism", "kafka.sasl.username", "kafka.sasl.password", "ontology.password",
	} {
		rules = append(rules, ChangeRule{key, actChanged, InPlace, connection, doRestart})
	}
	return append(rules, []ChangeRule{
		{"ontology.postgres", actChanged, InPlace, connection + "; it must be the same database: the sink goes on from the progress that it finds there, and stops where there is none", doRestart},
		{"epoch.interval", actChanged, InPlace, "the pace of barriers decides no result; that of the replica which announces holds, without a barrier", doRestart},
		{"epoch.clock", "changed from log to wall", InPlace, "recorded times are the coordinator's behind the barrier, and never fall; what was recorded before stays. There is no way back", ""},
		{
			"epoch.clock", "changed from wall to log", Refused, "recorded times that the clock gave lie after the log's, and recorded time never goes back",
			"keep clock: wall; to load history in the log's own time begin a pipeline of another name",
		},
		{"epoch.step", "changed with the clock", InPlace, "the step has a meaning under clock: log only", ""},
		{"epoch.step", actChanged, InPlace, "barriers are cut in the new steps from the barrier on; recorded times before it stay", ""},
	}...)
}

func streamRules() []ChangeRule {
	const onward = "it judges what is read behind the barrier; what was read before stays as it was judged"
	return []ChangeRule{
		{"streams", "order changed", ByReplay, "the order of streams breaks ties, and what is stored carries the old places", "add new streams behind the others; or " + doOtherName},
		{"streams.*", actAdded, InPlace, "it is read from the first record that its topic still holds, and its history is recorded behind the barrier", ""},
		{"streams.*", actRemoved, ByReplay, "its windows would stay open for ever, and what it has counted would look as if it went on", doOtherName},
		{"streams.*.topic", actChanged, ByReplay, "the place up to which a stream was read is an offset of the old topic; of the new one it says nothing", "to read the other topic as well add a stream; else " + doOtherName},
		{"streams.*.format", actChanged, ByReplay, "records that were rejected, or read in the old way, would stay so", doOtherName},
		{"streams.*.each", actAdded, ByReplay, "what an event is changes, and with it what was counted", doOtherName},
		{"streams.*.each", actRemoved, ByReplay, "what an event is changes, and with it what was counted", doOtherName},
		{"streams.*.each", actChanged, ByReplay, "what an event is changes, and with it what was counted", doOtherName},
		{"streams.*.key", actChanged, ByReplay, "the order among events of one key, and where aggregates by it are counted, were settled with the old key", doOtherName},
		{"streams.*.partitioned_by", actAdded, ByReplay, "an aggregate by the key is counted elsewhere then, and its open windows would stay behind", doOtherName},
		{"streams.*.partitioned_by", actRemoved, ByReplay, "an aggregate by the key is counted elsewhere then, and its open windows would stay behind", doOtherName},
		{"streams.*.identity", actAdded, ByReplay, "the ids of what was read before are not known: repeats of it would count", doOtherName},
		{"streams.*.identity", actRemoved, ByReplay, "repeats that were discarded would be missing beside those which now count", doOtherName},
		{"streams.*.identity.event_id", actChanged, ByReplay, "what was read before is known by its old ids: repeats of it would count", doOtherName},
		{"streams.*.identity.horizon", actChanged, ByReplay, "ids lie in time buckets as wide as an eighth of the horizon: those that are kept would not be found", doOtherName},
		{"streams.*.event_time.field", actChanged, ByReplay, "windows, validity and the watermark rest on the old times", doOtherName},
		{"streams.*.event_time.format", actChanged, ByReplay, "windows, validity and the watermark rest on the old times", doOtherName},
		{"streams.*.event_time.max_ahead", actChanged, InPlace, onward, ""},
		{"streams.*.watermark.out_of_orderness", actChanged, InPlace, "watermarks follow the new bound behind the barrier; one that was announced never goes back, and no closed window opens", ""},
		{"streams.*.watermark.idle_after", actChanged, InPlace, "it decides when windows close without input, behind the barrier", ""},
		{"streams.*.allowed_lateness", "grown", ByReplay, "state that the new lateness wants is dropped already: a late event would correct a window from nothing", doOtherName},
		{"streams.*.allowed_lateness", "shrunk", ByReplay, "state that the old lateness kept would never be dropped", doOtherName},
		{"streams.*.on_error", actChanged, InPlace, onward, ""},
	}
}

func objectRules() []ChangeRule {
	const mixed = "what events have set keeps the old meaning, and one history would mix the two"
	rules := []ChangeRule{}
	for _, key := range []string{"objects.*.from", "objects.*.id", "objects.*.mode"} {
		rules = append(rules, ChangeRule{key, actChanged, ByReplay, mixed, "set the new meaning under new property names or a new type, which is in place; or " + doOtherName})
	}
	for _, act := range []string{actAdded, actRemoved, actChanged} {
		rules = append(rules, ChangeRule{"objects.*.where", act, ByReplay, mixed, "set the new meaning under a new type, which is in place; or " + doOtherName})
	}
	return append(rules, []ChangeRule{
		{"objects.*.properties.*", actAdded, InPlace, "events that are read behind the barrier set it; those read before do not, so it is absent until such an event comes", "where its past is wanted, " + doOtherName},
		{"objects.*.properties.*", actRemoved, InPlace, "nothing sets it behind the barrier; what is believed stays, open ends too, and is hidden from the views", ""},
		{"objects.*.properties.*.value", actChanged, ByReplay, mixed, "set the new meaning under a new property name, which is in place; or " + doOtherName},
		{"objects.*.properties.*.kind", actChanged, Refused, "a property of the ontology has one kind, and its history is of that: it would have to be migrated", "give the property another name, which is in place"},
		{"objects.*.properties.*.to", actAdded, Refused, "a property of the ontology has one kind, and its history is of that: it would have to be migrated", "give the property another name, which is in place"},
		{"objects.*.properties.*.to", actRemoved, Refused, "a property of the ontology has one kind, and its history is of that: it would have to be migrated", "give the property another name, which is in place"},
		{"objects.*.properties.*.to", actChanged, Refused, "a link of the ontology leads to one type, and its history too: it would have to be migrated", "give the property another name, which is in place"},
	}...)
}

func aggregateRules() []ChangeRule {
	const (
		key     = "objects.*.aggregates.*"
		counted = "open windows hold what was counted in the old way, and closed ones were published so"
		asNew   = "undo it, or count it in a second pipeline: another pipeline name, and another name of the aggregate; it reads everything again. A replay that does it under the same name is not supported yet"
	)
	rules := []ChangeRule{
		{key, "added over a new stream", InPlace, "it counts the stream from its beginning, see there", ""},
		{key, "added over a stream that is read already", ByReplay, "events that were read before would be missing from its windows, the one under way and earlier ones alike", asNew},
		{key, actRemoved, ByReplay, "its open windows and its late events that wait are state: they would never be published", asNew},
	}
	for _, k := range []string{".from", ".id", ".window"} {
		rules = append(rules, ChangeRule{key + k, actChanged, ByReplay, counted, asNew})
	}
	for _, act := range []string{actAdded, actRemoved, actChanged} {
		rules = append(rules, ChangeRule{key + ".where", act, ByReplay, counted, asNew})
	}
	return append(rules,
		ChangeRule{key + ".values.*", actAdded, ByReplay, "open windows hold no accumulator for it, and late events could not be added to closed ones", asNew},
		ChangeRule{key + ".values.*", actRemoved, ByReplay, "open windows hold its accumulator: their layout would be another", asNew},
		ChangeRule{key + ".values.*", actChanged, ByReplay, counted, asNew},
		ChangeRule{
			key + ".values.*", "kind changed", Refused, "a value of an aggregate is a property of the ontology, and its history is of one kind: it would have to be migrated",
			"give the value another name, under another aggregate",
		},
	)
}
