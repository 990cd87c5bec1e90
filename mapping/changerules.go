package mapping

// rule is one row of the table of classes in docs/mapping.md: how a kind of
// change is classed, and why.
type rule struct {
	// change names the kind of change, with the keys of the file.
	change string
	class  Class
	// why says what the class comes of and what the user gets, do what is to
	// be done.
	why, do string
}

// ruleID names a rule.
type ruleID int

// The rules, in the order of the file and of the table.
const (
	rulePipeline ruleID = iota
	ruleConnection
	ruleInterval
	ruleClockToWall
	ruleClockToLog
	ruleStep
	ruleNewStream
	ruleNewStreamLog
	ruleStreamRemoved
	ruleStreamPlace
	ruleTopic
	ruleEvents
	rulePartitionedBy
	rulePartitionedByFused
	ruleIdentityNew
	ruleIdentityRemoved
	ruleEventID
	ruleHorizon
	ruleEventTime
	ruleMaxAhead
	ruleProgress
	ruleAllowedLateness
	ruleOnError
	ruleObject
	ruleNewProperty
	ruleNewAggregate
	rulePropertyRemoved
	rulePropertyValue
	ruleKind
	ruleAggregateRemoved
	ruleAggregate
	ruleNewValue
	ruleValueRemoved
	ruleValue
	rules // how many there are
)

// The advice that several rules share.
const (
	doReplay  = "replay, under another pipeline name"
	doRestart = "restart the replicas with the new file"
	doNothing = "nothing more"
)

// ruleTable gives every rule.
func ruleTable() [rules]rule {
	var t [rules]rule
	addRulesOfThePipeline(&t)
	addRulesOfStreams(&t)
	addRulesOfIdentityAndTime(&t)
	addRulesOfObjects(&t)
	addRulesOfAggregates(&t)
	return t
}

func addRulesOfThePipeline(t *[rules]rule) {
	t[rulePipeline] = rule{
		"another `pipeline` name", Refused,
		"it is another pipeline, with topics and state of its own: there is nothing to compare",
		"compare files of one pipeline; a new pipeline needs no comparison",
	}
	t[ruleConnection] = rule{
		"anything of `kafka` or `ontology`", InPlace,
		"how to connect decides no result, as long as it leads to the same Kafka cluster and the same database",
		doRestart,
	}
	t[ruleInterval] = rule{
		"`epoch.interval`", InPlace,
		"the pace of barriers decides when results are visible, not what they are",
		doRestart,
	}
	t[ruleClockToWall] = rule{
		"`epoch.clock`: from `log` to `wall`", InPlace,
		"recorded time goes on by the clock, which is ahead of the log; what was recorded stays, and two runs over one log are equal no longer",
		"be sure of it: there is no way back",
	}
	t[ruleClockToLog] = rule{
		"`epoch.clock`: from `wall` to `log`", Refused,
		"recorded time never goes back, and the log's time is behind the clock's",
		"keep `clock: wall`, or begin another pipeline under `clock: log`",
	}
	t[ruleStep] = rule{
		"`epoch.step` under `clock: log`", InPlace,
		"recorded time goes on in the new steps; what was recorded in the old ones stays, so a later run over the whole log has other recorded times",
		doNothing,
	}
}

func addRulesOfStreams(t *[rules]rule) {
	t[ruleNewStream] = rule{
		"a new stream, and new properties and aggregates over it, under `clock: wall`", InPlace,
		"nothing of its topic has been read: it is read from its start, as far as it still reaches; all of it is recorded at the barrier or later",
		"put it behind the streams that are there",
	}
	t[ruleNewStreamLog] = rule{
		"the same under `clock: log`", InPlace,
		"it is read from its start; its history is recorded at the barrier or later, and not with the time that it had in the log, where a run over the whole log would record it",
		"put it behind the streams that are there; where recorded time has to be that of the log: " + doReplay,
	}
	t[ruleStreamRemoved] = rule{
		"a removed stream", InPlace,
		"its topic is read no further from the barrier on; what is believed of it stays believed, windows that are open are never published",
		"remove only the last one; leave another declared, with nothing that reads it, so that those behind it keep their places; to read the topic again later, give the stream another name",
	}
	t[ruleStreamPlace] = rule{
		"the place of a stream among the streams", ByReplay,
		"the place decides between events of one time, and is stored with every assertion: before and after the barrier ties would fall otherwise",
		"keep the order, new streams last; else " + doReplay,
	}
	t[ruleTopic] = rule{
		"`topic`", ByReplay,
		"offsets, watermarks and the places of events are those of the old topic; a replay knows only what the new one holds",
		doReplay,
	}
	t[ruleEvents] = rule{
		"`each`, `key`", ByReplay,
		"which events there are, and which belong together, would differ before and after the barrier: a record without its key is a dead letter",
		doReplay,
	}
	t[rulePartitionedBy] = rule{
		"`partitioned_by`, where no aggregate has the stream's key for its id", InPlace,
		"no state moves: from the barrier on records are checked, or no longer checked, for their partition",
		"before declaring it, be sure that the producer keeps to it: a wrong record halts its partition",
	}
	t[rulePartitionedByFused] = rule{
		"`partitioned_by`, where an aggregate has the stream's key for its id", ByReplay,
		"the aggregate is counted in another stage with other topics; its open windows and totals lie in the old one",
		doReplay,
	}
}

func addRulesOfIdentityAndTime(t *[rules]rule) {
	t[ruleIdentityNew] = rule{
		"a new `identity`", InPlace,
		"repeats are found among the events from the barrier on; a repeat of an earlier event still counts again",
		"where the past has to be free of repeats as well: " + doReplay,
	}
	t[ruleIdentityRemoved] = rule{
		"a removed `identity`", ByReplay,
		"the repeats that were discarded would be missing beside those that count now; and the known ids would stay in the state, where nothing drops them",
		doReplay,
	}
	t[ruleEventID] = rule{
		"`identity`: `event_id`, `sequence`", ByReplay,
		"what is known was made by the old expression: repeats would be missed, and new events taken for old ones",
		doReplay,
	}
	t[ruleHorizon] = rule{
		"`identity.horizon`", ByReplay,
		"known ids are stored in buckets of an eighth of the horizon, and would be looked for in the wrong ones",
		doReplay,
	}
	t[ruleEventTime] = rule{
		"`event_time`: `field`, `format`", ByReplay,
		"the times of past events decide their windows, the order of values and the watermark, which never goes back",
		doReplay,
	}
	t[ruleMaxAhead] = rule{
		"`event_time.max_ahead`", InPlace,
		"it holds for the records from the barrier on; what has become a dead letter stays one",
		doNothing,
	}
	t[ruleProgress] = rule{
		"`watermark`: `out_of_orderness`, `idle_after`", InPlace,
		"windows close sooner or later from the barrier on, with the same values in the end; the watermark does not go back, it waits",
		doNothing,
	}
	t[ruleAllowedLateness] = rule{
		"`allowed_lateness`", ByReplay,
		"the state that a longer one wants has been dropped by the old one: a late event would correct a window from nothing; " +
			"the state that only the old one kept would never be dropped under a shorter one",
		doReplay,
	}
	t[ruleOnError] = rule{
		"`on_error`", InPlace,
		"it holds for the records from the barrier on",
		doNothing,
	}
}

func addRulesOfObjects(t *[rules]rule) {
	t[ruleObject] = rule{
		"`from`, `id`, `where`, `mode` of a type with properties", ByReplay,
		"which past events set which object's properties was decided by the old rule, and they are not read again",
		doReplay,
	}
	t[ruleNewProperty] = rule{
		"a new property from a stream that is read already", InPlace,
		"the events from the barrier on set it; those before are not read again, so it is absent until such an event comes",
		"where its past is wanted: " + doReplay,
	}
	t[ruleNewAggregate] = rule{
		"a new aggregate over a stream that is read already", ByReplay,
		"the stream's past has been read, and is not read again: in place it would be empty before the barrier, and the windows open at it too small",
		doReplay,
	}
	t[rulePropertyRemoved] = rule{
		"a removed property", InPlace,
		"nothing sets it from the barrier on; what is believed of it stays believed, and stays this pipeline's",
		"know that its last values stay; to take it up again is a new property",
	}
	t[rulePropertyValue] = rule{
		"`value` of a property", ByReplay,
		"the values that past events set were made by the old expression, and they are not read again",
		doReplay,
	}
	t[ruleKind] = rule{
		"the kind of a property or of an aggregate's value, `to` of a link", Refused,
		"the ontology holds its values under the old kind: this is a migration of the ontology",
		"give the new kind a new name (that is a new property), and remove the old one",
	}
}

func addRulesOfAggregates(t *[rules]rule) {
	t[ruleAggregateRemoved] = rule{
		"a removed aggregate", InPlace,
		"it counts no further from the barrier on: windows that are open are never published, late events that wait for a read-back neither; what was published stays believed and is corrected no more",
		"to take it up again later, give it another name",
	}
	t[ruleAggregate] = rule{
		"`from`, `id`, `where`, `window` of an aggregate", ByReplay,
		"what was counted so far was counted by the old rule, and single events are not kept",
		doReplay,
	}
	t[ruleNewValue] = rule{
		"a new value of an aggregate", ByReplay,
		"the open windows, the totals and what is read back hold nothing of it",
		doReplay,
	}
	t[ruleValueRemoved] = rule{
		"a removed value of an aggregate", ByReplay,
		"the open windows, the totals and what is read back hold its accumulator: they would have another layout",
		doReplay,
	}
	t[ruleValue] = rule{
		"the function of a value, or its input", ByReplay,
		"what was added up so far was made by the old function of the old input",
		doReplay,
	}
}
