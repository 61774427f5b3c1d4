CREATE TABLE sessions (
    id TEXT COLLATE "C" NOT NULL,
    owner TEXT COLLATE "C" NOT NULL,
    channel TEXT COLLATE "C" NOT NULL,
    next_seq BIGINT NOT NULL,
    speaker TEXT COLLATE "C",
    shared BOOLEAN NOT NULL,
    fresh_from BIGINT DEFAULT '0' NOT NULL,
    fresh_seq BIGINT DEFAULT '0' NOT NULL,
    title TEXT COLLATE "C",
    archived_at TIMESTAMP WITH TIME ZONE,
    summary TEXT COLLATE "C",
    summary_to BIGINT DEFAULT '0' NOT NULL,
    opened_tools TEXT COLLATE "C" DEFAULT '' NOT NULL,
    summary_tokens BIGINT DEFAULT '0' NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE NOT NULL,
    updated_at TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT pk_sessions PRIMARY KEY (id),
    CONSTRAINT uq_sessions_owner_channel UNIQUE (owner, channel)
);

CREATE INDEX ix_sessions_recent ON sessions (owner, updated_at);

CREATE TABLE subscriptions (
    event TEXT COLLATE "C" NOT NULL,
    account TEXT COLLATE "C" NOT NULL,
    CONSTRAINT pk_subscriptions PRIMARY KEY (event, account)
);

CREATE TABLE senders (
    kind TEXT COLLATE "C" NOT NULL,
    sender TEXT COLLATE "C" NOT NULL,
    account TEXT COLLATE "C" NOT NULL,
    place TEXT COLLATE "C" NOT NULL,
    name TEXT COLLATE "C" NOT NULL,
    state TEXT COLLATE "C" NOT NULL,
    "user" TEXT COLLATE "C",
    code BYTEA,
    codes BIGINT NOT NULL,
    asked_at TIMESTAMP WITH TIME ZONE NOT NULL,
    decided_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT pk_senders PRIMARY KEY (kind, sender)
);

CREATE INDEX ix_senders_code ON senders (code);

CREATE TABLE leases (
    account TEXT COLLATE "C" NOT NULL,
    holder TEXT COLLATE "C" NOT NULL,
    until TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT pk_leases PRIMARY KEY (account)
);

CREATE TABLE keys (
    owner TEXT COLLATE "C" NOT NULL,
    key BYTEA NOT NULL,
    fingerprint BYTEA NOT NULL,
    turn_id TEXT COLLATE "C" NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT pk_keys PRIMARY KEY (owner, key)
);

CREATE INDEX ix_keys_created_at ON keys (created_at);

CREATE TABLE memories (
    id TEXT COLLATE "C" NOT NULL,
    owner TEXT COLLATE "C" NOT NULL,
    subject TEXT COLLATE "C" NOT NULL,
    text TEXT COLLATE "C" NOT NULL,
    turn_id TEXT COLLATE "C",
    created_at TIMESTAMP WITH TIME ZONE NOT NULL,
    superseded_at TIMESTAMP WITH TIME ZONE,
    superseded_by TEXT COLLATE "C",
    embedding BYTEA,
    embedded_by TEXT COLLATE "C",
    CONSTRAINT pk_memories PRIMARY KEY (id)
);

CREATE UNIQUE INDEX uq_memories_live ON memories (owner, subject) WHERE superseded_at IS NULL AND subject <> '';

CREATE INDEX ix_memories_owner ON memories (owner, created_at);

CREATE TABLE memory_words (rowid BIGSERIAL PRIMARY KEY, owner TEXT COLLATE "C" NOT NULL, memory TEXT COLLATE "C" NOT NULL, words TEXT NOT NULL, lexemes TSVECTOR GENERATED ALWAYS AS (array_to_tsvector(string_to_array(words, ' '))) STORED);

CREATE INDEX ix_memory_words_lexemes ON memory_words USING gin (lexemes);

CREATE INDEX ix_memory_words_columns ON memory_words (owner, memory);

CREATE TABLE tokens (
    id TEXT COLLATE "C" NOT NULL,
    owner TEXT COLLATE "C" NOT NULL,
    "user" TEXT COLLATE "C",
    label TEXT COLLATE "C" NOT NULL,
    digest BYTEA NOT NULL,
    scopes TEXT COLLATE "C" NOT NULL,
    replaces TEXT COLLATE "C",
    created_at TIMESTAMP WITH TIME ZONE NOT NULL,
    expires_at TIMESTAMP WITH TIME ZONE,
    revoked_at TIMESTAMP WITH TIME ZONE,
    used_at TIMESTAMP WITH TIME ZONE,
    issued_by TEXT COLLATE "C",
    CONSTRAINT pk_tokens PRIMARY KEY (id),
    CONSTRAINT uq_tokens_digest UNIQUE (digest)
);

CREATE INDEX ix_tokens_owner ON tokens (owner);

CREATE TABLE sign_in_codes (
    id TEXT COLLATE "C" NOT NULL,
    digest BYTEA NOT NULL,
    created_by TEXT COLLATE "C" NOT NULL,
    issued_by TEXT COLLATE "C",
    "user" TEXT COLLATE "C",
    scopes TEXT COLLATE "C" NOT NULL,
    lifetime BIGINT NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE NOT NULL,
    expires_at TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT pk_sign_in_codes PRIMARY KEY (id),
    CONSTRAINT uq_sign_in_codes_digest UNIQUE (digest)
);

CREATE TABLE audit (
    id TEXT COLLATE "C" NOT NULL,
    at TIMESTAMP WITH TIME ZONE NOT NULL,
    principal TEXT COLLATE "C" NOT NULL,
    source TEXT COLLATE "C" NOT NULL,
    action TEXT COLLATE "C" NOT NULL,
    target TEXT COLLATE "C" NOT NULL,
    detail TEXT COLLATE "C" NOT NULL,
    CONSTRAINT pk_audit PRIMARY KEY (id)
);

CREATE INDEX ix_audit_at ON audit (at);

CREATE TABLE usage (
    account TEXT COLLATE "C" NOT NULL,
    period TEXT COLLATE "C" NOT NULL,
    messages BIGINT NOT NULL,
    input_tokens BIGINT NOT NULL,
    output_tokens BIGINT NOT NULL,
    microusd BIGINT NOT NULL,
    reserved_tokens BIGINT NOT NULL,
    reserved_microusd BIGINT NOT NULL,
    instruction_tokens BIGINT DEFAULT '0' NOT NULL,
    tool_tokens BIGINT DEFAULT '0' NOT NULL,
    history_tokens BIGINT DEFAULT '0' NOT NULL,
    summary_tokens BIGINT DEFAULT '0' NOT NULL,
    CONSTRAINT pk_usage PRIMARY KEY (account, period)
);

CREATE TABLE spending (
    day TEXT COLLATE "C" NOT NULL,
    model TEXT COLLATE "C" NOT NULL,
    "user" TEXT COLLATE "C" NOT NULL,
    token TEXT COLLATE "C" NOT NULL,
    channel TEXT COLLATE "C" NOT NULL,
    schedule TEXT COLLATE "C" NOT NULL,
    messages BIGINT NOT NULL,
    input_tokens BIGINT NOT NULL,
    output_tokens BIGINT NOT NULL,
    microusd BIGINT NOT NULL,
    CONSTRAINT pk_spending PRIMARY KEY (day, model, "user", token, channel, schedule)
);

CREATE INDEX ix_spending_user ON spending ("user");

CREATE TABLE tombstones (
    turn_id TEXT COLLATE "C" NOT NULL,
    owner TEXT COLLATE "C" NOT NULL,
    at TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT pk_tombstones PRIMARY KEY (turn_id)
);

CREATE TABLE skills (
    slug TEXT COLLATE "C" NOT NULL,
    origin TEXT COLLATE "C",
    subfolder TEXT COLLATE "C",
    folder TEXT COLLATE "C",
    digest TEXT COLLATE "C" NOT NULL,
    state TEXT COLLATE "C" NOT NULL,
    granted TEXT COLLATE "C",
    installed_at TIMESTAMP WITH TIME ZONE NOT NULL,
    decided_by TEXT COLLATE "C",
    decided_at TIMESTAMP WITH TIME ZONE,
    next_folder TEXT COLLATE "C",
    next_digest TEXT COLLATE "C",
    CONSTRAINT pk_skills PRIMARY KEY (slug)
);

CREATE TABLE schedules (
    id TEXT COLLATE "C" NOT NULL,
    owner TEXT COLLATE "C" NOT NULL,
    "user" TEXT COLLATE "C",
    token TEXT COLLATE "C",
    channel TEXT COLLATE "C" NOT NULL,
    account TEXT COLLATE "C",
    place TEXT COLLATE "C",
    kind TEXT COLLATE "C" NOT NULL,
    text TEXT COLLATE "C" NOT NULL,
    cron TEXT COLLATE "C",
    timezone TEXT COLLATE "C" NOT NULL,
    missed TEXT COLLATE "C" NOT NULL,
    state TEXT COLLATE "C" NOT NULL,
    due_at TIMESTAMP WITH TIME ZONE,
    try_at TIMESTAMP WITH TIME ZONE,
    tries BIGINT NOT NULL,
    failures BIGINT NOT NULL,
    reason TEXT COLLATE "C",
    dealt_with TIMESTAMP WITH TIME ZONE,
    dealt_at TIMESTAMP WITH TIME ZONE,
    turn_id TEXT COLLATE "C",
    made_by BYTEA,
    created_at TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT pk_schedules PRIMARY KEY (id),
    CONSTRAINT uq_schedules_made_by UNIQUE (made_by)
);

CREATE INDEX ix_schedules_try ON schedules (try_at) WHERE state = 'active';

CREATE INDEX ix_schedules_user ON schedules ("user");

CREATE INDEX ix_schedules_owner ON schedules (owner);

CREATE TABLE turns (
    id TEXT COLLATE "C" NOT NULL,
    owner TEXT COLLATE "C" NOT NULL,
    session_id TEXT COLLATE "C" NOT NULL,
    channel TEXT COLLATE "C" NOT NULL,
    seq BIGINT NOT NULL,
    principal TEXT COLLATE "C" NOT NULL,
    token TEXT COLLATE "C",
    "user" TEXT COLLATE "C",
    content TEXT COLLATE "C" NOT NULL,
    state TEXT COLLATE "C" NOT NULL,
    attempt BIGINT NOT NULL,
    crashes BIGINT DEFAULT '0' NOT NULL,
    reply TEXT COLLATE "C",
    failure_code TEXT COLLATE "C",
    failure_detail TEXT COLLATE "C",
    failure_retry_after BIGINT,
    failure_policies TEXT COLLATE "C" DEFAULT '' NOT NULL,
    model TEXT COLLATE "C",
    input_tokens BIGINT NOT NULL,
    output_tokens BIGINT NOT NULL,
    cost_usd FLOAT NOT NULL,
    instruction_tokens BIGINT DEFAULT '0' NOT NULL,
    tool_tokens BIGINT DEFAULT '0' NOT NULL,
    history_tokens BIGINT DEFAULT '0' NOT NULL,
    on_busy TEXT COLLATE "C" DEFAULT 'queue' NOT NULL,
    merged_into TEXT COLLATE "C",
    merged_step BIGINT,
    reserved_tokens BIGINT DEFAULT '0' NOT NULL,
    reserved_microusd BIGINT DEFAULT '0' NOT NULL,
    reserved_on TEXT COLLATE "C",
    open_requests BIGINT DEFAULT '0' NOT NULL,
    account TEXT COLLATE "C",
    message TEXT COLLATE "C",
    place TEXT COLLATE "C",
    files BIGINT DEFAULT '0' NOT NULL,
    words_row BIGINT,
    created_at TIMESTAMP WITH TIME ZONE NOT NULL,
    ended_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT pk_turns PRIMARY KEY (id),
    CONSTRAINT uq_turns_session_id_seq UNIQUE (session_id, seq),
    CONSTRAINT fk_turns_session_id FOREIGN KEY(session_id) REFERENCES sessions (id)
);

CREATE INDEX ix_turns_created ON turns (created_at, id);

CREATE UNIQUE INDEX uq_turns_words ON turns (words_row) WHERE words_row IS NOT NULL;

CREATE INDEX ix_turns_owner ON turns (owner, created_at, id);

CREATE UNIQUE INDEX uq_turns_message ON turns (account, message);

CREATE INDEX ix_turns_unfinished ON turns (session_id, seq) WHERE state IN ('queued', 'running', 'waiting');

CREATE INDEX ix_turns_user ON turns ("user", created_at);

CREATE INDEX ix_turns_unindexed ON turns (owner, created_at) WHERE words_row IS NULL AND ended_at IS NOT NULL;

CREATE UNIQUE INDEX uq_turns_active ON turns (session_id) WHERE state IN ('running', 'waiting');

CREATE TABLE message_words (rowid BIGSERIAL PRIMARY KEY, owner TEXT COLLATE "C" NOT NULL, session TEXT COLLATE "C" NOT NULL, words TEXT NOT NULL, lexemes TSVECTOR GENERATED ALWAYS AS (array_to_tsvector(string_to_array(words, ' '))) STORED);

CREATE INDEX ix_message_words_lexemes ON message_words USING gin (lexemes);

CREATE INDEX ix_message_words_columns ON message_words (owner, session);

CREATE TABLE timings (
    turn_id TEXT COLLATE "C" NOT NULL,
    attempt BIGINT NOT NULL,
    number BIGINT NOT NULL,
    kind TEXT COLLATE "C" NOT NULL,
    step BIGINT,
    name TEXT COLLATE "C",
    call_id TEXT COLLATE "C",
    state TEXT COLLATE "C" NOT NULL,
    input_tokens BIGINT,
    output_tokens BIGINT,
    microusd BIGINT,
    started_at TIMESTAMP WITH TIME ZONE NOT NULL,
    ended_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT pk_timings PRIMARY KEY (turn_id, attempt, number),
    CONSTRAINT fk_timings_turn_id FOREIGN KEY(turn_id) REFERENCES turns (id)
);

CREATE TABLE history (
    session_id TEXT COLLATE "C" NOT NULL,
    seq BIGINT NOT NULL,
    owner TEXT COLLATE "C" NOT NULL,
    turn_id TEXT COLLATE "C" NOT NULL,
    messages BIGINT NOT NULL,
    body BYTEA NOT NULL,
    CONSTRAINT pk_history PRIMARY KEY (session_id, seq),
    CONSTRAINT fk_history_session_id FOREIGN KEY(session_id) REFERENCES sessions (id),
    CONSTRAINT fk_history_turn_id FOREIGN KEY(turn_id) REFERENCES turns (id)
);

CREATE INDEX ix_history_turn_id ON history (turn_id);

CREATE TABLE deliveries (
    number BIGSERIAL NOT NULL,
    id TEXT COLLATE "C" NOT NULL,
    owner TEXT COLLATE "C" NOT NULL,
    account TEXT COLLATE "C" NOT NULL,
    line TEXT COLLATE "C" NOT NULL,
    place TEXT COLLATE "C" NOT NULL,
    turn_id TEXT COLLATE "C",
    root BIGINT,
    part BIGINT NOT NULL,
    is_cut BOOLEAN NOT NULL,
    text TEXT COLLATE "C" NOT NULL,
    state TEXT COLLATE "C" NOT NULL,
    tries BIGINT NOT NULL,
    unsure BIGINT NOT NULL,
    due_at TIMESTAMP WITH TIME ZONE NOT NULL,
    shown_as TEXT COLLATE "C",
    reason TEXT COLLATE "C",
    created_at TIMESTAMP WITH TIME ZONE NOT NULL,
    ended_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT pk_deliveries PRIMARY KEY (number),
    CONSTRAINT uq_deliveries_turn_id_part UNIQUE (turn_id, part),
    CONSTRAINT uq_deliveries_id UNIQUE (id),
    CONSTRAINT fk_deliveries_turn_id FOREIGN KEY(turn_id) REFERENCES turns (id)
);

CREATE INDEX ix_deliveries_unsent ON deliveries (account, state) WHERE state NOT IN ('sent', 'dropped');

CREATE INDEX ix_deliveries_open ON deliveries (account, number) WHERE state IN ('preview', 'pending', 'sending');

CREATE INDEX ix_deliveries_ended ON deliveries (ended_at);

CREATE TABLE attachments (
    id TEXT COLLATE "C" NOT NULL,
    turn_id TEXT COLLATE "C" NOT NULL,
    owner TEXT COLLATE "C" NOT NULL,
    number BIGINT NOT NULL,
    name TEXT COLLATE "C" NOT NULL,
    media_type TEXT COLLATE "C" NOT NULL,
    body BYTEA NOT NULL,
    CONSTRAINT pk_attachments PRIMARY KEY (id),
    CONSTRAINT fk_attachments_turn_id FOREIGN KEY(turn_id) REFERENCES turns (id)
);

CREATE INDEX ix_attachments_turn_id ON attachments (turn_id);

CREATE TABLE steps (
    turn_id TEXT COLLATE "C" NOT NULL,
    number BIGINT NOT NULL,
    attempt BIGINT NOT NULL,
    body BYTEA NOT NULL,
    CONSTRAINT pk_steps PRIMARY KEY (turn_id, number),
    CONSTRAINT fk_steps_turn_id FOREIGN KEY(turn_id) REFERENCES turns (id)
);

CREATE TABLE calls (
    turn_id TEXT COLLATE "C" NOT NULL,
    step BIGINT NOT NULL,
    id TEXT COLLATE "C" NOT NULL,
    attempt BIGINT NOT NULL,
    tool TEXT COLLATE "C" NOT NULL,
    idempotent BOOLEAN NOT NULL,
    state TEXT COLLATE "C" NOT NULL,
    result BYTEA NOT NULL,
    CONSTRAINT pk_calls PRIMARY KEY (turn_id, step, id),
    CONSTRAINT fk_calls_turn_id FOREIGN KEY(turn_id) REFERENCES turns (id)
);

CREATE TABLE approvals (
    id TEXT COLLATE "C" NOT NULL,
    turn_id TEXT COLLATE "C" NOT NULL,
    step BIGINT NOT NULL,
    call_id TEXT COLLATE "C" NOT NULL,
    owner TEXT COLLATE "C" NOT NULL,
    tool TEXT COLLATE "C" NOT NULL,
    arguments BYTEA NOT NULL,
    said BIGINT NOT NULL,
    delivery BIGINT,
    state TEXT COLLATE "C" NOT NULL,
    edited BYTEA,
    reason TEXT COLLATE "C",
    decided_by TEXT COLLATE "C",
    created_at TIMESTAMP WITH TIME ZONE NOT NULL,
    expires_at TIMESTAMP WITH TIME ZONE NOT NULL,
    decided_at TIMESTAMP WITH TIME ZONE,
    replied_at TIMESTAMP WITH TIME ZONE,
    decided_in TEXT COLLATE "C",
    CONSTRAINT pk_approvals PRIMARY KEY (turn_id, step, call_id),
    CONSTRAINT fk_approvals_turn_id FOREIGN KEY(turn_id) REFERENCES turns (id)
);

CREATE INDEX ix_approvals_decided_in ON approvals (decided_in) WHERE decided_in IS NOT NULL;

CREATE UNIQUE INDEX uq_approvals_id ON approvals (id);

CREATE INDEX ix_approvals_open ON approvals (expires_at) WHERE state = 'open';

CREATE TABLE torana_writer (
    one BOOLEAN DEFAULT true NOT NULL,
    process TEXT COLLATE "C" NOT NULL,
    commits BIGINT NOT NULL,
    CONSTRAINT pk_torana_writer PRIMARY KEY (one),
    CONSTRAINT ck_torana_writer_one CHECK (one)
);

INSERT INTO torana_writer (process, commits) VALUES ('', 0);
