"""What a run writes down, and what is read from its folder later.

What to open:

    record                 what a run writes down and shows; what it is asked
    folder                 run folders, and which command goes on with which run
    rows, writing          files of JSON lines; errors of writing, for people
    logs                   output of ranks, written and read
    telemetry              rows of the run's processes
    loggers                TensorBoard, Weights & Biases
    plot                   charts
    summary                a run in short, in words
    rollouts               the last samples of reinforcement learning
    measured               the numbers that a run has reported
    code, git              the code of a run, and what changed in it; its commit
    edits                  which code has proved good, and what to do with code that fails
    slowness               whether ranks that take long are slow, or stuck
    live_config            keys that change while the run goes on
    error_text,            an error in words; the two lines of a traceback that a person needs
      error_lines
    places                 file and line of the user's code, in short
"""
