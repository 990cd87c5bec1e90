package metrics

// The labels. What a metric is labelled with beside the pipeline stands in its
// definition.
const (
	labelPipeline  = "pipeline"
	labelStage     = "stage"
	labelPartition = "partition"
	labelStream    = "stream"
	labelOperation = "operation"
	labelVersion   = "version"
)

// Kind is the type of a metric, as Prometheus calls it.
type Kind string

// The kinds.
const (
	Gauge     Kind = "gauge"
	Counter   Kind = "counter"
	Histogram Kind = "histogram"
)

// Definition is one metric. All have the label pipeline, and those named here.
type Definition struct {
	Name   string
	Kind   Kind
	Labels []string
	Help   string
}

// The names.
const (
	buildInfo       = "strom_build_info"
	ready           = "strom_ready"
	coordinator     = "strom_coordinator"
	rebalances      = "strom_rebalances_total"
	takeoverSeconds = "strom_takeover_duration_seconds"
	takeoverFailed  = "strom_takeover_failures_total"

	announcedEpoch    = "strom_announced_epoch"
	announcedRecorded = "strom_announced_recorded_timestamp_seconds"
	announcementAge   = "strom_announcement_age_seconds"
	sourcesHeld       = "strom_sources_held"
	watermark         = "strom_watermark_timestamp_seconds"
	watermarkLag      = "strom_watermark_lag_seconds"

	horizonEpoch    = "strom_horizon_epoch"
	horizonRecorded = "strom_horizon_recorded_timestamp_seconds"
	horizonAge      = "strom_horizon_age_seconds"
	horizonHolder   = "strom_horizon_holder"
	appliedEpoch    = "strom_sink_applied_epoch"
	ontologyUp      = "strom_ontology_up"

	sinkSeconds = "strom_sink_batch_duration_seconds"
	sinkRows    = "strom_sink_rows_total"
	sinkRetries = "strom_sink_retries_total"

	commitSeconds = "strom_commit_duration_seconds"
	commitWait    = "strom_commit_wait_seconds"
	commitRecords = "strom_commit_records_total"

	taskEpoch        = "strom_task_committed_epoch"
	taskWatermark    = "strom_task_watermark_timestamp_seconds"
	taskWatermarkLag = "strom_task_watermark_lag_seconds"
	taskLag          = "strom_task_lag_records"
	taskIdle         = "strom_task_idle"
	taskHalted       = "strom_task_halted"
	taskPaused       = "strom_task_paused"
	taskParked       = "strom_task_parked_windows"
	taskQueue        = "strom_task_queue_bytes"
	taskStore        = "strom_task_store_bytes"
	taskChangelog    = "strom_task_changelog_offset"

	records         = "strom_records_total"
	events          = "strom_events_total"
	repeats         = "strom_repeats_total"
	filtered        = "strom_filtered_total"
	deadLetters     = "strom_dead_letters_total"
	onTime          = "strom_on_time_total"
	corrections     = "strom_corrections_total"
	lateCorrections = "strom_late_corrections_total"
)

// Definitions lists every metric of Strom's own.
func Definitions() []Definition {
	stage := []string{labelStage}
	task := []string{labelStage, labelPartition}
	stream := []string{labelStream}
	return []Definition{
		{buildInfo, Gauge, []string{labelVersion}, "1, with the version of the program."},
		{ready, Gauge, nil, "1: this replica does its part, or stands by; 0: it does not, /readyz says why."},
		{coordinator, Gauge, nil, "1: this replica announces the barriers."},
		{rebalances, Counter, stage, "Rebalances of a group while this replica was in it."},
		{takeoverSeconds, Histogram, stage, "Time to take over tasks: from the assignment until they run."},
		{takeoverFailed, Counter, stage, "Take-overs that failed and were tried again."},

		{announcedEpoch, Gauge, nil, "Newest epoch that was announced."},
		{announcedRecorded, Gauge, nil, "Recorded time of that epoch, Unix seconds."},
		{announcementAge, Gauge, nil, "Time since it was announced."},
		{sourcesHeld, Gauge, nil, "1: sources take no input, too many late events wait for their read-back."},
		{watermark, Gauge, stream, "Announced watermark of a stream, Unix seconds; absent before the first."},
		{watermarkLag, Gauge, stream, "How far it is behind the clock on the wall."},

		{horizonEpoch, Gauge, nil, "Oldest epoch that a results partition has applied to the ontology."},
		{horizonRecorded, Gauge, nil, "Safe horizon, Unix seconds; absent before the first complete epoch."},
		{horizonAge, Gauge, nil, "Time since the horizon's epoch was announced."},
		{horizonHolder, Gauge, task, "1: the horizon waits for this; absent: for nobody."},
		{appliedEpoch, Gauge, []string{labelPartition}, "Epoch that a results partition has applied."},
		{ontologyUp, Gauge, nil, "1: the ontology's database has answered when it was asked last."},

		{sinkSeconds, Histogram, nil, "Time to apply a batch to the ontology, retries included."},
		{sinkRows, Counter, nil, "Results that this replica has applied to the ontology."},
		{sinkRetries, Counter, []string{labelOperation}, "Calls of the ontology's database that were tried again."},

		{commitSeconds, Histogram, stage, "Time to commit an epoch: the transaction and the local stores."},
		{commitWait, Histogram, stage, "Time from the first task's hand-over to the beginning of the commit."},
		{commitRecords, Counter, stage, "Records written in these transactions."},

		{taskEpoch, Gauge, task, "Epoch that the task has committed."},
		{taskWatermark, Gauge, task, "Watermark of a source task's partition, Unix seconds; absent before its first event."},
		{taskWatermarkLag, Gauge, task, "How far it is behind the clock on the wall."},
		{taskLag, Gauge, task, "Offsets between the last acknowledged barrier and the end of the input."},
		{taskIdle, Gauge, task, "1: the partition is idle and holds no watermark back."},
		{taskHalted, Gauge, task, "1: the partition has halted, strom status says why."},
		{taskPaused, Gauge, task, "1: the partition is not fetched, its queue is full."},
		{taskParked, Gauge, task, "Windows with late events that wait for their read-back."},
		{taskQueue, Gauge, task, "Records that wait in front of the task."},
		{taskStore, Gauge, task, "Local state on disk."},
		{taskChangelog, Gauge, task, "Offset of the changelog that the local state reflects."},

		{records, Counter, task, "Records read."},
		{events, Counter, task, "Events accepted."},
		{repeats, Counter, task, "Events discarded as known repeats."},
		{filtered, Counter, task, "Events that no object and no aggregate wanted."},
		{deadLetters, Counter, task, "Records rejected."},
		{onTime, Counter, task, "Contributions to open windows."},
		{corrections, Counter, task, "Contributions to closed windows within the allowed lateness."},
		{lateCorrections, Counter, task, "Contributions later still: read back and corrected."},
	}
}

// observed names those that are not read from a snapshot.
func observed(name string) bool {
	switch name {
	case takeoverSeconds, takeoverFailed, sinkSeconds, sinkRows, sinkRetries, commitSeconds, commitWait, commitRecords:
		return true
	}
	return false
}
