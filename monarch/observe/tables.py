"""The tables for queries, as SQL over the rows that processes record, and ready questions.

Tables with upstream's names have its columns: times are microseconds since 1970, keys are numbers.
The others are ours, in seconds.
"""

from __future__ import annotations

# The columns of rows of all kinds together; a kind fills some.
ROW_COLUMNS: dict[str, str] = {
    "k": "VARCHAR", "p": "VARCHAR", "t": "BIGINT", "mesh": "VARCHAR", "rank": "BIGINT",
    "method": "VARCHAR", "sender": "VARCHAR", "port": "BIGINT", "wait": "BIGINT", "run": "BIGINT",
    "ok": "BOOLEAN", "generation": "BIGINT", "to_mesh": "VARCHAR", "num": "BIGINT",
    "name": "VARCHAR", "class": "VARCHAR", "labels": "JSON", "sizes": "JSON", "owner": "VARCHAR",
    "owner_mesh": "VARCHAR", "status": "VARCHAR", "text": "VARCHAR", "about": "VARCHAR",
    "offset": "HUGEINT", "host": "VARCHAR", "pid": "BIGINT", "life": "BIGINT", "queue": "BIGINT",
    "cpu_seconds": "DOUBLE", "rss": "BIGINT", "seconds": "DOUBLE", "url": "VARCHAR",
    "cpu": "DOUBLE", "mem_used": "BIGINT", "mem_total": "BIGINT", "num_gpus": "BIGINT",
    "seq": "BIGINT", "op": "VARCHAR", "group": "VARCHAR", "done": "BOOLEAN", "place": "VARCHAR",
    "doing": "VARCHAR", "num_ended": "BIGINT", "num_failed": "BIGINT", "epoch": "HUGEINT",
    "dump": "JSON",
}  # fmt: skip

# In the order in which they are made: later ones use earlier ones.
VIEWS: dict[str, str] = {
    "_clocks": """
        SELECT host, arg_max("offset", "offset") AS "offset", max(run) AS error
        FROM rows WHERE k = 'clock' GROUP BY host""",
    "_procs": """
        SELECT p AS uid, max_by(name, t) AS name, max_by(host, t) AS host, max_by(pid, t) AS pid,
            max_by(mesh, t) AS mesh, max_by(rank, t) AS rank, max_by(labels, t) AS labels,
            max_by(sizes, t) AS sizes, max_by("offset", t) AS "offset", min(t) AS t
        FROM rows WHERE k = 'proc' GROUP BY p""",
    "_at": """
        SELECT r.*, coalesce(q.name, r.p) AS proc_name, coalesce(q.host, '') AS proc_host,
            coalesce(c."offset", q."offset", 0) AS to_epoch,
            ((r.t + coalesce(c."offset", q."offset", 0)) // 1000)::BIGINT AS us
        FROM rows r LEFT JOIN _procs q ON q.uid = r.p LEFT JOIN _clocks c ON c.host = q.host""",
    "_actors": """
        SELECT p, mesh, rank, min(us) AS us, max_by(name, t) AS name, max_by(class, t) AS class,
            max_by(labels, t) AS labels, max_by(sizes, t) AS sizes,
            max_by(owner_mesh, t) AS owner_mesh, max_by(proc_name, t) AS proc,
            max_by(proc_host, t) AS host
        FROM _at WHERE k IN ('actor', 'now_actor') GROUP BY p, mesh, rank""",
    "actors": """
        SELECT hash(mesh, rank) AS id, us AS timestamp_us, hash(mesh) AS mesh_id, rank,
            mesh || '[' || rank || ']' AS full_name, name || ' ' || rank AS display_name,
            name, class, proc, host
        FROM _actors""",
    "meshes": """
        SELECT hash(mesh) AS id, min(us) AS timestamp_us, any_value(class) AS class,
            any_value(name) AS given_name, any_value(name) || '-' || mesh AS full_name,
            any_value(json_object('labels', labels, 'sizes', sizes))::VARCHAR AS shape_json,
            CASE WHEN any_value(owner_mesh) = '' THEN NULL ELSE hash(any_value(owner_mesh)) END
                AS parent_mesh_id, NULL::VARCHAR AS parent_view_json
        FROM _actors GROUP BY mesh
        UNION ALL
        SELECT hash(mesh), min((t + "offset") // 1000)::BIGINT, 'Proc',
            any_value(regexp_replace(name, ' [0-9]+$', '')), any_value(name) || '-' || mesh,
            any_value(json_object('labels', labels, 'sizes', sizes))::VARCHAR, NULL, NULL
        FROM _procs WHERE mesh <> '' GROUP BY mesh""",
    "actor_status_events": """
        SELECT hash(p, mesh, rank, t, status) AS id, us AS timestamp_us,
            hash(mesh, rank) AS actor_id, upper(status[1]) || status[2:] AS new_status,
            text AS reason
        FROM _at WHERE k = 'status'""",
    "calls": """
        SELECT c.us / 1e6 AS ended_at, coalesce(a.name, c.mesh) AS actor, c.rank, c.method,
            coalesce(s.proc_name, c.sender) AS sender_proc, c.wait / 1e9 AS wait_seconds,
            c.run / 1e9 AS run_seconds, c.ok, c.generation, c.proc_name AS proc,
            c.proc_host AS host, c.mesh AS mesh_uid, c.sender, c.port, c.p AS proc_uid, c.t, c.run,
            c.wait, c.us
        FROM _at c LEFT JOIN _actors a ON a.mesh = c.mesh AND a.rank = c.rank AND a.p = c.p
            LEFT JOIN (SELECT DISTINCT p, proc_name FROM _at) s ON s.p = c.sender
        WHERE c.k = 'call'""",
    "sent": """
        SELECT us / 1e6 AS ended_at, mesh AS from_mesh, rank AS from_rank, to_mesh, method, num,
            run / 1e9 AS seconds, ok, proc_name AS proc, proc_host AS host, p AS proc_uid, port, t,
            run, us
        FROM _at WHERE k = 'sent'""",
    "messages": """
        SELECT hash(c.proc_uid, c.mesh_uid, c.rank, c.t) AS id,
            (c.us - (c.run + c.wait) // 1000)::BIGINT AS timestamp_us,
            hash(coalesce(s.from_mesh, ''), coalesce(s.from_rank, 0)) AS from_actor_id,
            hash(c.mesh_uid, c.rank) AS to_actor_id, c.method AS endpoint, c.port AS port_index
        FROM calls c LEFT JOIN sent s
            ON s.proc_uid = c.sender AND s.port = c.port AND c.port > 0""",
    "message_status_events": """
        SELECT hash(id, status) AS id, timestamp_us, id AS message_id, status FROM (
            SELECT hash(proc_uid, mesh_uid, rank, t) AS id,
                unnest([us - (run + wait) // 1000, us - run // 1000, us]) AS timestamp_us,
                unnest(['queued', 'active', CASE WHEN ok THEN 'complete' ELSE 'failed' END])
                    AS status
            FROM calls)""",
    "sent_messages": """
        SELECT hash(proc_uid, port, t) AS id, (us - run // 1000)::BIGINT AS timestamp_us,
            hash(from_mesh, from_rank) AS sender_actor_id, hash(to_mesh) AS actor_mesh_id,
            json_object('num', num)::VARCHAR AS view_json,
            json_object('num', num)::VARCHAR AS shape_json
        FROM sent""",
    "spans": """
        SELECT hash(p, t, method) AS id, method AS name, hash(mesh, rank) AS actor_id,
            (us - run // 1000)::BIGINT AS timestamp_us, (us - run // 1000)::BIGINT AS start_us,
            us AS end_us, run / 1e9 AS seconds, proc_name AS proc, mesh, rank
        FROM _at WHERE k = 'span'""",
    "span_events": """
        SELECT hash(id, e) AS id, e AS event_type, id AS span_id,
            CASE e WHEN 'enter' THEN start_us ELSE end_us END AS timestamp_us
        FROM (SELECT id, start_us, end_us, unnest(['enter', 'exit']) AS e FROM spans)""",
    "failures": """
        SELECT us / 1e6 AS happened_at, name AS who, 'proc' AS kind, text AS reason,
            proc_host AS host
        FROM _at WHERE k = 'failure'
        UNION ALL
        SELECT s.us / 1e6, coalesce(a.name, s.mesh) || ' ' || s.rank, 'actor', s.text, s.proc_host
        FROM _at s LEFT JOIN _actors a ON a.mesh = s.mesh AND a.rank = s.rank AND a.p = s.p
        WHERE s.k = 'status' AND s.status = 'failed'""",
    "events": """
        SELECT hash(p, t, k) AS id, us AS timestamp_us, k AS name,
            coalesce(text, status, '') AS message, proc_name AS proc
        FROM _at WHERE k IN ('failure', 'push', 'status')""",
    "pushes": """
        SELECT us / 1e6 AS happened_at, generation, text AS files, proc_name AS proc,
            proc_host AS host
        FROM _at WHERE k = 'push'""",
    "procs": """
        SELECT q.name, q.rank, q.host, q.pid, n.cpu_seconds, n.rss, n.generation,
            n.status, q.mesh AS mesh_uid, q.uid
        FROM _procs q LEFT JOIN
            (SELECT * FROM rows WHERE k = 'now_proc') n ON n.p = q.uid""",
    "queues": """
        SELECT a.name AS actor, a.rank, a.proc_name AS proc, a.proc_host AS host, a.status, a.queue,
            a.doing, a.seconds, a.num_ended, a.num_failed
        FROM _at a WHERE k = 'now_actor'""",
    "hosts": """
        SELECT host, pid, cpu, mem_used, mem_total, num_gpus, url, text AS error
        FROM rows WHERE k = 'now_host'""",
    "collectives": """
        SELECT rank, "group", seq, op, text AS sizes, done, place, epoch / 1e9 AS began_at,
            proc_name AS proc
        FROM _at WHERE k = 'collective'""",
    # A point a second and process, as an exporter of deltas gives; ``value`` is the sum so far.
    "metric_sums": """
        SELECT hash(name, p, second) AS id, (second + 1) * 1000000 AS timestamp_us,
            second * 1000000 AS start_timestamp_us, name, 'monarch' AS scope_name,
            '{message}' AS unit, 'delta' AS temporality, true AS is_monotonic,
            NULL::DOUBLE AS sum_f64, NULL::BIGINT AS sum_i64, delta::UBIGINT AS sum_u64,
            sum(delta) OVER (PARTITION BY name, p ORDER BY second)::DOUBLE AS value, proc
        FROM (
            SELECT 'mailbox.posts' AS name, p, us // 1000000 AS second, proc_name AS proc,
                count(*) AS delta FROM _at WHERE k = 'call' GROUP BY ALL
            UNION ALL
            SELECT 'mailbox.sends', p, us // 1000000 AS second, proc_name, sum(num)
            FROM _at WHERE k = 'sent' GROUP BY ALL)""",
    "metric_gauges": """
        SELECT hash('mailbox.queue', p, mesh, rank) AS id, us AS timestamp_us,
            'mailbox.queue' AS name, 'monarch' AS scope_name, '{message}' AS unit,
            NULL::DOUBLE AS value_f64, NULL::BIGINT AS value_i64, queue::UBIGINT AS value_u64,
            queue::DOUBLE AS value, proc_name AS proc
        FROM _at WHERE k = 'now_actor'""",
    "metric_histograms": """
        SELECT hash(mesh_uid, method) AS id, max(us) AS timestamp_us, method AS name,
            'monarch' AS scope_name, 's' AS unit, '[]' AS bounds_json,
            json_array(count(*))::VARCHAR AS bucket_counts_json, count(*) AS count,
            sum(run) / 1e9 AS sum, min(run) / 1e9 AS min, max(run) / 1e9 AS max
        FROM calls GROUP BY mesh_uid, method""",
}

READY: dict[str, tuple[str, str]] = {
    "slowest": (
        "the endpoints that take longest",
        """SELECT actor, method, count(*) AS calls, round(avg(run_seconds), 6) AS mean_seconds,
            round(quantile_cont(run_seconds, 0.99), 6) AS p99_seconds,
            round(max(run_seconds), 6) AS max_seconds
        FROM calls GROUP BY ALL ORDER BY max_seconds DESC LIMIT 20""",
    ),
    "queues": (
        "actors with most messages waiting, and what they do",
        """SELECT actor, rank, status, queue, doing, round(seconds, 3) AS seconds, proc
        FROM queues ORDER BY queue DESC, seconds DESC LIMIT 20""",
    ),
    "failed": (
        "what failed, the last first",
        """SELECT make_timestamp((happened_at * 1e6)::BIGINT) AS utc, kind, who, host, reason
        FROM failures ORDER BY happened_at DESC LIMIT 20""",
    ),
    "skew": (
        "endpoints that take longer on some ranks",
        """SELECT actor, method, arg_max(rank, mean) AS slowest_rank,
            round(max(mean), 6) AS slowest, round(median(mean), 6) AS median,
            round(max(mean) / nullif(median(mean), 0), 2) AS ratio
        FROM (SELECT actor, method, rank, avg(run_seconds) AS mean FROM calls GROUP BY ALL)
        GROUP BY ALL HAVING count(*) > 1 ORDER BY ratio DESC LIMIT 20""",
    ),
    "traffic": (
        "who calls whom, how often",
        """SELECT sender_proc, actor, method, count(*) AS calls, sum((NOT ok)::INT) AS failed,
            round(sum(run_seconds), 3) AS run_seconds, round(avg(wait_seconds), 6) AS mean_wait
        FROM calls GROUP BY ALL ORDER BY calls DESC LIMIT 20""",
    ),
}
