CREATE TABLE adjustment (
	id INTEGER NOT NULL, 
	month VARCHAR NOT NULL, 
	team VARCHAR NOT NULL, 
	job_uid VARCHAR NOT NULL, 
	board_ms BIGINT NOT NULL, 
	nano BIGINT NOT NULL, 
	currency VARCHAR NOT NULL, 
	reason VARCHAR NOT NULL, 
	author VARCHAR NOT NULL, 
	reference VARCHAR NOT NULL, 
	created_at_ms BIGINT NOT NULL, 
	digest VARCHAR NOT NULL, 
	CONSTRAINT pk_adjustment PRIMARY KEY (id), 
	CONSTRAINT fk_adjustment_month FOREIGN KEY(month) REFERENCES month (month), 
	CONSTRAINT uq_adjustment_month_team_job_uid_reference UNIQUE (month, team, job_uid, reference)
);
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0018');
CREATE TABLE alert_group (
	"key" VARCHAR NOT NULL, 
	content TEXT NOT NULL, 
	firing BOOLEAN NOT NULL, 
	size BIGINT NOT NULL, 
	received_ms BIGINT NOT NULL, 
	CONSTRAINT pk_alert_group PRIMARY KEY ("key"), 
	CONSTRAINT ck_alert_group_received CHECK (received_ms >= 0)
);
CREATE TABLE api_key (
	id VARCHAR NOT NULL, 
	sha256 VARCHAR NOT NULL, 
	role VARCHAR NOT NULL, 
	teams TEXT NOT NULL, 
	clusters TEXT, 
	expires_ms BIGINT, 
	created_ms BIGINT NOT NULL, 
	created_by VARCHAR NOT NULL, 
	revoked_ms BIGINT, 
	revoked_by VARCHAR NOT NULL, 
	last_used_ms BIGINT, 
	note VARCHAR NOT NULL, 
	CONSTRAINT pk_api_key PRIMARY KEY (id), 
	CONSTRAINT ck_api_key_created CHECK (created_ms >= 0), 
	CONSTRAINT ck_api_key_revoked CHECK ((revoked_ms IS NULL) = (revoked_by = ''))
);
CREATE TABLE audit (
	id INTEGER NOT NULL, 
	at_ms BIGINT NOT NULL, 
	author VARCHAR NOT NULL, 
	action VARCHAR NOT NULL, 
	subject VARCHAR NOT NULL, 
	reason VARCHAR NOT NULL, 
	detail VARCHAR NOT NULL, 
	CONSTRAINT pk_audit PRIMARY KEY (id)
);
CREATE TABLE day_line (
	day_id BIGINT NOT NULL, 
	unit_id BIGINT NOT NULL, 
	holder_id BIGINT NOT NULL, 
	rate_id BIGINT NOT NULL, 
	bucket VARCHAR NOT NULL, 
	board_ms BIGINT NOT NULL, 
	nano BIGINT, 
	unpriced_ms BIGINT NOT NULL, 
	first_ms BIGINT NOT NULL, 
	last_ms BIGINT NOT NULL, 
	observed_ms BIGINT, 
	busy_ms BIGINT, 
	sm_observed_ms BIGINT, 
	sm_active_ms BIGINT, 
	tensor_active_ms BIGINT, 
	tensor_observed_ms BIGINT, 
	memory_observed_ms BIGINT, 
	memory_used_mib_s BIGINT, 
	memory_total_mib_s BIGINT, 
	memory_peak_mib BIGINT, 
	energy_observed_ms BIGINT, 
	energy_mj BIGINT, 
	busy_over_ms BIGINT, 
	sm_over_ms BIGINT, 
	tensor_over_ms BIGINT, 
	CONSTRAINT pk_day_line PRIMARY KEY (day_id, unit_id, holder_id, rate_id, bucket), 
	CONSTRAINT ck_day_line_bucket CHECK (bucket IN ('held', 'unallocated', 'unavailable', 'unknown', 'overcommitted')), 
	CONSTRAINT fk_day_line_day_id FOREIGN KEY(day_id) REFERENCES usage_day (id), 
	CONSTRAINT fk_day_line_unit_id FOREIGN KEY(unit_id) REFERENCES unit (id), 
	CONSTRAINT fk_day_line_holder_id FOREIGN KEY(holder_id) REFERENCES holder (id), 
	CONSTRAINT fk_day_line_rate_id FOREIGN KEY(rate_id) REFERENCES rate (id)
)
 WITHOUT ROWID

;
CREATE TABLE finding (
	id INTEGER NOT NULL, 
	revision INTEGER NOT NULL, 
	fingerprint VARCHAR NOT NULL, 
	episode INTEGER NOT NULL, 
	cluster VARCHAR NOT NULL, 
	pattern VARCHAR NOT NULL, 
	variant VARCHAR NOT NULL, 
	subject_kind VARCHAR NOT NULL, 
	subject_name VARCHAR NOT NULL, 
	subject_namespace VARCHAR NOT NULL, 
	subject_uid VARCHAR NOT NULL, 
	team VARCHAR NOT NULL, 
	queue VARCHAR NOT NULL, 
	severity VARCHAR NOT NULL, 
	state VARCHAR NOT NULL, 
	opened_at_ms BIGINT NOT NULL, 
	since_ms BIGINT NOT NULL, 
	last_seen_ms BIGINT NOT NULL, 
	closed_at_ms BIGINT, 
	clean_evaluations INTEGER NOT NULL, 
	rehearsal BOOLEAN NOT NULL, 
	exempt_until_ms BIGINT, 
	muted_until_ms BIGINT, 
	acknowledged_by VARCHAR, 
	acknowledged_at_ms BIGINT, 
	acknowledged_note VARCHAR, 
	content VARCHAR NOT NULL, 
	board_ms BIGINT NOT NULL, 
	nano BIGINT, 
	counted BOOLEAN NOT NULL, 
	boards_now FLOAT NOT NULL, 
	CONSTRAINT pk_finding PRIMARY KEY (id), 
	CONSTRAINT uq_finding_cluster_fingerprint_episode UNIQUE (cluster, fingerprint, episode), 
	CONSTRAINT ck_finding_state CHECK (state IN ('open', 'acknowledged', 'muted', 'resolved'))
);
CREATE TABLE finding_event (
	id INTEGER NOT NULL, 
	finding_id BIGINT NOT NULL, 
	at_ms BIGINT NOT NULL, 
	author VARCHAR NOT NULL, 
	action VARCHAR NOT NULL, 
	detail VARCHAR NOT NULL, 
	CONSTRAINT pk_finding_event PRIMARY KEY (id), 
	CONSTRAINT fk_finding_event_finding_id FOREIGN KEY(finding_id) REFERENCES finding (id)
);
CREATE TABLE fold_begun (
	month VARCHAR NOT NULL, 
	CONSTRAINT pk_fold_begun PRIMARY KEY (month), 
	CONSTRAINT fk_fold_begun_month FOREIGN KEY(month) REFERENCES month_fold (month) DEFERRABLE INITIALLY DEFERRED
);
CREATE TABLE folded_day (
	window_id BIGINT NOT NULL, 
	month VARCHAR NOT NULL, 
	cluster VARCHAR NOT NULL, 
	start_ms BIGINT NOT NULL, 
	end_ms BIGINT NOT NULL, 
	assessed VARCHAR NOT NULL, 
	windows BIGINT NOT NULL, 
	lines BIGINT NOT NULL, 
	waste_lines BIGINT NOT NULL, 
	digest VARCHAR NOT NULL, 
	CONSTRAINT pk_folded_day PRIMARY KEY (window_id), 
	CONSTRAINT ck_folded_day_assessed CHECK (assessed IN ('', 'provisional', 'final')), 
	CONSTRAINT fk_folded_day_window_id FOREIGN KEY(window_id) REFERENCES ledger_window (id), 
	CONSTRAINT fk_folded_day_month FOREIGN KEY(month) REFERENCES fold_begun (month)
);
CREATE TABLE holder (
	id INTEGER NOT NULL, 
	content_key VARCHAR NOT NULL, 
	namespace VARCHAR NOT NULL, 
	pod VARCHAR NOT NULL, 
	pod_uid VARCHAR NOT NULL, 
	job_kind VARCHAR NOT NULL, 
	job VARCHAR NOT NULL, 
	job_uid VARCHAR NOT NULL, 
	workload VARCHAR NOT NULL, 
	queue VARCHAR NOT NULL, 
	cluster_queue VARCHAR NOT NULL, 
	flavor VARCHAR NOT NULL, 
	team_label VARCHAR NOT NULL, 
	project VARCHAR NOT NULL, 
	user VARCHAR NOT NULL, 
	team VARCHAR NOT NULL, 
	CONSTRAINT pk_holder PRIMARY KEY (id), 
	CONSTRAINT uq_holder_content_key UNIQUE (content_key)
);
CREATE TABLE kept_forecast (
	month VARCHAR NOT NULL, 
	team VARCHAR NOT NULL, 
	as_of_ms BIGINT NOT NULL, 
	days_left BIGINT NOT NULL, 
	expected_nano BIGINT NOT NULL, 
	low_nano BIGINT NOT NULL, 
	high_nano BIGINT NOT NULL, 
	CONSTRAINT pk_kept_forecast PRIMARY KEY (month, team, as_of_ms), 
	CONSTRAINT ck_kept_forecast_interval CHECK (low_nano <= expected_nano AND expected_nano <= high_nano)
)
 WITHOUT ROWID

;
CREATE TABLE ledger_meta (
	id INTEGER NOT NULL, 
	currency VARCHAR NOT NULL, 
	created_at_ms BIGINT NOT NULL, 
	CONSTRAINT pk_ledger_meta PRIMARY KEY (id), 
	CONSTRAINT ck_ledger_meta_one_row CHECK (id = 1)
);
CREATE TABLE ledger_window (
	id INTEGER NOT NULL, 
	cluster VARCHAR NOT NULL, 
	start_ms BIGINT NOT NULL, 
	end_ms BIGINT NOT NULL, 
	month VARCHAR NOT NULL, 
	state VARCHAR NOT NULL, 
	version INTEGER NOT NULL, 
	CONSTRAINT pk_ledger_window PRIMARY KEY (id), 
	CONSTRAINT uq_ledger_window_cluster_start_ms UNIQUE (cluster, start_ms), 
	CONSTRAINT ck_ledger_window_not_empty CHECK (start_ms < end_ms), 
	CONSTRAINT ck_ledger_window_state CHECK (state IN ('open', 'settled', 'closed'))
);
CREATE TABLE login_session (
	id VARCHAR NOT NULL, 
	sha256 VARCHAR NOT NULL, 
	method VARCHAR NOT NULL, 
	subject VARCHAR NOT NULL, 
	credential VARCHAR NOT NULL, 
	groups TEXT NOT NULL, 
	created_ms BIGINT NOT NULL, 
	expires_ms BIGINT NOT NULL, 
	login_sha256 VARCHAR NOT NULL, 
	revoked_ms BIGINT, 
	revoked_by VARCHAR NOT NULL, 
	CONSTRAINT pk_login_session PRIMARY KEY (id), 
	CONSTRAINT ck_login_session_instants CHECK (created_ms >= 0 AND expires_ms > created_ms), 
	CONSTRAINT ck_login_session_revoked CHECK ((revoked_ms IS NULL) = (revoked_by = '')), 
	CONSTRAINT uq_login_session_sha256 UNIQUE (sha256), 
	CONSTRAINT uq_login_session_login_sha256 UNIQUE (login_sha256)
);
CREATE TABLE month (
	seq INTEGER NOT NULL, 
	month VARCHAR NOT NULL, 
	version INTEGER NOT NULL, 
	digest VARCHAR NOT NULL, 
	previous_digest VARCHAR NOT NULL, 
	closed_at_ms BIGINT NOT NULL, 
	author VARCHAR NOT NULL, 
	reason VARCHAR NOT NULL, 
	CONSTRAINT pk_month PRIMARY KEY (seq), 
	CONSTRAINT uq_month_month UNIQUE (month)
);
CREATE TABLE month_charges (
	month VARCHAR NOT NULL, 
	content_key VARCHAR NOT NULL, 
	policy_name VARCHAR NOT NULL, 
	policy VARCHAR NOT NULL, 
	files VARCHAR NOT NULL, 
	weights VARCHAR NOT NULL, 
	currency VARCHAR NOT NULL, 
	digest VARCHAR NOT NULL, 
	amounts VARCHAR NOT NULL, 
	CONSTRAINT pk_month_charges PRIMARY KEY (month), 
	CONSTRAINT fk_month_charges_month FOREIGN KEY(month) REFERENCES month (month)
);
CREATE TABLE month_fold (
	month VARCHAR NOT NULL, 
	digest VARCHAR NOT NULL, 
	month_digest VARCHAR NOT NULL, 
	folded_at_ms BIGINT NOT NULL, 
	author VARCHAR NOT NULL, 
	lines_before BIGINT NOT NULL, 
	lines BIGINT NOT NULL, 
	waste_before BIGINT NOT NULL, 
	waste_lines BIGINT NOT NULL, 
	CONSTRAINT pk_month_fold PRIMARY KEY (month), 
	CONSTRAINT fk_month_fold_month FOREIGN KEY(month) REFERENCES month (month)
);
CREATE TABLE month_seal (
	seq INTEGER NOT NULL, 
	month VARCHAR NOT NULL, 
	kind VARCHAR NOT NULL, 
	digest VARCHAR NOT NULL, 
	month_digest VARCHAR NOT NULL, 
	fold_digest VARCHAR NOT NULL, 
	manifest VARCHAR NOT NULL, 
	sealed_at_ms BIGINT NOT NULL, 
	author VARCHAR NOT NULL, 
	lines BIGINT NOT NULL, 
	files BIGINT NOT NULL, 
	size BIGINT NOT NULL, 
	CONSTRAINT pk_month_seal PRIMARY KEY (seq), 
	CONSTRAINT ck_month_seal_kind CHECK (kind IN ('seal', 'unseal')), 
	CONSTRAINT fk_month_seal_month FOREIGN KEY(month) REFERENCES month (month)
);
CREATE TABLE node_identity (
	cluster VARCHAR NOT NULL, 
	node VARCHAR NOT NULL, 
	provider_id VARCHAR NOT NULL, 
	CONSTRAINT pk_node_identity PRIMARY KEY (cluster, node, provider_id)
)
 WITHOUT ROWID

;
CREATE TABLE notify_conversation (
	channel VARCHAR NOT NULL, 
	"key" VARCHAR NOT NULL, 
	topic VARCHAR NOT NULL, 
	kind VARCHAR NOT NULL, 
	team VARCHAR NOT NULL, 
	version VARCHAR NOT NULL, 
	posted_ms BIGINT NOT NULL, 
	updated_ms BIGINT, 
	escalated_ms BIGINT, 
	resolved_ms BIGINT, 
	reference VARCHAR NOT NULL, 
	changed_ms BIGINT NOT NULL, 
	CONSTRAINT pk_notify_conversation PRIMARY KEY (channel, "key"), 
	CONSTRAINT ck_notify_conversation_instants CHECK (posted_ms >= 0 AND changed_ms >= posted_ms)
);
CREATE TABLE notify_post (
	id INTEGER NOT NULL, 
	channel VARCHAR NOT NULL, 
	"key" VARCHAR NOT NULL, 
	kind VARCHAR NOT NULL, 
	act VARCHAR NOT NULL, 
	version VARCHAR NOT NULL, 
	message TEXT NOT NULL, 
	created_ms BIGINT NOT NULL, 
	since_ms BIGINT NOT NULL, 
	due_ms BIGINT NOT NULL, 
	tries INTEGER NOT NULL, 
	urgent BOOLEAN NOT NULL, 
	trouble VARCHAR NOT NULL, 
	state VARCHAR NOT NULL, 
	ended_ms BIGINT, 
	CONSTRAINT pk_notify_post PRIMARY KEY (id), 
	CONSTRAINT ck_notify_post_state CHECK (state IN ('waiting', 'sent', 'dead', 'superseded')), 
	CONSTRAINT ck_notify_post_ended CHECK ((state = 'waiting') = (ended_ms IS NULL)), 
	CONSTRAINT ck_notify_post_tries CHECK (tries >= 0)
);
CREATE TABLE progress_line (
	window_id BIGINT NOT NULL, 
	pod_uid VARCHAR NOT NULL, 
	name VARCHAR NOT NULL, 
	amount FLOAT NOT NULL, 
	CONSTRAINT pk_progress_line PRIMARY KEY (window_id, pod_uid, name), 
	CONSTRAINT fk_progress_line_window_id FOREIGN KEY(window_id) REFERENCES ledger_window (id)
)
 WITHOUT ROWID

;
CREATE TABLE rate (
	id INTEGER NOT NULL, 
	content_key VARCHAR NOT NULL, 
	rate_id VARCHAR NOT NULL, 
	nano_per_board_hour BIGINT, 
	currency VARCHAR NOT NULL, 
	list_nano_per_board_hour BIGINT, 
	matched_by VARCHAR NOT NULL, 
	source VARCHAR NOT NULL, 
	retrieved VARCHAR NOT NULL, 
	pricing_category VARCHAR NOT NULL, 
	discount VARCHAR NOT NULL, 
	CONSTRAINT pk_rate PRIMARY KEY (id), 
	CONSTRAINT uq_rate_content_key UNIQUE (content_key), 
	CONSTRAINT uq_rate_rate_id UNIQUE (rate_id)
);
INSERT INTO "rate" VALUES(0,'','',NULL,'',NULL,'','','','','');
CREATE TABLE seal_begun (
	seq BIGINT NOT NULL, 
	month VARCHAR NOT NULL, 
	CONSTRAINT pk_seal_begun PRIMARY KEY (seq), 
	CONSTRAINT fk_seal_begun_seq FOREIGN KEY(seq) REFERENCES month_seal (seq) DEFERRABLE INITIALLY DEFERRED
);
CREATE TABLE sealed_holder (
	holder_id BIGINT NOT NULL, 
	cluster VARCHAR NOT NULL, 
	seq BIGINT NOT NULL, 
	bucket VARCHAR NOT NULL, 
	first_ms BIGINT NOT NULL, 
	last_ms BIGINT NOT NULL, 
	board_ms BIGINT NOT NULL, 
	nano BIGINT, 
	unpriced_ms BIGINT NOT NULL, 
	CONSTRAINT pk_sealed_holder PRIMARY KEY (holder_id, cluster, seq, bucket), 
	CONSTRAINT fk_sealed_holder_holder_id FOREIGN KEY(holder_id) REFERENCES holder (id), 
	CONSTRAINT fk_sealed_holder_seq FOREIGN KEY(seq) REFERENCES seal_begun (seq)
)
 WITHOUT ROWID

;
CREATE TABLE team_rule (
	id INTEGER NOT NULL, 
	content_key VARCHAR NOT NULL, 
	team_rule VARCHAR NOT NULL, 
	CONSTRAINT pk_team_rule PRIMARY KEY (id), 
	CONSTRAINT uq_team_rule_content_key UNIQUE (content_key)
);
CREATE TABLE unit (
	id INTEGER NOT NULL, 
	content_key VARCHAR NOT NULL, 
	cluster VARCHAR NOT NULL, 
	node VARCHAR NOT NULL, 
	resource VARCHAR NOT NULL, 
	model VARCHAR NOT NULL, 
	profile VARCHAR NOT NULL, 
	share_num BIGINT NOT NULL, 
	share_den BIGINT NOT NULL, 
	basis VARCHAR NOT NULL, 
	instance_type VARCHAR NOT NULL, 
	capacity_type VARCHAR NOT NULL, 
	region VARCHAR NOT NULL, 
	zone VARCHAR NOT NULL, 
	pool VARCHAR NOT NULL, 
	CONSTRAINT pk_unit PRIMARY KEY (id), 
	CONSTRAINT uq_unit_content_key UNIQUE (content_key)
);
CREATE TABLE usage_day (
	id INTEGER NOT NULL, 
	cluster VARCHAR NOT NULL, 
	start_ms BIGINT NOT NULL, 
	month VARCHAR NOT NULL, 
	digest VARCHAR NOT NULL, 
	CONSTRAINT pk_usage_day PRIMARY KEY (id), 
	CONSTRAINT uq_usage_day_cluster_start_ms UNIQUE (cluster, start_ms)
);
CREATE TABLE usage_line (
	window_id BIGINT NOT NULL, 
	unit_id BIGINT NOT NULL, 
	holder_id BIGINT NOT NULL, 
	rate_id BIGINT NOT NULL, 
	bucket VARCHAR NOT NULL, 
	board_ms BIGINT NOT NULL, 
	nano BIGINT, 
	first_ms BIGINT NOT NULL, 
	last_ms BIGINT NOT NULL, 
	observed_ms BIGINT, 
	busy_ms BIGINT, 
	sm_observed_ms BIGINT, 
	sm_active_ms BIGINT, 
	tensor_active_ms BIGINT, tensor_observed_ms BIGINT, memory_observed_ms BIGINT, memory_used_mib_s BIGINT, memory_total_mib_s BIGINT, memory_peak_mib BIGINT, energy_observed_ms BIGINT, energy_mj BIGINT, busy_over_ms BIGINT, sm_over_ms BIGINT, tensor_over_ms BIGINT, team_rule_id BIGINT CONSTRAINT fk_usage_line_team_rule_id REFERENCES team_rule (id), 
	CONSTRAINT pk_usage_line PRIMARY KEY (window_id, unit_id, holder_id, rate_id, bucket), 
	CONSTRAINT fk_usage_line_window_id FOREIGN KEY(window_id) REFERENCES ledger_window (id), 
	CONSTRAINT ck_usage_line_bucket CHECK (bucket IN ('held', 'unallocated', 'unavailable', 'unknown', 'overcommitted')), 
	CONSTRAINT fk_usage_line_unit_id FOREIGN KEY(unit_id) REFERENCES unit (id), 
	CONSTRAINT fk_usage_line_holder_id FOREIGN KEY(holder_id) REFERENCES holder (id), 
	CONSTRAINT fk_usage_line_rate_id FOREIGN KEY(rate_id) REFERENCES rate (id)
)
 WITHOUT ROWID

;
CREATE TABLE wait_prediction (
	cluster VARCHAR NOT NULL, 
	workload_uid VARCHAR NOT NULL, 
	namespace VARCHAR NOT NULL, 
	name VARCHAR NOT NULL, 
	queue VARCHAR NOT NULL, 
	team VARCHAR NOT NULL, 
	asked_ms BIGINT NOT NULL, 
	p50_ms BIGINT, 
	p90_ms BIGINT, 
	horizon_ms BIGINT NOT NULL, 
	started_ms BIGINT, 
	gone_ms BIGINT, gpus BIGINT, p10_ms BIGINT, simulated_p10_ms BIGINT, simulated_p50_ms BIGINT, simulated_p90_ms BIGINT, 
	CONSTRAINT pk_wait_prediction PRIMARY KEY (cluster, workload_uid), 
	CONSTRAINT ck_wait_prediction_waits CHECK ((p50_ms IS NULL OR p50_ms >= 0) AND (p90_ms IS NULL OR p90_ms >= 0)), 
	CONSTRAINT ck_wait_prediction_horizon CHECK (horizon_ms >= 0)
)
 WITHOUT ROWID

;
CREATE TABLE "waste_line" (
	window_id BIGINT NOT NULL, 
	unit_id BIGINT NOT NULL, 
	holder_id BIGINT NOT NULL, 
	rate_id BIGINT NOT NULL, 
	bucket VARCHAR NOT NULL, 
	waste VARCHAR NOT NULL, 
	board_ms BIGINT NOT NULL, 
	nano BIGINT, 
	CONSTRAINT pk_waste_line PRIMARY KEY (window_id, unit_id, holder_id, rate_id, bucket, waste), 
	CONSTRAINT fk_waste_line_window_id FOREIGN KEY(window_id) REFERENCES ledger_window (id), 
	CONSTRAINT fk_waste_line_unit_id FOREIGN KEY(unit_id) REFERENCES unit (id), 
	CONSTRAINT fk_waste_line_holder_id FOREIGN KEY(holder_id) REFERENCES holder (id), 
	CONSTRAINT fk_waste_line_rate_id FOREIGN KEY(rate_id) REFERENCES rate (id), 
	CONSTRAINT ck_waste_line_bucket CHECK (bucket IN ('held', 'unallocated', 'unavailable', 'unknown')), 
	CONSTRAINT ck_waste_line_waste CHECK (waste IN ('unavailable', 'gang_stall', 'preempted', 'idle', 'oversized', 'starved', 'stranded', 'fragmented', 'no_demand', 'productive', 'unknown')), 
	CONSTRAINT ck_waste_line_amount CHECK (board_ms >= 0 AND (nano IS NULL OR nano >= 0))
)
 WITHOUT ROWID

;
CREATE TABLE waste_window (
	window_id BIGINT NOT NULL, 
	version INTEGER NOT NULL, 
	state VARCHAR NOT NULL, 
	digest VARCHAR NOT NULL, 
	assessed_at_ms BIGINT NOT NULL, 
	code_version VARCHAR NOT NULL, 
	CONSTRAINT pk_waste_window PRIMARY KEY (window_id), 
	CONSTRAINT fk_waste_window_window_id FOREIGN KEY(window_id) REFERENCES ledger_window (id), 
	CONSTRAINT ck_waste_window_state CHECK (state IN ('provisional', 'final'))
);
CREATE TABLE window_problem (
	window_id BIGINT NOT NULL, 
	seq INTEGER NOT NULL, 
	code VARCHAR NOT NULL, 
	cluster VARCHAR NOT NULL, 
	subject VARCHAR NOT NULL, 
	detail VARCHAR NOT NULL, 
	board_ms BIGINT, 
	CONSTRAINT pk_window_problem PRIMARY KEY (window_id, seq), 
	CONSTRAINT fk_window_problem_window_id FOREIGN KEY(window_id) REFERENCES ledger_window (id)
)
 WITHOUT ROWID

;
CREATE TABLE window_version (
	window_id BIGINT NOT NULL, 
	version INTEGER NOT NULL, 
	digest VARCHAR NOT NULL, 
	reason VARCHAR NOT NULL, 
	line_count BIGINT NOT NULL, 
	board_ms BIGINT NOT NULL, 
	unknown_ms BIGINT NOT NULL, 
	unpriced_ms BIGINT NOT NULL, 
	nano BIGINT NOT NULL, 
	observed_ms BIGINT NOT NULL, 
	source VARCHAR NOT NULL, 
	code_version VARCHAR NOT NULL, 
	written_at_ms BIGINT NOT NULL, 
	CONSTRAINT pk_window_version PRIMARY KEY (window_id, version), 
	CONSTRAINT fk_window_version_window_id FOREIGN KEY(window_id) REFERENCES ledger_window (id)
);
CREATE INDEX ix_holder_pod_uid ON holder (pod_uid);
CREATE INDEX ix_holder_job_uid ON holder (job_uid);
CREATE INDEX ix_holder_team ON holder (team);
CREATE INDEX ix_ledger_window_month ON ledger_window (month);
CREATE INDEX ix_ledger_window_start_ms ON ledger_window (start_ms);
CREATE INDEX ix_usage_line_holder_id_window_id ON usage_line (holder_id, window_id);
CREATE INDEX ix_progress_line_pod_uid ON progress_line (pod_uid);
CREATE TRIGGER ledger_meta_update_guard BEFORE UPDATE ON ledger_meta FOR EACH ROW WHEN 1 BEGIN SELECT RAISE(ABORT, 'gpucost: ledger_meta is append-only'); END;
CREATE TRIGGER ledger_meta_delete_guard BEFORE DELETE ON ledger_meta FOR EACH ROW WHEN 1 BEGIN SELECT RAISE(ABORT, 'gpucost: ledger_meta is append-only'); END;
CREATE TRIGGER ledger_meta_insert_guard BEFORE INSERT ON ledger_meta FOR EACH ROW WHEN EXISTS (SELECT 1 FROM ledger_meta WHERE (id) = (NEW.id)) BEGIN SELECT RAISE(ABORT, 'gpucost: ledger_meta is append-only'); END;
CREATE TRIGGER unit_update_guard BEFORE UPDATE ON unit FOR EACH ROW WHEN 1 BEGIN SELECT RAISE(ABORT, 'gpucost: unit is append-only'); END;
CREATE TRIGGER unit_delete_guard BEFORE DELETE ON unit FOR EACH ROW WHEN 1 BEGIN SELECT RAISE(ABORT, 'gpucost: unit is append-only'); END;
CREATE TRIGGER unit_insert_guard BEFORE INSERT ON unit FOR EACH ROW WHEN EXISTS (SELECT 1 FROM unit WHERE (id) = (NEW.id) OR (content_key) = (NEW.content_key)) BEGIN SELECT RAISE(ABORT, 'gpucost: unit is append-only'); END;
CREATE TRIGGER holder_update_guard BEFORE UPDATE ON holder FOR EACH ROW WHEN 1 BEGIN SELECT RAISE(ABORT, 'gpucost: holder is append-only'); END;
CREATE TRIGGER holder_delete_guard BEFORE DELETE ON holder FOR EACH ROW WHEN 1 BEGIN SELECT RAISE(ABORT, 'gpucost: holder is append-only'); END;
CREATE TRIGGER holder_insert_guard BEFORE INSERT ON holder FOR EACH ROW WHEN EXISTS (SELECT 1 FROM holder WHERE (id) = (NEW.id) OR (content_key) = (NEW.content_key)) BEGIN SELECT RAISE(ABORT, 'gpucost: holder is append-only'); END;
CREATE TRIGGER rate_update_guard BEFORE UPDATE ON rate FOR EACH ROW WHEN 1 BEGIN SELECT RAISE(ABORT, 'gpucost: rate is append-only'); END;
CREATE TRIGGER rate_delete_guard BEFORE DELETE ON rate FOR EACH ROW WHEN 1 BEGIN SELECT RAISE(ABORT, 'gpucost: rate is append-only'); END;
CREATE TRIGGER rate_insert_guard BEFORE INSERT ON rate FOR EACH ROW WHEN EXISTS (SELECT 1 FROM rate WHERE (id) = (NEW.id) OR (content_key) = (NEW.content_key) OR (rate_id) = (NEW.rate_id)) BEGIN SELECT RAISE(ABORT, 'gpucost: rate is append-only'); END;
CREATE TRIGGER window_version_update_guard BEFORE UPDATE ON window_version FOR EACH ROW WHEN 1 BEGIN SELECT RAISE(ABORT, 'gpucost: window_version is append-only'); END;
CREATE TRIGGER window_version_delete_guard BEFORE DELETE ON window_version FOR EACH ROW WHEN 1 BEGIN SELECT RAISE(ABORT, 'gpucost: window_version is append-only'); END;
CREATE TRIGGER window_version_insert_guard BEFORE INSERT ON window_version FOR EACH ROW WHEN EXISTS (SELECT 1 FROM window_version WHERE (window_id, version) = (NEW.window_id, NEW.version)) BEGIN SELECT RAISE(ABORT, 'gpucost: window_version is append-only'); END;
CREATE TRIGGER month_update_guard BEFORE UPDATE ON month FOR EACH ROW WHEN 1 BEGIN SELECT RAISE(ABORT, 'gpucost: month is append-only'); END;
CREATE TRIGGER month_delete_guard BEFORE DELETE ON month FOR EACH ROW WHEN 1 BEGIN SELECT RAISE(ABORT, 'gpucost: month is append-only'); END;
CREATE TRIGGER month_insert_guard BEFORE INSERT ON month FOR EACH ROW WHEN EXISTS (SELECT 1 FROM month WHERE (seq) = (NEW.seq) OR (month) = (NEW.month)) BEGIN SELECT RAISE(ABORT, 'gpucost: month is append-only'); END;
CREATE TRIGGER adjustment_update_guard BEFORE UPDATE ON adjustment FOR EACH ROW WHEN 1 BEGIN SELECT RAISE(ABORT, 'gpucost: adjustment is append-only'); END;
CREATE TRIGGER adjustment_delete_guard BEFORE DELETE ON adjustment FOR EACH ROW WHEN 1 BEGIN SELECT RAISE(ABORT, 'gpucost: adjustment is append-only'); END;
CREATE TRIGGER adjustment_insert_guard BEFORE INSERT ON adjustment FOR EACH ROW WHEN EXISTS (SELECT 1 FROM adjustment WHERE (id) = (NEW.id) OR (month, team, job_uid, reference) = (NEW.month, NEW.team, NEW.job_uid, NEW.reference)) BEGIN SELECT RAISE(ABORT, 'gpucost: adjustment is append-only'); END;
CREATE TRIGGER audit_update_guard BEFORE UPDATE ON audit FOR EACH ROW WHEN 1 BEGIN SELECT RAISE(ABORT, 'gpucost: audit is append-only'); END;
CREATE TRIGGER audit_delete_guard BEFORE DELETE ON audit FOR EACH ROW WHEN 1 BEGIN SELECT RAISE(ABORT, 'gpucost: audit is append-only'); END;
CREATE TRIGGER audit_insert_guard BEFORE INSERT ON audit FOR EACH ROW WHEN EXISTS (SELECT 1 FROM audit WHERE (id) = (NEW.id)) BEGIN SELECT RAISE(ABORT, 'gpucost: audit is append-only'); END;
CREATE TRIGGER usage_line_update_guard BEFORE UPDATE ON usage_line FOR EACH ROW WHEN (SELECT state FROM ledger_window WHERE id = OLD.window_id) = 'closed' OR (SELECT state FROM ledger_window WHERE id = NEW.window_id) = 'closed' BEGIN SELECT RAISE(ABORT, 'gpucost: the month is closed'); END;
CREATE TRIGGER progress_line_update_guard BEFORE UPDATE ON progress_line FOR EACH ROW WHEN (SELECT state FROM ledger_window WHERE id = OLD.window_id) = 'closed' OR (SELECT state FROM ledger_window WHERE id = NEW.window_id) = 'closed' BEGIN SELECT RAISE(ABORT, 'gpucost: the month is closed'); END;
CREATE TRIGGER window_problem_update_guard BEFORE UPDATE ON window_problem FOR EACH ROW WHEN (SELECT state FROM ledger_window WHERE id = OLD.window_id) = 'closed' OR (SELECT state FROM ledger_window WHERE id = NEW.window_id) = 'closed' BEGIN SELECT RAISE(ABORT, 'gpucost: the month is closed'); END;
CREATE TRIGGER ledger_window_update_guard BEFORE UPDATE ON ledger_window FOR EACH ROW WHEN OLD.state = 'closed' BEGIN SELECT RAISE(ABORT, 'gpucost: the month is closed'); END;
CREATE TRIGGER ledger_window_update_moved BEFORE UPDATE ON ledger_window FOR EACH ROW WHEN NEW.id <> OLD.id OR NEW.cluster <> OLD.cluster OR NEW.start_ms <> OLD.start_ms OR NEW.end_ms <> OLD.end_ms OR NEW.month <> OLD.month BEGIN SELECT RAISE(ABORT, 'gpucost: a window does not move'); END;
CREATE TRIGGER ledger_window_delete_guard BEFORE DELETE ON ledger_window FOR EACH ROW WHEN 1 BEGIN SELECT RAISE(ABORT, 'gpucost: a window is never deleted'); END;
CREATE TRIGGER ledger_window_insert_guard BEFORE INSERT ON ledger_window FOR EACH ROW WHEN EXISTS (SELECT 1 FROM month WHERE month = NEW.month) BEGIN SELECT RAISE(ABORT, 'gpucost: the month is closed'); END;
CREATE TRIGGER ledger_window_insert_known BEFORE INSERT ON ledger_window FOR EACH ROW WHEN EXISTS (SELECT 1 FROM ledger_window WHERE id = NEW.id OR (cluster, start_ms) = (NEW.cluster, NEW.start_ms)) BEGIN SELECT RAISE(ABORT, 'gpucost: a window is never replaced'); END;
CREATE UNIQUE INDEX ix_finding_unresolved ON finding (cluster, fingerprint) WHERE state <> 'resolved';
CREATE INDEX ix_finding_cluster_closed_at_ms ON finding (cluster, closed_at_ms);
CREATE INDEX ix_finding_team ON finding (team);
CREATE INDEX ix_finding_event_finding_id ON finding_event (finding_id);
CREATE TRIGGER waste_window_insert_guard BEFORE INSERT ON waste_window FOR EACH ROW WHEN (SELECT state FROM ledger_window WHERE id = NEW.window_id) = 'closed' BEGIN SELECT RAISE(ABORT, 'gpucost: the month is closed'); END;
CREATE TRIGGER waste_window_update_guard BEFORE UPDATE ON waste_window FOR EACH ROW WHEN (SELECT state FROM ledger_window WHERE id = OLD.window_id) = 'closed' OR (SELECT state FROM ledger_window WHERE id = NEW.window_id) = 'closed' BEGIN SELECT RAISE(ABORT, 'gpucost: the month is closed'); END;
CREATE TRIGGER waste_window_delete_guard BEFORE DELETE ON waste_window FOR EACH ROW WHEN (SELECT state FROM ledger_window WHERE id = OLD.window_id) = 'closed' BEGIN SELECT RAISE(ABORT, 'gpucost: the month is closed'); END;
CREATE TRIGGER finding_event_update_guard BEFORE UPDATE ON finding_event FOR EACH ROW WHEN 1 BEGIN SELECT RAISE(ABORT, 'gpucost: finding_event is append-only'); END;
CREATE TRIGGER finding_event_insert_guard BEFORE INSERT ON finding_event FOR EACH ROW WHEN EXISTS (SELECT 1 FROM finding_event WHERE (id) = (NEW.id)) BEGIN SELECT RAISE(ABORT, 'gpucost: finding_event is append-only'); END;
CREATE INDEX ix_wait_prediction_cluster_asked_ms ON wait_prediction (cluster, asked_ms);
CREATE INDEX ix_wait_prediction_undecided ON wait_prediction (cluster, workload_uid) WHERE started_ms IS NULL AND gone_ms IS NULL;
CREATE INDEX ix_notify_conversation_changed_ms ON notify_conversation (changed_ms);
CREATE INDEX ix_notify_post_waiting ON notify_post (channel, "key", id) WHERE state = 'waiting';
CREATE INDEX ix_notify_post_ended_ms ON notify_post (ended_ms);
CREATE INDEX ix_alert_group_received_ms ON alert_group (received_ms);
CREATE TRIGGER api_key_update_fixed BEFORE UPDATE ON api_key FOR EACH ROW WHEN NEW.id IS NOT OLD.id OR NEW.sha256 IS NOT OLD.sha256 OR NEW.role IS NOT OLD.role OR NEW.teams IS NOT OLD.teams OR NEW.clusters IS NOT OLD.clusters OR NEW.expires_ms IS NOT OLD.expires_ms OR NEW.created_ms IS NOT OLD.created_ms OR NEW.created_by IS NOT OLD.created_by OR NEW.note IS NOT OLD.note BEGIN SELECT RAISE(ABORT, 'gpucost: a key does not change'); END;
CREATE TRIGGER api_key_update_revoked BEFORE UPDATE ON api_key FOR EACH ROW WHEN OLD.revoked_ms IS NOT NULL AND NEW.revoked_ms IS NOT OLD.revoked_ms BEGIN SELECT RAISE(ABORT, 'gpucost: a revocation is for good'); END;
CREATE TRIGGER api_key_delete_guard BEFORE DELETE ON api_key FOR EACH ROW WHEN 1 BEGIN SELECT RAISE(ABORT, 'gpucost: a key is never deleted'); END;
CREATE TRIGGER api_key_insert_known BEFORE INSERT ON api_key FOR EACH ROW WHEN EXISTS (SELECT 1 FROM api_key WHERE id = NEW.id) BEGIN SELECT RAISE(ABORT, 'gpucost: a key is never replaced'); END;
CREATE INDEX ix_folded_day_month ON folded_day (month);
CREATE INDEX ix_folded_day_start_ms ON folded_day (start_ms);
CREATE TRIGGER fold_begun_update_guard BEFORE UPDATE ON fold_begun FOR EACH ROW WHEN 1 BEGIN SELECT RAISE(ABORT, 'gpucost: fold_begun is append-only'); END;
CREATE TRIGGER fold_begun_delete_guard BEFORE DELETE ON fold_begun FOR EACH ROW WHEN 1 BEGIN SELECT RAISE(ABORT, 'gpucost: fold_begun is append-only'); END;
CREATE TRIGGER fold_begun_insert_guard BEFORE INSERT ON fold_begun FOR EACH ROW WHEN EXISTS (SELECT 1 FROM fold_begun WHERE (month) = (NEW.month)) BEGIN SELECT RAISE(ABORT, 'gpucost: fold_begun is append-only'); END;
CREATE TRIGGER month_fold_update_guard BEFORE UPDATE ON month_fold FOR EACH ROW WHEN 1 BEGIN SELECT RAISE(ABORT, 'gpucost: month_fold is append-only'); END;
CREATE TRIGGER month_fold_delete_guard BEFORE DELETE ON month_fold FOR EACH ROW WHEN 1 BEGIN SELECT RAISE(ABORT, 'gpucost: month_fold is append-only'); END;
CREATE TRIGGER month_fold_insert_guard BEFORE INSERT ON month_fold FOR EACH ROW WHEN EXISTS (SELECT 1 FROM month_fold WHERE (month) = (NEW.month)) BEGIN SELECT RAISE(ABORT, 'gpucost: month_fold is append-only'); END;
CREATE TRIGGER folded_day_update_guard BEFORE UPDATE ON folded_day FOR EACH ROW WHEN 1 BEGIN SELECT RAISE(ABORT, 'gpucost: folded_day is append-only'); END;
CREATE TRIGGER folded_day_delete_guard BEFORE DELETE ON folded_day FOR EACH ROW WHEN 1 BEGIN SELECT RAISE(ABORT, 'gpucost: folded_day is append-only'); END;
CREATE TRIGGER folded_day_insert_guard BEFORE INSERT ON folded_day FOR EACH ROW WHEN EXISTS (SELECT 1 FROM folded_day WHERE (window_id) = (NEW.window_id)) BEGIN SELECT RAISE(ABORT, 'gpucost: folded_day is append-only'); END;
CREATE TRIGGER folded_day_insert_open BEFORE INSERT ON folded_day FOR EACH ROW WHEN NOT EXISTS (SELECT 1 FROM fold_begun b WHERE b.month = NEW.month AND NOT EXISTS (SELECT 1 FROM month_fold f WHERE f.month = b.month)) BEGIN SELECT RAISE(ABORT, 'gpucost: no month is being folded'); END;
CREATE TRIGGER finding_event_delete_guard BEFORE DELETE ON finding_event FOR EACH ROW WHEN NOT EXISTS (SELECT 1 FROM finding WHERE id = OLD.finding_id AND state = 'resolved' AND revision = 0) BEGIN SELECT RAISE(ABORT, 'gpucost: finding_event is append-only'); END;
CREATE INDEX ix_waste_line_holder_id_window_id ON waste_line (holder_id, window_id);
CREATE TRIGGER waste_line_update_guard BEFORE UPDATE ON waste_line FOR EACH ROW WHEN (SELECT state FROM ledger_window WHERE id = OLD.window_id) = 'closed' OR (SELECT state FROM ledger_window WHERE id = NEW.window_id) = 'closed' BEGIN SELECT RAISE(ABORT, 'gpucost: the month is closed'); END;
CREATE TRIGGER team_rule_update_guard BEFORE UPDATE ON team_rule FOR EACH ROW WHEN 1 BEGIN SELECT RAISE(ABORT, 'gpucost: team_rule is append-only'); END;
CREATE TRIGGER team_rule_delete_guard BEFORE DELETE ON team_rule FOR EACH ROW WHEN 1 BEGIN SELECT RAISE(ABORT, 'gpucost: team_rule is append-only'); END;
CREATE TRIGGER team_rule_insert_guard BEFORE INSERT ON team_rule FOR EACH ROW WHEN EXISTS (SELECT 1 FROM team_rule WHERE (id) = (NEW.id) OR (content_key) = (NEW.content_key)) BEGIN SELECT RAISE(ABORT, 'gpucost: team_rule is append-only'); END;
CREATE TRIGGER month_charges_update_guard BEFORE UPDATE ON month_charges FOR EACH ROW WHEN 1 BEGIN SELECT RAISE(ABORT, 'gpucost: month_charges is append-only'); END;
CREATE TRIGGER month_charges_delete_guard BEFORE DELETE ON month_charges FOR EACH ROW WHEN 1 BEGIN SELECT RAISE(ABORT, 'gpucost: month_charges is append-only'); END;
CREATE TRIGGER month_charges_insert_guard BEFORE INSERT ON month_charges FOR EACH ROW WHEN EXISTS (SELECT 1 FROM month_charges WHERE (month) = (NEW.month)) BEGIN SELECT RAISE(ABORT, 'gpucost: month_charges is append-only'); END;
CREATE INDEX ix_login_session_expires_ms ON login_session (expires_ms);
CREATE INDEX ix_usage_day_month ON usage_day (month);
CREATE INDEX ix_usage_day_start_ms ON usage_day (start_ms);
CREATE TRIGGER day_line_insert_guard BEFORE INSERT ON day_line FOR EACH ROW WHEN EXISTS (SELECT 1 FROM usage_day d JOIN month m ON m.month = d.month WHERE d.id = NEW.day_id AND d.digest <> '') BEGIN SELECT RAISE(ABORT, 'gpucost: the month is closed'); END;
CREATE TRIGGER day_line_update_guard BEFORE UPDATE ON day_line FOR EACH ROW WHEN NEW.day_id <> OLD.day_id OR EXISTS (SELECT 1 FROM usage_day d JOIN month m ON m.month = d.month WHERE d.id = OLD.day_id) BEGIN SELECT RAISE(ABORT, 'gpucost: the month is closed'); END;
CREATE TRIGGER usage_day_insert_guard BEFORE INSERT ON usage_day FOR EACH ROW WHEN EXISTS (SELECT 1 FROM usage_day WHERE id = NEW.id OR (cluster, start_ms) = (NEW.cluster, NEW.start_ms)) BEGIN SELECT RAISE(ABORT, 'gpucost: a day is never replaced'); END;
CREATE TRIGGER usage_day_update_guard BEFORE UPDATE ON usage_day FOR EACH ROW WHEN NEW.id <> OLD.id OR NEW.cluster <> OLD.cluster OR NEW.start_ms <> OLD.start_ms OR NEW.month <> OLD.month OR OLD.digest <> '' BEGIN SELECT RAISE(ABORT, 'gpucost: a day does not change'); END;
CREATE TRIGGER usage_line_insert_guard BEFORE INSERT ON usage_line FOR EACH ROW WHEN (SELECT state FROM ledger_window WHERE id = NEW.window_id) = 'closed' AND NOT (EXISTS (SELECT 1 FROM fold_begun b WHERE b.month = (SELECT month FROM ledger_window WHERE id = NEW.window_id) AND NOT EXISTS (SELECT 1 FROM month_fold f WHERE f.month = b.month)) OR EXISTS (SELECT 1 FROM seal_begun b WHERE b.month = (SELECT month FROM ledger_window WHERE id = NEW.window_id) AND NOT EXISTS (SELECT 1 FROM month_seal f WHERE f.seq = b.seq))) BEGIN SELECT RAISE(ABORT, 'gpucost: the month is closed'); END;
CREATE TRIGGER usage_line_delete_guard BEFORE DELETE ON usage_line FOR EACH ROW WHEN (SELECT state FROM ledger_window WHERE id = OLD.window_id) = 'closed' AND NOT (EXISTS (SELECT 1 FROM fold_begun b WHERE b.month = (SELECT month FROM ledger_window WHERE id = OLD.window_id) AND NOT EXISTS (SELECT 1 FROM month_fold f WHERE f.month = b.month)) OR EXISTS (SELECT 1 FROM seal_begun b WHERE b.month = (SELECT month FROM ledger_window WHERE id = OLD.window_id) AND NOT EXISTS (SELECT 1 FROM month_seal f WHERE f.seq = b.seq))) BEGIN SELECT RAISE(ABORT, 'gpucost: the month is closed'); END;
CREATE TRIGGER progress_line_insert_guard BEFORE INSERT ON progress_line FOR EACH ROW WHEN (SELECT state FROM ledger_window WHERE id = NEW.window_id) = 'closed' AND NOT (EXISTS (SELECT 1 FROM fold_begun b WHERE b.month = (SELECT month FROM ledger_window WHERE id = NEW.window_id) AND NOT EXISTS (SELECT 1 FROM month_fold f WHERE f.month = b.month)) OR EXISTS (SELECT 1 FROM seal_begun b WHERE b.month = (SELECT month FROM ledger_window WHERE id = NEW.window_id) AND NOT EXISTS (SELECT 1 FROM month_seal f WHERE f.seq = b.seq))) BEGIN SELECT RAISE(ABORT, 'gpucost: the month is closed'); END;
CREATE TRIGGER progress_line_delete_guard BEFORE DELETE ON progress_line FOR EACH ROW WHEN (SELECT state FROM ledger_window WHERE id = OLD.window_id) = 'closed' AND NOT (EXISTS (SELECT 1 FROM fold_begun b WHERE b.month = (SELECT month FROM ledger_window WHERE id = OLD.window_id) AND NOT EXISTS (SELECT 1 FROM month_fold f WHERE f.month = b.month)) OR EXISTS (SELECT 1 FROM seal_begun b WHERE b.month = (SELECT month FROM ledger_window WHERE id = OLD.window_id) AND NOT EXISTS (SELECT 1 FROM month_seal f WHERE f.seq = b.seq))) BEGIN SELECT RAISE(ABORT, 'gpucost: the month is closed'); END;
CREATE TRIGGER window_problem_insert_guard BEFORE INSERT ON window_problem FOR EACH ROW WHEN (SELECT state FROM ledger_window WHERE id = NEW.window_id) = 'closed' AND NOT (EXISTS (SELECT 1 FROM fold_begun b WHERE b.month = (SELECT month FROM ledger_window WHERE id = NEW.window_id) AND NOT EXISTS (SELECT 1 FROM month_fold f WHERE f.month = b.month)) OR EXISTS (SELECT 1 FROM seal_begun b WHERE b.month = (SELECT month FROM ledger_window WHERE id = NEW.window_id) AND NOT EXISTS (SELECT 1 FROM month_seal f WHERE f.seq = b.seq))) BEGIN SELECT RAISE(ABORT, 'gpucost: the month is closed'); END;
CREATE TRIGGER window_problem_delete_guard BEFORE DELETE ON window_problem FOR EACH ROW WHEN (SELECT state FROM ledger_window WHERE id = OLD.window_id) = 'closed' AND NOT (EXISTS (SELECT 1 FROM fold_begun b WHERE b.month = (SELECT month FROM ledger_window WHERE id = OLD.window_id) AND NOT EXISTS (SELECT 1 FROM month_fold f WHERE f.month = b.month)) OR EXISTS (SELECT 1 FROM seal_begun b WHERE b.month = (SELECT month FROM ledger_window WHERE id = OLD.window_id) AND NOT EXISTS (SELECT 1 FROM month_seal f WHERE f.seq = b.seq))) BEGIN SELECT RAISE(ABORT, 'gpucost: the month is closed'); END;
CREATE TRIGGER waste_line_insert_guard BEFORE INSERT ON waste_line FOR EACH ROW WHEN (SELECT state FROM ledger_window WHERE id = NEW.window_id) = 'closed' AND NOT (EXISTS (SELECT 1 FROM fold_begun b WHERE b.month = (SELECT month FROM ledger_window WHERE id = NEW.window_id) AND NOT EXISTS (SELECT 1 FROM month_fold f WHERE f.month = b.month)) OR EXISTS (SELECT 1 FROM seal_begun b WHERE b.month = (SELECT month FROM ledger_window WHERE id = NEW.window_id) AND NOT EXISTS (SELECT 1 FROM month_seal f WHERE f.seq = b.seq))) BEGIN SELECT RAISE(ABORT, 'gpucost: the month is closed'); END;
CREATE TRIGGER waste_line_delete_guard BEFORE DELETE ON waste_line FOR EACH ROW WHEN (SELECT state FROM ledger_window WHERE id = OLD.window_id) = 'closed' AND NOT (EXISTS (SELECT 1 FROM fold_begun b WHERE b.month = (SELECT month FROM ledger_window WHERE id = OLD.window_id) AND NOT EXISTS (SELECT 1 FROM month_fold f WHERE f.month = b.month)) OR EXISTS (SELECT 1 FROM seal_begun b WHERE b.month = (SELECT month FROM ledger_window WHERE id = OLD.window_id) AND NOT EXISTS (SELECT 1 FROM month_seal f WHERE f.seq = b.seq))) BEGIN SELECT RAISE(ABORT, 'gpucost: the month is closed'); END;
CREATE TRIGGER day_line_delete_guard BEFORE DELETE ON day_line FOR EACH ROW WHEN EXISTS (SELECT 1 FROM month WHERE month = (SELECT month FROM usage_day WHERE id = OLD.day_id)) AND NOT EXISTS (SELECT 1 FROM seal_begun b WHERE b.month = (SELECT month FROM usage_day WHERE id = OLD.day_id) AND NOT EXISTS (SELECT 1 FROM month_seal f WHERE f.seq = b.seq)) BEGIN SELECT RAISE(ABORT, 'gpucost: the month is closed'); END;
CREATE TRIGGER usage_day_delete_guard BEFORE DELETE ON usage_day FOR EACH ROW WHEN EXISTS (SELECT 1 FROM month WHERE month = OLD.month) AND NOT EXISTS (SELECT 1 FROM seal_begun b WHERE b.month = OLD.month AND NOT EXISTS (SELECT 1 FROM month_seal f WHERE f.seq = b.seq)) BEGIN SELECT RAISE(ABORT, 'gpucost: the month is closed'); END;
CREATE TRIGGER seal_begun_update_guard BEFORE UPDATE ON seal_begun FOR EACH ROW WHEN 1 BEGIN SELECT RAISE(ABORT, 'gpucost: seal_begun is append-only'); END;
CREATE TRIGGER seal_begun_delete_guard BEFORE DELETE ON seal_begun FOR EACH ROW WHEN 1 BEGIN SELECT RAISE(ABORT, 'gpucost: seal_begun is append-only'); END;
CREATE TRIGGER seal_begun_insert_guard BEFORE INSERT ON seal_begun FOR EACH ROW WHEN EXISTS (SELECT 1 FROM seal_begun WHERE (seq) = (NEW.seq)) BEGIN SELECT RAISE(ABORT, 'gpucost: seal_begun is append-only'); END;
CREATE TRIGGER month_seal_update_guard BEFORE UPDATE ON month_seal FOR EACH ROW WHEN 1 BEGIN SELECT RAISE(ABORT, 'gpucost: month_seal is append-only'); END;
CREATE TRIGGER month_seal_delete_guard BEFORE DELETE ON month_seal FOR EACH ROW WHEN 1 BEGIN SELECT RAISE(ABORT, 'gpucost: month_seal is append-only'); END;
CREATE TRIGGER month_seal_insert_guard BEFORE INSERT ON month_seal FOR EACH ROW WHEN EXISTS (SELECT 1 FROM month_seal WHERE (seq) = (NEW.seq)) BEGIN SELECT RAISE(ABORT, 'gpucost: month_seal is append-only'); END;
CREATE TRIGGER sealed_holder_update_guard BEFORE UPDATE ON sealed_holder FOR EACH ROW WHEN 1 BEGIN SELECT RAISE(ABORT, 'gpucost: the month is closed'); END;
CREATE TRIGGER sealed_holder_insert_guard BEFORE INSERT ON sealed_holder FOR EACH ROW WHEN NOT EXISTS (SELECT 1 FROM seal_begun b WHERE b.month = (SELECT month FROM seal_begun s WHERE s.seq = NEW.seq) AND NOT EXISTS (SELECT 1 FROM month_seal f WHERE f.seq = b.seq)) BEGIN SELECT RAISE(ABORT, 'gpucost: no month is being sealed'); END;
CREATE TRIGGER sealed_holder_delete_guard BEFORE DELETE ON sealed_holder FOR EACH ROW WHEN NOT EXISTS (SELECT 1 FROM seal_begun b WHERE b.month = (SELECT month FROM seal_begun s WHERE s.seq = OLD.seq) AND NOT EXISTS (SELECT 1 FROM month_seal f WHERE f.seq = b.seq)) BEGIN SELECT RAISE(ABORT, 'gpucost: no month is being sealed'); END;
