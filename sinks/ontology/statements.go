package ontology

import "maps"

// The hot statements, prepared on each connection of a Postgres. Values are
// parameters; every lookup is led by an index.
const (
	stmtProgress     = "progress"
	stmtProbe        = "probe"
	stmtLockProgress = "lock_progress"
	stmtSetProgress  = "set_progress"
	stmtFindObjects  = "find_objects"
	stmtNewObjects   = "new_objects"
	stmtPutHeads     = "put_heads"
	stmtFirstHeads   = "first_heads"
	stmtWindowHeads  = "window_heads"
	stmtMoveHeads    = "move_heads"
	stmtReplaceHeads = "replace_heads"
	stmtSetApplied   = "set_applied"
	stmtNewTopics    = "new_topics"
	stmtFindTopics   = "find_topics"
	stmtAddEpochs    = "add_epochs"
	stmtReadBack     = "read_back"
	stmtReadBackPast = "read_back_past"

	copyHeads   = "COPY strom.head (" + headColumns + ") FROM STDIN BINARY"
	copyHistory = "COPY strom.history (" + headColumns + ", recorded_to) FROM STDIN BINARY"
	copyApplied = "COPY strom.applied (object_no, pipeline_id, generation, results_offset) FROM STDIN BINARY"
)

// headColumns is the order in which Go writes an assertion, see assertionRow.
const headColumns = `object_no, property_id, valid_from, valid_to, recorded_from, epoch, lateness,
	place_offset, place_timestamp, pipeline_id, generation, version, place_topic, place_partition, cause, reasserted,
	tie_sequence, tie_offset, tie_rank, tie_partition, tie_index, key_id, value, state`

// readColumns is the order in which Go reads one, see readAssertion.
const readColumns = `h.valid_from, h.valid_to, h.recorded_from, h.epoch, h.lateness,
	h.place_offset, h.place_timestamp, h.generation, h.version, h.place_topic, h.place_partition, h.cause, h.reasserted,
	h.tie_sequence, h.tie_offset, h.tie_rank, h.tie_partition, h.tie_index, h.key_id, h.value, h.state`

func statements() map[string]string {
	all := readStatements()
	maps.Copy(all, writeStatements())
	return all
}

func readStatements() map[string]string {
	const progress = `SELECT partition, epoch, recorded, results_offset, under_way, seen::text FROM strom.progress
		WHERE pipeline_id = $1::int4 AND generation = $2::int4`
	return map[string]string{
		stmtProgress: progress,
		stmtProbe: `SELECT g.partition, g.epoch, g.recorded, g.results_offset, g.under_way, g.seen::text, h.horizon
			FROM strom.progress g JOIN strom.pipeline_horizon h ON h.pipeline_id = g.pipeline_id
			WHERE g.pipeline_id = $1::int4 AND g.generation = $2::int4`,
		stmtLockProgress: progress + ` AND partition = ANY ($3::int4[]) ORDER BY partition FOR UPDATE`,

		stmtFindObjects: `SELECT u.n, o.object_no, a.generation, a.results_offset
			FROM unnest($2::int4[], $3::text[], $4::int4[]) AS u (type_id, id, n)
			JOIN strom.object o ON o.type_id = u.type_id AND o.id = u.id
			LEFT JOIN strom.applied a ON a.object_no = o.object_no AND a.pipeline_id = $1::int4`,

		stmtPutHeads: `SELECT u.n, ` + readColumns + `
			FROM unnest($1::int8[], $2::int4[], $3::timestamptz[], $4::int4[]) AS u (object_no, property_id, at, n)
			CROSS JOIN LATERAL (SELECT * FROM strom.head h
				WHERE h.object_no = u.object_no AND h.property_id = u.property_id AND h.valid_from <= u.at
				ORDER BY h.valid_from DESC LIMIT 1) h`,
		stmtFirstHeads: `SELECT u.n, ` + readColumns + `
			FROM unnest($1::int8[], $2::int4[], $3::int4[]) AS u (object_no, property_id, n)
			CROSS JOIN LATERAL (SELECT * FROM strom.head h
				WHERE h.object_no = u.object_no AND h.property_id = u.property_id
				ORDER BY h.valid_from LIMIT 1) h`,
		stmtWindowHeads: `SELECT u.n, ` + readColumns + `
			FROM unnest($1::int8[], $2::int4[], $3::timestamptz[], $4::timestamptz[], $5::int4[])
				AS u (object_no, property_id, valid_from, valid_to, n)
			JOIN strom.head h ON h.object_no = u.object_no AND h.property_id = u.property_id
				AND h.valid_from = u.valid_from AND h.valid_to = u.valid_to`,

		stmtFindTopics: `SELECT t.topic_id, t.name FROM strom.topic t`,

		stmtReadBack: `SELECT u.ref, u.slot, h.version, h.cause, h.value, h.state
			FROM unnest($1::int4[], $2::text[], $3::int4[], $4::timestamptz[], $5::timestamptz[], $6::int4[], $7::int4[])
				AS u (type_id, id, property_id, valid_from, valid_to, ref, slot)
			JOIN strom.object o ON o.type_id = u.type_id AND o.id = u.id
			JOIN strom.head h ON h.object_no = o.object_no AND h.property_id = u.property_id
				AND h.valid_from = u.valid_from AND h.valid_to = u.valid_to`,
		stmtReadBackPast: `SELECT u.ref, u.slot, h.version, h.cause, h.value, h.state
			FROM unnest($1::int4[], $2::text[], $3::int4[], $4::timestamptz[], $5::timestamptz[], $6::int4[], $7::int4[], $8::timestamptz[])
				AS u (type_id, id, property_id, valid_from, valid_to, ref, slot, at)
			JOIN strom.object o ON o.type_id = u.type_id AND o.id = u.id
			JOIN strom.assertion_row h ON h.object_no = o.object_no AND h.property_id = u.property_id
				AND h.valid_from = u.valid_from AND h.valid_to = u.valid_to
				AND h.recorded_from <= u.at AND h.recorded_to > u.at`,
	}
}

func writeStatements() map[string]string {
	return map[string]string{
		stmtSetProgress: `UPDATE strom.progress g
			SET epoch = u.epoch, recorded = u.recorded, results_offset = u.results_offset,
				under_way = u.under_way, seen = u.seen::jsonb
			FROM unnest($3::int4[], $4::int8[], $5::timestamptz[], $6::int8[], $7::int8[], $8::text[])
				AS u (partition, epoch, recorded, results_offset, under_way, seen)
			WHERE g.pipeline_id = $1::int4 AND g.generation = $2::int4 AND g.partition = u.partition`,
		stmtNewObjects: `INSERT INTO strom.object (type_id, id)
			SELECT u.type_id, u.id FROM unnest($1::int4[], $2::text[]) AS u (type_id, id)
			ON CONFLICT DO NOTHING`,
		stmtMoveHeads: `UPDATE strom.head h
			SET valid_to = u.valid_to, recorded_from = u.recorded_from, epoch = u.epoch,
				generation = u.generation, cause = u.cause, reasserted = u.reasserted
			FROM unnest($1::int8[], $2::int4[], $3::timestamptz[], $4::timestamptz[],
					$5::timestamptz[], $6::timestamptz[], $7::int8[], $8::int4[], $9::int2[], $10::bool[])
				AS u (object_no, property_id, valid_from, was_to, valid_to, recorded_from, epoch, generation, cause, reasserted)
			WHERE h.object_no = u.object_no AND h.property_id = u.property_id
				AND h.valid_from = u.valid_from AND h.valid_to = u.was_to`,
		stmtReplaceHeads: `UPDATE strom.head h
			SET valid_to = u.valid_to, recorded_from = u.recorded_from, epoch = u.epoch, lateness = u.lateness,
				place_offset = u.place_offset, place_timestamp = u.place_timestamp, pipeline_id = u.pipeline_id,
				generation = u.generation, version = u.version, place_topic = u.place_topic,
				place_partition = u.place_partition, cause = u.cause, reasserted = u.reasserted,
				tie_sequence = u.tie_sequence, tie_offset = u.tie_offset, tie_rank = u.tie_rank,
				tie_partition = u.tie_partition, tie_index = u.tie_index, key_id = u.key_id,
				value = u.value, state = u.state
			FROM unnest($1::int8[], $2::int4[], $3::timestamptz[], $4::timestamptz[], $5::timestamptz[], $6::int8[], $7::int8[],
					$8::int8[], $9::timestamptz[], $10::int4[], $11::int4[], $12::int4[], $13::int4[], $14::int4[], $15::int2[], $16::bool[],
					$17::int8[], $18::int8[], $19::int4[], $20::int4[], $21::int4[], $22::int8[], $23::text[], $24::bytea[], $25::timestamptz[])
				AS u (` + headColumns + `, was_to)
			WHERE h.object_no = u.object_no AND h.property_id = u.property_id
				AND h.valid_from = u.valid_from AND h.valid_to = u.was_to`,
		stmtSetApplied: `UPDATE strom.applied a SET generation = $2::int4, results_offset = u.results_offset
			FROM unnest($3::int8[], $4::int8[]) AS u (object_no, results_offset)
			WHERE a.object_no = u.object_no AND a.pipeline_id = $1::int4`,
		stmtNewTopics: `INSERT INTO strom.topic (name) SELECT unnest($1::text[]) ON CONFLICT DO NOTHING`,
		stmtAddEpochs: `INSERT INTO strom.epoch (pipeline_id, generation, epoch, recorded)
			SELECT $1::int4, $2::int4, u.epoch, u.recorded FROM unnest($3::int8[], $4::timestamptz[]) AS u (epoch, recorded)
			ON CONFLICT DO NOTHING`,
	}
}
