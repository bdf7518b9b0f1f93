"""Stands in for OpenTelemetry's API: writes what is reported into a file, one JSON a line."""

import json
import os
import threading


def report(**fields: object) -> None:
    with open(os.environ["FAKE_TELEMETRY"], "a") as file:
        file.write(json.dumps({"thread": threading.current_thread().name, **fields}) + "\n")
