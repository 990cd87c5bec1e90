-- The ontology's tables, version 1. Recorded times come from epochs, never
-- from the database's clock. Text is compared bytewise, so that orders and
-- answers do not depend on the locale. -infinity as a recorded time: none yet.

CREATE SCHEMA IF NOT EXISTS ontology;

CREATE TABLE strom.cause (
    cause smallint PRIMARY KEY,
    name  text COLLATE "C" NOT NULL UNIQUE
);
INSERT INTO strom.cause VALUES (0, 'unknown'), (1, 'on_time'), (2, 'provisional'), (3, 'correction'),
    (4, 'late_correction'), (5, 'retraction'), (6, 'settled'), (7, 'replay');

CREATE TABLE strom.pipeline (
    pipeline_id        integer     GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name               text        COLLATE "C" NOT NULL UNIQUE,
    generation         integer     NOT NULL,
    mapping_version    text        COLLATE "C" NOT NULL,
    results_partitions integer     NOT NULL,
    horizon_before     timestamptz NOT NULL DEFAULT '-infinity', -- the horizon that earlier generations reached
    floor              timestamptz NOT NULL DEFAULT '-infinity',
    retired_at         timestamptz
);
COMMENT ON COLUMN strom.pipeline.floor IS 'as-of answers below it are refused; moved by an explicit retention only';

CREATE TABLE strom.progress (
    pipeline_id    integer     NOT NULL REFERENCES strom.pipeline,
    generation     integer     NOT NULL,
    partition      integer     NOT NULL,
    epoch          bigint      NOT NULL DEFAULT 0,
    recorded       timestamptz NOT NULL DEFAULT '-infinity',
    results_offset bigint      NOT NULL DEFAULT 0,
    under_way      bigint      NOT NULL DEFAULT 0,
    seen           jsonb,
    PRIMARY KEY (pipeline_id, generation, partition)
) WITH (fillfactor = 20, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
COMMENT ON TABLE strom.progress IS 'how far each results partition of the writing generation has been applied';

CREATE TABLE strom.epoch (
    pipeline_id integer     NOT NULL,
    generation  integer     NOT NULL,
    epoch       bigint      NOT NULL,
    recorded    timestamptz NOT NULL,
    PRIMARY KEY (pipeline_id, generation, epoch)
);
COMMENT ON TABLE strom.epoch IS 'epochs that wrote something; complete once recorded <= the horizon';

CREATE TABLE strom.object_type (
    type_id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name    text    COLLATE "C" NOT NULL UNIQUE
);

CREATE TABLE strom.property (
    property_id integer  GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    type_id     integer  NOT NULL REFERENCES strom.object_type,
    name        text     COLLATE "C" NOT NULL, -- of an aggregate's value: aggregate.value
    kind        smallint NOT NULL,
    link_to     text     COLLATE "C",
    aggregate   text     COLLATE "C", -- null: put by events
    pipeline_id integer  NOT NULL REFERENCES strom.pipeline, -- who writes it
    hidden      boolean  NOT NULL DEFAULT false, -- no longer declared; its history stays
    UNIQUE (type_id, name)
);

CREATE TABLE strom.topic (
    topic_id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name     text    COLLATE "C" NOT NULL UNIQUE
);

CREATE TABLE strom.object (
    object_no bigint  GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    type_id   integer NOT NULL,
    id        text    COLLATE "C" NOT NULL,
    UNIQUE (type_id, id)
);
COMMENT ON COLUMN strom.object.object_no IS 'stands for the object in the tables; no answer shows it';

CREATE TABLE strom.applied (
    object_no      bigint  NOT NULL,
    pipeline_id    integer NOT NULL,
    generation     integer NOT NULL,
    results_offset bigint  NOT NULL,
    PRIMARY KEY (object_no, pipeline_id)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);
COMMENT ON TABLE strom.applied IS 'the number (generation, results_offset) of the last row applied to an object';

-- The assertions. The columns of both tables are the same, in one order, but
-- for recorded_to; wide ones first, so that no byte is padding.
CREATE TABLE strom.head (
    object_no       bigint      NOT NULL,
    valid_from      timestamptz NOT NULL,
    valid_to        timestamptz NOT NULL, -- infinity: until further notice
    recorded_from   timestamptz NOT NULL,
    epoch           bigint      NOT NULL,
    lateness        bigint      NOT NULL, -- microseconds
    place_offset    bigint      NOT NULL,
    place_timestamp timestamptz NOT NULL,
    property_id     integer     NOT NULL,
    pipeline_id     integer     NOT NULL,
    generation      integer     NOT NULL,
    version         integer     NOT NULL, -- of the window's result; 0: put by an event
    place_topic     integer     NOT NULL,
    place_partition integer     NOT NULL,
    cause           smallint    NOT NULL,
    reasserted      boolean     NOT NULL, -- the rest of an assertion whose valid end moved
    tie_sequence    bigint,               -- the tie: null for windows
    tie_offset      bigint,
    tie_rank        integer,
    tie_partition   integer,
    tie_index       integer,
    key_id          bigint,               -- reserved: the key that value and state are encrypted with
    value           text COLLATE "C",     -- canonical text; null: known to be absent
    state           bytea,                -- accumulator, where the value does not suffice
    PRIMARY KEY (object_no, property_id, valid_from, valid_to),
    CHECK (valid_from < valid_to)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05);
COMMENT ON TABLE strom.head IS 'assertions believed now: one for each fact';

CREATE TABLE strom.history (
    object_no       bigint      NOT NULL,
    valid_from      timestamptz NOT NULL,
    valid_to        timestamptz NOT NULL,
    recorded_from   timestamptz NOT NULL,
    recorded_to     timestamptz NOT NULL, -- equal to recorded_from: superseded within its epoch
    epoch           bigint      NOT NULL,
    lateness        bigint      NOT NULL,
    place_offset    bigint      NOT NULL,
    place_timestamp timestamptz NOT NULL,
    property_id     integer     NOT NULL,
    pipeline_id     integer     NOT NULL,
    generation      integer     NOT NULL,
    version         integer     NOT NULL,
    place_topic     integer     NOT NULL,
    place_partition integer     NOT NULL,
    cause           smallint    NOT NULL,
    reasserted      boolean     NOT NULL,
    tie_sequence    bigint,
    tie_offset      bigint,
    tie_rank        integer,
    tie_partition   integer,
    tie_index       integer,
    key_id          bigint,
    value           text COLLATE "C",
    state           bytea,
    CHECK (valid_from < valid_to),
    CHECK (recorded_from <= recorded_to)
);
CREATE INDEX history_fact ON strom.history (object_no, property_id, valid_from);
CREATE INDEX history_recorded_to ON strom.history (recorded_to);
COMMENT ON TABLE strom.history IS 'assertions believed no longer; rows are inserted and never change';

CREATE FUNCTION strom.refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'a closed assertion never changes' USING ERRCODE = 'ST004';
END $$;
CREATE TRIGGER history_never_changes BEFORE UPDATE ON strom.history
    FOR EACH STATEMENT EXECUTE FUNCTION strom.refuse_change();

-- Every stored row, of heads and history. The parts have no condition of their
-- own, so that PostgreSQL leads the conditions of a question into the indexes.
CREATE VIEW strom.assertion_row AS
SELECT object_no, property_id, valid_from, valid_to, recorded_from, 'infinity'::timestamptz AS recorded_to,
       epoch, lateness, place_offset, place_timestamp, pipeline_id, generation, version, place_topic, place_partition,
       cause, reasserted, tie_sequence, tie_offset, tie_rank, tie_partition, tie_index, key_id, value, state
FROM strom.head
UNION ALL
SELECT object_no, property_id, valid_from, valid_to, recorded_from, recorded_to,
       epoch, lateness, place_offset, place_timestamp, pipeline_id, generation, version, place_topic, place_partition,
       cause, reasserted, tie_sequence, tie_offset, tie_rank, tie_partition, tie_index, key_id, value, state
FROM strom.history;
COMMENT ON VIEW strom.assertion_row IS 'head and history; what lies above the horizon may be there in part';

-- The safe horizon of each pipeline. It is read from the progress, so that two
-- members which complete an epoch at once need not wait for each other.
CREATE VIEW strom.pipeline_horizon AS
SELECT p.pipeline_id, p.name, p.generation, p.floor, p.retired_at,
       greatest(p.horizon_before, (SELECT min(g.recorded) FROM strom.progress g
           WHERE g.pipeline_id = p.pipeline_id AND g.generation = p.generation)) AS horizon
FROM strom.pipeline p;

-- The horizon and the floor of a type (null: of everything): the least horizon
-- and the highest floor of the pipelines that write it. A pipeline that has
-- not completed an epoch yet, or is retired, holds nothing back.
CREATE FUNCTION strom.type_bounds(type_id integer, OUT floor timestamptz, OUT horizon timestamptz)
LANGUAGE sql STABLE AS $$
    SELECT coalesce(max(h.floor), '-infinity'),
           coalesce(min(h.horizon) FILTER (WHERE h.retired_at IS NULL), max(h.horizon), '-infinity')
    FROM strom.pipeline_horizon h
    WHERE h.horizon > '-infinity'
      AND ($1 IS NULL OR EXISTS (SELECT FROM strom.property p
           WHERE p.type_id = $1 AND p.pipeline_id = h.pipeline_id))
$$;

CREATE FUNCTION strom.type_horizon(type_id integer) RETURNS timestamptz
LANGUAGE sql STABLE AS $$ SELECT b.horizon FROM strom.type_bounds($1) b $$;

CREATE FUNCTION strom.type_id(type text) RETURNS integer
LANGUAGE plpgsql STABLE AS $$
DECLARE found integer;
BEGIN
    SELECT t.type_id INTO found FROM strom.object_type t WHERE t.name = type;
    IF found IS NULL THEN
        RAISE EXCEPTION 'unknown object type %', quote_literal(type) USING ERRCODE = 'ST003';
    END IF;
    RETURN found;
END $$;

CREATE FUNCTION strom.horizon(type text DEFAULT NULL) RETURNS timestamptz
LANGUAGE sql STABLE AS $$
    SELECT strom.type_horizon(CASE WHEN type IS NULL THEN NULL ELSE strom.type_id(type) END)
$$;
COMMENT ON FUNCTION strom.horizon IS 'the newest recorded time that can be asked, of a type or of everything';

-- Every assertion version that is final: of the recorded times up to the
-- horizon of its type. recorded_to is infinity for what is believed there.
CREATE VIEW strom.assertion AS
SELECT t.name AS type, o.id, p.name AS property, a.value, a.valid_from, a.valid_to, a.recorded_from,
       CASE WHEN a.recorded_to <= t.horizon THEN a.recorded_to ELSE 'infinity' END AS recorded_to,
       c.name AS cause, a.reasserted, a.version, a.lateness, a.epoch, a.generation, l.name AS pipeline,
       k.name AS topic, a.place_partition AS topic_partition, a.place_offset AS topic_offset,
       a.place_timestamp AS topic_timestamp
FROM strom.assertion_row a
JOIN strom.object o ON o.object_no = a.object_no
JOIN strom.property p ON p.property_id = a.property_id
JOIN (SELECT t.type_id, t.name, strom.type_horizon(t.type_id) AS horizon
      FROM strom.object_type t OFFSET 0) t ON t.type_id = o.type_id
JOIN strom.cause c ON c.cause = a.cause
JOIN strom.pipeline l ON l.pipeline_id = a.pipeline_id
LEFT JOIN strom.topic k ON k.topic_id = a.place_topic
WHERE a.recorded_from <= t.horizon;

-- What was believed at a recorded time: of every valid interval, or at one
-- valid instant; of every object of the type, or of one. It is planned for each
-- question, as conditions that are not asked for fall away.
CREATE FUNCTION strom.as_of(type text, recorded timestamptz, valid timestamptz DEFAULT NULL, object_id text DEFAULT NULL)
RETURNS TABLE (id text, property text, value text, valid_from timestamptz, valid_to timestamptz,
               recorded_from timestamptz, cause text, version integer)
LANGUAGE plpgsql STABLE SET plan_cache_mode = force_custom_plan AS $$
#variable_conflict use_column
DECLARE
    asked  CONSTANT timestamptz := recorded;
    at     CONSTANT timestamptz := valid;
    wanted CONSTANT text := object_id;
    asked_type CONSTANT integer := strom.type_id(as_of.type);
    bounds record;
BEGIN
    SELECT b.floor, b.horizon INTO bounds FROM strom.type_bounds(asked_type) b;
    IF asked > bounds.horizon THEN
        RAISE EXCEPTION 'recorded time % lies above the safe horizon %', asked, bounds.horizon
            USING ERRCODE = 'ST001', HINT = 'later epochs are not complete yet: ask for strom.horizon(type) or earlier, or wait';
    END IF;
    IF asked < bounds.floor THEN
        RAISE EXCEPTION 'recorded time % lies below the floor %', asked, bounds.floor
            USING ERRCODE = 'ST002', HINT = 'the history before the floor was removed by a retention';
    END IF;
    RETURN QUERY
    SELECT o.id, p.name, b.value, b.valid_from, b.valid_to, b.recorded_from, c.name, b.version
    FROM strom.assertion_row b
    JOIN strom.object o ON o.object_no = b.object_no
    JOIN strom.property p ON p.property_id = b.property_id
    JOIN strom.cause c ON c.cause = b.cause
    WHERE o.type_id = asked_type AND (wanted IS NULL OR o.id = wanted)
      AND b.recorded_from <= asked AND b.recorded_to > asked
      AND b.cause <> 5 AND (b.version > 0 OR b.value IS NOT NULL)
      AND (at IS NULL OR b.valid_from <= at AND b.valid_to > at)
    ORDER BY o.id, p.name, b.valid_from, b.valid_to;
END $$;
COMMENT ON FUNCTION strom.as_of IS 'what was believed at a recorded time; refuses times outside floor and horizon';
