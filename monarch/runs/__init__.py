"""A run of a recipe: its folder, what it writes there, and what is read from there later.

What to open:

    roles                  parts of a mesh: some procs train, others evaluate
    recipe, catalog        a recipe, and where its code is; those that are installed
    outline                a recipe's config, read without importing it
    script_source          whether a Python file is a plain script, and calls `monarch.step`
    plain_script,          a plain script as a run, and what runs it in each proc
      script_ranks
    error_text,            an error in words; the two lines of a traceback that a person needs
      error_lines
    session                one go of a run, and which process may run in a folder
    folder                 run folders, and which command goes on with which run
    record                 what a run writes down and shows; what it is asked
    rows, writing          files of JSON lines; errors of writing, for people
    logs                   output of ranks, written and read
    telemetry              rows of the run's processes
    loggers                TensorBoard, Weights & Biases
    page                   the page of a run, which the dashboard serves
    report, plot           `report.html`; charts
    summary                a run in short, in words
    rollouts               the last samples of reinforcement learning
    measured               the numbers that a run has reported
    code, git              the code of a run, and what changed in it; its commit
    edits                  which code has proved good, and what to do with code that fails
    holding                new code fails: the run holds, and goes on with the next save
    hold_report            what is told of a hold
    trial, state_copies    new code on trial in each process; copies of an actor's state
    state_walk,            what belongs to a state, and how each thing is put back in place;
      tensor_copies          tensors and arrays, copied or watched
    sharded_modules        FSDP's modules, brought back to their shards
    copy_beside,           a copy in the host's memory, beside the first step on new code;
      copy_room              whether there is room for it
    state_memory,          the memory of a rank, which outlives its process; a state as text and
      packed_state           tensors
    run_memory             which copies there are, and which a run goes on from
    unaveraged             gradients that DDP has not averaged are not stepped with
    attempts               begins again when ranks are lost
    recovery               why ranks were lost, and whether to begin again
    restarts               the budget of restarts
    deaths                 deaths that a recipe expects to survive
    ranks                  calls of all ranks: the first failure, and hangs
    witness                the stacks of ranks that do not answer; looks at what they do
    modules_run            which parts of a sharded model a step has run
    slowness               whether ranks that take long are slow, or stuck
    places                 file and line of the user's code, in short
    clock                  a run's limits, which stand still while a person debugs
    checkpoint_choice      the checkpoint that a config names: a file, a run, the best
    saving                 checkpoints, and what happens when one cannot be saved
    live_config            keys that change while the run goes on
    allocation             hosts that are ended, replaced, or lost under a run
    detached               runs whose client is on a host
    carry                  the script that sends a host's run folders here
    receive_state          the script that keeps a job's state on a host, for a detached run
    end_text, error_text   how a run ended, in words; errors in words
"""

TYPE_CHECKING = False  # as `typing` has it, which takes a while to import
if TYPE_CHECKING:
    from monarch.runs.deaths import Deaths
    from monarch.runs.holding import Holding
    from monarch.runs.live_config import LiveConfig
    from monarch.runs.record import Display, LineDisplay, Record

__all__ = ["Deaths", "Display", "Holding", "LineDisplay", "LiveConfig", "Record"]

_HOMES = {
    "Deaths": "deaths",
    "Display": "record",
    "Holding": "holding",
    "LineDisplay": "record",
    "LiveConfig": "live_config",
    "Record": "record",
}


def __getattr__(name: str) -> object:
    # Imported when asked for: to look at runs that are over takes nothing of the runtime.
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return value
