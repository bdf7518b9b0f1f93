"""Tables of the current moment under Monarch's names and columns: its tree of nodes, and stacks.

The snapshot is taken when the query is asked; for a run's folder it is the last one that was
written. There is only one, so ``snapshot_id`` is the same everywhere. Ids are text.
"""

from __future__ import annotations

_DUMP = (
    '[{"thread_id":"UBIGINT","thread_name":"VARCHAR","os_thread_id":"UBIGINT","active":"BOOLEAN",'
    '"owns_gil":"BOOLEAN","frames":[{"name":"VARCHAR","filename":"VARCHAR","module":"VARCHAR",'
    '"short_filename":"VARCHAR","line":"INTEGER","is_entry":"BOOLEAN","locals":[{"name":"VARCHAR",'
    '"addr":"UBIGINT","arg":"BOOLEAN","repr":"VARCHAR"}]}]}]'
)

# In the order in which they are made, after those of `tables.py`.
SNAPSHOT_VIEWS: dict[str, str] = {
    "_now_actors": """
        SELECT p AS proc, mesh || '[' || rank || ']' AS node_id, max_by(us, t) AS us,
            max_by(status, t) AS status, max_by(class, t) AS class, max_by(name, t) AS name,
            max_by(rank, t) AS rank, max_by(mesh, t) AS mesh, max_by(num_ended, t) AS num_ended,
            max_by(queue, t) AS queue, max_by(doing, t) AS doing, max_by(seconds, t) AS seconds
        FROM _at WHERE k = 'now_actor' GROUP BY ALL""",
    "_now_procs": """
        SELECT p AS node_id, max_by(us, t) AS us, max_by(status, t) AS status,
            max_by(proc_name, t) AS name, max_by(proc_host, t) AS host
        FROM _at WHERE k = 'now_proc' GROUP BY p""",
    "_now_hosts": """
        SELECT coalesce(host, url) AS node_id, any_value(url) AS url, any_value(text) AS error
        FROM rows WHERE k = 'now_host' GROUP BY ALL""",
    "snapshots": """
        SELECT 'asked' AS snapshot_id, coalesce(max(us), 0)::BIGINT AS snapshot_ts
        FROM _at WHERE k IN ('now_proc', 'now_actor') HAVING count(*) > 0""",
    "nodes": """
        SELECT 'asked' AS snapshot_id, node_id, node_kind, as_of FROM (
            SELECT 'root' AS node_id, 'root' AS node_kind, snapshot_ts AS as_of FROM snapshots
            UNION ALL SELECT node_id, CASE WHEN error IS NULL THEN 'host' ELSE 'error' END,
                (SELECT max(snapshot_ts) FROM snapshots) FROM _now_hosts
            UNION ALL SELECT node_id, 'proc', us FROM _now_procs
            UNION ALL SELECT node_id, 'actor', us FROM _now_actors)""",
    "children": """
        SELECT 'asked' AS snapshot_id, parent_id, child_id,
            row_number() OVER (PARTITION BY parent_id ORDER BY child_id) - 1 AS child_sort_key,
            is_system, is_stopped FROM (
            SELECT 'root' AS parent_id, node_id AS child_id, false AS is_system,
                false AS is_stopped FROM _now_hosts
            UNION ALL SELECT host, node_id, false, false FROM _now_procs
            UNION ALL SELECT proc, node_id, starts_with(class, 'monarch.'), status = 'stopped'
                FROM _now_actors)""",
    "root_nodes": """
        SELECT 'asked' AS snapshot_id, 'root' AS node_id,
            (SELECT count(*) FROM _now_hosts) AS num_hosts,
            coalesce((SELECT min(us) FROM _at WHERE k = 'actor'), snapshot_ts) AS started_at,
            '' AS started_by
        FROM snapshots""",
    "host_nodes": """
        SELECT 'asked' AS snapshot_id, node_id, url AS addr,
            (SELECT count(*) FROM _now_procs p WHERE p.host = h.node_id) AS host_num_procs
        FROM _now_hosts h WHERE error IS NULL""",
    "proc_nodes": """
        SELECT 'asked' AS snapshot_id, p.node_id, any_value(p.name) AS proc_name,
            count(a.node_id) AS num_actors, 0::BIGINT AS stopped_retention_cap,
            any_value(p.status) = 'hangs' AS is_poisoned,
            count(*) FILTER (a.status = 'failed') AS failed_actor_count
        FROM _now_procs p LEFT JOIN _now_actors a ON a.proc = p.node_id GROUP BY p.node_id""",
    "actor_nodes": """
        SELECT 'asked' AS snapshot_id, n.node_id, n.status AS actor_status, n.class AS actor_type,
            n.proc || ':' || n.node_id AS instance_id, n.num_ended AS messages_processed,
            b.us AS created_at, coalesce(n.doing, c.method) AS last_message_handler,
            coalesce(c.total, 0)::BIGINT AS total_processing_time_us, n.queue AS queue_depth,
            starts_with(n.class, 'monarch.') AS is_system
        FROM _now_actors n
            LEFT JOIN (SELECT p, mesh, rank, us FROM _at WHERE k = 'actor') b
                ON b.p = n.proc AND b.mesh = n.mesh AND b.rank = n.rank
            LEFT JOIN (SELECT p, mesh, rank, max_by(method, t) AS method, sum(run) // 1000 AS total
                FROM rows WHERE k = 'call' GROUP BY ALL) c
                ON c.p = n.proc AND c.mesh = n.mesh AND c.rank = n.rank""",
    "actor_failures": """
        SELECT 'asked' AS snapshot_id, s.mesh || '[' || s.rank || ']' AS node_id,
            s.text AS failure_error_message,
            s.mesh || '[' || s.rank || ']' AS failure_root_cause_actor,
            a.name AS failure_root_cause_name, s.us AS failure_occurred_at,
            false AS failure_is_propagated
        FROM _at s LEFT JOIN _actors a ON a.mesh = s.mesh AND a.rank = s.rank AND a.p = s.p
        WHERE s.k = 'status' AND s.status = 'failed'""",
    "actor_executions": """
        SELECT 'asked' AS snapshot_id, node_id, (doing IS NOT NULL)::BIGINT AS active_count,
            true AS complete, false AS truncated
        FROM _now_actors""",
    "active_handlers": """
        SELECT 'asked' AS snapshot_id, node_id, doing AS name, 1::BIGINT AS active_count,
            (us - seconds * 1e6)::BIGINT AS oldest_since
        FROM _now_actors WHERE doing IS NOT NULL""",
    "resolution_errors": """
        SELECT 'asked' AS snapshot_id, node_id, 'unreachable' AS error_code, error AS error_message
        FROM _now_hosts WHERE error IS NOT NULL
        UNION ALL SELECT 'asked', node_id, 'hangs', name || ' does not answer' FROM _now_procs
        WHERE status = 'hangs'""",
    # Links keep the order of each sender, so nothing is put back in order at a receiver.
    "actor_inbound_orderings": """
        SELECT 'asked' AS snapshot_id, node_id, false AS enabled, true AS snapshot_complete,
            0::BIGINT AS skipped_session_count, 0::BIGINT AS known_session_count,
            0::BIGINT AS returned_buffered_session_count,
            0::BIGINT AS returned_buffered_message_count, 0::BIGINT AS returned_max_buffered_count
        FROM _now_actors""",
    "ordering_sessions": """
        SELECT '' AS snapshot_id, '' AS node_id, '' AS session_id, NULL::VARCHAR AS sender,
            0::BIGINT AS last_released_seq, 0::BIGINT AS expected_next_seq,
            0::BIGINT AS buffered_count, NULL::BIGINT AS oldest_buffered_seq,
            NULL::BIGINT AS newest_buffered_seq WHERE false""",
    "stacks": """
        SELECT proc_name AS proc, proc_host AS host, rank, name AS actor, method, op AS thread,
            num AS depth, doing AS function, place AS file, seq AS line, text AS source,
            ok AS is_users
        FROM _at WHERE k = 'stack'""",
    "_dumps": f"""
        SELECT p, unnest(from_json(dump, '{_DUMP}')) AS thread, pid
        FROM rows WHERE k = 'py_spy' AND dump IS NOT NULL""",
    "pyspy_dumps": """
        SELECT p AS dump_id, us AS timestamp_us, pid::INTEGER AS pid, 'python' AS binary,
            proc_name AS proc_ref,
            CASE WHEN dump IS NULL THEN 'failed' ELSE 'python_only' END AS capture_mode,
            CASE WHEN text IS NULL THEN '[]' ELSE json_array(text)::VARCHAR END AS warnings_json
        FROM _at WHERE k = 'py_spy'""",
    "pyspy_stack_traces": """
        SELECT p AS dump_id, pid::INTEGER AS pid, thread.thread_id AS thread_id,
            thread.thread_name AS thread_name, thread.os_thread_id AS os_thread_id,
            thread.active AS active, thread.owns_gil AS owns_gil
        FROM _dumps""",
    "_dump_frames": """
        SELECT p, thread.thread_id AS thread_id, unnest(thread.frames) AS frame,
            (generate_subscripts(thread.frames, 1) - 1)::INTEGER AS frame_depth
        FROM _dumps""",
    "pyspy_frames": """
        SELECT p AS dump_id, thread_id, frame_depth, frame.name AS name, frame.filename AS filename,
            frame.module AS module, frame.short_filename AS short_filename, frame.line AS line,
            coalesce(frame.is_entry, false) AS is_entry
        FROM _dump_frames""",
    "pyspy_local_variables": """
        SELECT dump_id, thread_id, frame_depth, one.name AS name, one.addr AS addr, one.arg AS arg,
            one.repr AS repr
        FROM (SELECT p AS dump_id, thread_id, frame_depth, unnest(frame.locals) AS one
            FROM _dump_frames)""",
}
