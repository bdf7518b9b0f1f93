"""The record of a run: the code that writes it, and the code that reads it later.

What to open:

    record                 the record that a recipe writes to; requests to a run
    folder                 run folders, and which command resumes which run
    rows, writing          files of JSON lines; errors of writing, for people
    logs                   output of ranks, written and read
    telemetry              rows of the run's processes
    loggers                TensorBoard, Weights & Biases
    plot                   charts
    summary                a short text about a run
    rollouts               the last samples of reinforcement learning
    measured               the figures that a run has reported
    code, git              the code of a run, and its changes; its commit
    edits                  which code has succeeded, and what to do when code fails
    slowness               whether ranks that take long are slow, or stuck
    live_config            keys that change while the run goes on
    error_text,            an error in words; the two lines of a traceback that a person needs
      error_lines
    places                 file and line of the user's code, in short
"""
